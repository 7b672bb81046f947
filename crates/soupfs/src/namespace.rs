//! Operations on names, in the latest view (SoupFS §3.6).
//!
//! Each is: lock the stripes of the names; check everything and take all space it needs, so that
//! what follows cannot fail; change the latest view and record the operations; unlock. Nothing is
//! flushed or fenced here.
//!
//! Lock order: `dir_moves` -> stripe of the parent -> stripes of a directory that is removed ->
//! body -> meta. Of two parents the second is only tried for.

use crate::batch::Pull;
use crate::dir::{self, Dir, Found, Locked};
use crate::file::File;
use crate::inode::{Body, Inode, Node, PendingName};
use crate::layout::{dentry, inode as layout, line_at, page_at};
use crate::mount::{Mode, SoupFs};
use crate::volume::Volume;
use crate::xattr::Xattrs;
use parking_lot::RwLock;
use smallvec::SmallVec;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use vfs::{
    Errno, Error, Kind, LINK_MAX, NAME_MAX, NewKind, NewNode, PATH_MAX, RenameMode, Result, Time,
    Veto,
};

/// Stripes locked for a rename; the second is absent when both names are in one stripe.
struct TwoStripes<'a> {
    first: Locked<'a>,
    second: Option<Locked<'a>>,
}

impl<'a> TwoStripes<'a> {
    fn from(&mut self) -> &mut Locked<'a> {
        &mut self.first
    }

    fn to(&mut self) -> &mut Locked<'a> {
        self.second.as_mut().unwrap_or(&mut self.first)
    }
}

fn free_runs(volume: &Volume, runs: Vec<Range<u64>>) {
    runs.into_iter()
        .for_each(|run| volume.alloc.free_pages(run));
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Errno::NAMETOOLONG.into());
    }
    Ok(())
}

/// Lock the stripes of two names. Neither lock is waited for with the other held, except in one
/// directory, by number: so no order between directories is needed.
fn lock_two<'a>(from: &'a Dir, hash: u64, to: &'a Dir, new_hash: u64) -> TwoStripes<'a> {
    let stripe = |hash: u64| (hash % dir::STRIPES as u64) as usize;
    let (a, b) = (stripe(hash), stripe(new_hash));
    if std::ptr::eq(from, to) {
        if a == b {
            return TwoStripes {
                first: from.lock_stripe(a),
                second: None,
            };
        }
        if a > b {
            let second = Some(to.lock_stripe(b));
            return TwoStripes {
                first: from.lock_stripe(a),
                second,
            };
        }
        return TwoStripes {
            first: from.lock_stripe(a),
            second: Some(to.lock_stripe(b)),
        };
    }
    loop {
        let first = from.lock_stripe(a);
        if let Some(second) = to.try_lock_stripe(b) {
            return TwoStripes {
                first,
                second: Some(second),
            };
        }
        drop(first);
        let second = to.lock_stripe(b);
        if let Some(first) = from.try_lock_stripe(a) {
            return TwoStripes {
                first,
                second: Some(second),
            };
        }
    }
}

impl SoupFs {
    /// Find an inode by name, without locks.
    pub(crate) fn find(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        check_name(name)?;
        let volume = &self.shared.volume;
        let hash = volume.hash.hash(name);
        dir.inode()
            .dir()?
            .lookup(volume, hash, name, |ino, still_named| {
                let inode = match volume.geometry().holds_line(ino) {
                    true => volume.table.get_or_load(ino, || {
                        // With the slot locked: if the name still stands then the inode is not freed.
                        let image = volume.image().inode(ino)?;
                        if still_named() {
                            Inode::load(&image)
                        } else {
                            Err(Errno::NOENT.into())
                        }
                    })?,
                    false => return Err(Error::corrupt(0, format!("entry names inode {ino}"))),
                };
                Node::new(inode).ok_or(Error::Errno(Errno::NOENT))
            })
    }

