//! The inodes that the kernel holds, by the number it knows them under.
//!
//! Every reply that names an inode (lookup, create, link, an entry of readdirplus) is one reference
//! that the kernel holds; FORGET gives back some. While any is left the table holds a node of the
//! engine, which keeps the inode alive even when its last name is gone: this is what makes an open
//! file without a name work although the kernel never tells us that it is open.
//!
//! The table is divided into shards by inode number, each with its own lock, held only to look up,
//! insert or remove; the engine is never called under it, except to clone a node. A node whose
//! count reaches zero is dropped after the lock is released, because that may free the inode.

use std::collections::HashMap;

use fuser::INodeNo;
use parking_lot::Mutex;
use vfs::Ino;

/// Number of shards: a power of two well above the number of threads.
const SHARDS: usize = 64;

/// The root's number in FUSE, whatever the engine calls it.
const FUSE_ROOT: u64 = 1;

struct Held<N> {
    node: N,
    /// References that the kernel holds; never zero.
    lookups: u64,
}

type Shard<N> = Mutex<HashMap<u64, Held<N>>>;

/// The inodes that the kernel holds.
pub struct InodeTable<N> {
    root: N,
    root_ino: Ino,
    shards: Box<[Shard<N>]>,
}

impl<N: Clone> InodeTable<N> {
    /// A table in which the kernel holds the root alone (it never forgets that one).
    pub fn new(root: N, root_ino: Ino) -> InodeTable<N> {
        let shards = (0..SHARDS).map(|_| Mutex::new(HashMap::new())).collect();
        InodeTable {
            root,
            root_ino,
            shards,
        }
    }

    /// The number under which the kernel knows an inode. The root and the engine's inode 1, if it
    /// has one, change places; all others keep their number.
    pub fn id(&self, ino: Ino) -> INodeNo {
        INodeNo(if ino == self.root_ino {
            FUSE_ROOT
        } else if ino == FUSE_ROOT {
            self.root_ino
        } else {
            ino
        })
    }

    /// The node that the kernel names; `None` when it holds no reference, which a correct kernel
    /// does not do.
    pub fn get(&self, id: INodeNo) -> Option<N> {
        if id.0 == FUSE_ROOT {
            return Some(self.root.clone());
        }
        self.shard(id)
            .lock()
            .get(&id.0)
            .map(|held| held.node.clone())
    }

    /// Note one more reference held by the kernel.
    pub fn hold(&self, id: INodeNo, node: N) {
        if id.0 == FUSE_ROOT {
            return;
        }
        self.shard(id)
            .lock()
            .entry(id.0)
            .and_modify(|held| held.lookups += 1)
            .or_insert(Held { node, lookups: 1 });
    }

    /// The kernel gave back `lookups` references.
    pub fn forget(&self, id: INodeNo, lookups: u64) {
        if id.0 == FUSE_ROOT {
            return;
        }
        let mut shard = self.shard(id).lock();
        let Some(held) = shard.get_mut(&id.0) else {
            return;
        };
        held.lookups = held.lookups.saturating_sub(lookups);
        if held.lookups == 0 {
            let gone = shard.remove(&id.0);
            drop(shard);
            drop(gone);
        }
    }

    /// The numbers of all inodes held now, but the root.
    pub fn ids(&self) -> Vec<INodeNo> {
        let of = |shard: &Shard<N>| -> Vec<u64> { shard.lock().keys().copied().collect() };
        self.shards.iter().flat_map(of).map(INodeNo).collect()
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    fn shard(&self, id: INodeNo) -> &Shard<N> {
        // Fibonacci hashing: engines number inodes by place, so low bits alone repeat.
        let hash = id.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58;
        &self.shards[hash as usize % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_node_lives_until_the_last_reference_is_given_back() {
        let table = InodeTable::new(Arc::new(0), 77);
        let node = Arc::new(5);
        let id = table.id(5);
        table.hold(id, node.clone());
        table.hold(id, node.clone());
        table.forget(id, 1);
        assert_eq!(Arc::strong_count(&node), 2);
        assert!(table.get(id).is_some());
        table.forget(id, 1);
        assert_eq!(Arc::strong_count(&node), 1);
        assert!(table.get(id).is_none());
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn the_root_is_one_and_is_never_forgotten() {
        let table = InodeTable::new(Arc::new(0), 77);
        assert_eq!(table.id(77), INodeNo(1));
        assert_eq!(
            table.id(1),
            INodeNo(77),
            "the engine's inode 1 must not look like the root"
        );
        table.forget(INodeNo(1), u64::MAX);
        assert!(table.get(INodeNo(1)).is_some());
    }

    #[test]
    fn forgetting_more_than_was_held_is_harmless() {
        let table = InodeTable::new(Arc::new(0), 1);
        table.hold(INodeNo(9), Arc::new(9));
        table.forget(INodeNo(9), 5);
        table.forget(INodeNo(9), 5);
        assert!(table.get(INodeNo(9)).is_none());
    }
}
