//! What may be found after a crash.
//!
//! What a run leaves when every store reaches the medium is judged after each step, by the history
//! of what callers saw ([`quiescent`]). A crash within a step must then leave what was there before
//! it or what is there after it, but for bytes, which go straight to their place: each byte of a
//! file is one that the file had there since it was last synced ([`crashed`]).
//!
//! Where changes become durable one by one, in an order, a crash may leave more: see
//! `judge/ordered.rs`.
//!
//! Not judged: numbers of blocks; what a file reserves beyond its contents.

mod names;
mod ordered;
mod snapshots;

use crate::engine::Leaves;
use crate::run::{Run, Step, Synced};
use crate::states::Moment;
use crate::tree::{BLOCK, Blocks, Flaw, Id, Object, Slot, Tree};
use names::Reached;
use std::collections::{BTreeMap, BTreeSet};
use vfs::Kind;

/// Which of an object's times says when it was changed.
const CTIME: usize = 1;

/// An inode by itself: its names and the number of its names belong to directories.
pub(crate) fn alone(object: &Object) -> Object {
    Object {
        names: BTreeMap::new(),
        nlink: 0,
        times: object.times,
        ..object.clone()
    }
}

/// How an inode was at the end: when its last name was taken or, if it was held, when it was let
/// go. A batch may have it so with another name whose removal, an earlier one, is not in the batch.
/// If nobody held it no tree shows the time of that removal: it is the step's.
fn died(steps: &[Step], id: Id) -> Option<Object> {
    let has = |step: &Step| step.latest.objects.get(&id).cloned();
    let (last, end) = steps.windows(2).rev().find_map(|two| {
        let gone = has(&two[1]).is_none();
        Some((has(&two[0]).filter(|_| gone)?, two[1].time))
    })?;
    let mut object = alone(&last);
    if last.nlink > 0 {
        object.times[CTIME] = end;
    }
    Some(object)
}

/// Whether what each step left durable is what it had to, or could.
pub fn quiescent(run: &Run) -> Result<(), Flaw> {
    if run.workload.mode.leaves() == Leaves::Parts {
        return ordered::quiescent(run);
    }
    let mut reached = Reached::default();
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
        let (both, mode) = (run.workload.is_concurrent(), run.workload.mode);
        let at_once = mode.is_durable() && mode.leaves() == Leaves::Whole;
        if at_once && !both && !step.between.is_empty() {
            return Err(fail("it commits in parts".into()));
        }
        let made = Moment {
            step: i,
            ended: false,
        };
        for tree in &step.between {
            tree.links().map_err(fail)?;
            // What was there before mkfs has nothing to do with what it makes.
            if !run.is_being_made(made) {
                between(run, &mut reached, i, tree).map_err(fail)?;
            }
        }
        match &step.synced {
            Synced::Everything | Synced::EverythingBut(_) => {
                reached = Reached::all(i);
                all(step).map_err(fail)?;
            }
            Synced::EverythingBefore => {
                before_or_after(before, step).map_err(fail)?;
                reached = Reached::all(i - 1);
            }
            Synced::Nothing if step.batches == 0 => {
                if let Some(difference) = step.durable.difference(&before.durable) {
                    return Err(fail(format!("it changed:\n{difference}")));
                }
            }
            Synced::Nothing => between(run, &mut reached, i, &step.durable).map_err(fail)?,
            Synced::These(inodes) => {
                between(run, &mut reached, i, &step.durable).map_err(fail)?;
                if mode.leaves() == Leaves::Whole && !both {
                    up_to(&run.steps[..=i]).map_err(fail)?;
                }
                for &(id, names) in inodes {
                    one(step, id, names).map_err(fail)?;
                    reached.synced(&run.steps, i, (id, names));
                }
            }
        }
    }
    Ok(())
}

/// All that callers saw is durable.
fn all(step: &Step) -> Result<(), Flaw> {
    let want = step.latest.named();
    if let Some(difference) = step.durable.difference(&want) {
        return Err(format!("not everything:\n{difference}"));
    }
    match step.durable.contents == want.contents {
        true => Ok(()),
        false => Err("other bytes than the latest".into()),
    }
}

/// What is durable after the last of these steps is all that callers saw after one of them: what is
/// whole takes along all that was done before.
fn up_to(steps: &[Step]) -> Result<(), Flaw> {
    let durable = &steps[steps.len() - 1].durable;
    let is_it = |step: &Step| {
        let seen = step.latest.named();
        seen.objects == durable.objects && seen.contents == durable.contents
    };
    match steps.iter().rev().any(is_it) {
        true => Ok(()),
        false => Err("it is not all that was done up to some operation".into()),
    }
}