    /// Number of a new inode's generation: unique among this mount's.
    fn next_generation(&self) -> u32 {
        thread_local!(static COUNT: Cell<u32> = const { Cell::new(0) });
        let count = COUNT.with(|c| c.replace(c.get().wrapping_add(1)));
        let slot = crate::alloc::thread_slot() as u32;
        self.shared
            .generation
            .wrapping_add(count.wrapping_mul(64))
            .wrapping_add(slot % 64)
    }

    /// An inode that nothing refers to, in the table, and a line for an entry if it is born with
    /// names. Space is taken; an error leaves none taken.
    fn make_inode(
        &self,
        parent: u64,
        new: &NewNode<'_>,
        now: Time,
        names: &[PendingName],
    ) -> Result<(Arc<Inode>, u64)> {
        let volume = &self.shared.volume;
        let xattrs = match new.xattrs {
            [] => None,
            pairs => Some(Xattrs::fresh(volume, pairs)?),
        };
        let made = self.make_body(parent, new).and_then(|(body, size, rdev)| {
            let space = match names {
                [] => volume.alloc.pair().map(|pair| (pair, 0)),
                _ => volume.alloc.pair_and_line(),
            };
            let (ino, line) = space.inspect_err(|_| self.drop_body(&body))?;
            let kind = new.kind.kind();
            let owner = (new.uid, new.gid);
            let generation = self.next_generation();
            let inode = Inode::fresh(
                ino, generation, kind, new.perm, owner, rdev, now, body, size, names,
            );
            Ok((Arc::new(inode), line))
        });
        match (made, xattrs) {
            (Ok((inode, line)), xattrs) => {
                if let Some(xattrs) = xattrs {
                    inode.attrs.pages.fetch_add(xattrs.pages() as i64, Relaxed);
                    inode.attrs.has_xattrs.store(true, Relaxed);
                    inode.meta.lock().make_rare().xattrs = Some(xattrs);
                }
                volume.table.insert(inode.clone());
                Ok((inode, line))
            }
            (Err(e), Some(mut xattrs)) => {
                xattrs.tear_down(volume);
                Err(e)
            }
            (Err(e), None) => Err(e),
        }
    }

    fn make_body(&self, parent: u64, new: &NewNode<'_>) -> Result<(Body, u64, u32)> {
        let volume = &self.shared.volume;
        Ok(match new.kind {
            NewKind::File => (Body::File(RwLock::new(File::fresh())), 0, 0),
            NewKind::Dir => (Body::Dir(Dir::fresh(parent)), 0, 0),
            NewKind::Symlink(target) => {
                if target.is_empty() {
                    return Err(Errno::NOENT.into());
                }
                if target.len() >= PATH_MAX {
                    return Err(Errno::NAMETOOLONG.into());
                }
                let page = volume.alloc.page()?;
                volume.pool.write(page_at(page), target);
                (Body::Symlink { page }, target.len() as u64, 0)
            }
            NewKind::CharDev(rdev) | NewKind::BlockDev(rdev) => (Body::Special, 0, rdev),
            NewKind::Fifo | NewKind::Socket => (Body::Special, 0, 0),
        })
    }

    fn drop_body(&self, body: &Body) {
        if let Body::Symlink { page } = body {
            self.shared.volume.alloc.free_pages(*page..page + 1);
        }
    }

    /// Free a fresh inode at once: nothing on the medium leads to it.
    fn discard(&self, inode: Arc<Inode>) {
        let volume = &self.shared.volume;
        let ino = inode.ino;
        volume.table.remove(ino);
        match Arc::try_unwrap(inode) {
            // Most often this is the last reference, and no lock is needed.
            Ok(Inode { body, meta, .. }) => {
                match body {
                    Body::File(file) => {
                        file.into_inner().tear_down(volume);
                    }
                    Body::Dir(dir) => free_runs(volume, dir.take_growth().1),
                    body => self.drop_body(&body),
                }
                if let Some(xattrs) = meta.into_inner().rare().and_then(|r| r.xattrs.as_mut()) {
                    xattrs.tear_down(volume);
                }
            }
            Err(inode) => {
                match &inode.body {
                    Body::File(file) => {
                        file.write().tear_down(volume);
                    }
                    Body::Dir(dir) => free_runs(volume, dir.take_growth().1),
                    body => self.drop_body(body),
                }
                if let Some(xattrs) = inode.meta.lock().rare().and_then(|r| r.xattrs.as_mut()) {
                    xattrs.tear_down(volume);
                }
            }
        }
        volume.alloc.free_pair(ino);
    }

