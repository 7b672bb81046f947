//! What a pool is made of, for people to read.

use std::fmt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::{Domain, FlushInstruction, PAGE, Rtm};

/// What carries a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Device DAX.
    DevDax,
    /// A file on the named file system, mapped with MAP_SYNC.
    MapSyncFile(String),
    /// A file on tmpfs (or ramfs).
    Tmpfs,
    /// A file on hugetlbfs.
    Hugetlbfs,
    /// A file on the named file system.
    File(String),
    /// A block device.
    BlockDevice,
    /// A disk of which no more is known than how to read and write it.
    Disk,
    /// Anonymous memory.
    Anonymous,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::DevDax => f.write_str("device DAX"),
            Kind::MapSyncFile(fs) => write!(f, "file on {fs}, mapped with MAP_SYNC"),
            Kind::Tmpfs => f.write_str("file on tmpfs"),
            Kind::Hugetlbfs => f.write_str("file on hugetlbfs"),
            Kind::File(fs) => write!(f, "file on {fs}"),
            Kind::BlockDevice => f.write_str("block device"),
            Kind::Disk => f.write_str("disk"),
            Kind::Anonymous => f.write_str("anonymous memory"),
        }
    }
}

/// Use of huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HugePages {
    /// They were asked for in the options.
    pub asked: bool,
    /// Bytes of the pool mapped by huge pages now.
    pub bytes: u64,
}

/// What a pool is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolInfo {
    /// The file or device; `None` for anonymous memory.
    pub path: Option<PathBuf>,
    /// What carries it.
    pub kind: Kind,
    /// Length in bytes.
    pub len: u64,
    /// The domain in force.
    pub domain: Domain,
    /// The domain that was detected; eADR cannot be seen from user space, so persistent memory
    /// is `line` unless forced.
    pub detected: Domain,
    /// The domain was given in the options.
    pub forced: bool,
    /// The instruction that `flush` uses in this domain.
    pub flush: FlushInstruction,
    /// Huge pages.
    pub huge_pages: HugePages,
    /// Hardware transactions on this processor.
    pub rtm: Rtm,
    /// Mapped for reading only.
    pub read_only: bool,
    /// The image may lack blocks; `back` adds them.
    pub sparse: bool,
    /// How I/O is done, if not by the host by itself.
    pub io: Option<String>,
}

impl fmt::Display for PoolInfo {
    /// A line per fact.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => writeln!(f, "pool: {} ({})", path.display(), self.kind)?,
            None => writeln!(f, "pool: {}", self.kind)?,
        }
        let how = if self.forced { "forced" } else { "detected" };
        writeln!(
            f,
            "domain: {} ({how}; {})",
            self.domain,
            self.domain.survives()
        )?;
        writeln!(f, "flush instruction: {}", self.flush.name())?;
        if let Some(io) = &self.io {
            writeln!(f, "input and output: {io}")?;
        }
        let asked = if self.huge_pages.asked {
            "asked for"
        } else {
            "not asked for"
        };
        writeln!(
            f,
            "huge pages: {asked}, {} bytes mapped by them",
            self.huge_pages.bytes
        )?;
        write!(f, "hardware transactions: {}", self.rtm)
    }
}

/// Whether each page of a range of our address space is in memory or swapped out, which memory that
/// nobody has touched is not. `None`: the system does not tell.
pub(crate) fn present(address: std::ops::Range<usize>) -> Option<Vec<bool>> {
    const ENTRY: usize = 8;
    const PRESENT_OR_SWAPPED: u64 = 0b11 << 62;
    let page = PAGE as usize;
    if cfg!(miri) || rustix::param::page_size() != page {
        return None;
    }
    let mut entries = vec![0; address.len() / page * ENTRY];
    let pagemap = std::fs::File::open("/proc/self/pagemap").ok()?;
    let at = (address.start / page * ENTRY) as u64;
    pagemap.read_exact_at(&mut entries, at).ok()?;
    let (entries, _) = entries.as_chunks::<ENTRY>();
    let is_present = |entry: &[u8; ENTRY]| u64::from_ne_bytes(*entry) & PRESENT_OR_SWAPPED != 0;
    Some(entries.iter().map(is_present).collect())
}

/// Bytes of a range of our address space that are mapped by huge pages now.
pub(crate) fn huge_bytes(address: std::ops::Range<usize>) -> u64 {
    std::fs::read_to_string("/proc/self/smaps").map_or(0, |smaps| huge_bytes_in(&smaps, address))
}

fn huge_bytes_in(smaps: &str, address: std::ops::Range<usize>) -> u64 {
    let mut ours = false;
    let mut kib = 0;
    for line in smaps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let Some(first) = fields.next() else { continue };
        if let Some((start, _)) = first.split_once('-') {
            ours = usize::from_str_radix(start, 16).is_ok_and(|start| address.contains(&start));
        } else if ours {
            let huge = matches!(
                first,
                "AnonHugePages:"
                    | "ShmemPmdMapped:"
                    | "FilePmdMapped:"
                    | "Shared_Hugetlb:"
                    | "Private_Hugetlb:"
            );
            let value = fields.next().and_then(|value| value.parse::<u64>().ok());
            kib += value.filter(|_| huge).unwrap_or(0);
        }
    }
    kib * 1024
}
