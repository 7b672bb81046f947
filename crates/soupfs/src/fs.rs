//! [`vfs::FileSystem`] for SoupFS. Names are in [`crate::namespace`]; the rest is here.

use crate::commit::capture::Pull;
use crate::fault::{Fault, injected};
use crate::file::{self, File};
use crate::inode::{Body, Inode, Node};
use crate::inode_state::ANY;
use crate::layout::{
    FILE_MAX, LINES_PER_PAGE, LINK_MAX, PAGE, index, inode as layout, line_at, page_at,
};
use crate::mount::SoupFs;
use crate::options::Mode;
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

/// Bytes copied at once by `copy_range`.
const COPY_BYTES: u64 = 1 << 20;

/// How often a change that finds no space is tried again after space was made.
const SPACE_TRIES: usize = 16;

/// Words that a cut may change besides those of the blocks that it unmaps: where nodes on its two
/// edges become empty, and where the tree becomes lower.
const CUT_WORDS: u64 = 3 * index::HEIGHT_MAX;

/// Bytes of a file that one step maps, so that what a single call adds to the backlog is bounded.
const PART_BYTES: u64 = 1 << 30;

/// A range in parts that one step maps each.
fn parts(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let end = ((at / PART_BYTES + 1) * PART_BYTES).min(range.end);
        let part = at..end;
        at = end;
        (!part.is_empty()).then_some(part)
    })
}

/// The blocks that a range of bytes touches.
fn blocks_of(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE..range.end.div_ceil(PAGE)
}

impl SoupFs {
    /// Run a change; when it finds no space, persist what was removed and try again, as other
    /// callers may have been faster to use what was made free.
    pub(crate) fn change<T>(&self, mut op: impl FnMut() -> Result<T>) -> Result<T> {
        self.check_writable()?;
        for _ in 0..SPACE_TRIES {
            match op() {
                Err(Error::Errno(Errno::NOSPC))
                    if self.shared.persister.make_space(&self.shared.volume)? => {}
                result => return result,
            }
        }
        op()
    }

    /// An inode's own state changed, and so many pointers to its blocks.
    fn touched(&self, inode: &Arc<Inode>, pointers: u64) -> Result<()> {
        let shared = &self.shared;
        point("contents: not noted");
        shared.persister.note(&shared.volume, inode, pointers)?;
        if self.shared.options.mode == Mode::Sync {
            self.shared
                .persister
                .persist(&self.shared.volume, [Pull::Inode(inode.clone())])?;
        }
        Ok(())
    }

    /// A change of contents failed, most likely for space. It may have gone some way: space is set
    /// aside, bytes are zeroed, which are the persister's to return and to flush. `blocks`: most
    /// that may have changed.
    fn failed(&self, inode: &Arc<Inode>, blocks: u64) {
        // Only marked, not waited for: the caller has an error to report already.
        self.shared.persister.mark(inode, ANY, blocks);
    }

    fn punch(&self, inode: &Arc<Inode>, range: Range<u64>, also: Also<'_>) -> Result<()> {
        let blocks = (range.end - range.start) / PAGE + 2 + CUT_WORDS;
        let cut = self.change(|| {
            let mut file = inode.file()?.write();
            self.apply_also(inode, &mut file, also)?;
            // Marked at each attempt: what it cut off may be the space that the next one needs.
            file.punch(&self.shared.volume, inode, range.clone())
                .inspect_err(|_| self.failed(inode, blocks))
                .inspect(|_| inode.attrs.touch(self.now()))
        })?;
        self.touched(inode, cut + CUT_WORDS)
    }

    /// Reserve a range, and make it read as zeros if so desired. All space comes first: if there is
    /// too little, what was reserved goes back, and nothing has happened.
    fn allocate(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        (keep_size, zero): (bool, bool),
        also: Also<'_>,
    ) -> Result<()> {
        let volume = &self.shared.volume;
        let _reserving = volume.lock_reserving(inode.ino);
        let step = |file: &mut File, part: Range<u64>| {
            let mut void = 0;
            if zero {
                point("allocate: not zeroed");
                void = file
                    .void(volume, inode, part.clone())
                    .inspect_err(|_| self.failed(inode, PART_BYTES / PAGE + 2))?;
            }
            point("allocate: the size is old");
            if !keep_size && part.end == range.end {
                file.extend(volume, inode, range.end)?;
            }
            inode.attrs.touch(self.now());
            Ok(void)
        };
        // Without zeros only the end is left to do.
        let end = range.end.saturating_sub(1)..range.end;
        let mut steps = parts(if zero { range.clone() } else { end });
        let mut reserved = Vec::new();
        let begun = self
            .reserve(inode, range.clone(), &mut reserved)
            .and_then(|()| {
                let mut file = inode.file()?.write();
                file.back_ends(volume, inode, range.clone())?;
                // With what changes first: no batch finds that alone.
                self.apply_also(inode, &mut file, also)?;
                steps.next().map_or(Ok(0), |first| step(&mut file, first))
            });
        match begun {
            Ok(void) => self.touched(inode, void)?,
            Err(e) => {
                self.give_up(inode, reserved);
                return Err(e);
            }
        }
        for part in steps {
            let void = step(&mut inode.file()?.write(), part)?;
            self.touched(inode, void)?;
        }
        Ok(())
    }

