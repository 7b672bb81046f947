//! The open file, and requests on it as plain system calls.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};

use super::OpenOptions;
use crate::device::{Identity, Info, Request, SECTOR};
use crate::{Buffer, LockedFile, OpenError};

/// `TMPFS_MAGIC`, as statfs(2) has it.
const TMPFS: u32 = 0x0102_1994;

/// The kernel takes no longer lists (`IOV_MAX`).
pub(super) const VECTORS_MAX: usize = 1024;

/// An image file or a block device.
pub(super) struct Host {
    pub(super) file: LockedFile,
    pub(super) info: Info,
    pub(super) kind: Kind,
    /// The host tells holes, and it takes no longer than to read what is there.
    tells_holes: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Image,
    BlockDevice,
}

impl Host {
    pub(super) fn open(path: &Path, options: &OpenOptions) -> Result<Host, OpenError> {
        let fail = |action| {
            move |source| OpenError::Io {
                path: path.into(),
                action,
                source,
            }
        };
        // Asked before it is opened: to open a pipe could block.
        let kind = kind(&std::fs::metadata(path).map_err(fail("looking at it"))?)
            .ok_or_else(|| OpenError::NotABlockDevice { path: path.into() })?;
        let (file, direct) = open(path, kind, options)?;
        let file = match options.lock {
            true => lock(file, path, options)?,
            false => LockedFile::without(file),
        };
        let metadata = file.metadata().map_err(fail("looking at it"))?;
        // The end, as metadata tells no length of a block device.
        let len = rustix::fs::seek(&*file, SeekFrom::End(0))
            .map_err(|errno| fail("measuring")(errno.into()))?;
        if len < SECTOR {
            let path = path.into();
            return Err(OpenError::TooSmall { path, len });
        }
        let identity = match kind {
            Kind::Image => Identity {
                device: metadata.dev(),
                inode: metadata.ino(),
            },
            Kind::BlockDevice => Identity {
                device: metadata.rdev(),
                inode: 0,
            },
        };
        let info = Info {
            name: path.display().to_string(),
            how: if direct { "O_DIRECT" } else { "buffered" }.to_owned(),
            len: len / SECTOR * SECTOR,
            identity: Some(identity),
            read_only: options.read_only,
        };
        // All of it may be reserved. Then tmpfs would look at page after page for what is written.
        let is_reserved = metadata.blocks() >= len / SECTOR;
        let is_in_memory = rustix::fs::fstatfs(&*file).is_ok_and(|fs| fs.f_type as u32 == TMPFS);
        Ok(Host {
            tells_holes: kind == Kind::Image && !(is_reserved && is_in_memory),
            file,
            info,
            kind,
        })
    }

    /// Where the first block of the host at or behind `at` is; there if it cannot tell.
    pub(super) fn data_from(&self, at: u64) -> u64 {
        if !self.tells_holes {
            return at;
        }
        match rustix::fs::seek(&*self.file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => u64::MAX,
            Err(_) => at,
        }
    }

    /// Does a request from its beginning.
    pub(super) fn run(&self, request: &mut Request) -> Result<(), Errno> {
        if let Request::Allocate { .. } | Request::Zero { .. } | Request::Discard { .. } = request {
            return self.change_range(request);
        }
        let mut done = 0;
        while done < request.action().len {
            let moved = match request {
                Request::Read { at, into } => self.read(*at, into, done)?,
                Request::Write { at, from, .. } => self.write(*at, from, done)?,
                _ => 0,
            };
            done = progress(done, moved)?;
        }
        if request.flushes() {
            rustix::io::retry_on_intr(|| rustix::fs::fdatasync(&*self.file))?;
        }
        Ok(())
    }

    fn read(&self, at: u64, into: &mut [Buffer], done: u64) -> Result<usize, Errno> {
        let (first, skip) = resume(into.iter().map(|buffer| buffer.len()), done);
        let mut vectors: Vec<IoSliceMut<'_>> = Vec::new();
        for (i, buffer) in into[first..].iter_mut().take(VECTORS_MAX).enumerate() {
            let skip = if i == 0 { skip } else { 0 };
            vectors.push(IoSliceMut::new(&mut buffer[skip..]));
        }
        let none = ReadWriteFlags::empty();
        rustix::io::retry_on_intr(|| {
            rustix::io::preadv2(&*self.file, &mut vectors, at + done, none)
        })
    }

