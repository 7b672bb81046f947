//! One of the two file systems, its slots, and what came out of an operation there.

use std::collections::BTreeMap;

use vfs::{
    At, Capabilities, Errno, FileSystem, Fsync, Ino, Kind, NewKind, NewNode, Place, Result, Rights,
    SeekFor, SetAttr,
};

use super::op::{self, DIRS, DirSlot, Make, NODES, NameId, NodeSlot, Op};
use crate::Model;
use crate::snapshot::{self, Shape, View};

/// The part of a file system that a sequence works in.
pub(super) struct Subtree<F: FileSystem> {
    /// The first directory slot.
    root: F::Node,
    /// The second directory slot, if the sequence shares a directory with other threads.
    shared: Option<F::Node>,
    /// What all names begin with: tells the names of this sequence from those of others.
    prefix: String,
}

impl<F: FileSystem> Subtree<F> {
    pub(super) fn whole(fs: &F) -> Subtree<F> {
        Subtree {
            root: fs.root(),
            shared: None,
            prefix: String::new(),
        }
    }

    pub(super) fn of_thread(root: F::Node, shared: F::Node, prefix: String) -> Subtree<F> {
        Subtree {
            root,
            shared: Some(shared),
            prefix,
        }
    }
}

/// A file system and the references that the sequence holds there.
pub(super) struct Side<'f, F: FileSystem> {
    fs: &'f F,
    tree: Subtree<F>,
    dirs: Vec<Option<F::Node>>,
    nodes: Vec<Option<F::Node>>,
}

/// What came out of an operation, without what engines differ in by right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The slot is empty, or the operation would leave the subtree.
    Skipped,
    Failed(Errno),
    Done,
    Node(Shape),
    Count(u64),
    Appended(u64, usize),
    Bytes(Vec<u8>),
    Names(Vec<(Vec<u8>, Kind)>),
    All(Shape, BTreeMap<Vec<u8>, Vec<u8>>),
}

fn veto(vetoed: bool) -> impl Fn(&Rights) -> Result<()> {
    move |_| {
        if vetoed {
            Err(Errno::PERM.into())
        } else {
            Ok(())
        }
    }
}

fn xattr_name(id: u8) -> Vec<u8> {
    let len = [1, 3, 20, 40, 200, 247][usize::from(id) % 6];
    let mut name = b"user.".to_vec();
    name.resize(5 + len, b'a' + id);
    name
}

