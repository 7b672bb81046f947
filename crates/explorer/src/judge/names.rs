//! Names after a crash: those that some of the operations leave, each of them done as a whole, and
//! none of them without all that came before it on any of its names.
//!
//! So a crash shows a name as it was at some time, and all names that one operation changed
//! together as they were at one time. That ties what a chain of renames did, too: `mv new cfg; mv
//! cfg bak` leaves the names as they were before, between or after; never with `cfg` gone and
//! neither the old nor the new file at `bak`.
//!
//! What a name led to may fit several times: its file was moved away and back. Whether some choice
//! of times fits all names is found by advancing: each name starts at the first time that fits, and
//! goes to the next that does where an operation is there by another of its names. Times that fit
//! all are never skipped, so what comes out is the earliest choice, or none fits.

use super::slots;
use crate::run::Step;
use crate::tree::{Flaw, Id, Slot, Tree};
use std::collections::{BTreeMap, BTreeSet};

/// How far what is durable has come.
#[derive(Default)]
pub(super) struct Reached {
    /// The step that last made everything durable.
    pub full: usize,
    /// The steps from which on the names are that have come further: a name does not go back.
    names: BTreeMap<Slot, usize>,
}

/// What a name led to, one after another.
struct History {
    slot: Slot,
    /// What a crash left.
    found: Option<Id>,
    /// From which step on it led where.
    states: Vec<(usize, Option<Id>)>,
    /// The state that it is in, or a later one.
    now: usize,
}

impl History {
    fn of(steps: &[Step], reached: &Reached, slot: Slot, tree: &Tree) -> History {
        let mut states = Vec::new();
        for (i, step) in steps.iter().enumerate().skip(reached.full) {
            let led = step.latest.slot(&slot);
            if states.last().is_none_or(|&(_, last)| last != led) {
                states.push((i, led));
            }
        }
        let from = reached.name(&slot);
        History {
            found: tree.slot(&slot),
            now: states.iter().rposition(|&(i, _)| i <= from).unwrap_or(0),
            slot,
            states,
        }
    }

    /// Go to the next state that fits, this one or a later one.
    fn advance(&mut self, to: usize) -> bool {
        let from = self.now.max(to);
        let fits = |(_, led): &(usize, Option<Id>)| *led == self.found;
        match self.states[from..].iter().position(fits) {
            Some(further) => self.now = from + further,
            None => return false,
        }
        true
    }

    /// The state that begins with a step.
    fn begun_by(&self, step: usize) -> Option<usize> {
        self.states
            .iter()
            .position(|&(i, _)| i == step && i > self.states[0].0)
    }

    fn text(&self) -> String {
        let ((dir, _), name) = &self.slot;
        let found = self.found.map(|(ino, _)| ino);
        format!("name {} in {dir} leads to {found:?}", name.escape_ascii())
    }
}

impl Reached {
    /// All is as of this step.
    pub fn all(full: usize) -> Reached {
        Reached {
            full,
            names: BTreeMap::new(),
        }
    }

    fn name(&self, slot: &Slot) -> usize {
        self.names.get(slot).copied().unwrap_or(self.full)
    }

    /// What was synced is as of step `at`: an inode's names, if they were synced with it, and those
    /// in a directory.
    pub fn synced(&mut self, steps: &[Step], at: usize, (id, with_names): (Id, bool)) {
        let known = steps[self.full..=at].iter().flat_map(|s| slots(&s.latest));
        let inside = known.filter(|((dir, _), _)| *dir == id);
        let own = slots(&steps[at].latest).filter(|(_, child)| with_names && *child == id);
        let names = inside.chain(own).map(|(slot, _)| (slot, at));
        self.names.extend(names);
    }

    /// The names of this tree are durable after some of these steps.
    pub fn advance(&mut self, steps: &[Step], tree: &Tree) -> Result<(), Flaw> {
        let known = steps[self.full..].iter().map(|s| &s.latest).chain([tree]);
        let all: BTreeSet<Slot> = known.flat_map(slots).map(|(slot, _)| slot).collect();
        let history = |slot| History::of(steps, self, slot, tree);
        let mut names: Vec<History> = all.into_iter().map(history).collect();
        for name in &mut names {
            let from = self.name(&name.slot);
            if !name.advance(0) {
                let what = name.text();
                return Err(format!(
                    "{what}, as never since step {from}, which was durable"
                ));
            }
        }
        let tied = tied(steps, self.full, &names);
        while let Some((lead, late, to, step)) = tied.iter().find_map(|pair| pair.broken(&names)) {
            if !names[late].advance(to) {
                let (lead, late) = (names[lead].text(), names[late].text());
                let what = &steps[step].what;
                return Err(format!(
                    "{lead}, with step {step}, {what}; {late}, without it"
                ));
            }
        }
        for name in names {
            let at = name.states[name.now].0.max(self.name(&name.slot));
            self.names.insert(name.slot, at);
        }
        Ok(())
    }
}

/// Two names that an operation changed together: which they are, and the states that it began.
struct Tied {
    step: usize,
    names: [(usize, usize); 2],
}

impl Tied {
    /// If one of them is as after the operation and the other as before: the two, where the second
    /// has to go, and the step.
    fn broken(&self, names: &[History]) -> Option<(usize, usize, usize, usize)> {
        let [one, other] = self.names;
        let there = |(name, state): (usize, usize)| names[name].now >= state;
        match (there(one), there(other)) {
            (true, false) => Some((one.0, other.0, other.1, self.step)),
            (false, true) => Some((other.0, one.0, one.1, self.step)),
            _ => None,
        }
    }
}

/// All names that renames changed together since step `full`. No other operation changes two.
fn tied(steps: &[Step], full: usize, names: &[History]) -> Vec<Tied> {
    let place: BTreeMap<&Slot, usize> = (0..).zip(names).map(|(i, n)| (&n.slot, i)).collect();
    let begun = |slot: &Slot, step| {
        let name = *place.get(slot)?;
        Some((name, names[name].begun_by(step)?))
    };
    let steps = steps.iter().enumerate().skip(full + 1);
    let pairs = steps.flat_map(|(i, step)| step.moved.iter().map(move |pair| (i, pair)));
    pairs
        .filter_map(|(step, (from, to))| {
            let names = [begun(from, step)?, begun(to, step)?];
            Some(Tied { step, names })
        })
        .collect()
}
