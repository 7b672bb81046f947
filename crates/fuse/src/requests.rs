//! Each FUSE request as one call of the VFS.
//!
//! Permissions were checked by the kernel (`default_permissions`), so credentials only say who owns
//! what is made. There are no handles: OPEN, OPENDIR and CREATE are answered `ENOSYS` once, after
//! which the kernel sends neither them nor RELEASE (it makes files by MKNOD), and each request
//! names its inode.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileAttr, FileHandle, FopenFlags, Generation, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr,
    TimeOrNow, WriteFlags,
};
use rustix::fs::XattrFlags;
use vfs::{
    At, Attr, Caps, Cred, Errno, FileSystem, Fsync, Kind, NewKind, Place, SeekFor, SetAttrRequest,
    XattrMode,
};

use crate::adapter::{Adapter, Pages, TTL, attr_ttl, permission_bits};
use crate::convert::{self, Answer};
use crate::crew;
use crate::follow::UNKNOWN;
use crate::holes::{self, Search};
use crate::monitor::Request;
use crate::shutdown::FS_IOC_SHUTDOWN;
use crate::xattrs::{CONTROL_XATTR, STATUS_XATTR, SYNC_XATTR};

/// Largest read or write in one request: what the kernel allows unless told otherwise.
pub const IO_MAX: u32 = 1 << 20;

/// Requests that the kernel may keep in flight in the background (read-ahead, write-back).
const BACKGROUND_MAX: u16 = 64;

/// Largest copy in one request: the reply's count has 32 bits; whole pages.
const COPY_MAX: u64 = (u32::MAX as u64) & !0xFFF;

