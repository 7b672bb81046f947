//! A check of a file system that is in use (paper section 7: the background check on a snapshot).
//!
//! ```text
//! a temporary snapshot: everything at one moment, with nothing pending and no open nameless inodes
//! the check of it, in steps, which nobody waits for
//! the snapshot goes
//! what was found is repaired by deltas, as operations: see `reclaim`
//! ```
//!
//! It finds what no crash leaves, too. Then nothing is repaired, and who wanted repairs has the
//! superblock ask for a check of the image when it is not mounted.

use std::sync::Arc;

use block::Buffer;
use vfs::{Error, Result};

use crate::check::{Moment, Report, Scan, Source};
use crate::fault::Fault;
use crate::layout::STATE_ERROR;
use crate::mount::Ffs;
use crate::snapshots::SnapshotError;
use crate::view::View;

/// The name of the snapshot that is checked.
const NAME: &str = ".fsck";

/// Why a file system in use was not checked.
#[derive(Debug, thiserror::Error)]
pub enum LiveCheckError {
    /// One at a time.
    #[error("a check is under way")]
    Busy,
    /// The caller did not want more.
    #[error("the check was ended")]
    Ended,
    /// There is no snapshot to be checked.
    #[error("it is checked by a snapshot, which cannot be made: {0}")]
    Snapshot(#[from] SnapshotError),
    /// The disk failed.
    #[error(transparent)]
    Fs(#[from] Error),
}

/// Told what is being done, how much of it is done, and how much there is; whether to go on.
pub type GoOn<'a> = &'a dyn Fn(&'static str, u64, u64) -> bool;

/// A snapshot, as the check reads it.
struct Blocks {
    view: View,
    block_size: u32,
}

impl Source for Blocks {
    fn read(&self, first: u64, blocks: u32) -> Result<Buffer> {
        let mut bytes = Buffer::zeroed((blocks * self.block_size) as usize);
        let at = first * u64::from(self.block_size);
        self.view.read(at, &mut bytes).map(|()| bytes)
    }
}

impl Ffs {
    /// Checks the file system as it is at some moment of this call, while it is in use; with
    /// `repair`, repairs what can be repaired meanwhile, or, if something cannot be, nothing: then
    /// the superblock asks for a check. No lock is held but for the repairs, which are operations.
    ///
    /// # Errors
    /// It is being checked, or has no snapshots; there is no space for one; the disk failed. What
    /// was repaired until then is.
    pub fn check_live(
        &self,
        repair: bool,
        go_on: GoOn<'_>,
    ) -> std::result::Result<Report, LiveCheckError> {
        let _checking = self.checking.try_lock().ok_or(LiveCheckError::Busy)?;
        // What a crash lost is found by the reclaim, with the inodes that it follows.
        self.reclaim()?;
        let frozen = self.volume.medium.cache.frozen();
        frozen.follow();
        let checked = self.check_snapshot(go_on);
        let checked = checked.and_then(|mut report| {
            if !repair || report.findings.is_empty() {
                return Ok(report);
            }
            if report.needs_unmount() {
                self.store_superblock(Some(Fault::LiveDamageUnflushed), |superblock, _| {
                    superblock.state = (superblock.state.get() | STATE_ERROR).into();
                })?;
            } else {
                self.repair(&report, go_on)?;
                report.repaired = true;
            }
            Ok(report)
        });
        frozen.end();
        checked
    }

    fn check_snapshot(&self, go_on: GoOn<'_>) -> std::result::Result<Report, LiveCheckError> {
        self.create_snapshot(NAME, true)?;
        let report = self.scan(go_on);
        let deleted = self.delete_snapshot(NAME);
        let report = report?;
        deleted?;
        Ok(report)
    }

    fn scan(&self, go_on: GoOn<'_>) -> std::result::Result<Report, LiveCheckError> {
        let geometry = self.volume.medium.geometry.clone();
        let view = self.view(NAME)?;
        let block_size = geometry.block_size;
        let moment = Moment {
            is_crash: false,
            held: Default::default(),
            dirs: None,
        };
        let source = Arc::new(Blocks { view, block_size });
        let mut scan = Scan::new(source, geometry, self.volume.clock.now(), moment);
        loop {
            let (stage, done, total) = scan.progress();
            if !go_on(stage, done, total) {
                return Err(LiveCheckError::Ended);
            }
            if let Some(report) = scan.step()? {
                return Ok(report);
            }
        }
    }

    fn repair(&self, report: &Report, go_on: GoOn<'_>) -> std::result::Result<(), LiveCheckError> {
        let findings = report.findings.clone();
        self.reclaim.begin_repairs(&self.volume, findings)?;
        while self.reclaim_step()? {
            let progress = self.reclaim.progress();
            // They are not left half done: what is left would be found again, and is little.
            go_on("repairs", progress.done, progress.total);
        }
        match self.reclaim.has_ended() {
            true => Ok(()),
            false => Err(LiveCheckError::Ended),
        }
    }
}
