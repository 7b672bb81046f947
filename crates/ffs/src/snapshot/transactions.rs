//! Snapshots where rounds are transactions.
//!
//! ```text
//! copies          committed apart, before what is written over is in a transaction, or in place
//! the end of one  committed alone, before anything else
//! frees           in the transaction that frees: the newest snapshot that wants a block takes it;
//!                 the blocks of pointers on the way there are committed apart, before
//! ```
//!
//! So the room that a transaction takes is bounded by what operations change: a block of pointers
//! for so many blocks in a row that they free (`Cache::freed_max`), and the inodes of snapshots.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use vfs::{Errno, Result, Time};
use zerocopy::FromBytes;

use super::patch::Patch;
use super::{Snapshot, Snapshots, State};
use crate::alloc::Alloc;
use crate::fault::{Fault, injected};
use crate::layout::{Inode, InodeFlags};
use crate::map;
use crate::map::change::{How, add, add_noting};
use crate::medium::Medium;

impl Snapshot {
    /// Lets it have `bytes` as a block when the patch is committed; or (`None`) only what leads
    /// there.
    fn put_apart(
        &self,
        medium: &Medium,
        alloc: &Alloc,
        (block, bytes): (u64, Option<&[u8]>),
        patch: &mut Patch,
    ) -> Result<()> {
        // Nobody reads a block of it that has not got its bytes yet.
        let mut stored = self.stored.write();
        let how = match bytes {
            Some(_) => How::Stays,
            None => How::Prepares,
        };
        let mut taken = Vec::new();
        let added = add_noting(medium, alloc, &mut stored, block, how, &mut taken);
        if taken.is_empty() && how == How::Prepares {
            return added.map(drop);
        }
        // It may have got indirect blocks in vain.
        medium.store_inode(&stored, Time::default())?;
        patch.take(medium, alloc, &taken)?;
        patch.store(medium, self.ino)?;
        let places = map::places(medium, &stored, block)?;
        patch.point(places.into_iter().map(|place| place.block()));
        let copy = added?;
        if let Some(bytes) = bytes {
            schedule::point("a snapshot leads to a copy");
            let write = |to: &mut [u8]| to.copy_from_slice(bytes);
            medium.cache.overwrite(copy, self.ino, write)?;
            patch.copy(copy);
        }
        Ok(())
    }

    /// Takes a block that the running transaction frees. All that leads there is there.
    fn adopt(&self, medium: &Medium, alloc: &Alloc, block: u64) -> Result<()> {
        let mut stored = self.stored.write();
        let added = add(medium, alloc, &mut stored, block, How::Adopts);
        medium.store_inode(&stored, Time::default())?;
        added?;
        match injected(Fault::ClaimedFreed) {
            true => Ok(()),
            false => alloc.retake(medium, block),
        }
    }
}

impl Snapshots {
    /// Lets a snapshot that is being made have `bytes` as a block, when that is committed. Called
    /// by who writes.
    ///
    /// # Errors
    /// `ENOSPC`; the disk failed.
    pub fn give(
        &self,
        medium: &Medium,
        alloc: &Alloc,
        one: &Snapshot,
        (block, bytes): (u64, &[u8]),
    ) -> Result<()> {
        one.put_apart(medium, alloc, (block, Some(bytes)), &mut self.patch.lock())?;
        self.commit_if_full(medium, alloc)
    }

    pub(super) fn copy_apart(
        &self,
        medium: &Medium,
        alloc: &Alloc,
        one: &Arc<Snapshot>,
        (block, bytes): (u64, &[u8]),
    ) -> Result<()> {
        let put = one.put_apart(medium, alloc, (block, Some(bytes)), &mut self.patch.lock());
        if let Err(error) = put {
            return self.lose(medium, one, &error);
        }
        self.copied.fetch_add(1, Ordering::Relaxed);
        self.commit_if_full(medium, alloc)
    }

    pub(super) fn end_apart(&self, medium: &Medium, one: &Snapshot) -> Result<()> {
        if injected(Fault::EndedEarly) {
            self.dropped(one.ino);
            return Ok(());
        }
        // Before the patch that there is: its copies may be put where this one wants what is there.
        // What that has got with them is in the patch.
        let (at, offset) = medium.inode_place(one.ino)?;
        let mut bytes = medium.cache.committed(at)?;
        let (inode, _) = Inode::mut_from_prefix(&mut bytes[offset..]).expect("it is in one block");
        inode.flags = (inode.flags.get() & !InodeFlags::IMMUTABLE.bits()).into();
        let alone = BTreeMap::from([(at, bytes)]);
        medium.cache.commit_apart(alone, Default::default())?;
        self.patch.lock().end(medium, one.ino)
    }

    fn commit_if_full(&self, medium: &Medium, alloc: &Alloc) -> Result<()> {
        let is_full = self.patch.lock().is_full(medium);
        match is_full {
            true => self.commit(medium, alloc),
            false => Ok(()),
        }
    }

    /// Commits what snapshots have got. Called by who writes.
    ///
    /// # Errors
    /// The disk failed.
    pub fn commit(&self, medium: &Medium, alloc: &Alloc) -> Result<()> {
        // Snapshots may want what this writes itself: descriptors, and blocks that nobody had the
        // space to claim. It has the copies of these, too.
        loop {
            let unasked = self.patch.lock().unasked();
            if unasked.is_empty() {
                break;
            }
            for block in unasked {
                let wants = self.wanting(medium, block)?;
                if wants.is_empty() {
                    continue;
                }
                let bytes = medium.cache.read_in_place(block)?;
                let mut patch = self.patch.lock();
                patch.log(block);
                for one in wants {
                    let put = match patch.has_room(medium) {
                        true => one.put_apart(medium, alloc, (block, Some(&bytes)), &mut patch),
                        false => Err(Errno::NOSPC.into()),
                    };
                    match put {
                        Ok(()) => drop(self.copied.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => {
                            MutexGuard::unlocked(&mut patch, || self.lose(medium, &one, &error))?;
                        }
                    }
                }
            }
        }
        let patch = std::mem::take(&mut *self.patch.lock());
        let ended = patch.commit(medium)?;
        ended.into_iter().for_each(|ino| self.dropped(ino));
        Ok(())
    }

    /// The running transaction frees blocks, and there is no operation: those that no snapshot has
    /// taken are free. What none has the space for is copied when it is written over. Called by who
    /// writes.
    ///
    /// # Errors
    /// The disk failed.
    pub fn adopt(&self, medium: &Medium, alloc: &Alloc, freed: Vec<u64>) -> Result<Vec<u64>> {
        if self.len.load(Ordering::Acquire) == 0 || injected(Fault::ClaimForgotten) {
            return Ok(freed);
        }
        let (mut free, mut claims) = (Vec::new(), Vec::new());
        for block in freed {
            let Some(one) = self.wanting(medium, block)?.into_iter().next() else {
                free.push(block);
                continue;
            };
            match one.put_apart(medium, alloc, (block, None), &mut self.patch.lock()) {
                Ok(()) => claims.push((block, one)),
                Err(error) => {
                    let name = &one.name;
                    log::warn!("snapshot {name}: block {block} is not claimed: {error}");
                    free.push(block);
                }
            }
            self.commit_if_full(medium, alloc)?;
        }
        self.commit(medium, alloc)?;
        for (block, one) in claims {
            if one.state() != State::Active {
                free.push(block);
                continue;
            }
            one.adopt(medium, alloc, block)?;
            self.claimed.fetch_add(1, Ordering::Relaxed);
        }
        Ok(free)
    }
}
