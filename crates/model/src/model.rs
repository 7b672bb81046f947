//! The reference file system: one mutex, plain maps, Linux's rules.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use vfs::{
    Also, At, Attr, Capabilities, Change, Clock, DirEntry, Errno, Fallocate, FileSystem, Fsync,
    Ino, Limits, NAME_MAX, NewNode, PATH_MAX, Place, RenameMode, Result, SeekFor, StatFs, Time,
    Veto, XATTR_LIST_MAX, XATTR_SIZE_MAX,
};

use crate::contents::BLOCK;
use crate::inode::Body;
use crate::tree::{ROOT, Tree, check_xattr_name};

/// The limits of a model, unless [`Options`] say otherwise.
pub const LIMITS: Limits = Limits {
    name_max: NAME_MAX,
    symlink_max: PATH_MAX - 1,
    link_max: 65_000_000,
    file_max: 1 << 47,
    xattr_size_max: XATTR_SIZE_MAX,
    xattr_list_max: XATTR_LIST_MAX,
    xattr_room: usize::MAX,
    capabilities: Capabilities::all(),
};

/// Most bytes that one `copy_range` copies, as on Linux.
const COPY_MAX: u64 = 0x7fff_f000;

/// What limits a [`Model`].
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// What it can hold; the largest size of a file is at most `i64::MAX`.
    pub limits: Limits,
    /// Space for inodes and blocks of contents together, one unit each; `None`: endless.
    pub capacity: Option<u64>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            limits: LIMITS,
            capacity: None,
        }
    }
}

impl Options {
    /// Those of another file system.
    pub fn of(limits: Limits) -> Options {
        Options {
            limits,
            ..Options::default()
        }
    }
}

/// A file system in memory that is obviously right rather than fast: the oracle of the tests.
pub struct Model {
    shared: Arc<Shared>,
}

/// A function that tells the time.
struct FnClock(Arc<dyn Fn() -> Time + Send + Sync>);

impl Clock for FnClock {
    fn now(&self) -> Time {
        (self.0)()
    }
}

struct Shared {
    clock: Arc<dyn Clock>,
    tree: Mutex<Tree>,
}

/// A counted reference to an inode of a [`Model`].
///
/// Cloning and dropping take the model's lock: nothing under that lock drops a node.
pub struct Node {
    shared: Arc<Shared>,
    ino: Ino,
}

impl Model {
    /// An empty file system with the default [`Options`] that asks a function for the time.
    pub fn new(now: Arc<dyn Fn() -> Time + Send + Sync>) -> Model {
        Model::on(Arc::new(FnClock(now)))
    }

    /// An empty file system with the default [`Options`].
    pub fn on(clock: Arc<dyn Clock>) -> Model {
        Model::with_options(clock, Options::default())
    }

    /// An empty file system.
    pub fn with_options(clock: Arc<dyn Clock>, options: Options) -> Model {
        let tree = Mutex::new(Tree::new(options, clock.now()));
        Model {
            shared: Arc::new(Shared { clock, tree }),
        }
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.shared.tree.lock()
    }

    fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// Run `find` under the lock and hold the inode it finds.
    fn hold(&self, find: impl FnOnce(&mut Tree) -> Result<Ino>) -> Result<Node> {
        let mut tree = self.tree();
        let ino = find(&mut tree)?;
        tree.hold(ino);
        Ok(Node {
            shared: self.shared.clone(),
            ino,
        })
    }
}

impl Clone for Node {
    fn clone(&self) -> Node {
        self.shared.tree.lock().hold(self.ino);
        Node {
            shared: self.shared.clone(),
            ino: self.ino,
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shared.tree.lock().release(self.ino);
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.ino)
    }
}

impl FileSystem for Model {
    type Node = Node;

    fn limits(&self) -> Limits {
        self.tree().options.limits
    }

    fn root(&self) -> Node {
        self.tree().hold(ROOT);
        Node {
            shared: self.shared.clone(),
            ino: ROOT,
        }
    }

