//! What is written when: rounds of waves, each with one flush behind it.
//!
//! A round goes on until nothing is dirty and nothing waits. A wave takes copies of the dirty
//! blocks that need no roll-back; if there are none, of all others: then blocks wait for each
//! other, and rolling back breaks the ring. What it makes durable opens guards and starts tasks,
//! which is what the next wave writes.

use vfs::Result;

use super::{Action, Journal, Order, Soft};
use crate::cache::{Cache, Copied, WAVE_MAX};

/// Waves, beside those for what is dirty at first, after which no operation begins until the round
/// is over. So a round ends even if callers are always faster.
const WAVES_MAX: usize = 16;

/// The mount whose changes are written.
pub trait Mount {
    /// Does what nothing on disk speaks against any more.
    ///
    /// # Errors
    /// The disk failed, or damage was found.
    fn run(&self, action: Action) -> Result<()>;

    /// There is no operation, and what there is becomes a transaction: completes it. The blocks
    /// that it frees, which are nobody's until it has ended.
    ///
    /// # Errors
    /// The disk failed.
    fn complete(&self) -> Result<Vec<u64>>;

    /// That transaction is durable, or not.
    fn ended(&self, is_durable: bool);

    /// Begins to copy what snapshots want of blocks that are dirty. Called by who writes, as the
    /// next.
    ///
    /// # Errors
    /// The disk failed.
    fn keep(&self) -> Result<()>;

    /// Whether a block may be written: what it was is kept, durably, or no snapshot wants it.
    fn may_write(&self, block: u64) -> bool;
}

/// Makes durable all that was changed before, and frees what was given up.
///
/// # Errors
/// The disk failed, or what a task found is damaged.
pub fn round(order: &Order, cache: &Cache, mount: &dyn Mount) -> Result<()> {
    let soft = match order {
        Order::Async(_) => return cache.sync(),
        Order::Journal(journal) => return transaction(journal, cache, mount),
        Order::Soft(soft) => soft,
    };
    let _writer = cache.writer();
    match settle(soft, cache, mount, false)? {
        true => Ok(()),
        // What others have written is to be durable, too.
        false => cache.flush(),
    }
}

/// The same in mode soft, for who [writes](Cache::writer), and lets no operation begin.
///
/// # Errors
/// As [`round`].
///
/// # Panics
/// In other modes.
pub fn quiet_round(order: &Order, cache: &Cache, mount: &dyn Mount) -> Result<()> {
    let soft = order.soft().expect("soft updates");
    settle(soft, cache, mount, true)?;
    cache.flush()
}

/// Makes durable, as one transaction, all that was changed by operations that have ended.
fn transaction(journal: &Journal, cache: &Cache, mount: &dyn Mount) -> Result<()> {
    let _writer = cache.writer();
    let (freed, copies) = {
        let _quiet = journal.operations.write();
        (mount.complete()?, cache.copy_dirty(usize::MAX, |_| true))
    };
    let committed = cache.commit(copies, &freed);
    mount.ended(committed.is_ok());
    committed
}

/// Goes on until nothing is left; false: there was nothing to write.
fn settle(soft: &Soft, cache: &Cache, mount: &dyn Mount, is_quiet: bool) -> Result<bool> {
    let waves_max = WAVES_MAX + cache.dirty_len() / WAVE_MAX;
    let (mut held, mut any) = (None, false);
    for waves in 0.. {
        for action in soft.take_ready(cache) {
            mount.run(action)?;
        }
        if waves == waves_max && !is_quiet {
            held = Some(soft.exclude());
        }
        mount.keep()?;
        let copies = {
            let _quiet = (held.is_none() && !is_quiet).then(|| soft.exclude());
            soft.copy(cache, &|block| mount.may_write(block))
        };
        if copies.is_empty() && soft.is_idle() {
            break;
        }
        let progress = copies.iter().any(|copied| soft.is_open(copied.number));
        any |= cache.write(copies)?;
        let moved = soft.flushed();
        if !progress && !moved && soft.is_waiting() {
            log::error!("changes wait for each other: the oldest is written without its order");
            assert!(soft.force(), "something waits for what nobody will write");
        }
    }
    Ok(any)
}

impl Soft {
    /// Copies for a wave (S2). What a copy does not show stays dirty (S3).
    fn copy(&self, cache: &Cache, may_write: &dyn Fn(u64) -> bool) -> Vec<Copied> {
        let is_open = |block| self.is_open(block) && may_write(block);
        let mut copies = cache.copy_dirty(WAVE_MAX, is_open);
        if copies.is_empty() {
            copies = cache.copy_dirty(usize::MAX, may_write);
        }
        if copies.is_empty() && cache.dirty_len() == 0 {
            self.all_is_durable();
        }
        let mut state = self.state.lock();
        for copied in &mut copies {
            if !state.graph.copy(copied.number, &mut copied.bytes) {
                cache.again(copied);
            }
        }
        copies
    }
}
