//! What is written when: rounds of waves, each with one flush behind it.
//!
//! A round goes on until nothing is dirty and nothing waits. A wave takes copies of the dirty
//! blocks that need no roll-back; if there are none, of all others: then blocks wait for each
//! other, and rolling back breaks the ring. What it makes durable opens guards and starts tasks,
//! which is what the next wave writes.
//!
//! An fsync writes what it waits for, and what that waits for, and nothing else: all else in those
//! blocks is rolled back. Those who call meanwhile have theirs in the same waves. So does what is
//! *due*, as it was changed some time ago; it goes behind what a caller waits for. If a search for
//! what is waited for leads nowhere, the rest is a round for all.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::MutexGuard;
use vfs::Result;

use super::graph::{On, Urgency};
use super::{Action, Journal, Order, Soft};
use crate::cache::{Cache, Copied, WAVE_MAX};

/// Waves, beside those for what is dirty at first, after which no operation begins until the round
/// is over. So a round ends even if callers are always faster.
const WAVES_MAX: usize = 16;
/// Ticks after which what was changed is due.
const AGE: u32 = 5;
/// Writes of a wave of what is due: so long may a caller wait for it.
const DUE_MAX: usize = 256;
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

    /// Begins to copy what snapshots want of blocks that are to be written; where rounds are
    /// transactions, that is durable then. Called by who writes, as the next.
    ///
    /// # Errors
    /// The disk failed.
    fn keep(&self, blocks: &dyn Fn() -> Vec<u64>) -> Result<()>;

    /// Whether a block may be written: what it was is kept, durably, or no snapshot wants it.
    fn may_write(&self, block: u64) -> bool;

    /// What may not be written waits for snapshots, and they for that: they end, and it may. False:
    /// there are none.
    ///
    /// # Errors
    /// The disk failed.
    fn give_up_keeping(&self) -> Result<bool>;
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

/// Makes durable what `conditions` has. That is called as an operation, behind all those of which
/// something is to be durable.
///
/// # Errors
/// As [`round`].
pub fn fsync(
    order: &Order,
    cache: &Cache,
    mount: &dyn Mount,
    conditions: &dyn Fn() -> Result<Vec<On>>,
) -> Result<()> {
    let Order::Soft(soft) = order else {
        return round(order, cache, mount);
    };
    let reached = {
        let _operation = order.begin();
        soft.want(cache, &conditions()?, Urgency::Now)
    };
    // What was copied before, and is not durable, is of a wave that has this.
    let _writer = cache.writer();
    settle(soft, cache, mount, Goal::Reached(&reached))?;
    // That one may have failed.
    cache.check()
}

/// A tick has passed: makes durable what was changed [`AGE`] ticks ago, or before, and is not. In
/// transactions that is all there is, each time that so many ticks have passed.
///
/// # Errors
/// As [`round`].
pub fn tick(order: &Order, cache: &Cache, mount: &dyn Mount) -> Result<()> {
    let now = cache.tick();
    let due = (now + 1).saturating_sub(AGE);
    let soft = match order {
        Order::Async(_) => return cache.sync_since(due),
        Order::Journal(journal) => match now.is_multiple_of(AGE) {
            true => return transaction(journal, cache, mount),
            false => return Ok(()),
        },
        Order::Soft(soft) => soft,
    };
    let reached = {
        let _operation = order.begin();
        let mut after = soft.tick(now, due);
        after.extend(cache.dirty_since(due).into_iter().map(On::Block));
        soft.want(cache, &after, Urgency::Due)
    };
    let mut writer = cache.writer();
    settle(soft, cache, mount, Goal::Due(&mut writer, &reached))?;
    if now.is_multiple_of(AGE) {
        soft.forget_left();
    }
    cache.check()
}

