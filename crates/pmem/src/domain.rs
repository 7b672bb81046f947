//! Persistence domains: what reaches the medium by itself, and what a flush and a fence add.

use std::fmt;
use std::str::FromStr;

/// How far a store has to travel before it survives, and so what [`Pool::flush`] and
/// [`Pool::fence`] have to do. The assumptions behind each are numbered in
/// `docs/crash-model.md`.
///
/// [`Pool::flush`]: crate::Pool::flush
/// [`Pool::fence`]: crate::Pool::fence
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Domain {
    /// ADR persistent memory: a line is durable once written back and fenced.
    Line,
    /// eADR or battery-backed memory, and memory files as seen by a process that dies:
    /// a store is durable when it is visible.
    Cache,
    /// Memory over a disk: a range is durable once it was written and the disk was flushed.
    Page,
}

impl Domain {
    /// What survives a process crash, a kernel crash and a power cut, in one sentence for users.
    pub fn survives(&self) -> &'static str {
        match self {
            Domain::Line => {
                "process crash, kernel crash, power cut: everything flushed and fenced survives"
            }
            Domain::Cache => {
                "process crash: every store survives; kernel crash and power cut: every store \
                 survives if the memory itself keeps its contents (eADR, battery), nothing on \
                 tmpfs, hugetlbfs or anonymous memory"
            }
            Domain::Page => {
                "process crash, kernel crash, power cut: everything synced survives; what is not \
                 durable yet may be lost, with the process too"
            }
        }
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Domain::Line => "line",
            Domain::Cache => "cache",
            Domain::Page => "page",
        })
    }
}

/// A word that names no [`Domain`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a persistence domain; use line, cache or page")]
pub struct UnknownDomain(String);

impl FromStr for Domain {
    type Err = UnknownDomain;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s {
            "line" => Ok(Domain::Line),
            "cache" => Ok(Domain::Cache),
            "page" => Ok(Domain::Page),
            other => Err(UnknownDomain(other.to_owned())),
        }
    }
}
