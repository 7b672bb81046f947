//! Which directory is above which: what keeps moves and removals of directories from breaking the
//! tree.

use crate::dir::{self, MoveNumber};
use crate::fault::{Fault, injected};
use crate::inode::Inode;
use crate::layout::line_at;
use crate::mount::SoupFs;
use smallvec::SmallVec;
use std::sync::atomic::Ordering::Acquire;
use triomphe::Arc;
use vfs::{Errno, Error, Result};

impl SoupFs {
    /// Whether directory `above` is `below` or above it, at a time when nothing moves.
    pub(super) fn is_above(&self, above: u64, below: &Arc<Inode>) -> Result<bool> {
        self.go_up(above, below, |_| Ok(()))
    }

    /// The same; `None`: a directory on the way is moving, but those that are the caller's own.
    pub(super) fn stands_above(
        &self,
        above: u64,
        below: &Arc<Inode>,
        is_own: impl Fn(u64) -> bool,
    ) -> Result<Option<bool>> {
        let mut way = SmallVec::<[_; 16]>::new();
        let found = self.go_up(above, below, |at| {
            way.push((at.clone(), at.dir()?.moves.get()));
            Ok(())
        });
        let stands = |(inode, number): &(Arc<Inode>, u32)| {
            let is_quiet = !MoveNumber::is_odd(*number) || is_own(inode.ino);
            (is_quiet || injected(Fault::MovePassed))
                && inode.dir().is_ok_and(|dir| dir.moves.get() == *number)
        };
        match way.iter().all(stands) {
            true => found.map(Some),
            false => Ok(None),
        }
    }

    /// Go up from `below` to `above`, or to the root: false. `visit` sees each directory before
    /// its parent is looked at, but for the last one.
    fn go_up(
        &self,
        above: u64,
        below: &Arc<Inode>,
        mut visit: impl FnMut(&Arc<Inode>) -> Result<()>,
    ) -> Result<bool> {
        let mut at = below.clone();
        let root = self.shared.volume.superblock.root;
        // In a damaged image they may go in a circle: then one is met that was noted after a power
        // of two of steps.
        let (mut noted, mut steps) = (at.ino, 0u64);
        while at.ino != above {
            if at.ino == root {
                return Ok(false);
            }
            visit(&at)?;
            at = self.load_parent(&at)?;
            if at.ino == noted {
                return Err(Error::corrupt(
                    line_at(at.ino),
                    "a directory is below itself",
                ));
            }
            steps += 1;
            if steps.is_power_of_two() {
                noted = at.ino;
            }
        }
        Ok(true)
    }

    /// Declare a directory removed whose name in `parent` is locked: see [`dir::kill`].
    ///
    /// In a tree it may wait for the stripes, as who has one waits for nothing above it. In a
    /// damaged image two may be below each other, and two removals would wait for each other; so
    /// before it waits it looks, and that is an error.
    pub(crate) fn kill(&self, victim: &Arc<Inode>, parent: &Arc<Inode>) -> Result<()> {
        let dir = victim.dir()?;
        if dir::kill(dir, false)? {
            return Ok(());
        }
        let is_circle = || self.is_above(victim.ino, parent);
        if dir.parent.load(Acquire) == parent.ino && matches!(is_circle(), Ok(false)) {
            return dir::kill(dir, true).map(drop);
        }
        // Moves of directories meanwhile could make a tree look so, or as if it had a circle.
        match self.stands_above(victim.ino, parent, |_| false)? {
            None => Err(Errno::BUSY.into()),
            Some(false) if dir.parent.load(Acquire) == parent.ino => Err(Errno::BUSY.into()),
            Some(_) => Err(Error::corrupt(
                line_at(victim.ino),
                "a directory is below itself, or not where it says",
            )),
        }
    }
}