    /// A new entry for `child`, all but its links. Nothing leads to it.
    fn make_entry(&self, child: u64, kind: Kind, hash: u64, name: &[u8]) -> Result<u64> {
        let line = self.shared.volume.alloc.line()?;
        self.fill_entry(line, child, kind, hash, name)
    }

    /// Make a line an entry. On an error it is freed.
    fn fill_entry(&self, line: u64, child: u64, kind: Kind, hash: u64, name: &[u8]) -> Result<u64> {
        let volume = &self.shared.volume;
        let at = line_at(line);
        let inline = if name.len() <= dentry::INLINE {
            name.len()
        } else {
            dentry::INLINE_LONG
        };
        let mut lines = SmallVec::<[u64; 8]>::new();
        for _ in 0..dentry::more_lines(name.len()) {
            match volume.alloc.line() {
                Ok(more) => lines.push(more),
                Err(e) => {
                    lines
                        .into_iter()
                        .chain([line])
                        .for_each(|l| volume.alloc.free_line(l));
                    return Err(e);
                }
            }
        }
        let (mut link, mut rest) = (at + dentry::MORE, &name[inline..]);
        for more in lines {
            volume.pool.store(link, more);
            link = line_at(more);
            let (part, left) = rest.split_at(rest.len().min(dentry::PER_LINE));
            volume.pool.write(link + 8, part);
            rest = left;
        }
        let kind = u64::from(kind.mode_bits() >> 12) << dentry::KIND_SHIFT;
        let target = child | (name.len() as u64) << dentry::LEN_SHIFT | kind | dentry::FRESH;
        volume.pool.store(at + dentry::TARGET, target);
        volume.pool.store(at + dentry::HASH, hash);
        volume.pool.write(at + dentry::NAME, &name[..inline]);
        Ok(line)
    }

    /// Free an entry that nothing leads to.
    fn drop_entry(&self, line: u64) {
        let volume = &self.shared.volume;
        let more = volume
            .image()
            .dentry(line)
            .and_then(|d| volume.image().name_lines(&d));
        more.into_iter()
            .flatten()
            .chain([line])
            .for_each(|l| volume.alloc.free_line(l));
    }

    /// Insert an entry and note the pending name with its inode.
    fn add_name(
        &self,
        at: &mut Locked<'_>,
        dir: u64,
        line: u64,
        hash: u64,
        child: &Arc<Inode>,
        moved: bool,
    ) -> Result<()> {
        let op = at.insert(&self.shared.volume, line, hash, child.clone(), moved)?;
        child.meta.lock().adds.push(PendingName {
            dir,
            stripe: at.index() as u32,
            op,
        });
        Ok(())
    }

    /// Take a name away: at once if the persister never saw it, else by an operation.
    fn take_name(
        &self,
        at: &mut Locked<'_>,
        dir: u64,
        found: &Found,
        child: &Arc<Inode>,
        moved: bool,
        with_next: bool,
    ) -> Result<()> {
        let volume = &self.shared.volume;
        let line = found.dentry.line;
        at.unlink(volume, found)?;
        let stripe = at.index() as u32;
        if let Some(op) = at.pending(volume, line) {
            at.cancel(op);
            child
                .meta
                .lock()
                .adds
                .retain(|name| *name != PendingName { dir, stripe, op });
            self.drop_entry(line);
            return Ok(());
        }
        child.add_removal();
        let op = at.record_removal(line, child.clone(), with_next);
        if moved {
            child
                .meta
                .lock()
                .make_rare()
                .moves
                .push(PendingName { dir, stripe, op });
        }
        Ok(())
    }

