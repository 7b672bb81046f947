//! What is cached where: in DRAM, made of the entries when a cache is opened.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::CacheError;
use crate::layout::{BLOCK, FIRST, State};
use crate::map::{Map, USES_MAX};
use crate::medium::Medium;

/// What is cached where, for who changes it. Its lock is held for no flush of a commit and no I/O
/// of the disk.
pub struct Index {
    map: Arc<Map>,
    entries: Vec<Entry>,
    free_entries: Vec<u32>,
    /// Blocks that no entry leads to durably.
    pub free_blocks: Vec<u32>,
    /// Blocks that become free behind the next fence (K3).
    leaving: Vec<u32>,
    /// Blocks of the disk that it does not have.
    dirty: BTreeSet<u64>,
    /// How many of these are of metadata.
    dirty_metadata: u64,
    /// What is clean, data and metadata, whose turn is next in front.
    clean: [VecDeque<Turn>; 2],
    metadata: u64,
}

/// A turn of replacement: of an entry, unless that has changed since.
#[derive(Clone, Copy)]
struct Turn {
    entry: u32,
    version: u32,
}

/// An entry, as it is known here.
#[derive(Debug, Clone, Copy, Default)]
pub struct Entry {
    /// The block of the disk.
    pub disk: u64,
    /// What it says.
    pub state: State,
    /// Changes with each commit of the block.
    pub version: u32,
    /// A transaction is changing it, or its block in place: what the disk gets meanwhile is what
    /// was before, and does not make it clean.
    is_changing: bool,
}

impl Turn {
    fn holds(self, entry: &Entry) -> bool {
        entry.version == self.version && entry.state.is_valid() && !entry.state.is_dirty()
    }
}

impl Index {
    /// Of what is stored. Everything is validated.
    ///
    /// # Errors
    /// What cannot be, and where.
    pub fn read(medium: &Medium) -> Result<Index, CacheError> {
        let geometry = &medium.geometry;
        let blocks = geometry.blocks as u32;
        let mut index = Index {
            map: Arc::new(Map::new(blocks as usize)),
            entries: vec![Entry::default(); blocks as usize],
            free_entries: Vec::new(),
            free_blocks: Vec::new(),
            leaving: Vec::new(),
            dirty: BTreeSet::new(),
            dirty_metadata: 0,
            clean: Default::default(),
            metadata: 0,
        };
        let mut used = vec![false; blocks as usize];
        for number in (0..blocks).rev() {
            let (disk, state) = medium.entry(number);
            let Some(block) = state.block() else {
                index.free_entries.push(number);
                continue;
            };
            let corrupt = |what: String| CacheError::corrupt(medium.entry_at(number), what);
            if disk >= geometry.disk_len.div_ceil(BLOCK) {
                return Err(corrupt(format!(
                    "an entry of block {disk}, behind the disk"
                )));
            }
            match used.get_mut(block as usize) {
                None => return Err(corrupt(format!("an entry leads to block {block}"))),
                Some(true) => {
                    let what = format!("a second entry leads to block {block}");
                    return Err(corrupt(what));
                }
                Some(used) => *used = true,
            }
            if index.map.find(disk).is_some() {
                return Err(corrupt(format!("a second entry of block {disk}")));
            }
            index.set(number, disk, state.switched());
        }
        index.free_blocks = (0..blocks).rev().filter(|&b| !used[b as usize]).collect();
        Ok(index)
    }

    /// Where blocks are, for readers.
    pub fn map(&self) -> Arc<Map> {
        self.map.clone()
    }

    /// The entry of a block of the disk.
    pub fn find(&self, disk: u64) -> Option<(u32, Entry)> {
        let number = self.map.find(disk)?;
        Some((number, self.entries[number as usize]))
    }

    /// A transaction is going to change an entry, or its block in place. What was copied of it
    /// before, to be written to the disk, does not make it clean any more; nor what is copied until
    /// it is [set](Index::set).
    pub fn begin(&mut self, number: u32) {
        let entry = &mut self.entries[number as usize];
        entry.version = entry.version.wrapping_add(1);
        entry.is_changing = true;
    }

    /// An entry that is free; it is not any more.
    pub fn take_entry(&mut self) -> u32 {
        let entry = self.free_entries.pop();
        entry.expect("there are as many entries as blocks, and a block is free")
    }

