//! All that can be seen of a tree, in a form that compares.

use std::collections::{BTreeMap, HashMap};

use vfs::{Attr, Errno, FileSystem, Ino, Kind, Result, SeekFor, Time};

/// Unit in which contents are kept, in bytes.
const CHUNK: u64 = 4096;

/// A tree as seen at one moment: each path and what is there. Inode numbers, the size of
/// directories and the space used are left out, for engines differ in them by right.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    items: BTreeMap<String, Item>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Item {
    shape: Shape,
    /// The first path of the same inode, if this is a further one.
    same_as: Option<String>,
    target: Option<Vec<u8>>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Chunks that are not all zeros.
    contents: BTreeMap<u64, Vec<u8>>,
}

/// What of the attributes must be equal on two engines that did the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    kind: Kind,
    perm: u16,
    nlink: u32,
    uid: u32,
    gid: u32,
    rdev: u32,
    size: Option<u64>,
    /// mtime, ctime and btime.
    times: Option<[Time; 3]>,
    atime: Option<Time>,
    has_xattrs: bool,
}

impl Shape {
    pub(crate) fn of(attr: &Attr, view: View) -> Shape {
        Shape {
            kind: attr.kind,
            perm: attr.perm,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: (attr.kind != Kind::Dir).then_some(attr.size),
            times: view.times.then_some([attr.mtime, attr.ctime, attr.btime]),
            atime: view.atime.then_some(attr.atime),
            has_xattrs: attr.has_xattrs,
        }
    }
}

/// What to look at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    /// The times of changes and birth: equal on two sides that have one manual clock.
    pub(crate) times: bool,
    /// The time of the last access.
    pub(crate) atime: bool,
}

impl Snapshot {
    /// The whole tree below `root`, `root` included.
    pub(crate) fn of<F: FileSystem>(fs: &F, root: &F::Node, view: View) -> Result<Snapshot> {
        let mut snapshot = Snapshot::default();
        let mut walk = Walk {
            fs,
            view,
            seen: HashMap::new(),
            snapshot: &mut snapshot,
        };
        walk.visit(String::new(), root)?;
        Ok(snapshot)
    }

    /// What is below one of the names of `dir` that `keep` accepts.
    pub(crate) fn of_names<F: FileSystem>(
        fs: &F,
        dir: &F::Node,
        view: View,
        keep: impl Fn(&[u8]) -> bool,
    ) -> Result<Snapshot> {
        let mut snapshot = Snapshot::default();
        let mut walk = Walk {
            fs,
            view,
            seen: HashMap::new(),
            snapshot: &mut snapshot,
        };
        for (name, _, _) in list(fs, dir)?.into_iter().filter(|(name, _, _)| keep(name)) {
            walk.visit(format!("/{}", name.escape_ascii()), &fs.lookup(dir, &name)?)?;
        }
        Ok(snapshot)
    }

    /// How many names there are.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Where this tree differs from `other`, for people; `None` when it does not.
    pub(crate) fn difference(&self, other: &Snapshot) -> Option<String> {
        let paths = self.items.keys().chain(other.items.keys());
        let mut lines: Vec<String> = paths
            .filter_map(|path| {
                let what = match (self.items.get(path), other.items.get(path)) {
                    (Some(left), Some(right)) => left.difference(right)?,
                    (Some(_), None) => "is there, and should not be".to_owned(),
                    (None, _) => "is missing".to_owned(),
                };
                Some(format!("{path:?}: {what}"))
            })
            .collect();
        lines.sort();
        lines.dedup();
        lines.truncate(8);
        (!lines.is_empty()).then(|| lines.join("\n"))
    }
}

impl Item {
    fn difference(&self, other: &Item) -> Option<String> {
        if self.shape != other.shape {
            return Some(format!("{:?}, expected {:?}", self.shape, other.shape));
        }
        if self.same_as != other.same_as {
            let (left, right) = (&self.same_as, &other.same_as);
            return Some(format!("same inode as {left:?}, expected {right:?}"));
        }
        if self.target != other.target {
            return Some(format!(
                "target {:?}, expected {:?}",
                self.target, other.target
            ));
        }
        if self.xattrs != other.xattrs {
            return Some("other extended attributes".to_owned());
        }
        let chunks = self.contents.keys().chain(other.contents.keys());
        let chunk = chunks
            .filter(|at| self.contents.get(at) != other.contents.get(at))
            .min()?;
        let zeros = vec![0; CHUNK as usize];
        let left = self.contents.get(chunk).unwrap_or(&zeros);
        let right = other.contents.get(chunk).unwrap_or(&zeros);
        let at = left
            .iter()
            .zip(right)
            .position(|(l, r)| l != r)
            .unwrap_or(0);
        let (is, should) = (left.get(at), right.get(at));
        Some(format!(
            "byte {} is {is:?}, expected {should:?}",
            chunk * CHUNK + at as u64
        ))
    }
}