impl<'f, F: FileSystem> Side<'f, F> {
    pub(super) fn new(fs: &'f F, tree: Subtree<F>) -> Side<'f, F> {
        let mut dirs: Vec<_> = (0..DIRS).map(|_| None).collect();
        dirs[0] = Some(tree.root.clone());
        dirs[1] = tree.shared.clone();
        Side {
            fs,
            tree,
            dirs,
            nodes: (0..NODES).map(|_| None).collect(),
        }
    }

    /// The directory of a slot; the root, if there is none.
    fn dir(&self, slot: DirSlot) -> &F::Node {
        self.dirs[usize::from(slot)]
            .as_ref()
            .unwrap_or(&self.tree.root)
    }

    fn node(&self, slot: NodeSlot) -> Option<&F::Node> {
        self.nodes[usize::from(slot)].as_ref()
    }

    fn is_shared(&self, dir: &F::Node) -> bool {
        let shared = self.tree.shared.as_ref();
        shared.is_some_and(|shared| self.fs.ino(shared) == self.fs.ino(dir))
    }

    /// The parent of this directory is outside, or what it was before its removal.
    fn has_no_parent(&self, dir: &F::Node) -> bool {
        let attr = self.fs.attr(dir);
        let top = self.tree.shared.is_some() && attr.ino == self.fs.ino(&self.tree.root);
        top || self.is_shared(dir) || (attr.kind == Kind::Dir && attr.nlink == 0)
    }

    fn name(&self, id: NameId) -> Vec<u8> {
        op::name(id, &self.tree.prefix)
    }

    fn keep_node(&mut self, slot: NodeSlot, node: F::Node, view: View) -> Outcome {
        let shape = Shape::of(&self.fs.attr(&node), view);
        self.nodes[usize::from(slot)] = Some(node);
        Outcome::Node(shape)
    }

    fn keep_dir(&mut self, slot: DirSlot, node: F::Node, view: View) -> Outcome {
        let shape = Shape::of(&self.fs.attr(&node), view);
        let pinned = if self.tree.shared.is_some() { 2 } else { 1 };
        if slot >= pinned {
            self.dirs[usize::from(slot)] = Some(node);
        }
        Outcome::Node(shape)
    }

    /// Do the operation.
    pub(super) fn apply(&mut self, op: &Op, view: View) -> Outcome {
        match self.try_apply(op, view) {
            Ok(outcome) => outcome.unwrap_or(Outcome::Skipped),
            Err(error) => Outcome::Failed(error.errno()),
        }
    }

    /// `None`: skipped.
    fn try_apply(&mut self, op: &Op, view: View) -> Result<Option<Outcome>> {
        match op {
            Op::Create { .. } | Op::Mkdir { .. } | Op::Tmpfile { .. } => {
                self.make(op, view).map(Some)
            }
            Op::Lookup { .. } | Op::Enter { .. } | Op::Parent { .. } | Op::Readdir { .. } => {
                self.find(op, view)
            }
            Op::Link { .. } | Op::Unlink { .. } | Op::Rmdir { .. } | Op::Rename { .. } => {
                self.change_names(op)
            }
            Op::Write { .. } | Op::Append { .. } | Op::Read { .. } | Op::Readlink { .. } => {
                self.use_contents(op)
            }
            Op::Fallocate { .. } | Op::Seek { .. } | Op::Copy { .. } | Op::Fsync { .. } => {
                self.use_ranges(op)
            }
            Op::Getxattr { .. } | Op::Setxattr { .. } | Op::Removexattr { .. } => {
                self.use_xattrs(op)
            }
            Op::Setattr { .. } | Op::SetattrDir { .. } => self.set_attributes(op, view),
            Op::Stat { .. } | Op::StatDir { .. } => self.stat(op, view),
            Op::Forget { node } => {
                self.nodes[usize::from(*node)] = None;
                Ok(Some(Outcome::Done))
            }
            Op::Accessed { node, atime } => {
                let Some(node) = self.node(*node) else {
                    return Ok(None);
                };
                self.fs.set_atime(node, *atime)?;
                Ok(Some(Outcome::Done))
            }
            // The runner's own.
            Op::Settle | Op::Check | Op::Remount => Ok(None),
        }
    }

    /// Whether the operation is among those that the limits promise to work. Others are refused
    /// above an engine, or depend on how it stores things.
    pub(super) fn is_possible(&self, op: &Op) -> bool {
        let limits = self.fs.limits();
        let needed = match *op {
            Op::Tmpfile { .. } => Capabilities::TMPFILE,
            Op::Rename { mode, .. } => Capabilities::of_rename(mode),
            Op::Fallocate { mode, .. } => Capabilities::of_fallocate(mode),
            Op::Getxattr { .. } | Op::Setxattr { .. } | Op::Removexattr { .. } => {
                Capabilities::XATTRS
            }
            _ => Capabilities::empty(),
        };
        let has_room = match *op {
            Op::Setxattr {
                node, name, len, ..
            } => self.node(node).is_none_or(|node| {
                let mut xattrs = snapshot::xattrs(self.fs, node).unwrap_or_default();
                xattrs.insert(xattr_name(name), vec![0; len as usize]);
                let lens = xattrs.iter().map(|(name, value)| (name.len(), value.len()));
                len as usize > limits.xattr_size_max || limits.have_room(lens)
            }),
            _ => true,
        };
        limits.capabilities.contains(needed) && has_room
    }

    fn make(&mut self, op: &Op, view: View) -> Result<Outcome> {
        let new = |kind, perm| NewNode {
            kind,
            perm,
            uid: 0,
            gid: 0,
            xattrs: &[],
        };
        match *op {
            Op::Create {
                dir,
                name,
                make,
                perm,
                into,
            } => {
                let target = match make {
                    Make::Symlink(len) => vec![b't'; usize::from(len)],
                    _ => Vec::new(),
                };
                let kind = match make {
                    Make::File => NewKind::File,
                    Make::Symlink(_) => NewKind::Symlink(&target),
                    Make::Fifo => NewKind::Fifo,
                    Make::Device(rdev) => NewKind::CharDev(rdev),
                };
                // Linux gives every symbolic link the same permissions.
                let perm = if matches!(make, Make::Symlink(_)) {
                    0o777
                } else {
                    perm
                };
                let node = self
                    .fs
                    .create(self.dir(dir), &self.name(name), &new(kind, perm))?;
                Ok(self.keep_node(into, node, view))
            }
            Op::Mkdir {
                dir,
                name,
                perm,
                into,
            } => {
                let new = new(NewKind::Dir, perm);
                let node = self.fs.create(self.dir(dir), &self.name(name), &new)?;
                Ok(self.keep_dir(into, node, view))
            }
            Op::Tmpfile { dir, into } => {
                let node = self.fs.tmpfile(self.dir(dir), &new(NewKind::File, 0o600))?;
                Ok(self.keep_node(into, node, view))
            }
            _ => unreachable!("{op:?} makes nothing"),
        }
    }

    fn find(&mut self, op: &Op, view: View) -> Result<Option<Outcome>> {
        Ok(Some(match *op {
            Op::Lookup { dir, name, into } => {
                let node = self.fs.lookup(self.dir(dir), &self.name(name))?;
                self.keep_node(into, node, view)
            }
            Op::Enter { dir, name, into } => {
                let node = self.fs.lookup(self.dir(dir), &self.name(name))?;
                self.keep_dir(into, node, view)
            }
            Op::Parent { dir, into } => {
                if self.has_no_parent(self.dir(dir)) {
                    return Ok(None);
                }
                let node = self.fs.parent(self.dir(dir))?;
                if self.is_shared(&node) {
                    return Ok(None);
                }
                self.keep_dir(into, node, view)
            }
            Op::Readdir { dir } => {
                let entries = match snapshot::list(self.fs, self.dir(dir)) {
                    // A removed directory may be empty as well as gone.
                    Err(error) if error.errno() == Errno::NOENT => Vec::new(),
                    entries => entries?,
                };
                let own = |name: &[u8]| name.starts_with(self.tree.prefix.as_bytes());
                let names = entries.into_iter().filter(|(name, _, _)| own(name));
                Outcome::Names(names.map(|(name, _, kind)| (name, kind)).collect())
            }
            _ => unreachable!("{op:?} finds nothing"),
        }))
    }

    fn change_names(&mut self, op: &Op) -> Result<Option<Outcome>> {
        match *op {
            Op::Link { node, dir, name } => {
                let Some(node) = self.node(node) else {
                    return Ok(None);
                };
                self.fs.link(node, self.dir(dir), &self.name(name))?;
            }
            Op::Unlink { dir, name, vetoed } => {
                self.fs
                    .unlink(self.dir(dir), &self.name(name), &veto(vetoed))?;
            }
            Op::Rmdir { dir, name, vetoed } => {
                self.fs
                    .rmdir(self.dir(dir), &self.name(name), &veto(vetoed))?;
            }
            Op::Rename {
                from,
                name,
                to,
                new_name,
                mode,
            } => {
                let (name, new_name) = (self.name(name), self.name(new_name));
                let (from, to) = (self.dir(from), self.dir(to));
                self.fs.rename(
                    Place::new(from, &name),
                    Place::new(to, &new_name),
                    mode,
                    &veto(false),
                )?;
            }
            _ => unreachable!("{op:?} changes no names"),
        }
        Ok(Some(Outcome::Done))
    }

    fn use_contents(&mut self, op: &Op) -> Result<Option<Outcome>> {
        let (Op::Write { node, .. }
        | Op::Append { node, .. }
        | Op::Read { node, .. }
        | Op::Readlink { node }) = *op
        else {
            unreachable!("{op:?} uses no contents");
        };
        let Some(node) = self.node(node) else {
            return Ok(None);
        };
        Ok(Some(match *op {
            Op::Write {
                offset, len, fill, ..
            } => {
                let written = self.fs.write(node, offset, &op::bytes(len, fill))?;
                Outcome::Count(written as u64)
            }
            Op::Append { len, fill, .. } => {
                let (offset, written) = self.fs.append(node, &op::bytes(len, fill))?;
                Outcome::Appended(offset, written)
            }
            Op::Read { offset, len, .. } => {
                Outcome::Bytes(snapshot::read_at(self.fs, node, offset, len as usize)?)
            }
            _ => Outcome::Bytes(self.fs.readlink(node)?),
        }))
    }

    fn use_ranges(&mut self, op: &Op) -> Result<Option<Outcome>> {
        let (Op::Fallocate { node, .. }
        | Op::Seek { node, .. }
        | Op::Copy { from: node, .. }
        | Op::Fsync { node }) = *op
        else {
            unreachable!("{op:?} uses no ranges");
        };
        let Some(node) = self.node(node) else {
            return Ok(None);
        };
        Ok(Some(match *op {
            Op::Fallocate {
                mode, offset, len, ..
            } => {
                self.fs.fallocate(node, mode, offset, len)?;
                Outcome::Done
            }
            Op::Seek { offset, what, .. } => Outcome::Count(self.fs.seek(node, offset, what)?),
            Op::Copy {
                from_offset,
                to,
                to_offset,
                len,
                ..
            } => {
                let Some(to) = self.node(to) else {
                    return Ok(None);
                };
                Outcome::Count(self.fs.copy_range(
                    At::new(node, from_offset),
                    At::new(to, to_offset),
                    len,
                )?)
            }
            _ => {
                self.fs.fsync(node, Fsync::All)?;
                Outcome::Done
            }
        }))
    }

    fn use_xattrs(&mut self, op: &Op) -> Result<Option<Outcome>> {
        let (Op::Getxattr { node, name }
        | Op::Setxattr { node, name, .. }
        | Op::Removexattr { node, name }) = *op
        else {
            unreachable!("{op:?} uses no extended attributes");
        };
        let Some(node) = self.node(node) else {
            return Ok(None);
        };
        let name = xattr_name(name);
        Ok(Some(match *op {
            Op::Setxattr { len, mode, .. } => {
                let value = op::bytes(len, name[5] ^ len as u8 | 1);
                self.fs
                    .setxattr(node, &name, &value, mode, &SetAttr::default())?;
                Outcome::Done
            }
            Op::Removexattr { .. } => {
                self.fs.removexattr(node, &name)?;
                Outcome::Done
            }
            _ => Outcome::Bytes(self.fs.getxattr(node, &name)?),
        }))
    }

    fn set_attributes(&mut self, op: &Op, view: View) -> Result<Option<Outcome>> {
        let (node, set) = match op {
            Op::Setattr { node, set } => (self.node(*node), set),
            Op::SetattrDir { dir, set } => {
                let dir = self.dir(*dir);
                ((!self.is_shared(dir)).then_some(dir), set)
            }
            _ => unreachable!("{op:?} sets no attributes"),
        };
        let Some(node) = node else { return Ok(None) };
        // Linux does not change the permissions of symbolic links.
        if set.perm.is_some() && self.fs.attr(node).kind == Kind::Symlink {
            return Ok(None);
        }
        Ok(Some(Outcome::Node(Shape::of(
            &self.fs.setattr(node, set)?,
            view,
        ))))
    }

    fn stat(&mut self, op: &Op, view: View) -> Result<Option<Outcome>> {
        let node = match *op {
            Op::Stat { node } => self.node(node),
            Op::StatDir { dir } => {
                let dir = self.dir(dir);
                (!self.is_shared(dir)).then_some(dir)
            }
            _ => unreachable!("{op:?} looks at no attributes"),
        };
        let Some(node) = node else { return Ok(None) };
        let xattrs = snapshot::xattrs(self.fs, node)?;
        Ok(Some(Outcome::All(
            Shape::of(&self.fs.attr(node), view),
            xattrs,
        )))
    }

    /// For each slot the first slot that holds the same inode.
    fn identities(&self) -> Vec<Option<usize>> {
        let inos: Vec<Option<Ino>> = (self.dirs.iter().chain(&self.nodes))
            .map(|node| node.as_ref().map(|node| self.fs.ino(node)))
            .collect();
        inos.iter()
            .map(|ino| ino.and_then(|_| inos.iter().position(|first| first == ino)))
            .collect()
    }

    /// The slots of both sides hold the same inodes as far as can be told.
    pub(super) fn same_identities(
        &self,
        other: &Side<'_, Model>,
    ) -> std::result::Result<(), String> {
        let (is, should) = (self.identities(), other.identities());
        if is == should {
            return Ok(());
        }
        Err(format!(
            "references to the same inodes: {is:?}, expected {should:?}"
        ))
    }
}

/// What is wrong with the engine's outcome, given the model's.
pub(super) fn disagreement(
    op: &Op,
    is: &Outcome,
    should: &Outcome,
    model: &Side<'_, Model>,
) -> Option<String> {
    if let Op::Seek { node, offset, what } = *op
        && let Some(node) = model.node(node)
        && model.fs.attr(node).kind == Kind::File
    {
        return wrong_seek(model.fs, node, offset, what, is);
    }
    if let Op::Unlink { vetoed: true, .. } | Op::Rmdir { vetoed: true, .. } = op {
        // Whether the veto or another reason comes first is the engine's business.
        let refused = matches!(is, Outcome::Failed(_));
        return (!refused).then(|| format!("{is:?} in spite of the veto"));
    }
    (is != should).then(|| format!("{}, expected {}", brief(is), brief(should)))
}

fn brief(outcome: &Outcome) -> String {
    let mut text = format!("{outcome:?}");
    if text.len() > 600 {
        text = format!("{}...", text.chars().take(600).collect::<String>());
    }
    text
}

/// An engine may take for data what the model knows as a hole, but never the other way round.
fn wrong_seek(
    model: &Model,
    node: &crate::Node,
    offset: u64,
    what: SeekFor,
    is: &Outcome,
) -> Option<String> {
    let size = model.attr(node).size;
    let right = match (is, what) {
        (Outcome::Failed(Errno::NXIO), _) if offset >= size => true,
        (Outcome::Failed(Errno::NXIO), SeekFor::Data) => zeros(model, node, offset, size),
        (&Outcome::Count(at), SeekFor::Data) => {
            (offset..size).contains(&at) && zeros(model, node, offset, at)
        }
        (&Outcome::Count(at), SeekFor::Hole) => {
            offset < size
                && (offset..=size).contains(&at)
                && zeros(model, node, at, size.min(at + 1))
        }
        _ => false,
    };
    (!right).then(|| format!("{is:?}, which skips data or goes beyond the end ({size})"))
}

/// The range reads as zeros.
fn zeros(model: &Model, node: &crate::Node, from: u64, to: u64) -> bool {
    let mut at = from;
    while at < to {
        let Ok(start) = model.seek(node, at, SeekFor::Data) else {
            return true;
        };
        let end = to.min(start.saturating_add(4096));
        let len = end.saturating_sub(start) as usize;
        match snapshot::read_at(model, node, start, len) {
            Ok(data) if data.iter().all(|&byte| byte == 0) => at = start + 4096,
            _ => return false,
        }
    }
    true
}