    fn write(&self, at: u64, from: &[Buffer], done: u64) -> Result<usize, Errno> {
        let (first, skip) = resume(from.iter().map(|buffer| buffer.len()), done);
        let mut vectors: Vec<IoSlice<'_>> = Vec::new();
        for (i, buffer) in from[first..].iter().take(VECTORS_MAX).enumerate() {
            let skip = if i == 0 { skip } else { 0 };
            vectors.push(IoSlice::new(&buffer[skip..]));
        }
        let none = ReadWriteFlags::empty();
        rustix::io::retry_on_intr(|| rustix::io::pwritev2(&*self.file, &vectors, at + done, none))
    }

    /// Zeroes, discards or allocates.
    fn change_range(&self, request: &Request) -> Result<(), Errno> {
        let action = request.action();
        let Some(mode) = self.fallocate_mode(request) else {
            return Ok(());
        };
        let call = || rustix::fs::fallocate(&*self.file, mode, action.at, action.len);
        rustix::io::retry_on_intr(call)
    }

    /// How `fallocate` does it; `None`: there is nothing to do.
    pub(super) fn fallocate_mode(&self, request: &Request) -> Option<FallocateFlags> {
        match (request, self.kind) {
            (Request::Zero { .. }, _) => {
                Some(FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE)
            }
            (Request::Discard { .. }, _) => {
                Some(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE)
            }
            (Request::Allocate { .. }, Kind::Image) => Some(FallocateFlags::KEEP_SIZE),
            _ => None,
        }
    }
}

/// Bytes done, after `moved` more. Whole sectors count: the rest of one is done again.
pub(super) fn progress(done: u64, moved: usize) -> Result<u64, Errno> {
    let moved = moved as u64 / SECTOR * SECTOR;
    // The file became shorter than it was, or the device ended.
    if moved == 0 {
        Err(Errno::IO)
    } else {
        Ok(done + moved)
    }
}

/// The buffer, and the byte in it, where a list continues after `done` bytes.
pub(super) fn resume(lens: impl Iterator<Item = usize>, done: u64) -> (usize, usize) {
    let mut left = done as usize;
    for (i, len) in lens.enumerate() {
        if left < len {
            return (i, left);
        }
        left -= len;
    }
    unreachable!("a list that is complete does not continue")
}

fn kind(metadata: &std::fs::Metadata) -> Option<Kind> {
    if metadata.is_file() {
        Some(Kind::Image)
    } else if metadata.file_type().is_block_device() {
        Some(Kind::BlockDevice)
    } else {
        None
    }
}

/// Opens with O_DIRECT if that is wanted and takes single sectors.
fn open(path: &Path, kind: Kind, options: &OpenOptions) -> Result<(File, bool), OpenError> {
    if options.direct
        && let Ok(file) = open_with(path, kind, options, OFlags::DIRECT)
        && takes_sectors(&file)
    {
        return Ok((file, true));
    }
    match open_with(path, kind, options, OFlags::empty()) {
        Ok(file) => Ok((file, false)),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => {
            Err(OpenError::InUse { path: path.into() })
        }
        Err(source) => Err(OpenError::Io {
            path: path.into(),
            action: "opening",
            source,
        }),
    }
}

fn open_with(path: &Path, kind: Kind, options: &OpenOptions, flags: OFlags) -> io::Result<File> {
    // Of a block device: refused while it is mounted, or opened so by another.
    let exclusive = kind == Kind::BlockDevice && !options.read_only;
    let flags = flags
        | if exclusive {
            OFlags::EXCL
        } else {
            OFlags::empty()
        };
    std::fs::OpenOptions::new()
        .read(true)
        .write(!options.read_only)
        .custom_flags(flags.bits() as i32)
        .open(path)
}

/// Whether direct I/O takes single sectors, at a multiple of a sector in memory.
fn takes_sectors(file: &File) -> bool {
    let mut page = Buffer::zeroed(2 * SECTOR as usize);
    let at = |off| rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut page[512..], off));
    // The first sector of a file may be taken where the second is not.
    [0, SECTOR].into_iter().map(at).all(|read| read.is_ok())
}

fn lock(file: File, path: &Path, options: &OpenOptions) -> Result<LockedFile, OpenError> {
    let path = path.into();
    LockedFile::lock(file, options.read_only).map_err(|(_, errno)| match errno {
        Errno::WOULDBLOCK => OpenError::InUse { path },
        errno => OpenError::Io {
            path,
            action: "locking",
            source: errno.into(),
        },
    })
}
