//! What serves requests, and how each request finds its method.
//!
//! A method gets what a request says and the [`crate::reply::Reply`] to it, whichever way both go.
//! There are no handles (see `requests`), so that requests name inodes alone.

use std::ffi::OsStr;

use fuser::{Errno, INodeNo};

use crate::reply::{
    Reply, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Unanswered,
};
use crate::wire::{Caller, Incoming, Opcode, SetAttr, TooShort};

/// The data was not written by a program just now: the page cache hands it over.
pub const WRITE_CACHE: u32 = 1 << 0;

/// The set-id bits of the file must go.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// A change of attributes is only of data (`fdatasync`).
const FSYNC_FDATASYNC: u32 = 1 << 0;

/// A range of a file to copy, and where to.
#[derive(Debug, Clone, Copy)]
pub struct Copy {
    pub from: INodeNo,
    pub from_offset: u64,
    pub to: INodeNo,
    pub to_offset: u64,
    pub len: u64,
}

/// A new inode that is no directory and no link: arguments of mknod(2), and the caller's mask.
#[derive(Debug, Clone, Copy)]
pub struct NewSpecial {
    pub mode: u32,
    pub umask: u32,
    pub rdev: u32,
}

/// Bytes to write at an offset.
#[derive(Debug, Clone, Copy)]
pub struct Written<'a> {
    pub offset: u64,
    pub data: &'a [u8],
    /// [`WRITE_CACHE`], [`WRITE_KILL_SUIDGID`].
    pub flags: u32,
}

/// An extended attribute to set.
#[derive(Debug, Clone, Copy)]
pub struct NewXattr<'a> {
    pub name: &'a OsStr,
    pub value: &'a [u8],
    /// As for setxattr(2).
    pub flags: u32,
}

/// A range to allocate, or to give back: arguments of fallocate(2).
#[derive(Debug, Clone, Copy)]
pub struct Allocation {
    pub mode: i32,
    pub offset: u64,
    pub len: u64,
}

