//! Contents: read, write, list; and what keeps them.

use super::{Atime, Vfs};
use crate::{
    At, Attr, Capabilities, Cred, DirEntry, Errno, Error, Fallocate, FileSystem, Fsync, Kind,
    Result, SeekFor, StatFs, Time,
};

/// After this many nanoseconds, relative access times are updated in any case.
const RELATIME_NS: i64 = 24 * 60 * 60 * 1_000_000_000;

impl<F: FileSystem> Vfs<F> {
    /// Reads contents; returns the bytes read, fewer only at the end.
    pub fn read(&self, node: &F::Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let count = self.fs.read(node, offset, buf)?;
        if !buf.is_empty() {
            self.note_access(node);
        }
        Ok(count)
    }

    /// [`Vfs::read`] without a trace in the access time (`O_NOATIME`).
    pub fn read_noatime(&self, node: &F::Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.fs.read(node, offset, buf)
    }

    /// Writes contents; returns the bytes written. Takes file capabilities away, and set-id bits
    /// unless privileged.
    pub fn write(&self, cred: &Cred, node: &F::Node, offset: u64, data: &[u8]) -> Result<usize> {
        self.check_writable()?;
        if data.is_empty() {
            return self.fs.write(node, offset, data);
        }
        let stripping = self.stripping(cred, node)?;
        self.fs.write_with(node, offset, data, stripping.also())
    }

    /// Writes at the end; returns the offset written at and the bytes written.
    pub fn append(&self, cred: &Cred, node: &F::Node, data: &[u8]) -> Result<(u64, usize)> {
        self.check_writable()?;
        if data.is_empty() {
            return self.fs.append(node, data);
        }
        let stripping = self.stripping(cred, node)?;
        self.fs.append_with(node, data, stripping.also())
    }

    /// Hands out directory entries after `cookie`, `.` and `..` first (cookies 1 and 2), until
    /// there are no more or `emit` returns false. `ENOENT` when the directory was removed. Where
    /// the parent is damaged, `..` has the directory's own number.
    pub fn readdir(
        &self,
        dir: &F::Node,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.readdir_noatime(dir, cookie, emit)?;
        self.note_access(dir);
        Ok(())
    }

    /// [`Vfs::readdir`] without a trace in the access time.
    pub fn readdir_noatime(
        &self,
        dir: &F::Node,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.check_dir(dir)?;
        if self.fs.is_removed(dir) {
            return Err(Errno::NOENT.into());
        }
        let dot = |ino, name, cookie| DirEntry {
            ino,
            kind: Kind::Dir,
            name,
            cookie,
        };
        let mut more = true;
        if cookie < 1 {
            more = emit(dot(self.fs.ino(dir), b".", 1));
        }
        if more && cookie < 2 {
            let parent = match self.parent(dir) {
                Ok(parent) => self.fs.ino(&parent),
                // What is in the directory can still be listed.
                Err(Error::Corrupt(_)) => self.fs.ino(dir),
                Err(error) => return Err(error),
            };
            more = emit(dot(parent, b"..", 2));
        }
        if more {
            self.fs
                .readdir(dir, if cookie <= 2 { 0 } else { cookie }, emit)?;
        }
        Ok(())
    }

    /// The target of a symbolic link; `EINVAL` for anything else.
    pub fn readlink(&self, node: &F::Node) -> Result<Vec<u8>> {
        let target = self.fs.readlink(node)?;
        self.note_access(node);
        Ok(target)
    }

    /// Reserves, punches or zeroes a range. `EINVAL` for an empty one, `EFBIG` beyond any size,
    /// `EOPNOTSUPP` for a form that the engine does not have.
    pub fn fallocate(
        &self,
        cred: &Cred,
        node: &F::Node,
        mode: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.check_capable(Capabilities::of_fallocate(mode), Errno::OPNOTSUPP)?;
        self.check_writable()?;
        if len == 0 {
            return Err(Errno::INVAL.into());
        }
        let end = offset
            .checked_add(len)
            .filter(|&end| end <= i64::MAX as u64);
        let range = offset..end.ok_or(Errno::FBIG)?;
        let stripping = self.stripping(cred, node)?;
        self.fs.fallocate_with(node, mode, range, stripping.also())
    }

    /// Finds data or a hole; `ENXIO` beyond the end.
    pub fn seek(&self, node: &F::Node, offset: u64, what: SeekFor) -> Result<u64> {
        self.fs.seek(node, offset, what)
    }

    /// Copies contents between files; returns the bytes copied. Takes file capabilities away, and
    /// set-id bits unless privileged.
    pub fn copy_range(
        &self,
        cred: &Cred,
        from: At<'_, F::Node>,
        to: At<'_, F::Node>,
        len: u64,
    ) -> Result<u64> {
        let copied = self.copy_range_noatime(cred, from, to, len)?;
        if copied > 0 {
            self.note_access(from.node);
        }
        Ok(copied)
    }

    /// [`Vfs::copy_range`] without a trace in the access time of `from`.
    pub fn copy_range_noatime(
        &self,
        cred: &Cred,
        from: At<'_, F::Node>,
        to: At<'_, F::Node>,
        len: u64,
    ) -> Result<u64> {
        self.check_writable()?;
        if len == 0 {
            return self.fs.copy_range(from, to, len);
        }
        let stripping = self.stripping(cred, to.node)?;
        self.fs.copy_range_with(from, to, len, stripping.also())
    }

    /// Returns when the inode is durable to the extent asked.
    pub fn fsync(&self, node: &F::Node, what: Fsync) -> Result<()> {
        self.fs.fsync(node, what)
    }

    /// Returns when everything done before is durable.
    pub fn syncfs(&self) -> Result<()> {
        self.fs.syncfs()
    }

    /// Space, used and free.
    pub fn statfs(&self) -> StatFs {
        self.fs.statfs()
    }

    /// Updates the access time as the policy has it.
    fn note_access(&self, node: &F::Node) {
        if self.options.atime == Atime::No || self.options.read_only {
            return;
        }
        let attr = self.fs.attr(node);
        let now = self.now();
        if self.options.atime == Atime::Strict || is_due(&attr, now) {
            // Reading succeeded; that a full or failed medium cannot take note is no reason to
            // say otherwise.
            let _ = self.fs.set_atime(node, now);
        }
    }
}

/// Whether a relative access time is to be updated: nobody could tell otherwise that the file was
/// read since its last change, or the day is over.
fn is_due(attr: &Attr, now: Time) -> bool {
    attr.atime <= attr.mtime
        || attr.atime <= attr.ctime
        || now.0.saturating_sub(attr.atime.0) >= RELATIME_NS
}
