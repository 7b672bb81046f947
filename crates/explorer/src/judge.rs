//! What may be found after a crash.
//!
//! What a run leaves when every store reaches the medium is judged after each step, by the history of
//! what callers saw ([`quiescent`]). A crash within a step must then leave what was there before it
//! or what is there after it, but for bytes, which go straight to their place: each byte of a file
//! is one that the file had there since it was last synced ([`crashed`]).
//!
//! Not judged: numbers of blocks; what a file reserves beyond its contents.

use crate::run::{Run, Step, Synced};
use crate::states::Moment;
use crate::tree::{BLOCK, Blocks, Flaw, Id, Object, Slot, Tree};
use std::collections::{BTreeMap, BTreeSet};
use vfs::Kind;

/// A tree without what has no name.
fn named(tree: &Tree) -> Tree {
    let mut tree = tree.clone();
    tree.objects.retain(|_, o| o.nlink > 0);
    let objects = &tree.objects;
    tree.contents.retain(|id, _| objects.contains_key(id));
    tree
}

/// An inode by itself: its names and the number of its names belong to directories.
fn alone(object: &Object) -> Object {
    Object {
        names: BTreeMap::new(),
        nlink: 0,
        times: object.times,
        ..object.clone()
    }
}

/// Whether what each step left durable is what it had to, or could.
pub fn quiescent(run: &Run) -> Result<(), Flaw> {
    let mut full = 0;
    for (i, step) in run.steps.iter().enumerate() {
        let fail = |what: String| {
            format!(
                "what is durable after step {i}, {}: {what}\n{}",
                step.what,
                run.account()
            )
        };
        let before = &run.steps[i.saturating_sub(1)];
        step.durable.links().map_err(fail)?;
        match &step.synced {
            Synced::Everything => {
                full = i;
                let want = named(&step.latest);
                if let Some(difference) = step.durable.difference(&want) {
                    return Err(fail(format!("not everything:\n{difference}")));
                }
                if step.durable.contents != want.contents {
                    return Err(fail("other bytes than the latest".into()));
                }
            }
            Synced::Nothing if step.batches == 0 => {
                if let Some(difference) = step.durable.difference(&before.durable) {
                    return Err(fail(format!("it changed:\n{difference}")));
                }
            }
            Synced::Nothing => between(run, full, i, &step.durable).map_err(fail)?,
            Synced::These(inodes) => {
                between(run, full, i, &step.durable).map_err(fail)?;
                for &(id, names) in inodes {
                    one(step, id, names).map_err(fail)?;
                }
            }
        }
    }
    Ok(())
}

/// What was synced is there as callers saw it.
fn one(step: &Step, id: Id, names: bool) -> Result<(), Flaw> {
    let (latest, durable) = (&step.latest, &step.durable);
    let Some(want) = latest.objects.get(&id).filter(|o| o.nlink > 0) else {
        return Ok(());
    };
    let Some(found) = durable.objects.get(&id) else {
        return Err(format!("inode {} is lost", id.0));
    };
    if alone(want) != alone(found) || (want.kind == Kind::Dir && want.names != found.names) {
        return Err(format!(
            "inode {} is {found:?}\n  instead of {want:?}",
            id.0
        ));
    }
    if latest.contents.get(&id) != durable.contents.get(&id) {
        return Err(format!("inode {} holds other bytes", id.0));
    }
    for (slot, child) in slots(latest).filter(|(_, child)| names && *child == id) {
        if latest.objects[&slot.0].nlink > 0 && durable.slot(&slot) != Some(child) {
            return Err(format!(
                "name {} of inode {} is lost",
                slot.1.escape_ascii(),
                id.0
            ));
        }
    }
    Ok(())
}

fn slots(tree: &Tree) -> impl Iterator<Item = (Slot, Id)> {
    let dirs = tree.objects.iter().filter(|(_, o)| o.kind == Kind::Dir);
    dirs.flat_map(|(&dir, o)| {
        o.names
            .iter()
            .map(move |(name, &child)| ((dir, name.clone()), child))
    })
}