    fn node(&self, ino: Ino) -> Result<Node> {
        self.hold(|tree| tree.find(ino).map(|_| ino))
    }

    fn ino(&self, node: &Node) -> Ino {
        node.ino
    }

    fn attr(&self, node: &Node) -> Attr {
        self.tree().get(node.ino).attr(node.ino)
    }

    fn lookup(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        self.hold(|tree| tree.lookup(dir.ino, name))
    }

    fn parent(&self, dir: &Node) -> Result<Node> {
        self.hold(|tree| Ok(tree.get(dir.ino).dir()?.parent))
    }

    fn create(&self, dir: &Node, name: &[u8], new: &NewNode<'_>) -> Result<Node> {
        self.hold(|tree| tree.create(dir.ino, name, new, self.now()))
    }

    fn tmpfile(&self, dir: &Node, new: &NewNode<'_>) -> Result<Node> {
        self.hold(|tree| tree.tmpfile(dir.ino, new, self.now()))
    }

    fn link(&self, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        self.tree().link(node.ino, dir.ino, name, self.now())
    }

    fn unlink(&self, dir: &Node, name: &[u8], veto: Veto<'_>) -> Result<()> {
        self.tree().unlink(dir.ino, name, veto, self.now())
    }

    fn rmdir(&self, dir: &Node, name: &[u8], veto: Veto<'_>) -> Result<()> {
        self.tree().rmdir(dir.ino, name, veto, self.now())
    }

    fn rename(
        &self,
        from: Place<'_, Node>,
        to: Place<'_, Node>,
        mode: RenameMode,
        veto: Veto<'_>,
    ) -> Result<()> {
        let (from, to) = ((from.dir.ino, from.name), (to.dir.ino, to.name));
        self.tree().rename(from, to, mode, veto, self.now())
    }

    fn readlink(&self, node: &Node) -> Result<Vec<u8>> {
        match &self.tree().get(node.ino).body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    fn readdir(
        &self,
        dir: &Node,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let tree = self.tree();
        let entries: Vec<_> = tree
            .get(dir.ino)
            .dir()?
            .after(cookie)
            .map(|(cookie, name, ino)| (cookie, name.clone(), ino, tree.get(ino).kind()))
            .collect();
        // `emit` may call back.
        drop(tree);
        for (cookie, name, ino, kind) in &entries {
            if !emit(DirEntry {
                ino: *ino,
                kind: *kind,
                name,
                cookie: *cookie,
            }) {
                break;
            }
        }
        Ok(())
    }

    fn read(&self, node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.tree().get(node.ino).file()?.read(offset, buf))
    }

    fn write_with(&self, node: &Node, offset: u64, data: &[u8], also: Also<'_>) -> Result<usize> {
        let (mut tree, now) = (self.tree(), self.now());
        tree.with_also(node.ino, also, now, |tree| {
            write(tree, node.ino, offset, data, now)
        })
    }

    fn append_with(&self, node: &Node, data: &[u8], also: Also<'_>) -> Result<(u64, usize)> {
        let (mut tree, now) = (self.tree(), self.now());
        let end = tree.get(node.ino).file()?.size();
        tree.with_also(node.ino, also, now, |tree| {
            Ok((end, write(tree, node.ino, end, data, now)?))
        })
    }

    fn apply(&self, node: &Node, change: &Change<'_>) -> Result<Attr> {
        let mut tree = self.tree();
        tree.change(node.ino, change, self.now())?;
        Ok(tree.get(node.ino).attr(node.ino))
    }

    fn set_atime(&self, node: &Node, atime: Time) -> Result<()> {
        self.tree().get_mut(node.ino).atime = atime;
        Ok(())
    }

    fn fallocate_with(
        &self,
        node: &Node,
        mode: Fallocate,
        range: Range<u64>,
        also: Also<'_>,
    ) -> Result<()> {
        let (mut tree, now) = (self.tree(), self.now());
        tree.with_also(node.ino, also, now, |tree| {
            fallocate(tree, node.ino, mode, range, now)
        })
    }

