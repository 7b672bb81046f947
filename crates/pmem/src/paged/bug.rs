//! Bugs that tests inject, to see that they are noticed. Without tests there are none.

/// A rule of `docs/design/page.md` that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bug {
    /// A fence of few ranges does nothing.
    FenceForgotten,
    /// Of the sectors of a page that are apart only the first are written.
    SectorsForgotten,
    /// Pages are copied while somebody may still store to them (P2).
    GuardsNotAwaited,
    /// A page that was stored to while it was written is taken for clean (P3).
    CleanThoughStored,
    /// Two write-outs take the same page (P4).
    ClaimedTwice,
    /// A fence does not wait for what another write-out has in flight (P4).
    FlightNotAwaited,
    /// A page is dropped that the disk does not have (P5).
    UncleanDropped,
    /// A write that failed is taken for one that did not.
    FailureIgnored,
    /// The permission to store to two sectors is that of the first.
    SecondNotPermitted,
    /// Pages of which reads failed are taken for present.
    UnreadPresent,
}

#[cfg(test)]
impl Bug {
    pub(super) const ALL: [Bug; 10] = [
        Bug::FenceForgotten,
        Bug::SectorsForgotten,
        Bug::GuardsNotAwaited,
        Bug::CleanThoughStored,
        Bug::ClaimedTwice,
        Bug::FlightNotAwaited,
        Bug::UncleanDropped,
        Bug::FailureIgnored,
        Bug::SecondNotPermitted,
        Bug::UnreadPresent,
    ];
}

/// The bug that is injected, if any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Bugs {
    #[cfg(test)]
    pub(super) injected: Option<Bug>,
}

impl Bugs {
    #[inline(always)]
    pub(super) fn has(self, bug: Bug) -> bool {
        #[cfg(test)]
        return self.injected == Some(bug);
        #[cfg(not(test))]
        {
            let _ = bug;
            false
        }
    }
}
