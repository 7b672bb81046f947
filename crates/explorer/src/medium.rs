//! The medium: what each line may hold after a crash, by the numbered assumptions of
//! `docs/crash-model.md`.
//!
//! In domains `line` and `page` a line has *versions*, from the newest that is durable for sure to
//! the latest; a crash leaves one of them, for each line independently (M6, M11). In domain `cache`
//! every store is durable at once (M8), but those around the cache, which are `unordered` until a
//! fence.

use crate::random::Random;
use crate::scratch::{Line, Overlay, Scratch};
use crate::trace::{Event, Thread};
use crate::unordered::Unordered;
use pmem::{Domain, LINE};
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of a line.
pub const LINE_BYTES: usize = LINE as usize;
const WORD: usize = 8;
/// Versions that a torn store adds to a line: some of the subsets of its words (M3).
const TEARS: usize = 3;

/// What a line may hold.
#[derive(Clone)]
struct Versions {
    /// From the newest that is durable for sure to the latest.
    all: Vec<Line>,
    /// For each thread that flushed since: the version that its flush asked to write back.
    flushed: Vec<(Thread, usize)>,
    /// Stores around the cache that no fence has ordered: by whom, and the version that has it
    /// (M7).
    around: Vec<(Thread, usize)>,
    /// The latest contents without those.
    without: Line,
}

/// The lines of a medium that a crash may leave in several versions.
#[derive(Clone)]
pub struct Medium {
    domain: Domain,
    /// For how stores are torn. Not for what they store: a journal's records bear a random number.
    random: Random,
    lines: BTreeMap<u64, Versions>,
    /// Domain `cache`: the same.
    unordered: BTreeMap<u64, Unordered>,
    /// XOR of the hashes of what was made durable, old and new: the base of a state's hash.
    durable: u64,
}

/// The hash of a line in an image; that of an image is the XOR of its lines'.
fn hash(line: u64, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, line)
}

impl Medium {
    /// A medium on which everything is durable. `seed` chooses how stores are torn.
    pub fn new(domain: Domain, seed: u64) -> Medium {
        Medium {
            domain,
            random: Random::new(seed),
            lines: BTreeMap::new(),
            unordered: BTreeMap::new(),
            durable: 0,
        }
    }

    /// Each line that has several versions, and how many.
    pub fn lines(&self) -> Vec<(u64, usize)> {
        let count = |(&line, v): (&u64, &Versions)| (line, v.all.len());
        let unordered = |(&line, v): (&u64, &Unordered)| (line, v.count());
        let unordered = self.unordered.iter().map(unordered);
        self.lines.iter().map(count).chain(unordered).collect()
    }

    /// A version of a line of [`lines`](Self::lines); 0 is the one that is durable.
    pub fn version(&self, line: u64, version: usize) -> Line {
        match self.unordered.get(&line) {
            Some(unordered) => unordered.version(version),
            None => self.lines[&line].all[version],
        }
    }

    /// What happens to a pool happens to the medium.
    pub fn apply(&mut self, event: &Event, scratch: &mut Scratch) {
        let cache = self.domain == Domain::Cache;
        match event {
            Event::Begin(_) | Event::End(_) => {}
            Event::Store { at, bytes, around } => match around {
                Some(by) if cache => self.store_around(*at, bytes, *by, scratch),
                None if cache => self.store_in_order(*at, bytes, scratch),
                around => self.store(*at, bytes, *around, scratch),
            },
            Event::Fence { by, .. } if cache => self.order(*by, scratch),
            Event::Flush { .. } | Event::Fail if cache => {}
            Event::Flush { at, len, by, .. } => self.flush(*at, *len, *by),
            Event::Fence { by, .. } => self.fence(*by, scratch),
            Event::Fail => self.fail(),
        }
    }

    /// The process is killed (M15): no fence of it comes any more, and all its stores are visible.
    /// The versions stay, but in domain `cache`.
    pub fn kill(&mut self, scratch: &mut Scratch) {
        for versions in self.lines.values_mut() {
            versions.flushed.clear();
            versions.around.clear();
        }
        let unordered = std::mem::take(&mut self.unordered);
        let visible: Vec<_> = unordered
            .iter()
            .map(|(&line, unordered)| (line, unordered.latest()))
            .collect();
        self.make_durable(&visible, scratch);
    }

