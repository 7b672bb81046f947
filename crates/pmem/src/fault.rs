//! Bugs that can be injected into the journal, to prove that the tests of what stands on it find
//! such.
//!
//! Without the feature `faults` nothing can be injected, and `injected` is a constant.

/// A bug: a rule that is broken as long as it is injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// A record is replayed whether or not its checksum is right.
    TornReplayed = 1,
    /// Recovery stops one record early.
    LastForgotten,
    /// Of a record that is replayed the last word stays as it is.
    HalfReplayed,
    /// Recovery lets the head pass the records before it stores their words.
    HeadFirst,
    /// A transaction without the processor's help leaks its first store before its end.
    StoreLeaks,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 5] = [
        Fault::TornReplayed,
        Fault::LastForgotten,
        Fault::HalfReplayed,
        Fault::HeadFirst,
        Fault::StoreLeaks,
    ];
}

#[cfg(feature = "faults")]
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

static INJECTED: Switch = Switch::new();

/// The bugs of all layers that are injected.
#[cfg(feature = "faults")]
static ALL: AtomicU64 = AtomicU64::new(0);

/// A number of the bugs that are injected, in whichever layers, in this process: another one for
/// others, 0 for none.
pub fn all_injected() -> u64 {
    #[cfg(feature = "faults")]
    return ALL.load(Relaxed);
    #[cfg(not(feature = "faults"))]
    0
}

/// Inject a bug into all journals of this process, or take it out; false if this build has none.
pub fn fault(bug: Option<Fault>) -> bool {
    INJECTED.set(bug.map_or(0, |bug| bug as u8))
}

#[inline(always)]
pub(crate) fn injected(bug: Fault) -> bool {
    INJECTED.is(bug as u8)
}

/// Which bug of a layer is injected, by a number of that layer; zero for none.
pub struct Switch {
    #[cfg(feature = "faults")]
    bug: AtomicU8,
}

#[cfg(feature = "faults")]
impl Switch {
    /// None is.
    #[allow(clippy::new_without_default, reason = "it is for statics")]
    pub const fn new() -> Switch {
        Switch {
            bug: AtomicU8::new(0),
        }
    }

    /// Inject a bug; false if this build has none.
    pub fn set(&self, bug: u8) -> bool {
        let before = self.bug.swap(bug, Relaxed);
        ALL.fetch_xor(self.number(before) ^ self.number(bug), Relaxed);
        true
    }

    /// A number of a bug of this layer; 0 for none.
    fn number(&self, bug: u8) -> u64 {
        let layer = std::ptr::from_ref(self).addr() as u64;
        match bug {
            0 => 0,
            bug => layer << 8 | u64::from(bug),
        }
    }

    /// Whether this one is injected.
    #[inline(always)]
    pub fn is(&self, bug: u8) -> bool {
        self.bug.load(Relaxed) == bug
    }
}

#[cfg(not(feature = "faults"))]
impl Switch {
    /// None is.
    #[allow(clippy::new_without_default, reason = "it is for statics")]
    pub const fn new() -> Switch {
        Switch {}
    }

    /// Inject a bug; false if this build has none.
    pub fn set(&self, _bug: u8) -> bool {
        false
    }

    /// Whether this one is injected.
    #[inline(always)]
    pub fn is(&self, _bug: u8) -> bool {
        false
    }
}
