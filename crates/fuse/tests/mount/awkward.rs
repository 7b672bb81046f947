//! The reference file system on a medium that is damaged, or answering late.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use model::{Model, Node};
use vfs::{
    Also, At, Attr, Change, DirEntry, Errno, Error, Fallocate, FileSystem, Fsync, Ino, Limits,
    NewNode, Place, RenameMode, Result, SeekFor, StatFs, Veto,
};

/// How names start that lead to an inode that cannot be read.
pub const DAMAGED: &str = "damaged";

/// A place in the file system at which the next thread to come by waits, once it is armed.
#[derive(Clone)]
pub struct Stop(Arc<(AtomicBool, Barrier, Barrier)>);

impl Default for Stop {
    fn default() -> Stop {
        Stop(Arc::new((
            AtomicBool::new(false),
            Barrier::new(2),
            Barrier::new(2),
        )))
    }
}

impl Stop {
    /// Stops the next one.
    pub fn arm(&self) {
        self.0.0.store(true, SeqCst);
    }

    /// Waits until one is there.
    pub fn reached(&self) {
        self.0.1.wait();
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        self.0.2.wait();
    }

    fn pass(&self) {
        if self.0.0.swap(false, SeqCst) {
            self.0.1.wait();
            self.0.2.wait();
        }
    }
}

/// The model, but for names that start with [`DAMAGED`], parents, and places at which threads stop.
pub struct Awkward {
    pub inner: Model,
    /// Between attributes of a file being looked up, and their being told.
    pub stop_attr: Stop,
    /// Before a write.
    pub stop_write: Stop,
    /// How long each read takes.
    pub slow_read: Duration,
    /// Changes of contents and attributes are made, and then fail.
    pub fail: Arc<AtomicBool>,
}

impl Awkward {
    /// One that stops nowhere as long as nothing is armed.
    pub fn new(inner: Model) -> Awkward {
        Awkward {
            inner,
            stop_attr: Stop::default(),
            stop_write: Stop::default(),
            slow_read: Duration::ZERO,
            fail: Arc::default(),
        }
    }

    fn done<T>(&self, result: Result<T>) -> Result<T> {
        match self.fail.load(SeqCst) {
            true => Err(Errno::NOSPC.into()),
            false => result,
        }
    }
}

macro_rules! as_the_model {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $result {
            self.inner.$name($($arg),*)
        })*
    };
}

impl FileSystem for Awkward {
    type Node = Node;

    fn lookup(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        if name.starts_with(DAMAGED.as_bytes()) {
            return Err(Error::corrupt(64, "an inode that is none"));
        }
        self.inner.lookup(dir, name)
    }

    fn parent(&self, _dir: &Node) -> Result<Node> {
        Err(Error::corrupt(128, "a parent that is none"))
    }

    fn attr(&self, node: &Node) -> Attr {
        let attr = self.inner.attr(node);
        self.stop_attr.pass();
        attr
    }

    fn read(&self, node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        std::thread::sleep(self.slow_read);
        self.inner.read(node, offset, buf)
    }

    fn write_with(&self, node: &Node, offset: u64, data: &[u8], also: Also<'_>) -> Result<usize> {
        self.stop_write.pass();
        self.done(self.inner.write_with(node, offset, data, also))
    }

    fn apply(&self, node: &Node, change: &Change<'_>) -> Result<Attr> {
        self.done(self.inner.apply(node, change))
    }

    fn fallocate_with(
        &self,
        node: &Node,
        mode: Fallocate,
        range: Range<u64>,
        also: Also<'_>,
    ) -> Result<()> {
        self.done(self.inner.fallocate_with(node, mode, range, also))
    }

    fn copy_range_with(
        &self,
        from: At<'_, Node>,
        to: At<'_, Node>,
        len: u64,
        also: Also<'_>,
    ) -> Result<u64> {
        self.done(self.inner.copy_range_with(from, to, len, also))
    }

    as_the_model! {
        fn limits() -> Limits;
        fn root() -> Node;
        fn node(ino: Ino) -> Result<Node>;
        fn ino(node: &Node) -> Ino;
        fn create(dir: &Node, name: &[u8], new: &NewNode<'_>) -> Result<Node>;
        fn tmpfile(dir: &Node, new: &NewNode<'_>) -> Result<Node>;
        fn link(node: &Node, dir: &Node, name: &[u8]) -> Result<()>;
        fn unlink(dir: &Node, name: &[u8], veto: Veto<'_>) -> Result<()>;
        fn rmdir(dir: &Node, name: &[u8], veto: Veto<'_>) -> Result<()>;
        fn rename(
            from: Place<'_, Node>, to: Place<'_, Node>, mode: RenameMode, veto: Veto<'_>
        ) -> Result<()>;
        fn readlink(node: &Node) -> Result<Vec<u8>>;
        fn readdir(
            dir: &Node, cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool
        ) -> Result<()>;
        fn append_with(node: &Node, data: &[u8], also: Also<'_>) -> Result<(u64, usize)>;
        fn seek(node: &Node, offset: u64, what: SeekFor) -> Result<u64>;
        fn getxattr(node: &Node, name: &[u8]) -> Result<Vec<u8>>;
        fn listxattr(node: &Node) -> Result<Vec<Vec<u8>>>;
        fn fsync(node: &Node, what: Fsync) -> Result<()>;
        fn syncfs() -> Result<()>;
        fn statfs() -> StatFs;
    }
}