thread_local! {
    /// Each worker's buffer for what it reads, kept between requests.
    static READ_BUF: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn cred(req: &fuser::Request) -> Cred {
    Cred::checked_by_kernel(req.uid(), req.gid())
}

/// The caller of something that changes contents, in a request that does not say whether set-id
/// bits must go (the library drops `FATTR_KILL_SUIDGID`, and FALLOCATE has no such flag): for all
/// but the superuser they do.
fn writer(req: &fuser::Request) -> Cred {
    if req.uid() == 0 {
        cred(req)
    } else {
        unprivileged_writer(req)
    }
}

fn unprivileged_writer(req: &fuser::Request) -> Cred {
    let mut cred = cred(req);
    cred.caps.remove(Caps::FSETID);
    cred
}

fn time_or_now(time: TimeOrNow) -> vfs::TimeOrNow {
    match time {
        TimeOrNow::Now => vfs::TimeOrNow::Now,
        TimeOrNow::SpecificTime(at) => vfs::TimeOrNow::At(convert::time(at)),
    }
}

fn empty(answer: Answer<()>, reply: ReplyEmpty) {
    crew::send(|| match answer {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    });
}

fn entry(answer: Answer<(FileAttr, Generation)>, reply: ReplyEntry) {
    crew::send(|| match answer {
        Ok((attr, generation)) => reply.entry_with_ttls(&attr_ttl(&attr), &TTL, &attr, generation),
        Err(errno) => reply.error(errno),
    });
}

fn attr(id: INodeNo, answer: Answer<Attr>, reply: ReplyAttr) {
    crew::send(|| match answer {
        Ok(attr) => {
            let attr = convert::file_attr(id, &attr);
            reply.attr(&attr_ttl(&attr), &attr);
        }
        Err(errno) => reply.error(errno),
    });
}

fn written(answer: Answer<usize>, reply: ReplyWrite) {
    crew::send(|| match answer {
        Ok(written) => reply.written(written as u32),
        Err(errno) => reply.error(errno),
    });
}

/// An attribute's value, or its size when the caller only asks for that.
pub fn xattr(answer: Answer<Vec<u8>>, size: u32, reply: ReplyXattr) {
    crew::send(|| match answer {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(fuser::Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(errno),
    });
}

/// Agree with the kernel on what a mount is: which caches it may keep, how large a request may be.
///
/// Not asked for is `FUSE_ASYNC_DIO`: the kernel drops the cached pages of the range before a
/// direct write and after it, but not after one that it completes in the background, so that what
/// somebody read meanwhile would stay cached for good.
pub fn negotiate(config: &mut KernelConfig, writeback: bool) {
    let mut wanted = InitFlags::FUSE_DO_READDIRPLUS
        | InitFlags::FUSE_READDIRPLUS_AUTO
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_CACHE_SYMLINKS
        | InitFlags::FUSE_POSIX_ACL
        | InitFlags::FUSE_DONT_MASK
        | InitFlags::FUSE_HANDLE_KILLPRIV_V2
        | InitFlags::FUSE_NO_OPEN_SUPPORT
        | InitFlags::FUSE_NO_OPENDIR_SUPPORT
        | InitFlags::FUSE_EXPLICIT_INVAL_DATA;
    if writeback {
        wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
    }
    if let Err(missing) = config.add_capabilities(wanted) {
        log::info!("this kernel's FUSE lacks {missing:?}; doing without");
        let _ = config.add_capabilities(wanted.difference(missing));
    }
    // Each of these is within the library's limits by construction.
    let _ = config.set_max_write(IO_MAX);
    let _ = config.set_max_background(BACKGROUND_MAX);
}

/// An adapter as the library has it; shared, for what is answered from other threads.
pub struct Server<F: FileSystem>(pub Arc<Adapter<F>>);

impl<F: FileSystem> Deref for Server<F> {
    type Target = Adapter<F>;

    fn deref(&self) -> &Adapter<F> {
        &self.0
    }
}

impl<F: FileSystem> fuser::Filesystem for Server<F> {
    fn init(&mut self, _req: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        negotiate(config, self.behaviour.writeback);
        Ok(())
    }

    fn lookup(&self, req: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let answer = self.run(req.pid(), Request::Lookup, || {
            let node = self
                .vfs
                .lookup(&cred(req), &self.node(parent)?, name.as_bytes())?;
            Ok(self.entry(node))
        });
        match answer {
            // Not an error but an entry, so that the kernel remembers the absence.
            Err(fuser::Errno::ENOENT) => {
                let absent = convert::negative_entry();
                crew::send(|| reply.entry(&TTL, &absent, Generation(0)));
            }
            other => entry(other, reply),
        }
    }

    fn forget(&self, _req: &fuser::Request, id: INodeNo, lookups: u64) {
        let _ = self.run(UNKNOWN, Request::Forget, || {
            self.table.forget(id, lookups);
            Ok(())
        });
        crew::send(|| ());
    }

    fn getattr(
        &self,
        req: &fuser::Request,
        id: INodeNo,
        _fh: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let answer = self.run(req.pid(), Request::GetAttr, || {
            Ok(self.vfs.getattr(&self.node(id)?))
        });
        attr(id, answer, reply);
    }

    fn setattr(
        &self,
        req: &fuser::Request,
        id: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttrRequest {
            perm: mode.map(permission_bits),
            uid,
            gid,
            size,
            atime: atime.map(time_or_now),
            mtime: mtime.map(time_or_now),
            ctime: ctime.map(convert::time),
        };
        // A mode that is set explicitly has been decided by the kernel.
        let cred = if size.is_some() && mode.is_none() {
            writer(req)
        } else {
            cred(req)
        };
        let answer = self.run(req.pid(), Request::SetAttr, || {
            self.vfs.setattr(&cred, &self.node(id)?, &set)
        });
        self.doubt_after_failure(id, &answer);
        attr(id, answer, reply);
    }

    fn readlink(&self, req: &fuser::Request, id: INodeNo, reply: ReplyData) {
        let answer = self.run(req.pid(), Request::ReadLink, || {
            self.vfs.readlink(&self.node(id)?)
        });
        crew::send(|| match answer {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        });
    }

    fn mknod(
        &self,
        req: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let kind = match Kind::from_mode(mode) {
            Some(Kind::File) => NewKind::File,
            Some(Kind::Fifo) => NewKind::Fifo,
            Some(Kind::Socket) => NewKind::Socket,
            Some(Kind::CharDev) => NewKind::CharDev(rdev),
            Some(Kind::BlockDev) => NewKind::BlockDev(rdev),
            Some(Kind::Dir | Kind::Symlink) | None => return reply.error(fuser::Errno::EINVAL),
        };
        let cred = cred(req);
        let answer = self.run(req.pid(), Request::MkNod, || {
            self.make(&cred, (parent, name), kind, (mode, umask))
        });
        entry(answer, reply);
    }

    fn mkdir(
        &self,
        req: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (cred, kind) = (cred(req), NewKind::Dir);
        let answer = self.run(req.pid(), Request::MkDir, || {
            self.make(&cred, (parent, name), kind, (mode, umask))
        });
        entry(answer, reply);
    }

    fn symlink(
        &self,
        req: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let kind = NewKind::Symlink(target.as_os_str().as_bytes());
        let cred = cred(req);
        let answer = self.run(req.pid(), Request::Symlink, || {
            self.make(&cred, (parent, name), kind, (0o777, 0))
        });
        entry(answer, reply);
    }

    fn create(
        &self,
        req: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        if !self.behaviour.reads_must_be_seen {
            // Declined once: then the kernel sends MKNOD, and no RELEASE for a file it never
            // opened here. Files from CREATE would be released until it has tried an OPEN.
            self.monitor.saw(Request::Create);
            return reply.error(fuser::Errno::ENOSYS);
        }
        let (cred, kind) = (cred(req), NewKind::File);
        let answer = self.run(req.pid(), Request::Create, || {
            self.make(&cred, (parent, name), kind, (mode, umask))
        });
        crew::send(|| match answer {
            Ok((attr, generation)) => {
                let flags = FopenFlags::FOPEN_KEEP_CACHE;
                reply.created(&attr_ttl(&attr), &attr, generation, FileHandle(0), flags);
            }
            Err(errno) => reply.error(errno),
        });
    }

    fn unlink(&self, req: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let answer = self.run(req.pid(), Request::Unlink, || {
            self.vfs
                .unlink(&cred(req), &self.node(parent)?, name.as_bytes())
        });
        empty(answer, reply);
    }

    fn rmdir(&self, req: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let answer = self.run(req.pid(), Request::RmDir, || {
            self.vfs
                .rmdir(&cred(req), &self.node(parent)?, name.as_bytes())
        });
        empty(answer, reply);
    }

    fn rename(
        &self,
        req: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        to: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let answer = self.run(req.pid(), Request::Rename, || {
            let mode = convert::rename_mode(flags).ok_or(Errno::INVAL)?;
            let (from, to) = (self.node(parent)?, self.node(to)?);
            let (name, new_name) = (name.as_bytes(), new_name.as_bytes());
            self.vfs.rename(
                &cred(req),
                Place::new(&from, name),
                Place::new(&to, new_name),
                mode,
            )
        });
        empty(answer, reply);
    }

    fn link(
        &self,
        req: &fuser::Request,
        id: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let answer = self.run(req.pid(), Request::Link, || {
            let (node, dir) = (self.node(id)?, self.node(parent)?);
            self.vfs.link(&cred(req), &node, &dir, name.as_bytes())?;
            Ok(self.entry(node))
        });
        entry(answer, reply);
    }

    fn open(&self, _req: &fuser::Request, _id: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.monitor.saw(Request::Open);
        if self.behaviour.reads_must_be_seen {
            reply.opened(FileHandle(0), FopenFlags::empty());
        } else {
            reply.error(fuser::Errno::ENOSYS);
        }
    }

    fn release(
        &self,
        _req: &fuser::Request,
        _id: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.monitor.saw(Request::Release);
        reply.ok();
    }

    fn flush(
        &self,
        _req: &fuser::Request,
        _id: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.monitor.saw(Request::Flush);
        reply.error(fuser::Errno::ENOSYS);
    }

    fn read(
        &self,
        req: &fuser::Request,
        id: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let client = self.follower.reader(req.pid(), size);
        READ_BUF.with_borrow_mut(|buf| {
            let size = size as usize;
            if buf.len() < size {
                buf.resize(size, 0);
            }
            let answer = self.run(client, Request::Read, || {
                self.vfs.read(&self.node(id)?, offset, &mut buf[..size])
            });
            crew::send(|| match answer {
                Ok(read) => reply.data(&buf[..read]),
                Err(errno) => reply.error(errno),
            });
        });
    }

    fn write(
        &self,
        req: &fuser::Request,
        id: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        _open_flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let kills = flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let cred = if kills {
            unprivileged_writer(req)
        } else {
            cred(req)
        };
        // What is written back is nobody's who waits for it.
        let client = match flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            true => UNKNOWN,
            false => req.pid(),
        };
        let answer = self.run(client, Request::Write, || {
            let node = self.node(id)?;
            let mut written = self.vfs.write(&cred, &node, offset, data)?;
            // The page cache takes whatever is written for the whole: if it is less, that must be
            // an error.
            while flags.contains(WriteFlags::FUSE_WRITE_CACHE) && written < data.len() {
                let at = offset + written as u64;
                written += self.vfs.write(&cred, &node, at, &data[written..])?;
            }
            Ok(written)
        });
        if self.behaviour.writeback {
            // Of size and times the kernel knows more than we do then, and so it takes the blocks,
            // too, to be as they were before what it has just handed over.
            self.invalidate_attributes(id);
        }
        written(answer, reply);
    }

    fn fsync(
        &self,
        req: &fuser::Request,
        id: INodeNo,
        _fh: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let what = if data_only { Fsync::Data } else { Fsync::All };
        empty(
            self.run(req.pid(), Request::FSync, || {
                self.vfs.fsync(&self.node(id)?, what)
            }),
            reply,
        );
    }

    fn fsyncdir(
        &self,
        req: &fuser::Request,
        id: INodeNo,
        _fh: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let what = if data_only { Fsync::Data } else { Fsync::All };
        empty(
            self.run(req.pid(), Request::FSyncDir, || {
                self.vfs.fsync(&self.node(id)?, what)
            }),
            reply,
        );
    }

    fn opendir(&self, _req: &fuser::Request, _id: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.monitor.saw(Request::OpenDir);
        reply.error(fuser::Errno::ENOSYS);
    }

    fn readdir(
        &self,
        req: &fuser::Request,
        id: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let answer = self.run(req.pid(), Request::ReadDir, || {
            self.vfs.readdir(&self.node(id)?, offset, &mut |entry| {
                let (id, kind) = (self.table.id(entry.ino), convert::file_type(entry.kind));
                !reply.add(id, entry.cookie, kind, OsStr::from_bytes(entry.name))
            })
        });
        crew::send(|| match answer {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        });
    }

    fn readdirplus(
        &self,
        req: &fuser::Request,
        id: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let answer = self.run(req.pid(), Request::ReadDirPlus, || {
            let mut add = |cookie, name: &OsStr, attr: &FileAttr, generation| {
                reply.add(attr.ino, cookie, name, &attr_ttl(attr), attr, generation)
            };
            self.list(&cred(req), &self.node(id)?, offset, &mut add)
        });
        crew::send(|| match answer {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        });
    }

    fn statfs(&self, req: &fuser::Request, _id: INodeNo, reply: ReplyStatfs) {
        let answer = self.run(req.pid(), Request::StatFs, || Ok(self.vfs.statfs()));
        crew::send(|| match answer {
            Ok(s) => reply.statfs(
                s.blocks,
                s.free,
                s.free,
                s.files,
                s.files_free,
                s.block_size,
                self.vfs.fs().limits().name_max as u32,
                s.block_size,
            ),
            Err(errno) => reply.error(errno),
        });
    }

    fn setxattr(
        &self,
        req: &fuser::Request,
        id: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let answer = self.run(req.pid(), Request::SetXattr, || {
            let flags = XattrFlags::from_bits(flags.cast_unsigned()).ok_or(Errno::INVAL)?;
            let mode = if flags.contains(XattrFlags::CREATE) {
                XattrMode::Create
            } else if flags.contains(XattrFlags::REPLACE) {
                XattrMode::Replace
            } else {
                XattrMode::Any
            };
            self.vfs
                .setxattr(&cred(req), &self.node(id)?, name.as_bytes(), value, mode)
        });
        self.invalidate_attributes(id);
        empty(answer, reply);
    }

    fn getxattr(
        &self,
        req: &fuser::Request,
        id: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        if name.as_bytes() == STATUS_XATTR.as_bytes() {
            return xattr(self.tell_status(), size, reply);
        }
        if name.as_bytes() == SYNC_XATTR.as_bytes() {
            return xattr(self.sync(req.pid()), size, reply);
        }
        if let Some(command) = name.as_bytes().strip_prefix(CONTROL_XATTR.as_bytes()) {
            return xattr(self.control(req, command, size), size, reply);
        }
        let answer = self.run(req.pid(), Request::GetXattr, || {
            self.vfs
                .getxattr(&cred(req), &self.node(id)?, name.as_bytes())
        });
        xattr(answer, size, reply);
    }

    fn listxattr(&self, req: &fuser::Request, id: INodeNo, size: u32, reply: ReplyXattr) {
        let answer = self.run(req.pid(), Request::ListXattr, || {
            let mut cred = cred(req);
            // The one thing about names that the kernel leaves to us.
            if req.uid() != 0 {
                cred.caps.remove(Caps::SYS_ADMIN);
            }
            let names = self.vfs.listxattr(&cred, &self.node(id)?)?;
            let mut list = Vec::new();
            for name in names {
                list.extend_from_slice(&name);
                list.push(0);
            }
            Ok(list)
        });
        xattr(answer, size, reply);
    }

    fn removexattr(&self, req: &fuser::Request, id: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let answer = self.run(req.pid(), Request::RemoveXattr, || {
            self.vfs
                .removexattr(&cred(req), &self.node(id)?, name.as_bytes())
        });
        self.invalidate_attributes(id);
        empty(answer, reply);
    }

    fn access(
        &self,
        _req: &fuser::Request,
        _id: INodeNo,
        _mask: fuser::AccessFlags,
        reply: ReplyEmpty,
    ) {
        // With default_permissions the kernel decides; ENOSYS stops it from asking.
        self.monitor.saw(Request::Access);
        reply.error(fuser::Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        req: &fuser::Request,
        _id: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        self.monitor.saw(Request::Ioctl);
        match &self.shutdown {
            Some(shutdown) if cmd == FS_IOC_SHUTDOWN => {
                let adapter = Arc::clone(&self.0);
                shutdown.answer(req, move || adapter.write_back(), reply);
            }
            _ => reply.error(fuser::Errno::ENOTTY),
        }
    }

    fn poll(
        &self,
        _req: &fuser::Request,
        _id: INodeNo,
        _fh: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        // Files are always ready; ENOSYS makes the kernel know that without asking again.
        self.monitor.saw(Request::Poll);
        reply.error(fuser::Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        req: &fuser::Request,
        id: INodeNo,
        _fh: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let answer = self.run(req.pid(), Request::FAllocate, || {
            let mode = convert::fallocate(mode).ok_or(Errno::OPNOTSUPP)?;
            self.vfs
                .fallocate(&writer(req), &self.node(id)?, mode, offset, len)
        });
        self.doubt_after_failure(id, &answer);
        empty(answer, reply);
    }

    fn lseek(
        &self,
        req: &fuser::Request,
        id: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        if self.behaviour.writeback {
            // The kernel holds data that is not written yet, of files that are longer than we know.
            // Once it has been told that we cannot answer, it answers by itself: all is data, up to
            // the size that it knows.
            self.monitor.saw(Request::Lseek);
            return reply.error(fuser::Errno::ENOSYS);
        }
        // The values of SEEK_DATA and SEEK_HOLE are part of the kernel's ABI.
        let what = match whence {
            3 => SeekFor::Data,
            4 => SeekFor::Hole,
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(fuser::Errno::ENXIO);
        };
        holes::answer(&self.0, req.pid(), Search { id, offset, what }, reply);
    }

    fn copy_file_range(
        &self,
        req: &fuser::Request,
        from: INodeNo,
        _fh_in: FileHandle,
        from_offset: u64,
        to: INodeNo,
        _fh_out: FileHandle,
        to_offset: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let answer = self.run(req.pid(), Request::CopyFileRange, || {
            let (from, to) = (self.node(from)?, self.node(to)?);
            let len = len.min(COPY_MAX);
            // The kernel would not know of another access time, and believe the old one.
            self.vfs.copy_range_noatime(
                &writer(req),
                At::new(&from, from_offset),
                At::new(&to, to_offset),
                len,
            )
        });
        self.doubt_after_failure(to, &answer);
        written(answer.map(|copied| copied as usize), reply);
    }
}
