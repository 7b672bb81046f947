//! A mount as a user has it behind a crash: at once, with the reclaim beside its operations.
//!
//! Beside it goes a *twin*, the mount of a copy that the check has mended first, to which the same
//! is done. What callers see is what they see there, but for what the crash has left and the
//! reclaim has not mended yet: counts that are too high, and second names of directories. The
//! explorer is told what will be when it has.

use super::{checked, mounted};
use crate::engine::{Mounted, Mounting, Shortage, Volume};
use crate::op::{Op, Side};
use crate::rules::Rules;
use crate::scratch::Device;
use crate::tree::{Flaw, Id, Tree};
use ffs::Ffs;
use vfs::{Errno, Error, Limits, Result};

/// Both mounts.
pub(super) struct Served {
    side: Side<Ffs>,
    twin: Side<Ffs>,
    /// What the check makes of what the crash has left.
    mended: Tree,
}

/// Mounts what a crash has left, and what the check makes of a copy.
///
/// # Errors
/// One of them cannot be mounted, or something else is served than the check leaves.
pub(super) fn at_once(device: &Device, how: &Mounting) -> std::result::Result<Served, Flaw> {
    let copy = Device::of(&device.image(), Rules::Sectors);
    checked(&copy, how.clock.now())?;
    let twin = Side::new(mounted(&copy, how)?);
    let served = Served {
        mended: Mounted::tree(&twin)?,
        twin,
        side: Side::new(mounted(device, how)?),
    };
    let tree = served.tree()?;
    match tree.difference(&served.mended) {
        None => Ok(served),
        Some(difference) => Err(format!("other inodes than the check leaves:\n{difference}")),
    }
}

impl Served {
    /// What callers see, as it will be when all is mended, and second names of directories.
    fn seen(&self) -> std::result::Result<(Tree, Vec<String>), Flaw> {
        if !self.side.fs.is_reclaiming() {
            return Ok((Mounted::tree(&self.side)?, Vec::new()));
        }
        let held: Vec<_> = self.side.held.iter().flatten().collect();
        Tree::while_mended(&self.side.fs, &held, &self.mended)
    }

    /// Paths by which there is a directory that does not keep them.
    fn second(&self) -> Result<Vec<String>> {
        let (_, second) = self.seen().map_err(Error::medium)?;
        let without_root = |path: String| path.trim_start_matches('/').to_owned();
        Ok(second.into_iter().map(without_root).collect())
    }
}

/// Does the same to both, unless a second name is in the way.
fn to_both(
    op: &Op,
    second: &[String],
    here: impl FnOnce() -> Result<()>,
    there: impl FnOnce() -> Result<()>,
) -> Result<()> {
    if goes_by(op, second) {
        return Err(Errno::NOENT.into());
    }
    let done = here();
    // What is refused may succeed when the name is gone.
    if matches!(op, Op::Search(_)) || done.is_err() && !second.is_empty() {
        return done;
    }
    let [here, there] = [&done, &there()].map(|done| done.as_ref().err().map(Error::errno));
    match here == there {
        true => done,
        false => Err(Error::medium(format!(
            "{op}: {here:?} where it is served at once, {there:?} behind the check"
        ))),
    }
}

/// Whether an operation goes by a second name: what is there then callers see once more, and not
/// when it is gone.
fn goes_by(op: &Op, second: &[String]) -> bool {
    let changes_it = matches!(
        op,
        Op::Create(_)
            | Op::Mkdir(_)
            | Op::Symlink(..)
            | Op::Mknod(..)
            | Op::Unlink(_)
            | Op::Rmdir(_)
            | Op::Rename(..)
    );
    let mut op = op.clone();
    let paths: Vec<String> = op
        .paths_mut()
        .into_iter()
        .map(|path| path.clone())
        .collect();
    paths.iter().any(|path| {
        second.iter().any(|second| {
            let rest = path.strip_prefix(&**second);
            rest.is_some_and(|rest| rest.starts_with('/') || rest.is_empty() && !changes_it)
        })
    })
}

impl Mounted for Served {
    fn run(&mut self, op: &Op) -> Result<()> {
        let second = self.second()?;
        let Served { side, twin, .. } = self;
        let (here, there) = (|| Mounted::run(side, op), || Mounted::run(twin, op));
        to_both(op, &second, here, there)
    }

    fn act(&self, op: &Op) -> Result<()> {
        let second = self.second()?;
        let Served { side, twin, .. } = self;
        let (here, there) = (|| Mounted::act(side, op), || Mounted::act(twin, op));
        to_both(op, &second, here, there)
    }

    fn suffer(&mut self, _: &mut Shortage, op: &Op) -> Result<()> {
        self.run(op) // no allocation of this engine fails
    }

    fn as_far_as_it_went(&self, op: &Op) -> Op {
        self.side.as_far_as_it_went(op)
    }

    fn tree(&self) -> std::result::Result<Tree, Flaw> {
        let (tree, _) = self.seen()?;
        match tree.difference_by_path(&Mounted::tree(&self.twin)?) {
            None => Ok(Tree {
                snapshots: self.side.fs.snapshot_trees()?,
                ..tree
            }),
            Some(difference) => Err(format!("served at once, {difference}")),
        }
    }

    fn id(&self, path: &str) -> Option<Id> {
        self.side.id(path)
    }

    fn held(&self, handle: usize) -> Option<(Id, u32)> {
        Mounted::held(&self.side, handle)
    }

    fn open(&mut self, path: &str) -> Result<()> {
        let opened = self.side.open(path);
        self.twin.open(path)?;
        opened
    }

    fn let_go(&mut self) {
        Mounted::let_go(&mut self.side);
        Mounted::let_go(&mut self.twin);
    }

    fn limits(&self) -> Limits {
        self.side.limits()
    }

    fn free(&self) -> u64 {
        self.side.free()
    }

    fn batches(&self) -> u64 {
        Mounted::batches(&self.side)
    }

    fn unmount(&self) -> Result<()> {
        Mounted::unmount(&self.side)
    }
}
