//! Memory: what each line may hold after a crash.
//!
//! In domains `line` and `page` a line has *versions*, from the newest that is durable for sure to
//! the latest; a crash leaves one of them, for each line independently (M6, M11). In domain `cache`
//! every store is durable at once (M8), but those around the cache, which are `unordered` until a
//! fence.

use super::tearing::Tearing;
use super::unordered::Unordered;
use super::{Medium, Point};
use crate::image::{LINE_BYTES, Line, Overlay};
use crate::scratch::Scratch;
use crate::trace::{Event, Thread};
use block::Random;
use pmem::{Domain, LINE};
use std::collections::BTreeMap;

/// Bytes of a word.
pub(super) const WORD: usize = 8;

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

/// The lines of a memory that a crash may leave in several versions.
#[derive(Clone)]
pub struct Lines {
    domain: Domain,
    tearing: Tearing,
    lines: BTreeMap<u64, Versions>,
    /// Domain `cache`: the same.
    unordered: BTreeMap<u64, Unordered>,
}

impl Lines {
    /// A medium on which everything is durable. `seed` chooses how stores are torn.
    pub fn new(domain: Domain, seed: u64) -> Lines {
        Lines {
            domain,
            tearing: Tearing::Some(Random::new(seed)),
            lines: BTreeMap::new(),
            unordered: BTreeMap::new(),
        }
    }

    /// The same, with stores torn in many ways instead of a few that `seed` chooses: for short
    /// traces. A store within a line is torn in every way that M3 allows. A longer one has, in each
    /// of its lines (in domain `cache`: as a whole), its words in order up to any of them, and all
    /// words but any one.
    pub fn thorough(domain: Domain) -> Lines {
        Lines {
            tearing: Tearing::Many,
            ..Lines::new(domain, 0)
        }
    }

    fn version(&self, line: u64, version: usize) -> Line {
        match self.unordered.get(&line) {
            Some(unordered) => unordered.version(version),
            None => self.lines[&line].all[version],
        }
    }

    fn latest(&self, line: u64, scratch: &Scratch) -> Line {
        match self.lines.get(&line) {
            Some(versions) => versions.all[versions.all.len() - 1],
            None => scratch.durable(line),
        }
    }

    /// Domains `line` and `page`: a store adds versions to its lines, the torn ones first (M3, M5).
    fn store(&mut self, at: u64, bytes: &[u8], around: Option<Thread>, scratch: &Scratch) {
        // In `page` a store around the cache is one like any other (M11), and so are partial lines
        // (M7).
        let around = around.filter(|_| self.domain == Domain::Line);
        let within_line = by_line(at, bytes).count() == 1;
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
                let torn = self.tearing.line(&before, &after, within_line);
                versions.all.extend(torn);
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
            let torn = self.tearing.line(&before, &after, within_line);
            versions.all.extend(torn);
            versions.all.push(after);
        }
    }

    /// Write-back of a range was requested by a thread.
    fn flush(&mut self, at: u64, len: u64, by: Thread) {
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
    fn fence(&mut self, by: Thread, scratch: &mut Scratch) {
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
        scratch.make_durable(&durable);
    }

    /// A sync failed (M13): what was flushed for it may hold any version, whatever later syncs say.
    fn fail(&mut self) {
        for versions in self.lines.values_mut() {
            versions.flushed.clear();
        }
    }

    /// Domain `cache`: a store is durable at once (M8).
    fn store_in_order(&mut self, at: u64, bytes: &[u8], scratch: &mut Scratch) {
        let parts = after_store(at, bytes, scratch);
        for (line, from, part) in by_line(at, bytes) {
            if let Some(unordered) = self.unordered.get_mut(&line) {
                unordered.store(from, part);
            }
        }
        scratch.make_durable(&parts);
    }

    /// Domain `cache`: a store of whole lines around the cache has no place in the order yet (M8).
    fn store_around(&mut self, at: u64, bytes: &[u8], by: Thread, scratch: &Scratch) {
        let within_line = by_line(at, bytes).count() == 1;
        for (line, from, part) in by_line(at, bytes) {
            let durable = scratch.durable(line);
            let unordered = self.unordered.entry(line);
            let unordered = unordered.or_insert_with(|| Unordered::new(durable));
            let before = unordered.latest();
            let mut after = before;
            after[from..from + part.len()].copy_from_slice(part);
            let torn = self.tearing.line(&before, &after, within_line);
            unordered.store_around(after, torn, by);
        }
    }

    /// Domain `cache`: whether a fence has anything to order.
    fn is_unordered(&self) -> bool {
        !self.unordered.is_empty()
    }

    /// Domain `cache`: what a thread stored around the cache has its place in the order.
    fn order(&mut self, by: Thread, scratch: &mut Scratch) {
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
        scratch.make_durable(&durable);
    }

    /// Domain `cache`: states in which a store is caught half-way (M8); none if it is of one word.
    fn caught(&mut self, at: u64, bytes: &[u8], scratch: &Scratch) -> Vec<Overlay> {
        if bytes.len() <= WORD {
            return Vec::new();
        }
        let lines: Vec<_> = after_store(at, bytes, scratch)
            .into_iter()
            .map(|(line, after)| (line, scratch.durable(line), after))
            .collect();
        self.tearing.lines(&lines)
    }
}

