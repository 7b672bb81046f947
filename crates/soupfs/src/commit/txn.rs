//! A transaction: what a batch changes in the consistent view at once.
//!
//! ```text
//! Txn --seal--> Sealed --commit--> (Commit, Withdrawn)
//! ```
//!
//! The rules of soft updates (SoupFS §3.3) hold by the shape of these types:
//! - *Nothing reachable before it is initialised* (C1). What is reachable changes only through
//!   [`Txn::set`], which takes effect in [`Sealed::commit`]. What is stored directly is
//!   [`Private`], and is taken into use by a call that also has it claimed and flushed
//!   ([`Txn::fresh_page`], [`Txn::fresh_inode`], [`Txn::fresh_entry`], [`Txn::use_pages`]).
//!   Sealing ends all private stores; the commit carries them, or fences their flushes, before it
//!   changes a word.
//! - *No old pointer reset before the new one is set* (C3). All words commit together.
//! - *Nothing reused before every pointer to it is gone* (C2). What a transaction withdraws comes
//!   out of its commit, with the [`Commit`] that its free waits for ([`crate::commit::deferred`]).

use crate::commit::changed::Changed;
use crate::commit::claims::Claims;
use crate::commit::helpers::Helpers;
use crate::commit::private::Private;
use crate::commit::withdrawn::Withdrawn;
use crate::fault::{Fault, injected};
use crate::flush::Flushes;
use crate::hash::NumberSet;
use crate::image::Image;
use crate::inode::Inode;
use crate::layout::{LINE, PAGE, dentry, inode, line_at, page_at};
use crate::medium::failed;
use crate::volume::Volume;
use crate::words::Words;
use pmem::{Domain, Journal};
use smallvec::SmallVec;
use std::ops::Range;
use vfs::{Error, Kind, Result};

/// A change of the consistent view that is being put together.
pub struct Txn<'a> {
    volume: &'a Volume,
    words: Changed,
    writes: Vec<(u64, Vec<u8>)>,
    fresh_pages: NumberSet,
    fresh_entries: SmallVec<[u64; 4]>,
    claims: Claims,
    flushes: Flushes,
    /// The thread has flushed contents of files, and not fenced them.
    unfenced: bool,
    withdrawn: Withdrawn,
}

/// A transaction that is complete: nothing private is stored to any more.
#[must_use]
pub struct Sealed {
    /// In order, so that words of one line are flushed together.
    words: Vec<(u64, u64)>,
    writes: Vec<(u64, Vec<u8>)>,
    claims: Claims,
    flushes: Flushes,
    unfenced: bool,
    withdrawn: Withdrawn,
}

/// A commit that has taken place, by its number in the journal.
#[derive(Debug, Clone, Copy)]
pub struct Commit(u64);

impl Commit {
    /// All commits before this mount: recovery has checkpointed them.
    pub const BEFORE_MOUNT: Commit = Commit(0);

    /// Whether the journal, which has checkpointed this number, may still replay it.
    pub fn needs_replay(self, checkpointed: u64) -> bool {
        self.0 > checkpointed
    }
}

