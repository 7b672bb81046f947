//! A transaction: what the persister changes in the consistent view at once.
//!
//! The rules of soft updates (SoupFS §3.3) hold by the shape of this type:
//! - *Nothing reachable before it is initialised.* A published word changes only through
//!   [`Txn::set`], which takes effect in [`Txn::publish`], behind a fence that orders everything
//!   private ([`Txn::fresh_page`], [`Txn::flush`]) before it.
//! - *No old pointer reset before the new one is set.* All words of a transaction commit together.
//! - *Nothing reused before every pointer to it is gone.* What a transaction withdraws goes into
//!   [`Txn::withdrawn`]; its free is deferred ([`crate::commit::deferred`]): it can be reused only when the
//!   commit can no longer be undone nor replayed.

use crate::commit::deferred::Withdrawn;
use crate::commit::helpers::Helpers;
use crate::flush::Flushes;
use crate::hash::{NumberMap, NumberSet};
use crate::image::Image;
use crate::layout::{PAGE, page_at};
use crate::volume::{Volume, Words};
use pmem::Journal;
use std::ops::Range;
use vfs::{Error, Result};

/// A change of the consistent view that is being put together.
pub struct Txn<'a> {
    volume: &'a Volume,
    words: NumberMap<u64>,
    fresh_pages: NumberSet,
    flushes: Flushes,
    withdrawn: Withdrawn,
}

impl<'a> Txn<'a> {
    /// An empty transaction of about `expected` words.
    pub fn new(volume: &'a Volume, expected: usize) -> Txn<'a> {
        Txn {
            volume,
            words: NumberMap::with_capacity_and_hasher(expected, Default::default()),
            fresh_pages: NumberSet::default(),
            flushes: Flushes::default(),
            withdrawn: Withdrawn::default(),
        }
    }

    /// The volume.
    pub fn volume(&self) -> &'a Volume {
        self.volume
    }

    /// The consistent view's reader. Words that this transaction changes come from
    /// [`Words::word`].
    pub fn image(&self) -> Image<'a> {
        self.volume.image()
    }

    /// Zero a page that nothing leads to yet. Its words are stored directly from now on and
    /// flushed with the transaction.
    pub fn fresh_page(&mut self, page: u64) {
        self.volume.pool.zero(page_at(page), PAGE);
        self.claim_pages(page..page + 1);
        self.fresh_pages.insert(page);
    }

    /// Change a word of the consistent view.
    pub fn set(&mut self, at: u64, value: u64) {
        if self.fresh_pages.contains(&(at / PAGE)) {
            self.volume.pool.store(at, value);
        } else {
            self.words.insert(at, value);
        }
    }

    /// Store a word of something private, a line that nothing leads to yet.
    pub fn store_private(&self, at: u64, value: u64) {
        self.volume.pool.store(at, value);
    }

    /// A private or shared-data range is to be durable before the transaction.
    pub fn flush(&mut self, at: u64, len: u64) {
        self.flushes.add(at, len);
    }

    /// Mark lines of one page as used.
    pub fn claim_lines(&mut self, line: u64, count: u64) {
        let alloc = &self.volume.alloc;
        alloc.claim_lines(line, count, &mut self.flushes);
    }

    /// Mark pages as used whole.
    pub fn claim_pages(&mut self, run: Range<u64>) {
        self.volume.alloc.claim_pages(run, &mut self.flushes);
    }

    /// What this transaction withdraws from the consistent view.
    pub fn withdrawn(&mut self) -> &mut Withdrawn {
        &mut self.withdrawn
    }

    /// Make everything private durable, then change all words at once, durably. Returns what was
    /// withdrawn, which may be reused once the journal has checkpointed the returned sequence
    /// number.
    pub fn publish(mut self, journal: &mut Journal, helpers: &Helpers) -> Result<(u64, Withdrawn)> {
        for &page in &self.fresh_pages {
            self.flushes.add(page_at(page), PAGE);
        }
        helpers.flush(&self.volume.pool, std::mem::take(&mut self.flushes))?;
        // In order, so that words of one line are flushed together.
        let mut words: Vec<(u64, u64)> = self.words.drain().collect();
        words.sort_unstable_by_key(|&(at, _)| at);
        if words.len() > journal.capacity() {
            return Err(Error::medium(format!(
                "a batch of {} words exceeds the journal's {}, against all limits",
                words.len(),
                journal.capacity()
            )));
        }
        for &(at, _) in &words {
            // A copy of a sparse image may have holes where nodes and tables are all zeros.
            self.volume.pool.back(at, 8).map_err(medium)?;
        }
        let sequence = journal.commit(&words).map_err(medium)?;
        Ok((sequence, self.withdrawn))
    }
}

/// A failure of the medium, for callers.
pub fn medium(error: pmem::MediumError) -> Error {
    Error::medium(error.to_string())
}

impl Words for Txn<'_> {
    #[inline]
    fn word(&self, at: u64) -> u64 {
        match self.words.get(&at) {
            Some(&value) => value,
            None => self.volume.pool.load(at),
        }
    }
}
