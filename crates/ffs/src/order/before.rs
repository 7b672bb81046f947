//! Before what an operation may not go on: rules of section 5 of the design that guards alone do
//! not keep. What stands in the way is to be durable first.

use std::sync::atomic::Ordering;

use vfs::Kind;

use super::graph::{On, Place};
use super::{Leaving, Name, State, all_of};
use crate::fault::{Fault, injected};
use crate::image::dir;

/// What is to be durable before an operation goes on, as far as that is known; `None`: nothing.
pub(super) type Before = Option<Vec<On>>;

/// What some places show is to be durable before; nothing, if there are none.
fn before(places: impl Iterator<Item = Place>) -> Before {
    let before: Vec<On> = places.map(On::Place).collect();
    (!before.is_empty()).then_some(before)
}

impl State {
    /// The disk has a directory by an entry that names it no more.
    pub(super) fn kept_dir(&self, place: Place) -> Before {
        let kinds = [dir::number_of(Kind::Dir), 0];
        let keeps = |old: &&[u8]| old[..4] != [0; 4] && kinds.contains(&old[7]);
        let kept = self.graph.old(place).filter(keeps).map(|_| place);
        before(kept.into_iter().filter(|_| !injected(Fault::KeptChanged)))
    }

    /// The disk has a name that its directory has lost, and keeps it until another name is there.
    /// To be found elsewhere it has to be gone first, but cannot wait for that: of `mv a t; mv b a;
    /// mv t b` each would wait for the next. Where a later name took its place, and was never on
    /// disk, any write of the block shows neither.
    pub(super) fn kept(&self, name: Name) -> Before {
        let names = |old: &[u8]| old[..4] != [0; 4];
        let keeps = |&place: &Place| {
            self.graph.is_closed(place) && self.graph.old(place).is_some_and(names)
        };
        let kept = self.vacated_by(name).filter(keeps);
        before(kept.filter(|_| !injected(Fault::KeptForgotten)))
    }

    /// An inode of the disk has moved on from a name, and its next one is not there. Who finds
    /// another inode by the name, or none, expects it there; but to wait for that could close a
    /// ring, as it may move on again.
    pub(super) fn passed(&self, name: Name) -> Before {
        let passed = self.left.iter().flat_map(|left| left.passed.get(&name));
        let names = passed.flatten().flat_map(|&ino| all_of(&self.names, ino));
        let names = names.copied();
        before(names.filter(|_| !injected(Fault::PassedTaken)))
    }

    /// The disk may have an inode under a name that it has lost. A directory is neither moved again
    /// nor removed before it has not.
    pub(super) fn moving(&self, ino: u32) -> Before {
        let lost = all_of(&self.lost, ino);
        before(lost.copied().filter(|_| !injected(Fault::MovingMoved)))
    }

    /// An inode has changed places with another one. What ends that is not known.
    pub(super) fn exchanged(&self, ino: u32) -> Before {
        let is_exchanged = self.exchanged.contains(&ino) && !injected(Fault::ExchangedMoved);
        is_exchanged.then(Vec::new)
    }

    /// A name that goes behind the other names of its inode, and behind those of others, would wait
    /// for itself: something that waits for it is before one of these.
    pub(super) fn ring(&self, leaving: &Leaving<'_>) -> Before {
        let Leaving { place, behind, .. } = *leaving;
        let (others, after) = behind;
        let inodes = [leaving.ino].into_iter().chain(others.iter().copied());
        let names = inodes.flat_map(|ino| all_of(&self.names, ino));
        let names = names.filter(|&&name| name != place);
        let from = names.map(|&name| On::Place(name));
        let from = from.chain(after.iter().copied());
        let is_ring = self.graph.leads_to(from, place);
        before(is_ring.then_some(place).into_iter())
    }

    /// The disk may still have the kernel's index of a directory, whose inode is at a place: names
    /// do not come before it is gone.
    pub(super) fn indexed(&self, dir: u32, place: Place) -> Before {
        let gone = self.unindexed.get(&dir);
        let has = gone.filter(|gone| !gone.load(Ordering::Acquire));
        before(has.map(|_| place).into_iter())
    }
}
