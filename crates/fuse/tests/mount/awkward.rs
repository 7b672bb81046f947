//! The reference file system on a medium that is damaged, or answering late.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use model::{Model, Node};
use vfs::{
    Attr, DirEntry, Error, Fallocate, FileSystem, Fsync, Ino, Limits, NewNode, RenameMode, Result,
    SeekFor, SetAttr, StatFs, Veto, XattrMode,
};

/// How names start that lead to an inode that cannot be read.
pub const DAMAGED: &str = "damaged";

/// How late a late answer is.
pub const LATE: Duration = Duration::from_millis(400);

/// The model, but for names that start with [`DAMAGED`], parents, and late answers.
pub struct Awkward {
    pub inner: Model,
    /// The next attributes that are asked for are those of now, but are told only after [`LATE`].
    pub late: Arc<AtomicBool>,
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
        if self.late.swap(false, Relaxed) {
            std::thread::sleep(LATE);
        }
        attr
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
            from: &Node, name: &[u8], to: &Node, new_name: &[u8], mode: RenameMode, veto: Veto<'_>
        ) -> Result<()>;
        fn readlink(node: &Node) -> Result<Vec<u8>>;
        fn readdir(
            dir: &Node, cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool
        ) -> Result<()>;
        fn read(node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize>;
        fn write(node: &Node, offset: u64, data: &[u8]) -> Result<usize>;
        fn append(node: &Node, data: &[u8]) -> Result<(u64, usize)>;
        fn setattr(node: &Node, set: &SetAttr) -> Result<Attr>;
        fn fallocate(node: &Node, mode: Fallocate, offset: u64, len: u64) -> Result<()>;
        fn seek(node: &Node, offset: u64, what: SeekFor) -> Result<u64>;
        fn copy_range(
            from: &Node, from_offset: u64, to: &Node, to_offset: u64, len: u64
        ) -> Result<u64>;
        fn getxattr(node: &Node, name: &[u8]) -> Result<Vec<u8>>;
        fn listxattr(node: &Node) -> Result<Vec<Vec<u8>>>;
        fn setxattr(
            node: &Node, name: &[u8], value: &[u8], mode: XattrMode, also: &SetAttr
        ) -> Result<()>;
        fn removexattr(node: &Node, name: &[u8]) -> Result<()>;
        fn fsync(node: &Node, what: Fsync) -> Result<()>;
        fn syncfs() -> Result<()>;
        fn statfs() -> StatFs;
    }
}
