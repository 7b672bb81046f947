//! Mode `strong`: what a request has changed commits as one transaction, before it returns.
//!
//! The caller holds the gate alone ([`crate::commit::gate`]), so what is pending is what it has
//! done, and times of access. All of it is one batch, whatever its size: a request is refused before
//! it changes anything if its words might exceed the journal ([`Persister::blocks_max`]).

use crate::commit::capture::{Captured, Pull};
use crate::commit::lane::{Lane, check, or_fail};
use crate::commit::persister::Persister;
use crate::fault::{Fault, injected};
use crate::inode::Body;
use crate::volume::Volume;
use std::sync::atomic::Ordering::Relaxed;
use vfs::Result;

impl Persister {
    /// Commit what the request at hand has changed; it is durable when this returns.
    ///
    /// # Errors
    /// The medium failed: whether it is durable is not known, and nothing further is accepted.
    pub fn commit_request(&self, volume: &Volume) -> Result<()> {
        if injected(Fault::RequestUncommitted) {
            return Ok(());
        }
        check(volume)?;
        let mut lane = self.lane.wait();
        or_fail(volume, &mut lane, |lane| {
            let removed = self.budget.notes.removed_lines();
            let noted = self.budget.notes.words();
            self.publish_request(volume, lane)?;
            self.budget.take_up_to(noted);
            self.deferred_lines.store(removed, Relaxed);
            self.moves.lock().retain(|dir| dir.has_pending_names());
            lane.hand_over(volume)
        })
    }

    fn publish_request(&self, volume: &Volume, lane: &mut Lane) -> Result<()> {
        let dirty = self.budget.notes.take_dirty();
        let dirty: Vec<_> = dirty.filter_map(|ino| volume.inodes.get(ino)).collect();
        dirty.iter().for_each(|inode| inode.clear_dirty());
        let mut batch = Captured::new(volume, &self.moves);
        for inode in dirty {
            batch.pull(Pull::Inode(inode.clone()))?;
            if let Body::Dir(dir) = &inode.body
                && dir.is_changed()
            {
                batch.pull(Pull::Dir(inode.clone()))?;
            }
        }
        self.publish(volume, lane, batch) // Commit point of the request.
    }

    /// Most blocks that a request may map anew, or make read as zeros: each takes a word of its
    /// record. An image of at most 8 GiB has no more.
    pub fn blocks_max(&self) -> u64 {
        self.capacity as u64 / 2
    }
}