/// What is durable is all from before the step, with its change or without: names as a whole, and
/// each inode by itself, as what a batch takes of one may be newer than what it takes of its names.
/// Bytes may be there in any case.
fn before_or_after(before: &Step, step: &Step) -> Result<(), Flaw> {
    let (was, is) = (before.latest.named(), step.latest.named());
    let durable = &step.durable;
    let names = |tree: &Tree| -> Vec<_> {
        let of = |(id, o): (&Id, &Object)| (*id, o.nlink, o.names.clone());
        tree.objects.iter().map(of).collect()
    };
    let is_either = |(id, object): (&Id, &Object)| {
        let known = [&was, &is].map(|tree| tree.objects.get(id).map(alone));
        known.contains(&Some(alone(object)))
    };
    let known = [names(&was), names(&is)].contains(&names(durable));
    if !known || !durable.objects.iter().all(is_either) {
        let difference = durable.difference(&was).unwrap_or_default();
        return Err(format!("not everything from before:\n{difference}"));
    }
    let lost = durable.contents.iter().find(|(id, blocks)| {
        let unchanged = was.contents.get(id) == is.contents.get(id);
        unchanged && was.contents.get(id) != Some(*blocks)
    });
    match lost {
        Some((id, _)) => Err(format!("inode {} holds other bytes", id.0)),
        None => Ok(()),
    }
}

