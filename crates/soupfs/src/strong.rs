//! Requests in mode `strong`: each takes effect as a whole, and is durable before anybody sees it.
//!
//! It is the operation of the other modes with another ending: the inodes that it changes are held,
//! the latest view changes, what changed commits, the inodes are given back. What differs besides
//! is how bytes are stored: never where the consistent view shows them ([`crate::file::Plan`]).

use crate::attributes::Attributes;
use crate::commit::buckets::{self, BucketTable};
use crate::commit::gate::{Gate, Held, Views};
use crate::dir::{Cell, read_by_cells, read_cell};
use crate::fault::{Fault, injected};
use crate::file::{self, Plan};
use crate::image::Source;
use crate::inode::{Inode, Node};
use crate::layout::PAGE;
use crate::medium::Medium;
use crate::mount::{SoupFs, load_named};
use crate::namespace::check_name;
use crate::rename::{self, Moving};
use crate::xattr::{Map, Xattrs};
use schedule::point;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::sync::atomic::Ordering::Relaxed;
use triomphe::Arc;
use vfs::{Also, At, DirEntry, Errno, Error, Place, Result};

/// Bytes copied at once by `copy_range`.
pub(crate) const COPY_BYTES: u64 = 1 << 20;

/// Entries of a directory that are read before the caller is told of them.
const LISTED: usize = 256;