    /// An entry says something else now.
    pub fn set(&mut self, number: u32, disk: u64, state: State) {
        let entry = &mut self.entries[number as usize];
        let (old, old_disk) = (entry.state, entry.disk);
        entry.version = entry.version.wrapping_add(1);
        entry.is_changing = false;
        (entry.disk, entry.state) = (disk, state);
        if old.is_valid() {
            if !state.is_valid() || disk != old_disk {
                self.map.set(old_disk, None);
            }
            self.forget_dirty(old_disk, old);
            self.metadata -= u64::from(old.is_metadata());
        }
        if let Some(block) = state.block() {
            self.map.set(disk, Some((number, block)));
            self.metadata += u64::from(state.is_metadata());
            self.map.touch(number);
        } else if old.is_valid() {
            self.free_entries.push(number);
        }
        if state.is_dirty() {
            self.dirty.insert(disk);
            self.dirty_metadata += u64::from(state.is_metadata());
        } else if state.is_valid() {
            self.take_turn(number);
        }
    }

    /// An entry is clean now.
    fn take_turn(&mut self, number: u32) {
        let entry = &self.entries[number as usize];
        let turns = &mut self.clean[usize::from(entry.state.is_metadata())];
        turns.push_back(Turn {
            entry: number,
            version: entry.version,
        });
        // What was written often, and never replaced, has left turns of old versions.
        if turns.len() > 2 * self.entries.len() {
            let entries = &self.entries;
            turns.retain(|turn| turn.holds(&entries[turn.entry as usize]));
        }
    }

    /// The disk has a block now, unless that was changed meanwhile; says whether it has.
    pub fn clean(&mut self, number: u32, version: u32) -> Option<State> {
        let entry = &mut self.entries[number as usize];
        if entry.version != version || entry.is_changing || !entry.state.is_dirty() {
            return None;
        }
        let (disk, old) = (entry.disk, entry.state);
        entry.state = old.cleaned();
        let state = entry.state;
        self.forget_dirty(disk, old);
        self.take_turn(number);
        Some(state)
    }

    /// A block that was in this state is not dirty any more.
    fn forget_dirty(&mut self, disk: u64, old: State) {
        if self.dirty.remove(&disk) {
            self.dirty_metadata -= u64::from(old.is_metadata());
        }
    }

    /// Nothing leads to a block any more when the next fence has returned.
    pub fn leave(&mut self, block: u32) {
        self.leaving.push(block);
    }

    /// A fence has returned.
    pub fn fenced(&mut self) {
        self.free_blocks.append(&mut self.leaving);
    }

    /// Entries to be freed, at most so many: clean ones, those first that nobody asked for since it
    /// was last their turn. Metadata stays for some turns longer, and altogether while there is no
    /// more of it than is kept; what there is more of has every other turn. The first block stays.
    pub fn victims(&mut self, count: usize, metadata_min: u64) -> Vec<u32> {
        let mut victims = Vec::new();
        let mut metadata = self.metadata;
        let mut is_metadatas_turn = false;
        while victims.len() < count {
            let may_take = [true, metadata > metadata_min];
            let first = usize::from(is_metadatas_turn);
            let classes = [first, 1 - first].into_iter();
            let mut classes = classes.filter(|&class| may_take[class]);
            let next = classes.find_map(|class| Some((class, self.clean[class].pop_front()?)));
            let Some((class, turn)) = next else { break };
            let entry = &self.entries[turn.entry as usize];
            if !turn.holds(entry) || entry.disk == FIRST {
                continue;
            }
            if self.map.stays(turn.entry, [1, USES_MAX][class]) {
                self.clean[class].push_back(turn);
                continue;
            }
            metadata -= class as u64;
            victims.push(turn.entry);
            is_metadatas_turn = !is_metadatas_turn;
        }
        victims
    }

    /// The entry of this number.
    pub fn entry(&self, number: u32) -> Entry {
        self.entries[number as usize]
    }

    /// Blocks of the disk that it does not have, from one on.
    pub fn dirty_from(&self, disk: u64) -> impl Iterator<Item = u64> {
        self.dirty.range(disk..).copied()
    }

    /// How many these are.
    pub fn dirty_len(&self) -> usize {
        self.dirty.len()
    }

    /// And of metadata.
    pub fn dirty_metadata(&self) -> u64 {
        self.dirty_metadata
    }

    /// Entries that lead somewhere.
    pub fn valid(&self) -> Vec<u32> {
        self.map.entries()
    }

    /// Blocks that are cached, and how many of them are of metadata.
    pub fn cached(&self) -> (u64, u64) {
        (self.map.len(), self.metadata)
    }
}
