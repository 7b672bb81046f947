//! Mapped memory: the primitives that touch it.
//!
//! The memory is shared with other threads, with other processes and with the medium, so no
//! Rust reference to it ever exists. Words are accessed as atomics. Bulk accesses are assembly
//! on x86-64, which the compiler cannot see through: a race between a bulk access and any other
//! yields some mixture of bytes, not undefined behaviour. Elsewhere (and under Miri) they are
//! loops of relaxed atomics.
//!
//! Every function checks its range, so the module's interface is safe.

#[cfg_attr(any(not(target_arch = "x86_64"), miri), path = "raw/portable.rs")]
#[cfg_attr(all(target_arch = "x86_64", not(miri)), path = "raw/x86_64.rs")]
mod imp;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::LINE;
use crate::map::Mapping;
use crate::rtm::Pair;
use crate::transaction::Abort;

/// A copy of at least so many bytes prefetches the lines that it will write, as more of them are
/// under way then than a copy has by itself ...
const PREFETCH_MIN: usize = 1 << 10;
/// ... but for no more bytes at once than a near cache can have beside everything else.
const PREFETCHED: usize = 4 << 10;

/// The bytes of a pool.
///
/// Invariants: `fast_load_words <= words`, `fast_store_words <= words`, `words * 8 <= map.len()`,
/// the mapping is writable if `writable`, and the base is aligned to a page.
pub(crate) struct Region {
    map: Mapping,
    words: u64,
    /// Words that `try_load` serves; 0 sends every load the slow way.
    fast_load_words: u64,
    /// Words that `try_store` serves; 0 sends every store the slow way.
    fast_store_words: u64,
    writable: bool,
}

/// The word number of a byte offset: misaligned offsets turn into huge numbers, so one
/// comparison checks range and alignment.
#[inline(always)]
fn word(off: u64) -> u64 {
    off.rotate_right(3)
}

impl Region {
    pub(crate) fn new(map: Mapping) -> Self {
        let words = map.len() as u64 / 8;
        Region {
            map,
            words,
            fast_load_words: 0,
            fast_store_words: 0,
            writable: false,
        }
    }

    /// The same bytes, for another who accesses them, by rules of its own.
    pub(crate) fn share(&self) -> Region {
        Region::new(self.map.share())
    }

    /// Says what `try_load` and `try_store` serve, and whether stores are accepted at all.
    pub(crate) fn set_access(&mut self, writable: bool, fast_load: bool, fast_store: bool) {
        self.writable = writable && self.map.writable();
        self.fast_load_words = if fast_load { self.words } else { 0 };
        self.fast_store_words = if fast_store && self.writable {
            self.words
        } else {
            0
        };
    }

