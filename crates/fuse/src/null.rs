//! A file system that does nothing, on the same kind of mount: what any FUSE file system costs.
//!
//! The kernel gets the same promises as from [`crate::mount()`] (nothing opened, names and
//! attributes believed for a year), from as many threads, and so sends the same requests for the
//! same calls. Answers are constants: each new file or directory gets the next number, whose lowest
//! bit says which of both it is; no name is kept, all files have the same size and hold zeros. What
//! a mount takes beyond this is its own.
//!
//! Hence a name that the kernel has forgotten does not exist any more, and directories list
//! nothing.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::UNIX_EPOCH;

use fuser::{
    BsdFileFlags, FileAttr, FileHandle, FileType, Generation, INodeNo, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, ReplyXattr, TimeOrNow, WriteFlags,
};

use crate::adapter::{EndSignal, Pages, TTL, permission_bits};
use crate::convert::{BLOCK_SIZE, negative_entry};
use crate::crew::{self, Crew};
use crate::follow::Follower;
use crate::monitor::{Monitor, Request};
use crate::mount::{Mount, serve};
use crate::options::{Options, StatusFn};
use crate::requests::{IO_MAX, negotiate, xattr};
use crate::xattrs::STATUS_XATTR;

/// Size of each file: bytes.
const SIZE: u64 = 1 << 40;

/// Contents of each file.
static ZEROS: [u8; IO_MAX as usize] = [0; IO_MAX as usize];

/// Answers without doing anything.
struct Null {
    monitor: Arc<Monitor>,
    crew: Arc<Crew>,
    follower: Follower,
    status: StatusFn,
    /// Numbers given away.
    made: AtomicU64,
    _end: EndSignal,
}

/// Mount a file system that does nothing on the directory `dir`, served as [`crate::mount()`]
/// serves one.
///
/// # Errors
/// As [`crate::mount()`].
pub fn mount_nothing(dir: &Path, options: &Options, status: StatusFn) -> io::Result<Mount> {
    serve(dir, options, |_gate, _invalidator, end| {
        let null = Null {
            monitor: options.monitor.clone(),
            crew: Crew::new(options.threads()),
            follower: Follower::default(),
            status,
            made: AtomicU64::new(1),
            _end: end,
        };
        (null, Weak::<NoPages>::new())
    })
}

/// Whatever is written is gone.
pub struct NoPages;

impl Pages for NoPages {
    fn write_back(&self) {}
}

/// The root is 1, so directories are odd.
fn is_dir(id: INodeNo) -> bool {
    id.0 % 2 == 1
}

fn attr(id: INodeNo, perm: u16) -> FileAttr {
    let dir = is_dir(id);
    FileAttr {
        ino: id,
        size: if dir { 0 } else { SIZE },
        kind: if dir {
            FileType::Directory
        } else {
            FileType::RegularFile
        },
        perm,
        nlink: if dir { 2 } else { 1 },
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        blksize: BLOCK_SIZE,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        ..negative_entry()
    }
}

impl Null {
    fn saw(&self, req: &fuser::Request, request: Request) {
        self.crew.take();
        self.follower.serve(req.pid(), request);
        self.monitor.saw(request);
    }

    fn make(&self, dir: bool, mode: u32, umask: u32, reply: ReplyEntry) {
        let number = self.made.fetch_add(1, Relaxed);
        let id = INodeNo(2 * number + u64::from(dir));
        let perm = permission_bits(mode & !umask);
        crew::send(|| reply.entry(&TTL, &attr(id, perm), Generation(0)));
    }
}

impl fuser::Filesystem for Null {
    fn init(&mut self, _req: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        negotiate(config, false);
        Ok(())
    }

    fn lookup(&self, req: &fuser::Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEntry) {
        self.saw(req, Request::Lookup);
        crew::send(|| reply.entry(&TTL, &negative_entry(), Generation(0)));
    }

