//! Descriptors at work: contents and directories.

use super::files::{Context, Fd, Files};
use super::open::{OpenFile, OpenFlags};
use crate::{At, DirEntry, Errno, Fallocate, FileSystem, Fsync, Kind, Result, SeekFor, Vfs};

/// What a new position is counted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whence {
    /// The beginning.
    Set(i64),
    /// The present position.
    Current(i64),
    /// The end.
    End(i64),
    /// Data at or after this offset.
    Data(i64),
    /// A hole at or after this offset.
    Hole(i64),
}

impl<F: FileSystem> Files<F> {
    /// Reads at the position and moves it; 0 at the end. `EBADF` unless open for reading.
    pub fn read(&self, fd: Fd, buf: &mut [u8]) -> Result<usize> {
        let file = self.file(fd)?;
        let mut position = file.position.lock();
        let count = self.read_from(&file, *position, buf)?;
        *position += count as u64;
        Ok(count)
    }

    /// Reads at `offset`.
    pub fn pread(&self, fd: Fd, buf: &mut [u8], offset: u64) -> Result<usize> {
        check_offset(offset)?;
        self.read_from(&*self.file(fd)?, offset, buf)
    }

    /// Writes at the position, or at the end if opened to append, and moves it. `EBADF` unless
    /// open for writing.
    pub fn write(&self, ctx: &Context<F>, fd: Fd, data: &[u8]) -> Result<usize> {
        let file = self.file(fd)?;
        let mut position = file.position.lock();
        let (offset, count) = self.write_to(ctx, &file, *position, data)?;
        *position = offset + count as u64;
        Ok(count)
    }

    /// Writes at `offset`; of a file opened to append, at its end, as Linux has it.
    pub fn pwrite(&self, ctx: &Context<F>, fd: Fd, data: &[u8], offset: u64) -> Result<usize> {
        check_offset(offset)?;
        let file = self.file(fd)?;
        self.write_to(ctx, &file, offset, data)
            .map(|(_, count)| count)
    }

    /// Moves the position; returns it. `ENXIO` when there is no data or hole to be found,
    /// `EINVAL` below zero, `EOVERFLOW` beyond the largest offset.
    pub fn lseek(&self, fd: Fd, to: Whence) -> Result<u64> {
        let file = self.opened(fd)?;
        let attr = self.vfs.getattr(&file.node);
        let mut position = file.position.lock();
        let (base, by) = match to {
            Whence::Set(offset) => (0, offset),
            Whence::Current(by) => (*position, by),
            // A directory has no end to count from: cookies are not bytes.
            _ if attr.kind == Kind::Dir => return Err(Errno::INVAL.into()),
            Whence::End(by) => (attr.size, by),
            Whence::Data(offset) => (self.seek(&file, offset, SeekFor::Data)?, 0),
            Whence::Hole(offset) => (self.seek(&file, offset, SeekFor::Hole)?, 0),
        };
        let target = i64::try_from(base)
            .ok()
            .and_then(|base| base.checked_add(by));
        let target = u64::try_from(target.ok_or(Errno::OVERFLOW)?).map_err(|_| Errno::INVAL)?;
        *position = target;
        Ok(target)
    }

    /// Sets the size; `EINVAL` unless it is a file open for writing.
    pub fn ftruncate(&self, ctx: &Context<F>, fd: Fd, size: u64) -> Result<()> {
        let file = self.opened(fd)?;
        if !file.flags.contains(OpenFlags::WRITE) || size > i64::MAX as u64 {
            return Err(Errno::INVAL.into());
        }
        self.vfs.truncate(&ctx.cred, &file.node, size)?;
        self.sync_as_opened(&file)
    }

    /// Reserves, punches or zeroes a range.
    pub fn fallocate(
        &self,
        ctx: &Context<F>,
        fd: Fd,
        mode: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let file = self.file(fd)?;
        file.check_writable()?;
        self.vfs
            .fallocate(&ctx.cred, &file.node, mode, offset, len)?;
        self.sync_as_opened(&file)
    }

