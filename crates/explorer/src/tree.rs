//! All that can be seen of a file system at one moment.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use vfs::{Attr, FileSystem, Kind, SeekFor, Time};

/// Unit in which contents are kept.
pub const BLOCK: u64 = 4096;
/// Blocks that are all zeros are left out.
pub type Blocks = BTreeMap<u64, Vec<u8>>;
/// An inode: number and generation.
pub type Id = (u64, u32);
/// A name in a directory.
pub type Slot = (Id, Vec<u8>);

/// An inode, without its contents.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Kind.
    #[serde(with = "crate::forms::kind")]
    pub kind: Kind,
    /// Permissions.
    pub perm: u16,
    /// User and group.
    pub owner: (u32, u32),
    /// Names.
    pub nlink: u32,
    /// Device number.
    pub rdev: u32,
    /// Not of a directory.
    pub size: u64,
    /// mtime, ctime, atime, btime.
    #[serde(with = "crate::forms::times")]
    pub times: [Time; 4],
    /// Of a symlink.
    #[serde(with = "crate::forms::bytes")]
    pub target: Vec<u8>,
    /// Extended attributes.
    #[serde(with = "crate::forms::pairs")]
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Of a directory.
    #[serde(with = "crate::forms::pairs")]
    pub names: BTreeMap<Vec<u8>, Id>,
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} {:o} nlink {} size {} times {:?}",
            self.kind,
            self.perm,
            self.nlink,
            self.size,
            self.times.map(|t| t.0)
        )?;
        if !self.xattrs.is_empty() {
            let lens: Vec<_> = self
                .xattrs
                .iter()
                .map(|(n, v)| (n.escape_ascii().to_string(), v.len(), v.first()))
                .collect();
            write!(f, " xattrs {lens:?}")?;
        }
        if self.kind == Kind::Dir {
            let names: Vec<_> = self
                .names
                .iter()
                .take(20)
                .map(|(n, id)| format!("{}={}", n.escape_ascii(), id.0))
                .collect();
            write!(f, " names [{}]", names.join(" "))?;
        }
        Ok(())
    }
}

/// A tree: what names reach from the root, and what is held without a name.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// The root.
    pub root: Id,
    /// All inodes.
    #[serde(with = "crate::forms::pairs")]
    pub objects: BTreeMap<Id, Object>,
    /// What the files hold.
    #[serde(with = "contents")]
    pub contents: BTreeMap<Id, Blocks>,
    /// What each snapshot has, by its name.
    #[serde(default)]
    pub snapshots: BTreeMap<String, Tree>,
}

/// What is wrong with what was read.
pub type Flaw = String;

impl Tree {
    /// Look at everything. `held`: inodes that may have no name.
    ///
    /// # Errors
    /// What cannot be read, or contradicts itself.
    pub fn of<F: FileSystem>(fs: &F, held: &[&F::Node]) -> Result<Tree, Flaw> {
        Tree::without(fs, held, None)
    }

