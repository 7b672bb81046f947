//! Large runs of new blocks go to the disk past the cache.
//!
//! ```text
//! the disk   new blocks, in places that are nobody's; flush     K6
//! commit     what leads to them, as any transaction
//! ```

use std::sync::atomic::Ordering;

use block::{Buffer, Wave};

use crate::fault::{Fault, injected};
use crate::store::count;
use crate::transaction::Transaction;
use crate::{BLOCK, Cache, CacheError};

impl Cache {
    /// Lets new blocks of a transaction go past the cache if so many bytes of them are neighbours;
    /// 0: none. From the next transaction on, until the cache is closed. Blocks that are read in
    /// runs as long are not kept.
    pub fn set_bypass(&self, bytes: u64) {
        self.bypass.store(bytes, Ordering::Relaxed);
    }

    /// Takes out of a transaction what goes past the cache. One that is cached does not: an older
    /// block of its place may be dirty. Called by who commits, so that this stays so.
    pub(crate) fn take_past(&self, transaction: &mut Transaction) -> Vec<(u64, Buffer)> {
        match self.bypass.load(Ordering::Relaxed) {
            0 => Vec::new(),
            bytes => {
                let min = usize::try_from(bytes.div_ceil(BLOCK)).unwrap_or(usize::MAX);
                transaction.take_past(min, |disk| self.map.find(disk).is_none())
            }
        }
    }

    /// Lets the disk have blocks durably, before a transaction leads to them (K6).
    pub(crate) fn write_past(&self, blocks: Vec<(u64, Buffer)>) -> Result<(), CacheError> {
        if blocks.is_empty() {
            return Ok(());
        }
        // What was written out of an older block, before that was freed, is on the disk by now.
        let _writing = self.writing.lock();
        let places: Vec<u64> = blocks.iter().map(|&(disk, _)| disk).collect();
        if injected(Fault::PastUnflushed) {
            for (disk, bytes) in blocks {
                self.disk.write(disk * BLOCK, vec![bytes])?;
            }
        } else {
            let mut wave = Wave::new();
            for (disk, bytes) in blocks {
                wave.write(disk * BLOCK, bytes);
            }
            self.disk.commit(wave)?;
        }
        // Who reads one of these places meanwhile reads it again, and does not keep it.
        places.iter().for_each(|&disk| self.map.changed(disk));
        count(&self.counters.past, places.len() as u64);
        Ok(())
    }
}