    /// The lines that are visible in another version than is durable for sure.
    pub fn latest_lines(&self) -> Overlay {
        let latest = |(&line, v): (&u64, &Versions)| (line, v.all[v.all.len() - 1]);
        self.lines.iter().map(latest).collect()
    }

    /// A number that two states have in common if, and almost certainly only if, their images are
    /// the same.
    pub fn hash(&self, overlay: &Overlay, scratch: &Scratch) -> u64 {
        overlay.iter().fold(self.durable, |n, (line, bytes)| {
            n ^ hash(*line, bytes) ^ hash(*line, &scratch.durable(*line))
        })
    }

    fn latest(&self, line: u64, scratch: &Scratch) -> Line {
        match self.lines.get(&line) {
            Some(versions) => versions.all[versions.all.len() - 1],
            None => scratch.durable(line),
        }
    }

    /// Domains `line` and `page`: a store adds versions to its lines, the torn ones first (M3, M5).
    pub fn store(&mut self, at: u64, bytes: &[u8], around: Option<Thread>, scratch: &Scratch) {
        // In `page` a store around the cache is one like any other (M11), and so are partial lines
        // (M7).
        let around = around.filter(|_| self.domain == Domain::Line);
        for (line, from, part) in by_line(at, bytes) {
            let before = self.latest(line, scratch);
            let mut after = before;
            after[from..from + part.len()].copy_from_slice(part);
            let known = self.lines.contains_key(&line);
            if after == before && !known {
                continue;
            }
            let durable = scratch.durable(line);
            let versions = self.lines.entry(line).or_insert_with(|| Versions {
                all: vec![durable],
                flushed: Vec::new(),
                around: Vec::new(),
                without: durable,
            });
            if let Some(thread) = around.filter(|_| part.len() == LINE_BYTES) {
                if versions.around.is_empty() {
                    versions.without = before;
                }
                versions
                    .all
                    .extend(tears(&before, &after, &mut self.random));
                versions.all.push(after);
                versions.around.push((thread, versions.all.len() - 1));
                continue;
            }
            if after == before {
                continue;
            }
            // A store around the cache may still be missing although this one is there (M7).
            if !versions.around.is_empty() {
                versions.without[from..from + part.len()].copy_from_slice(part);
                versions.all.push(versions.without);
            }
            versions
                .all
                .extend(tears(&before, &after, &mut self.random));
            versions.all.push(after);
        }
    }

    /// Write-back of a range was requested by a thread.
    pub fn flush(&mut self, at: u64, len: u64, by: Thread) {
        for line in at / LINE..(at + len).div_ceil(LINE) {
            if let Some(versions) = self.lines.get_mut(&line) {
                // A flush does not order what went around the cache; the fence behind it does.
                if versions.around.is_empty() {
                    versions.flushed.retain(|&(thread, _)| thread != by);
                    versions.flushed.push((by, versions.all.len() - 1));
                }
            }
        }
    }

    /// The versions that were flushed are durable: by this thread (M6), in `page` by any (M12); and
    /// what this thread stored around the cache (M7).
    pub fn fence(&mut self, by: Thread, scratch: &mut Scratch) {
        let page = self.domain == Domain::Page;
        let mut durable = Vec::new();
        for (&line, versions) in &mut self.lines {
            let flushed = versions.flushed.iter().filter(|(t, _)| page || *t == by);
            let around = versions.around.iter().filter(|(t, _)| *t == by);
            let Some(floor) = flushed.chain(around).map(|&(_, v)| v).max() else {
                continue;
            };
            versions.raise(floor);
            durable.push((line, versions.all[0]));
        }
        self.lines.retain(|_, versions| versions.all.len() > 1);
        self.make_durable(&durable, scratch);
    }

    fn make_durable(&mut self, lines: &[(u64, Line)], scratch: &mut Scratch) {
        for (line, bytes) in lines {
            self.durable ^= hash(*line, &scratch.durable(*line)) ^ hash(*line, bytes);
        }
        scratch.make_durable(lines);
    }

    /// A sync failed (M13): what was flushed for it may hold any version, whatever later syncs say.
    pub fn fail(&mut self) {
        for versions in self.lines.values_mut() {
            versions.flushed.clear();
        }
    }

