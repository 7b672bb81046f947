//! The operations of [`vfs::FileSystem`]. So far those that read; all others are `EROFS`.

use std::ops::Range;

use vfs::{
    Also, At, Attr, Capabilities, Change, DirEntry, Errno, Error, Fallocate, FileSystem, Fsync,
    Ino, Kind, Limits, NewNode, Place, RenameMode, Result, SeekFor, StatFs, Veto,
};

use crate::dir::{self, Found, Index};
use crate::features;
use crate::file;
use crate::inode::{Inode, Node};
use crate::layout::DIRECT;
use crate::mount::Ffs;

/// Most names of an inode.
const LINK_MAX: u32 = 32_000;

impl Ffs {
    /// The entry of a name, `.` and `..` too.
    fn find(&self, dir: &Node, name: &[u8]) -> Result<Found> {
        if dir.stored.attributes.kind != Kind::Dir {
            return Err(Errno::NOTDIR.into());
        }
        let key = &self.options.hash_key;
        let index = match dir.index.get() {
            Some(index) => index,
            None => {
                let read = Index::new(&self.medium, &dir.stored, key)?;
                dir.index.get_or_init(|| read)
            }
        };
        index.find(&self.medium, &dir.stored, key, name)
    }

    /// The inode that a name of a directory refers to.
    fn follow(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        let found = self.find(dir, name)?;
        let node = self.named(dir.stored.at, found.ino)?;
        let kind = node.stored.attributes.kind;
        match found.kind {
            Some(other) if other != kind => {
                let (ino, dir) = (found.ino, &dir.stored);
                let what = format_args!(
                    "directory {}: a name says that inode {ino} is a {other:?}, not a {kind:?}",
                    dir.ino
                );
                Err(self.medium.geometry.damage(dir.at, what))
            }
            _ => Ok(node),
        }
    }

    /// The largest size of a file, in bytes: what pointers reach, and what a count of sectors in 32
    /// bits may say.
    fn file_max(&self) -> u64 {
        let geometry = &self.medium.geometry;
        let per_block = geometry.pointers_per_block();
        let reached = DIRECT as u64 + per_block + per_block.pow(2) + per_block.pow(3);
        let bytes = reached * u64::from(geometry.block_size);
        match geometry.features.ro_compat & features::HUGE_FILE {
            0 => bytes.min(u64::from(u32::MAX) * 512),
            _ => bytes.max(u64::from(u32::MAX) * u64::from(geometry.block_size)),
        }
    }
}

fn refuse<T>() -> Result<T> {
    Err(Errno::ROFS.into())
}

/// Of a file; else what the call has for other kinds.
fn check_file(node: &Node) -> Result<()> {
    match node.stored.attributes.kind {
        Kind::File => Ok(()),
        Kind::Dir => Err(Errno::ISDIR.into()),
        _ => Err(Errno::INVAL.into()),
    }
}

impl FileSystem for Ffs {
    type Node = Node;

    fn limits(&self) -> Limits {
        let block_size = self.medium.geometry.block_size as usize;
        Limits {
            name_max: vfs::NAME_MAX,
            symlink_max: (block_size - 1).min(vfs::PATH_MAX - 1),
            link_max: LINK_MAX,
            file_max: self.file_max(),
            xattr_size_max: block_size,
            xattr_list_max: block_size,
            capabilities: Capabilities::XATTRS,
        }
    }

    fn root(&self) -> Node {
        self.root.clone()
    }

    fn node(&self, ino: Ino) -> Result<Node> {
        let stale = || vfs::Error::from(Errno::STALE);
        let number = u32::try_from(ino).map_err(|_| stale())?;
        self.inodes.get(number, || {
            let stored = self.medium.inode(number)?;
            stored.map(Inode::new).ok_or_else(stale)
        })
    }

    fn ino(&self, node: &Node) -> Ino {
        node.stored.ino.into()
    }

    fn attr(&self, node: &Node) -> Attr {
        let stored = &node.stored;
        stored.attributes.attr(stored.ino, node.has_xattrs())
    }

    fn lookup(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        self.follow(dir, name)
    }

    fn parent(&self, dir: &Node) -> Result<Node> {
        let parent = match self.follow(dir, b"..") {
            Err(Error::Errno(Errno::NOENT)) => None,
            Err(error) => return Err(error),
            Ok(parent) => Some(parent),
        };
        parent
            .filter(|parent| parent.stored.attributes.kind == Kind::Dir)
            .ok_or_else(|| {
                let dir = &dir.stored;
                let what = format_args!("directory {}: '..' leads to no directory", dir.ino);
                self.medium.geometry.damage(dir.at, what)
            })
    }

    fn create(&self, _: &Node, _: &[u8], _: &NewNode<'_>) -> Result<Node> {
        refuse()
    }

