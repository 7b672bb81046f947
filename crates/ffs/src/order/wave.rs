//! What is written when: rounds of waves, each with one flush behind it.
//!
//! A round goes on until nothing is dirty and nothing waits. A wave takes copies of the dirty
//! blocks that need no roll-back; if there are none, of all others: then blocks wait for each
//! other, and rolling back breaks the ring. What it makes durable opens guards and starts tasks,
//! which is what the next wave writes.
//!
//! An fsync is a round that ends when what it waits for is durable. It leaves the data of other
//! files out: what leads to those is rolled back as long as they are not there. Those who wait for
//! it meanwhile have their data in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::MutexGuard;
use vfs::Result;

use super::graph::On;
use super::{Action, Journal, Order, Soft};
use crate::cache::{Cache, Copied, WAVE_MAX};
use crate::fault::{Fault, unless};

/// Waves, beside those for what is dirty at first, after which no operation begins until the round
/// is over. So a round ends even if callers are always faster.
const WAVES_MAX: usize = 16;
/// Waves of a round that take what chance has, if they are to.
const SCATTERED_MAX: usize = 64;

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
    let mut writer = cache.writer();
    match settle(soft, cache, mount, Goal::All(&mut writer))? {
        true => Ok(()),
        // What others have written is to be durable, too.
        false => cache.flush(),
    }
}

/// Makes a file durable: its data, and what `conditions` has of it. That is called as an operation,
/// behind all those that are to be durable.
///
/// # Errors
/// As [`round`].
pub fn fsync(
    order: &Order,
    cache: &Cache,
    mount: &dyn Mount,
    ino: u32,
    conditions: &dyn Fn() -> Result<Vec<On>>,
) -> Result<()> {
    let Order::Soft(soft) = order else {
        return round(order, cache, mount);
    };
    let reached = Arc::new(AtomicBool::new(false));
    let _wanted = Wanted::new(soft, ino);
    {
        let _operation = order.begin();
        let mut after = conditions()?;
        let data = cache.dirty_data(ino);
        let data = unless(Fault::FsyncWithoutData, &data);
        after.extend(data.iter().copied().map(On::Block));
        let stated = order.after(cache, Action::Reached(reached.clone()), &after);
        debug_assert!(stated.is_none(), "soft updates keep what is to be done");
    }
    // What was copied before, and is not durable, is of a wave that has this.
    let _writer = cache.writer();
    settle(soft, cache, mount, Goal::Reached(&reached))?;
    // That one may have failed.
    cache.check()
}

/// An inode whose caller waits for it, until this is dropped.
struct Wanted<'a> {
    soft: &'a Soft,
    ino: u32,
}

