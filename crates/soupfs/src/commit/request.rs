//! Mode `strong`: what a request has changed commits as a whole, before it returns.
//!
//! The caller holds the scopes of all that it has changed ([`crate::commit::gate`]), so what is
//! pending there is what it has done, and times of access. It captures and builds that, and makes
//! contents durable, beside others. Then it queues; whoever has the lane next takes all that is
//! queued, and commits it as one record: requests that wait at the same time share the fences
//! ([`crate::commit::requests`]). A request is never divided, whatever its size:
//! nodes of indexes are copied if its words would be too many ([`crate::commit::copies`]).

use crate::commit::build::Built;
use crate::commit::capture::{Captured, Pull};
use crate::commit::lane::{Lane, check, fail_if, or_fail};
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
        let mut dirty: SmallVec<[Arc<Inode>; 2]> = SmallVec::new();
        for inode in changed.filter(|inode| inode.is_dirty()) {
            inode.clear_dirty();
            dirty.push(inode.clone());
        }
        if dirty.is_empty() {
            return check(volume);
        }
        let Some(built) = fail_if(volume, || self.build_request(volume, dirty))? else {
            return check(volume);
        };
        // Commit point of the request.
        match self.lane.at_once() {
            Some(mut lane) => {
                or_fail(volume, &mut lane, |lane| {
                    self.serve_requests(volume, lane, [built])
                })?;
                check(volume)
            }
            None => self.share(volume, &self.commits, [built], Persister::serve_requests),
        }
    }

    /// All that comes before the commit, beside other requests: nobody else is at what the caller
    /// holds, and nothing leads to what is stored here (HTMFS's invisible writes).
    fn build_request(
        &self,
        volume: &Volume,
        changed: SmallVec<[Arc<Inode>; 2]>,
    ) -> Result<Option<Box<Built>>> {
        check(volume)?;
        let mut captured = Captured::new(volume, &self.moves);
        captured.pull(Pull::Request(changed))?;
        if captured.is_empty() {
            return Ok(None);
        }
        captured.build_aside().map(Some)
    }

    /// Commit requests, in as few records as the journal has room for.
    fn serve_requests(
        &self,
        volume: &Volume,
        lane: &mut Lane,
        all: impl IntoIterator<Item = Box<Built>>,
    ) -> Result<()> {
        check(volume)?;
        let mut group: Option<Box<Built>> = None;
        for built in all {
            group = Some(match group {
                Some(full) if self.budget.fills_batch(full.words()) => {
                    self.publish_built(volume, lane, full)?;
                    built
                }
                Some(mut group) => {
                    group.join(built);
                    group
                }
                None => built,
            });
        }
        if let Some(group) = group {
            self.publish_built(volume, lane, group)?;
        }
        lane.hand_over(volume)
    }

    /// Make all that committed durable in place, so that what live records store to may be stored
    /// to. The caller holds scopes. What was withdrawn the next commit frees, which hands over what
    /// that flushes.
    ///
    /// # Errors
    /// The medium failed.
    pub fn checkpoint(&self, volume: &Volume) -> Result<()> {
        check(volume)?;
        let mut lane = self.lane.wait();
        or_fail(volume, &mut lane, |lane| lane.checkpoint_journal(volume))
    }
}
