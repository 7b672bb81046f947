//! The journal of an image as what makes the transactions of a mount durable.

use std::sync::Arc;

use vfs::Clock;

use crate::features;
use crate::geometry::{Geometry, MountError};
use crate::journal::log::{DataMode, Log};
use crate::layout::Superblock;
use crate::medium::Medium;
use crate::order::{self, Mode, Order};
use crate::snapshot::COUNT_MAX;
use crate::transaction::TransactionStore;

/// Begins to use the journal, if the mode wants it: from here on the superblock says that it has to
/// be replayed.
///
/// # Errors
/// There is none, it has too little room for what operations may change, or it is not supported;
/// the disk failed.
pub fn open(
    mut medium: Medium,
    superblock: &mut Superblock,
    mode: Mode,
    clock: &Arc<dyn Clock>,
) -> Result<(Medium, Option<Arc<Log>>), MountError> {
    let data = match mode {
        Mode::Async | Mode::Soft | Mode::Sync => return Ok((medium, None)),
        Mode::Ordered => DataMode::Ordered,
        Mode::Journal => DataMode::Journaled,
    };
    if medium.geometry.features.compat & features::HAS_JOURNAL == 0 {
        return Err(MountError::NoJournal);
    }
    let log = Arc::new(Log::open(&medium, superblock, data, clock.clone())?);
    let have = log.capacity();
    // A transaction may change the inode of each snapshot, beside what operations change.
    let reserved = reserved(&medium.geometry) + COUNT_MAX;
    medium.cache = medium.cache.journaled(log.clone(), reserved);
    let need = reserved + order::operation_blocks(&medium.cache);
    if have < need {
        log.close(medium.cache.disk(), superblock)?;
        return Err(MountError::JournalTooSmall { need, have });
    }
    medium.order = Order::journal();
    Ok((medium, Some(log)))
}

/// Blocks of what completes a transaction: counts of groups, and the superblock.
pub fn reserved(geometry: &Geometry) -> usize {
    geometry.descriptor_blocks() as usize + 1
}
