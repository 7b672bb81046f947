//! Moves of directories between directories, and what keeps them from closing a cycle (HTMFS
//! §3.4 validates the whole path in one transaction; docs/design/strong.md, section 7).
//!
//! Each directory has a number, odd while it is moved. Who moves one makes its number odd, and then
//! goes up from where it is to be. If it meets an odd number there, or if one has changed when it
//! has arrived, it has met another move: it makes its own even, waits until no move is under way,
//! and is alone then.
//!
//! - *Two moves that would close a cycle do not both go on:* each made its own number odd before it
//!   looked at the other's.
//! - *What a move has seen stays until it ends:* who would put a directory of its path below the
//!   one that it moves has to pass that one, and finds it odd.
//!
//! Moves that share no path do not meet: they share a lock, which who has met another one takes
//! alone.

use crate::inode::{Inode, Node};
use crate::mount::SoupFs;
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use schedule::point;
use smallvec::SmallVec;
use triomphe::Arc;
use vfs::{Kind, Result};

/// Directories that are to be moved, each with the one that it is to be in.
pub(crate) type Moves<'a> = SmallVec<[(Arc<Inode>, &'a Arc<Inode>); 2]>;

/// What a rename moves between directories, of what its names stand for.
pub(crate) fn moves<'a>([from, to]: [&'a Node; 2], found: [Option<&Node>; 2]) -> Moves<'a> {
    let mut moves = Moves::new();
    let crosses = from.inode().ino != to.inode().ino;
    for (node, to) in found.into_iter().zip([to, from]) {
        let dir = node
            .map(Node::inode)
            .filter(|inode| inode.kind == Kind::Dir);
        // Two names are never one directory's, but while it is moved.
        let is_new = |dir: &&Arc<Inode>| moves.iter().all(|(other, _)| other.ino != dir.ino);
        if let Some(dir) = dir.filter(|_| crosses).filter(is_new) {
            moves.push((dir.clone(), to.inode()));
        }
    }
    moves
}

/// Directories that are being moved, until this is dropped.
pub(crate) struct Moving<'a> {
    /// With each whether it is above where it is to be.
    moved: SmallVec<[(Arc<Inode>, bool); 2]>,
    _turn: Turn<'a>,
}

/// The lock of all moves.
#[expect(dead_code, reason = "a lock is held, not looked at")]
enum Turn<'a> {
    BesideOthers(RwLockReadGuard<'a, ()>),
    Alone(RwLockWriteGuard<'a, ()>),
}

impl Moving<'_> {
    /// Whether a directory is above where it is to be; `None`: it is not one of these.
    pub(super) fn is_above(&self, ino: u64) -> Option<bool> {
        let found = self.moved.iter().find(|(inode, _)| inode.ino == ino);
        found.map(|&(_, is_above)| is_above)
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        for (inode, _) in &self.moved {
            inode
                .dir()
                .expect("directories alone are moved")
                .moves
                .end();
        }
    }
}

impl SoupFs {
    /// Begin to move directories; `None` if there are none. Comes before scopes and stripes, as it
    /// may wait for all other moves.
    ///
    /// # Errors
    /// Where one is to be was removed, or the image is damaged.
    pub(crate) fn begin_moves(&self, moves: &Moves<'_>) -> Result<Option<Moving<'_>>> {
        if moves.is_empty() {
            return Ok(None);
        }
        let turns = &self.shared.moves;
        if let Some(moving) = self.try_moves(moves, Turn::BesideOthers(turns.read()))? {
            return Ok(Some(moving));
        }
        let alone = self.try_moves(moves, Turn::Alone(turns.write()))?;
        Ok(Some(alone.expect("nothing else moves")))
    }

    /// The same; `None`: it has met another move, and none of it has begun.
    fn try_moves<'a>(&self, moves: &Moves<'_>, turn: Turn<'a>) -> Result<Option<Moving<'a>>> {
        let mut moving = Moving {
            moved: SmallVec::new(),
            _turn: turn,
        };
        for (inode, _) in moves {
            if !inode.dir()?.moves.begin() {
                return Ok(None);
            }
            moving.moved.push((inode.clone(), false));
        }
        point("rename: directories begin to move");
        for (i, (inode, to)) in moves.iter().enumerate() {
            let is_own = |ino| moving.is_above(ino).is_some();
            match self.stands_above(inode.ino, to, is_own)? {
                Some(is_above) => moving.moved[i].1 = is_above,
                None => return Ok(None),
            }
        }
        point("rename: the way up is known");
        Ok(Some(moving))
    }
}