    /// Domain `cache`: a store is durable at once (M8).
    pub fn store_in_order(&mut self, at: u64, bytes: &[u8], scratch: &mut Scratch) {
        let parts = after_store(at, bytes, scratch);
        for (line, from, part) in by_line(at, bytes) {
            if let Some(unordered) = self.unordered.get_mut(&line) {
                unordered.store(from, part);
            }
        }
        self.make_durable(&parts, scratch);
    }

    /// Domain `cache`: a store of whole lines around the cache has no place in the order yet (M8).
    pub fn store_around(&mut self, at: u64, bytes: &[u8], by: Thread, scratch: &Scratch) {
        for (line, from, part) in by_line(at, bytes) {
            let durable = scratch.durable(line);
            let unordered = self.unordered.entry(line);
            let unordered = unordered.or_insert_with(|| Unordered::new(durable));
            let before = unordered.latest();
            let mut after = before;
            after[from..from + part.len()].copy_from_slice(part);
            unordered.store_around(after, tears(&before, &after, &mut self.random), by);
        }
    }

    /// Domain `cache`: whether a fence has anything to order.
    pub fn is_unordered(&self) -> bool {
        !self.unordered.is_empty()
    }

    /// Domain `cache`: what a thread stored around the cache has its place in the order.
    pub fn order(&mut self, by: Thread, scratch: &mut Scratch) {
        let mut durable = Vec::new();
        self.unordered.retain(|&line, unordered| {
            let all = unordered.fence(by);
            let bytes = match all {
                true => unordered.latest(),
                false => unordered.version(0),
            };
            durable.push((line, bytes));
            !all
        });
        self.make_durable(&durable, scratch);
    }

    /// Domain `cache`: a state in which a store is caught half-way (M8); `None` if it is of one
    /// word.
    pub fn caught(&mut self, at: u64, bytes: &[u8], scratch: &Scratch) -> Option<Overlay> {
        if bytes.len() <= WORD {
            return None;
        }
        let random = &mut self.random;
        let torn = after_store(at, bytes, scratch);
        let torn = torn
            .into_iter()
            .filter_map(|(line, after)| match random.below(3) {
                0 => None,
                1 => Some((line, after)),
                _ => tears(&scratch.durable(line), &after, random)
                    .pop()
                    .map(|torn| (line, torn)),
            });
        Some(torn.collect())
    }
}

impl Versions {
    /// Version `floor` is durable: the older ones are gone.
    fn raise(&mut self, floor: usize) {
        self.all.drain(..floor);
        for list in [&mut self.flushed, &mut self.around] {
            list.retain(|&(_, version)| version > floor);
            list.iter_mut().for_each(|(_, version)| *version -= floor);
        }
    }
}

/// What the lines of a range hold once bytes are stored to it.
fn after_store(at: u64, bytes: &[u8], scratch: &Scratch) -> Overlay {
    by_line(at, bytes)
        .map(|(line, from, part)| {
            let mut after = scratch.durable(line);
            after[from..from + part.len()].copy_from_slice(part);
            (line, after)
        })
        .collect()
}

/// The parts of a range by line: line, offset in it, bytes.
fn by_line(at: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, usize, &[u8])> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == bytes.len() {
            return None;
        }
        let here = at as usize + done;
        let n = (LINE_BYTES - here % LINE_BYTES).min(bytes.len() - done);
        let part = (
            here as u64 / LINE,
            here % LINE_BYTES,
            &bytes[done..done + n],
        );
        done += n;
        Some(part)
    })
}

/// Some of the states in which a store of several words to a line may be caught.
fn tears(before: &Line, after: &Line, random: &mut Random) -> Vec<Line> {
    let changed: Vec<usize> = (0..LINE_BYTES / WORD)
        .filter(|w| before[w * WORD..][..WORD] != after[w * WORD..][..WORD])
        .collect();
    if changed.len() < 2 {
        return Vec::new();
    }
    let mut sets = BTreeSet::new();
    for _ in 0..TEARS {
        sets.insert(1 + random.below((1 << changed.len()) - 2));
    }
    let torn = |set: u64| {
        let mut line = *before;
        for (_, w) in (0..).zip(&changed).filter(|(i, _)| set >> i & 1 == 1) {
            line[w * WORD..][..WORD].copy_from_slice(&after[w * WORD..][..WORD]);
        }
        line
    };
    sets.into_iter().map(torn).collect()
}