struct Walk<'a, F> {
    fs: &'a F,
    view: View,
    seen: HashMap<Ino, String>,
    snapshot: &'a mut Snapshot,
}

impl<F: FileSystem> Walk<'_, F> {
    fn visit(&mut self, path: String, node: &F::Node) -> Result<()> {
        let attr = self.fs.attr(node);
        let mut shape = Shape::of(&attr, self.view);
        if path.is_empty() {
            // The root may be older than the clock.
            shape.atime = None;
            shape.times = shape.times.map(|[mtime, ctime, _]| [mtime, ctime, Time(0)]);
        }
        let mut item = Item {
            shape,
            same_as: self.seen.get(&attr.ino).cloned(),
            target: None,
            xattrs: BTreeMap::new(),
            contents: BTreeMap::new(),
        };
        let first = item.same_as.is_none();
        if first {
            self.seen.insert(attr.ino, path.clone());
            item.xattrs = xattrs(self.fs, node)?;
            match attr.kind {
                Kind::File => item.contents = contents(self.fs, node)?,
                Kind::Symlink => item.target = Some(self.fs.readlink(node)?),
                _ => {}
            }
        }
        self.snapshot.items.insert(path.clone(), item);
        if attr.kind == Kind::Dir {
            assert!(first, "directory {path:?} has two names");
            self.descend(&path, node, attr.ino)?;
        }
        Ok(())
    }

    fn descend(&mut self, path: &str, node: &F::Node, ino: Ino) -> Result<()> {
        for (name, child_ino, kind) in list(self.fs, node)? {
            let child_path = format!("{path}/{}", name.escape_ascii());
            let child = self.fs.lookup(node, &name)?;
            let attr = self.fs.attr(&child);
            assert_eq!(
                (attr.ino, attr.kind),
                (child_ino, kind),
                "readdir and lookup: {child_path}"
            );
            if kind == Kind::Dir {
                let parent = self.fs.parent(&child)?;
                assert_eq!(self.fs.ino(&parent), ino, "the parent of {child_path}");
            }
            self.visit(child_path, &child)?;
        }
        Ok(())
    }
}

/// All entries of a directory, by name; panics when one is handed out twice.
pub(crate) fn list<F: FileSystem>(fs: &F, dir: &F::Node) -> Result<Vec<(Vec<u8>, Ino, Kind)>> {
    let mut entries = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        entries.push((entry.name.to_vec(), entry.ino, entry.kind));
        true
    })?;
    entries.sort_by(|left, right| left.0.cmp(&right.0));
    for pair in entries.windows(2) {
        assert_ne!(pair[0].0, pair[1].0, "readdir handed out a name twice");
    }
    Ok(entries)
}

/// All extended attributes.
pub(crate) fn xattrs<F: FileSystem>(fs: &F, node: &F::Node) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let names = fs.listxattr(node)?;
    let count = names.len();
    let map: BTreeMap<_, _> = names
        .into_iter()
        .map(|name| fs.getxattr(node, &name).map(|value| (name, value)))
        .collect::<Result<_>>()?;
    assert_eq!(map.len(), count, "listxattr handed out a name twice");
    Ok(map)
}

/// The chunks that are not all zeros, found through `seek`, so that sparse files cost little.
fn contents<F: FileSystem>(fs: &F, node: &F::Node) -> Result<BTreeMap<u64, Vec<u8>>> {
    let mut chunks = BTreeMap::new();
    let size = fs.attr(node).size;
    let mut at = 0;
    while at < size {
        let start = match fs.seek(node, at, SeekFor::Data) {
            Ok(start) => start,
            Err(error) if error.errno() == Errno::NXIO => break,
            Err(error) => return Err(error),
        };
        let end = fs.seek(node, start, SeekFor::Hole)?;
        assert!(
            at <= start && start < end && end <= size,
            "seek from {at}: {start}..{end}"
        );
        for chunk in start / CHUNK..end.div_ceil(CHUNK) {
            let data = read_at(fs, node, chunk * CHUNK, CHUNK as usize)?;
            if data.iter().any(|&byte| byte != 0) {
                chunks.insert(chunk, data);
            }
        }
        at = end;
    }
    Ok(chunks)
}

/// Up to `len` bytes at `offset`.
pub(crate) fn read_at<F: FileSystem>(
    fs: &F,
    node: &F::Node,
    offset: u64,
    len: usize,
) -> Result<Vec<u8>> {
    // Not zeros, so that bytes which the engine forgets to fill show.
    let mut buf = vec![0xa5; len];
    let read = fs.read(node, offset, &mut buf)?;
    buf.truncate(read);
    Ok(buf)
}