    /// A name of an inode went or moved. It may be that no operation is left which would bring the
    /// new time along, so the inode is marked, after it has it.
    fn name_changed(&self, inode: &Arc<Inode>, now: Time) {
        inode.attrs.touch_ctime(now);
        if inode.nlink() > 0 {
            self.shared.persister.mark(inode);
        }
    }

    /// An inode lost a name. If that was the last and nobody uses it, free it, or leave it to
    /// whoever can.
    fn lost_name(&self, inode: Arc<Inode>) {
        if inode.nlink() > 0 {
            return;
        }
        if inode.has_removals() {
            let lines = inode.attrs.pages.load(Relaxed) * 64 + layout::LINES as i64;
            self.shared
                .persister
                .removed_lines
                .fetch_add(lines, Relaxed);
        } else if inode.try_discard() {
            self.discard(inode);
        } else {
            self.shared.persister.orphans.lock().push(inode.clone());
        }
    }

    /// After an operation: mark the directory dirty, slow down if need be, and in mode `sync`
    /// make it durable.
    fn changed(&self, dirs: &[(&Arc<Inode>, usize)]) -> Result<()> {
        for (dir, _) in dirs {
            self.shared.persister.note(dir);
        }
        if self.shared.options.mode == Mode::Sync {
            let pulls = dirs
                .iter()
                .map(|&(dir, stripe)| Pull::Stripe(dir.clone(), stripe));
            self.shared.persister.persist(&self.shared.volume, pulls)?;
        }
        Ok(())
    }

    /// Make an inode and name it.
    pub(crate) fn make(&self, dir: &Node, name: &[u8], new: &NewNode<'_>) -> Result<Node> {
        check_name(name)?;
        let (volume, parent) = (&self.shared.volume, dir.inode());
        let d = parent.dir()?;
        let hash = volume.hash.hash(name);
        let mut at = d.lock(hash);
        if at.find(volume, hash, name)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        let is_dir = new.kind == NewKind::Dir;
        if is_dir && parent.nlink() >= LINK_MAX {
            return Err(Errno::MLINK.into());
        }
        at.provide(volume, hash)?;
        let now = self.now();
        let named = PendingName {
            dir: parent.ino,
            stripe: at.index() as u32,
            op: at.next_op(),
        };
        let (inode, line) = self.make_inode(parent.ino, new, now, &[named])?;
        let placed = self
            .fill_entry(line, inode.ino, inode.kind, hash, name)
            .and_then(|line| {
                at.insert(volume, line, hash, inode.clone(), false)
                    .inspect_err(|_| self.drop_entry(line))
            });
        let node = Node::of_fresh(inode.clone());
        if let Err(e) = placed {
            inode.attrs.nlink.store(0, SeqCst);
            inode.meta.lock().adds.clear();
            drop(node);
            self.lost_name(inode);
            return Err(e);
        }
        if is_dir {
            parent.attrs.nlink.fetch_add(1, AcqRel);
        }
        parent.attrs.touch(now);
        let stripe = at.index();
        drop(at);
        self.changed(&[(parent, stripe)])?;
        Ok(node)
    }

    /// Make a file without a name.
    pub(crate) fn make_nameless(&self, dir: &Node, new: &NewNode<'_>) -> Result<Node> {
        if dir::is_dead(dir.inode().dir()?) {
            return Err(Errno::NOENT.into());
        }
        let (inode, _) = self.make_inode(0, new, self.now(), &[])?;
        inode.attrs.nlink.store(0, SeqCst);
        inode.meta.lock().make_rare().linkable = true;
        let node = Node::of_fresh(inode.clone());
        self.shared.persister.orphans.lock().push(inode);
        Ok(node)
    }

