//! The operations of [`vfs::FileSystem`].

use std::ops::Range;
use std::sync::Arc;

use vfs::{
    Also, At, Attr, Capabilities, Change, DirEntry, Errno, Fallocate, FileSystem, Fsync, Ino, Kind,
    Limits, NewNode, Place, RenameMode, Result, SeekFor, StatFs, Veto,
};

use crate::contents::{check_file, check_name};
use crate::dir;
use crate::file;
use crate::inode::{Node, State};
use crate::layout::XATTR_HEADER_LEN;
use crate::mount::Ffs;
use crate::namespace::{LINK_MAX, check_dir, check_there};
use crate::snapshot::{DIR_NAME, Snapshot};

/// Bytes that one `copy_range` copies at most.
const COPY_MAX: u64 = 1 << 20;

impl FileSystem for Ffs {
    type Node = Node;

    fn limits(&self) -> Limits {
        let block_size = self.volume.medium.geometry.block_size as usize;
        let (xattr_size_max, xattr_list_max) = self.volume.xattr_max();
        Limits {
            name_max: vfs::NAME_MAX,
            symlink_max: (block_size - 1).min(vfs::PATH_MAX - 1),
            link_max: LINK_MAX.into(),
            file_max: self.volume.size_max(),
            xattr_size_max,
            xattr_list_max,
            // A block's, but for what it begins and ends with.
            xattr_room: block_size - XATTR_HEADER_LEN - 4,
            capabilities: Capabilities::all()
                - Capabilities::ALLOCATE
                - Capabilities::ZERO
                - Capabilities::WHOLE_WRITES,
        }
    }

    fn root(&self) -> Node {
        self.root.clone()
    }

    fn node(&self, ino: Ino) -> Result<Node> {
        let stale = || vfs::Error::from(Errno::STALE);
        let number = u32::try_from(ino).map_err(|_| stale())?;
        self.volume.inode(number, stale)
    }

    fn ino(&self, node: &Node) -> Ino {
        node.ino.into()
    }

    fn attr(&self, node: &Node) -> Attr {
        match self.volume.snapshots.of(node.ino) {
            Some(snapshot) => State::new(snapshot.stored()).attr(),
            None => node.state.read().attr(),
        }
    }

    fn kind(&self, node: &Node) -> Kind {
        node.kind
    }

    fn lookup(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        let _names = self.volume.names.share();
        let _of_dir = dir.names.read();
        Ok(self.volume.child(dir, name)?.0)
    }

    fn parent(&self, dir: &Node) -> Result<Node> {
        let _names = self.volume.names.share();
        let _of_dir = dir.names.read();
        self.volume.parent(dir)
    }

    fn create(&self, dir: &Node, name: &[u8], new: &NewNode<'_>) -> Result<Node> {
        self.check_free(dir, None)?;
        self.change_names(|volume| volume.create(dir, name, new))
    }

    fn tmpfile(&self, dir: &Node, new: &NewNode<'_>) -> Result<Node> {
        self.change(|volume| volume.tmpfile(dir, new))
    }

    fn link(&self, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        self.check_free(node, None)?;
        self.check_free(dir, None)?;
        self.change_names(|volume| volume.link(node, dir, name))
    }

    fn unlink(&self, dir: &Node, name: &[u8], veto: Veto<'_>) -> Result<()> {
        self.check_free(dir, None)?;
        self.change_names(|volume| volume.unlink(dir, name, veto))
    }

    fn rmdir(&self, dir: &Node, name: &[u8], veto: Veto<'_>) -> Result<()> {
        self.check_free(dir, Some(name))?;
        self.check_moves(dir, name)?;
        self.change_names(|volume| volume.rmdir(dir, name, veto))
    }

    fn rename(
        &self,
        from: Place<'_, Node>,
        to: Place<'_, Node>,
        mode: RenameMode,
        veto: Veto<'_>,
    ) -> Result<()> {
        self.check_free(from.dir, Some(from.name))?;
        self.check_free(to.dir, Some(to.name))?;
        self.check_moves(from.dir, from.name)?;
        self.check_moves(to.dir, to.name)?;
        self.check_above(to.dir)?;
        if mode == RenameMode::Exchange {
            // For a while the disk may have one of the two by no name. What a crash before left
            // without one is gone by then.
            self.reclaim()?;
            self.note_exchange()?;
        }
        self.change_names(|volume| volume.rename(from, to, mode, veto))
    }

