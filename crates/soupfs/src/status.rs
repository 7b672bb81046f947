//! What a user may ask: of a mounted file system, and of an image that is not mounted.

use crate::commit::persister::Backlog;
use crate::image::{BadSuperblock, Superblock};
use crate::layout::{LINE, PAGE, state};
use crate::mount::SoupFs;
use crate::options::Mode;
use pmem::{Domain, Pool, Stats};
use std::time::Duration;

/// State of a mounted file system.
#[derive(Debug, Clone)]
pub struct Status {
    /// Identifier.
    pub uuid: [u8; 16],
    /// The user's name for it.
    pub label: String,
    /// When operations become durable.
    pub mode: Mode,
    /// What the medium promises.
    pub domain: Domain,
    /// How late the consistent view may be.
    pub bound: Duration,
    /// Threads that share the flushing of a batch.
    pub persisters: usize,
    /// Number of this mount.
    pub epoch: u64,
    /// Space: bytes in all.
    pub bytes: u64,
    /// Space: bytes free.
    pub bytes_free: u64,
    /// Inodes in DRAM.
    pub inodes_cached: u64,
    /// What is pending.
    pub backlog: Backlog,
    /// How late the consistent view is now: at most; zero when nothing is pending, and in mode
    /// `strong`.
    pub late: Duration,
    /// The medium's counters since the mount.
    pub medium: Stats,
    /// Lines found unreachable after an unclean shutdown and freed; `None` while still searching.
    pub reclaimed_lines: Option<u64>,
    /// Why the medium accepts no more changes.
    pub failed: Option<String>,
    /// Why the host gave no blocks for a sparse image when it was last asked: then there is less
    /// space than is free.
    pub host_full: Option<String>,
    /// What the user should know about how the mount went.
    pub notice: Option<String>,
}

impl SoupFs {
    /// State and figures.
    pub fn status(&self) -> Status {
        let s = &*self.shared;
        let backlog = s.persister.backlog();
        let late = match (s.options.mode, backlog.words) {
            // What waits are times of access, which no request promises.
            (_, 0) | (Mode::Strong, _) => 0,
            _ => self.now().0.saturating_sub(backlog.swept.0).max(0),
        };
        Status {
            late: Duration::from_nanos(late as u64),
            uuid: s.volume.superblock.uuid,
            label: s.volume.superblock.label.clone(),
            mode: s.options.mode,
            domain: s.volume.pool.domain(),
            bound: s.options.bound,
            persisters: s.persisters,
            epoch: s.epoch,
            bytes: s.volume.geometry().allocatable_pages() * PAGE,
            bytes_free: s.volume.alloc.free_lines() * LINE,
            inodes_cached: s.volume.inodes.len(),
            backlog,
            medium: s.volume.pool.stats(),
            reclaimed_lines: s.reclaimer.reclaimed(),
            failed: s.volume.pool.poisoned().map(|e| e.to_string()),
            host_full: s.volume.alloc.host_full(),
            notice: s.notice.clone(),
        }
    }
}

/// What `inspect` tells of an image that is not mounted.
#[derive(Debug, Clone)]
pub struct ImageInfo {
    /// The superblock.
    pub superblock: Superblock,
    /// The first superblock is damaged; its copy was used.
    pub damaged: Option<BadSuperblock>,
    /// Mounts for writing so far.
    pub epoch: u64,
    /// Unmounted cleanly.
    pub clean: bool,
    /// Free bytes as of the last clean unmount.
    pub bytes_free: u64,
}

/// Whether the last mount for writing ended well, or mkfs did, by the first bytes of an image: for
/// [`pmem::Options::ended_well`].
pub fn ended_well(head: &[u8]) -> bool {
    let word = |at: u64| {
        let bytes = head.get(at as usize..)?.first_chunk()?;
        Some(u64::from_le_bytes(*bytes))
    };
    let superblock = head.first_chunk().map(|b| Superblock::decode(b, u64::MAX));
    let epoch = word(state::EPOCH);
    matches!(superblock, Some(Ok(_))) && epoch.is_some() && word(state::CLEAN_EPOCH) == epoch
}

/// Read what an image is.
pub fn inspect(pool: &Pool) -> std::result::Result<ImageInfo, BadSuperblock> {
    let (superblock, damaged) = Superblock::find(pool)?;
    let epoch = pool.load(state::EPOCH);
    Ok(ImageInfo {
        superblock,
        damaged,
        epoch,
        clean: pool.load(state::CLEAN_EPOCH) == epoch,
        bytes_free: pool.load(state::FREE_LINES).saturating_mul(LINE),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{crash, mount, mounted};
    use pmem::HEAD_LEN;

    #[test]
    fn only_the_head_of_an_image_that_was_unmounted_says_so() {
        let (pool, fs) = mounted();
        let head = |pool: &Pool| pool.snapshot()[..HEAD_LEN].to_vec();
        assert!(!ended_well(&head(&pool)), "it is mounted");
        drop(fs);
        let mut clean = head(&pool);
        assert!(ended_well(&clean));
        let fs = mount(&pool);
        let (killed, _) = crash(&pool, fs);
        assert!(!ended_well(&head(&killed)), "it was killed");
        assert!(!ended_well(&clean[..PAGE as usize]), "there is no more");
        clean[8] ^= 1;
        assert!(!ended_well(&clean), "the superblock is damaged");
        assert!(!ended_well(&[0; HEAD_LEN]), "it is not formatted");
    }
}