/// What was synced is there as callers saw it.
fn one(step: &Step, id: Id, names: bool) -> Result<(), Flaw> {
    let (latest, durable) = (&step.latest, &step.durable);
    let Some(want) = latest.objects.get(&id) else {
        return Ok(());
    };
    let Some(found) = durable.objects.get(&id) else {
        return match want.nlink {
            0 => Ok(()), // its removal is durable, too
            _ => Err(format!("inode {} is lost", id.0)),
        };
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
/// each inode is in a state that it had since everything was synced, and so are names, together
/// with those that they are tied to ([`names`]), and none in one from before that which was durable
/// already.
fn between(run: &Run, reached: &mut Reached, at: usize, tree: &Tree) -> Result<(), Flaw> {
    let full = reached.full;
    let last = &run.steps[at.saturating_sub(1)];
    let before = &last.durable;
    let now = &run.steps[at].latest;
    for (id, object) in &tree.objects {
        // The state from before the step: a sync beside the change, or one that made space for it.
        let mut was: Vec<Object> = [before, &last.latest, now]
            .iter()
            .filter_map(|t| t.objects.get(id).map(alone))
            .collect();
        was.extend(died(&run.steps[full..=at], *id));
        let is_part = || {
            let written = run.steps[at].written == Some(*id);
            written && is_part(last.latest.objects.get(id), now.objects.get(id), object)
        };
        if !was.contains(&alone(object)) && !is_part() {
            return Err(format!(
                "inode {} is {object:?}\n  instead of one of {was:?}",
                id.0
            ));
        }
    }
    reached.advance(&run.steps[..=at], tree)?;
    for id in before.objects.keys() {
        let kept = now.objects.get(id).is_some_and(|o| o.nlink > 0);
        if kept && !tree.objects.contains_key(id) {
            return Err(format!("inode {} lost all its names", id.0));
        }
    }
    Ok(())
}

/// Whether a file is as the first part of a write leaves it. A write for which space is short is
/// done in parts, as POSIX permits; where each is durable at once, a crash may leave the first ones
/// alone. The file is as after the write, but for its end.
fn is_part(before: Option<&Object>, after: Option<&Object>, found: &Object) -> bool {
    let (Some(before), Some(after)) = (before, after) else {
        return false;
    };
    let ended = Object {
        size: found.size,
        ..alone(after)
    };
    (before.size..=after.size).contains(&found.size) && alone(found) == ended
}

/// Whether a crash at this moment may leave this.
pub fn crashed(run: &Run, moment: Moment, tree: &Tree) -> Result<(), Flaw> {
    tree.links()?;
    snapshots::crashed(run, moment, tree)?;
    if run.workload.mode.leaves() == Leaves::Parts {
        return ordered::crashed(run, moment, tree);
    }
    let at = moment.step;
    let (before, after) = (&run.steps[at.saturating_sub(1)], &run.steps[at]);
    // A batch is there or not, as a whole. What each of several leaves was judged before.
    let was = || {
        let trees = [&before.durable].into_iter().chain(&after.between);
        trees
            .map(|t| &t.objects)
            .any(|objects| *objects == tree.objects)
    };
    if let Some(difference) = tree.difference(&after.durable)
        && (moment.ended || !was())
    {
        return Err(format!(
            "the tree is not that of step {at}, {}{}:\n{difference}",
            after.what,
            match (moment.ended, after.between.len()) {
                (true, _) => "",
                (false, 0) => ", nor the one before",
                (false, _) => ", nor the one before, nor of one of its batches",
            }
        ));
    }
    if run.workload.mode.leaves() == Leaves::Whole {
        return whole(before, after, moment, tree);
    }
    for (id, blocks) in &tree.contents {
        bytes(run, moment, *id, tree.objects[id].size, blocks)?;
    }
    Ok(())
}

/// Files hold what they held before the step or after it, all of them together with the rest of the
/// tree.
fn whole(before: &Step, after: &Step, moment: Moment, tree: &Tree) -> Result<(), Flaw> {
    let is_whole = |t: &Tree| t.objects == tree.objects && t.contents == tree.contents;
    let earlier = || [&before.durable].into_iter().chain(&after.between);
    if is_whole(&after.durable) || (!moment.ended && earlier().any(is_whole)) {
        return Ok(());
    }
    let held = tree.contents.iter();
    let other = held.filter(|(id, blocks)| after.durable.contents.get(id) != Some(*blocks));
    let inodes: Vec<u64> = other.map(|(id, _)| id.0).collect();
    Err(format!(
        "files {inodes:?} do not hold what they did after step {}, {}, and all is not as before it",
        moment.step, after.what
    ))
}

/// A file's size and contents at some time.
type Candidate<'a> = (u64, &'a Blocks);

/// Whether a byte was within a file and later, in another candidate, beyond its end. Then it is
/// void: who makes the file grow over it zeroes it first, and so does who punches what was cut off.
/// In a file that only grew it is not: its new bytes are durable before its size is.
fn was_cut(candidates: &[Candidate<'_>], at: u64) -> bool {
    let within = candidates.iter().position(|(size, _)| at < *size);
    within.is_some_and(|first| candidates[first..].iter().any(|(size, _)| *size <= at))
}

/// Whether a byte was cut off, or beyond the end of a file in its last block. If the file grows
/// within a block, no order is kept between its size and its bytes there: until these come they are
/// zeros. Further blocks are there before the size.
fn was_beyond(candidates: &[Candidate<'_>], at: u64) -> bool {
    let grew = |size: u64| (size..size.next_multiple_of(BLOCK)).contains(&at);
    was_cut(candidates, at) || candidates.iter().any(|(size, _)| grew(*size))
}

/// Each byte of a file is one that it had since it was synced, or zero where it was cut off since;
/// where changes become durable one by one, also zero where the file has grown.
fn bytes(run: &Run, moment: Moment, id: Id, size: u64, blocks: &Blocks) -> Result<(), Flaw> {
    let last = moment.step;
    let synced = |i: usize| run.steps[i].synced.has(id);
    let ended = if moment.ended { last + 1 } else { last };
    let since = (0..ended).rev().find(|&i| synced(i)).unwrap_or(0);
    let latest = run.steps[since..=last].iter().map(|s| &s.latest);
    let candidates: Vec<Candidate<'_>> = latest
        .chain(&run.later)
        .filter_map(|t| Some((t.objects.get(&id)?.size, t.contents.get(&id)?)))
        .collect();
    let numbers: BTreeSet<u64> = candidates
        .iter()
        .flat_map(|(_, b)| b.keys())
        .chain(blocks.keys())
        .copied()
        .collect();
    let is_void = match run.workload.mode.leaves() {
        Leaves::Parts => was_beyond,
        Leaves::WholeButBytes | Leaves::Whole => was_cut,
    };
    for block in numbers.into_iter().filter(|b| b * BLOCK < size) {
        let len = BLOCK.min(size - block * BLOCK) as usize;
        let found = blocks.get(&block);
        let as_it_was = |(s, b): &Candidate<'_>| {
            *s >= block * BLOCK + len as u64
                && b.get(&block).map(|b| &b[..len]) == found.map(|f| &f[..len])
        };
        if candidates.iter().rev().any(as_it_was) {
            continue;
        }
        let byte = |b: Option<&Vec<u8>>, i: usize| b.and_then(|b| b.get(i)).copied().unwrap_or(0);
        let held: Vec<_> = candidates
            .iter()
            .map(|(s, b)| (*s, b.get(&block)))
            .collect();
        for i in 0..len {
            let (at, now) = (block * BLOCK + i as u64, byte(found, i));
            let had = || {
                held.iter()
                    .filter(|(s, _)| at < *s)
                    .map(|(_, b)| byte(*b, i))
            };
            let void = || now == 0 && is_void(&candidates, at);
            if !had().any(|byte| byte == now) && !void() {
                let had: BTreeSet<u8> = had().collect();
                return Err(format!(
                    "byte {at} of inode {} is {now:#x}, which it never was since step {since}, \
                     but one of {had:x?} (size {size})",
                    id.0
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
