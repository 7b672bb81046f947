//! All that can be seen of a file system at one moment.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
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
/// The path of what is held.
const HELD: &str = "(held)";

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
        let look = Look::new(fs, own, None);
        look.at_all(held).map(|(tree, _)| tree)
    }

    /// Look at what a crash has left while that is being mended, as it will be then: `mended` is
    /// what it was when it began, as the check makes it. Counts may be too high, and directories
    /// may have a second name: such paths are told, too.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn while_mended<F: FileSystem>(
        fs: &F,
        held: &[&F::Node],
        mended: &Tree,
    ) -> Result<(Tree, Vec<String>), Flaw> {
        let (mut tree, second) = Look::new(fs, None, Some(mended)).at_all(held)?;
        let names = tree.counted();
        let children = tree
            .objects
            .values()
            .flat_map(|object| object.names.values());
        let mut named: BTreeSet<Id> = children.copied().collect();
        named.insert(tree.root);
        for (id, object) in &mut tree.objects {
            // What is held has no names, whatever was counted.
            let is_named = |_: &&u32| named.contains(id);
            let has = names.get(id).filter(is_named).copied().unwrap_or(0);
            if object.nlink < has {
                let counts = object.nlink;
                let ino = id.0;
                return Err(format!("inode {ino} counts {counts} links, and has {has}"));
            }
            object.nlink = has;
        }
        Ok((tree, second))
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

    /// A name of an inode.
    fn name_of(&self, id: Id) -> Option<Slot> {
        let names = self.objects.iter().flat_map(|(dir, object)| {
            let names = object.names.iter();
            names.map(move |(name, child)| ((dir, name), child))
        });
        let mut its = names.filter(|(_, child)| **child == id);
        its.next().map(|((dir, name), _)| (*dir, name.clone()))
    }

    /// Whether link counts are those of the names.
    ///
    /// # Errors
    /// An inode's is not.
    pub fn links(&self) -> Result<(), Flaw> {
        let names = self.counted();
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

    /// How many names each inode has.
    fn counted(&self) -> BTreeMap<Id, u32> {
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
        names
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

/// A look at everything.
struct Look<'a, F: FileSystem> {
    fs: &'a F,
    /// A directory in the root that is the engine's own.
    own: Option<&'a [u8]>,
    /// What a crash has left is being mended: what that was, as the check makes it.
    mended: Option<&'a Tree>,
    tree: Tree,
    /// What is to be looked at, and by which path it was found.
    queue: Vec<(F::Node, String)>,
    /// Names of directories that may have another one.
    second: Vec<Second<F::Node>>,
    /// Directories whose `..` does not lead where they were found, and what that means.
    strays: Vec<(Id, Flaw)>,
}

/// A name that its directory may not keep.
struct Second<N> {
    slot: Slot,
    node: N,
    id: Id,
    path: String,
}

impl<'a, F: FileSystem> Look<'a, F> {
    fn new(fs: &'a F, own: Option<&'a [u8]>, mended: Option<&'a Tree>) -> Look<'a, F> {
        Look {
            fs,
            own,
            mended,
            tree: Tree {
                root: id(&fs.attr(&fs.root())),
                objects: BTreeMap::new(),
                contents: BTreeMap::new(),
                snapshots: BTreeMap::new(),
            },
            queue: Vec::new(),
            second: Vec::new(),
            strays: Vec::new(),
        }
    }

    /// What there is, and the paths of second names.
    fn at_all(mut self, held: &[&F::Node]) -> Result<(Tree, Vec<String>), Flaw> {
        // What is held goes last: it may have names, too.
        let held = held.iter().map(|&node| (node.clone(), HELD.to_owned()));
        self.queue.extend(held);
        self.queue.push((self.fs.root(), String::new()));
        while let Some((node, path)) = self.queue.pop() {
            self.at(&node, &path)?;
            if self.queue.is_empty() {
                self.only_names()?;
            }
        }
        let is_moving = |id: &Id| self.second.iter().any(|second| second.id == *id);
        if let Some((_, flaw)) = self.strays.iter().find(|(id, _)| !is_moving(id)) {
            return Err(flaw.clone());
        }
        self.give_second();
        let second = self.second.into_iter().map(|second| second.path);
        Ok((self.tree, second.collect()))
    }

    fn at(&mut self, node: &F::Node, path: &str) -> Result<(), Flaw> {
        let fs = self.fs;
        let attr = fs.attr(node);
        if self.tree.objects.contains_key(&id(&attr)) {
            return match attr.kind == Kind::Dir && path != HELD {
                true => Err(format!("directory {path} is reached twice")),
                false => Ok(()),
            };
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
        for name in fs.listxattr(node).map_err(|e| fail("listxattr", e))? {
            let value = fs.getxattr(node, &name).map_err(|e| fail("getxattr", e))?;
            object.xattrs.insert(name, value);
        }
        match attr.kind {
            Kind::File => {
                let blocks = read(fs, node, attr.size).map_err(|e| fail("read", e))?;
                self.tree.contents.insert(id(&attr), blocks);
            }
            Kind::Symlink => object.target = fs.readlink(node).map_err(|e| fail("readlink", e))?,
            Kind::Dir => self.in_dir((node, &attr), path, &mut object)?,
            _ => {}
        }
        self.tree.objects.insert(id(&attr), object);
        Ok(())
    }

    /// The names in a directory.
    fn in_dir(
        &mut self,
        (node, attr): (&F::Node, &Attr),
        path: &str,
        object: &mut Object,
    ) -> Result<(), Flaw> {
        let fs = self.fs;
        let mut entries = Vec::new();
        let listed = fs.readdir(node, 0, &mut |entry| {
            entries.push((entry.name.to_vec(), entry.ino, entry.kind));
            true
        });
        if attr.nlink > 0 {
            listed.map_err(|e| format!("readdir of {path:?} (inode {}): {e}", attr.ino))?;
        }
        for (name, ino, kind) in entries {
            if path.is_empty() && self.own == Some(&name) && kind == Kind::Dir {
                object.nlink -= 1;
                continue;
            }
            let at = format!("{path}/{}", name.escape_ascii());
            let child = fs.lookup(node, &name);
            let child = child.map_err(|e| format!("lookup of {at:?}: {e}"))?;
            let found = fs.attr(&child);
            if (found.ino, found.kind) != (ino, kind) {
                return Err(format!(
                    "{at:?} is read as {ino} {kind:?}, found as {} {:?}",
                    found.ino, found.kind
                ));
            }
            let slot = (id(attr), name);
            if kind == Kind::Dir {
                if self.may_be_second(&slot, id(&found)) {
                    self.second.push(Second {
                        slot,
                        node: child,
                        id: id(&found),
                        path: at,
                    });
                    continue;
                }
                self.is_child(&child, &at, attr.ino)?;
            }
            if object.names.insert(slot.1, id(&found)).is_some() {
                return Err(format!("{at:?} is there twice"));
            }
            self.queue.push((child, at));
        }
        Ok(())
    }

    /// Whether the `..` of a directory leads where its name is. Of one with two names it need not.
    fn is_child(&mut self, child: &F::Node, path: &str, parent: u64) -> Result<(), Flaw> {
        if self.fs.parent(child).map(|p| self.fs.ino(&p)) == Ok(parent) {
            return Ok(());
        }
        let flaw = format!("{path:?} has another parent than {parent}");
        if self.mended.is_none() {
            return Err(flaw);
        }
        self.strays.push((id(&self.fs.attr(child)), flaw));
        Ok(())
    }

    /// Whether this may be the second name of a directory, that it does not keep.
    fn may_be_second(&self, slot: &Slot, dir: Id) -> bool {
        let of =
            |mended: &Tree| mended.objects.contains_key(&dir) && mended.slot(slot) != Some(dir);
        self.mended.is_some_and(of)
    }

    /// What was found by no other name has this one: it was moved there since. What is seen to be
    /// gone from where it was goes first, as it may lead to others.
    fn only_names(&mut self) -> Result<(), Flaw> {
        let objects = &self.tree.objects;
        let is_only = |second: &Second<F::Node>| !objects.contains_key(&second.id);
        let is_gone = |id: Id| {
            let kept = self.mended.and_then(|mended| mended.name_of(id));
            kept.is_some_and(|(dir, name)| {
                let there = objects.get(&dir);
                there.is_some_and(|there| there.names.get(&name) != Some(&id))
            })
        };
        let mut all = self.second.iter();
        let gone = all.position(|second| is_only(second) && is_gone(second.id));
        let Some(at) = gone.or_else(|| self.second.iter().position(is_only)) else {
            return Ok(());
        };
        let only = self.second.swap_remove(at);
        let (dir, name) = only.slot;
        self.is_child(&only.node, &only.path, dir.0)?;
        let object = self.tree.objects.get_mut(&dir);
        object
            .expect("it was looked at")
            .names
            .insert(name, only.id);
        self.queue.push((only.node, only.path));
        Ok(())
    }

    /// Second names are gone, or lead to whiteouts.
    fn give_second(&mut self) {
        let Some(mended) = self.mended else { return };
        for second in &self.second {
            let Some(whiteout) = mended.slot(&second.slot) else {
                continue;
            };
            let (dir, name) = &second.slot;
            let object = self.tree.objects.get_mut(dir);
            let names = &mut object.expect("it was looked at").names;
            names.insert(name.clone(), whiteout);
            let objects = &mut self.tree.objects;
            let there = objects.entry(whiteout);
            there.or_insert_with(|| mended.objects[&whiteout].clone());
        }
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
