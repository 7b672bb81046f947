//! Which nodes of an index a transaction copies, so that its record is bounded (mode `strong`).
//!
//! A pointer that changes in a node that the consistent view leads to takes a word of the record,
//! which is written twice. A copy of the node is private: its pointers take none, and one pointer
//! above it changes. So a node of which many pointers change is copied, and so is every node with a
//! pointer that changes if their words would be too many; then those above them, and so on: what is
//! left is the root. Pages for the copies were set aside with the change ([`crate::file`], F4): a
//! path of nodes for each leaf.

use crate::file::{Extent, Mapping};
use crate::layout::index;
use std::collections::{BTreeMap, BTreeSet};

/// Pointers of a node that change without its being copied: their words, written twice, are as many
/// bytes as the copy of a page and its flush, about.
const POINTERS_MAX: u64 = 170;

/// Nodes, by their height and their place among those of this height.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Copies(BTreeSet<(u64, u64)>);

impl Copies {
    /// What mapping these extents copies: of the leaves for which pages are set aside, and of the
    /// nodes above these. So many words of a record all pointers of one height may take.
    pub fn choose(extents: &[(u64, Extent)], provided: &BTreeSet<u64>, words_max: u64) -> Copies {
        let mut changed = BTreeMap::<u64, u64>::new();
        for &(block, Extent { len, to, .. }) in extents {
            let (mut at, end) = (block, block + len);
            while at < end && to != Mapping::Hole {
                let leaf = at / index::FANOUT;
                let next = end.min((leaf + 1) * index::FANOUT);
                *changed.entry(leaf).or_default() += next - at;
                at = next;
            }
        }
        let (mut copies, mut below) = (BTreeSet::new(), provided.clone());
        for height in 1..=index::HEIGHT_MAX {
            let too_many = changed.values().sum::<u64>() > words_max;
            let copied = |&(node, &count): &(&u64, &u64)| {
                (too_many || count > POINTERS_MAX) && below.contains(node)
            };
            let here: BTreeSet<u64> = changed.iter().filter(copied).map(|(&n, _)| n).collect();
            if here.is_empty() {
                break;
            }
            // A node that is made for the first time is another pointer above it.
            let mut above = BTreeMap::new();
            for node in changed.keys() {
                *above.entry(node / index::FANOUT).or_default() += 1;
            }
            changed = above;
            below = here.iter().map(|node| node / index::FANOUT).collect();
            copies.extend(here.into_iter().map(|node| (height, node)));
        }
        Copies(copies)
    }

    /// Whether the node of this height above a block is copied.
    pub fn has(&self, height: u64, block: u64) -> bool {
        !self.0.is_empty() && self.0.contains(&(height, block / index::span(height)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Pointer;

    fn mapped(block: u64, len: u64) -> (u64, Extent) {
        let first = Pointer {
            page: 1000,
            unwritten: false,
        };
        let to = Mapping::Pages {
            first,
            in_tree: false,
        };
        let captured = true;
        (block, Extent { len, to, captured })
    }

    fn chosen(extents: &[(u64, Extent)], words_max: u64) -> Vec<(u64, u64)> {
        let provided = (0..2000).collect();
        let copies = Copies::choose(extents, &provided, words_max);
        copies.0.into_iter().collect()
    }

    #[test]
    fn a_node_is_copied_if_many_of_its_pointers_change() {
        assert_eq!(chosen(&[mapped(0, 170)], 1000), []);
        assert_eq!(chosen(&[mapped(0, 100), mapped(300, 71)], 1000), [(1, 0)]);
        // The leaves on both edges change in part.
        let leaves: Vec<_> = chosen(&[mapped(500, 12 + 512 + 20)], 1000);
        assert_eq!(leaves, [(1, 1)]);
        let many = chosen(&[mapped(0, 512 * 600)], 1 << 30);
        let of = |height| many.iter().filter(|node| node.0 == height).count();
        assert_eq!(
            (of(1), of(2), of(3)),
            (600, 1, 0),
            "88 pointers of the second change"
        );
    }

    #[test]
    fn words_that_are_too_many_are_those_of_nodes_above() {
        assert_eq!(chosen(&[mapped(0, 3), mapped(600, 2)], 5), []);
        assert_eq!(chosen(&[mapped(0, 3), mapped(600, 2)], 4), [(1, 0), (1, 1)]);
        let apart: Vec<_> = (0..1000).map(|n| mapped(n * 512, 1)).collect();
        assert_eq!(chosen(&apart, 1000), []);
        assert_eq!(chosen(&apart, 999).len(), 1000 + 2, "and both nodes above");
    }

    #[test]
    fn what_no_page_is_set_aside_for_is_not_copied() {
        let provided = BTreeSet::from([1]);
        let copies = Copies::choose(&[mapped(0, 2000)], &provided, 1);
        assert!(!copies.has(1, 0) && copies.has(1, 512) && !copies.has(1, 1024));
        assert!(copies.has(2, 0) && !Copies::default().has(1, 0));
    }
}
