//! [`vfs::FileSystem`] for SoupFS. Names are in [`crate::namespace`]; the rest is here.

use crate::commit::capture::Pull;
use crate::contents::CUT_WORDS;
use crate::fault::{Fault, injected};
use crate::file;
use crate::image::Source;
use crate::inode::{Body, Inode, Node};
use crate::inode_state::ANY;
use crate::layout::{
    FILE_MAX, LINES_PER_PAGE, LINK_MAX, PAGE, index, inode as layout, line_at, page_at,
};
use crate::mount::SoupFs;
use crate::strong::COPY_BYTES;
use crate::tree;
use schedule::point;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use triomphe::Arc;
use vfs::{
    Also, At, Attr, Capabilities, Change, DirEntry, Errno, Error, Fallocate, FileSystem, Fsync,
    Ino, Kind, Limits, NAME_MAX, NewNode, PATH_MAX, Place, RenameMode, Result, Rights, SeekFor,
    StatFs, Time, Veto, XATTR_LIST_MAX, XATTR_SIZE_MAX,
};

impl FileSystem for SoupFs {
    type Node = Node;

    #[inline]
    fn limits(&self) -> Limits {
        Limits {
            name_max: NAME_MAX,
            symlink_max: PATH_MAX - 1,
            link_max: LINK_MAX,
            file_max: FILE_MAX,
            xattr_size_max: XATTR_SIZE_MAX,
            xattr_list_max: XATTR_LIST_MAX,
            xattr_room: usize::MAX,
            capabilities: match self.gate().is_there() {
                true => Capabilities::all(),
                false => Capabilities::all() - Capabilities::WHOLE_WRITES,
            },
        }
    }

    fn root(&self) -> Node {
        // Mounting loaded it, and it is never freed.
        self.root_node()
            .expect("the root directory was there at mount")
    }

    fn node(&self, ino: Ino) -> Result<Node> {
        let _shared = self.gate().shared(ino);
        let volume = &self.shared.volume;
        if !ino.is_multiple_of(layout::LINES) || !volume.geometry().holds_line(ino) {
            return Err(Errno::STALE.into());
        }
        let inode = volume.inodes.get_or_load(ino, || {
            // Nothing in DRAM: then it is in use only if the consistent view counts its names.
            let lines = volume
                .pool
                .load(volume.geometry().line_word(ino / LINES_PER_PAGE));
            let image = volume.image().inode(ino);
            volume.pool.check_absence()?;
            let image = image.map_err(|_| Errno::STALE)?;
            if lines >> (ino % LINES_PER_PAGE) & 3 != 3 || image.nlink == 0 {
                return Err(Errno::STALE.into());
            }
            Inode::load(&image)
        })?;
        // It is being made, and not durable yet: no name leads to it that anybody sees.
        let nlink = self.shown_nlink(&inode)?;
        if self.gate().is_there() && nlink > 0 && !inode.is_published() {
            return Err(Errno::STALE.into());
        }
        // Without names only those who use it keep it: then there is a reference besides the
        // table's and ours.
        if nlink == 0 && Arc::strong_count(&inode) <= 2 {
            return Err(Errno::STALE.into());
        }
        Ok(Node::new(inode))
    }

    fn ino(&self, node: &Node) -> Ino {
        node.inode().ino
    }

    fn attr(&self, node: &Node) -> Attr {
        let inode = node.inode();
        self.look(inode, |consistent| match consistent {
            None => inode.stat(),
            Some(image) => image.stat(image.xattr != 0),
        })
    }

    fn rights(&self, node: &Node) -> Rights {
        let inode = node.inode();
        self.look(inode, |consistent| match consistent {
            None => inode.rights(),
            Some(image) => image.rights(),
        })
    }

    fn kind(&self, node: &Node) -> Kind {
        node.inode().kind
    }

    fn is_removed(&self, dir: &Node) -> bool {
        let inode = dir.inode();
        self.look(inode, |consistent| match consistent {
            None => inode.nlink() == 0,
            Some(image) => image.nlink == 0,
        })
    }

    fn set_atime(&self, node: &Node, atime: Time) -> Result<()> {
        self.check_writable()?;
        let (shared, inode) = (&self.shared, node.inode());
        // No scope is needed: of times of access nothing is promised but that they come some time.
        {
            // Whoever captures the inode beside this sees the time, or the mark behind it.
            let _meta = inode.meta.lock();
            inode.attrs.set_atime(atime);
        }
        match !injected(Fault::AccessForgotten) && shared.persister.mark(inode, ANY, 0) {
            true => shared.persister.look(&shared.volume),
            false => Ok(()),
        }
    }

