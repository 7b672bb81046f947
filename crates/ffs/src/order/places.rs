//! Something for places, found by the place, and by the block for all places in it.

use super::place::Place;
use crate::near::NearMap;

/// A map from places. As those of a block are together, whoever works on a block finds the first
/// table in his processor's cache.
pub(super) struct Places<T> {
    /// By block, then by offset. No table is empty.
    blocks: NearMap<u64, NearMap<u16, T>>,
    len: usize,
}

impl<T> Default for Places<T> {
    fn default() -> Places<T> {
        Places {
            blocks: NearMap::default(),
            len: 0,
        }
    }
}

fn offset(place: Place) -> u16 {
    place.offset() as u16
}

impl<T> Places<T> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn contains(&self, place: Place) -> bool {
        self.get(place).is_some()
    }

    pub fn get(&self, place: Place) -> Option<&T> {
        self.blocks.get(&place.block())?.get(&offset(place))
    }

    pub fn get_mut(&mut self, place: Place) -> Option<&mut T> {
        self.blocks.get_mut(&place.block())?.get_mut(&offset(place))
    }

    /// Adds one; what was there before.
    pub fn insert(&mut self, place: Place, one: T) -> Option<T> {
        let of_block = self.blocks.entry(place.block()).or_default();
        let before = of_block.insert(offset(place), one);
        self.len += usize::from(before.is_none());
        before
    }

    pub fn remove(&mut self, place: Place) -> Option<T> {
        let of_block = self.blocks.get_mut(&place.block())?;
        let removed = of_block.remove(&offset(place))?;
        self.len -= 1;
        if of_block.is_empty() {
            self.blocks.remove(&place.block());
        }
        Some(removed)
    }

    /// All that are in a block, in no order.
    pub fn of_block(&self, block: u64) -> impl Iterator<Item = (Place, &T)> {
        let of_block = self.blocks.get(&block).into_iter().flatten();
        of_block.map(move |(&offset, one)| (Place::new(block, offset.into()), one))
    }

    /// All, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Place, &T)> {
        self.blocks.keys().flat_map(|&block| self.of_block(block))
    }

    /// All, in no order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Place, &mut T)> {
        self.blocks.iter_mut().flat_map(|(&block, of_block)| {
            let of_block = of_block.iter_mut();
            of_block.map(move |(&offset, one)| (Place::new(block, offset.into()), one))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use block::Random;

    use super::*;

    #[test]
    fn what_is_there_is_found_by_its_place_and_by_its_block() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let (mut places, mut expected) = (Places::default(), BTreeMap::new());
            for step in 0..400 {
                let place = Place::new(random.below(5), 8 * random.below(20) as usize);
                match random.below(3) {
                    0 => assert_eq!(places.remove(place), expected.remove(&place), "seed {seed}"),
                    _ => assert_eq!(places.insert(place, step), expected.insert(place, step)),
                }
                assert_eq!(places.get(place), expected.get(&place), "seed {seed}");
                assert_eq!(
                    places.get_mut(place),
                    expected.get_mut(&place),
                    "seed {seed}"
                );
                assert_eq!(places.contains(place), expected.contains_key(&place));
                assert_eq!(places.len(), expected.len(), "seed {seed}");
                assert_eq!(places.is_empty(), expected.is_empty(), "seed {seed}");
                let all: BTreeMap<_, _> = places.iter().map(|(at, &one)| (at, one)).collect();
                assert_eq!(all, expected, "seed {seed}");
                let of_block: BTreeMap<_, _> = places.of_block(place.block()).collect();
                let in_block = |at: &&Place| at.block() == place.block();
                assert!(
                    of_block.keys().eq(expected.keys().filter(in_block)),
                    "seed {seed}"
                );
            }
            places.iter_mut().for_each(|(_, one)| *one += 1);
            assert!(places.iter().all(|(at, one)| *one == expected[&at] + 1));
        }
    }
}
