//! What an audit says, and how far it is.

use crate::check::claims::Claims;
use crate::check::finding::{Class, Finding};
use std::collections::HashSet;

/// What an audit is busy with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Walking the names: counts inodes.
    Names,
    /// Comparing the maps: counts regions.
    Maps,
    /// Repairing: counts findings.
    Repair,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// With what.
    pub stage: Stage,
    /// How much is done.
    pub done: u64,
    /// How much there is; 0 if that is not known.
    pub total: u64,
}

/// Who is told how far an audit is; called from several threads, a thousand times or so.
pub type Watch<'a> = &'a (dyn Fn(Progress) + Sync);

/// What is reachable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Inodes.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Names.
    pub names: u64,
    /// Pages in use, of lines or whole.
    pub pages: u64,
    /// Lines in use in pages of lines.
    pub lines: u64,
    /// Free lines; a free page counts as 64.
    pub free_lines: u64,
    /// Pages that the maps call used and nothing reaches.
    pub leaked_pages: u64,
    /// Lines in other pages, likewise.
    pub leaked_lines: u64,
}

/// What an audit found.
pub struct Audit {
    /// Whether the image says that it was unmounted cleanly.
    pub clean: bool,
    /// What is wrong, ordered by place.
    pub findings: Vec<Finding>,
    /// Findings that were not kept.
    pub more: u64,
    /// What is reachable.
    pub totals: Totals,
    pub(crate) claims: Claims,
    /// Pages that something else has as well: a word in one may be anybody's.
    pub(crate) contested: HashSet<u64>,
}

impl Audit {
    /// What breaks an invariant that must hold at every crash.
    pub fn violations(&self) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(|f| f.problem.class() == Class::Violation)
    }

    /// Whether the image is as it should be: after a crash leaks, debris and inexact counts are
    /// permitted, in a clean image nothing is.
    pub fn holds(&self) -> bool {
        self.more == 0
            && if self.clean {
                self.findings.is_empty()
            } else {
                self.violations().next().is_none()
            }
    }
}
