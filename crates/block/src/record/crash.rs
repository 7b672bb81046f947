//! What a crash may leave of a trace: choices of one version of each sector.

use super::sectors::{Sectors, Version};
use super::{ChangeId, Event, Token, Trace};
use crate::{Random, SECTOR};

/// What a crash may leave at one point of a trace.
pub struct Crash<'t> {
    trace: &'t Trace,
    point: usize,
    sectors: Sectors,
    /// Changes that sectors may hold or lack, in the order of submission.
    open: Vec<ChangeId>,
}

/// One of the states that a crash may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Nothing that need not be there is.
    Oldest,
    /// All that may be there is.
    Newest,
    /// The changes up to this one are there, as on a disk that keeps the order.
    UpTo(ChangeId),
    /// Of what need not be there, only this change is.
    Only(ChangeId),
    /// Of what may be there, only this change is missing.
    Without(ChangeId),
    /// The one with this number, of all.
    Number(u128),
    /// A random one, of this seed.
    Random(u64),
}

impl<'t> Crash<'t> {
    pub(super) fn new(trace: &'t Trace, point: usize) -> Self {
        let mut sectors = Sectors::default();
        for event in &trace.events[..point] {
            match event {
                Event::Submitted(change) => drop(sectors.submit(change.clone())),
                Event::Completed { id, ok } => sectors.complete(*id, *ok),
                Event::Mark(_) => {}
            }
        }
        let choices = sectors.versions().values();
        let choices = choices.filter(|versions| versions.len() > 1);
        let mut open: Vec<_> = choices.flatten().copied().flatten().collect();
        open.sort_unstable();
        open.dedup();
        Crash {
            trace,
            point,
            sectors,
            open,
        }
    }

    /// How many states there are; the largest number if there are more.
    pub fn count(&self) -> u128 {
        let sectors = self.sectors.versions().values();
        let counts = sectors.map(|versions| versions.len() as u128);
        counts.fold(1, u128::saturating_mul)
    }

    /// All states, if there are at most `limit`. Otherwise that many: the extremes, those in which
    /// single changes make the difference or the order was kept (as many as half of the limit
    /// admits), and random ones. The same seed gives the same.
    pub fn states(&self, limit: usize, seed: u64) -> Vec<Token> {
        let states = if self.count() <= limit as u128 {
            (0..self.count()).map(State::Number).collect()
        } else {
            self.sample(limit, seed)
        };
        let token = |state| Token {
            point: self.point,
            state,
        };
        states.into_iter().map(token).collect()
    }

    fn sample(&self, limit: usize, seed: u64) -> Vec<State> {
        let mut random = Random::new(seed ^ self.point as u64);
        let single = self
            .open
            .iter()
            .flat_map(|&id| [State::UpTo(id), State::Only(id), State::Without(id)]);
        let mut single: Vec<_> = single.collect();
        while single.len() > limit / 2 {
            single.swap_remove(random.below(single.len() as u64) as usize);
        }
        let mut states = vec![State::Oldest, State::Newest];
        states.append(&mut single);
        states.resize_with(limit.max(states.len()), || State::Random(random.number()));
        states.truncate(limit);
        states
    }

    /// The image of a state; `None` if there is no such state here.
    pub fn image(&self, state: State) -> Option<Vec<u8>> {
        let known = match state {
            State::UpTo(id) | State::Only(id) | State::Without(id) => self.open.contains(&id),
            State::Number(number) => number < self.count(),
            State::Oldest | State::Newest | State::Random(_) => true,
        };
        if !known {
            return None;
        }
        let mut image = self.trace.initial.to_vec();
        let mut choose = Chooser::new(state, &self.open);
        for (&sector, versions) in self.sectors.versions() {
            if let Some(id) = versions[choose.of(versions)] {
                let at = (sector * SECTOR) as usize;
                let contents = self.sectors.contents(sector, id);
                image[at..at + SECTOR as usize].copy_from_slice(contents);
            }
        }
        Some(image)
    }
}

/// Picks a version for one sector after the other.
enum Chooser {
    /// By what changes the image has.
    Changes(Box<dyn Fn(ChangeId) -> bool>),
    /// The rest of a number, digit by digit.
    Digits(u128),
    /// Any.
    Sectors(Random),
}

impl Chooser {
    fn new(state: State, open: &[ChangeId]) -> Chooser {
        let has: Box<dyn Fn(ChangeId) -> bool> = match state {
            State::Oldest => Box::new(|_| false),
            State::Newest => Box::new(|_| true),
            State::UpTo(last) => Box::new(move |id| id <= last),
            State::Only(one) => Box::new(move |id| id == one),
            State::Without(one) => Box::new(move |id| id != one),
            State::Number(number) => return Chooser::Digits(number),
            State::Random(seed) => {
                let mut random = Random::new(seed);
                if random.one_in(2) {
                    return Chooser::Sectors(random);
                }
                // Whole changes, there or not.
                let there: Vec<_> = open.iter().copied().filter(|_| random.one_in(2)).collect();
                Box::new(move |id| there.contains(&id))
            }
        };
        Chooser::Changes(has)
    }

    /// The version that a sector gets.
    fn of(&mut self, versions: &[Version]) -> usize {
        let count = versions.len();
        match self {
            Chooser::Changes(has) => {
                let there = |version: &Version| version.is_some_and(&mut *has);
                versions.iter().rposition(there).unwrap_or(0)
            }
            Chooser::Digits(rest) => {
                let digit = *rest % count as u128;
                *rest /= count as u128;
                digit as usize
            }
            Chooser::Sectors(random) => random.below(count as u64) as usize,
        }
    }
}