/// A tree that was durable while step `at` ran, with several batches in it or one of a single file:
/// each inode, name and move is in a state that it had since everything was synced, in step `full`.
fn between(run: &Run, full: usize, at: usize, tree: &Tree) -> Result<(), Flaw> {
    let last = &run.steps[at.saturating_sub(1)];
    let before = &last.durable;
    let history: Vec<&Tree> = [before]
        .into_iter()
        .chain(run.steps[full..=at].iter().map(|s| &s.latest))
        .collect();
    let now = &run.steps[at].latest;
    for (id, object) in &tree.objects {
        // The state from before the step: a sync beside the change, or one that made space for it.
        let was = [before, &last.latest, now].map(|t| t.objects.get(id).map(alone));
        if !was.contains(&Some(alone(object))) {
            return Err(format!(
                "inode {} is {object:?}\n  instead of one of {was:?}",
                id.0
            ));
        }
    }
    let all: BTreeSet<Slot> = history
        .iter()
        .copied()
        .chain([tree])
        .flat_map(slots)
        .map(|(slot, _)| slot)
        .collect();
    for slot in &all {
        if !history.iter().any(|t| t.slot(slot) == tree.slot(slot)) {
            return Err(format!(
                "name {} in {} leads to {:?}, as never before",
                slot.1.escape_ascii(),
                slot.0.0,
                tree.slot(slot)
            ));
        }
    }
    for step in &run.steps[full..=at] {
        let Some((from, to)) = &step.moved else {
            continue;
        };
        let pair = |t: &Tree| (t.slot(from), t.slot(to));
        // It never has both names. That it has one is asked below, for all that was durable.
        let moved = step.latest.slot(to);
        if pair(tree) == (moved, moved) && !history.iter().any(|t| pair(t) == pair(tree)) {
            return Err(format!(
                "a move from {} in {} to {} in {} is half done: both are {moved:?}",
                from.1.escape_ascii(),
                from.0.0,
                to.1.escape_ascii(),
                to.0.0
            ));
        }
    }
    for id in before.objects.keys() {
        let kept = now.objects.get(id).is_some_and(|o| o.nlink > 0);
        if kept && !tree.objects.contains_key(id) {
            return Err(format!("inode {} lost all its names", id.0));
        }
    }
    Ok(())
}

/// Whether a crash at this moment may leave this.
pub fn crashed(run: &Run, moment: Moment, tree: &Tree) -> Result<(), Flaw> {
    tree.links()?;
    let at = moment.step;
    let (before, after) = (&run.steps[at.saturating_sub(1)], &run.steps[at]);
    let difference = tree.difference(&after.durable);
    if let Some(difference) = difference
        && (moment.ended || tree.objects != before.durable.objects)
    {
        if moment.ended || after.batches <= 1 {
            return Err(format!(
                "the tree is not that of step {at}, {}{}:\n{difference}",
                after.what,
                if moment.ended {
                    ""
                } else {
                    ", nor the one before"
                }
            ));
        }
        let full = (0..at)
            .rev()
            .find(|&i| run.steps[i].synced == Synced::Everything)
            .unwrap_or(0);
        between(run, full, at, tree)?;
    }
    for (id, blocks) in &tree.contents {
        bytes(run, moment, *id, tree.objects[id].size, blocks)?;
    }
    Ok(())
}

/// Each byte of a file is one that it had since it was synced, or zero where it was beyond the end since.
fn bytes(run: &Run, moment: Moment, id: Id, size: u64, blocks: &Blocks) -> Result<(), Flaw> {
    let last = moment.step;
    let synced = |i: usize| run.steps[i].synced.has(id);
    let ended = if moment.ended { last + 1 } else { last };
    let since = (0..ended).rev().find(|&i| synced(i)).unwrap_or(0);
    let candidates: Vec<(u64, &Blocks)> = run.steps[since..=last]
        .iter()
        .rev()
        .filter_map(|s| Some((s.latest.objects.get(&id)?.size, s.latest.contents.get(&id)?)))
        .collect();
    // Bytes beyond the end are void: who makes a file grow zeroes them before that is seen, and who punches
    // what was cut off zeroes them as well.
    let least = candidates.iter().map(|(size, _)| *size).min();
    let numbers: BTreeSet<u64> = candidates
        .iter()
        .flat_map(|(_, b)| b.keys())
        .chain(blocks.keys())
        .copied()
        .collect();
    for block in numbers.into_iter().filter(|b| b * BLOCK < size) {
        let len = BLOCK.min(size - block * BLOCK) as usize;
        let found = blocks.get(&block);
        if candidates.iter().any(|(s, b)| {
            *s >= block * BLOCK + len as u64
                && b.get(&block).map(|b| &b[..len]) == found.map(|f| &f[..len])
        }) {
            continue;
        }
        let byte = |b: Option<&Vec<u8>>, i: usize| b.and_then(|b| b.get(i)).copied().unwrap_or(0);
        for i in 0..len {
            let at = block * BLOCK + i as u64;
            let mut had = candidates
                .iter()
                .filter(|(s, _)| at < *s)
                .map(|(_, b)| byte(b.get(&block), i));
            let zeroed = byte(found, i) == 0 && least.is_some_and(|end| at >= end);
            if !zeroed && !had.any(|b| b == byte(found, i)) {
                let had: BTreeSet<u8> = candidates
                    .iter()
                    .filter(|(s, _)| at < *s)
                    .map(|(_, b)| byte(b.get(&block), i))
                    .collect();
                return Err(format!(
                    "byte {at} of inode {} is {:#x}, which it never was since step {since}, but one of {had:x?} (size {size})",
                    id.0,
                    byte(found, i)
                ));
            }
        }
    }
    Ok(())
}
