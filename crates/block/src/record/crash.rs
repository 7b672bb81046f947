//! What a crash may leave, by the assumptions B1 to B7 of `docs/design/block.md`: in each sector,
//! independently of all others, the newest version that is durable or a later one.

use std::collections::BTreeMap;

use super::{Change, ChangeId, Event, Token, Trace};
use crate::{Random, SECTOR};

/// What a crash may leave at one point of a trace.
pub struct Crash<'t> {
    trace: &'t Trace,
    point: usize,
    /// By sector: what it may hold, oldest first, where that is more than one thing or not what it
    /// held at first.
    sectors: BTreeMap<u64, Vec<Version<'t>>>,
    /// Changes that sectors may hold or lack, in the order of submission.
    open: Vec<ChangeId>,
}

/// What a sector may hold.
#[derive(Clone, Copy)]
struct Version<'t> {
    /// Where it comes from; `None`: it was there at first.
    from: Option<ChangeId>,
    contents: &'t [u8],
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

const ZEROS: [u8; SECTOR as usize] = [0; SECTOR as usize];

/// A change as the trace tells of it up to the point.
struct Progress<'t> {
    change: &'t Change,
    submitted: usize,
    completed: Option<usize>,
    ok: bool,
    durable: bool,
    /// A flush failed since it was submitted: the host may have dropped it, and reports that once.
    lost: bool,
    /// Of a flush: what it makes durable if it succeeds.
    covers: Vec<ChangeId>,
}

/// How far each change has come after the first `point` events.
fn progress(trace: &Trace, point: usize) -> Vec<Progress<'_>> {
    let mut all: Vec<Progress<'_>> = Vec::new();
    for (now, event) in trace.events[..point].iter().enumerate() {
        match event {
            Event::Submitted(change) => {
                let covers = match change {
                    Change::Flush => (0..all.len()).filter(|&id| all[id].ok).collect(),
                    _ => Vec::new(),
                };
                all.push(Progress {
                    change,
                    submitted: now,
                    completed: None,
                    ok: false,
                    durable: false,
                    lost: false,
                    covers,
                });
            }
            Event::Completed { id, ok } => {
                all[*id].completed = Some(now);
                all[*id].ok = *ok;
                if *all[*id].change == Change::Flush {
                    flushed(&mut all, *id, *ok);
                }
            }
            Event::Mark(_) => {}
        }
    }
    all
}

/// A flush is over.
fn flushed(all: &mut [Progress<'_>], flush: ChangeId, ok: bool) {
    if ok {
        for id in std::mem::take(&mut all[flush].covers) {
            all[id].durable |= !all[id].lost;
        }
    } else {
        for change in all.iter_mut() {
            change.lost |= !change.durable;
        }
    }
}

impl<'t> Crash<'t> {
    pub(super) fn new(trace: &'t Trace, point: usize) -> Self {
        let all = progress(trace, point);
        let mut touched: BTreeMap<u64, Vec<ChangeId>> = BTreeMap::new();
        for (id, change) in all.iter().enumerate() {
            let (at, len) = range(change.change);
            for sector in at / SECTOR..(at + len) / SECTOR {
                touched.entry(sector).or_default().push(id);
            }
        }
        let versions =
            |(sector, ids): (u64, Vec<ChangeId>)| (sector, versions(trace, &all, sector, &ids));
        let sectors: BTreeMap<_, _> = touched.into_iter().map(versions).collect();
        let choices = sectors.values().filter(|versions| versions.len() > 1);
        let mut open: Vec<_> = choices
            .flatten()
            .filter_map(|version| version.from)
            .collect();
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
        let counts = self.sectors.values().map(|versions| versions.len() as u128);
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
        for (&sector, versions) in &self.sectors {
            let at = (sector * SECTOR) as usize;
            let version = versions[choose.of(versions)];
            image[at..at + SECTOR as usize].copy_from_slice(version.contents);
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
    fn of(&mut self, versions: &[Version<'_>]) -> usize {
        let count = versions.len();
        match self {
            Chooser::Changes(has) => {
                let there = |version: &Version<'_>| version.from.is_some_and(&mut *has);
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

fn range(change: &Change) -> (u64, u64) {
    match change {
        Change::Write { at, bytes } => (*at, bytes.len() as u64),
        Change::Zero { at, len } | Change::Discard { at, len } => (*at, *len),
        Change::Flush => (0, 0),
    }
}

/// What a sector may hold that these changes touched.
fn versions<'t>(
    trace: &'t Trace,
    all: &[Progress<'t>],
    sector: u64,
    ids: &[ChangeId],
) -> Vec<Version<'t>> {
    // A discard never replaces for sure what was there before it.
    let settles =
        |id: &&ChangeId| all[**id].durable && !matches!(all[**id].change, Change::Discard { .. });
    let settled: Vec<_> = ids.iter().filter(settles).collect();
    let replaced = |id: &ChangeId| {
        let completed = all[*id].completed;
        let after = |later: &&ChangeId| completed.is_some_and(|at| at < all[**later].submitted);
        settled.iter().any(after)
    };
    let from = (sector * SECTOR) as usize;
    let mut versions = Vec::new();
    if settled.is_empty() {
        versions.push(Version {
            from: None,
            contents: &trace.initial[from..from + SECTOR as usize],
        });
    }
    for &id in ids.iter().filter(|id| !replaced(id)) {
        let contents = match all[id].change {
            Change::Write { at, bytes } => {
                let skip = from - *at as usize;
                &bytes[skip..skip + SECTOR as usize]
            }
            _ => &ZEROS[..],
        };
        versions.push(Version {
            from: Some(id),
            contents,
        });
    }
    versions
}