/// Serves requests. What a server does not offer is answered `ENOSYS`.
#[allow(unused_variables, reason = "the names say what each argument is")]
pub trait Handler: Send + Sync + 'static {
    /// The kernel gives back so many references to an inode. There is no answer.
    fn forget(&self, id: INodeNo, lookups: u64);

    fn lookup(&self, req: &Caller, parent: INodeNo, name: &OsStr, reply: ReplyEntry);

    fn getattr(&self, req: &Caller, id: INodeNo, reply: ReplyAttr);

    fn setattr(&self, req: &Caller, id: INodeNo, set: &SetAttr, reply: ReplyAttr);

    fn readlink(&self, req: &Caller, id: INodeNo, reply: ReplyData) {
        reply.error(Errno::ENOSYS);
    }

    fn mknod(&self, req: &Caller, at: (INodeNo, &OsStr), new: NewSpecial, reply: ReplyEntry);

    fn mkdir(&self, req: &Caller, at: (INodeNo, &OsStr), mode: u32, umask: u32, reply: ReplyEntry);

    fn symlink(&self, req: &Caller, at: (INodeNo, &OsStr), target: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::ENOSYS);
    }

    fn unlink(&self, req: &Caller, parent: INodeNo, name: &OsStr, reply: ReplyEmpty);

    fn rmdir(&self, req: &Caller, parent: INodeNo, name: &OsStr, reply: ReplyEmpty);

    /// `flags` as for renameat2(2).
    fn rename(
        &self,
        req: &Caller,
        from: (INodeNo, &OsStr),
        to: (INodeNo, &OsStr),
        flags: u32,
        reply: ReplyEmpty,
    );

    fn link(&self, req: &Caller, id: INodeNo, at: (INodeNo, &OsStr), reply: ReplyEntry) {
        reply.error(Errno::ENOSYS);
    }

    fn open(&self, req: &Caller, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn create(
        &self,
        req: &Caller,
        at: (INodeNo, &OsStr),
        mode: u32,
        umask: u32,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn release(&self, req: &Caller, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn flush(&self, req: &Caller, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn read(&self, req: &Caller, id: INodeNo, offset: u64, size: u32, reply: ReplyData);

    fn write(&self, req: &Caller, id: INodeNo, what: Written<'_>, reply: ReplyWrite);

    fn fsync(&self, req: &Caller, id: INodeNo, data_only: bool, reply: ReplyEmpty);

    fn opendir(&self, req: &Caller, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn releasedir(&self, req: &Caller, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(&self, req: &Caller, id: INodeNo, offset: u64, reply: ReplyDirectory);

    fn readdirplus(&self, req: &Caller, id: INodeNo, offset: u64, reply: ReplyDirectory);

    fn fsyncdir(&self, req: &Caller, id: INodeNo, data_only: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn statfs(&self, req: &Caller, reply: ReplyStatfs) {
        reply.error(Errno::ENOSYS);
    }

    fn setxattr(&self, req: &Caller, id: INodeNo, new: NewXattr<'_>, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// `size`: the room that the caller has for it; 0: it asks for the size.
    fn getxattr(&self, req: &Caller, id: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr);

    fn listxattr(&self, req: &Caller, id: INodeNo, size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn removexattr(&self, req: &Caller, id: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn access(&self, req: &Caller, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(&self, req: &Caller, command: u32, reply: ReplyIoctl) {
        reply.error(Errno::ENOSYS);
    }

    fn poll(&self, req: &Caller, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(&self, req: &Caller, id: INodeNo, range: Allocation, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// `whence` as for lseek(2): `SEEK_DATA` or `SEEK_HOLE`.
    fn lseek(&self, req: &Caller, id: INodeNo, offset: i64, whence: u32, reply: ReplyLseek) {
        reply.error(Errno::ENOSYS);
    }

    fn copy_file_range(&self, req: &Caller, copy: Copy, reply: ReplyWrite) {
        reply.error(Errno::ENOSYS);
    }
}

/// Serve one request. `answer` makes what is to be answered; a request that has no answer does not
/// ask for it.
///
/// # Errors
/// When the request is shorter than it should be. If it could be answered, it is, by an error.
pub fn dispatch(
    handler: &impl Handler,
    request: Incoming<'_>,
    answer: impl FnOnce() -> Unanswered,
) -> Result<(), TooShort> {
    let Incoming {
        caller,
        opcode,
        node: id,
        mut fixed,
        mut rest,
    } = request;
    match opcode {
        Opcode::Forget => {
            handler.forget(id, fixed.u64()?);
            return Ok(());
        }
        Opcode::BatchForget => {
            for _ in 0..fixed.u32()? {
                handler.forget(rest.inode()?, rest.u64()?);
            }
            return Ok(());
        }
        _ => {}
    }
    let (req, answer) = (&caller, answer());
    match opcode {
        Opcode::Lookup => handler.lookup(req, id, rest.name()?, Reply::to(answer)),
        Opcode::GetAttr => handler.getattr(req, id, Reply::to(answer)),
        Opcode::SetAttr => handler.setattr(req, id, &SetAttr::parse(fixed)?, Reply::to(answer)),
        Opcode::ReadLink => handler.readlink(req, id, Reply::to(answer)),
        Opcode::Symlink => {
            let (name, target) = (rest.name()?, rest.name()?);
            handler.symlink(req, (id, name), target, Reply::to(answer));
        }
        Opcode::MkNod => {
            let (mode, rdev, umask) = (fixed.u32()?, fixed.u32()?, fixed.u32()?);
            let new = NewSpecial { mode, umask, rdev };
            handler.mknod(req, (id, rest.name()?), new, Reply::to(answer));
        }
        Opcode::MkDir => {
            let (mode, umask) = (fixed.u32()?, fixed.u32()?);
            handler.mkdir(req, (id, rest.name()?), mode, umask, Reply::to(answer));
        }
        Opcode::Unlink => handler.unlink(req, id, rest.name()?, Reply::to(answer)),
        Opcode::RmDir => handler.rmdir(req, id, rest.name()?, Reply::to(answer)),
        Opcode::Rename | Opcode::Rename2 => {
            let to = fixed.inode()?;
            let flags = match opcode {
                Opcode::Rename2 => fixed.u32()?,
                _ => 0,
            };
            let (name, new_name) = (rest.name()?, rest.name()?);
            handler.rename(req, (id, name), (to, new_name), flags, Reply::to(answer));
        }
        Opcode::Link => {
            let old = fixed.inode()?;
            handler.link(req, old, (id, rest.name()?), Reply::to(answer));
        }
        Opcode::Open => handler.open(req, Reply::to(answer)),
        Opcode::Create => {
            let (_flags, mode, umask) = (fixed.u32()?, fixed.u32()?, fixed.u32()?);
            handler.create(req, (id, rest.name()?), mode, umask, Reply::to(answer));
        }
        Opcode::Release => handler.release(req, Reply::to(answer)),
        Opcode::Flush => handler.flush(req, Reply::to(answer)),
        Opcode::Read => {
            let (_handle, offset, size) = (fixed.u64()?, fixed.u64()?, fixed.u32()?);
            handler.read(req, id, offset, size, Reply::to(answer));
        }
        Opcode::Write => {
            let (_handle, offset) = (fixed.u64()?, fixed.u64()?);
            let (size, flags) = (fixed.u32()?, fixed.u32()?);
            let data = rest.data(size)?;
            let what = Written {
                offset,
                data,
                flags,
            };
            handler.write(req, id, what, Reply::to(answer));
        }
        Opcode::FSync | Opcode::FSyncDir => {
            let (_handle, flags) = (fixed.u64()?, fixed.u32()?);
            let (data_only, reply) = (flags & FSYNC_FDATASYNC != 0, Reply::to(answer));
            match opcode {
                Opcode::FSync => handler.fsync(req, id, data_only, reply),
                _ => handler.fsyncdir(req, id, data_only, reply),
            }
        }
        Opcode::OpenDir => handler.opendir(req, Reply::to(answer)),
        Opcode::ReleaseDir => handler.releasedir(req, Reply::to(answer)),
        Opcode::ReadDir | Opcode::ReadDirPlus => {
            let (_handle, offset, size) = (fixed.u64()?, fixed.u64()?, fixed.u32()?);
            let reply = ReplyDirectory::to(answer, size);
            match opcode {
                Opcode::ReadDir => handler.readdir(req, id, offset, reply),
                _ => handler.readdirplus(req, id, offset, reply),
            }
        }
        Opcode::StatFs => handler.statfs(req, Reply::to(answer)),
        Opcode::SetXattr => {
            let (size, flags) = (fixed.u32()?, fixed.u32()?);
            let (name, value) = (rest.name()?, rest.data(size)?);
            let new = NewXattr { name, value, flags };
            handler.setxattr(req, id, new, Reply::to(answer));
        }
        Opcode::GetXattr => {
            let size = fixed.u32()?;
            handler.getxattr(req, id, rest.name()?, size, Reply::to(answer));
        }
        Opcode::ListXattr => handler.listxattr(req, id, fixed.u32()?, Reply::to(answer)),
        Opcode::RemoveXattr => handler.removexattr(req, id, rest.name()?, Reply::to(answer)),
        Opcode::Access => handler.access(req, Reply::to(answer)),
        Opcode::Ioctl => {
            let (_handle, _flags, command) = (fixed.u64()?, fixed.u32()?, fixed.u32()?);
            handler.ioctl(req, command, Reply::to(answer));
        }
        Opcode::Poll => handler.poll(req, Reply::to(answer)),
        Opcode::FAllocate => {
            let (_handle, offset, len) = (fixed.u64()?, fixed.u64()?, fixed.u64()?);
            let mode = fixed.u32()?.cast_signed();
            let range = Allocation { mode, offset, len };
            handler.fallocate(req, id, range, Reply::to(answer));
        }
        Opcode::Lseek => {
            let (_handle, offset, whence) = (fixed.u64()?, fixed.u64()?, fixed.u32()?);
            handler.lseek(req, id, offset.cast_signed(), whence, Reply::to(answer));
        }
        Opcode::CopyFileRange => {
            let (_handle, from_offset) = (fixed.u64()?, fixed.u64()?);
            let (to, _handle, to_offset) = (fixed.inode()?, fixed.u64()?, fixed.u64()?);
            let copy = Copy {
                from: id,
                from_offset,
                to,
                to_offset,
                len: fixed.u64()?,
            };
            handler.copy_file_range(req, copy, Reply::to(answer));
        }
        Opcode::Destroy => Reply::<crate::reply::kind::Empty>::to(answer).ok(),
        Opcode::Forget | Opcode::BatchForget | Opcode::Other => {
            Reply::<crate::reply::kind::Empty>::to(answer).error(Errno::ENOSYS);
        }
    }
    Ok(())
}
