//! What each snapshot of a run is to have: all that there was when it was made.

use crate::op::Op;
use crate::tree::{Flaw, Tree, difference_of_snapshots};
use std::collections::BTreeMap;
use vfs::Errno;

/// Those that there are.
#[derive(Default)]
pub(super) struct Snapshots {
    /// What each has, and whether it ends with the mount.
    all: BTreeMap<String, (Tree, bool)>,
}

impl Snapshots {
    /// Those that a mount has found.
    pub(super) fn of(tree: &Tree) -> Snapshots {
        let found = tree.snapshots.iter();
        Snapshots {
            all: found
                .map(|(name, tree)| (name.clone(), (tree.clone(), false)))
                .collect(),
        }
    }

    /// How an operation is to fail.
    pub(super) fn refuse(&self, op: &Op) -> Option<Errno> {
        match op {
            Op::Snapshot { name, .. } if self.all.contains_key(name) => Some(Errno::EXIST),
            Op::DropSnapshot(name) if !self.all.contains_key(name) => Some(Errno::NOENT),
            _ => None,
        }
    }

    /// An operation was done, and left this.
    pub(super) fn done(&mut self, op: &Op, latest: &Tree) {
        match op {
            Op::Snapshot { name, is_brief } => {
                let mut now = latest.named();
                now.snapshots.clear();
                self.all.insert(name.clone(), (now, *is_brief));
            }
            Op::DropSnapshot(name) => drop(self.all.remove(name)),
            Op::Remount => self.all.retain(|_, (_, is_brief)| !*is_brief),
            _ => {}
        }
    }

    /// Whether callers see them, and what is durable has those that a mount keeps.
    ///
    /// # Errors
    /// What differs.
    pub(super) fn are_in(&self, latest: &Tree, durable: &Tree) -> Result<(), Flaw> {
        let some = |with_brief: bool| -> BTreeMap<String, Tree> {
            let all = self.all.iter();
            let some = all.filter(|(_, (_, is_brief))| with_brief || !is_brief);
            some.map(|(name, (tree, _))| (name.clone(), tree.clone()))
                .collect()
        };
        let both = [
            ("latest", latest, some(true)),
            ("durable", durable, some(false)),
        ];
        for (what, tree, want) in both {
            if let Some(flaw) = difference_of_snapshots(&tree.snapshots, &want) {
                return Err(format!("the {what} tree: {flaw}"));
            }
        }
        Ok(())
    }
}
