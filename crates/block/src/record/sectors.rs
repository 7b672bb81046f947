//! The rules of a disk: what each of its sectors may hold after a crash, by B1 to B7 of
//! `docs/design/block.md`. A sector has, independently of all others, the newest version that is
//! durable or a later one.
//!
//! Changes are submitted and completed; a flush that succeeds takes away the versions that it
//! replaces. What is left in one version may be [settled](Sectors::settle) by whoever keeps it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Change, ChangeId};
use crate::SECTOR;

/// Where the contents of a sector come from: a change, or `None` if it is what it held at first.
pub type Version = Option<ChangeId>;

const ZEROS: [u8; SECTOR as usize] = [0; SECTOR as usize];

/// The sectors of a disk to which something happened. On a new one everything is durable.
#[derive(Debug, Clone, Default)]
pub struct Sectors {
    /// By sector, oldest first: never none.
    versions: BTreeMap<u64, Vec<Version>>,
    changes: BTreeMap<ChangeId, Progress>,
    /// How many changes were submitted.
    submitted: ChangeId,
    /// How much happened.
    now: u64,
}

/// How far a change has come.
#[derive(Debug, Clone)]
struct Progress {
    change: Change,
    submitted: u64,
    completed: Option<u64>,
    /// It completed without an error.
    ok: bool,
    durable: bool,
    /// A flush failed since it was submitted: the host may have dropped it, and reports that once.
    lost: bool,
    /// Of a flush: what it makes durable if it succeeds.
    covers: Vec<ChangeId>,
}

/// The sectors of a change.
fn sectors(change: &Change) -> std::ops::Range<u64> {
    let (at, len) = match change {
        Change::Write { at, bytes } => (*at, bytes.len() as u64),
        Change::Zero { at, len } | Change::Discard { at, len } => (*at, *len),
        Change::Flush => (0, 0),
    };
    at / SECTOR..(at + len) / SECTOR
}

impl Sectors {
    /// A change is in flight from here on. They are numbered from 0.
    pub fn submit(&mut self, change: Change) -> ChangeId {
        let id = self.submitted;
        self.submitted += 1;
        self.now += 1;
        for sector in sectors(&change) {
            let versions = self.versions.entry(sector);
            versions.or_insert_with(|| vec![None]).push(Some(id));
        }
        let covers = match change {
            Change::Flush => self.completed().collect(),
            _ => Vec::new(),
        };
        let progress = Progress {
            change,
            submitted: self.now,
            completed: None,
            ok: false,
            durable: false,
            lost: false,
            covers,
        };
        self.changes.insert(id, progress);
        id
    }

    /// What a flush that is submitted now makes durable, and is not yet.
    fn completed(&self) -> impl Iterator<Item = ChangeId> {
        let open = self
            .changes
            .iter()
            .filter(|(_, one)| one.ok && !one.durable);
        open.map(|(&id, _)| id)
    }

    /// A change is complete, with or without an error.
    ///
    /// # Panics
    /// If it was not submitted.
    pub fn complete(&mut self, id: ChangeId, ok: bool) {
        self.now += 1;
        let one = self.changes.get_mut(&id).expect("it was submitted");
        one.completed = Some(self.now);
        one.ok = ok;
        if one.change != Change::Flush {
            return;
        }
        let covers = std::mem::take(&mut one.covers);
        match ok {
            true => self.flushed(&covers),
            false => {
                for change in self.changes.values_mut() {
                    change.lost |= !change.durable;
                }
            }
        }
    }

    /// A flush has made these durable.
    fn flushed(&mut self, covers: &[ChangeId]) {
        let mut touched = BTreeSet::new();
        for id in covers {
            let Some(change) = self.changes.get_mut(id) else {
                continue; // settled by another flush meanwhile
            };
            change.durable |= !change.lost;
            if change.settles() {
                touched.extend(sectors(&change.change));
            }
        }
        for sector in touched {
            let versions = self.versions.get_mut(&sector).expect("it was changed");
            let known = |version: &Version| version.map(|id| &self.changes[&id]);
            let settled: Vec<_> = versions
                .iter()
                .filter_map(known)
                .filter(|one| one.settles())
                .map(|one| one.submitted)
                .collect();
            versions.retain(|version| match known(version) {
                None => settled.is_empty(),
                Some(one) => {
                    let replaces = |&later: &u64| one.completed.is_some_and(|at| at < later);
                    !settled.iter().any(replaces)
                }
            });
        }
    }

    /// What each sector may hold that something happened to: oldest first, at least one version.
    pub fn versions(&self) -> &BTreeMap<u64, Vec<Version>> {
        &self.versions
    }

    /// What a change left in a sector.
    ///
    /// # Panics
    /// If it is none of its versions.
    pub fn contents(&self, sector: u64, id: ChangeId) -> &[u8] {
        match &self.changes[&id].change {
            Change::Write { at, bytes } => {
                let skip = (sector * SECTOR - at) as usize;
                &bytes[skip..skip + SECTOR as usize]
            }
            _ => &ZEROS,
        }
    }

    /// Hands out the sectors that have one version now, with their contents, and forgets them: from
    /// here on that is what they held at first.
    pub fn settle(&mut self, mut keep: impl FnMut(u64, &[u8])) {
        for (&sector, versions) in &self.versions {
            if let [Some(id)] = versions[..] {
                keep(sector, self.contents(sector, id));
            }
        }
        self.versions.retain(|_, versions| versions.len() > 1);
        let named: BTreeSet<_> = self.versions.values().flatten().flatten().collect();
        self.changes
            .retain(|id, one| one.completed.is_none() || named.contains(id) || one.counts());
    }
}

impl Progress {
    /// It replaces what was there before it. A discard never does so for sure.
    fn settles(&self) -> bool {
        self.durable && !matches!(self.change, Change::Discard { .. })
    }

    /// A later flush may make it durable.
    fn counts(&self) -> bool {
        self.ok && !self.durable && self.change != Change::Flush
    }
}
