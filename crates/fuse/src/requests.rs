//! Each FUSE request as one call of the VFS.
//!
//! Permissions were checked by the kernel (`default_permissions`), so credentials only say who owns
//! what is made. There are no handles: OPEN, OPENDIR and CREATE are answered `ENOSYS` once, after
//! which the kernel sends neither them nor RELEASE (it makes files by MKNOD), and each request
//! names its inode.

use std::ffi::OsStr;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use fuser::{Generation, INodeNo};
use rustix::fs::XattrFlags;
use vfs::{
    At, Attr, Caps, Cred, Errno, FileSystem, Fsync, Kind, NewKind, Place, SeekFor, SetAttrRequest,
    XattrMode,
};

use crate::adapter::{Adapter, Pages, TTL, attr_ttl, permission_bits};
use crate::convert::{self, Answer, FileAttr};
use crate::crew;
use crate::follow::UNKNOWN;
use crate::handler::{
    Allocation, Copy, Handler, NewSpecial, NewXattr, WRITE_CACHE, WRITE_KILL_SUIDGID, Written,
};
use crate::holes::{self, Search};
use crate::monitor::Request;
use crate::reply::{
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Ttl,
};
use crate::shutdown::FS_IOC_SHUTDOWN;
use crate::wire::{Caller, SetAttr};
use crate::xattrs::{CONTROL_XATTR, STATUS_XATTR, SYNC_XATTR};

/// Largest copy in one request: the reply's count has 32 bits; whole pages.
const COPY_MAX: u64 = (u32::MAX as u64) & !0xFFF;

/// Of an open file: what is cached of it stays.
const FOPEN_KEEP_CACHE: u32 = 1 << 1;

fn cred(req: &Caller) -> Cred {
    Cred::checked_by_kernel(req.uid(), req.gid())
}

/// The caller of something that changes contents, in a request that does not say whether set-id
/// bits must go (FALLOCATE has no such flag, and for truncation this one rule does, too): for all
/// but the superuser they do.
fn writer(req: &Caller) -> Cred {
    if req.uid() == 0 {
        cred(req)
    } else {
        unprivileged_writer(req)
    }
}

fn unprivileged_writer(req: &Caller) -> Cred {
    let mut cred = cred(req);
    cred.caps.remove(Caps::FSETID);
    cred
}

