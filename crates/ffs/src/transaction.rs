//! Transactions, and what makes them durable: the seam behind which a persistent cache may stand
//! instead of the log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use block::{Buffer, Disk};
use vfs::Result;

/// Changes of blocks that become durable together.
#[derive(Debug, Default)]
pub struct Transaction {
    /// Blocks of metadata, whole.
    pub(crate) copies: BTreeMap<u64, Buffer>,
    /// Blocks of data, whole.
    pub(crate) data: BTreeMap<u64, Buffer>,
    /// Of those, blocks that are nobody's until this is durable: what the disk has in their places
    /// does not matter before.
    pub(crate) new: BTreeSet<u64>,
    /// Blocks that are nobody's until this is durable, and are in place before it is, whatever is
    /// done with data.
    pub(crate) placed: BTreeMap<u64, Buffer>,
    /// Blocks that are nobody's any more: their old contents must not come back.
    pub(crate) freed: BTreeSet<u64>,
}

impl Transaction {
    /// A block of metadata is to be this.
    pub fn write(&mut self, block: u64, bytes: Buffer) {
        self.freed.remove(&block);
        self.copies.insert(block, bytes);
    }

    /// A block of data is to be this. In mode ordered it is written in place before the commit, so
    /// a crash may leave it without the rest.
    ///
    /// # Panics
    /// If it is metadata of this transaction, or freed by it: it may be used for data only when
    /// that is committed.
    pub fn write_data(&mut self, block: u64, bytes: Buffer) {
        let is_taken = self.copies.contains_key(&block) || self.freed.contains(&block);
        assert!(
            !is_taken,
            "data in block {block}, whose end as metadata is not committed"
        );
        self.new.remove(&block);
        self.data.insert(block, bytes);
    }

    /// The same of a block that is nobody's until this is durable.
    ///
    /// # Panics
    /// Likewise.
    pub fn write_new_data(&mut self, block: u64, bytes: Buffer) {
        self.write_data(block, bytes);
        self.new.insert(block);
    }

    /// A block that is nobody's until this is durable is to be this, in its place, before. There is
    /// no copy of it in the log.
    pub fn place(&mut self, block: u64, bytes: Buffer) {
        self.placed.insert(block, bytes);
    }

    /// A block is nobody's any more. What of its contents is in the log is never written home; it
    /// may be used again when this is committed.
    pub fn free(&mut self, block: u64) {
        self.copies.remove(&block);
        self.data.remove(&block);
        self.new.remove(&block);
        self.placed.remove(&block);
        self.freed.insert(block);
    }

    /// Whether it frees a block.
    pub(crate) fn frees(&self, block: u64) -> bool {
        self.freed.contains(&block)
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        let has_blocks = !(self.copies.is_empty() && self.data.is_empty());
        !has_blocks && self.placed.is_empty() && self.freed.is_empty()
    }

    /// Takes in what a later transaction changes.
    pub(crate) fn absorb(&mut self, later: Transaction) {
        for block in later.freed {
            self.free(block);
        }
        for (block, bytes) in later.copies {
            self.write(block, bytes);
        }
        for (block, bytes) in later.data {
            self.write_data(block, bytes);
        }
        self.placed.extend(later.placed);
    }
}

/// Who makes transactions durable, for a file system on a disk.
///
/// Blocks that were journaled are written by nobody else until they are freed. All methods may be
/// called from any thread.
pub trait TransactionStore: Send + Sync {
    /// Makes a transaction durable. Those of several callers may become one.
    ///
    /// # Errors
    /// The disk failed, now or earlier: the transaction is durable or not, whole.
    ///
    /// # Panics
    /// Unless [`TransactionStore::fits`].
    fn commit(&self, disk: &Disk, transaction: Transaction) -> Result<()>;

    /// Whether there can be room for a transaction.
    fn fits(&self, transaction: &Transaction) -> bool;

    /// Blocks of a transaction that fits, whatever they are. Blocks of data do not count unless
    /// [`TransactionStore::takes_data`].
    fn capacity(&self) -> usize;

    /// Whether blocks of data take room, as metadata do.
    fn takes_data(&self) -> bool;

    /// What a block is by the last commit that changed it, unless the disk has it.
    fn newest(&self, block: u64) -> Option<Arc<Buffer>>;

    /// Makes the disk alone have all that was committed.
    ///
    /// # Errors
    /// The disk failed, now or earlier.
    fn settle(&self, disk: &Disk) -> Result<()>;
}