    /// Give an inode a further name.
    pub(crate) fn add_link(&self, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let (volume, parent, child) = (&self.shared.volume, dir.inode(), node.inode());
        let d = parent.dir()?;
        let hash = volume.hash.hash(name);
        let mut at = d.lock(hash);
        if at.find(volume, hash, name)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        if child.kind == Kind::Dir {
            return Err(Errno::PERM.into());
        }
        at.provide(volume, hash)?;
        let line = self.make_entry(child.ino, child.kind, hash, name)?;
        let counted = {
            let mut meta = child.meta.lock();
            let linkable = meta.rare().is_some_and(|rare| rare.linkable);
            let allowed = |n: u32| (n < LINK_MAX && (n > 0 || linkable)).then_some(n + 1);
            let counted = child.attrs.nlink.fetch_update(AcqRel, Acquire, allowed);
            if let Some(rare) = meta.rare().filter(|_| counted.is_ok()) {
                rare.linkable = false;
            }
            counted
        };
        if let Err(nlink) = counted {
            self.drop_entry(line);
            return Err(if nlink == 0 {
                Errno::NOENT
            } else {
                Errno::MLINK
            }
            .into());
        }
        if let Err(e) = self.add_name(&mut at, parent.ino, line, hash, child, false) {
            child.attrs.nlink.fetch_sub(1, SeqCst);
            self.drop_entry(line);
            return Err(e);
        }
        let now = self.now();
        child.attrs.touch_ctime(now);
        parent.attrs.touch(now);
        let stripe = at.index();
        drop(at);
        self.changed(&[(parent, stripe)])
    }

    /// Remove a name; `directory` says which kind is meant.
    pub(crate) fn remove(
        &self,
        dir: &Node,
        name: &[u8],
        directory: bool,
        veto: Veto<'_>,
    ) -> Result<()> {
        check_name(name)?;
        let (volume, parent) = (&self.shared.volume, dir.inode());
        let d = parent.dir()?;
        let hash = volume.hash.hash(name);
        let mut at = d.lock(hash);
        let found = at.find(volume, hash, name)?.ok_or(Errno::NOENT)?;
        let child = self.load(found.dentry.ino)?;
        veto(&child.attr())?;
        match (directory, child.kind == Kind::Dir) {
            (true, false) => return Err(Errno::NOTDIR.into()),
            (false, true) => return Err(Errno::ISDIR.into()),
            (true, true) => dir::kill(child.dir()?)?,
            (false, false) => {}
        }
        self.take_name(&mut at, parent.ino, &found, &child, false, false)?;
        let now = self.now();
        if directory {
            child.attrs.nlink.store(0, SeqCst);
            parent.attrs.nlink.fetch_sub(1, SeqCst);
        } else {
            child.attrs.nlink.fetch_sub(1, SeqCst);
        }
        self.name_changed(&child, now);
        parent.attrs.touch(now);
        let stripe = at.index();
        drop(at);
        self.lost_name(child);
        self.changed(&[(parent, stripe)])
    }

    /// Whether directory `above` is `below` or above it. Holds on only under `dir_moves`.
    fn is_above(&self, above: u64, below: &Arc<Inode>) -> Result<bool> {
        let mut at = below.clone();
        let root = self.shared.volume.superblock.root;
        while at.ino != above {
            if at.ino == root {
                return Ok(false);
            }
            at = self.load(at.dir()?.parent.load(Acquire))?;
        }
        Ok(true)
    }

    /// Move or exchange names.
    pub(crate) fn move_name(
        &self,
        from: &Node,
        name: &[u8],
        to: &Node,
        new_name: &[u8],
        mode: RenameMode,
        veto: Veto<'_>,
    ) -> Result<()> {
        check_name(name)?;
        check_name(new_name)?;
        let crosses = from.inode().ino != to.inode().ino;
        // Only moves of directories between directories need the lock; whether this is one shows
        // when the names are locked, and may have changed since this look.
        let mut is_dir_move = crosses
            && (self
                .find(from, name)
                .is_ok_and(|n| n.inode().kind == Kind::Dir)
                || (mode == RenameMode::Exchange
                    && self
                        .find(to, new_name)
                        .is_ok_and(|n| n.inode().kind == Kind::Dir)));
        loop {
            let guard = is_dir_move.then(|| self.shared.dir_moves.lock());
            match self.try_move(
                from,
                name,
                to,
                new_name,
                mode,
                veto,
                guard.is_some() || !crosses,
            )? {
                Some(()) => return Ok(()),
                None => is_dir_move = true,
            }
        }
    }