/// When a round ends.
enum Goal<'a, 'b> {
    /// Nothing is left. Others write between two waves, if they wait for that.
    All(&'a mut MutexGuard<'b, ()>),
    /// Nothing is left, and no operation is under way, and none begins.
    Quiet,
    /// This is true.
    Reached(&'a AtomicBool),
    /// This is true. Others write between two waves, if they wait for that.
    Due(&'a mut MutexGuard<'b, ()>, &'a AtomicBool),
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
    // While operations go on, so that little is left when none does.
    mount.keep(&|| cache.dirty_numbers())?;
    let copied = {
        let _quiet = journal.operations.alone();
        copy(cache, mount)?
    };
    commit(cache, mount, copied)
}

/// The same for who [writes](Cache::writer), and lets no operation begin.
///
/// # Errors
/// As [`round`].
pub fn quiet_transaction(cache: &Cache, mount: &dyn Mount) -> Result<()> {
    let copied = copy(cache, mount)?;
    commit(cache, mount, copied)
}

/// Completes a transaction while there is no operation: what it frees, and its blocks.
fn copy(cache: &Cache, mount: &dyn Mount) -> Result<(Vec<u64>, Vec<Copied>)> {
    let freed = mount.complete()?;
    Ok((freed, cache.copy_dirty(cache.dirty_numbers(), usize::MAX)))
}

fn commit(
    cache: &Cache,
    mount: &dyn Mount,
    (freed, copies): (Vec<u64>, Vec<Copied>),
) -> Result<()> {
    let committed = cache.commit(copies, &freed);
    mount.ended(committed.is_ok());
    committed
}

/// Goes on until a goal; false: there was nothing to write.
fn settle(soft: &Soft, cache: &Cache, mount: &dyn Mount, goal: Goal<'_, '_>) -> Result<bool> {
    let is_quiet = matches!(goal, Goal::Quiet);
    let (mut writer, reached, mut wanted) = match goal {
        Goal::All(writer) => (Some(writer), None, None),
        Goal::Quiet => (None, None, None),
        Goal::Reached(reached) => (None, Some(reached), Some(Urgency::Now)),
        // Callers who wait go first between two waves: they are the next to write.
        Goal::Due(writer, reached) => (Some(writer), Some(reached), Some(Urgency::Due)),
    };
    let waves_max = WAVES_MAX + cache.dirty_len() / wave_max(wanted);
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
            wanted = None;
            held = Some(soft.exclude());
        }
        mount.keep(&|| soft.blocks(cache, wanted))?;
        let picks = soft.next_scattered().filter(|_| waves < SCATTERED_MAX);
        let copies = {
            let _quiet = (held.is_none() && !is_quiet).then(|| soft.exclude());
            soft.copy(cache, (wanted, picks), &|block| mount.may_write(block))
        };
        if copies.is_empty() && wanted.take().is_some() {
            continue;
        }
        if copies.is_empty() && soft.is_idle() {
            break;
        }
        let is_open = |copied: &Copied| soft.is_open(copied.number);
        let progress = wanted.is_some() || picks.is_some() || copies.iter().any(is_open);
        any |= cache.write(copies)?;
        let moved = soft.flushed();
        if !progress && !moved && soft.is_waiting() {
            let waits = |&block: &u64| !mount.may_write(block);
            if cache.dirty_numbers().iter().any(waits) && mount.give_up_keeping()? {
                continue;
            }
            log::error!("changes wait for each other: the oldest is written without its order");
            assert!(soft.force(), "something waits for what nobody will write");
        }
    }
    Ok(any)
}

/// Writes of a wave.
fn wave_max(wanted: Option<Urgency>) -> usize {
    match wanted {
        Some(Urgency::Due) => DUE_MAX,
        Some(Urgency::Now) | None => WAVE_MAX,
    }
}

impl Soft {
    /// The number of a wave that is to take what chance has.
    fn next_scattered(&self) -> Option<usize> {
        let is_scattered = self.scattered.load(Ordering::Relaxed) > 0;
        is_scattered.then(|| self.scattered.fetch_add(1, Ordering::Relaxed))
    }

    /// Blocks that a wave may have: those that lead to what is `wanted`, or all that are dirty.
    fn blocks(&self, cache: &Cache, wanted: Option<Urgency>) -> Vec<u64> {
        match wanted {
            Some(urgency) => self.next(urgency).into_iter().collect(),
            None => cache.dirty_numbers(),
        }
    }

    /// Copies for a wave (S2). What a copy does not show stays dirty (S3). `wanted`: of what leads
    /// to that alone. `picks`: some of all that, by the number of the wave.
    fn copy(
        &self,
        cache: &Cache,
        (wanted, picks): (Option<Urgency>, Option<usize>),
        may_write: &dyn Fn(u64) -> bool,
    ) -> Vec<Copied> {
        let max = wave_max(wanted);
        let blocks = self.blocks(cache, wanted);
        let blocks = || blocks.iter().copied().filter(|&block| may_write(block));
        let is_next = |block| wanted.is_some() || self.is_open(block);
        let mut copies = Vec::new();
        if let Some(wave) = picks {
            let is_picked = |block: &u64| picked(*block, wave, is_next(*block));
            copies = cache.copy_dirty(blocks().filter(is_picked), max);
        }
        if copies.is_empty() {
            copies = cache.copy_dirty(blocks().filter(|&block| is_next(block)), max);
        }
        if copies.is_empty() {
            copies = cache.copy_dirty(blocks(), usize::MAX);
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
