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

static INJECTED: Switch = Switch::new();

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
    bug: std::sync::atomic::AtomicU8,
}

#[cfg(feature = "faults")]
impl Switch {
    /// None is.
    #[allow(clippy::new_without_default, reason = "it is for statics")]
    pub const fn new() -> Switch {
        Switch {
            bug: std::sync::atomic::AtomicU8::new(0),
        }
    }

    /// Inject a bug; false if this build has none.
    pub fn set(&self, bug: u8) -> bool {
        self.bug.store(bug, std::sync::atomic::Ordering::Relaxed);
        true
    }

    /// Whether this one is injected.
    #[inline(always)]
    pub fn is(&self, bug: u8) -> bool {
        self.bug.load(std::sync::atomic::Ordering::Relaxed) == bug
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