    fn lookup(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        self.told(match self.gate().is_there() {
            true => self.look_up(dir, name),
            false => self.find(dir, name),
        })
    }

    fn parent(&self, dir: &Node) -> Result<Node> {
        let inode = dir.inode();
        inode.dir()?;
        let parent = self.look(inode, |consistent| match consistent {
            None => self.load_parent(inode),
            Some(image) if image.nlink == 0 => Err(Errno::NOENT.into()),
            Some(image) => self.load(image.parent),
        });
        self.told(parent.map(Node::new))
    }

    fn create(&self, dir: &Node, name: &[u8], new: &NewNode<'_>) -> Result<Node> {
        self.request(&[dir], || self.change(|| self.make(dir, name, new)))
    }

    fn tmpfile(&self, dir: &Node, new: &NewNode<'_>) -> Result<Node> {
        let _shared = self.gate().shared(dir.inode().ino);
        self.change(|| self.make_nameless(dir, new))
    }

    fn link(&self, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        self.request(&[node, dir], || {
            self.change(|| self.add_link(node, dir, name))
        })
    }

    fn unlink(&self, dir: &Node, name: &[u8], veto: Veto<'_>) -> Result<()> {
        self.check_writable()?;
        let name_of = [Place::new(dir, name)];
        self.request_on_names(&name_of, |_| self.remove_file(dir, name, veto))
    }

    fn rmdir(&self, dir: &Node, name: &[u8], veto: Veto<'_>) -> Result<()> {
        self.check_writable()?;
        let name_of = [Place::new(dir, name)];
        self.request_on_names(&name_of, |_| self.remove_dir(dir, name, veto))
    }

    fn rename(
        &self,
        from: Place<'_, Node>,
        to: Place<'_, Node>,
        mode: RenameMode,
        veto: Veto<'_>,
    ) -> Result<()> {
        self.request_on_names(&[from, to], |moving| {
            self.change(|| self.move_name(&from, &to, mode, veto, moving))
        })
    }

    fn readlink(&self, node: &Node) -> Result<Vec<u8>> {
        let Body::Symlink { page } = node.inode().body else {
            return Err(Errno::INVAL.into());
        };
        let volume = &self.shared.volume;
        if !volume.geometry().holds_page(page) {
            return Err(Error::corrupt(
                line_at(node.inode().ino) + layout::ROOT,
                "target out of range",
            ));
        }
        let len = node.inode().attrs.size.load(Relaxed).min(PAGE);
        let mut target = vec![0; len as usize];
        let read = volume.pool.try_read(page_at(page), &mut target);
        read.map_err(crate::medium::failed)?;
        Ok(target)
    }

    fn readdir(
        &self,
        dir: &Node,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if self.gate().is_there() {
            return self.told(self.list(dir.inode(), cookie, emit));
        }
        self.told(dir.inode().dir()?.read(
            &self.shared.volume,
            cookie,
            &mut |ino, kind, name, cookie| {
                emit(DirEntry {
                    ino,
                    kind,
                    name,
                    cookie,
                })
            },
        ))
    }

    fn read(&self, node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let (volume, inode) = (&self.shared.volume, node.inode());
        let file = inode.file()?;
        self.told(self.look_at_file(inode, |latest| match latest {
            true => file.read().read(volume, file::size(inode), offset, buf),
            false => file::Consistent::of(volume, inode.ino).read(offset, buf),
        }))
    }

    fn write_with(&self, node: &Node, offset: u64, data: &[u8], also: Also<'_>) -> Result<usize> {
        if self.gate().is_there() {
            if self.write_at_once(node, &[(offset, data)], also)? {
                return Ok(data.len());
            }
            let written = self.request(&[node], || {
                self.write_whole(node.inode(), Some(offset), data, also)
            });
            return written.map(|(_, n)| n);
        }
        let mut done = 0;
        loop {
            let also = also.filter(|_| done == 0);
            match self.write_at(node, Some(offset + done as u64), &data[done..], also) {
                Ok((_, n)) => done += n,
                Err(_) if done > 0 => return Ok(done), // who goes on will meet it
                Err(e) => return Err(e),
            }
            if done == data.len() {
                return Ok(done);
            }
        }
    }

