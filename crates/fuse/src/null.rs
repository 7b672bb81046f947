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

use fuser::{Errno, Generation, INodeNo};
use vfs::{Kind, StatFs};

use crate::adapter::{EndSignal, Pages, TTL, permission_bits};
use crate::convert::{FileAttr, negative_entry};
use crate::crew::Crew;
use crate::follow::Follower;
use crate::handler::{Handler, NewSpecial, Written};
use crate::handshake::IO_MAX;
use crate::monitor::{Monitor, Request};
use crate::mount::{Mount, serve};
use crate::options::{Options, StatusFn};
use crate::reply::{
    BLOCK_SIZE, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Ttl,
};
use crate::requests::xattr;
use crate::wire::{Caller, SetAttr};
use crate::xattrs::STATUS_XATTR;

/// Size of each file: bytes.
const SIZE: u64 = 1 << 40;

/// Longest name that is said to be possible.
const NAME_MAX: u32 = 255;

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
    serve(dir, options, false, |_gate, _invalidator, end| {
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
        kind: if dir { Kind::Dir } else { Kind::File },
        perm,
        nlink: if dir { 2 } else { 1 },
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        ..negative_entry()
    }
}

/// All may be believed.
const LONG: Ttl = Ttl {
    entry: TTL,
    attr: TTL,
};

impl Null {
    fn saw(&self, req: &Caller, request: Request) {
        self.crew.take();
        self.follower.serve(req.pid(), request);
        self.monitor.saw(request);
    }

    fn make(&self, dir: bool, mode: u32, umask: u32, reply: ReplyEntry) {
        let number = self.made.fetch_add(1, Relaxed);
        let id = INodeNo(2 * number + u64::from(dir));
        let perm = permission_bits(mode & !umask);
        reply.entry(&LONG, &attr(id, perm), Generation(0));
    }
}

impl Handler for Null {
    fn lookup(&self, req: &Caller, _parent: INodeNo, _name: &OsStr, reply: ReplyEntry) {
        self.saw(req, Request::Lookup);
        reply.entry(&LONG, &negative_entry(), Generation(0));
    }

    fn forget(&self, _id: INodeNo, _lookups: u64) {
        self.monitor.saw(Request::Forget);
    }

    fn getattr(&self, req: &Caller, id: INodeNo, reply: ReplyAttr) {
        self.saw(req, Request::GetAttr);
        reply.attr(TTL, &attr(id, 0o755));
    }

    fn setattr(&self, req: &Caller, id: INodeNo, _set: &SetAttr, reply: ReplyAttr) {
        self.saw(req, Request::SetAttr);
        reply.attr(TTL, &attr(id, 0o755));
    }

    fn mknod(&self, req: &Caller, _at: (INodeNo, &OsStr), new: NewSpecial, reply: ReplyEntry) {
        self.saw(req, Request::MkNod);
        self.make(false, new.mode, new.umask, reply);
    }

    fn mkdir(
        &self,
        req: &Caller,
        _at: (INodeNo, &OsStr),
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.saw(req, Request::MkDir);
        self.make(true, mode, umask, reply);
    }

    fn unlink(&self, req: &Caller, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        self.saw(req, Request::Unlink);
        reply.ok();
    }

    fn rmdir(&self, req: &Caller, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        self.saw(req, Request::RmDir);
        reply.ok();
    }

    fn rename(
        &self,
        req: &Caller,
        _from: (INodeNo, &OsStr),
        _to: (INodeNo, &OsStr),
        _flags: u32,
        reply: ReplyEmpty,
    ) {
        self.saw(req, Request::Rename);
        reply.ok();
    }

    fn open(&self, req: &Caller, reply: ReplyOpen) {
        self.saw(req, Request::Open);
        reply.error(Errno::ENOSYS);
    }

    fn create(
        &self,
        req: &Caller,
        _at: (INodeNo, &OsStr),
        _mode: u32,
        _umask: u32,
        reply: ReplyCreate,
    ) {
        self.saw(req, Request::Create);
        reply.error(Errno::ENOSYS);
    }

    fn flush(&self, req: &Caller, reply: ReplyEmpty) {
        self.saw(req, Request::Flush);
        reply.error(Errno::ENOSYS);
    }

    fn read(&self, req: &Caller, _id: INodeNo, _offset: u64, size: u32, reply: ReplyData) {
        let client = self.follower.reader(req.pid(), size);
        self.crew.take();
        self.follower.serve(client, Request::Read);
        self.monitor.saw(Request::Read);
        reply.data(&ZEROS[..ZEROS.len().min(size as usize)]);
    }

    fn write(&self, req: &Caller, _id: INodeNo, what: Written<'_>, reply: ReplyWrite) {
        self.saw(req, Request::Write);
        reply.written(what.data.len() as u32);
    }

    fn fsync(&self, req: &Caller, _id: INodeNo, _data_only: bool, reply: ReplyEmpty) {
        self.saw(req, Request::FSync);
        reply.ok();
    }

    fn opendir(&self, req: &Caller, reply: ReplyOpen) {
        self.saw(req, Request::OpenDir);
        reply.error(Errno::ENOSYS);
    }

    fn readdir(&self, req: &Caller, _id: INodeNo, _offset: u64, reply: ReplyDirectory) {
        self.saw(req, Request::ReadDir);
        reply.ok();
    }

    fn readdirplus(&self, req: &Caller, _id: INodeNo, _offset: u64, reply: ReplyDirectory) {
        self.saw(req, Request::ReadDirPlus);
        reply.ok();
    }

    fn statfs(&self, req: &Caller, reply: ReplyStatfs) {
        self.saw(req, Request::StatFs);
        let nothing = StatFs {
            block_size: BLOCK_SIZE,
            blocks: 0,
            free: 0,
            files: 0,
            files_free: 0,
            fsid: 0,
        };
        reply.statfs(&nothing, NAME_MAX);
    }

    fn getxattr(&self, req: &Caller, _id: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.saw(req, Request::GetXattr);
        if name == STATUS_XATTR {
            return xattr(Ok((self.status)()), size, reply);
        }
        // Not ENOSYS, after which the kernel would never ask again.
        reply.error(Errno::ENODATA);
    }
}
