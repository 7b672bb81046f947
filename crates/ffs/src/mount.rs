//! A mount's life. So far a mount is for reading.

use block::{Buffer, Disk};
use vfs::{Error, Result};
use zerocopy::FromBytes;

use crate::cache::Cache;
use crate::geometry::{Geometry, MountError};
use crate::image::{StoredInode, xattr};
use crate::inode::{Inode, Node};
use crate::inode_table::InodeTable;
use crate::layout::{ROOT_INO, SUPERBLOCK_AT, SUPERBLOCK_LEN, Superblock};
use crate::medium::Medium;

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Key of the hash of names: random and secret.
    pub hash_key: [u8; 16],
    /// Most bytes of blocks that are kept in DRAM.
    pub cache_bytes: usize,
}

/// A mounted file system, for reading.
pub struct Ffs {
    pub(crate) medium: Medium,
    pub(crate) superblock: Superblock,
    pub(crate) inodes: InodeTable,
    pub(crate) root: Node,
    pub(crate) options: MountOptions,
}

impl Ffs {
    /// Mounts what is on a disk, for reading. Nothing is written.
    ///
    /// # Errors
    /// It is no file system of ext2, ext3 or ext4, or one with features that are not supported, or
    /// a damaged one; or the disk failed.
    pub fn mount(disk: Disk, options: MountOptions) -> std::result::Result<Ffs, MountError> {
        let superblock = superblock(&disk)?;
        let geometry = Geometry::new(&superblock, disk.len())?;
        let cache = Cache::new(disk, geometry.block_size, options.cache_bytes);
        let medium = Medium { geometry, cache };
        let inodes = InodeTable::default();
        let root = inodes.get(ROOT_INO, || read_root(&medium))?;
        Ok(Ffs {
            medium,
            superblock,
            inodes,
            root,
            options,
        })
    }

    /// The inode of this number, that something in block `holder` names.
    pub(crate) fn named(&self, holder: u64, ino: u32) -> Result<Node> {
        self.inodes.get(ino, || match self.medium.inode(ino)? {
            Some(stored) => Ok(Inode::new(stored)),
            None => {
                let what = format_args!("a name leads to inode {ino}, which is free");
                Err(self.medium.geometry.damage(holder, what))
            }
        })
    }

    /// All extended attributes of an inode.
    pub(crate) fn xattrs(&self, node: &Node) -> Result<Vec<xattr::Xattr>> {
        crate::xattr::all(&self.medium, &node.stored)
    }
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

fn read_root(medium: &Medium) -> Result<Inode> {
    let is_dir = |root: &StoredInode| root.attributes.kind == vfs::Kind::Dir;
    match medium.inode(ROOT_INO)? {
        Some(root) if is_dir(&root) => Ok(Inode::new(root)),
        _ => {
            let at = medium.group(0)?.inode_table;
            let what = format_args!("inode {ROOT_INO}, the root, is no directory");
            Err(medium.geometry.damage(at, what))
        }
    }
}
