//! What may be found after a crash where changes become durable one by one, in an order: soft
//! updates.
//!
//! Of each inode and of each name what is found was so at one time since it was durable; these
//! times differ. What the order promises ties them together:
//!
//! - an inode that has had names at all times since it was durable has one, so a name that is
//!   replaced leads to the old inode or to the new one;
//! - if the name of such an inode is gone that was moved, it is at its new place, or was there and
//!   went on.
//!
//! That a name leads to an inode that is there, with what it holds, is the auditor's to say, and
//! that of [`Tree::of`].

use super::{all, alone, bytes, died, is_part, one, slots};
use crate::run::{Run, Step, Synced};
use crate::states::Moment;
use crate::tree::{Flaw, Id, Object, Slot, Tree};
use std::collections::{BTreeMap, BTreeSet};
use vfs::Kind;

/// Whether what each step left durable is what it had to, or could.
pub(super) fn quiescent(run: &Run) -> Result<(), Flaw> {
    for (i, step) in run.steps.iter().enumerate() {
        let fail = |what: String| {
            let (what_step, account) = (&step.what, run.account());
            format!("what is durable after step {i}, {what_step}: {what}\n{account}")
        };
        step.durable.links().map_err(fail)?;
        let moment = Moment {
            step: i,
            ended: true,
        };
        if run.is_being_made(moment) {
            continue;
        }
        crashed(run, moment, &step.durable).map_err(fail)?;
        match &step.synced {
            Synced::Everything | Synced::EverythingBut(_) => all(step).map_err(fail)?,
            Synced::These(inodes) => {
                let mut inodes = inodes.iter();
                inodes
                    .try_for_each(|&(id, names)| one(step, id, names))
                    .map_err(fail)?;
            }
            Synced::Nothing | Synced::EverythingBefore => {}
        }
    }
    Ok(())
}

/// Whether a crash at this moment may leave this.
pub(super) fn crashed(run: &Run, moment: Moment, tree: &Tree) -> Result<(), Flaw> {
    let history = History::of(run, moment);
    history.inodes(tree)?;
    history.names(tree)?;
    history.kept(tree)?;
    history.moved(tree)?;
    for (id, blocks) in &tree.contents {
        bytes(run, moment, *id, tree.objects[id].size, blocks)?;
    }
    Ok(())
}

/// The steps up to a crash, and since when what may be there.
struct History<'a> {
    steps: &'a [Step],
    /// Everything was durable after this step.
    full: usize,
    /// What was synced since, and after which step it was.
    inodes: BTreeMap<Id, usize>,
    names: BTreeMap<Slot, usize>,
    /// After which step it was synced first.
    first: BTreeMap<Id, usize>,
}