fn empty(answer: Answer<()>, reply: ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

/// How long the kernel may believe a name, and the attributes of what it leads to.
fn ttl(attr: &FileAttr) -> Ttl {
    Ttl {
        entry: TTL,
        attr: attr_ttl(attr),
    }
}

fn entry(answer: Answer<(FileAttr, Generation)>, reply: ReplyEntry) {
    match answer {
        Ok((attr, generation)) => reply.entry(&ttl(&attr), &attr, generation),
        Err(errno) => reply.error(errno),
    }
}

fn attr(id: INodeNo, answer: Answer<Attr>, reply: ReplyAttr) {
    match answer {
        Ok(attr) => {
            let attr = convert::file_attr(id, &attr);
            reply.attr(attr_ttl(&attr), &attr);
        }
        Err(errno) => reply.error(errno),
    }
}

fn written(answer: Answer<usize>, reply: ReplyWrite) {
    match answer {
        Ok(written) => reply.written(written as u32),
        Err(errno) => reply.error(errno),
    }
}

/// An attribute's value, or its size when the caller only asks for that.
pub fn xattr(answer: Answer<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match answer {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(fuser::Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(errno),
    }
}

/// An adapter that serves; shared, for what is answered from other threads.
pub struct Server<F: FileSystem>(pub Arc<Adapter<F>>);

impl<F: FileSystem> Deref for Server<F> {
    type Target = Adapter<F>;

    fn deref(&self) -> &Adapter<F> {
        &self.0
    }
}

impl<F: FileSystem> Handler for Server<F> {
    fn lookup(&self, req: &Caller, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
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
                reply.entry(&ttl(&absent), &absent, Generation(0));
            }
            other => entry(other, reply),
        }
    }

    fn forget(&self, id: INodeNo, lookups: u64) {
        let _ = self.run(UNKNOWN, Request::Forget, || {
            self.table.forget(id, lookups);
            Ok(())
        });
        crew::send(|| ());
    }

    fn getattr(&self, req: &Caller, id: INodeNo, reply: ReplyAttr) {
        let answer = self.run(req.pid(), Request::GetAttr, || {
            Ok(self.vfs.getattr(&self.node(id)?))
        });
        attr(id, answer, reply);
    }

    fn setattr(&self, req: &Caller, id: INodeNo, set: &SetAttr, reply: ReplyAttr) {
        let change = SetAttrRequest {
            perm: set.mode.map(permission_bits),
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: set.atime,
            mtime: set.mtime,
            ctime: set.ctime,
        };
        // A mode that is set explicitly has been decided by the kernel.
        let cred = if set.size.is_some() && set.mode.is_none() {
            writer(req)
        } else {
            cred(req)
        };
        let answer = self.run(req.pid(), Request::SetAttr, || {
            self.vfs.setattr(&cred, &self.node(id)?, &change)
        });
        self.doubt_after_failure(id, &answer);
        attr(id, answer, reply);
    }

    fn readlink(&self, req: &Caller, id: INodeNo, reply: ReplyData) {
        let answer = self.run(req.pid(), Request::ReadLink, || {
            self.vfs.readlink(&self.node(id)?)
        });
        match answer {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(&self, req: &Caller, at: (INodeNo, &OsStr), new: NewSpecial, reply: ReplyEntry) {
        let NewSpecial { mode, umask, rdev } = new;
        let kind = match Kind::from_mode(mode) {
            Some(Kind::File) => NewKind::File,
            Some(Kind::Fifo) => NewKind::Fifo,
            Some(Kind::Socket) => NewKind::Socket,
            Some(Kind::CharDev) => NewKind::CharDev(rdev),
            Some(Kind::BlockDev) => NewKind::BlockDev(rdev),
            Some(Kind::Dir | Kind::Symlink) | None => return reply.error(fuser::Errno::EINVAL),
        };
        let answer = self.run(req.pid(), Request::MkNod, || {
            self.make(&cred(req), at, kind, (mode, umask))
        });
        entry(answer, reply);
    }

    fn mkdir(&self, req: &Caller, at: (INodeNo, &OsStr), mode: u32, umask: u32, reply: ReplyEntry) {
        let answer = self.run(req.pid(), Request::MkDir, || {
            self.make(&cred(req), at, NewKind::Dir, (mode, umask))
        });
        entry(answer, reply);
    }

    fn symlink(&self, req: &Caller, at: (INodeNo, &OsStr), target: &OsStr, reply: ReplyEntry) {
        let kind = NewKind::Symlink(target.as_bytes());
        let answer = self.run(req.pid(), Request::Symlink, || {
            self.make(&cred(req), at, kind, (0o777, 0))
        });
        entry(answer, reply);
    }

    fn create(
        &self,
        req: &Caller,
        at: (INodeNo, &OsStr),
        mode: u32,
        umask: u32,
        reply: ReplyCreate,
    ) {
        if !self.behaviour.reads_must_be_seen {
            // Declined once: then the kernel sends MKNOD, and no RELEASE for a file it never
            // opened here. Files from CREATE would be released until it has tried an OPEN.
            self.monitor.saw(Request::Create);
            return reply.error(fuser::Errno::ENOSYS);
        }
        let answer = self.run(req.pid(), Request::Create, || {
            self.make(&cred(req), at, NewKind::File, (mode, umask))
        });
        match answer {
            Ok((attr, generation)) => {
                reply.created(&ttl(&attr), &attr, generation, FOPEN_KEEP_CACHE);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn unlink(&self, req: &Caller, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let answer = self.run(req.pid(), Request::Unlink, || {
            self.vfs
                .unlink(&cred(req), &self.node(parent)?, name.as_bytes())
        });
        empty(answer, reply);
    }

    fn rmdir(&self, req: &Caller, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let answer = self.run(req.pid(), Request::RmDir, || {
            self.vfs
                .rmdir(&cred(req), &self.node(parent)?, name.as_bytes())
        });
        empty(answer, reply);
    }

    fn rename(
        &self,
        req: &Caller,
        (parent, name): (INodeNo, &OsStr),
        (to, new_name): (INodeNo, &OsStr),
        flags: u32,
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
        req: &Caller,
        id: INodeNo,
        (parent, name): (INodeNo, &OsStr),
        reply: ReplyEntry,
    ) {
        let answer = self.run(req.pid(), Request::Link, || {
            let (node, dir) = (self.node(id)?, self.node(parent)?);
            self.vfs.link(&cred(req), &node, &dir, name.as_bytes())?;
            Ok(self.entry(node))
        });
        entry(answer, reply);
    }

    fn open(&self, _req: &Caller, reply: ReplyOpen) {
        self.monitor.saw(Request::Open);
        if self.behaviour.reads_must_be_seen {
            reply.opened();
        } else {
            reply.error(fuser::Errno::ENOSYS);
        }
    }

    fn release(&self, _req: &Caller, reply: ReplyEmpty) {
        self.monitor.saw(Request::Release);
        reply.ok();
    }

    fn flush(&self, _req: &Caller, reply: ReplyEmpty) {
        self.monitor.saw(Request::Flush);
        reply.error(fuser::Errno::ENOSYS);
    }

    fn read(&self, req: &Caller, id: INodeNo, offset: u64, size: u32, reply: ReplyData) {
        let client = self.follower.reader(req.pid(), size);
        reply.read(size, |buf| {
            self.run(client, Request::Read, || {
                self.vfs.read(&self.node(id)?, offset, buf)
            })
        });
    }

    fn write(&self, req: &Caller, id: INodeNo, what: Written<'_>, reply: ReplyWrite) {
        let Written {
            offset,
            data,
            flags,
        } = what;
        let cred = if flags & WRITE_KILL_SUIDGID != 0 {
            unprivileged_writer(req)
        } else {
            cred(req)
        };
        let of_the_cache = flags & WRITE_CACHE != 0;
        // What is written back is nobody's who waits for it.
        let client = if of_the_cache { UNKNOWN } else { req.pid() };
        let answer = self.run(client, Request::Write, || {
            let node = self.node(id)?;
            let mut written = self.vfs.write(&cred, &node, offset, data)?;
            // The page cache takes whatever is written for the whole: if it is less, that must be
            // an error.
            while of_the_cache && written < data.len() {
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

    fn fsync(&self, req: &Caller, id: INodeNo, data_only: bool, reply: ReplyEmpty) {
        let what = if data_only { Fsync::Data } else { Fsync::All };
        empty(
            self.run(req.pid(), Request::FSync, || {
                self.vfs.fsync(&self.node(id)?, what)
            }),
            reply,
        );
    }

    fn fsyncdir(&self, req: &Caller, id: INodeNo, data_only: bool, reply: ReplyEmpty) {
        let what = if data_only { Fsync::Data } else { Fsync::All };
        empty(
            self.run(req.pid(), Request::FSyncDir, || {
                self.vfs.fsync(&self.node(id)?, what)
            }),
            reply,
        );
    }

    fn opendir(&self, _req: &Caller, reply: ReplyOpen) {
        self.monitor.saw(Request::OpenDir);
        reply.error(fuser::Errno::ENOSYS);
    }

    fn readdir(&self, req: &Caller, id: INodeNo, offset: u64, mut reply: ReplyDirectory) {
        let answer = self.run(req.pid(), Request::ReadDir, || {
            self.vfs.readdir(&self.node(id)?, offset, &mut |entry| {
                let (id, name) = (self.table.id(entry.ino), OsStr::from_bytes(entry.name));
                !reply.add(id, entry.cookie, entry.kind, name)
            })
        });
        match answer {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(&self, req: &Caller, id: INodeNo, offset: u64, mut reply: ReplyDirectory) {
        let answer = self.run(req.pid(), Request::ReadDirPlus, || {
            let mut add = |cookie, name: &OsStr, attr: &FileAttr, generation| {
                reply.add_entry(cookie, name, &ttl(attr), attr, generation)
            };
            self.list(&cred(req), &self.node(id)?, offset, &mut add)
        });
        match answer {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn statfs(&self, req: &Caller, reply: ReplyStatfs) {
        let answer = self.run(req.pid(), Request::StatFs, || Ok(self.vfs.statfs()));
        match answer {
            Ok(statistics) => {
                let name_max = self.vfs.fs().limits().name_max as u32;
                reply.statfs(&statistics, name_max);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn setxattr(&self, req: &Caller, id: INodeNo, new: NewXattr<'_>, reply: ReplyEmpty) {
        let answer = self.run(req.pid(), Request::SetXattr, || {
            let flags = XattrFlags::from_bits(new.flags).ok_or(Errno::INVAL)?;
            let mode = if flags.contains(XattrFlags::CREATE) {
                XattrMode::Create
            } else if flags.contains(XattrFlags::REPLACE) {
                XattrMode::Replace
            } else {
                XattrMode::Any
            };
            let (node, name) = (self.node(id)?, new.name.as_bytes());
            self.vfs.setxattr(&cred(req), &node, name, new.value, mode)
        });
        self.invalidate_attributes(id);
        empty(answer, reply);
    }

    fn getxattr(&self, req: &Caller, id: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
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

    fn listxattr(&self, req: &Caller, id: INodeNo, size: u32, reply: ReplyXattr) {
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

    fn removexattr(&self, req: &Caller, id: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let answer = self.run(req.pid(), Request::RemoveXattr, || {
            self.vfs
                .removexattr(&cred(req), &self.node(id)?, name.as_bytes())
        });
        self.invalidate_attributes(id);
        empty(answer, reply);
    }

    fn access(&self, _req: &Caller, reply: ReplyEmpty) {
        // With default_permissions the kernel decides; ENOSYS stops it from asking.
        self.monitor.saw(Request::Access);
        reply.error(fuser::Errno::ENOSYS);
    }

    fn ioctl(&self, req: &Caller, command: u32, reply: ReplyIoctl) {
        self.monitor.saw(Request::Ioctl);
        match &self.shutdown {
            Some(shutdown) if command == FS_IOC_SHUTDOWN => {
                let adapter = Arc::clone(&self.0);
                shutdown.answer(req, move || adapter.write_back(), reply);
            }
            _ => reply.error(fuser::Errno::ENOTTY),
        }
    }

    fn poll(&self, _req: &Caller, reply: ReplyEmpty) {
        // Files are always ready; ENOSYS makes the kernel know that without asking again.
        self.monitor.saw(Request::Poll);
        reply.error(fuser::Errno::ENOSYS);
    }

    fn fallocate(&self, req: &Caller, id: INodeNo, range: Allocation, reply: ReplyEmpty) {
        let answer = self.run(req.pid(), Request::FAllocate, || {
            let mode = convert::fallocate(range.mode).ok_or(Errno::OPNOTSUPP)?;
            let node = self.node(id)?;
            self.vfs
                .fallocate(&writer(req), &node, mode, range.offset, range.len)
        });
        self.doubt_after_failure(id, &answer);
        empty(answer, reply);
    }

    fn lseek(&self, req: &Caller, id: INodeNo, offset: i64, whence: u32, reply: ReplyLseek) {
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

    fn copy_file_range(&self, req: &Caller, copy: Copy, reply: ReplyWrite) {
        let answer = self.run(req.pid(), Request::CopyFileRange, || {
            let (from, to) = (self.node(copy.from)?, self.node(copy.to)?);
            let len = copy.len.min(COPY_MAX);
            // The kernel would not know of another access time, and believe the old one.
            self.vfs.copy_range_noatime(
                &writer(req),
                At::new(&from, copy.from_offset),
                At::new(&to, copy.to_offset),
                len,
            )
        });
        self.doubt_after_failure(copy.to, &answer);
        written(answer.map(|copied| copied as usize), reply);
    }
}