impl<'a> Wanted<'a> {
    fn new(soft: &'a Soft, ino: u32) -> Wanted<'a> {
        soft.wanted.lock().push(ino);
        Wanted { soft, ino }
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        let mut wanted = self.soft.wanted.lock();
        let own = wanted.iter().position(|&ino| ino == self.ino);
        wanted.swap_remove(own.expect("it was added"));
    }
}

/// When a round ends.
enum Goal<'a, 'b> {
    /// Nothing is left. Others write between two waves, if they wait for that.
    All(&'a mut MutexGuard<'b, ()>),
    /// Nothing is left, and no operation is under way, and none begins.
    Quiet,
    /// This is true.
    Reached(&'a AtomicBool),
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
    settle(soft, cache, mount, Goal::Quiet)?;
    cache.flush()
}

/// Makes durable, as one transaction, all that was changed by operations that have ended.
fn transaction(journal: &Journal, cache: &Cache, mount: &dyn Mount) -> Result<()> {
    let _writer = cache.writer();
    let (freed, copies) = {
        let _quiet = journal.operations.write();
        (
            mount.complete()?,
            cache.copy_dirty(None, usize::MAX, |_| true),
        )
    };
    let committed = cache.commit(copies, &freed);
    mount.ended(committed.is_ok());
    committed
}

/// Goes on until a goal; false: there was nothing to write.
fn settle(soft: &Soft, cache: &Cache, mount: &dyn Mount, goal: Goal<'_, '_>) -> Result<bool> {
    let waves_max = WAVES_MAX + cache.dirty_len() / WAVE_MAX;
    let is_quiet = matches!(goal, Goal::Quiet);
    let mut is_narrow = matches!(goal, Goal::Reached(_));
    let (mut writer, reached) = match goal {
        Goal::All(writer) => (Some(writer), None),
        Goal::Quiet => (None, None),
        Goal::Reached(reached) => (None, Some(reached)),
    };
    let (mut held, mut any) = (None, false);
    for waves in 0.. {
        if let (Some(writer), None) = (&mut writer, &held) {
            MutexGuard::bump(writer);
        }
        for action in soft.take_ready(cache) {
            mount.run(action)?;
        }
        if reached.is_some_and(|reached| reached.load(Ordering::Acquire)) {
            break;
        }
        if waves == waves_max && !is_quiet {
            is_narrow = false;
            held = Some(soft.exclude());
        }
        mount.keep()?;
        let picks = soft.next_scattered().filter(|_| waves < SCATTERED_MAX);
        let copies = {
            let _quiet = (held.is_none() && !is_quiet).then(|| soft.exclude());
            soft.copy(cache, (is_narrow, picks), &|block| mount.may_write(block))
        };
        if copies.is_empty() && std::mem::take(&mut is_narrow) {
            continue;
        }
        if copies.is_empty() && soft.is_idle() {
            break;
        }
        let progress = picks.is_some() || copies.iter().any(|copied| soft.is_open(copied.number));
        any |= cache.write(copies)?;
        let moved = soft.flushed();
        if !progress && !moved && std::mem::take(&mut is_narrow) {
            continue;
        }
        if !progress && !moved && soft.is_waiting() {
            log::error!("changes wait for each other: the oldest is written without its order");
            assert!(soft.force(), "something waits for what nobody will write");
        }
    }
    Ok(any)
}

impl Soft {
    /// The number of a wave that is to take what chance has.
    fn next_scattered(&self) -> Option<usize> {
        let is_scattered = self.scattered.load(Ordering::Relaxed) > 0;
        is_scattered.then(|| self.scattered.fetch_add(1, Ordering::Relaxed))
    }

    /// Copies for a wave (S2). What a copy does not show stays dirty (S3). `is_narrow`: of data
    /// only what somebody waits for, and other blocks also if some of what they show is waited for.
    /// `picks`: some of all that, by the number of the wave.
    fn copy(
        &self,
        cache: &Cache,
        (is_narrow, picks): (bool, Option<usize>),
        may_write: &dyn Fn(u64) -> bool,
    ) -> Vec<Copied> {
        let inodes = is_narrow.then(|| self.wanted.lock().clone());
        let inodes = inodes.as_deref();
        let is_next = |block| self.is_open(block) || is_narrow && self.is_awaited(block);
        let mut copies = Vec::new();
        if let Some(wave) = picks {
            let is_picked = |block| picked(block, wave, is_next(block));
            copies = cache.copy_dirty(inodes, WAVE_MAX, |block| {
                is_picked(block) && may_write(block)
            });
        }
        if copies.is_empty() {
            copies = cache.copy_dirty(inodes, WAVE_MAX, |block| is_next(block) && may_write(block));
        }
        if copies.is_empty() {
            copies = cache.copy_dirty(inodes, usize::MAX, may_write);
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

/// Whether chance has a block in a wave: one in three of those that need no roll-back, and some of
/// the others, as any block may be written at any time (S2).
fn picked(block: u64, wave: usize, is_next: bool) -> bool {
    let mixed = (block ^ (wave as u64) << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 32).is_multiple_of(if is_next { 3 } else { 12 })
}
