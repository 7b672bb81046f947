//! What a crash left: a transaction that had not come to its commit point is undone.

use crate::CacheError;
use crate::fault::{Fault, injected};
use crate::layout::COMMIT_AT;
use crate::medium::Medium;

/// Undoes the transaction that was being committed, and makes durable what is visible and is to be
/// relied on (M15). Can be repeated: each step gives what it gave before. Says whether there was
/// such a transaction.
///
/// # Errors
/// What cannot be, and where; or the memory failed.
pub fn recover(medium: &Medium) -> Result<bool, CacheError> {
    let (head, tail) = medium.head_and_tail();
    let slots = medium.geometry.slots;
    let is_sane = head <= tail && tail - head <= slots && head < u64::MAX / 2;
    if !is_sane {
        let what = format!("Head {head} and Tail {tail} of a ring of {slots}");
        return Err(CacheError::corrupt(COMMIT_AT, what));
    }
    if head != tail {
        if !injected(Fault::UnitsKept) {
            undo_metadata(medium, tail)?;
        }
        undo_entries(medium, head, tail)?;
    }
    if !injected(Fault::VisibleBelieved) {
        medium.flush_superblocks();
        medium.flush_commit_line();
        medium.flush_entries();
    }
    medium.fence()?;
    // A lap is left out: of its slots and records some may be left of an attempt whose Tail was
    // lost, and would be believed at the same positions.
    let next = match injected(Fault::LapKept) {
        true => head,
        false => head + slots,
    };
    if injected(Fault::HeadBeforeTail) {
        medium.set_head(next);
        medium.fence()?;
    }
    medium.set_tail(next);
    medium.fence()?;
    medium.set_head(next);
    medium.fence()?;
    Ok(head != tail)
}

/// Each unit was logged once, so their order does not matter.
fn undo_metadata(medium: &Medium, tail: u64) -> Result<(), CacheError> {
    for number in 0..medium.geometry.records {
        let Some((record, bytes)) = medium.record(number, tail) else {
            continue;
        };
        if !medium.is_unit(record.at) {
            let what = format!("record {number} of the log is of byte {:#x}", record.at);
            return Err(CacheError::corrupt(medium.geometry.log_at(), what));
        }
        medium.write_unit(record.at, &bytes);
    }
    Ok(())
}

/// A slot that is not of this lap is of an entry that has not changed: it was not durable, and
/// entries change behind a fence.
fn undo_entries(medium: &Medium, head: u64, tail: u64) -> Result<(), CacheError> {
    let blocks = medium.geometry.blocks;
    for position in (head..tail).rev() {
        let Some(slot) = medium.slot(position) else {
            continue;
        };
        let Some(entry) = slot.entry else { continue };
        let leads_out = slot
            .old
            .block()
            .is_some_and(|block| u64::from(block) >= blocks);
        if u64::from(entry) >= blocks || leads_out {
            let what = format!("slot {position} of the ring is of entry {entry}");
            return Err(CacheError::corrupt(medium.geometry.ring_at(), what));
        }
        medium.set_state(entry, slot.old);
    }
    Ok(())
}