    fn readlink(&self, node: &Node) -> Result<Vec<u8>> {
        if node.kind != Kind::Symlink {
            return Err(Errno::INVAL.into());
        }
        let state = node.state.read();
        let attributes = &state.stored.attributes;
        // Less than a block: the size was checked.
        let len = attributes.size as usize;
        if attributes.is_fast_symlink() {
            return Ok(attributes.pointer_bytes()[..len].to_vec());
        }
        let mut target = vec![0; len];
        file::read(&self.volume.medium, &state.stored, 0, &mut target)?;
        Ok(target)
    }

    fn readdir(
        &self,
        dir: &Node,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        check_dir(dir)?;
        let first = cookie.checked_sub(vfs::COOKIE_FIRST);
        let mut from = first.map_or(0, |offset| offset.saturating_add(1));
        // A block's entries at a time, without a lock while they are handed out: that may call
        // back.
        loop {
            let block = self.listed(dir, &mut from)?;
            if block.is_empty() {
                return Ok(());
            }
            for (offset, ino, kind, name) in &block {
                let emitted = emit(DirEntry {
                    ino: (*ino).into(),
                    kind: *kind,
                    name,
                    cookie: vfs::COOKIE_FIRST + offset,
                });
                if !emitted {
                    return Ok(());
                }
            }
        }
    }

    fn read(&self, node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        check_file(node)?;
        if let Some(snapshot) = self.volume.snapshots.of(node.ino) {
            return self.read_snapshot(snapshot, offset, buf);
        }
        file::read(&self.volume.medium, &node.state.read().stored, offset, buf)
    }

