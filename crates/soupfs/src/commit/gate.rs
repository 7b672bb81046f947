//! In mode `strong` requests come one at a time, and nobody sees one before it is durable.
//!
//! A request holds the gate alone, from its first look until what it changed has committed; who
//! only looks shares it. So between requests the latest view and the consistent one are equal, but
//! for times of access: what is pending while a request holds the gate is all its own, and commits
//! as one. In other modes there is no gate, and nobody waits.
//!
//! It comes before all other locks.

use schedule::RwLock;

/// The gate of a mount.
pub struct Gate(Option<RwLock<()>>);

impl Gate {
    /// A gate, if the mode is `strong`.
    pub fn new(strong: bool) -> Gate {
        Gate(strong.then(RwLock::default))
    }

    /// Whether the mode is `strong`.
    #[inline]
    pub fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Hold it alone, for a change; `None` in other modes.
    #[inline]
    pub fn alone(&self) -> Option<impl Drop + '_> {
        self.0.as_ref().map(RwLock::write)
    }

    /// Share it, to look; `None` in other modes.
    #[inline]
    pub fn shared(&self) -> Option<impl Drop + '_> {
        self.0.as_ref().map(RwLock::read)
    }
}
