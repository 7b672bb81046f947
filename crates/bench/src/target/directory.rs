//! A directory of the kernel's, through system calls.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::fs::{Advice, AtFlags, Mode, OFlags, RawDir};

use super::{Result, Target, all_of, write_all};

/// Bytes of a `getdents` call, as the C library has it.
const LISTING: usize = 32 << 10;

/// A directory, on whatever file system it is.
pub struct Directory {
    name: String,
    root: OwnedFd,
    syncs: Syncs,
}

/// How to wait until everything is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Syncs {
    /// By `syncfs`.
    Call,
    /// By an attribute of the root that a mount of ours answers when everything is durable.
    Attribute,
    /// Not at all: tmpfs keeps nothing, and other servers of FUSE are not told.
    Never,
}

impl Syncs {
    fn of(root: &OwnedFd) -> Result<Syncs> {
        match rustix::fs::fstatfs(root)?.f_type as u64 {
            TMPFS => Ok(Syncs::Never),
            FUSE => match ask_to_sync(root) {
                Ok(()) => Ok(Syncs::Attribute),
                Err(_) => Ok(Syncs::Never),
            },
            _ => Ok(Syncs::Call),
        }
    }
}

/// Returns when all changes of a mount of ours are durable.
fn ask_to_sync(root: &OwnedFd) -> rustix::io::Result<()> {
    let mut answer = [0; 64];
    rustix::fs::fgetxattr(root, fuse::SYNC_XATTR, &mut answer[..]).map(drop)
}

/// Types of file systems, as `statfs` has them: tmpfs has nothing to sync, and FUSE does not
/// forward `syncfs` to servers in user space.
const TMPFS: u64 = 0x0102_1994;
const FUSE: u64 = 0x6573_5546;

/// A descriptor; [`Target::close`] closes it.
#[derive(Debug, Clone, Copy)]
pub struct Descriptor(RawFd);

impl Directory {
    /// The directory at `path`, called `name` in tables.
    pub fn new(name: impl Into<String>, path: &Path) -> Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        Directory::of(name, root)
    }

    /// The directory that a descriptor is open on.
    pub fn of(name: impl Into<String>, root: OwnedFd) -> Result<Directory> {
        Ok(Directory {
            name: name.into(),
            syncs: Syncs::of(&root)?,
            root,
        })
    }

    /// The same directory once more.
    pub fn again(&self) -> Result<Directory> {
        Ok(Directory {
            name: self.name.clone(),
            root: self.root.try_clone()?,
            syncs: self.syncs,
        })
    }

    fn open_with(&self, path: &CStr, flags: OFlags) -> Result<Descriptor> {
        let flags = flags | OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.root, path, flags, Mode::from_raw_mode(0o644))?;
        Ok(Descriptor(fd.into_raw_fd()))
    }
}

impl Descriptor {
    #[allow(
        unsafe_code,
        reason = "descriptors are plain numbers here, as in a C program"
    )]
    fn borrow(&self) -> BorrowedFd<'_> {
        // SAFETY: a workload uses a descriptor only between `open_with` and `close`.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

impl Target for Directory {
    type File = Descriptor;

    fn name(&self) -> &str {
        &self.name
    }

    fn create(&self, path: &CStr) -> Result<Descriptor> {
        self.open_with(path, OFlags::CREATE | OFlags::EXCL)
    }

    fn open(&self, path: &CStr, append: bool) -> Result<Descriptor> {
        let extra = if append {
            OFlags::APPEND
        } else {
            OFlags::empty()
        };
        self.open_with(path, extra)
    }

    #[allow(
        unsafe_code,
        reason = "descriptors are plain numbers here, as in a C program"
    )]
    fn close(&self, file: Descriptor) -> Result<()> {
        // SAFETY: `open_with` gave the descriptor away, and a workload closes it once.
        unsafe { rustix::io::close(file.0) };
        Ok(())
    }

    fn unlink(&self, path: &CStr) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.root, path, AtFlags::empty())?)
    }

    fn mkdir(&self, path: &CStr) -> Result<()> {
        let mode = Mode::from_raw_mode(0o755);
        Ok(rustix::fs::mkdirat(&self.root, path, mode)?)
    }

    fn rmdir(&self, path: &CStr) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.root, path, AtFlags::REMOVEDIR)?)
    }

    fn rename(&self, old: &CStr, new: &CStr) -> Result<()> {
        Ok(rustix::fs::renameat(&self.root, old, &self.root, new)?)
    }

    fn stat(&self, path: &CStr) -> Result<u64> {
        let stat = rustix::fs::statat(&self.root, path, AtFlags::empty())?;
        Ok(stat.st_size as u64)
    }

    fn write(&self, file: Descriptor, data: &[u8]) -> Result<()> {
        write_all(data, |rest, _| Ok(rustix::io::write(file.borrow(), rest)?))
    }

    fn write_at(&self, file: Descriptor, data: &[u8], offset: u64) -> Result<()> {
        write_all(data, |rest, done| {
            Ok(rustix::io::pwrite(file.borrow(), rest, offset + done)?)
        })
    }

    fn read_at(&self, file: Descriptor, data: &mut [u8], offset: u64) -> Result<()> {
        let asked = data.len();
        all_of(rustix::io::pread(file.borrow(), data, offset)?, asked)
    }

    fn uncached(&self, file: Descriptor) -> Result<()> {
        // Random: no read-ahead.
        for advice in [Advice::Random, Advice::DontNeed] {
            rustix::fs::fadvise(file.borrow(), 0, None, advice)?;
        }
        Ok(())
    }

    fn truncate(&self, file: Descriptor, size: u64) -> Result<()> {
        Ok(rustix::fs::ftruncate(file.borrow(), size)?)
    }

    fn list(&self, path: &CStr) -> Result<u64> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&self.root, path, flags, Mode::empty())?;
        let mut buffer = [MaybeUninit::uninit(); LISTING];
        let mut entries = RawDir::new(dir, &mut buffer);
        let mut names = 0;
        while let Some(entry) = entries.next() {
            entry?;
            names += 1;
        }
        Ok(names)
    }

    fn fsync(&self, file: Descriptor) -> Result<()> {
        Ok(rustix::fs::fsync(file.borrow())?)
    }

    fn fdatasync(&self, file: Descriptor) -> Result<()> {
        Ok(rustix::fs::fdatasync(file.borrow())?)
    }

    fn sync(&self) -> Result<()> {
        match self.syncs {
            Syncs::Attribute => ask_to_sync(&self.root)?,
            Syncs::Call | Syncs::Never => rustix::fs::syncfs(&self.root)?,
        }
        Ok(())
    }

    fn sync_waits(&self) -> bool {
        self.syncs != Syncs::Never
    }
}
