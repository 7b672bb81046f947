//! Domain `cache`: lines that were stored to around the cache, until a fence gives those stores
//! their place in the order (M8).
//!
//! A store around the cache takes its place anywhere between when it was made and its thread's next
//! fence. So until then it may be missing, whatever was stored after it; and it may come behind
//! cached stores to the same line that were made after it, and undo them. A line's versions are the
//! outcomes of these.

use crate::image::Line;
use crate::trace::Thread;
use std::collections::{BTreeMap, BTreeSet};

/// What a line may hold.
#[derive(Clone)]
struct Version {
    bytes: Line,
    /// The stores around the cache, by number, that have taken their place.
    has: BTreeSet<usize>,
    /// The last of these is the last store of all.
    bare: bool,
}

/// A line with stores around the cache that no fence has ordered.
#[derive(Clone)]
pub(super) struct Unordered {
    /// First the one that has the fewest of them; last the one that has all stores in the order in
    /// which they were made.
    versions: Vec<Version>,
    /// By number, who made them.
    by: BTreeMap<usize, Thread>,
    next: usize,
}

impl Unordered {
    /// A line before such a store.
    pub fn new(bytes: Line) -> Unordered {
        Unordered {
            versions: vec![Version {
                bytes,
                has: BTreeSet::new(),
                bare: false,
            }],
            by: BTreeMap::new(),
            next: 0,
        }
    }

    /// How many versions there are.
    pub fn count(&self) -> usize {
        self.versions.len()
    }

    /// One of them.
    pub fn version(&self, version: usize) -> Line {
        self.versions[version].bytes
    }

    /// The one that has all stores in the order in which they were made.
    pub fn latest(&self) -> Line {
        self.versions[self.versions.len() - 1].bytes
    }

    /// The whole line is stored around the cache; `torn`: states in which this may be caught.
    pub fn store_around(&mut self, bytes: Line, torn: Vec<Line>, by: Thread) {
        let number = self.next;
        self.next += 1;
        self.by.insert(number, by);
        let with = |has: &BTreeSet<usize>| has.iter().copied().chain([number]).collect();
        let before = self.versions.clone();
        let latest = &before[before.len() - 1].has;
        self.versions.extend(torn.into_iter().map(|bytes| Version {
            bytes,
            has: latest.clone(),
            bare: false,
        }));
        for version in &before {
            // Ahead of those that are there already, or behind them.
            if !version.has.is_empty() {
                self.versions.push(Version {
                    has: with(&version.has),
                    ..version.clone()
                });
            }
            self.versions.push(Version {
                bytes,
                has: with(&version.has),
                bare: true,
            });
        }
    }

    /// A cached store to a part of the line: it is there at once.
    pub fn store(&mut self, from: usize, part: &[u8]) {
        let undone: Vec<Version> = self.versions.iter().filter(|v| v.bare).cloned().collect();
        for version in &mut self.versions {
            version.bytes[from..from + part.len()].copy_from_slice(part);
            version.bare = false;
        }
        let latest = self.versions.len() - 1;
        self.versions.splice(latest..latest, undone);
    }

    /// What this thread stored around the cache has its place. True: nothing is unordered any more.
    pub fn fence(&mut self, by: Thread) -> bool {
        let its: BTreeSet<usize> = self
            .by
            .iter()
            .filter(|(_, thread)| **thread == by)
            .map(|(&number, _)| number)
            .collect();
        self.by.retain(|number, _| !its.contains(number));
        self.versions.retain(|v| v.has.is_superset(&its));
        for version in &mut self.versions {
            version.has.retain(|number| !its.contains(number));
        }
        self.by.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first two bytes of each version, without repetitions.
    fn found(line: &Unordered) -> BTreeSet<(u8, u8)> {
        let of = |v: &Version| (v.bytes[0], v.bytes[1]);
        line.versions.iter().map(of).collect()
    }

    #[test]
    fn a_store_around_the_cache_is_missing_or_there_until_its_threads_fence() {
        let mut line = Unordered::new([0; 64]);
        line.store_around([7; 64], vec![], 0);
        assert_eq!(found(&line), [(0, 0), (7, 7)].into());
        assert!(!line.fence(1), "another thread's fence");
        assert_eq!(found(&line), [(0, 0), (7, 7)].into());
        assert!(line.fence(0));
        assert_eq!(found(&line), [(7, 7)].into());
    }

    #[test]
    fn a_cached_store_is_there_at_once_and_may_be_undone() {
        let mut line = Unordered::new([0; 64]);
        line.store_around([7; 64], vec![], 0);
        line.store(0, &[1]);
        assert_eq!(found(&line), [(1, 0), (1, 7), (7, 7)].into());
        assert_eq!((line.version(0)[0], line.version(0)[1]), (1, 0));
        assert_eq!((line.latest()[0], line.latest()[1]), (1, 7));
    }

    #[test]
    fn two_threads_stores_have_any_order_and_fences_of_their_own() {
        let mut line = Unordered::new([0; 64]);
        line.store_around([1; 64], vec![], 0);
        line.store_around([2; 64], vec![], 1);
        assert_eq!(found(&line), [(0, 0), (1, 1), (2, 2)].into());
        assert!(!line.fence(0));
        assert_eq!(found(&line), [(1, 1), (2, 2)].into());
        assert!(line.fence(1));
        assert_eq!(line.latest()[0], 2);
    }
}
