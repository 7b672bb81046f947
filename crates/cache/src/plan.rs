//! What a transaction will change: decided before anything is.

use crate::Kind;
use crate::fault::{Fault, injected};
use crate::index::{Entry, Index};
use crate::layout::{BLOCK, FIRST, Slot, State};
use crate::medium::Medium;
use crate::transaction::{Class, Transaction, Write};

/// What a transaction will change.
#[derive(Default)]
pub struct Plan<'t> {
    /// Entries that will say something else.
    pub changes: Vec<Change>,
    /// Blocks that are filled, in the order of the changes that lead to them.
    pub blocks: Vec<(u32, &'t [u8])>,
    /// Of those, blocks of data, of metadata.
    pub whole: [u64; 2],
    /// Units of metadata that change in place: where, and to what.
    pub units: Vec<(u64, &'t [u8])>,
    /// Entries whose blocks change in place.
    touched: Vec<u32>,
    /// Blocks of data, of metadata that are written and cached.
    pub hits: [u64; 2],
    /// And that are not.
    pub misses: [u64; 2],
}

/// A change of an entry.
pub struct Change {
    /// Which.
    pub entry: u32,
    /// The block of the disk.
    pub disk: u64,
    /// What it says.
    pub old: State,
    /// What it will say.
    pub new: State,
}

impl Change {
    /// What undoes it.
    pub fn slot(&self) -> Slot {
        Slot {
            entry: Some(self.entry),
            old: self.old,
        }
    }
}

impl<'t> Plan<'t> {
    /// Of a transaction whose blocks are complete.
    ///
    /// # Panics
    /// Unless a block is free for each of its writes.
    pub fn new(medium: &Medium, index: &mut Index, transaction: &'t Transaction) -> Plan<'t> {
        let mut plan = Plan::default();
        for (&disk, write) in &transaction.writes {
            let found = index.find(disk);
            let class = usize::from(write.class == Class::Metadata);
            match found {
                Some(_) => plan.hits[class] += 1,
                None => plan.misses[class] += 1,
            }
            if !plan.change_in_place(medium, found, write) {
                plan.replace(index, disk, found, write);
            }
        }
        for &disk in &transaction.freed {
            if let Some((entry, known)) = index.find(disk) {
                let (old, new) = (known.state, State::FREE);
                plan.changes.push(Change {
                    entry,
                    disk,
                    old,
                    new,
                });
            }
        }
        plan
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.units.is_empty()
    }

    /// Metadata that is cached as such changes in place, if there is room to log what it was.
    fn change_in_place(
        &mut self,
        medium: &Medium,
        found: Option<(u32, Entry)>,
        write: &'t Write,
    ) -> bool {
        let Some((entry, known)) = found else {
            return false;
        };
        // What is clean and of data may have been read: of which class it is nobody knew.
        let may_be = known.state.is_metadata() || !known.state.is_dirty();
        let is_metadata = write.class == Class::Metadata && may_be;
        let (true, Kind::Spindle, Some(block)) = (is_metadata, medium.kind(), known.state.block())
        else {
            return false;
        };
        let units = changed_units(medium, block, &write.bytes);
        let room = medium.geometry.records as usize - self.units.len();
        if units.len() > room {
            return false;
        }
        // Data that becomes metadata is all new: that costs less by the block.
        let is_other =
            !known.state.is_metadata() && units.len() as u64 * medium.geometry.unit > BLOCK / 3;
        if is_other {
            return false;
        }
        if units.is_empty() && (known.state.is_dirty() || known.disk != FIRST) {
            return true;
        }
        self.units.extend(units);
        self.touched.push(entry);
        if !known.state.is_dirty() {
            let new = State::dirty(block, true);
            let old = known.state;
            self.changes.push(Change {
                entry,
                disk: known.disk,
                old,
                new,
            });
        }
        true
    }

    /// A block is written whole to where nothing leads, and an entry will lead there.
    fn replace(
        &mut self,
        index: &mut Index,
        disk: u64,
        found: Option<(u32, Entry)>,
        write: &'t Write,
    ) {
        let block = index.free_blocks.pop();
        let block = block.expect("a block was reserved for each write");
        let (entry, old) = match found {
            Some((entry, known)) => (entry, known.state),
            None => (index.take_entry(), State::FREE),
        };
        if injected(Fault::ReplacedEarly)
            && let Some(old) = old.block()
        {
            index.free_blocks.push(old);
        }
        let new = State::dirty(block, write.class == Class::Metadata);
        self.changes.push(Change {
            entry,
            disk,
            old,
            new,
        });
        self.blocks.push((block, &write.bytes));
        self.whole[usize::from(write.class == Class::Metadata)] += 1;
    }

    /// Readers have what blocks are that change in place, and what is being written to the disk
    /// makes nothing clean that changes, from here on until the plan is applied.
    pub fn begin(&self, medium: &Medium, index: &mut Index) {
        for &entry in &self.touched {
            index.begin(entry);
            index.map().keep(medium, index.entry(entry).disk);
        }
        for change in self.changes.iter().filter(|change| change.old.is_valid()) {
            index.begin(change.entry);
        }
    }

    /// It is committed: DRAM is told, and replaced blocks become free.
    pub fn apply(&self, index: &mut Index) {
        for &entry in &self.touched {
            let known = index.entry(entry);
            index.set(entry, known.disk, known.state);
        }
        for change in &self.changes {
            index.set(change.entry, change.disk, change.new);
            match change.old.block() {
                // That one is free already.
                Some(_) if change.new.is_valid() && injected(Fault::ReplacedEarly) => {}
                Some(block) if change.new.block() != Some(block) => index.leave(block),
                _ => {}
            }
        }
        index.fenced();
    }
}

/// The units of a block that differ from what is cached.
fn changed_units<'t>(medium: &Medium, block: u32, bytes: &'t [u8]) -> Vec<(u64, &'t [u8])> {
    let mut now = [0; BLOCK as usize];
    medium.read_block(block, 0, &mut now);
    let unit = medium.geometry.unit as usize;
    let units = bytes.chunks(unit).zip(now.chunks(unit)).zip(0..);
    let changed = units.filter(|((new, old), _)| new != old);
    changed
        .map(|((new, _), number)| (medium.block_at(block) + number * unit as u64, new))
        .collect()
}