    fn tmpfile(&self, _: &Node, _: &NewNode<'_>) -> Result<Node> {
        refuse()
    }

    fn link(&self, _: &Node, _: &Node, _: &[u8]) -> Result<()> {
        refuse()
    }

    fn unlink(&self, _: &Node, _: &[u8], _: Veto<'_>) -> Result<()> {
        refuse()
    }

    fn rmdir(&self, _: &Node, _: &[u8], _: Veto<'_>) -> Result<()> {
        refuse()
    }

    fn rename(
        &self,
        _: Place<'_, Node>,
        _: Place<'_, Node>,
        _: RenameMode,
        _: Veto<'_>,
    ) -> Result<()> {
        refuse()
    }

    fn readlink(&self, node: &Node) -> Result<Vec<u8>> {
        let attributes = &node.stored.attributes;
        if attributes.kind != Kind::Symlink {
            return Err(Errno::INVAL.into());
        }
        // Less than a block: the size was checked.
        let len = attributes.size as usize;
        if attributes.is_fast_symlink() {
            return Ok(attributes.pointer_bytes()[..len].to_vec());
        }
        let mut target = vec![0; len];
        file::read(&self.medium, &node.stored, 0, &mut target)?;
        Ok(target)
    }

    fn readdir(
        &self,
        dir: &Node,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if dir.stored.attributes.kind != Kind::Dir {
            return Err(Errno::NOTDIR.into());
        }
        let first = cookie.checked_sub(vfs::COOKIE_FIRST);
        let from = first.map_or(0, |offset| offset.saturating_add(1));
        let mut failed = Ok(());
        dir::scan(&self.medium, &dir.stored, from, &mut |offset, entry| {
            if entry.name == b"." || entry.name == b".." {
                return true;
            }
            let kind = entry.kind.map_or_else(
                || {
                    let node = self.named(dir.stored.at, entry.ino)?;
                    Ok(node.stored.attributes.kind)
                },
                Ok,
            );
            match kind {
                Ok(kind) => emit(DirEntry {
                    ino: entry.ino.into(),
                    kind,
                    name: entry.name,
                    cookie: vfs::COOKIE_FIRST + offset,
                }),
                Err(error) => {
                    failed = Err(error);
                    false
                }
            }
        })?;
        failed
    }

    fn read(&self, node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        check_file(node)?;
        file::read(&self.medium, &node.stored, offset, buf)
    }

    fn write_with(&self, _: &Node, _: u64, _: &[u8], _: Also<'_>) -> Result<usize> {
        refuse()
    }

    fn append_with(&self, _: &Node, _: &[u8], _: Also<'_>) -> Result<(u64, usize)> {
        refuse()
    }

    fn apply(&self, _: &Node, _: &Change<'_>) -> Result<Attr> {
        refuse()
    }

    fn fallocate_with(&self, _: &Node, _: Fallocate, _: Range<u64>, _: Also<'_>) -> Result<()> {
        refuse()
    }

    fn seek(&self, node: &Node, offset: u64, what: SeekFor) -> Result<u64> {
        check_file(node)?;
        file::seek(&self.medium, &node.stored, offset, what)
    }

    fn copy_range_with(
        &self,
        _: At<'_, Node>,
        _: At<'_, Node>,
        _: u64,
        _: Also<'_>,
    ) -> Result<u64> {
        refuse()
    }

    fn getxattr(&self, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        let found = self.xattrs(node)?.into_iter().find(|xattr| xattr.0 == name);
        found.map(|xattr| xattr.1).ok_or(Errno::NODATA.into())
    }

    fn listxattr(&self, node: &Node) -> Result<Vec<Vec<u8>>> {
        let names = self.xattrs(node)?.into_iter();
        Ok(names.map(|xattr| xattr.0).collect())
    }

    fn fsync(&self, _: &Node, _: Fsync) -> Result<()> {
        Ok(())
    }

    fn syncfs(&self) -> Result<()> {
        Ok(())
    }

    fn statfs(&self) -> StatFs {
        let (geometry, superblock) = (&self.medium.geometry, &self.superblock);
        let (low, high) = superblock.uuid.split_at(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let blocks = geometry.blocks.saturating_sub(geometry.overhead());
        let high_free = match geometry.features.incompat & features::BIT64 {
            0 => 0,
            _ => u64::from(superblock.free_blocks_count_hi.get()) << 32,
        };
        let free = high_free | u64::from(superblock.free_blocks_count_lo.get());
        StatFs {
            block_size: geometry.block_size,
            blocks,
            free: free.min(blocks),
            files: geometry.inodes.into(),
            files_free: superblock
                .free_inodes_count
                .get()
                .min(geometry.inodes)
                .into(),
            fsid: word(low) ^ word(high),
        }
    }
}