    fn write_with(&self, node: &Node, offset: u64, data: &[u8], also: Also<'_>) -> Result<usize> {
        self.check_free(node, None)?;
        let mut done = 0;
        loop {
            // As much as fits one operation.
            let (at, rest) = (offset.saturating_add(done as u64), &data[done..]);
            match self.change(|volume| volume.write(node, Some(at), rest, also)) {
                Ok((_, written)) if written > 0 && done + written < data.len() => done += written,
                Ok((_, written)) => return Ok(done + written),
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
    }

    fn append_with(&self, node: &Node, data: &[u8], also: Also<'_>) -> Result<(u64, usize)> {
        self.check_free(node, None)?;
        self.change(|volume| volume.write(node, None, data, also))
    }

    fn apply(&self, node: &Node, change: &Change<'_>) -> Result<Attr> {
        self.check_free(node, None)?;
        loop {
            if let Some(attr) = self.change(|volume| volume.apply(node, change))? {
                return Ok(attr);
            }
        }
    }

    fn fallocate_with(
        &self,
        node: &Node,
        mode: Fallocate,
        range: Range<u64>,
        also: Also<'_>,
    ) -> Result<()> {
        self.check_free(node, None)?;
        let mut left = range.clone();
        loop {
            let end = self.change(|volume| volume.fallocate(node, mode, left.clone(), also))?;
            if end <= range.start {
                return Ok(());
            }
            left.end = end;
        }
    }

    fn seek(&self, node: &Node, offset: u64, what: SeekFor) -> Result<u64> {
        check_file(node)?;
        if self.volume.snapshots.of(node.ino).is_some() {
            // Its holes are what the disk has.
            let size = self.attr(node).size;
            return match what {
                _ if offset >= size => Err(Errno::NXIO.into()),
                SeekFor::Data => Ok(offset),
                SeekFor::Hole => Ok(size),
            };
        }
        file::seek(&self.volume.medium, &node.state.read().stored, offset, what)
    }

    fn copy_range_with(
        &self,
        from: At<'_, Node>,
        to: At<'_, Node>,
        len: u64,
        also: Also<'_>,
    ) -> Result<u64> {
        check_file(from.node)?;
        check_file(to.node)?;
        self.check_free(to.node, None)?;
        let size = self.attr(from.node).size;
        let len = len.min(size.saturating_sub(from.offset));
        let overlap = from.offset < to.offset.saturating_add(len)
            && to.offset < from.offset.saturating_add(len);
        if from.node.ino == to.node.ino && overlap {
            return Err(Errno::INVAL.into());
        }
        let mut data = vec![0; len.min(COPY_MAX) as usize];
        let read = self.read(from.node, from.offset, &mut data)?;
        let data = &data[..read];
        let written = self.write_with(to.node, to.offset, data, also)?;
        Ok(written as u64)
    }

    fn getxattr(&self, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        check_name(name)?;
        let all = crate::xattr::all(&self.volume.medium, &node.state.read().stored)?;
        let found = all.into_iter().find(|xattr| xattr.0 == name);
        found.map(|xattr| xattr.1).ok_or(Errno::NODATA.into())
    }

    fn listxattr(&self, node: &Node) -> Result<Vec<Vec<u8>>> {
        let all = crate::xattr::all(&self.volume.medium, &node.state.read().stored)?;
        Ok(all.into_iter().map(|xattr| xattr.0).collect())
    }

    fn fsync(&self, node: &Node, _: Fsync) -> Result<()> {
        match node.kind {
            Kind::Dir => self.sync_node(node),
            Kind::File if self.volume.snapshots.of(node.ino).is_none() => self.sync_node(node),
            _ => self.sync(),
        }
    }

    fn syncfs(&self) -> Result<()> {
        self.sync()
    }

    fn statfs(&self) -> StatFs {
        let geometry = &self.volume.medium.geometry;
        let superblock = self.superblock.lock();
        let (low, high) = superblock.uuid.split_at(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let blocks = geometry.blocks.saturating_sub(geometry.overhead());
        let (free, files_free) = self.volume.alloc.free();
        let coming = self.volume.coming();
        StatFs {
            block_size: geometry.block_size,
            blocks,
            free: (free + coming.0).min(blocks),
            files: geometry.inodes.into(),
            files_free: files_free + coming.1,
            fsid: word(low) ^ word(high),
        }
    }
}

/// A name in a directory: its offset, what it names, and of which kind that is.
type Listed = (u64, u32, Kind, Vec<u8>);

impl Ffs {
    /// Refuses what is a snapshot or the directory of snapshots, also by its name in the root.
    fn check_free(&self, node: &Node, name: Option<&[u8]>) -> Result<()> {
        let snapshots = &self.volume.snapshots;
        let is_dir = || node.ino == self.root.ino && name == Some(DIR_NAME);
        match snapshots.dir().is_some() && (snapshots.owns(node.ino) || is_dir()) {
            true => Err(Errno::PERM.into()),
            false => Ok(()),
        }
    }

    /// Reads what a snapshot has.
    fn read_snapshot(&self, snapshot: Arc<Snapshot>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let left = snapshot.stored().attributes.size.saturating_sub(offset);
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.view_of(snapshot)?.read(offset, &mut buf[..len])?;
        Ok(len)
    }

    /// The names of a block of a directory from an offset on, which then is where to go on; none:
    /// there are no more.
    fn listed(&self, dir: &Node, from: &mut u64) -> Result<Vec<Listed>> {
        let volume = &self.volume;
        let _names = volume.names.share();
        let _of_dir = dir.names.read();
        let block_size = u64::from(volume.medium.geometry.block_size);
        let mut listed = Vec::new();
        let state = dir.state.read();
        check_there(&state)?;
        let mut end = 0;
        dir::scan(
            &volume.medium,
            &state.stored,
            *from,
            &mut |offset, entry| {
                if offset >= end && !listed.is_empty() {
                    return false;
                }
                end = (offset / block_size + 1) * block_size;
                *from = offset + 1;
                if entry.name != b"." && entry.name != b".." {
                    listed.push((offset, entry.ino, entry.kind, entry.name.to_vec()));
                }
                true
            },
        )?;
        drop(state);
        let kinds = listed.into_iter().map(|(offset, ino, kind, name)| {
            let kind = match kind {
                Some(kind) => kind,
                None => volume.child(dir, &name)?.0.kind,
            };
            Ok((offset, ino, kind, name))
        });
        kinds.collect()
    }
}