impl<'a> History<'a> {
    fn of(run: &'a Run, moment: Moment) -> History<'a> {
        let steps = &run.steps[..=moment.step];
        let ended = if moment.ended {
            steps.len()
        } else {
            moment.step
        };
        let is_full = |step: &Step| {
            let synced = &step.synced;
            matches!(synced, Synced::Everything | Synced::EverythingBut(_))
        };
        let full = steps[..ended].iter().rposition(is_full).unwrap_or(0);
        let mut history = History {
            steps,
            full,
            inodes: BTreeMap::new(),
            names: BTreeMap::new(),
            first: BTreeMap::new(),
        };
        for (i, step) in steps[..ended].iter().enumerate().skip(full) {
            if let Synced::These(inodes) = &step.synced {
                inodes.iter().for_each(|&one| history.synced(i, one));
            }
        }
        history
    }

    /// An inode was synced in a step, and with it the names in it, and its own if it is to have
    /// them.
    fn synced(&mut self, at: usize, (id, with_names): (Id, bool)) {
        self.inodes.insert(id, at);
        self.first.entry(id).or_insert(at);
        let known = self.steps[self.full..=at].iter();
        let known = known.flat_map(|step| slots(&step.latest));
        let inside = known.filter(|((dir, _), _)| *dir == id);
        let own = slots(&self.steps[at].latest).filter(|(_, child)| with_names && *child == id);
        let names = inside.chain(own).map(|(slot, _)| (slot, at));
        self.names.extend(names);
    }

    fn since(&self, id: Id) -> usize {
        self.inodes.get(&id).copied().unwrap_or(self.full)
    }

    fn name_since(&self, slot: &Slot) -> usize {
        self.names.get(slot).copied().unwrap_or(self.full)
    }

    fn inodes(&self, tree: &Tree) -> Result<(), Flaw> {
        for (id, found) in &tree.objects {
            let steps = &self.steps[self.since(*id)..];
            let was = steps
                .iter()
                .filter_map(|step| step.latest.objects.get(id).map(alone));
            let is_part = self.is_part(*id, found);
            let found = alone(found);
            if !is_part && !was.chain(died(steps, *id)).any(|was| was == found) {
                let since = self.since(*id);
                return Err(format!(
                    "inode {} is {found:?}, as never since step {since}",
                    id.0
                ));
            }
        }
        Ok(())
    }

    /// Whether a file is as a part of a write left it that waited for space.
    fn is_part(&self, id: Id, found: &Object) -> bool {
        let steps = &self.steps[self.since(id)..];
        steps.windows(2).any(|two| {
            let [before, after] = [&two[0], &two[1]].map(|step| step.latest.objects.get(&id));
            two[1].written == Some(id) && is_part(before, after, found)
        })
    }

    fn names(&self, tree: &Tree) -> Result<(), Flaw> {
        let known = self.steps[self.full..].iter().map(|step| &step.latest);
        let all: BTreeSet<Slot> = known
            .chain([tree])
            .flat_map(slots)
            .map(|(slot, _)| slot)
            .collect();
        for slot in all {
            // What is in a directory that is not there is nowhere; that it is not, its name says.
            if !tree.objects.contains_key(&slot.0) {
                continue;
            }
            let (since, found) = (self.name_since(&slot), tree.slot(&slot));
            let mut was = self.steps[since..]
                .iter()
                .map(|step| step.latest.slot(&slot));
            if !was.any(|was| was == found) {
                let ((dir, _), name) = (slot.0, slot.1.escape_ascii());
                let found = found.map(|(ino, _)| ino);
                return Err(format!(
                    "name {name} in {dir} leads to {found:?}, as never since step {since}"
                ));
            }
        }
        Ok(())
    }

    /// What had names at all times since it was durable has one.
    fn kept(&self, tree: &Tree) -> Result<(), Flaw> {
        let known = self.steps[self.full..].iter();
        let known: BTreeSet<Id> = known
            .flat_map(|step| step.latest.objects.keys().copied())
            .collect();
        for id in known {
            let since = self.since(id);
            if !tree.objects.contains_key(&id) && self.is_to_be_kept(id) {
                return Err(format!(
                    "inode {} has lost all its names, of which it had some since step {since}",
                    id.0
                ));
            }
        }
        Ok(())
    }

    /// Whether an inode has had names at all times since it was durable.
    fn is_to_be_kept(&self, id: Id) -> bool {
        self.steps[self.since(id)..].iter().all(|step| {
            let object = step.latest.objects.get(&id);
            object.is_some_and(|object| object.nlink > 0)
        })
    }

    /// Whether an inode was durable before a step.
    fn was_durable(&self, id: Id, step: usize) -> bool {
        let at_first = &self.steps[self.full].latest.objects;
        at_first.contains_key(&id) || self.first.get(&id).is_some_and(|&first| first < step)
    }

    /// Whether what came to a place in a step left it again, for a whiteout, and has a name that it
    /// got then: the whiteout may come after that.
    fn left(&self, id: Id, (step, place): (usize, &Slot), tree: &Tree) -> bool {
        let later = &self.steps[step..];
        let has = |step: &Step, slot: &Slot| step.latest.slot(slot) == Some(id);
        let went_on = |slot: &Slot| {
            let had = has(&self.steps[step - 1], slot);
            !had && later.iter().any(|step| has(step, slot))
        };
        let mut names = slots(tree).filter(|(_, child)| *child == id);
        later.iter().any(|step| is_whiteout(&step.latest, place))
            && names.any(|(slot, _)| went_on(&slot))
    }

    /// A name that has moved is gone from its old place after it is at the new one.
    fn moved(&self, tree: &Tree) -> Result<(), Flaw> {
        for (i, step) in self.steps.iter().enumerate().skip(self.full + 1) {
            for (from, to) in &step.moved {
                let has = |slot: &Slot, steps: &[Step]| {
                    let found = tree.slot(slot);
                    steps.iter().any(|step| step.latest.slot(slot) == found)
                };
                let before = &self.steps[i - 1].latest;
                // One that was made since may be missing as a whole, or have but its later names.
                let kept = |id: &Id| self.was_durable(*id, i) && self.is_to_be_kept(*id);
                let was_durable = before.slot(from).is_some_and(|id| kept(&id));
                let are_there = [from, to].map(|slot| tree.objects.contains_key(&slot.0));
                let (since, to_since) = (self.name_since(from), self.name_since(to));
                if was_durable
                    && are_there == [true; 2]
                    && since < i
                    && to_since < i
                    && !has(from, &self.steps[since..i])
                    && !has(to, &self.steps[i..])
                    && !before
                        .slot(from)
                        .is_some_and(|id| self.left(id, (i, to), tree))
                {
                    let names = [from, to].map(|(_, name)| name.escape_ascii().to_string());
                    let [from, to] = names;
                    return Err(format!(
                        "{from} is as after step {i}, {}, and {to} as before it",
                        step.what
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Whether a name leads to a whiteout.
fn is_whiteout(tree: &Tree, slot: &Slot) -> bool {
    let found = tree.slot(slot).and_then(|id| tree.objects.get(&id));
    found.is_some_and(|found| found.kind == Kind::CharDev && found.rdev == 0)
}
