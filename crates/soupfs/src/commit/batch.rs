//! A batch: what commits together, whatever phase it is in.

use crate::commit::member::Member;
use crate::dir::DirOp;
use crate::hash::NumberMap;
use crate::inode::Inode;
use crate::layout::line_at;
use crate::volume::Volume;
use triomphe::Arc;
use vfs::{Error, Result};

/// Journal words that an operation on a name takes, on average.
pub const OP_WEIGHT: usize = 4;

/// Operations, and the inodes that they are about.
#[derive(Default)]
pub struct Batch {
    /// The inodes.
    pub members: Vec<Member>,
    /// Where in `members` an inode is, by its number.
    places: NumberMap<usize>,
    /// Directory (index of its member) and operation, in order within each stripe.
    pub ops: Vec<(usize, DirOp)>,
    /// Journal words that it may need, roughly; what is private needs none.
    pub weight: usize,
    /// Operations on names in it.
    pub names: u64,
    /// Of the words that were noted for what is in it, at least so many.
    pub noted_words: u64,
}

impl Batch {
    /// Whether nothing was captured.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.ops.is_empty()
    }

    /// Operations and inodes in it.
    pub fn len(&self) -> usize {
        self.ops.len() + self.members.len()
    }

    /// Make an inode a member, or take it again if it is one. Returns its place.
    pub fn take_up(&mut self, volume: &Volume, inode: &Arc<Inode>) -> Result<usize> {
        let place = match self.places.get(&inode.ino) {
            Some(&place) => {
                let member = &mut self.members[place];
                self.weight -= member.weight();
                self.noted_words -= member.blocks();
                member.refresh(volume);
                place
            }
            None => {
                self.members.push(Member::capture(volume, inode)?);
                self.places.insert(inode.ino, self.members.len() - 1);
                self.members.len() - 1
            }
        };
        self.weight += self.members[place].weight();
        self.noted_words += self.members[place].blocks();
        Ok(place)
    }

    /// The member that this inode is, if it is one.
    pub fn find(&self, ino: u64) -> Option<usize> {
        self.places.get(&ino).copied()
    }

    /// The member that this inode is: a name in the batch leads to it (R6).
    pub fn place(&self, ino: u64) -> Result<usize> {
        let missing = || Error::corrupt(line_at(ino), "a name's inode is not in its batch");
        self.find(ino).ok_or_else(missing)
    }
}
