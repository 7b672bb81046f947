//! Making an empty file system: ext2, or with a journal ext3. It is laid out as mke2fs does it, and
//! has the features that can be written here; directories are linear.

mod files;
mod plan;

use block::{BlockError, Buffer, Disk, Wave};
use vfs::Time;
use zerocopy::IntoBytes;

use crate::fault::{Fault, injected};
use crate::features;
use crate::geometry::Geometry;
use crate::layout::{
    FIRST_INO, FLAG_SIGNED_HASH, GroupDescriptor, INODE_EXTRA_LEN, INODE_LEN, JOURNAL_INO, MAGIC,
    POINTERS, STATE_VALID, SUPERBLOCK_AT, SUPERBLOCK_LEN, Superblock,
};

/// What a new file system is given.
#[derive(Debug, Clone)]
pub struct FormatOptions {
    /// Identifier; random.
    pub uuid: [u8; 16],
    /// A name, at most 16 bytes.
    pub label: String,
    /// For whoever makes hash indexes of directories; random.
    pub hash_seed: [u8; 16],
    /// Now.
    pub time: Time,
    /// Owner of the root directory.
    pub owner: (u32, u32),
    /// The disk reads as zeros: inode tables and the journal need not be cleared.
    pub zeroed: bool,
    /// Bytes of a block: 1024, 2048 or 4096.
    pub block_size: u32,
    /// Bytes of an inode: 128, or 256 and more for nanoseconds and birth times.
    pub inode_size: u32,
    /// One inode for so many bytes of the disk: a block at least, and 64 MiB at most.
    pub bytes_per_inode: u32,
    /// With a journal, as ext3.
    pub journal: bool,
}

/// Why formatting failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Too small for what was asked, or not to be divided so.
    #[error("{0} bytes are too {1} for such a file system")]
    Size(u64, &'static str),
    /// The numbers of blocks have 32 bits.
    #[error(
        "{len} bytes are too large for such a file system: with its blocks it has {max} at most"
    )]
    Large {
        /// Bytes of the disk.
        len: u64,
        /// Bytes of the largest one.
        max: u64,
    },
    /// Too long.
    #[error("a label has at most 16 bytes, not {0}")]
    Label(usize),
    /// An option cannot be so.
    #[error("{0} cannot be {1}")]
    Option(&'static str, u32),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] BlockError),
}

/// Refuses a length that no such file system can have.
///
/// # Errors
/// The options do not fit the length, or each other.
pub fn check_len(len: u64, options: &FormatOptions) -> Result<(), FormatError> {
    plan::geometry(len, options).map(drop)
}

/// Makes an empty file system. The superblock is written last: a crash before leaves none.
///
/// # Errors
/// The options do not fit each other or the disk; or that failed.
pub fn format(disk: &Disk, options: &FormatOptions) -> Result<(), FormatError> {
    if options.label.len() > 16 {
        return Err(FormatError::Label(options.label.len()));
    }
    let geometry = plan::geometry(disk.len(), options)?;
    let mut space = Space::new(geometry);
    let mut out = Writer::new(disk, options.block_size);
    // Whatever was there before is no file system any more.
    out.write_bytes(0, &[0; SUPERBLOCK_AT as usize + SUPERBLOCK_LEN])?;
    out.flush(Some(Fault::FormatOldUnflushed))?;

    clear_tables(disk, &space.geometry, options.zeroed)?;
    let files = files::make(disk, &mut space, &mut out, options)?;
    let superblock = superblock(&space, options, &files);
    write_groups(&space, &mut out, &superblock)?;
    out.flush(Some(Fault::FormatUnflushed))?;
    out.write_bytes(SUPERBLOCK_AT, superblock.as_bytes())?;
    // Commit point.
    Ok(out.flush(Some(Fault::FormatEndUnflushed))?)
}

/// Makes the inode tables read as zeros.
fn clear_tables(disk: &Disk, geometry: &Geometry, zeroed: bool) -> Result<(), BlockError> {
    let block_size = u64::from(geometry.block_size);
    let len = u64::from(geometry.table_blocks()) * block_size;
    for group in (0..geometry.groups).filter(|_| !zeroed) {
        disk.zero(Parts::of(geometry, group).inode_table * block_size, len)?;
    }
    Ok(())
}

/// Where the parts of a new group lie: at its beginning, in this order.
struct Parts {
    block_bitmap: u64,
    inode_bitmap: u64,
    inode_table: u64,
    /// The first block that is free for files.
    free: u64,
}

