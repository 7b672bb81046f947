//! What an image says of itself: its superblock.

use block::{Buffer, Disk};
use vfs::{Error, Time};
use zerocopy::FromBytes;

use crate::fault::{Fault, injected};
use crate::features::{self, Features};
use crate::geometry::{Geometry, MountError};
use crate::layout::{MAGIC, STATE_ERROR, STATE_VALID, SUPERBLOCK_AT, SUPERBLOCK_LEN, Superblock};

/// What a superblock says. Numbers are as they were when it was last written.
#[derive(Debug, Clone)]
pub struct Info {
    /// Identifier.
    pub uuid: [u8; 16],
    /// A name for people.
    pub label: String,
    /// When it was made.
    pub created: Time,
    /// Mounts for writing since the last full check.
    pub mounts: u16,
    /// It was unmounted, no error was found, and no journal has to be replayed.
    pub clean: bool,
    /// Size.
    pub bytes: u64,
    /// Of it free.
    pub bytes_free: u64,
    /// All inodes.
    pub inodes: u32,
    /// Of them free.
    pub inodes_free: u32,
    /// Bytes of a block.
    pub block_size: u64,
    /// What it makes use of.
    pub features: Features,
    /// Why it cannot be mounted, not even for reading.
    pub obstacle: Option<MountError>,
}

impl Info {
    /// The features for which it can only be read.
    pub fn read_only(&self) -> Vec<String> {
        let features = Features {
            incompat: self.features.incompat & !features::NEEDS_RECOVERY,
            ..self.features
        };
        features.read_only()
    }

    /// What is wrong with the superblock.
    pub fn damage(&self) -> Option<String> {
        match &self.obstacle {
            Some(MountError::Failed(error)) => Some(error.to_string()),
            _ => None,
        }
    }
}

/// What the image on a disk says of itself.
///
/// # Errors
/// It is no file system of ext2, ext3 or ext4, or the device failed.
pub fn inspect(disk: &Disk) -> Result<Info, MountError> {
    let superblock = superblock(disk)?;
    if superblock.magic.get() != MAGIC {
        return Err(MountError::NotOurs(superblock.magic.get()));
    }
    let features = Features::of(&superblock);
    let replay = features.incompat & features::NEEDS_RECOVERY != 0;
    // A replay takes it away.
    let mut replayed = superblock.clone();
    replayed.feature_incompat =
        (superblock.feature_incompat.get() & !features::NEEDS_RECOVERY).into();
    let state = superblock.state.get() & (STATE_VALID | STATE_ERROR);
    let wide = features.incompat & features::BIT64 != 0;
    let count = |low: u32, high: u32| match wide {
        true => u64::from(high) << 32 | u64::from(low),
        false => low.into(),
    };
    let block_size = 1024_u64 << superblock.log_block_size.get().min(6);
    let blocks = count(
        superblock.blocks_count_lo.get(),
        superblock.blocks_count_hi.get(),
    );
    let free = count(
        superblock.free_blocks_count_lo.get(),
        superblock.free_blocks_count_hi.get(),
    );
    Ok(Info {
        uuid: superblock.uuid,
        label: label(&superblock),
        created: Time::new(superblock.mkfs_time.get().into(), 0),
        mounts: superblock.mnt_count.get(),
        clean: state == STATE_VALID && !replay,
        bytes: blocks.saturating_mul(block_size),
        bytes_free: free.saturating_mul(block_size),
        inodes: superblock.inodes_count.get(),
        inodes_free: superblock.free_inodes_count.get(),
        block_size,
        features,
        obstacle: Geometry::new(&replayed, disk.len()).err(),
    })
}

/// The name for people.
pub(crate) fn label(superblock: &Superblock) -> String {
    let name = &superblock.volume_name;
    let len = name.iter().position(|&byte| byte == 0);
    String::from_utf8_lossy(&name[..len.unwrap_or(name.len())]).into_owned()
}

/// Reads the superblock.
///
/// # Errors
/// The device is too short, or failed.
pub fn superblock(disk: &Disk) -> std::result::Result<Superblock, MountError> {
    if disk.len() < SUPERBLOCK_AT + SUPERBLOCK_LEN as u64 {
        return Err(MountError::TooSmall(disk.len()));
    }
    let read = disk.read(SUPERBLOCK_AT, vec![Buffer::zeroed(SUPERBLOCK_LEN)]);
    let read = read.map_err(|error| Error::medium(error.to_string()))?;
    Ok(Superblock::read_from_bytes(&read[0]).expect("of that size"))
}

/// Makes durable what is visible, before anything is written that relies on it: a killed process
/// may have written it, and a power cut could still take that away (B9).
///
/// # Errors
/// The disk failed.
pub(crate) fn make_durable(disk: &Disk) -> std::result::Result<(), MountError> {
    if injected(Fault::KilledBelieved) {
        return Ok(());
    }
    let flushed = disk.flush();
    Ok(flushed.map_err(|error| Error::medium(error.to_string()))?)
}