    fn write_parts(&self, node: &Node, parts: &[(u64, &[u8])]) -> Result<()> {
        if self.gate().is_there() {
            if self.write_at_once(node, parts, None)? {
                return Ok(());
            }
            return self.request(&[node], || self.write_parts_whole(node.inode(), parts));
        }
        parts.iter().try_for_each(|&(offset, data)| {
            match self.write_with(node, offset, data, None)? == data.len() {
                true => Ok(()),
                false => Err(Errno::NOSPC.into()),
            }
        })
    }

    fn append_with(&self, node: &Node, data: &[u8], also: Also<'_>) -> Result<(u64, usize)> {
        if !self.gate().is_there() {
            return self.write_at(node, None, data, also);
        }
        if let Some(at) = self.append_at_once(node, data, also)? {
            return Ok((at, data.len()));
        }
        self.request(&[node], || self.write_whole(node.inode(), None, data, also))
    }

    fn apply(&self, node: &Node, change: &Change<'_>) -> Result<Attr> {
        if self.gate().is_there()
            && let Some(attr) = self.set_at_once(node, change)?
        {
            return Ok(attr);
        }
        let inode = node.inode();
        self.request(&[node], || {
            let cut = self.apply_change(inode, change)?;
            let edges = change.set.size.map_or(0, |_| CUT_WORDS);
            self.touched(inode, cut + edges)?;
            Ok(inode.stat())
        })
    }

    fn fallocate_with(
        &self,
        node: &Node,
        mode: Fallocate,
        range: Range<u64>,
        also: Also<'_>,
    ) -> Result<()> {
        let inode = node.inode();
        inode.file()?;
        if range.is_empty() {
            return Err(Errno::INVAL.into());
        }
        if range.end > FILE_MAX {
            return Err(Errno::FBIG.into());
        }
        self.request(&[node], || match mode {
            Fallocate::Punch => self.punch(inode, range, also),
            Fallocate::Allocate { keep_size } => {
                self.allocate(inode, range, (keep_size, false), also)
            }
            Fallocate::Zero { keep_size } => self.allocate(inode, range, (keep_size, true), also),
        })
    }

    fn seek(&self, node: &Node, offset: u64, what: SeekFor) -> Result<u64> {
        let (volume, inode) = (&self.shared.volume, node.inode());
        let file = inode.file()?;
        self.told(self.look_at_file(inode, |latest| match latest {
            true => (file.read()).seek(volume, file::size(inode), offset, what),
            false => file::Consistent::of(volume, inode.ino).seek(offset, what),
        }))
    }

    fn copy_range_with(
        &self,
        from: At<'_, Node>,
        to: At<'_, Node>,
        len: u64,
        also: Also<'_>,
    ) -> Result<u64> {
        match self.gate().is_there() {
            true => self.request_beside(&[to.node], Some(from.node), || {
                let len = copied_len(&from, &to, len)?;
                self.copy_whole(from, to, len, also)
            }),
            false => self.copy_in_parts(from, to, len, also),
        }
    }

    fn getxattr(&self, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        let _shared = self.gate().shared(node.inode().ino);
        self.told(self.shown_xattrs(node.inode()))?
            .get(name)
            .cloned()
            .ok_or(Error::Errno(Errno::NODATA))
    }

    fn listxattr(&self, node: &Node) -> Result<Vec<Vec<u8>>> {
        let _shared = self.gate().shared(node.inode().ino);
        Ok(self.told(self.shown_xattrs(node.inode()))?.names())
    }

    fn fsync(&self, node: &Node, what: Fsync) -> Result<()> {
        if self.shared.options.read_only {
            return Ok(());
        }
        let inode = node.inode();
        let _shared = self.gate().shared(inode.ino);
        let is_durable = !inode.is_dirty() && !self.shared.volume.inherited.is_pending();
        if self.gate().is_there() && is_durable {
            return crate::commit::lane::check(&self.shared.volume);
        }
        let mut pulls = vec![Pull::Inode(inode.clone())];
        if what == Fsync::All {
            pulls.push(Pull::Names(inode.clone()));
        }
        if inode.kind == Kind::Dir {
            pulls.push(Pull::Dir(inode.clone()));
        }
        self.shared.persister.persist(&self.shared.volume, pulls)
    }

    fn syncfs(&self) -> Result<()> {
        if self.shared.options.read_only {
            return Ok(());
        }
        crate::commit::lane::check(&self.shared.volume)?;
        self.shared.persister.sweep(&self.shared.volume, true)
    }