    /// Length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.words * 8
    }

    pub(crate) fn writable(&self) -> bool {
        self.writable
    }

    /// Where the pool lies in this process's address space.
    pub(crate) fn address(&self) -> std::ops::Range<usize> {
        let start = self.map.base().addr();
        start..start + self.map.len()
    }

    /// Gives the memory behind whole pages of anonymous memory back; they are zeros when they are
    /// next accessed, or faults where those are served.
    pub(crate) fn discard(&self, off: u64, len: u64) -> std::io::Result<()> {
        self.check(off, len);
        self.map.discard(off as usize, len as usize)
    }

    /// Makes whole pages durable, through the host file system.
    pub(crate) fn sync(&self, off: u64, len: u64) -> std::io::Result<()> {
        self.check(off, len);
        self.map.sync(off as usize, len as usize)
    }

    /// Panics unless the range lies in the pool.
    #[inline]
    #[track_caller]
    pub(crate) fn check(&self, off: u64, len: u64) {
        if len > self.len() || off > self.len() - len {
            bad_range(off, len, self.len());
        }
    }

    #[inline]
    #[track_caller]
    pub(crate) fn check_word(&self, off: u64) {
        if word(off) >= self.words {
            bad_word(off, self.len());
        }
    }

    #[inline]
    #[track_caller]
    fn check_writable(&self) {
        assert!(self.writable, "the pool is read-only");
    }

    /// The address of a byte in range.
    #[inline(always)]
    fn at(&self, off: u64) -> *mut u8 {
        debug_assert!(off <= self.len());
        self.map.base().wrapping_add(off as usize)
    }

    /// The atomic at a word that the caller has checked.
    ///
    /// # Safety
    /// `word(off)` must be below `self.words`.
    #[inline(always)]
    unsafe fn atomic(&self, off: u64) -> &AtomicU64 {
        // SAFETY: aligned and in range per the caller; mapped as long as `self` lives; other
        // accesses are atomics or assembly.
        unsafe { AtomicU64::from_ptr(self.at(off).cast()) }
    }

    /// Loads a word, unless loads go the slow way or the offset is bad.
    #[inline(always)]
    pub(crate) fn try_load(&self, off: u64) -> Option<u64> {
        if word(off) >= self.fast_load_words {
            return None;
        }
        // SAFETY: `fast_load_words <= words`.
        Some(u64::from_le(
            unsafe { self.atomic(off) }.load(Ordering::Acquire),
        ))
    }

    /// Stores a word, unless stores go the slow way or the offset is bad; says whether it did.
    #[inline(always)]
    #[must_use]
    pub(crate) fn try_store(&self, off: u64, value: u64) -> bool {
        if word(off) >= self.fast_store_words {
            return false;
        }
        // SAFETY: `fast_store_words <= words`, and not 0 only if writable.
        unsafe { self.atomic(off) }.store(value.to_le(), Ordering::Release);
        true
    }

    /// Loads a word; panics on a bad offset.
    #[track_caller]
    pub(crate) fn load(&self, off: u64) -> u64 {
        self.check_word(off);
        // SAFETY: checked.
        u64::from_le(unsafe { self.atomic(off) }.load(Ordering::Acquire))
    }

    /// The atomic of a word, for read-modify-write; the value in it is little-endian.
    #[inline]
    #[track_caller]
    pub(crate) fn word_mut(&self, off: u64) -> &AtomicU64 {
        self.check_word(off);
        self.check_writable();
        // SAFETY: checked, and writable.
        unsafe { self.atomic(off) }
    }

    /// Copies out of the pool.
    #[track_caller]
    pub(crate) fn read(&self, off: u64, buf: &mut [u8]) {
        self.check(off, buf.len() as u64);
        // SAFETY: the range is mapped; `buf` is ours alone.
        unsafe { imp::load_bytes(buf.as_mut_ptr(), self.at(off), buf.len()) }
    }

    /// Copies into the pool. Words of the range that are aligned are each stored at once if the
    /// range is short; nothing else is said of the order within the range.
    #[inline]
    #[track_caller]
    pub(crate) fn write(&self, off: u64, data: &[u8]) {
        self.check(off, data.len() as u64);
        self.check_writable();
        if data.len() < PREFETCH_MIN {
            // SAFETY: the range is mapped and writable; `data` does not overlap it, as no reference
            // to the pool exists.
            unsafe { imp::store_bytes(self.at(off), data.as_ptr(), data.len()) }
        } else {
            self.write_long(off, data);
        }
    }

    /// [`Region::write`] of so much that lines are prefetched.
    #[track_caller]
    fn write_long(&self, off: u64, data: &[u8]) {
        self.check(off, data.len() as u64);
        self.check_writable();
        let (mut off, mut rest) = (off, data);
        while !rest.is_empty() {
            // Up to where the next page begins, so that no word is cut.
            let (piece, more) =
                rest.split_at(rest.len().min(PREFETCHED - off as usize % PREFETCHED));
            self.prefetch_range_for_write(off, piece.len() as u64);
            // SAFETY: the range is mapped and writable; `data` does not overlap it, as no reference
            // to the pool exists.
            unsafe { imp::store_bytes(self.at(off), piece.as_ptr(), piece.len()) }
            (off, rest) = (off + piece.len() as u64, more);
        }
    }

    /// Copies whole lines into the pool around the cache.
    #[track_caller]
    pub(crate) fn write_lines_nt(&self, off: u64, data: &[u8]) {
        assert!(off.is_multiple_of(LINE) && data.len().is_multiple_of(LINE as usize));
        self.check(off, data.len() as u64);
        self.check_writable();
        // SAFETY: as in `write`; the base is aligned to a page, so the target is to a line.
        unsafe { imp::store_lines_nt(self.at(off), data.as_ptr(), data.len()) }
    }

    /// Stores zeros.
    #[track_caller]
    pub(crate) fn zero(&self, off: u64, len: u64) {
        self.check(off, len);
        self.check_writable();
        // SAFETY: the range is mapped and writable.
        unsafe { imp::zero_bytes(self.at(off), len as usize) }
    }

    /// Copies within the pool, ranges may overlap if `to <= from`.
    #[track_caller]
    pub(crate) fn copy_down(&self, from: u64, to: u64, len: u64) {
        self.check(from, len);
        self.check(to, len);
        self.check_writable();
        // SAFETY: both ranges are mapped, the target writable.
        unsafe { imp::copy_bytes(self.at(to), self.at(from), len as usize) }
    }

    /// Hints that the line will be read.
    #[inline]
    pub(crate) fn prefetch(&self, off: u64) {
        if off < self.len() {
            imp::prefetch(self.at(off));
        }
    }

    /// Hints that the line will be written.
    #[inline]
    pub(crate) fn prefetch_for_write(&self, off: u64) {
        if off < self.len() {
            imp::prefetch_for_write(self.at(off));
        }
    }

    /// Hints that all lines of a range will be written.
    #[inline]
    pub(crate) fn prefetch_range_for_write(&self, off: u64, len: u64) {
        let len = len.min(self.len().saturating_sub(off));
        let mut line = self.at(off.min(self.len()));
        for _ in 0..lines(off, len) {
            imp::prefetch_for_write(line);
            line = line.wrapping_add(LINE as usize);
        }
    }

    /// Requests write-back of the lines of a range that is not empty.
    #[inline]
    #[track_caller]
    pub(crate) fn write_back(&self, how: FlushInstruction, off: u64, len: u64) {
        self.check(off, len);
        let first = self.at(off & !(LINE - 1));
        let lines = lines(off, len);
        // SAFETY: the lines lie in mapped pages; the instruction was detected.
        unsafe { imp::write_back(how, first, lines) }
    }

    /// Stores words of memory and of the region in one hardware transaction, if others have these
    /// values.
    #[track_caller]
    pub(crate) fn store_in_hardware(
        &self,
        expected: &[(&AtomicU64, u64)],
        memory: &[(&AtomicU64, u64)],
        words: &[(u64, u64)],
    ) -> Result<(), Abort> {
        let pair = |&(word, value): &(&AtomicU64, u64)| Pair {
            at: word.as_ptr(),
            value,
        };
        let expected: Vec<_> = expected.iter().map(pair).collect();
        let mut stores = Vec::with_capacity(memory.len() + words.len());
        stores.extend(memory.iter().map(pair));
        for &(off, value) in words {
            let word = self.word_mut(off);
            // A page fault would abort the transaction each time: take it before. What stores
            // nothing for sure a compiler makes a load, which does not make a page writable.
            let now = word.load(Ordering::Relaxed);
            let _ = word.compare_exchange(now, now, Ordering::Relaxed, Ordering::Relaxed);
            stores.push(pair(&(word, value.to_le())));
        }
        // SAFETY: all are atomic words that are borrowed or in the region, which is writable.
        unsafe { crate::rtm::run(&expected, &stores) }
    }
}

