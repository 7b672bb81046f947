//! Loads and stores of a pool: words, and ranges of bytes.
//!
//! Every store comes through here, so that the counters and the recorder see it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::paged::Paged;
use crate::pool::spin_ns;
use crate::stats::Counter;
use crate::{Domain, LINE, MediumError, PAGE, Pool, StoreKind, raw};

/// Bytes that bulk operations move at once where they need a buffer.
const CHUNK: usize = 16 << 10;

/// Stores of [`Pool::write_streaming`] that may be under way until this is dropped.
#[must_use = "dropped at once, it waits for the stores"]
pub struct Streaming(());

impl Drop for Streaming {
    fn drop(&mut self) {
        raw::drain_write_combining();
    }
}

/// Words.
impl Pool {
    /// Loads the little-endian word at `off` (Acquire).
    #[inline]
    #[track_caller]
    pub fn load(&self, off: u64) -> u64 {
        match self.region.try_load(off) {
            Some(value) => value,
            None => self.load_slow(off),
        }
    }

    #[cold]
    #[track_caller]
    fn load_slow(&self, off: u64) -> u64 {
        let value = match &self.paged {
            None => self.region.load(off),
            Some(paged) => paged.load(off),
        };
        spin_ns(self.latency.read_ns, 1);
        value
    }

    /// Stores the little-endian word at `off` (Release).
    #[inline]
    #[track_caller]
    pub fn store(&self, off: u64, value: u64) {
        self.live.check(off, 8);
        if self.region.try_store(off, value) {
            self.counters.add(Counter::BytesCached, 8);
        } else {
            self.store_slow(off, value);
        }
    }

    #[cold]
    #[track_caller]
    fn store_slow(&self, off: u64, value: u64) {
        self.update(off, |word| {
            word.store(value.to_le(), Ordering::Release);
            ((), Some(value))
        });
    }

    /// Sets bits of a word; returns its former value. Acquire and Release.
    #[inline]
    #[track_caller]
    pub fn fetch_or(&self, off: u64, mask: u64) -> u64 {
        self.update(off, |word| {
            let old = u64::from_le(word.fetch_or(mask.to_le(), Ordering::AcqRel));
            (old, Some(old | mask))
        })
    }

    /// Keeps only the bits of a word that `mask` has; returns its former value. Acquire and
    /// Release.
    #[inline]
    #[track_caller]
    pub fn fetch_and(&self, off: u64, mask: u64) -> u64 {
        self.update(off, |word| {
            let old = u64::from_le(word.fetch_and(mask.to_le(), Ordering::AcqRel));
            (old, Some(old & mask))
        })
    }

    /// Stores `new` if the word is `current`, and returns `current`. Acquire and Release.
    ///
    /// # Errors
    /// The word's value, if it is not `current`; nothing is stored then.
    #[inline]
    #[track_caller]
    pub fn compare_exchange(&self, off: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.update(off, |word| {
            let (from, to) = (current.to_le(), new.to_le());
            match word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => (Ok(current), Some(new)),
                Err(old) => (Err(u64::from_le(old)), None),
            }
        })
    }

    /// Runs an update of a word, which gives its result and what it stored, if anything.
    #[inline]
    #[track_caller]
    fn update<T>(&self, off: u64, update: impl FnOnce(&AtomicU64) -> (T, Option<u64>)) -> T {
        self.live.check(off, 8);
        let Some(recording) = &self.recording else {
            self.counters.add(Counter::BytesCached, 8);
            return self.update_medium(off, update).0;
        };
        let _order = recording.order.lock();
        let (result, stored) = self.update_medium(off, update);
        if let Some(value) = stored {
            self.counters.add(Counter::BytesCached, 8);
            recording
                .recorder
                .store(off, &value.to_le_bytes(), StoreKind::Cached);
        }
        result
    }

    #[inline]
    #[track_caller]
    fn update_medium<T>(&self, off: u64, update: impl FnOnce(&AtomicU64) -> T) -> T {
        let word = self.region.word_mut(off);
        match &self.paged {
            None => update(word),
            Some(paged) => paged.update(off, update),
        }
    }

    /// Hints that the line at `off` will be read; harmless out of range.
    #[inline]
    pub fn prefetch(&self, off: u64) {
        self.region.prefetch(off);
    }

    /// Brings scattered ranges (offset, length) into memory where that takes reads, with many of
    /// them in flight.
    pub(crate) fn prefetch_many(&self, ranges: impl Iterator<Item = (u64, u64)>) {
        if let Some(paged) = &self.paged {
            paged.prefetch_many(ranges);
        }
    }

    /// Hints that the line at `off` will be written; harmless out of range.
    #[inline]
    pub fn prefetch_for_write(&self, off: u64) {
        self.region.prefetch_for_write(off);
    }

    /// Hints that all lines of a range will be written; harmless out of range.
    #[inline]
    pub fn prefetch_range_for_write(&self, off: u64, len: u64) {
        self.region.prefetch_range_for_write(off, len);
    }
}