impl<'a> Txn<'a> {
    /// An empty transaction of about `expected` words.
    pub fn new(volume: &'a Volume, expected: usize) -> Txn<'a> {
        Txn {
            volume,
            words: Changed::with_capacity(expected),
            writes: Vec::new(),
            fresh_pages: NumberSet::default(),
            fresh_entries: SmallVec::new(),
            claims: Claims::default(),
            flushes: Flushes::for_record(volume.pool.domain()),
            unfenced: false,
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

    /// Change a word of the consistent view; in a fresh page directly.
    pub fn set(&mut self, at: u64, value: u64) {
        if self.fresh_pages.contains(&(at / PAGE)) {
            self.volume.pool.store(at, value);
        } else {
            self.words.insert(at, value);
        }
    }

    /// Whether this transaction has taken a page into use that nothing led to.
    pub fn is_fresh(&self, page: u64) -> bool {
        self.fresh_pages.contains(&page)
    }

    /// For a bug that is injected: store to a page directly that the consistent view leads to.
    pub fn take_for_fresh(&mut self, page: u64) {
        self.fresh_pages.insert(page);
    }

    /// Change bytes of a file, in a page that nobody stores to in place while the record is live.
    pub fn write(&mut self, at: u64, bytes: Vec<u8>) {
        self.writes.push((at, bytes));
    }

    /// Store a word of something private, at a byte offset in it.
    #[inline]
    pub fn store_private(&self, private: &Private, field: u64, value: u64) {
        private.store(&self.volume.pool, field, value);
    }

    /// Take a page into use that nothing leads to, all zeros. Its words are set directly from now
    /// on.
    pub fn fresh_page(&mut self, page: u64) {
        self.volume.pool.zero(page_at(page), PAGE);
        self.claims.pages(page..page + 1);
        self.fresh_pages.insert(page);
    }

    /// Take an inode into use, unless the consistent view holds it: then it changes word by word.
    pub fn fresh_inode(&mut self, inode: &Inode) -> Option<Private> {
        let private = Private::inode(inode)?;
        let at = line_at(inode.ino);
        match inode.kind {
            // Callers set the bits of a file's word beside the journal. Replay must not take them
            // back, and after a power cut they mean nothing: it is not carried.
            Kind::File => {
                let behind = inode::UNFLUSHED + 8;
                self.flushes.add_bytes(at, inode::UNFLUSHED, None);
                let rest = inode::LEN - behind;
                self.flushes.add_bytes(at + behind, rest, None);
            }
            _ => self.flushes.add_bytes(at, inode::LEN, None),
        }
        self.claims.lines(inode.ino, inode::LINES);
        Some(private)
    }

    /// Take a directory entry into use, with the lines of its name. It is private until the
    /// transaction is sealed ([`Txn::private_entry`]).
    pub fn fresh_entry(&mut self, line: u64) {
        self.fresh_entries.push(line);
    }

    /// An entry that no transaction has taken into use but this. Such a one is met in a chain only
    /// if this transaction has put it there.
    pub fn private_entry(&self, line: u64) -> Option<Private> {
        Private::entry(&self.volume.pool, line)
    }

    /// Take pages into use that callers have filled, `written` bytes from the first one on.
    pub fn use_pages(&mut self, run: Range<u64>, written: u64) {
        self.flushes.add_data(page_at(run.start), written);
        self.claims.pages(run);
    }

    /// Take a page into use that was filled, so many bytes of it, and is not changed until it is
    /// withdrawn.
    pub fn use_page(&mut self, page: u64, written: u64) {
        self.flushes.add_bytes(page_at(page), written, None);
        self.claims.pages(page..page + 1);
    }

    /// Bytes of files that callers have stored in place are to be durable before the commit.
    pub fn flush_data(&mut self, at: u64, len: u64) {
        self.flushes.add_data(at, len);
    }

    /// In domain `line`, for whoever puts this together without the lane: begin to flush contents
    /// of files, which the commit would have to, with others waiting for it. [`Sealed::fence`]
    /// waits for that.
    pub fn flush_contents(&mut self) {
        let (pool, logged) = (&self.volume.pool, &self.volume.logged);
        if pool.domain() == Domain::Line {
            self.unfenced |= self.flushes.run_contents(pool, logged);
        }
    }

    /// What this transaction withdraws from the consistent view.
    pub fn withdrawn(&mut self) -> &mut Withdrawn {
        &mut self.withdrawn
    }

    /// A name that leads to an inode which the consistent view has already.
    pub fn moves(&mut self, ino: u64) {
        self.claims.moved(ino);
    }

    /// Nothing private is stored to from here on.
    pub fn seal(mut self) -> Result<Sealed> {
        for line in std::mem::take(&mut self.fresh_entries) {
            self.finish_entry(line)?;
        }
        for &page in &self.fresh_pages {
            self.flushes.add_bytes(page_at(page), PAGE, None);
        }
        let words = self.words.in_order();
        check_marked(self.volume, &words)?;
        Ok(Sealed {
            words,
            writes: self.writes,
            claims: self.claims,
            flushes: self.flushes,
            unfenced: self.unfenced,
            withdrawn: self.withdrawn,
        })
    }

    /// An entry is complete: from the commit on the consistent view leads to it.
    fn finish_entry(&mut self, line: u64) -> Result<()> {
        let entry = self.image().dentry(line)?;
        let private = self.private_entry(line).ok_or_else(|| {
            Error::corrupt(line_at(line), "a new entry is in the consistent view")
        })?;
        let target = self.volume.pool.load(line_at(line) + dentry::TARGET);
        self.store_private(&private, dentry::TARGET, target & !dentry::FRESH);
        let at = line_at(line);
        let void = at + dentry::LATEST_NEXT;
        self.flushes.add_bytes(at, LINE, Some(void));
        self.claims.lines(line, 1);
        for more in self.image().name_lines(&entry)? {
            if !injected(Fault::LongNameUnflushed) {
                self.flushes.add_bytes(line_at(more), LINE, None);
            }
            self.claims.lines(more, 1);
        }
        Ok(())
    }
}

/// What the consistent view leads to is in use by its bit. If damage has cleared that, the page may
/// be given to somebody else: then nothing more is changed there. `words` are in their order.
fn check_marked(volume: &Volume, words: &[(u64, u64)]) -> Result<()> {
    let geometry = volume.geometry();
    for page in words.chunk_by(|a, b| a.0 / PAGE == b.0 / PAGE) {
        let at = page[0].0;
        let (word, bit) = geometry.page_bit(at / PAGE);
        if geometry.holds_page(at / PAGE) && volume.pool.load(word) & bit == 0 {
            return Err(Error::corrupt(at, "in use, and in a page that is free"));
        }
    }
    Ok(())
}

impl Sealed {
    /// Two that share a record. They have no word in common: whoever put one together held, alone,
    /// all that it changes.
    pub fn join(&mut self, other: Sealed) {
        self.words.extend(other.words);
        self.words.sort_unstable_by_key(|&(at, _)| at);
        let apart = |pair: &[(u64, u64)]| pair[0].0 < pair[1].0;
        assert!(
            self.words.windows(2).all(apart),
            "two requests change one word"
        );
        self.writes.extend(other.writes);
        self.claims.extend(other.claims);
        self.flushes.extend(other.flushes);
        self.withdrawn.extend(other.withdrawn);
    }

    /// Make durable what [`Txn::flush_contents`] has flushed. For the thread that did (M6), before
    /// others wait for the commit.
    pub fn fence(&mut self, volume: &Volume) -> Result<()> {
        match std::mem::take(&mut self.unfenced) {
            true => volume.pool.fence().map_err(failed),
            false => Ok(()),
        }
    }

    /// Make everything private durable, then change all words at once, durably. What was withdrawn
    /// may be reused once the journal has checkpointed the commit. `show` is called before words
    /// are stored in place, and what it returns dropped behind them ([`Journal::commit_and_show`]).
    pub fn commit<G>(
        &mut self,
        volume: &Volume,
        journal: &mut Journal,
        helpers: &Helpers,
        show: impl Fn() -> G,
    ) -> Result<(Commit, Withdrawn)> {
        debug_assert!(!self.unfenced, "contents are not durable");
        let uses_logged = std::mem::take(&mut self.claims).make(volume, &mut self.flushes);
        let (pool, words) = (&volume.pool, &self.words);
        let mut record = journal.empty_record();
        words.iter().for_each(|&(at, value)| record.set(at, value));
        for (at, bytes) in &self.writes {
            record.write(*at, bytes);
        }
        let logged = &volume.logged;
        logged.set_checkpointed(journal.checkpointed());
        if uses_logged {
            journal.checkpoint().map_err(failed)?;
            logged.set_checkpointed(journal.checkpointed());
        }
        let journal_len = journal.ring_lines() * LINE;
        let mut carried: Vec<Range<u64>> = Vec::new();
        if self.flushes.carry(pool, &mut record, journal_len, logged) {
            carried = self.flushes.data_pages().collect();
        } else {
            // What a live record has of these contents is older than what is flushed now (J5).
            if self.flushes.is_logged(logged) && !injected(Fault::CarriedComesBack) {
                journal.checkpoint().map_err(failed)?;
                logged.set_checkpointed(journal.checkpointed());
            }
            helpers.flush(pool, std::mem::take(&mut self.flushes))?;
            if !injected(Fault::PrivateUnfenced) {
                record.rely_on_flushed();
            }
        }
        if record.lines() > journal.ring_lines() {
            return Err(Error::medium(format!(
                "a batch of {} words exceeds the journal's {}, against all limits",
                words.len(),
                journal.capacity()
            )));
        }
        for &(at, _) in words {
            // A copy of a sparse image may have holes where nodes and tables are all zeros.
            pool.back(at, 8).map_err(failed)?;
        }
        let sequence = journal.commit_and_show(&record, show).map_err(failed)?;
        journal.take_back(record);
        for (at, bytes) in &self.writes {
            let pages = at / PAGE..(at + bytes.len() as u64).div_ceil(PAGE);
            logged.committed(pages, sequence);
        }
        for pages in carried {
            logged.committed(pages, sequence);
        }
        Ok((Commit(sequence), std::mem::take(&mut self.withdrawn)))
    }
}

impl<'a> Words<'a> for Txn<'a> {
    #[inline]
    fn word(&self, at: u64) -> u64 {
        match self.words.get(at) {
            Some(value) => value,
            None => self.volume.pool.load(at),
        }
    }

    fn image(&self) -> Image<'a> {
        Txn::image(self)
    }
}
