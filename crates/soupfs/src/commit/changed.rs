//! Words that a transaction changes, by their places: a few mostly, which are found without a hash.

use crate::hash::NumberMap;
use smallvec::SmallVec;

/// So many are looked through one by one.
const FEW: usize = 16;

/// Words and their values.
pub struct Changed {
    few: SmallVec<[(u64, u64); FEW]>,
    /// All of them, if they are more.
    many: NumberMap<u64>,
}

impl Changed {
    /// None, of about as many as are expected.
    pub fn with_capacity(expected: usize) -> Changed {
        let expected = if expected > FEW { expected } else { 0 };
        Changed {
            few: SmallVec::new(),
            many: NumberMap::with_capacity_and_hasher(expected, Default::default()),
        }
    }

    /// The value of a word that is changed.
    #[inline]
    pub fn get(&self, at: u64) -> Option<u64> {
        match self.many.is_empty() {
            true => self.few.iter().find(|word| word.0 == at).map(|word| word.1),
            false => self.many.get(&at).copied(),
        }
    }

    /// A word gets this value.
    pub fn insert(&mut self, at: u64, value: u64) {
        if !self.many.is_empty() {
            self.many.insert(at, value);
            return;
        }
        match self.few.iter().position(|word| word.0 == at) {
            Some(place) => self.few[place].1 = value,
            None if self.few.len() < FEW => self.few.push((at, value)),
            None => {
                self.many.extend(self.few.drain(..));
                self.many.insert(at, value);
            }
        }
    }

    /// All of them, by their places.
    pub fn in_order(self) -> Vec<(u64, u64)> {
        let mut all: Vec<_> = self.few.into_iter().chain(self.many).collect();
        all.sort_unstable_by_key(|&(at, _)| at);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_words_and_many_have_the_last_value_each_got() {
        for count in [3, FEW as u64, FEW as u64 + 1, 100] {
            let mut changed = Changed::with_capacity(0);
            for at in (0..count).rev() {
                changed.insert(at, 0);
                changed.insert(at, at + 1);
            }
            assert_eq!(changed.get(count), None);
            assert!((0..count).all(|at| changed.get(at) == Some(at + 1)));
            let expected: Vec<_> = (0..count).map(|at| (at, at + 1)).collect();
            assert_eq!(changed.in_order(), expected);
        }
    }
}
