//! Which rules say what a crash leaves of a medium, and where in an image a medium is.

use pmem::{Domain, PAGE};
use std::fmt;
use std::str::FromStr;

/// Bytes of the memory; what follows is the disk. A cache of 80 blocks fills them; the smallest
/// one, of 64, takes [`CACHE_LEN`].
pub const MEMORY_LEN: u64 = 89 * PAGE;

/// Bytes of the memory that a cache takes unless it is resized: few, so that blocks make way soon.
pub const CACHE_LEN: u64 = 71 * PAGE;

/// Whether an offset is in the memory.
pub fn is_memory(at: u64) -> bool {
    at < MEMORY_LEN
}

/// Which kind of medium, and whose rules apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rules {
    /// Memory, of a persistence domain: M5 to M14.
    Lines(Domain),
    /// A disk with a volatile cache: B1 to B4, B9 of `docs/design/block.md`.
    Sectors,
    /// Both at once: a memory of a domain, and a disk behind it.
    Both(Domain),
}

impl From<Domain> for Rules {
    fn from(domain: Domain) -> Rules {
        Rules::Lines(domain)
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rules::Lines(domain) => domain.fmt(f),
            Rules::Sectors => f.write_str("sectors"),
            Rules::Both(domain) => write!(f, "{domain}+sectors"),
        }
    }
}

impl FromStr for Rules {
    type Err = <Domain as FromStr>::Err;

    fn from_str(text: &str) -> Result<Rules, Self::Err> {
        match text.strip_suffix("+sectors") {
            Some(domain) => domain.parse().map(Rules::Both),
            None if text == "sectors" => Ok(Rules::Sectors),
            None => text.parse().map(Rules::Lines),
        }
    }
}

impl Rules {
    /// Whether these are the rules of this domain, of a memory alone.
    pub fn are(self, domain: Domain) -> bool {
        self == Rules::Lines(domain)
    }

    /// The domain of the memory, if there is one.
    pub fn domain(self) -> Option<Domain> {
        match self {
            Rules::Lines(domain) | Rules::Both(domain) => Some(domain),
            Rules::Sectors => None,
        }
    }

    /// Whether there is a memory at an offset.
    pub fn has_memory(self, at: u64) -> bool {
        match self {
            Rules::Lines(_) => true,
            Rules::Sectors => false,
            Rules::Both(_) => is_memory(at),
        }
    }
}
