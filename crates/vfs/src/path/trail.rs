//! Where the last walks went: most calls go to a directory that one of the calls before went to.
//!
//! A trail says that from this start, for this caller, this path leads to this directory. It can be
//! trusted as long as the directory is not removed and no change of the [`Layout`] has begun: the
//! directories on the way are not empty, so they cannot be removed either. Ways through symbolic
//! links or `..` are not noted.
//!
//! Trails are a thread's own. They keep their directories in use, so a directory that the same
//! thread removes is forgotten at once.

use std::cell::{Cell, Ref, RefCell};

use crate::vfs::Layout;
use crate::{Cred, FileSystem, Ino};

/// As many as a copy between trees, or a rename, needs.
const TRAILS: usize = 4;

/// The last walks of one thread.
pub(super) struct Trails<N> {
    trails: [RefCell<Option<Trail<N>>>; TRAILS],
    /// The one found or noted last.
    last: Cell<usize>,
}

struct Trail<N> {
    start: Ino,
    cred: Cred,
    /// The path up to its last name.
    path: Vec<u8>,
    version: u64,
    dir: N,
}

impl<N> Default for Trails<N> {
    fn default() -> Trails<N> {
        Trails {
            trails: Default::default(),
            last: Cell::new(0),
        }
    }
}

impl<N: Clone> Trails<N> {
    /// The directory that `path` leads to from `start`, if a walk has been there lately.
    #[inline]
    pub(super) fn find<F: FileSystem<Node = N>>(
        &self,
        fs: &F,
        layout: &Layout,
        cred: &Cred,
        start: Ino,
        path: &[u8],
    ) -> Option<Ref<'_, N>> {
        let holds = |t: &&Trail<N>| {
            t.path == path
                && t.start == start
                && layout.is_still(t.version)
                && t.cred == *cred
                && !fs.is_removed(&t.dir)
        };
        let check = |at: usize| {
            let trail = self.trails[at].try_borrow().ok()?;
            Ref::filter_map(trail, |t| t.as_ref().filter(holds).map(|t| &t.dir)).ok()
        };
        check(self.last.get()).or_else(|| {
            let at = (0..TRAILS).find(|&at| check(at).is_some())?;
            self.last.set(at);
            check(at)
        })
    }

    /// Notes a walk. `version` is the layout's of before it began.
    pub(super) fn note(&self, cred: &Cred, start: Ino, path: &[u8], version: u64, dir: &N) {
        let at = (self.last.get() + 1) % TRAILS;
        self.last.set(at);
        // One that is in use stays.
        if let Ok(mut trail) = self.trails[at].try_borrow_mut() {
            *trail = Some(Trail {
                start,
                cred: cred.clone(),
                path: path.to_vec(),
                version,
                dir: dir.clone(),
            });
        }
    }

    /// Forgets directories that were removed.
    pub(super) fn forget_removed<F: FileSystem<Node = N>>(&self, fs: &F) {
        for trail in &self.trails {
            if let Ok(mut trail) = trail.try_borrow_mut()
                && trail.as_ref().is_some_and(|t| fs.is_removed(&t.dir))
            {
                *trail = None;
            }
        }
    }
}
