//! Which blocks are to be written, and of which class each is.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Block;

/// What a block is to the file system, as who changed it last has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Contents of a file.
    Data,
    /// All else.
    Metadata,
}

/// The blocks that are to be written, by number.
#[derive(Default)]
pub struct Dirty {
    blocks: BTreeMap<u64, (Arc<Block>, Class)>,
    /// Those of [`Class::Metadata`].
    metadata: usize,
}

impl Dirty {
    /// Adds a block, or changes its class; whether it was there.
    pub fn insert(&mut self, number: u64, block: Arc<Block>, class: Class) -> bool {
        let was_there = self.remove(number);
        self.metadata += usize::from(class == Class::Metadata);
        self.blocks.insert(number, (block, class));
        was_there
    }

    /// Takes a block out; whether it was there.
    pub fn remove(&mut self, number: u64) -> bool {
        let before = self.blocks.remove(&number);
        let was_metadata = matches!(before, Some((_, Class::Metadata)));
        self.metadata -= usize::from(was_metadata);
        before.is_some()
    }

    /// The block of this number.
    pub fn get(&self, number: u64) -> Option<&(Arc<Block>, Class)> {
        self.blocks.get(&number)
    }

    /// Their numbers.
    pub fn numbers(&self) -> Vec<u64> {
        self.blocks.keys().copied().collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// How many of them are metadata.
    pub fn metadata_len(&self) -> usize {
        self.metadata
    }
}
