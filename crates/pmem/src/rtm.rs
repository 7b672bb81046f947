//! Restricted transactional memory: a few words stored all at once, or not at all.
//!
//! A processor may announce RTM and still abort every transaction (microcode updates and
//! hypervisors do that), so [`Rtm::detect`] tries.

use std::fmt;
use std::sync::OnceLock;

/// Whether hardware transactions can be used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rtm {
    /// The processor does not announce it.
    Absent,
    /// Announced, but no transaction ever committed in the trial.
    NeverCommits,
    /// A trial transaction committed.
    Usable,
}

impl Rtm {
    /// Tries it; the result is kept.
    pub fn detect() -> Rtm {
        static FOUND: OnceLock<Rtm> = OnceLock::new();
        *FOUND.get_or_init(imp::trial)
    }
}

impl fmt::Display for Rtm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Rtm::Absent => "absent",
            Rtm::NeverCommits => "announced, but never commits",
            Rtm::Usable => "usable",
        })
    }
}

/// Stores the words (byte offset from `base`, value) in one transaction, little-endian.
/// `false`: it aborted, and nothing was stored.
///
/// # Safety
/// Each offset must be a multiple of 8 in writable memory mapped at `base`.
pub(crate) unsafe fn store_words(base: *mut u8, words: &[(u64, u64)]) -> bool {
    if words.is_empty() {
        return true;
    }
    // SAFETY: the caller's promise.
    Rtm::detect() != Rtm::Absent && unsafe { imp::attempt(base, words) }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod imp {
    use std::arch::asm;

    use super::Rtm;

    /// What xbegin leaves untouched in eax when the transaction starts.
    const STARTED: u32 = u32::MAX;
    const TRIALS: usize = 1000;

    pub(super) fn trial() -> Rtm {
        if !std::is_x86_feature_detected!("rtm") {
            return Rtm::Absent;
        }
        let mut memory = [0u64; 8];
        for i in 0..TRIALS {
            let words = [(0, i as u64 + 1), (56, i as u64 + 1)];
            // SAFETY: both words lie in `memory`, which is borrowed mutably.
            if unsafe { attempt(memory.as_mut_ptr().cast(), &words) } {
                return Rtm::Usable;
            }
        }
        Rtm::NeverCommits
    }

    /// # Safety
    /// RTM must be announced; `words` not empty, each in writable memory at `base`.
    pub(super) unsafe fn attempt(base: *mut u8, words: &[(u64, u64)]) -> bool {
        // The layout of a tuple is the compiler's choice: hand over a plain array.
        let mut flat = [0u64; 2 * super::WORDS_MAX];
        if words.len() > super::WORDS_MAX {
            return false;
        }
        for (pair, &(off, value)) in flat.chunks_exact_mut(2).zip(words) {
            pair[0] = off;
            pair[1] = value;
        }
        let status: u32;
        // SAFETY: xbegin is announced. An abort restores the registers, drops the stores and
        // continues at label 3 with its status in eax; a commit gets there with eax as it was.
        unsafe {
            asm!(
                "xbegin 3f",
                "2:",
                "mov {off}, [{pair}]",
                "mov {value}, [{pair} + 8]",
                "mov [{base} + {off}], {value}",
                "add {pair}, 16",
                "dec {left}",
                "jnz 2b",
                "xend",
                "3:",
                base = in(reg) base,
                pair = inout(reg) flat.as_ptr() => _,
                left = inout(reg) words.len() => _,
                off = out(reg) _,
                value = out(reg) _,
                inout("eax") STARTED => status,
                options(nostack),
            );
        }
        status == STARTED
    }
}

#[cfg(any(not(target_arch = "x86_64"), miri))]
mod imp {
    use super::Rtm;

    pub(super) fn trial() -> Rtm {
        Rtm::Absent
    }

    /// # Safety
    /// None needed: it does nothing.
    pub(super) unsafe fn attempt(_base: *mut u8, _words: &[(u64, u64)]) -> bool {
        false
    }
}

/// Words in the largest hardware transaction.
pub(crate) const WORDS_MAX: usize = 16;
