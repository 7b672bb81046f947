//! Somebody who uses a mounted file system, whatever state it is in.

use vfs::{
    Fallocate, FileSystem, Fsync, Kind, NewKind, NewNode, Place, RenameMode, Result, SeekFor,
    SetAttr, XattrMode,
};

use crate::bytes::Bytes;

/// Most inodes that are looked at: damage may have made the tree endless.
const NODES_MAX: usize = 200;
/// Most entries taken from one directory.
const ENTRIES_MAX: usize = 400;
/// Most stretches of data read in one file.
const STRETCHES_MAX: usize = 4;
/// Most operations.
const OPS_MAX: usize = 40;

/// What was found in a tree.
pub struct Found<N> {
    /// Inodes, parents before children; the root is the first.
    nodes: Vec<N>,
    /// Names: the directory (an index into `nodes`) and the name in it.
    names: Vec<(usize, Vec<u8>)>,
    /// The first error that was met.
    pub error: Option<String>,
}

/// A new inode of this kind.
pub fn new(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode {
        kind,
        perm: 0o755,
        uid: 0,
        gid: 0,
        xattrs: &[],
    }
}

/// Looks at everything, as far as it goes.
pub fn walk<F: FileSystem>(fs: &F) -> Found<F::Node> {
    let mut found = Found {
        nodes: vec![fs.root()],
        names: Vec::new(),
        error: None,
    };
    let mut at = 0;
    while at < found.nodes.len() {
        let node = found.nodes[at].clone();
        if let Err(error) = look(fs, &node) {
            found
                .error
                .get_or_insert(format!("inode {}: {error}", fs.ino(&node)));
        }
        if fs.kind(&node) == Kind::Dir
            && let Err(error) = descend(fs, &node, at, &mut found)
        {
            found
                .error
                .get_or_insert(format!("directory {}: {error}", fs.ino(&node)));
        }
        at += 1;
    }
    let _ = fs.statfs();
    found
}

fn descend<F: FileSystem>(
    fs: &F,
    dir: &F::Node,
    at: usize,
    found: &mut Found<F::Node>,
) -> Result<()> {
    let mut names = Vec::new();
    let listed = fs.readdir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        names.len() < ENTRIES_MAX
    });
    for name in names {
        if found.nodes.len() < NODES_MAX {
            found.nodes.push(fs.lookup(dir, &name)?);
        }
        found.names.push((at, name));
    }
    fs.parent(dir)?;
    listed
}

/// Reads all that an inode has, of a file the start of each stretch of data.
fn look<F: FileSystem>(fs: &F, node: &F::Node) -> Result<()> {
    let attr = fs.attr(node);
    for name in fs.listxattr(node)? {
        fs.getxattr(node, &name)?;
    }
    match attr.kind {
        Kind::Symlink => drop(fs.readlink(node)?),
        Kind::File => {
            let mut at = 0;
            let mut buf = [0; 8192];
            for _ in 0..STRETCHES_MAX {
                let Ok(data) = fs.seek(node, at, SeekFor::Data) else {
                    break;
                };
                fs.read(node, data, &mut buf)?;
                at = fs.seek(node, data, SeekFor::Hole)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Changes what was found, as the input says: four bytes an operation. Errors are expected.
pub fn change<F: FileSystem>(fs: &F, found: &Found<F::Node>, input: &mut Bytes<'_>) {
    for _ in 0..OPS_MAX {
        if input.is_empty() {
            return;
        }
        let op = Op {
            fs,
            found,
            node: &found.nodes[input.below(16).min(found.nodes.len() - 1)],
            other: input.byte(),
            value: input.byte(),
        };
        let _ = op.run(input.byte());
    }
}

struct Op<'a, F: FileSystem> {
    fs: &'a F,
    found: &'a Found<F::Node>,
    node: &'a F::Node,
    other: u8,
    value: u8,
}

impl<F: FileSystem> Op<'_, F> {
    /// An inode, far into what was found, too.
    fn node(&self) -> &F::Node {
        &self.found.nodes[usize::from(self.other) * 7 % self.found.nodes.len()]
    }

    /// A name that was found.
    fn name(&self) -> (&F::Node, &[u8]) {
        match self
            .found
            .names
            .get(usize::from(self.other) * 7 % self.found.names.len().max(1))
        {
            Some((dir, name)) => (&self.found.nodes[*dir], name),
            None => (&self.found.nodes[0], b"none"),
        }
    }

    /// A new name, in one of the lengths that differ.
    fn new_name(&self) -> Vec<u8> {
        vec![b'a' + self.value % 26; [1, 8, 32, 33, 255][usize::from(self.value) % 5]]
    }

    fn offset(&self) -> u64 {
        (u64::from(self.value) << (self.other % 40)) + u64::from(self.other)
    }

    fn run(&self, kind: u8) -> Result<()> {
        match kind % 16 {
            0..=6 => self.names(kind % 16),
            7..=12 => self.contents(kind % 16),
            13 => self.fs.fsync(self.node(), Fsync::All),
            14 => self.fs.syncfs(),
            _ => {
                let (dir, name) = self.name();
                self.fs.node(self.fs.ino(dir))?;
                self.fs.lookup(dir, name).map(drop)
            }
        }
    }

    fn names(&self, kind: u8) -> Result<()> {
        let (fs, new_name, (dir, name)) = (self.fs, self.new_name(), self.name());
        match kind {
            0 => fs
                .create(self.node, &new_name, &new(NewKind::File))
                .map(drop),
            1 => fs
                .create(self.node, &new_name, &new(NewKind::Dir))
                .map(drop),
            2 => fs.link(self.node(), self.node, &new_name),
            3 => fs.unlink(dir, name, &|_| Ok(())),
            4 => fs.rmdir(dir, name, &|_| Ok(())),
            5 => {
                let modes = [
                    RenameMode::Replace,
                    RenameMode::Whiteout,
                    RenameMode::NoReplace,
                ];
                let mode = modes[usize::from(self.value) % 3];
                let (from, to) = (Place::new(dir, name), Place::new(self.node, &new_name));
                fs.rename(from, to, mode, &|_| Ok(()))
            }
            _ => {
                let at = usize::from(self.value) % self.found.names.len().max(1);
                let Some((to, other)) = self.found.names.get(at) else {
                    return Ok(());
                };
                let to = &self.found.nodes[*to];
                let (one, other) = (Place::new(dir, name), Place::new(to, other));
                fs.rename(one, other, RenameMode::Exchange, &|_| Ok(()))
            }
        }
    }

    fn contents(&self, kind: u8) -> Result<()> {
        let (fs, node, offset) = (self.fs, self.node(), self.offset());
        let len = u64::from(self.value) * 100 + 1;
        match kind {
            7 => fs
                .write(node, offset, &vec![self.value; len as usize])
                .map(drop),
            8 => fs.append(node, &vec![self.value; len as usize]).map(drop),
            9 => fs
                .setattr(
                    node,
                    &SetAttr {
                        size: Some(offset),
                        ..SetAttr::default()
                    },
                )
                .map(drop),
            10 => fs.fallocate(node, Fallocate::Allocate { keep_size: true }, offset, len),
            11 => fs.fallocate(node, Fallocate::Punch, offset, len << 8),
            _ => {
                let also = SetAttr {
                    perm: Some(0o600),
                    ..SetAttr::default()
                };
                fs.setxattr(
                    node,
                    b"user.name",
                    &vec![1; len as usize],
                    XattrMode::Any,
                    &also,
                )
            }
        }
    }
}
