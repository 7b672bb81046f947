//! A batch: what commits together, whatever phase it is in.

use crate::commit::member::Member;
use crate::dir::DirOp;
use crate::hash::NumberMap;
use crate::inode::Inode;
use crate::layout::line_at;
use crate::volume::Volume;
use schedule::Mutex;
use triomphe::Arc;
use vfs::{Error, Result};

/// Numbers of inodes without names that were in use when they lost the last. Some may be in use for
/// something else by now.
pub type Orphans = Mutex<Vec<u64>>;

/// So many members are looked through one by one.
const FEW: usize = 8;

/// Operations, and the inodes that they are about.
#[derive(Default)]
pub struct Batch {
    /// The inodes.
    pub members: Vec<Member>,
    /// Where in `members` an inode is, by its number, if they are more than a [`FEW`].
    places: NumberMap<usize>,
    /// Directory (index of its member) and operation, in order within each stripe.
    pub ops: Vec<(usize, DirOp)>,
    /// Words of the journal that were noted for the operations and blocks in it.
    pub noted: u64,
    /// Words that its inodes may take besides: noted once until the next sweep, however many
    /// batches have the inode.
    inode_words: u64,
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

    /// Words of the journal that it may take; what is private takes none.
    pub fn words(&self) -> usize {
        (self.noted + self.inode_words) as usize
    }

    /// Make an inode a member, or take it again if it is one. Returns its place.
    pub fn take_up(&mut self, volume: &Volume, inode: &Arc<Inode>) -> Result<usize> {
        let place = match self.find(inode.ino) {
            Some(place) => {
                let member = &mut self.members[place];
                self.noted -= member.blocks();
                self.inode_words -= member.words();
                member.refresh(volume);
                place
            }
            None => {
                self.members.push(Member::capture(volume, inode)?);
                self.note_place();
                self.members.len() - 1
            }
        };
        self.noted += self.members[place].blocks();
        self.inode_words += self.members[place].words();
        Ok(place)
    }

    /// The last member is a new one.
    fn note_place(&mut self) {
        let noted = match self.members.len() {
            len if len <= FEW => return,
            len if self.places.is_empty() => 0..len,
            len => len - 1..len,
        };
        let place = |place: usize| (self.members[place].inode.ino, place);
        self.places.extend(noted.map(place));
    }

    /// The member that this inode is, if it is one.
    pub fn find(&self, ino: u64) -> Option<usize> {
        match self.members.len() <= FEW {
            true => self
                .members
                .iter()
                .position(|member| member.inode.ino == ino),
            false => self.places.get(&ino).copied(),
        }
    }

    /// The member that this inode is: a name in the batch leads to it (R6).
    pub fn place(&self, ino: u64) -> Result<usize> {
        let missing = || Error::corrupt(line_at(ino), "a name's inode is not in its batch");
        self.find(ino).ok_or_else(missing)
    }
}