/// Ranges of bytes.
impl Pool {
    /// Copies out of the pool.
    #[inline]
    #[track_caller]
    pub fn read(&self, off: u64, buf: &mut [u8]) {
        self.read_medium(off, buf);
        if self.latency.read_ns != 0 {
            spin_ns(self.latency.read_ns, raw::lines(off, buf.len() as u64));
        }
    }

    /// Copies out of the pool, if it can be read. [`Pool::read`] and [`Pool::load`] cannot say so:
    /// there the pool is poisoned, and what was read is zeros.
    ///
    /// # Errors
    /// [`MediumError::Unreadable`]; the pool stays usable.
    #[inline]
    #[track_caller]
    pub fn try_read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        if let Some(paged) = &self.paged {
            let brought = paged.prefetch(off, buf.len() as u64);
            brought.map_err(|error| MediumError::Unreadable {
                cause: error.to_string(),
            })?;
        }
        self.read(off, buf);
        Ok(())
    }

    #[inline]
    #[track_caller]
    pub(crate) fn read_medium(&self, off: u64, buf: &mut [u8]) {
        match &self.paged {
            None => self.region.read(off, buf),
            Some(paged) => paged.read(off, buf),
        }
    }

    /// Copies into the pool. The order of the bytes within one call is not defined.
    #[inline]
    #[track_caller]
    pub fn write(&self, off: u64, data: &[u8]) {
        self.put(off, data, StoreKind::Cached);
    }

    /// Copies into the pool, whole lines around the cache (the partial ones at the ends go
    /// through it). A fence makes the whole lines durable in domain `line`; the partial ones need
    /// a flush first, and so does all of it in domain `page`. Until a fence, stores around the
    /// cache are unordered against everything.
    #[track_caller]
    pub fn write_nt(&self, off: u64, data: &[u8]) {
        self.region.check(off, data.len() as u64);
        let head = ((LINE - off % LINE) % LINE).min(data.len() as u64) as usize;
        let (head, rest) = data.split_at(head);
        let (body, tail) = rest.split_at(rest.len() / LINE as usize * LINE as usize);
        let body_off = off + head.len() as u64;
        for (off, part, kind) in [
            (off, head, StoreKind::Cached),
            (body_off, body, StoreKind::NonTemporal),
            (body_off + body.len() as u64, tail, StoreKind::Cached),
        ] {
            if !part.is_empty() {
                self.put(off, part, kind);
            }
        }
        if self.latency.flush_ns != 0 && self.domain() != Domain::Page {
            spin_ns(self.latency.flush_ns, body.len() as u64 / LINE);
        }
    }

    /// Copies into the pool around the cache, less than a page through it: for much data that is
    /// not read soon. In all that concerns order it is [`Pool::write`] once the guard is dropped:
    /// then the stores are visible to all, and whoever wants them durable flushes and fences them.
    /// Until then they are under way, while the caller does something else but let others look.
    #[track_caller]
    pub fn write_streaming(&self, off: u64, data: &[u8]) -> Streaming {
        if (data.len() as u64) < PAGE || self.recording.is_some() || self.paged.is_some() {
            self.write(off, data);
            return Streaming(());
        }
        self.region.check(off, data.len() as u64);
        self.live.check(off, data.len() as u64);
        self.counters.add(Counter::BytesCached, data.len() as u64);
        let head = ((LINE - off % LINE) % LINE) as usize;
        let (head, rest) = data.split_at(head);
        let (body, tail) = rest.split_at(rest.len() / LINE as usize * LINE as usize);
        let body_off = off + head.len() as u64;
        self.region.write_lines_nt(body_off, body);
        if !head.is_empty() || !tail.is_empty() {
            self.region.write(off, head);
            self.region.write(body_off + body.len() as u64, tail);
        }
        Streaming(())
    }

    #[inline]
    #[track_caller]
    fn put(&self, off: u64, data: &[u8], kind: StoreKind) {
        self.live.check(off, data.len() as u64);
        let Some(recording) = &self.recording else {
            return self.put_medium(off, data, kind);
        };
        let _order = recording.order.lock();
        self.put_medium(off, data, kind);
        if !data.is_empty() {
            recording.recorder.store(off, data, kind);
        }
    }

    #[inline]
    #[track_caller]
    fn put_medium(&self, off: u64, data: &[u8], kind: StoreKind) {
        match kind {
            StoreKind::Cached => {
                self.counters.add(Counter::BytesCached, data.len() as u64);
                match self.paged_for_stores() {
                    None => self.region.write(off, data),
                    Some(paged) => paged.write(off, data),
                }
            }
            StoreKind::NonTemporal => {
                self.counters
                    .add(Counter::BytesNonTemporal, data.len() as u64);
                match self.paged_for_stores() {
                    None => self.region.write_lines_nt(off, data),
                    Some(paged) => paged.write_lines(off, data),
                }
            }
        }
    }

    /// What stores have to go through, if anything.
    #[inline]
    #[track_caller]
    fn paged_for_stores(&self) -> Option<&Paged> {
        let paged = self.paged.as_ref()?;
        // Its own memory is writable, as pages are brought in.
        assert!(self.region.writable(), "the pool is read-only");
        Some(paged)
    }

    /// Stores zeros.
    #[inline]
    #[track_caller]
    pub fn zero(&self, off: u64, len: u64) {
        if self.recording.is_none() {
            self.live.check(off, len);
            self.counters.add(Counter::BytesCached, len);
            return match self.paged_for_stores() {
                None => self.region.zero(off, len),
                Some(paged) => paged.zero(off, len),
            };
        }
        self.region.check(off, len);
        let zeros = [0; CHUNK];
        for at in (off..off + len).step_by(CHUNK) {
            self.write(at, &zeros[..(off + len - at).min(CHUNK as u64) as usize]);
        }
    }

    /// Copies within the pool; the ranges may overlap.
    #[track_caller]
    pub fn copy(&self, from: u64, to: u64, len: u64) {
        self.region.check(from, len);
        self.region.check(to, len);
        let overlaps_upward = from < to && to < from + len;
        if self.recording.is_none() && self.paged.is_none() && !overlaps_upward {
            self.live.check(to, len);
            self.counters.add(Counter::BytesCached, len);
            return self.region.copy_down(from, to, len);
        }
        let mut buf = [0; CHUNK];
        let chunks = len.div_ceil(CHUNK as u64);
        for i in 0..chunks {
            // Upward overlap: from the end, so that nothing is overwritten before it is read.
            let i = if overlaps_upward { chunks - 1 - i } else { i };
            let at = i * CHUNK as u64;
            let piece = &mut buf[..(len - at).min(CHUNK as u64) as usize];
            self.read_medium(from + at, piece);
            self.write(to + at, piece);
        }
    }
}