/// Bytes that take memory only when they are first stored to.
pub(crate) fn zeroed_bytes(count: usize) -> Box<[AtomicU8]> {
    let bytes = vec![0_u8; count].into_boxed_slice();
    // SAFETY: an atomic byte has the layout and the values of a byte, and the box is ours.
    unsafe { Box::from_raw(Box::into_raw(bytes) as *mut [AtomicU8]) }
}

/// Hints that a line of DRAM will be read. Any address will do: nothing is accessed.
#[inline]
pub fn prefetch<T>(at: *const T) {
    imp::prefetch(at.cast());
}

/// Hints that the lines of a value in DRAM will be written. Any address will do: nothing is
/// accessed.
#[inline]
pub fn prefetch_for_write<T>(at: *const T) {
    let line = LINE as usize;
    let ask = |offset| imp::prefetch_for_write(at.cast::<u8>().wrapping_add(offset));
    // No iterators here: nothing but the instructions themselves is to be left of this.
    let mut offset = 0;
    while offset < size_of::<T>() {
        ask(offset);
        offset += line;
    }
    // The last byte may lie one line further, unless alignment forbids it.
    if let Some(last) = size_of::<T>().checked_sub(1)
        && last % line >= align_of::<T>()
    {
        ask(last);
    }
}

/// Makes the calling thread's stores around the cache visible, as any locked instruction does
/// (Intel SDM volume 3, "Buffering of write combining memory locations"). It makes nothing durable.
pub(crate) fn drain_write_combining() {
    let word = AtomicU64::new(0);
    std::hint::black_box(&word).swap(1, Ordering::SeqCst);
}

/// Lines that a range touches.
#[inline]
pub(crate) fn lines(off: u64, len: u64) -> u64 {
    if len == 0 {
        0
    } else {
        (off + len - 1) / LINE - off / LINE + 1
    }
}

#[cold]
#[track_caller]
fn bad_range(off: u64, len: u64, pool: u64) -> ! {
    panic!("{len} bytes at {off} are not within the pool's {pool} bytes")
}

#[cold]
#[track_caller]
fn bad_word(off: u64, pool: u64) -> ! {
    panic!("no word at {off}: it must be a multiple of 8 within the pool's {pool} bytes")
}

/// The instruction that writes a line back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushInstruction {
    /// `clwb`: the line stays cached.
    Clwb,
    /// `clflushopt`: evicts the line.
    Clflushopt,
    /// `clflush`: evicts the line, in order.
    Clflush,
    /// `dc cvac` (aarch64).
    DcCvac,
    /// The processor has none that this crate knows.
    None,
}

impl FlushInstruction {
    /// The best that this processor has.
    pub fn detect() -> Self {
        imp::detect_flush()
    }

    /// The instruction's name.
    pub fn name(self) -> &'static str {
        match self {
            FlushInstruction::Clwb => "clwb",
            FlushInstruction::Clflushopt => "clflushopt",
            FlushInstruction::Clflush => "clflush",
            FlushInstruction::DcCvac => "dc cvac",
            FlushInstruction::None => "none",
        }
    }
}

/// Orders all earlier stores and write-backs of this thread before all later ones.
#[inline]
pub(crate) fn store_fence() {
    imp::store_fence();
}