    /// One attempt at a move; `None`: it moves a directory, and the caller does not hold the lock
    /// for that.
    #[allow(clippy::too_many_arguments)]
    fn try_move(
        &self,
        from: &Node,
        name: &[u8],
        to: &Node,
        new_name: &[u8],
        mode: RenameMode,
        veto: Veto<'_>,
        may_move_dir: bool,
    ) -> Result<Option<()>> {
        let volume = &self.shared.volume;
        let (from, to) = (from.inode(), to.inode());
        let (from_dir, to_dir) = (from.dir()?, to.dir()?);
        let (hash, new_hash) = (volume.hash.hash(name), volume.hash.hash(new_name));
        let mut locks = lock_two(from_dir, hash, to_dir, new_hash);

        // Check.
        let source = locks.from().find(volume, hash, name)?.ok_or(Errno::NOENT)?;
        let target = locks.to().find(volume, new_hash, new_name)?;
        let child = self.load(source.dentry.ino)?;
        let victim = target.map(|t| self.load(t.dentry.ino)).transpose()?;
        match (mode, &victim) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST.into()),
            (RenameMode::Exchange, None) => return Err(Errno::NOENT.into()),
            (_, Some(victim)) if victim.ino == child.ino => return Ok(Some(())),
            _ => {}
        }
        let moves_dir = |inode: &Inode| inode.kind == Kind::Dir;
        if !may_move_dir
            && (moves_dir(&child)
                || (mode == RenameMode::Exchange && victim.as_ref().is_some_and(|v| moves_dir(v))))
        {
            return Ok(None);
        }
        let crosses = from.ino != to.ino;
        if crosses && moves_dir(&child) && self.is_above(child.ino, to)? {
            return Err(Errno::INVAL.into());
        }
        if let Some(victim) = victim.as_ref().filter(|v| crosses && moves_dir(v))
            && self.is_above(victim.ino, from)?
        {
            // It holds the source, so it is neither empty nor can it go below itself.
            let exchange = mode == RenameMode::Exchange;
            return Err(if exchange {
                Errno::INVAL
            } else {
                Errno::NOTEMPTY
            }
            .into());
        }
        veto(&child.attr())?;
        if let Some(victim) = &victim {
            veto(&victim.attr())?;
            match (moves_dir(&child), moves_dir(victim)) {
                (true, false) if mode != RenameMode::Exchange => return Err(Errno::NOTDIR.into()),
                (false, true) if mode != RenameMode::Exchange => return Err(Errno::ISDIR.into()),
                _ => {}
            }
        }
        let replaced = mode != RenameMode::Exchange && victim.is_some();
        if crosses && moves_dir(&child) && !replaced && to.nlink() >= LINK_MAX {
            return Err(Errno::MLINK.into());
        }

        // Take space.
        let now = self.now();
        locks.to().provide(volume, new_hash)?;
        let entry = self.make_entry(child.ino, child.kind, new_hash, new_name)?;
        let back =
            match self.entry_for_old_name(from, &mut locks, mode, hash, name, victim.as_ref(), now)
            {
                Ok(back) => back,
                Err(e) => {
                    self.drop_entry(entry);
                    return Err(e);
                }
            };
        if replaced
            && let Some(victim) = victim.as_ref().filter(|v| moves_dir(v))
            && let Err(e) = dir::kill(victim.dir()?)
        {
            self.drop_entry(entry);
            if let Some((line, whiteout)) = back {
                self.drop_entry(line);
                whiteout.attrs.nlink.store(0, SeqCst);
                whiteout.release();
                self.lost_name(whiteout);
            }
            return Err(e);
        }

        // Change the latest view; look-ups wait meanwhile.
        locks.from().exclusive();
        locks.to().exclusive();
        let keeps_old = back.is_some();
        // Found anew, here and below: what was done since may have changed what is before it.
        let source = locks.from().find(volume, hash, name)?.ok_or(Errno::NOENT)?;
        self.take_name(locks.from(), from.ino, &source, &child, true, keeps_old)?;
        if let Some(victim) = &victim {
            let target = locks
                .to()
                .find(volume, new_hash, new_name)?
                .ok_or(Errno::NOENT)?;
            let moved = mode == RenameMode::Exchange;
            self.take_name(locks.to(), to.ino, &target, victim, moved, true)?;
        }
        if let Some((line, inode)) = &back {
            let moved = inode.meta.lock().is_moving();
            self.add_name(locks.from(), from.ino, *line, hash, inode, moved)?;
        }
        let moved = child.meta.lock().is_moving();
        self.add_name(locks.to(), to.ino, entry, new_hash, &child, moved)?;

        self.account_move(from, to, &child, victim.as_ref(), mode, now);
        let stripes = [(from, locks.from().index()), (to, locks.to().index())];
        if let (RenameMode::Whiteout, Some((_, inode))) = (mode, &back) {
            inode.release(); // born with a handle that nobody wants
        }
        drop(locks);
        if let Some(victim) = victim.filter(|_| replaced) {
            self.lost_name(victim);
        }
        self.changed(&stripes)?;
        Ok(Some(()))
    }

    /// What stands under the old name afterwards: the exchanged inode, a whiteout, or nothing.
    #[allow(clippy::too_many_arguments)]
    fn entry_for_old_name(
        &self,
        from: &Arc<Inode>,
        locks: &mut TwoStripes<'_>,
        mode: RenameMode,
        hash: u64,
        name: &[u8],
        victim: Option<&Arc<Inode>>,
        now: Time,
    ) -> Result<Option<(u64, Arc<Inode>)>> {
        let inode = match (mode, victim) {
            (RenameMode::Exchange, Some(victim)) => victim.clone(),
            (RenameMode::Whiteout, _) => {
                let new = NewNode {
                    kind: NewKind::CharDev(0),
                    perm: 0,
                    uid: 0,
                    gid: 0,
                    xattrs: &[],
                };
                self.make_inode(from.ino, &new, now, &[])?.0
            }
            _ => return Ok(None),
        };
        let line = locks
            .from()
            .provide(&self.shared.volume, hash)
            .and_then(|()| self.make_entry(inode.ino, inode.kind, hash, name));
        match line {
            Ok(line) => Ok(Some((line, inode))),
            Err(e) => {
                if mode == RenameMode::Whiteout {
                    inode.attrs.nlink.store(0, SeqCst);
                    inode.release();
                    self.lost_name(inode);
                }
                Err(e)
            }
        }
    }

    /// Link counts, parents and times after a move.
    fn account_move(
        &self,
        from: &Arc<Inode>,
        to: &Arc<Inode>,
        child: &Arc<Inode>,
        victim: Option<&Arc<Inode>>,
        mode: RenameMode,
        now: Time,
    ) {
        let reparent = |inode: &Arc<Inode>, old: &Inode, new: &Inode| {
            if inode.kind == Kind::Dir && old.ino != new.ino {
                if let Ok(dir) = inode.dir() {
                    dir.parent.store(new.ino, Release);
                }
                old.attrs.nlink.fetch_sub(1, SeqCst);
                new.attrs.nlink.fetch_add(1, AcqRel);
                self.shared.persister.moves.lock().push(inode.clone());
            }
        };
        reparent(child, from, to);
        if let Some(victim) = victim {
            if mode == RenameMode::Exchange {
                reparent(victim, to, from);
            } else if victim.kind == Kind::Dir {
                victim.attrs.nlink.store(0, SeqCst);
                to.attrs.nlink.fetch_sub(1, SeqCst);
            } else {
                victim.attrs.nlink.fetch_sub(1, SeqCst);
            }
            self.name_changed(victim, now);
        }
        self.name_changed(child, now);
        from.attrs.touch(now);
        to.attrs.touch(now);
    }
}
