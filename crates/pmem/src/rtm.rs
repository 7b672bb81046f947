//! Restricted transactional memory: some words stored all at once if others are as expected, or
//! nothing.
//!
//! A processor may announce RTM and still abort every transaction (microcode updates and
//! hypervisors do that), so [`Rtm::detect`] tries.

use std::fmt;
use std::sync::OnceLock;

use crate::transaction::Abort;

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

/// A word at an address, and a value.
#[repr(C)]
pub(crate) struct Pair {
    pub(crate) at: *const u64,
    pub(crate) value: u64,
}

/// Stores words in one hardware transaction if others have these values.
///
/// # Safety
/// `expected` must be words that may be read, and `stores` words that may be written, from any
/// thread, as atomic ones are.
pub(crate) unsafe fn run(expected: &[Pair], stores: &[Pair]) -> Result<(), Abort> {
    if Rtm::detect() == Rtm::Absent {
        return Err(Abort::Other);
    }
    // SAFETY: RTM is announced; the rest is the caller's promise.
    unsafe { imp::attempt(expected, stores) }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod imp {
    use std::arch::asm;

    use super::{Abort, Pair, Rtm};

    /// What xbegin leaves untouched in eax when the transaction starts.
    const STARTED: u32 = u32::MAX;
    /// Bits of eax behind an abort: by xabort, by another's access, for want of room.
    const EXPLICIT: u32 = 1;
    const CONFLICT: u32 = 1 << 2;
    const CAPACITY: u32 = 1 << 3;
    const TRIALS: usize = 1000;

    pub(super) fn trial() -> Rtm {
        if !std::is_x86_feature_detected!("rtm") {
            return Rtm::Absent;
        }
        let mut memory = [0u64; 16];
        let at = memory.as_mut_ptr();
        for i in 0..TRIALS {
            let value = i as u64;
            // SAFETY: both words lie in `memory`.
            let places = unsafe { [at, at.add(15)] };
            let pairs = |value| places.map(|at| Pair { at, value });
            // SAFETY: RTM is announced, and nobody else has `memory`.
            if unsafe { attempt(&pairs(0), &pairs(value + 1)) }.is_ok() {
                return Rtm::Usable;
            }
        }
        Rtm::NeverCommits
    }

    /// # Safety
    /// RTM must be announced; else as [`run`](super::run).
    pub(super) unsafe fn attempt(expected: &[Pair], stores: &[Pair]) -> Result<(), Abort> {
        let status: u32;
        // SAFETY: xbegin is announced. An abort restores the registers, drops the stores and
        // continues at label 9 with its status in eax; a commit gets there with eax as it was.
        // What is loaded and stored is the caller's promise.
        unsafe {
            asm!(
                "xbegin 9f",
                "test {checks}, {checks}",
                "jz 3f",
                "2:",
                "mov {at}, [{check}]",
                "mov {value}, [{check} + 8]",
                "cmp [{at}], {value}",
                "jne 8f",
                "add {check}, 16",
                "dec {checks}",
                "jnz 2b",
                "3:",
                "test {left}, {left}",
                "jz 5f",
                "4:",
                "mov {at}, [{store}]",
                "mov {value}, [{store} + 8]",
                "mov [{at}], {value}",
                "add {store}, 16",
                "dec {left}",
                "jnz 4b",
                "5:",
                "xend",
                "jmp 9f",
                "8:",
                "xabort 1",
                "9:",
                check = inout(reg) expected.as_ptr() => _,
                checks = inout(reg) expected.len() => _,
                store = inout(reg) stores.as_ptr() => _,
                left = inout(reg) stores.len() => _,
                at = out(reg) _,
                value = out(reg) _,
                inout("eax") STARTED => status,
                options(nostack),
            );
        }
        match status {
            STARTED => Ok(()),
            bits if bits & CAPACITY != 0 => Err(Abort::Capacity),
            bits if bits & (EXPLICIT | CONFLICT) != 0 => Err(Abort::Conflict),
            _ => Err(Abort::Other),
        }
    }
}

#[cfg(any(not(target_arch = "x86_64"), miri))]
mod imp {
    use super::{Abort, Pair, Rtm};

    pub(super) fn trial() -> Rtm {
        Rtm::Absent
    }

    /// # Safety
    /// None needed: it does nothing.
    pub(super) unsafe fn attempt(_: &[Pair], _: &[Pair]) -> Result<(), Abort> {
        Err(Abort::Other)
    }
}