    /// Map the holes in a range; `reserved` is told which they were.
    fn reserve(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        reserved: &mut Vec<Range<u64>>,
    ) -> Result<()> {
        for part in parts(range) {
            let blocks = blocks_of(&part);
            let count = blocks.end - blocks.start;
            let holes = self.change(|| {
                let mut file = inode.file()?.write();
                file.reserve(&self.shared.volume, inode, blocks.clone())
                    .inspect_err(|_| self.failed(inode, count + CUT_WORDS))
            })?;
            let mapped = holes.iter().map(|hole| hole.end - hole.start).sum();
            reserved.extend(holes);
            self.touched(inode, mapped)?;
        }
        Ok(())
    }

    /// Undo a reservation for which there is too little space, and make what it had free before the
    /// caller hears of it.
    fn give_up(&self, inode: &Arc<Inode>, reserved: Vec<Range<u64>>) {
        let volume = &self.shared.volume;
        let given_up = reserved.into_iter().try_for_each(|holes| {
            for part in parts(holes.start * PAGE..holes.end * PAGE) {
                let mut file = inode.file()?.write();
                let cut = file.give_up(volume, inode, blocks_of(&part));
                drop(file);
                self.touched(inode, cut? + CUT_WORDS)?;
            }
            Ok(())
        });
        let freed = given_up.and_then(|()| self.shared.persister.make_space(volume));
        if let Err(e) = freed {
            log::error!("what a failed call had reserved is still reserved: {e}");
        }
    }

    /// What else a request changes of a file whose contents, which are locked, it is about to
    /// change.
    fn apply_also(&self, inode: &Inode, file: &mut File, also: Also<'_>) -> Result<()> {
        match also {
            Some(change) => self.apply_locked(inode, Some(file), change)?.map(drop),
            None => Ok(()),
        }
    }