/// Parts of which no two touch the same block: those that do are one, with what the file has
/// between them (zeros behind its end).
fn joined<'a>(
    parts: &[(u64, &'a [u8])],
    mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<Vec<(u64, Cow<'a, [u8]>)>> {
    let mut all: Vec<(u64, Cow<'a, [u8]>)> = Vec::with_capacity(parts.len());
    for &(at, data) in parts {
        match all.last_mut() {
            Some((start, before)) if (*start + before.len() as u64 - 1) / PAGE == at / PAGE => {
                let (end, bytes) = (*start + before.len() as u64, before.to_mut());
                let kept = bytes.len();
                bytes.resize(kept + (at - end) as usize, 0);
                if at > end {
                    read(end, &mut bytes[kept..])?;
                }
                bytes.extend_from_slice(data);
            }
            _ => all.push((at, Cow::Borrowed(data))),
        }
    }
    Ok(all)
}

impl SoupFs {
    /// The gate of mode `strong`.
    #[inline]
    pub(crate) fn gate(&self) -> &Gate {
        &self.shared.persister.gate
    }

    /// Run a request that changes these inodes, and no other that has a name. In mode `strong`
    /// nobody looks at them before it is durable; if it fails it has changed nothing that they see.
    #[inline]
    pub(crate) fn request<T>(
        &self,
        changed: &[&Node],
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.request_beside(changed, None, work)
    }

    /// The same; it looks at another inode besides.
    #[inline]
    pub(crate) fn request_beside<T>(
        &self,
        changed: &[&Node],
        beside: Option<&Node>,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if !self.gate().is_there() {
            return self.told(work());
        }
        let inos = changed.iter().map(|node| node.inode().ino);
        let held = self.gate().hold(inos, beside.map(|node| node.inode().ino));
        self.run_held(held, changed, work)
    }

    /// Run a request that changes what these names stand for, one or two, and their directories.
    #[inline]
    pub(crate) fn request_on_names<T>(
        &self,
        names: &[Place<'_, Node>],
        work: impl FnOnce(Option<&Moving<'_>>) -> Result<T>,
    ) -> Result<T> {
        if !self.gate().is_there() {
            return self.told(work(None));
        }
        let (moving, held) = self.hold_names(names)?;
        let dirs: SmallVec<[&Node; 2]> = names.iter().map(|name| name.dir).collect();
        self.run_held(held, &dirs, || work(moving.as_ref()))
    }

    /// Hold directories, and what names in them stand for. That is looked up before, as scopes are
    /// taken in their order, and it may change until they are held: then it is looked up again
    /// behind, unless nobody has held the directories meanwhile. Moves of directories begin first:
    /// where these are stays as it is, and is durable, while others look for cycles.
    fn hold_names(&self, names: &[Place<'_, Node>]) -> Result<(Option<Moving<'_>>, Held<'_>)> {
        let mut inodes = [None; 2];
        let mut numbers = [0; 2];
        let dir = |name: &Place<'_, Node>| name.dir.inode().ino;
        loop {
            for (name, number) in names.iter().zip(&mut numbers) {
                *number = self.gate().number(dir(name));
            }
            let moving = match names {
                [from, to] if dir(from) != dir(to) => {
                    let found = [from, to].map(|name| self.find(name.dir, name.name).ok());
                    inodes = [0, 1].map(|i| found[i].as_ref().map(|node| node.inode().ino));
                    let found = [found[0].as_ref(), found[1].as_ref()];
                    self.begin_moves(&rename::moves([from.dir, to.dir], found))?
                }
                _ => {
                    self.stand_for(names, &mut inodes);
                    None
                }
            };
            let all = names.iter().map(dir).chain(inodes.into_iter().flatten());
            let held = self.gate().hold(all, None);
            let mut looked = names.iter().zip(numbers);
            if looked.all(|(name, number)| self.gate().stands(dir(name), number)) {
                return Ok((moving, held));
            }
            let before = inodes;
            self.stand_for(names, &mut inodes);
            if inodes == before {
                return Ok((moving, held));
            }
        }
    }

    /// The numbers of what names stand for; of the inodes nothing is looked at.
    fn stand_for(&self, names: &[Place<'_, Node>], inodes: &mut [Option<u64>; 2]) {
        for (name, inode) in names.iter().zip(inodes) {
            *inode = self.find_number(name.dir, name.name).ok();
        }
    }

    /// The work of a request, and the commit of what it has changed. One that has failed may have
    /// something to commit, too: space that was set aside goes back.
    #[cold]
    fn run_held<T>(
        &self,
        held: Held<'_>,
        changed: &[&Node],
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let done = self.told(work());
        point("request: not durable");
        let mut held = Some(held);
        if injected(Fault::SeenEarly) {
            held = None;
            point("request: seen and not durable");
        }
        let inodes = changed.iter().map(|node| node.inode());
        let shared = &self.shared;
        let committed = self
            .check_writable()
            .and_then(|()| shared.persister.commit_request(&shared.volume, inodes));
        if committed.is_err() {
            self.gate().fail();
        }
        drop(held);
        done.and_then(|done| committed.map(|()| done))
    }

    /// Before the size grows over bytes that are void, which are zeroed in place: no live record
    /// may store to their page.
    pub(crate) fn checkpoint_tail(&self, inode: &Inode, end: u64) -> Result<()> {
        if !self.gate().is_there() {
            return Ok(());
        }
        let (volume, size) = (&self.shared.volume, file::size(inode));
        let logged = end > size && inode.file()?.read().tail_is_logged(volume, size)?;
        match logged && !injected(Fault::TailLive) {
            true => self.shared.persister.checkpoint(volume),
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
        self.checkpoint_tail(inode, offset.unwrap_or(0))?;
        let written = self.change(|| {
            let mut file = inode.file()?.write();
            let at = offset.unwrap_or_else(|| file::size(inode));
            let len = file::clamp(at, data.len())?;
            let plan = file.plan_write(volume, inode, at..at + len as u64)?;
            let mut plan = self.keep_plan(plan, self.apply_also(inode, &mut file, also))?;
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
            let changed = std::iter::once(inode);
            self.shared.persister.commit_request(volume, changed)?;
            inode.attrs.touch(self.now());
        }
        self.touched(inode, words)?;
        Ok((at, len))
    }

    /// Write all parts, or nothing of them. They are in ascending order, and apart.
    pub(crate) fn write_parts_whole(
        &self,
        inode: &Arc<Inode>,
        parts: &[(u64, &[u8])],
    ) -> Result<()> {
        let volume = &self.shared.volume;
        let ascend = |pair: &[(u64, &[u8])]| pair[0].0 + pair[0].1.len() as u64 <= pair[1].0;
        assert!(
            parts.windows(2).all(ascend) && parts.iter().all(|part| !part.1.is_empty()),
            "parts of a write overlap, or are empty"
        );
        let Some(&(last, data)) = parts.last() else {
            return Ok(());
        };
        if file::clamp(last, data.len())? < data.len() {
            return Err(Errno::FBIG.into());
        }
        self.checkpoint_tail(inode, last)?;
        let written = self.change(|| {
            let mut file = inode.file()?.write();
            let parts = joined(parts, |at, buf| {
                file.read(volume, file::size(inode), at, buf).map(drop)
            })?;
            let range = |(at, data): &(u64, Cow<'_, [u8]>)| *at..*at + data.len() as u64;
            let ranges: Vec<_> = parts.iter().map(range).collect();
            let mut plan = file.plan_parts(volume, inode, &ranges)?;
            for (at, data) in &parts {
                drop(plan.store(volume, *at, data));
            }
            let words = file.adopt(volume, inode, plan);
            inode.attrs.touch(self.now());
            Ok(words)
        });
        let words = written.inspect_err(|_| self.failed(inode, 2))?;
        self.touched(inode, words)
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
        self.checkpoint_tail(inode, to.offset)?;
        let copied = self.change(|| {
            let mut file = inode.file()?.write();
            let mut plan = file.plan_write(volume, inode, to.offset..to.offset + len)?;
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

    /// Look at an inode without a lock. `look` is given its attributes of the consistent view if it
    /// is to go by these, else it goes by the latest view; it is run until what it has looked at
    /// stands.
    #[inline]
    pub(crate) fn look<T>(&self, inode: &Inode, look: impl Fn(Option<&Attributes>) -> T) -> T {
        let views = match inode.is_published() {
            true => Views::Both,
            false => Views::Latest,
        };
        self.gate().look(inode.ino, views, |view| {
            let image = (!view.latest).then(|| self.shared.volume.image().inode(inode.ino));
            match image {
                // It is changing, and will be looked at again; or damaged: the latest view is not.
                None | Some(Err(_)) => look(None),
                Some(Ok(image)) => look(Some(&image)),
            }
        })
    }

    /// Look at what a file holds, without a lock if the consistent view has it; `look` is told
    /// whether it is to go by the latest view.
    #[inline]
    pub(crate) fn look_at_file<T>(&self, inode: &Inode, mut look: impl FnMut(bool) -> T) -> T {
        let views = match inode.is_published() && !injected(Fault::SeenEarly) {
            true => Views::Consistent,
            false => Views::Latest,
        };
        self.gate().look(inode.ino, views, |view| look(view.latest))
    }

    /// How many names an inode has, for a caller that shares it.
    pub(crate) fn shown_nlink(&self, inode: &Inode) -> Result<u32> {
        match self.gate().has_failed() && inode.is_published() {
            true => Ok(self.shared.volume.image().inode(inode.ino)?.nlink),
            false => Ok(inode.nlink()),
        }
    }

    /// The extended attributes of an inode, for a caller that shares it.
    pub(crate) fn shown_xattrs(&self, inode: &Inode) -> Result<std::sync::Arc<Map>> {
        if self.gate().has_failed() && inode.is_published() {
            let image = self.shared.volume.image();
            let first = image.inode(inode.ino)?.xattr;
            return Ok(Xattrs::load(&image, inode.ino, first)?.map());
        }
        match inode.has_xattrs.load(Relaxed) {
            true => self.xattrs(inode),
            false => Ok(Xattrs::default().map()),
        }
    }

    /// Find what a name stands for, without a lock.
    pub(crate) fn look_up(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        check_name(name)?;
        let (volume, parent) = (&self.shared.volume, dir.inode());
        parent.dir()?;
        self.gate().look(parent.ino, Views::Both, |view| {
            if view.latest {
                return self.find(dir, name);
            }
            let name = volume.hash.name(name);
            for line in buckets::chain(&self.medium(), self.table(parent)?, name.hash)? {
                let named = volume.image().named(line?, name.hash, name.bytes)?;
                let Some(ino) = named.filter(|&ino| volume.geometry().holds_line(ino)) else {
                    continue;
                };
                let inode = volume.inodes.get_or_load(ino, || {
                    // With the slot locked: if the name still stands then the inode is not freed.
                    let image = volume.image().inode(ino)?;
                    match view.stands() {
                        true => load_named(&image),
                        false => Err(Errno::NOENT.into()), // it is looked up again
                    }
                })?;
                return Ok(Node::new(inode));
            }
            volume.pool.check_absence()?;
            Err(Errno::NOENT.into())
        })
    }

    fn medium(&self) -> &Medium {
        &self.shared.volume
    }

    /// A directory's table in the consistent view.
    fn table(&self, dir: &Inode) -> Result<BucketTable> {
        let image = self.shared.volume.image().inode(dir.ino)?;
        Ok(BucketTable {
            root: image.root,
            level: image.level,
        })
    }

    /// Read a directory part by part, each as it was at one time, and tell of a part when it was
    /// read: who is told may look at what is named.
    pub(crate) fn list(
        &self,
        dir: &Inode,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let (medium, mut after) = (self.medium(), cookie);
        let d = dir.dir()?;
        loop {
            let listed = self.gate().look(dir.ino, Views::Both, |view| {
                let mut listed = Vec::new();
                let mut emit = |ino, kind, name: &[u8], cookie| {
                    listed.push((ino, kind, name.to_vec(), cookie));
                    listed.len() < LISTED
                };
                if view.latest {
                    d.read(medium, after, &mut emit)?;
                } else {
                    let table = self.table(dir)?;
                    let read = |key: u64, found: &mut Cell| {
                        found.clear();
                        let chain = |hash| buckets::chain(&medium, table, hash);
                        read_cell(medium, table.level, key, found, chain)
                    };
                    read_by_cells(after, read, &mut emit)?;
                }
                Ok::<_, Error>(listed)
            })?;
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
