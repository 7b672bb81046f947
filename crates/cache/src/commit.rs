//! The protocols by which a plan becomes what the cache holds.

use crate::fault::{Fault, injected};
use crate::layout::{LINE, Record, Slot, State};
use crate::medium::Medium;
use crate::plan::{Change, Plan};
use crate::{CacheError, Kind};

/// Makes a plan durable, whole or not at all.
///
/// # Errors
/// The memory failed: the next recovery tells whether it is.
pub fn run(medium: &Medium, plan: &Plan<'_>) -> Result<(), CacheError> {
    match medium.kind() {
        Kind::Spindle => spindle(medium, plan),
        Kind::Tinca => tinca(medium, plan),
    }
}

/// Three fences for a transaction of any size.
fn spindle(medium: &Medium, plan: &Plan<'_>) -> Result<(), CacheError> {
    let (head, _) = medium.head_and_tail();
    let mut slots: Vec<Slot> = plan.changes.iter().map(Change::slot).collect();
    if slots.is_empty() {
        // Tail has to move: it names the transaction.
        slots.push(Slot {
            entry: None,
            old: State::FREE,
        });
    }
    let tail = head + slots.len() as u64;
    for (block, bytes) in &plan.blocks {
        medium.write_block(*block, bytes);
    }
    if !injected(Fault::SlotsForgotten) {
        medium.set_slots(head, &slots);
    }
    if !injected(Fault::UndoForgotten) {
        for (number, &(at, _)) in (0..).zip(&plan.units) {
            medium.set_record(number, Record { tail, at });
        }
    }
    medium.set_tail(tail);
    // K1: from here on it can be undone.
    medium.fence()?;
    change_entries(medium, &plan.changes);
    for (at, bytes) in &plan.units {
        medium.write_unit(*at, bytes);
    }
    // K2: all of it is durable.
    if !injected(Fault::HeadEarly) {
        medium.fence()?;
    }
    medium.set_head(tail);
    // The commit point.
    medium.fence()
}

/// Changes entries, and requests write-back once for each line of them.
fn change_entries(medium: &Medium, changes: &[Change]) {
    let mut lines: Vec<u64> = Vec::with_capacity(changes.len());
    for change in changes {
        if !change.old.is_valid() {
            medium.set_disk(change.entry, change.disk);
        }
        medium.store_state(change.entry, change.new);
        lines.push(medium.entry_at(change.entry) / LINE);
    }
    lines.sort_unstable();
    lines.dedup();
    for line in lines {
        medium.pool().flush(line * LINE, LINE);
    }
}

/// Each block by itself, as it is published: the block and what undoes it, Tail, the entry in role
/// log; then each entry's role is switched; then Head moves.
fn tinca(medium: &Medium, plan: &Plan<'_>) -> Result<(), CacheError> {
    let (head, _) = medium.head_and_tail();
    let mut blocks = plan.blocks.iter();
    for (change, position) in plan.changes.iter().zip(head..) {
        if change.new.is_valid() {
            let (block, bytes) = blocks.next().expect("each such change has a block");
            medium.write_block(*block, bytes);
        }
        if !injected(Fault::SlotsForgotten) {
            medium.set_slots(position, &[change.slot()]);
        }
        medium.fence()?;
        medium.set_tail(position + 1);
        medium.fence()?;
        if !change.old.is_valid() {
            medium.set_disk(change.entry, change.disk);
        }
        medium.set_state(change.entry, change.new.logged());
        medium.fence()?;
    }
    for change in &plan.changes {
        medium.set_state(change.entry, change.new);
        if !injected(Fault::HeadEarly) {
            medium.fence()?;
        }
    }
    medium.set_head(head + plan.changes.len() as u64);
    medium.fence()
}