    fn statfs(&self) -> StatFs {
        let s = &*self.shared;
        let blocks = s.volume.geometry().allocatable_pages();
        let lines = s.volume.alloc.free_lines() + s.persister.lines_to_come();
        let pages = (lines / LINES_PER_PAGE).min(blocks);
        // What a file of that size takes besides: nodes of its index, those that are set aside
        // while it is written, and pages of lines that arenas have begun.
        let besides = 2 * index::HEIGHT_MAX + crate::shards::shards() as u64;
        let free = pages.saturating_sub(besides);
        let free = free - tree::nodes_for(free);
        // An inode takes two lines and its entry one.
        let per_inode = layout::LINES + 1;
        let uuid = s.volume.superblock.uuid;
        StatFs {
            block_size: PAGE as u32,
            blocks,
            free,
            files: blocks * LINES_PER_PAGE / per_inode,
            files_free: lines / per_inode,
            fsid: uuid
                .iter()
                .fold(0, |id: u64, &b| id.rotate_left(8) ^ u64::from(b)),
        }
    }
}

/// How much of a range a copy takes: up to the end of its file.
fn copied_len(from: &At<'_, Node>, to: &At<'_, Node>, len: u64) -> Result<u64> {
    let (source, target) = (from.node.inode(), to.node.inode());
    source.file()?;
    target.file()?;
    let len = len.min(file::size(source).saturating_sub(from.offset));
    let overlap = source.ino == target.ino
        && from.offset < to.offset.saturating_add(len)
        && to.offset < from.offset.saturating_add(len);
    match overlap {
        true => Err(Errno::INVAL.into()),
        false => Ok(len),
    }
}

impl SoupFs {
    /// Copy a range piece by piece; others may see and a crash may leave the first of them.
    fn copy_in_parts(
        &self,
        from: At<'_, Node>,
        to: At<'_, Node>,
        len: u64,
        also: Also<'_>,
    ) -> Result<u64> {
        let len = copied_len(&from, &to, len)?;
        let mut buf = vec![0; len.min(COPY_BYTES) as usize];
        let mut done = 0;
        while done < len {
            let want = (len - done).min(COPY_BYTES) as usize;
            let got = self.read(from.node, from.offset + done, &mut buf[..want])?;
            point("copy: read and not written");
            let also = also.filter(|_| done == 0);
            let put = match self.write_with(to.node, to.offset + done, &buf[..got], also) {
                Err(_) if done > 0 => break,
                put => put?,
            };
            done += put as u64;
            if put < want {
                break;
            }
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{ends_clean, mounted, new};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use vfs::{FileSystem, NewKind, SetAttr, XattrMode};

    /// Two threads change different attributes of one file, each in a set of its own making: both
    /// are there.
    #[test]
    fn extended_attributes_that_change_at_the_same_time_are_all_there() {
        let (pool, fs) = mounted();
        let file = fs
            .create(&fs.root(), b"file", &new(NewKind::File))
            .expect("made");
        let also = SetAttr::default();
        std::thread::scope(|scope| {
            for thread in 0..3_u8 {
                let (fs, file) = (&fs, &file);
                scope.spawn(move || {
                    for i in 0..60_u8 {
                        let name = format!("user.{thread}.{}", i % 20);
                        let value = vec![i; 100 * usize::from(thread) + 1];
                        let name = name.as_bytes();
                        fs.setxattr(file, name, &value, XattrMode::Any, &also)
                            .expect("set");
                        assert_eq!(fs.getxattr(file, name).expect("there"), value);
                        if i % 7 == 0 {
                            fs.syncfs().expect("synced");
                        }
                    }
                });
            }
        });
        assert_eq!(fs.listxattr(&file).expect("listed").len(), 60);
        drop(file);
        ends_clean(&pool, fs);
    }

    /// The check can fail: each of these says that it takes long.
    #[test]
    fn a_spin_lock_held_over_something_long_is_found() {
        let (_pool, fs) = mounted();
        let file = fs
            .create(&fs.root(), b"file", &new(NewKind::File))
            .expect("made");
        let volume = &fs.shared.volume;
        let (image, medium): (_, &crate::medium::Medium) = (volume.image(), volume);
        let long: [&dyn Fn(); 4] = [
            &|| drop(volume.alloc.page()),
            &|| drop(volume.alloc.line()),
            &|| drop(crate::tree::find(&medium, 0, 0)),
            &|| drop(image.xattr_pages(0, 0)),
        ];
        for (i, work) in long.into_iter().enumerate() {
            work();
            let meta = file.inode().meta.lock();
            let found = catch_unwind(AssertUnwindSafe(work)).is_err();
            drop(meta);
            assert!(found, "{i}");
        }
    }
}
