//! Requests in mode `strong`: each takes effect as a whole, and is durable before anybody sees it.
//!
//! It is the operation of the other modes with another ending: the gate is held alone, the latest
//! view changes, what changed commits, the gate is given back. What differs besides is how bytes
//! are stored: never where the consistent view shows them ([`crate::file::Plan`]).

use crate::commit::gate::Gate;
use crate::fault::{Fault, injected};
use crate::file::{self, Plan};
use crate::inode::{Inode, Node};
use crate::layout::PAGE;
use crate::mount::SoupFs;
use schedule::point;
use triomphe::Arc;
use vfs::{Also, At, DirEntry, Errno, Result};

/// Bytes copied at once by `copy_range`.
pub(crate) const COPY_BYTES: u64 = 1 << 20;

/// Entries of a directory that are read before the caller is told of them.
const LISTED: usize = 256;

impl SoupFs {
    /// The gate of mode `strong`.
    #[inline]
    pub(crate) fn gate(&self) -> &Gate {
        &self.shared.persister.gate
    }

    /// Run a request. In mode `strong` it is alone, and durable before others see it; if it fails
    /// it has changed nothing that they see.
    #[inline]
    pub(crate) fn request<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.gate().is_there() {
            true => self.request_alone(work),
            false => work(),
        }
    }

    #[cold]
    fn request_alone<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let alone = self.gate().alone();
        let done = work();
        point("request: not durable");
        if injected(Fault::SeenEarly) {
            drop(alone);
            point("request: seen and not durable");
            return self.commit_request(done);
        }
        self.commit_request(done)
    }

    /// Also what has failed may have something to commit: space that was set aside goes back.
    fn commit_request<T>(&self, done: Result<T>) -> Result<T> {
        let shared = &self.shared;
        let committed = self
            .check_writable()
            .and_then(|()| shared.persister.commit_request(&shared.volume));
        done.and_then(|done| committed.map(|()| done))
    }

    /// Refuse what might exceed the journal, before anything changes.
    pub(crate) fn check_blocks(&self, blocks: u64) -> Result<()> {
        let there = self.shared.volume.geometry().pages;
        match blocks.min(there) > self.shared.persister.blocks_max() {
            true => Err(Errno::FBIG.into()),
            false => Ok(()),
        }
    }

    /// Write all of the data, at the offset or at the end, or nothing of it.
    pub(crate) fn write_whole(
        &self,
        inode: &Arc<Inode>,
        offset: Option<u64>,
        data: &[u8],
        also: Also<'_>,
    ) -> Result<(u64, usize)> {
        let volume = &self.shared.volume;
        self.check_blocks(data.len() as u64 / PAGE + 2)?;
        let written = self.change(|| {
            let mut file = inode.file()?.write();
            let at = offset.unwrap_or_else(|| file::size(inode));
            let len = file::clamp(at, data.len())?;
            let plan = file.plan_write(volume, inode, at..at + len as u64)?;
            let plan = self.keep_plan(plan, self.apply_also(inode, &mut file, also))?;
            drop(plan.store(volume, at, &data[..len]));
            let words = file.adopt(volume, inode, plan);
            if len > 0 && !injected(Fault::TimesApart) {
                inode.attrs.touch(self.now());
            }
            Ok((at, len, words))
        });
        let (at, len, words) = written.inspect_err(|_| self.failed(inode, 2))?;
        if injected(Fault::TimesApart) {
            self.failed(inode, words);
            self.shared.persister.commit_request(volume)?;
            inode.attrs.touch(self.now());
        }
        self.touched(inode, words)?;
        Ok((at, len))
    }

    /// Copy all of a range, or nothing of it. The ranges do not overlap.
    pub(crate) fn copy_whole(
        &self,
        from: At<'_, Node>,
        to: At<'_, Node>,
        len: u64,
        also: Also<'_>,
    ) -> Result<u64> {
        let (volume, inode) = (&self.shared.volume, to.node.inode());
        let len = file::clamp(to.offset, len as usize)? as u64;
        if len == 0 {
            return Ok(0);
        }
        self.check_blocks(len / PAGE + 2)?;
        let copied = self.change(|| {
            let mut file = inode.file()?.write();
            let plan = file.plan_write(volume, inode, to.offset..to.offset + len)?;
            let size = file::size(from.node.inode());
            let read = |offset, buf: &mut [u8]| match from.node.inode().ino == inode.ino {
                true => file.read(volume, size, offset, buf),
                false => (from.node.inode().file()?.read()).read(volume, size, offset, buf),
            };
            let mut buf = vec![0; len.min(COPY_BYTES) as usize];
            let mut store = |done: u64| {
                let buf = &mut buf[..(len - done).min(COPY_BYTES) as usize];
                read(from.offset + done, buf)?;
                drop(plan.store(volume, to.offset + done, buf));
                Ok(())
            };
            let stored = (0..len)
                .step_by(COPY_BYTES as usize)
                .try_for_each(&mut store);
            let also = stored.and_then(|()| self.apply_also(inode, &mut file, also));
            let plan = self.keep_plan(plan, also)?;
            inode.attrs.touch(self.now());
            Ok(file.adopt(volume, inode, plan))
        });
        let words = copied.inspect_err(|_| self.failed(inode, 2))?;
        self.touched(inode, words)?;
        Ok(len)
    }

    /// Pages for what the ends of a range have in part, if these are not to be zeroed in place.
    pub(crate) fn plan_ends(
        &self,
        inode: &Inode,
        file: &mut file::File,
        range: &std::ops::Range<u64>,
    ) -> Result<Option<Plan>> {
        match self.gate().is_there() {
            true => file.plan_ends(&self.shared.volume, inode, range).map(Some),
            false => Ok(None),
        }
    }

    /// Read a directory while nobody changes it, and tell of what was read when others may: who is
    /// told may look at what is named.
    pub(crate) fn list(
        &self,
        dir: &Inode,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let (volume, mut after) = (&self.shared.volume, cookie);
        loop {
            let mut listed = Vec::new();
            {
                let _shared = self.gate().shared();
                dir.dir()?
                    .read(volume, after, &mut |ino, kind, name, cookie| {
                        listed.push((ino, kind, name.to_vec(), cookie));
                        listed.len() < LISTED
                    })?;
            }
            let all = listed.len() < LISTED;
            for (ino, kind, name, cookie) in listed {
                let name = &name;
                after = cookie;
                if !emit(DirEntry {
                    ino,
                    kind,
                    name,
                    cookie,
                }) {
                    return Ok(());
                }
            }
            if all {
                return Ok(());
            }
        }
    }
}
