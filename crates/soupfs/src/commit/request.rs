//! Mode `strong`: what a request has changed commits as a whole, before it returns.
//!
//! The caller holds the scopes of all that it has changed ([`crate::commit::gate`]), so what is
//! pending there is what it has done, and times of access. It queues; whoever has the lane next
//! takes all that is queued, and commits it as one record: requests that wait at the same time
//! share the fences ([`crate::commit::requests`]). A request is never divided, whatever its size:
//! nodes of indexes are copied if its words would be too many ([`crate::commit::copies`]).

use crate::commit::capture::Pull;
use crate::commit::lane::{check, or_fail};
use crate::commit::persister::Persister;
use crate::fault::{Fault, injected};
use crate::inode::Inode;
use crate::volume::Volume;
use smallvec::SmallVec;
use triomphe::Arc;
use vfs::Result;

impl Persister {
    /// Commit what a request has changed of these inodes, and of what it has named in them; it is
    /// durable when this returns.
    ///
    /// # Errors
    /// The medium failed: whether it is durable is not known, and nothing further is accepted.
    pub fn commit_request<'i>(
        &self,
        volume: &Volume,
        changed: impl Iterator<Item = &'i Arc<Inode>>,
    ) -> Result<()> {
        if injected(Fault::RequestUncommitted) {
            return Ok(());
        }
        let changed: SmallVec<[_; 2]> = changed.filter(|inode| inode.is_dirty()).cloned().collect();
        if changed.is_empty() {
            return check(volume);
        }
        changed.iter().for_each(|inode| inode.clear_dirty());
        self.persist(volume, [Pull::Request(changed)]) // Commit point of the request.
    }

    /// Make all that committed durable in place, so that what live records store to may be stored
    /// to. The caller holds scopes.
    ///
    /// # Errors
    /// The medium failed.
    pub fn checkpoint(&self, volume: &Volume) -> Result<()> {
        check(volume)?;
        let mut lane = self.lane.wait();
        or_fail(volume, &mut lane, |lane| {
            lane.checkpoint(volume)?;
            self.count_waiting(lane);
            lane.hand_over(volume)
        })
    }
}