    /// Copies `len` bytes between files, positions left alone; returns the bytes copied.
    pub fn copy_file_range(
        &self,
        ctx: &Context<F>,
        from: (Fd, u64),
        to: (Fd, u64),
        len: u64,
    ) -> Result<u64> {
        let (source, target) = (self.file(from.0)?, self.file(to.0)?);
        source.check_readable()?;
        target.check_writable()?;
        if target.flags.contains(OpenFlags::APPEND) {
            return Err(Errno::BADF.into());
        }
        let copy = match source.flags.contains(OpenFlags::NOATIME) {
            true => Vfs::copy_range_noatime,
            false => Vfs::copy_range,
        };
        let (from, to) = (At::new(&source.node, from.1), At::new(&target.node, to.1));
        let copied = copy(&self.vfs, &ctx.cred, from, to, len)?;
        self.sync_as_opened(&target)?;
        Ok(copied)
    }

    /// Returns when the file is durable, its names included.
    pub fn fsync(&self, fd: Fd) -> Result<()> {
        self.sync(fd, Fsync::All)
    }

    /// Returns when the contents are durable, and what is needed to read them.
    pub fn fdatasync(&self, fd: Fd) -> Result<()> {
        self.sync(fd, Fsync::Data)
    }

    /// Hands out directory entries from the position on, until `emit` returns false; `.` and `..`
    /// are among them. The position follows: it is the cookie of the last entry handed out, and
    /// [`Files::lseek`] to it comes back there.
    ///
    /// `emit` must not use the same descriptor.
    pub fn readdir(&self, fd: Fd, mut emit: impl FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let file = self.file(fd)?;
        file.check_readable()?;
        let mut position = file.position.lock();
        let start = *position;
        let list = match file.flags.contains(OpenFlags::NOATIME) {
            true => Vfs::readdir_noatime,
            false => Vfs::readdir,
        };
        list(&self.vfs, &file.node, start, &mut |entry| {
            let cookie = entry.cookie;
            let taken = emit(entry);
            if taken {
                *position = cookie;
            }
            taken
        })
    }

    fn read_from(&self, file: &OpenFile<F>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        file.check_readable()?;
        if file.flags.contains(OpenFlags::NOATIME) {
            return self.vfs.read_noatime(&file.node, offset, buf);
        }
        self.vfs.read(&file.node, offset, buf)
    }

    /// Returns the offset written at and the bytes written.
    fn write_to(
        &self,
        ctx: &Context<F>,
        file: &OpenFile<F>,
        offset: u64,
        data: &[u8],
    ) -> Result<(u64, usize)> {
        file.check_writable()?;
        let written = if file.flags.contains(OpenFlags::APPEND) {
            self.vfs.append(&ctx.cred, &file.node, data)?
        } else {
            (offset, self.vfs.write(&ctx.cred, &file.node, offset, data)?)
        };
        self.sync_as_opened(file)?;
        Ok(written)
    }

    fn sync_as_opened(&self, file: &OpenFile<F>) -> Result<()> {
        if file.flags.contains(OpenFlags::SYNC) {
            return self.vfs.fsync(&file.node, Fsync::All);
        }
        if file.flags.contains(OpenFlags::DSYNC) {
            return self.vfs.fsync(&file.node, Fsync::Data);
        }
        Ok(())
    }

    fn sync(&self, fd: Fd, what: Fsync) -> Result<()> {
        let file = self.opened(fd)?;
        self.vfs.fsync(&file.node, what)
    }

    fn seek(&self, file: &OpenFile<F>, offset: i64, what: SeekFor) -> Result<u64> {
        // Before the beginning is as far off the file as beyond its end.
        let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
        self.vfs.seek(&file.node, offset, what)
    }
}

/// `EINVAL` for an offset that no file has.
fn check_offset(offset: u64) -> Result<()> {
    if offset > i64::MAX as u64 {
        Err(Errno::INVAL.into())
    } else {
        Ok(())
    }
}