impl Medium for Lines {
    fn again(&self) -> Box<dyn Medium> {
        Box::new(self.clone())
    }

    fn before(&self, event: &Event) -> Point {
        let cache = self.domain == Domain::Cache;
        match event {
            Event::Store { around: None, .. } if cache => Point::Within,
            Event::Store { .. } | Event::Together(_) if cache => Point::Crash,
            Event::Fence { .. } if !cache || self.is_unordered() => Point::Crash,
            Event::Flush { .. } if !cache => Point::Early,
            Event::End(_) if !cache => Point::Crash,
            Event::Fail => Point::Crash,
            _ => Point::No,
        }
    }

    fn within(&mut self, event: &Event, scratch: &Scratch) -> Vec<Overlay> {
        match event {
            Event::Store { at, bytes, .. } => self.caught(*at, bytes, scratch),
            _ => Vec::new(),
        }
    }

    fn units(&self) -> Vec<(u64, usize)> {
        let count = |(&line, v): (&u64, &Versions)| (line, v.all.len());
        let unordered = |(&line, v): (&u64, &Unordered)| (line, v.count());
        let unordered = self.unordered.iter().map(unordered);
        self.lines.iter().map(count).chain(unordered).collect()
    }

    fn put(&self, line: u64, version: usize, overlay: &mut Overlay) {
        overlay.push((line, self.version(line, version)));
    }

    fn apply(&mut self, event: &Event, scratch: &mut Scratch) {
        let cache = self.domain == Domain::Cache;
        match event {
            Event::Begin(_) | Event::End(_) | Event::Barrier { .. } => {}
            Event::Store { at, bytes, around } => match around {
                Some(by) if cache => self.store_around(*at, bytes, *by, scratch),
                None if cache => self.store_in_order(*at, bytes, scratch),
                around => self.store(*at, bytes, *around, scratch),
            },
            Event::Together(words) => {
                assert!(cache, "only what is visible at once is durable at once");
                for (at, word) in words {
                    self.store_in_order(*at, &word.to_le_bytes(), scratch);
                }
            }
            Event::Fence { by, .. } if cache => self.order(*by, scratch),
            Event::Flush { .. } | Event::Fail if cache => {}
            Event::Flush { at, len, by, .. } => self.flush(*at, *len, *by),
            Event::Fence { by, .. } => self.fence(*by, scratch),
            Event::Fail => self.fail(),
        }
    }

    /// No fence comes any more, and all stores are visible (M15). The versions stay, but in domain
    /// `cache`.
    fn kill(&mut self, scratch: &mut Scratch) {
        for versions in self.lines.values_mut() {
            versions.flushed.clear();
            versions.around.clear();
        }
        let unordered = std::mem::take(&mut self.unordered);
        let visible: Vec<_> = unordered
            .iter()
            .map(|(&line, unordered)| (line, unordered.latest()))
            .collect();
        scratch.make_durable(&visible);
    }

    fn visible(&self) -> Overlay {
        let latest = |(&line, v): (&u64, &Versions)| (line, v.all[v.all.len() - 1]);
        self.lines.iter().map(latest).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn store(medium: &mut Lines, at: u64, bytes: &[u8]) {
        medium.store(at, bytes, None, &Scratch::new(vec![0; 4096]));
    }

    #[test]
    fn a_thorough_medium_has_every_tear_of_a_store_within_a_line() {
        let mut medium = Lines::thorough(Domain::Line);
        store(&mut medium, 64, &[1; 64]);
        assert_eq!(medium.units(), [(1, 256)]);
        let all: BTreeSet<Line> = (0..256).map(|v| medium.version(1, v)).collect();
        assert_eq!(all.len(), 256);
        assert_eq!(medium.version(1, 0), [0; 64]);
        assert_eq!(medium.version(1, 255), [1; 64]);
    }

    #[test]
    fn a_thorough_medium_stops_a_long_store_at_each_word_and_leaves_each_out() {
        let mut medium = Lines::thorough(Domain::Line);
        store(&mut medium, 64, &[1; 128]);
        // Of 8 words: none, all, 7 times the first ones, and 7 times others but one.
        assert_eq!(medium.units(), [(1, 16), (2, 16)]);
    }

    #[test]
    fn a_thorough_medium_of_domain_cache_tears_the_last_store_as_a_whole() {
        let mut medium = Lines::thorough(Domain::Cache);
        let scratch = Scratch::new(vec![0; 4096]);
        assert!(medium.caught(64, &[1; 8], &scratch).is_empty());
        assert_eq!(medium.caught(64, &[1; 32], &scratch).len(), 14);
        let caught = medium.caught(64, &[1; 128], &scratch);
        let images: BTreeSet<Vec<u8>> = caught.iter().map(|o| scratch.image(o).bytes()).collect();
        assert_eq!(images.len(), 15 + 15);
        let ends_early = |image: &&Vec<u8>| image[64] == 1 && image[191] == 0;
        assert_eq!(images.iter().filter(ends_early).count(), 15);
    }
}