impl Parts {
    fn of(geometry: &Geometry, group: u32) -> Parts {
        let first = geometry.group_start(group) + geometry.superblock_blocks(group);
        Parts {
            block_bitmap: first,
            inode_bitmap: first + 1,
            inode_table: first + 2,
            free: first + 2 + u64::from(geometry.table_blocks()),
        }
    }
}

/// The blocks of a new file system: in each group a part at the beginning is in use.
struct Space {
    geometry: Geometry,
    /// Blocks in use of each group.
    used: Vec<u32>,
    /// The first group that may have a free block.
    group: usize,
}

impl Space {
    fn new(geometry: Geometry) -> Space {
        let used = |group| (Parts::of(&geometry, group).free - geometry.group_start(group)) as u32;
        let used = (0..geometry.groups).map(used).collect();
        Space {
            geometry,
            used,
            group: 0,
        }
    }

    /// Takes a block.
    fn take(&mut self) -> Result<u32, FormatError> {
        while self.group < self.used.len() {
            let (group, used) = (self.group as u32, self.used[self.group]);
            if used < self.geometry.group_blocks(group) {
                self.used[self.group] += 1;
                return Ok((self.geometry.group_start(group) + u64::from(used)) as u32);
            }
            self.group += 1;
        }
        let len = self.geometry.blocks * u64::from(self.geometry.block_size);
        Err(FormatError::Size(len, "small"))
    }

    fn free(&self, group: u32) -> u32 {
        self.geometry.group_blocks(group) - self.used[group as usize]
    }

    /// Inodes in use of a group: the reserved ones and lost+found.
    fn inodes_used(&self, group: u32) -> u32 {
        if group == 0 { FIRST_INO } else { 0 }
    }
}

fn superblock(space: &Space, options: &FormatOptions, files: &files::Files) -> Superblock {
    let g = &space.geometry;
    let now = (options.time.secs() as u32).into();
    let free: u64 = (0..g.groups)
        .map(|group| u64::from(space.free(group)))
        .sum();
    let extra = match g.inode_size as usize > INODE_LEN {
        true => (INODE_EXTRA_LEN as u16).into(),
        false => 0.into(),
    };
    let mut superblock = Superblock {
        inodes_count: g.inodes.into(),
        blocks_count_lo: (g.blocks as u32).into(),
        // For root, as with mke2fs.
        r_blocks_count_lo: ((g.blocks * 5 / 100) as u32).into(),
        free_blocks_count_lo: (free as u32).into(),
        free_inodes_count: (g.inodes - FIRST_INO).into(),
        first_data_block: (g.first_block as u32).into(),
        log_block_size: (g.block_size / 1024).ilog2().into(),
        log_cluster_size: (g.block_size / 1024).ilog2().into(),
        blocks_per_group: g.blocks_per_group.into(),
        clusters_per_group: g.blocks_per_group.into(),
        inodes_per_group: g.inodes_per_group.into(),
        wtime: now,
        max_mnt_count: u16::MAX.into(),
        magic: MAGIC.into(),
        state: STATE_VALID.into(),
        // What the kernel does about errors: it goes on.
        errors: 1.into(),
        lastcheck: now,
        rev_level: 1.into(),
        first_ino: FIRST_INO.into(),
        inode_size: (g.inode_size as u16).into(),
        feature_compat: g.features.compat.into(),
        feature_incompat: g.features.incompat.into(),
        feature_ro_compat: g.features.ro_compat.into(),
        uuid: options.uuid,
        reserved_gdt_blocks: (g.reserved_descriptor_blocks as u16).into(),
        hash_seed: options.hash_seed,
        // Half MD4, as with mke2fs.
        def_hash_version: 1,
        // The kernel's ext4 driver is to allow extended attributes of users, and ACLs.
        default_mount_opts: 0xC.into(),
        mkfs_time: now,
        min_extra_isize: extra,
        want_extra_isize: extra,
        flags: FLAG_SIGNED_HASH.into(),
        overhead_clusters: ((g.overhead() + files.journal_blocks) as u32).into(),
        ..Superblock::default()
    };
    superblock.volume_name[..options.label.len()].copy_from_slice(options.label.as_bytes());
    if let Some(journal) = &files.journal {
        superblock.journal_inum = JOURNAL_INO.into();
        // A copy of the inode, for when that is damaged.
        superblock.jnl_backup_type = 1;
        let copy = &mut superblock.jnl_blocks;
        for (to, pointer) in copy.iter_mut().zip(journal.pointers) {
            *to = pointer.into();
        }
        copy[POINTERS] = ((journal.size >> 32) as u32).into();
        copy[POINTERS + 1] = (journal.size as u32).into();
    }
    superblock
}