    fn forget(&self, _req: &fuser::Request, _id: INodeNo, _lookups: u64) {
        self.monitor.saw(Request::Forget);
    }

    fn getattr(
        &self,
        req: &fuser::Request,
        id: INodeNo,
        _fh: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        self.saw(req, Request::GetAttr);
        crew::send(|| reply.attr(&TTL, &attr(id, 0o755)));
    }

    fn setattr(
        &self,
        req: &fuser::Request,
        id: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<std::time::SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<std::time::SystemTime>,
        _chgtime: Option<std::time::SystemTime>,
        _bkuptime: Option<std::time::SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.saw(req, Request::SetAttr);
        crew::send(|| reply.attr(&TTL, &attr(id, 0o755)));
    }

    fn mknod(
        &self,
        req: &fuser::Request,
        _parent: INodeNo,
        _name: &OsStr,
        mode: u32,
        umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        self.saw(req, Request::MkNod);
        self.make(false, mode, umask, reply);
    }

    fn mkdir(
        &self,
        req: &fuser::Request,
        _parent: INodeNo,
        _name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.saw(req, Request::MkDir);
        self.make(true, mode, umask, reply);
    }

    fn unlink(&self, req: &fuser::Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        self.saw(req, Request::Unlink);
        crew::send(|| reply.ok());
    }

    fn rmdir(&self, req: &fuser::Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        self.saw(req, Request::RmDir);
        crew::send(|| reply.ok());
    }

    fn rename(
        &self,
        req: &fuser::Request,
        _parent: INodeNo,
        _name: &OsStr,
        _to: INodeNo,
        _new_name: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.saw(req, Request::Rename);
        crew::send(|| reply.ok());
    }

    fn open(&self, req: &fuser::Request, _id: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.saw(req, Request::Open);
        crew::send(|| reply.error(fuser::Errno::ENOSYS));
    }

    fn create(
        &self,
        req: &fuser::Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        self.saw(req, Request::Create);
        crew::send(|| reply.error(fuser::Errno::ENOSYS));
    }

    fn flush(
        &self,
        req: &fuser::Request,
        _id: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.saw(req, Request::Flush);
        crew::send(|| reply.error(fuser::Errno::ENOSYS));
    }

    fn read(
        &self,
        req: &fuser::Request,
        _id: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let client = self.follower.reader(req.pid(), size);
        self.crew.take();
        self.follower.serve(client, Request::Read);
        self.monitor.saw(Request::Read);
        crew::send(|| reply.data(&ZEROS[..ZEROS.len().min(size as usize)]));
    }

    fn write(
        &self,
        req: &fuser::Request,
        _id: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        data: &[u8],
        _flags: WriteFlags,
        _open_flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.saw(req, Request::Write);
        crew::send(|| reply.written(data.len() as u32));
    }

    fn fsync(
        &self,
        req: &fuser::Request,
        _id: INodeNo,
        _fh: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.saw(req, Request::FSync);
        crew::send(|| reply.ok());
    }

    fn opendir(&self, req: &fuser::Request, _id: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.saw(req, Request::OpenDir);
        crew::send(|| reply.error(fuser::Errno::ENOSYS));
    }

    fn readdir(
        &self,
        req: &fuser::Request,
        _id: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        reply: ReplyDirectory,
    ) {
        self.saw(req, Request::ReadDir);
        crew::send(|| reply.ok());
    }

    fn readdirplus(
        &self,
        req: &fuser::Request,
        _id: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        reply: fuser::ReplyDirectoryPlus,
    ) {
        self.saw(req, Request::ReadDirPlus);
        crew::send(|| reply.ok());
    }

    fn getxattr(
        &self,
        req: &fuser::Request,
        _id: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        self.saw(req, Request::GetXattr);
        if name == STATUS_XATTR {
            return xattr(Ok((self.status)()), size, reply);
        }
        // Not ENOSYS, after which the kernel would never ask again.
        crew::send(|| reply.error(fuser::Errno::ENODATA));
    }
}