    /// The same, without a directory of this name in the root: it is the engine's own.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn without<F: FileSystem>(
        fs: &F,
        held: &[&F::Node],
        own: Option<&[u8]>,
    ) -> Result<Tree, Flaw> {
        let root = fs.root();
        let mut tree = Tree {
            root: id(&fs.attr(&root)),
            objects: BTreeMap::new(),
            contents: BTreeMap::new(),
            snapshots: BTreeMap::new(),
        };
        // What is held goes last: it may have names, too.
        let mut queue: Vec<_> = held
            .iter()
            .map(|&node| (node.clone(), "(held)".to_owned()))
            .collect();
        queue.push((root, String::new()));
        while let Some((node, path)) = queue.pop() {
            let attr = fs.attr(&node);
            if tree.objects.contains_key(&id(&attr)) {
                if attr.kind == Kind::Dir && path != "(held)" {
                    return Err(format!("directory {path} is reached twice"));
                }
                continue;
            }
            let fail =
                |what: &str, e: vfs::Error| format!("{what} of {path:?} (inode {}): {e}", attr.ino);
            let mut object = Object {
                kind: attr.kind,
                perm: attr.perm,
                owner: (attr.uid, attr.gid),
                nlink: attr.nlink,
                rdev: attr.rdev,
                size: if attr.kind == Kind::Dir { 0 } else { attr.size },
                times: [attr.mtime, attr.ctime, attr.atime, attr.btime],
                target: Vec::new(),
                xattrs: BTreeMap::new(),
                names: BTreeMap::new(),
            };
            for name in fs.listxattr(&node).map_err(|e| fail("listxattr", e))? {
                let value = fs.getxattr(&node, &name).map_err(|e| fail("getxattr", e))?;
                object.xattrs.insert(name, value);
            }
            match attr.kind {
                Kind::File => drop(tree.contents.insert(
                    id(&attr),
                    read(fs, &node, attr.size).map_err(|e| fail("read", e))?,
                )),
                Kind::Symlink => {
                    object.target = fs.readlink(&node).map_err(|e| fail("readlink", e))?
                }
                Kind::Dir => {
                    let mut entries = Vec::new();
                    let listed = fs.readdir(&node, 0, &mut |entry| {
                        entries.push((entry.name.to_vec(), entry.ino, entry.kind));
                        true
                    });
                    if attr.nlink > 0 {
                        listed.map_err(|e| fail("readdir", e))?;
                    }
                    for (name, ino, kind) in entries {
                        if path.is_empty() && own == Some(&name) && kind == Kind::Dir {
                            object.nlink -= 1;
                            continue;
                        }
                        let at = format!("{path}/{}", name.escape_ascii());
                        let child = fs
                            .lookup(&node, &name)
                            .map_err(|e| format!("lookup of {at:?}: {e}"))?;
                        let found = fs.attr(&child);
                        if (found.ino, found.kind) != (ino, kind) {
                            return Err(format!(
                                "{at:?} is read as {ino} {kind:?}, found as {} {:?}",
                                found.ino, found.kind
                            ));
                        }
                        if kind == Kind::Dir
                            && fs.parent(&child).map(|p| fs.ino(&p)) != Ok(attr.ino)
                        {
                            return Err(format!("{at:?} has another parent than {}", attr.ino));
                        }
                        if object.names.insert(name, id(&found)).is_some() {
                            return Err(format!("{at:?} is there twice"));
                        }
                        queue.push((child, at));
                    }
                }
                _ => {}
            }
            tree.objects.insert(id(&attr), object);
        }
        Ok(tree)
    }

    /// The same without what has no name.
    pub fn named(&self) -> Tree {
        let mut tree = self.clone();
        tree.objects.retain(|_, o| o.nlink > 0);
        let objects = &tree.objects;
        tree.contents.retain(|id, _| objects.contains_key(id));
        tree
    }

    /// What a name leads to.
    pub fn slot(&self, slot: &Slot) -> Option<Id> {
        self.objects.get(&slot.0)?.names.get(&slot.1).copied()
    }

    /// Whether link counts are those of the names.
    ///
    /// # Errors
    /// An inode's is not.
    pub fn links(&self) -> Result<(), Flaw> {
        let mut names: BTreeMap<Id, u32> = BTreeMap::new();
        for (id, object) in self.objects.iter().filter(|(_, o)| o.kind == Kind::Dir) {
            *names.entry(*id).or_default() += 2;
            for child in object.names.values() {
                if self.objects.get(child).is_some_and(|c| c.kind == Kind::Dir) {
                    *names.entry(*id).or_default() += 1;
                } else {
                    *names.entry(*child).or_default() += 1;
                }
            }
        }
        match self
            .objects
            .iter()
            .find(|(id, o)| o.nlink != names.get(id).copied().unwrap_or(0))
        {
            Some((id, o)) => Err(format!(
                "inode {} counts {} links, and has {:?}",
                id.0,
                o.nlink,
                names.get(id)
            )),
            None => Ok(()),
        }
    }

    /// Where the metadata differ from those of `other`, with the same inodes.
    pub fn difference(&self, other: &Tree) -> Option<String> {
        if self.objects == other.objects {
            return None;
        }
        let ids = self.objects.keys().chain(other.objects.keys());
        let mut lines: Vec<String> = ids
            .filter(|id| self.objects.get(id) != other.objects.get(id))
            .map(|id| {
                format!(
                    "    inode {}: {:?}\n      instead of {:?}",
                    id.0,
                    self.objects.get(id),
                    other.objects.get(id)
                )
            })
            .collect();
        lines.dedup();
        Some(lines.join("\n"))
    }

    /// Where what can be seen differs from `other`, whose inodes have other numbers.
    pub fn difference_by_path(&self, other: &Tree) -> Option<String> {
        let mut pairs = vec![(self.root, other.root, String::new())];
        let mut known = BTreeMap::new();
        while let Some((mine, theirs, path)) = pairs.pop() {
            match known.insert(mine, theirs) {
                Some(before) if before != theirs => {
                    return Some(format!("{path:?} is another file"));
                }
                Some(_) => continue,
                None => {}
            }
            let (a, b) = (&self.objects[&mine], &other.objects[&theirs]);
            let shape = |o: &Object| Object {
                names: BTreeMap::new(),
                ..o.clone()
            };
            if shape(a) != shape(b) || !a.names.keys().eq(b.names.keys()) {
                return Some(format!("{path:?}: {a:?}\n  instead of {b:?}"));
            }
            if self.contents.get(&mine) != other.contents.get(&theirs) {
                return Some(format!("{path:?} holds other bytes"));
            }
            let children = a.names.iter().zip(b.names.values());
            pairs.extend(
                children.map(|((name, &a), &b)| (a, b, format!("{path}/{}", name.escape_ascii()))),
            );
        }
        None
    }
}