/// Writes bitmaps and descriptors, and the copies of the superblock and of the descriptors.
fn write_groups(
    space: &Space,
    out: &mut Writer<'_>,
    superblock: &Superblock,
) -> Result<(), BlockError> {
    let g = &space.geometry;
    let mut descriptors = Vec::new();
    for group in 0..g.groups {
        let parts = Parts::of(g, group);
        let used = space.used[group as usize];
        out.write(parts.block_bitmap, &bitmap(g, used, g.group_blocks(group)))?;
        let used = space.inodes_used(group);
        out.write(parts.inode_bitmap, &bitmap(g, used, g.inodes_per_group))?;
        let descriptor = GroupDescriptor {
            block_bitmap_lo: (parts.block_bitmap as u32).into(),
            inode_bitmap_lo: (parts.inode_bitmap as u32).into(),
            inode_table_lo: (parts.inode_table as u32).into(),
            free_blocks_count_lo: (space.free(group) as u16).into(),
            free_inodes_count_lo: ((g.inodes_per_group - used) as u16).into(),
            // The root directory and lost+found.
            used_dirs_count_lo: if group == 0 { 2 } else { 0 }.into(),
            ..GroupDescriptor::default()
        };
        descriptors.extend_from_slice(descriptor.as_bytes());
    }
    for group in (0..g.groups).filter(|&group| g.has_superblock(group)) {
        let start = g.group_start(group);
        if group > 0 {
            // A copy says of itself that it may be out of date.
            let copy = Superblock {
                state: 0.into(),
                block_group_nr: (group as u16).into(),
                ..superblock.clone()
            };
            out.write(start, copy.as_bytes())?;
        }
        for (block, part) in (start + 1..).zip(descriptors.chunks(g.block_size as usize)) {
            out.write(block, part)?;
        }
    }
    Ok(())
}

/// A bitmap of which the first `used` of `len` bits are set; those behind, which stand for nothing,
/// are, too.
fn bitmap(geometry: &Geometry, used: u32, len: u32) -> Vec<u8> {
    let mut bytes = vec![0_u8; geometry.block_size as usize];
    for bit in (0..used).chain(len..geometry.block_size * 8) {
        bytes[bit as usize / 8] |= 1 << (bit % 8);
    }
    bytes
}

/// Writes to a disk, many blocks at once.
struct Writer<'a> {
    disk: &'a Disk,
    block_size: u32,
    gathered: Vec<(u64, Buffer)>,
}

impl Writer<'_> {
    /// Writes that are gathered before they are made.
    const GATHERED_MAX: usize = 512;

    fn new(disk: &Disk, block_size: u32) -> Writer<'_> {
        Writer {
            disk,
            block_size,
            gathered: Vec::new(),
        }
    }

    /// Writes a block, or the beginning of one: zeros follow.
    fn write(&mut self, block: u64, bytes: &[u8]) -> Result<(), BlockError> {
        let mut buffer = Buffer::zeroed(self.block_size as usize);
        buffer[..bytes.len()].copy_from_slice(bytes);
        self.add(block * u64::from(self.block_size), buffer)
    }

    /// Writes whole sectors at a byte offset.
    fn write_bytes(&mut self, at: u64, bytes: &[u8]) -> Result<(), BlockError> {
        self.add(at, Buffer::copy_of(bytes))
    }

    fn add(&mut self, at: u64, buffer: Buffer) -> Result<(), BlockError> {
        self.gathered.push((at, buffer));
        match self.gathered.len() {
            // To be of bounded size: what it belongs to is flushed behind it.
            Self::GATHERED_MAX => self.flush(None),
            _ => Ok(()),
        }
    }

    /// Makes durable what was written, unless the bug is that this is not flushed.
    fn flush(&mut self, unflushed: Option<Fault>) -> Result<(), BlockError> {
        let gathered = std::mem::take(&mut self.gathered);
        if unflushed.is_some_and(injected) {
            let mut writes = gathered.into_iter();
            return writes.try_for_each(|(at, buffer)| self.disk.write(at, vec![buffer]).map(drop));
        }
        let mut wave = Wave::new();
        for (at, buffer) in gathered {
            wave.write(at, buffer);
        }
        self.disk.commit(wave).map(drop)
    }
}

/// What every new file system has, and a few of its features.
fn features(options: &FormatOptions) -> crate::features::Features {
    let journal = match options.journal {
        true => features::HAS_JOURNAL,
        false => 0,
    };
    features::Features {
        compat: features::EXT_ATTR | features::RESIZE_INODE | journal,
        ro_compat: features::SPARSE_SUPER | features::LARGE_FILE,
        incompat: features::FILETYPE,
    }
}