    fn seek(&self, node: &Node, offset: u64, what: SeekFor) -> Result<u64> {
        let tree = self.tree();
        let contents = tree.get(node.ino).file()?;
        if offset >= contents.size() {
            return Err(Errno::NXIO.into());
        }
        match what {
            SeekFor::Data => contents.next_data(offset).ok_or(Errno::NXIO.into()),
            SeekFor::Hole => Ok(contents.next_hole(offset)),
        }
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
        let (mut tree, now) = (self.tree(), self.now());
        let source = tree.get(from.ino).file()?;
        tree.get(to.ino).file()?;
        let len = len
            .min(source.size().saturating_sub(from_offset))
            .min(COPY_MAX);
        let overlap = from_offset < to_offset.saturating_add(len)
            && to_offset < from_offset.saturating_add(len);
        if from.ino == to.ino && overlap {
            return Err(Errno::INVAL.into());
        }
        let mut data = vec![0; len as usize];
        source.read(from_offset, &mut data);
        let copied = tree.with_also(to.ino, also, now, |tree| {
            write(tree, to.ino, to_offset, &data, now)
        });
        Ok(copied? as u64)
    }

    fn getxattr(&self, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        check_xattr_name(name)?;
        self.tree()
            .get(node.ino)
            .xattrs
            .get(name)
            .cloned()
            .ok_or(Errno::NODATA.into())
    }

    fn listxattr(&self, node: &Node) -> Result<Vec<Vec<u8>>> {
        Ok(self.tree().get(node.ino).xattrs.keys().cloned().collect())
    }

    fn fsync(&self, _node: &Node, _what: Fsync) -> Result<()> {
        Ok(())
    }

    fn syncfs(&self) -> Result<()> {
        Ok(())
    }

    fn statfs(&self) -> StatFs {
        let tree = self.tree();
        let blocks = tree.options.capacity.unwrap_or(1 << 40);
        let free = blocks.saturating_sub(tree.used());
        StatFs {
            block_size: BLOCK as u32,
            blocks,
            free,
            files: tree.inode_count() + free,
            files_free: free,
            fsid: 0,
        }
    }
}

/// Reserve, punch or zero a range: all of it, or nothing for lack of space.
fn fallocate(
    tree: &mut Tree,
    ino: Ino,
    mode: Fallocate,
    Range { start, end }: Range<u64>,
    now: Time,
) -> Result<()> {
    let (max, room) = (tree.options.limits.file_max, tree.room());
    let inode = tree.get_mut(ino);
    let contents = inode.file_mut()?;
    if start >= end {
        return Err(Errno::INVAL.into());
    }
    if end > max {
        return Err(Errno::FBIG.into());
    }
    if mode != Fallocate::Punch && contents.missing(start, end) > room {
        return Err(Errno::NOSPC.into());
    }

    match mode {
        Fallocate::Punch => contents.punch(start, end),
        Fallocate::Allocate { .. } => contents.reserve(start, end),
        Fallocate::Zero { .. } => {
            contents.punch(start, end);
            contents.reserve(start, end);
        }
    }
    if let Fallocate::Allocate { keep_size: false } | Fallocate::Zero { keep_size: false } = mode {
        contents.grow(end);
    }
    inode.modified(now);
    Ok(())
}

/// Write as much as the largest size and the space that is left allow.
fn write(tree: &mut Tree, ino: Ino, offset: u64, data: &[u8], now: Time) -> Result<usize> {
    let (max, room) = (tree.options.limits.file_max, tree.room());
    let inode = tree.get_mut(ino);
    let contents = inode.file_mut()?;
    if data.is_empty() {
        return Ok(0);
    }
    if offset >= max {
        return Err(Errno::FBIG.into());
    }
    let fits = (max - offset).min(data.len() as u64) as usize;
    let written = contents.write(offset, &data[..fits], room);
    if written == 0 {
        return Err(Errno::NOSPC.into());
    }
    inode.modified(now);
    Ok(written)
}