    /// Write as much as one step takes, at the offset or at the end.
    fn write_at(
        &self,
        node: &Node,
        offset: Option<u64>,
        data: &[u8],
        also: Also<'_>,
    ) -> Result<(u64, usize)> {
        let (inode, mut many_dirty) = (node.inode(), false);
        let written = self.change(|| {
            let mut file = inode.file()?.write();
            let at = offset.unwrap_or_else(|| file::size(inode));
            let len = file::clamp(at, data.len())?.min(PART_BYTES as usize);
            self.apply_also(inode, &mut file, also)?;
            let (done, streaming) = file.write(&self.shared.volume, inode, at, &data[..len])?;
            point("write: times are old");
            if done > 0 {
                inode.attrs.touch(self.now());
            }
            many_dirty = file.has_many_dirty();
            drop(streaming);
            Ok((at, done))
        });
        let (at, done) = written.inspect_err(|_| self.failed(inode, 2))?;
        if done > 0 {
            self.touched(inode, done as u64 / PAGE + 2)?;
        }
        if many_dirty {
            let pull = Pull::Inode(inode.clone());
            self.shared.persister.persist(&self.shared.volume, [pull])?;
        }
        Ok((at, done))
    }
}

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
            capabilities: Capabilities::all(),
        }
    }

    fn root(&self) -> Node {
        // Mounting loaded it, and it is never freed.
        self.root_node()
            .expect("the root directory was there at mount")
    }

    fn node(&self, ino: Ino) -> Result<Node> {
        let volume = &self.shared.volume;
        if !ino.is_multiple_of(layout::LINES) || !volume.geometry().holds_line(ino) {
            return Err(Errno::STALE.into());
        }
        let inode = volume.inodes.get_or_load(ino, || {
            // Nothing in DRAM: then it is in use only if the consistent view counts its names.
            let lines = volume
                .pool
                .load(volume.geometry().line_word(ino / LINES_PER_PAGE));
            let image = volume.image().inode(ino).map_err(|_| Errno::STALE)?;
            if lines >> (ino % LINES_PER_PAGE) & 3 != 3 || image.nlink == 0 {
                return Err(Errno::STALE.into());
            }
            Inode::load(&image)
        })?;
        // Without names only those who use it keep it: then there is a reference besides the
        // table's and ours.
        if inode.nlink() == 0 && Arc::strong_count(&inode) <= 2 {
            return Err(Errno::STALE.into());
        }
        Ok(Node::new(inode))
    }

    fn ino(&self, node: &Node) -> Ino {
        node.inode().ino
    }

    fn attr(&self, node: &Node) -> Attr {
        node.inode().stat()
    }

    fn rights(&self, node: &Node) -> Rights {
        node.inode().rights()
    }

    fn kind(&self, node: &Node) -> Kind {
        node.inode().kind
    }

    fn is_removed(&self, dir: &Node) -> bool {
        dir.inode().nlink() == 0
    }

    fn set_atime(&self, node: &Node, atime: Time) -> Result<()> {
        self.check_writable()?;
        let (shared, inode) = (&self.shared, node.inode());
        {
            let _meta = inode.meta.lock(); // whoever captures the inode beside this sees the time, or the mark behind it
            inode.attrs.set_atime(atime);
        }
        if injected(Fault::AccessForgotten) {
            return Ok(());
        }
        shared.persister.note(&shared.volume, inode, 0)
    }

    fn lookup(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        self.find(dir, name)
    }

    fn parent(&self, dir: &Node) -> Result<Node> {
        self.load_parent(dir.inode()).map(Node::new)
    }

    fn create(&self, dir: &Node, name: &[u8], new: &NewNode<'_>) -> Result<Node> {
        self.change(|| self.make(dir, name, new))
    }

    fn tmpfile(&self, dir: &Node, new: &NewNode<'_>) -> Result<Node> {
        self.change(|| self.make_nameless(dir, new))
    }

    fn link(&self, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        self.change(|| self.add_link(node, dir, name))
    }

    fn unlink(&self, dir: &Node, name: &[u8], veto: Veto<'_>) -> Result<()> {
        self.check_writable()?;
        self.remove_file(dir, name, veto)
    }

    fn rmdir(&self, dir: &Node, name: &[u8], veto: Veto<'_>) -> Result<()> {
        self.check_writable()?;
        self.remove_dir(dir, name, veto)
    }

    fn rename(
        &self,
        from: Place<'_, Node>,
        to: Place<'_, Node>,
        mode: RenameMode,
        veto: Veto<'_>,
    ) -> Result<()> {
        self.change(|| self.move_name(&from, &to, mode, veto))
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
        volume.pool.read(page_at(page), &mut target);
        Ok(target)
    }

    fn readdir(
        &self,
        dir: &Node,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        dir.inode().dir()?.read(
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
        )
    }

    fn read(&self, node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inode = node.inode();
        let file = inode.file()?.read();
        file.read(&self.shared.volume, file::size(inode), offset, buf)
    }

    fn write_with(&self, node: &Node, offset: u64, data: &[u8], also: Also<'_>) -> Result<usize> {
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

    fn append_with(&self, node: &Node, data: &[u8], also: Also<'_>) -> Result<(u64, usize)> {
        self.write_at(node, None, data, also)
    }

    fn apply(&self, node: &Node, change: &Change<'_>) -> Result<Attr> {
        let inode = node.inode();
        let cut = self.apply_change(inode, change)?;
        let edges = change.set.size.map_or(0, |_| CUT_WORDS);
        self.touched(inode, cut + edges)?;
        Ok(inode.stat())
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
        match mode {
            Fallocate::Punch => self.punch(inode, range, also),
            Fallocate::Allocate { keep_size } => {
                self.allocate(inode, range, (keep_size, false), also)
            }
            Fallocate::Zero { keep_size } => self.allocate(inode, range, (keep_size, true), also),
        }
    }

    fn seek(&self, node: &Node, offset: u64, what: SeekFor) -> Result<u64> {
        let inode = node.inode();
        let file = inode.file()?.read();
        file.seek(&self.shared.volume, file::size(inode), offset, what)
    }

    fn copy_range_with(
        &self,
        At {
            node: from,
            offset: from_offset,
        }: At<'_, Node>,
        At {
            node: to,
            offset: to_offset,
        }: At<'_, Node>,
        len: u64,
        also: Also<'_>,
    ) -> Result<u64> {
        from.inode().file()?;
        to.inode().file()?;
        let len = len.min(file::size(from.inode()).saturating_sub(from_offset));
        if from.inode().ino == to.inode().ino
            && from_offset < to_offset.saturating_add(len)
            && to_offset < from_offset.saturating_add(len)
        {
            return Err(Errno::INVAL.into());
        }
        let mut buf = vec![0; len.min(COPY_BYTES) as usize];
        let mut done = 0;
        while done < len {
            let want = (len - done).min(COPY_BYTES) as usize;
            let got = self.read(from, from_offset + done, &mut buf[..want])?;
            point("copy: read and not written");
            let also = also.filter(|_| done == 0);
            let put = match self.write_with(to, to_offset + done, &buf[..got], also) {
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

    fn getxattr(&self, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        let inode = node.inode();
        if !inode.has_xattrs.load(Relaxed) {
            return Err(Errno::NODATA.into());
        }
        self.xattrs(inode)?
            .get(name)
            .cloned()
            .ok_or(Error::Errno(Errno::NODATA))
    }

    fn listxattr(&self, node: &Node) -> Result<Vec<Vec<u8>>> {
        let inode = node.inode();
        if !inode.has_xattrs.load(Relaxed) {
            return Ok(Vec::new());
        }
        Ok(self.xattrs(inode)?.names())
    }

    fn fsync(&self, node: &Node, what: Fsync) -> Result<()> {
        if self.shared.options.read_only {
            return Ok(());
        }
        let inode = node.inode();
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
        crate::commit::persister::check(&self.shared.volume)?;
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
