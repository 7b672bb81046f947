//! Stores that are caught half-way (M3).

use super::lines::WORD;
use crate::image::{LINE_BYTES, Line, Overlay};
use block::Random;
use std::ops::Range;

/// States between a line and the line with a store that are made of each store, if only some are.
const TEARS: usize = 3;

/// In which states a store of several words may be caught.
#[derive(Clone)]
pub(super) enum Tearing {
    /// A few, by chance. What is stored has no say: a journal's records bear a random number.
    Some(Random),
    /// See [`Lines::thorough`](super::Lines::thorough).
    Many,
}

impl Tearing {
    /// States between a line and what a store makes of it.
    pub fn line(&mut self, before: &Line, after: &Line, within_line: bool) -> Vec<Line> {
        let changed = changed_words(before, after);
        match self {
            Tearing::Some(random) => some_subsets(changed.len(), random)
                .map(|set| with_words(before, after, members(set, &changed)))
                .collect(),
            Tearing::Many => subsets(changed.len(), within_line)
                .into_iter()
                .map(|set| with_words(before, after, set.into_iter().map(|i| changed[i])))
                .collect(),
        }
    }

    /// States between lines (number, before, after) and what one store makes of them.
    pub fn lines(&mut self, lines: &[(u64, Line, Line)]) -> Vec<Overlay> {
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
            _ => some_subsets(changed.len(), random)
                .last()
                .map(|set| (line, with_words(&before, &after, members(set, &changed)))),
        }
    });
    torn.collect()
}

/// The words of all lines together: see [`Lines::thorough`](super::Lines::thorough).
fn many_of(lines: &[(u64, Line, Line)]) -> Vec<Overlay> {
    let mut end = 0;
    // Of each line: the words that change, and their numbers among those of all lines.
    let changed: Vec<(Vec<usize>, Range<usize>)> = lines
        .iter()
        .map(|(_, before, after)| {
            let (words, start) = (changed_words(before, after), end);
            end += words.len();
            (words, start..end)
        })
        .collect();
    let torn = |set: &[usize]| -> Overlay {
        let mut torn = Overlay::new();
        for ((line, before, after), (words, numbers)) in lines.iter().zip(&changed) {
            let from = set.partition_point(|&i| i < numbers.start);
            let to = set.partition_point(|&i| i < numbers.end);
            let chosen = set[from..to].iter().map(|i| words[i - numbers.start]);
            torn.push((*line, with_words(before, after, chosen)));
        }
        torn
    };
    let sets = subsets(end, lines.len() == 1);
    sets.iter().map(|set| torn(set)).collect()
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

/// Some of the proper subsets of the numbers below `n`, which is at most the words of a line: each
/// once, in order, as bits. A trace stores to tens of thousands of lines, so they take no memory.
fn some_subsets(n: usize, random: &mut Random) -> impl Iterator<Item = u64> {
    let mut sets = [0; TEARS];
    if n >= 2 {
        sets.fill_with(|| 1 + random.below((1 << n) - 2));
        sets.sort_unstable();
    }
    let is_new = move |&i: &usize| sets[i] != 0 && (i == 0 || sets[i - 1] != sets[i]);
    (0..TEARS).filter(is_new).map(move |i| sets[i])
}

/// Those of some words whose bits are in a set.
fn members(set: u64, words: &[usize]) -> impl Iterator<Item = usize> {
    let words = words.iter().enumerate();
    words
        .filter(move |(i, _)| set >> i & 1 == 1)
        .map(|(_, &word)| word)
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