/// Where snapshots differ from those that there were before.
pub fn difference_of_snapshots(
    now: &BTreeMap<String, Tree>,
    before: &BTreeMap<String, Tree>,
) -> Option<String> {
    let mut names = now.keys().chain(before.keys());
    let name = names.find(|&name| now.get(name) != before.get(name))?;
    Some(difference_of_snapshot(
        name,
        now.get(name),
        before.get(name),
    ))
}

/// Where a snapshot differs from what it had.
pub fn difference_of_snapshot(name: &str, now: Option<&Tree>, before: Option<&Tree>) -> String {
    match (now, before) {
        (None, _) => format!("snapshot {name} is missing"),
        (Some(_), None) => format!("snapshot {name} is there"),
        (Some(now), Some(before)) => match now.difference(before) {
            Some(what) => format!("snapshot {name} is not what it was:\n{what}"),
            None => format!("snapshot {name}: files hold other bytes"),
        },
    }
}

fn id(attr: &Attr) -> Id {
    (attr.ino, attr.generation)
}

fn read<F: FileSystem>(fs: &F, node: &F::Node, size: u64) -> Result<Blocks, vfs::Error> {
    let mut blocks = Blocks::new();
    let mut at = 0;
    while at < size {
        at = match fs.seek(node, at, SeekFor::Data) {
            Ok(at) => at / BLOCK * BLOCK,
            Err(e) if e.errno() == vfs::Errno::NXIO => break,
            Err(e) => return Err(e),
        };
        let mut bytes = vec![0; BLOCK.min(size - at) as usize];
        fs.read(node, at, &mut bytes)?;
        if bytes.iter().any(|&b| b != 0) {
            blocks.insert(at / BLOCK, bytes);
        }
        at += BLOCK;
    }
    Ok(blocks)
}

/// The form in which what files hold is kept.
mod contents {
    use super::{Blocks, Id};
    use crate::forms::bytes;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::collections::BTreeMap;

    pub fn serialize<S: Serializer>(
        contents: &BTreeMap<Id, Blocks>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(contents.iter().map(|(id, blocks)| {
            let blocks = blocks.iter().map(|(&n, block)| (n, bytes::text(block)));
            (id, blocks.collect::<Vec<_>>())
        }))
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<BTreeMap<Id, Blocks>, D::Error> {
        let files = Vec::<(Id, Vec<(u64, String)>)>::deserialize(from)?;
        let block = |(n, text): (u64, String)| Some((n, bytes::parse(&text)?));
        let file = |(id, blocks): (Id, Vec<_>)| {
            let blocks = blocks.into_iter().map(block).collect::<Option<Blocks>>()?;
            Some((id, blocks))
        };
        let files: Option<_> = files.into_iter().map(file).collect();
        files.ok_or_else(|| D::Error::custom("no bytes"))
    }
}
