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
/// States between a line and the line with a store that are made of each store, if only some are.
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
    tearing: Tearing,
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
            tearing: Tearing::Some(Random::new(seed)),
            lines: BTreeMap::new(),
            unordered: BTreeMap::new(),
            durable: 0,
        }
    }

    /// The same, with stores torn in many ways instead of a few that `seed` chooses: for short
    /// traces. A store within a line is torn in every way that M3 allows. A longer one has, in each
    /// of its lines (in domain `cache`: as a whole), its words in order up to any of them, and all
    /// words but any one.
    pub fn thorough(domain: Domain) -> Medium {
        Medium {
            tearing: Tearing::Many,
            ..Medium::new(domain, 0)
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

    /// Domain `cache`: states in which a store is caught half-way (M8); none if it is of one word.
    pub fn caught(&mut self, at: u64, bytes: &[u8], scratch: &Scratch) -> Vec<Overlay> {
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

/// In which states a store of several words may be caught.
#[derive(Clone)]
enum Tearing {
    /// A few, by chance. What is stored has no say: a journal's records bear a random number.
    Some(Random),
    /// See [`Medium::thorough`].
    Many,
}

impl Tearing {
    /// States between a line and what a store makes of it.
    fn line(&mut self, before: &Line, after: &Line, within_line: bool) -> Vec<Line> {
        let changed = changed_words(before, after);
        let sets = match self {
            Tearing::Some(random) => some_subsets(changed.len(), random),
            Tearing::Many => subsets(changed.len(), within_line),
        };
        let words = |set: Vec<usize>| set.into_iter().map(|i| changed[i]).collect::<Vec<_>>();
        sets.into_iter()
            .map(|set| with_words(before, after, words(set)))
            .collect()
    }

    /// States between lines (number, before, after) and what one store makes of them.
    fn lines(&mut self, lines: &[(u64, Line, Line)]) -> Vec<Overlay> {
        match self {
            Tearing::Some(random) => vec![some_of(lines, random)],
            Tearing::Many => many_of(lines),
        }
    }
}

/// Each line as it was, as it will be, or between these.
fn some_of(lines: &[(u64, Line, Line)], random: &mut Random) -> Overlay {
    let torn = lines.iter().filter_map(|&(line, before, after)| {
        let changed = changed_words(&before, &after);
        match random.below(3) {
            0 => None,
            1 => Some((line, after)),
            _ => some_subsets(changed.len(), random).pop().map(|set| {
                let words = set.into_iter().map(|i| changed[i]);
                (line, with_words(&before, &after, words))
            }),
        }
    });
    torn.collect()
}

/// The words of all lines together: see [`Medium::thorough`].
fn many_of(lines: &[(u64, Line, Line)]) -> Vec<Overlay> {
    let changed: Vec<(u64, usize)> = lines
        .iter()
        .flat_map(|(line, before, after)| {
            let words = changed_words(before, after).into_iter();
            words.map(|word| (*line, word))
        })
        .collect();
    let of = |set: &[usize], number: u64| -> Vec<usize> {
        let chosen = set.iter().map(|&i| changed[i]);
        let of_line = chosen.filter(|&(line, _)| line == number);
        of_line.map(|(_, word)| word).collect()
    };
    subsets(changed.len(), lines.len() == 1)
        .iter()
        .map(|set| {
            let torn = lines
                .iter()
                .map(|(line, before, after)| (*line, with_words(before, after, of(set, *line))));
            torn.collect()
        })
        .collect()
}

/// The words, by number, that differ.
fn changed_words(before: &Line, after: &Line) -> Vec<usize> {
    (0..LINE_BYTES / WORD)
        .filter(|w| before[w * WORD..][..WORD] != after[w * WORD..][..WORD])
        .collect()
}

/// A line in which these words have been stored.
fn with_words(before: &Line, after: &Line, words: impl IntoIterator<Item = usize>) -> Line {
    let mut line = *before;
    for w in words {
        line[w * WORD..][..WORD].copy_from_slice(&after[w * WORD..][..WORD]);
    }
    line
}

/// Some of the proper subsets of the numbers below `n`, which is at most the words of a line.
fn some_subsets(n: usize, random: &mut Random) -> Vec<Vec<usize>> {
    if n < 2 {
        return Vec::new();
    }
    let mut sets = BTreeSet::new();
    for _ in 0..TEARS {
        sets.insert(1 + random.below((1 << n) - 2));
    }
    let members = |set: u64| (0..n).filter(|i| set >> i & 1 == 1).collect();
    sets.into_iter().map(members).collect()
}

/// Proper subsets of the numbers below `n`: all; or their first ones, and all but one.
fn subsets(n: usize, all: bool) -> Vec<Vec<usize>> {
    if all {
        let members = |set: usize| (0..n).filter(|i| set >> i & 1 == 1).collect();
        return (1..(1 << n) - 1).map(members).collect();
    }
    let first = (1..n).map(|end| (0..end).collect());
    // All but the last are among the first ones.
    let but_one = (1..n).map(|out| (0..n).filter(|&i| i != out - 1).collect());
    first.chain(but_one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(medium: &mut Medium, at: u64, bytes: &[u8]) {
        medium.store(at, bytes, None, &Scratch::new(vec![0; 4096]));
    }

    #[test]
    fn a_thorough_medium_has_every_tear_of_a_store_within_a_line() {
        let mut medium = Medium::thorough(Domain::Line);
        store(&mut medium, 64, &[1; 64]);
        assert_eq!(medium.lines(), [(1, 256)]);
        let all: BTreeSet<Line> = (0..256).map(|v| medium.version(1, v)).collect();
        assert_eq!(all.len(), 256);
        assert_eq!(medium.version(1, 0), [0; 64]);
        assert_eq!(medium.version(1, 255), [1; 64]);
    }

    #[test]
    fn a_thorough_medium_stops_a_long_store_at_each_word_and_leaves_each_out() {
        let mut medium = Medium::thorough(Domain::Line);
        store(&mut medium, 64, &[1; 128]);
        // Of 8 words: none, all, 7 times the first ones, and 7 times others but one.
        assert_eq!(medium.lines(), [(1, 16), (2, 16)]);
    }

    #[test]
    fn a_thorough_medium_of_domain_cache_tears_the_last_store_as_a_whole() {
        let mut medium = Medium::thorough(Domain::Cache);
        let scratch = Scratch::new(vec![0; 4096]);
        assert!(medium.caught(64, &[1; 8], &scratch).is_empty());
        assert_eq!(medium.caught(64, &[1; 32], &scratch).len(), 14);
        let caught = medium.caught(64, &[1; 128], &scratch);
        let images: BTreeSet<Vec<u8>> = caught.iter().map(|o| scratch.image(o)).collect();
        assert_eq!(images.len(), 15 + 15);
        let ends_early = |image: &&Vec<u8>| image[64] == 1 && image[191] == 0;
        assert_eq!(images.iter().filter(ends_early).count(), 15);
    }
}
