//! Who is named by whom.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::mem::offset_of;

use vfs::{Error, Kind};

use super::audit::{Audit, field};
use super::survey::hash_of;
use super::{Delta, Edit, Finding, Problem, Progress};
use crate::features;
use crate::image::dir::{self, Entry};
use crate::layout::{DirEntry, Inode, ROOT_INO};

/// Directories that have been reached.
#[derive(Default)]
pub(super) struct Walk {
    /// To be read.
    queue: VecDeque<u32>,
    /// Behind a crash in mode soft: names of directories that keep another one, if that is there.
    /// They are ready when their directory has been reached.
    moving: Extras,
    /// Names of what is no directory that something else gets, if they have changed places. They
    /// are ready when what they name was found under the name of its tag.
    swapped: Extras,
}

/// A name that an inode does not keep.
struct Extra {
    ino: u32,
    /// Where the name is.
    dir: u32,
    /// What gets it: a whiteout, or what changed places.
    heir: Option<u32>,
    /// What takes it away.
    removal: Finding,
}

/// Names that wait for something to become known of their inodes, in the order they were found in.
#[derive(Default)]
struct Extras {
    by_number: BTreeMap<usize, Extra>,
    found: usize,
    /// Those that are not ready, by what they name.
    waiting: HashMap<u32, Vec<usize>>,
    ready: BTreeSet<usize>,
    /// What is known.
    known: HashSet<u32>,
}

impl Extras {
    fn add(&mut self, extra: Extra) {
        let number = self.found;
        self.found += 1;
        if self.known.contains(&extra.ino) {
            self.ready.insert(number);
        } else {
            self.waiting.entry(extra.ino).or_default().push(number);
        }
        self.by_number.insert(number, extra);
    }

    /// All names of `ino` are ready, also those that are still to be found.
    fn is_known(&mut self, ino: u32) {
        if self.known.insert(ino) {
            self.ready
                .extend(self.waiting.remove(&ino).unwrap_or_default());
        }
    }

    /// Takes the first one that is ready.
    fn next_ready(&mut self) -> Option<Extra> {
        let number = self.ready.pop_first()?;
        self.by_number.remove(&number)
    }

    /// Takes the first one of what none is ready.
    fn next_waiting(&mut self) -> Option<Extra> {
        let (number, extra) = self.by_number.pop_first()?;
        if let Some(others) = self.waiting.get_mut(&extra.ino) {
            others.retain(|&other| other != number);
        }
        Some(extra)
    }
}

impl Walk {
    /// The next one to be read. A directory that was being moved is reached by the name that it
    /// keeps, if that can be reached. No rule says so: of `mv a/b c; mv a c/b` the disk could have
    /// both names of both, and the new `..` of `a` alone.
    fn next(&mut self, audit: &mut Audit) -> Option<u32> {
        while self.queue.is_empty() {
            if let Some(extra) = self.swapped.next_ready() {
                let inode = audit.inodes.get(extra.ino).expect("it is in use");
                inode.unname();
                self.give(audit, extra);
            } else if let Some(extra) = self.moving.next_ready() {
                self.give(audit, extra);
            } else {
                // What is reached only by one of these comes before what none of them leads to.
                let extra = self.moving.next_waiting()?;
                audit.name(extra.ino);
                self.reach(audit, extra.ino, extra.dir);
            }
        }
        self.queue.pop_front()
    }

    /// A directory is reached by its name in `parent`.
    fn reach(&mut self, audit: &mut Audit, ino: u32, parent: u32) {
        audit.dirs.get_mut(&ino).expect("it was found").parent = parent;
        self.moving.is_known(ino);
        self.queue.push_back(ino);
    }

    /// A name is taken from the inode that has it, and given to its heir.
    fn give(&mut self, audit: &mut Audit, extra: Extra) {
        let Finding {
            problem,
            detail,
            edits,
            delta,
        } = extra.removal;
        audit.found(problem, detail, (edits, delta));
        let Some(heir) = extra.heir else { return };
        audit.name(heir);
        if audit.dirs.contains_key(&heir) {
            self.reach(audit, heir, extra.dir);
        }
    }
}

impl Audit {
    /// Follows all names from the root, and counts them.
    pub(super) fn names(&mut self, progress: Progress<'_>) -> Result<(), Error> {
        // All at once, if there is nothing to say. Else one after the other, from the root.
        if !self.survey(progress)? {
            self.inodes.forget_names();
            let dirs = self.dirs.len() as u64;
            let Some(mut walk) = self.walk() else {
                return Ok(());
            };
            let mut done = 0;
            while self.step(&mut walk)? {
                progress("names", done, dirs);
                done += 1;
            }
        }
        self.counts();
        Ok(())
    }

    /// Begins to follow names; `None`, and damage: there is no root.
    pub(super) fn walk(&mut self) -> Option<Walk> {
        if !self.dirs.contains_key(&ROOT_INO) {
            self.damage("there is no root directory".to_owned());
            return None;
        }
        let mut walk = Walk::default();
        walk.reach(self, ROOT_INO, ROOT_INO);
        Some(walk)
    }

    /// An inode in use has one more name.
    fn name(&self, ino: u32) {
        self.inodes.get(ino).expect("it is in use").name();
    }

    /// Reads a directory; false: there is none left.
    pub(super) fn step(&mut self, walk: &mut Walk) -> Result<bool, Error> {
        let Some(dir) = walk.next(self) else {
            return Ok(false);
        };
        self.directory(dir, walk)?;
        Ok(true)
    }

    fn directory(&mut self, dir: u32, walk: &mut Walk) -> Result<(), Error> {
        let blocks = std::mem::take(&mut self.dirs.get_mut(&dir).expect("it is queued").blocks);
        let (mut position, geometry) = (0, self.geometry.clone());
        let mut hashes = Vec::new();
        for block in blocks.iter().copied().map(u64::from) {
            let bytes = self.read(block)?;
            if !self.is_live {
                for offset in dir::overlong(&geometry, &bytes) {
                    self.overlong((dir, block), offset);
                }
            }
            for entry in dir::entries(&geometry, block, &bytes) {
                match entry {
                    Ok(entry) => {
                        // What names nothing goes.
                        if self.inodes.get(entry.ino).is_some() {
                            hashes.push(hash_of(dir, entry.name));
                        }
                        let is_own = entry.name == b"." || entry.name == b"..";
                        if is_own && !self.is_live && !entry.is_ended(&bytes) {
                            let name = entry.name.escape_ascii();
                            self.damage(format!("directory {dir}: '{name}' goes on"));
                        }
                        self.entry((dir, position), block, &entry, walk)?;
                    }
                    Err(error) => self.damage(format!("directory {dir}: {error}")),
                }
                position += 1;
            }
        }
        if position < 2 {
            self.damage(format!("directory {dir} has no '.' and '..'"));
        }
        hashes.sort_unstable();
        let pairs = hashes.windows(2).filter(|pair| pair[0] == pair[1]);
        let alike: HashSet<u64> = pairs.map(|pair| pair[0]).collect();
        match alike.is_empty() {
            true => Ok(()),
            false => self.twice(dir, &blocks, &alike),
        }
    }

    /// A free entry, in block `block` of directory `dir`, has the length of a longer name.
    fn overlong(&mut self, (dir, block): (u32, u64), offset: usize) {
        let edit = Edit::new(block, offset + offset_of!(DirEntry, name_len), vec![0]);
        let detail = format!(
            "directory {dir}, block {block}: free entry at {offset} is shorter than its name"
        );
        self.found(Problem::Field, detail, (vec![edit], None));
    }

    /// Says which of the names that have these hashes a directory has twice.
    fn twice(&mut self, dir: u32, blocks: &[u32], alike: &HashSet<u64>) -> Result<(), Error> {
        let mut seen = HashSet::new();
        for block in blocks.iter().copied().map(u64::from) {
            let (bytes, geometry) = (self.read(block)?, self.geometry.clone());
            for entry in dir::entries(&geometry, block, &bytes).filter_map(Result::ok) {
                let is_named = self.inodes.get(entry.ino).is_some();
                let is_suspect = is_named && alike.contains(&hash_of(dir, entry.name));
                if is_suspect && !seen.insert(entry.name.to_vec()) {
                    let name = entry.name.escape_ascii();
                    self.damage(format!("directory {dir} has '{name}' twice"));
                }
            }
        }
        Ok(())
    }

    /// An entry, the `position`th in use of its directory.
    fn entry(
        &mut self,
        (dir, position): (u32, usize),
        block: u64,
        entry: &Entry<'_>,
        walk: &mut Walk,
    ) -> Result<(), Error> {
        let name = entry.name.escape_ascii();
        let parent = self.dirs[&dir].parent;
        let own = match position {
            0 => Some((&b"."[..], dir)),
            1 => Some((&b".."[..], parent)),
            _ => None,
        };
        if let Some(own) = own {
            if own != (entry.name, entry.ino) {
                let (ino, right) = (entry.ino, own.1);
                if self.soft && position == 1 && entry.name == b".." {
                    let detail = format!("directory {dir}: '..' names {ino}, not {right}");
                    let edit = rename(block, entry, right);
                    let parent = right;
                    let delta = Some(Delta::Parent { dir, parent });
                    self.found(Problem::TwoNames, detail, (vec![edit], delta));
                    self.name(right);
                    return Ok(());
                }
                self.damage(format!(
                    "directory {dir}: '{name}' names {ino}, not {right}"
                ));
                return Ok(());
            }
        } else if entry.name == b"." || entry.name == b".." {
            self.damage(format!("directory {dir}: a further '{name}'"));
            return Ok(());
        }
        let Some(inode) = self.inodes.get(entry.ino) else {
            let edit = rename(block, entry, 0);
            let detail = format!(
                "directory {dir}: '{name}' names inode {}, which is free",
                entry.ino
            );
            self.found(Problem::DeadEntry, detail, (vec![edit], None));
            return Ok(());
        };
        inode.name();
        let kind = inode.kind.expect("it is in use");
        if own.is_none() && !self.tags.is_empty() {
            let tag = self.tags.get(&entry.ino).copied();
            if tag == Some(dir::tag_of(dir, entry.name)) {
                walk.swapped.is_known(entry.ino);
            } else if kind != Kind::Dir && self.heir((dir, entry.name), entry.ino).is_some() {
                walk.swapped.add(self.extra((dir, block), entry));
            }
        }
        if own.is_none() && kind == Kind::Dir {
            let ino = entry.ino;
            match self.dirs[&ino].parent {
                _ if self.soft && ino != ROOT_INO && !self.keeps(ino, (dir, entry.name))? => {
                    inode.unname();
                    walk.moving.add(self.extra((dir, block), entry));
                    return Ok(());
                }
                0 => walk.reach(self, ino, dir),
                other => {
                    self.damage(format!("directory {ino} has names in {other} and {dir}"));
                }
            }
        }
        let has_kinds = self.geometry.features.incompat & features::FILETYPE != 0;
        if let Some(other) = entry.kind.filter(|&other| other != kind) {
            self.damage(format!(
                "directory {dir}: '{name}' is {kind:?}, not {other:?}"
            ));
        } else if has_kinds && entry.kind.is_none() {
            let edit = set_kind(block, entry, kind);
            let detail = format!("directory {dir}: '{name}' does not say that it is {kind:?}");
            self.found(Problem::EntryKind, detail, (vec![edit], None));
        }
        Ok(())
    }

    /// What is promised a name, which inode `ino` has, and has no other one: they are changing
    /// places.
    fn heir(&self, (dir, name): (u32, &[u8]), ino: u32) -> Option<u32> {
        let heir = *self.promised.get(&dir::promise_of(dir, name))?;
        let has_parent = self.dirs.get(&heir).is_some_and(|dir| dir.parent != 0);
        (heir != ino && !has_parent).then_some(heir)
    }

    /// A name, in block `block` of directory `dir`, of an inode that keeps another one.
    fn extra(&self, (dir, block): (u32, u64), entry: &Entry<'_>) -> Extra {
        let (ino, name) = (entry.ino, entry.name.escape_ascii());
        let whiteout = self.tags.get(&ino).and_then(|&tag| {
            let keeps = tag == dir::tag_of(dir, entry.name);
            let whiteout = dir::whiteout_of(dir, entry.name, ino, keeps);
            self.whiteouts.get(&whiteout).copied()
        });
        let promised = self.heir((dir, entry.name), ino);
        let heir = whiteout.or(promised);
        let mut edits = vec![rename(block, entry, heir.unwrap_or(0))];
        let kind = heir.and_then(|heir| self.inodes.get(heir)?.kind);
        if let (Some(kind), Some(_)) = (kind, entry.kind) {
            edits.push(set_kind(block, entry, kind));
        }
        let what = match promised {
            Some(other) => format!("changed places with {other}"),
            None => "was moved".to_owned(),
        };
        // In use nothing changes places that the check has not seen before.
        let delta = promised.is_none().then(|| Delta::ExtraName {
            dir,
            name: entry.name.to_vec(),
            ino,
            whiteout,
        });
        let removal = Finding {
            problem: Problem::TwoNames,
            detail: format!("directory {dir}: '{name}' names {ino}, which {what}"),
            edits,
            delta,
        };
        Extra {
            ino,
            dir,
            heir,
            removal,
        }
    }

    /// Whether directory `ino` has no parent yet, and keeps this name: it has the tag of that, or
    /// none, and its `..` names `dir`.
    fn keeps(&self, ino: u32, (dir, name): (u32, &[u8])) -> Result<bool, Error> {
        let found = &self.dirs[&ino];
        if let Some(&tag) = self.tags.get(&ino) {
            let keeps = [dir::tag_of(dir, name), dir::promise_of(dir, name)];
            return Ok(found.parent == 0 && keeps.contains(&tag));
        }
        let (0, Some(&block)) = (found.parent, found.blocks.first()) else {
            return Ok(false);
        };
        let bytes = self.read(block.into())?;
        let geometry = &*self.geometry;
        let mut entries = dir::entries(geometry, block.into(), &bytes);
        let parent = entries.nth(1).and_then(Result::ok);
        Ok(parent.is_some_and(|entry| entry.name == b".." && entry.ino == dir))
    }

    /// Compares the numbers of names.
    pub(super) fn counts(&mut self) {
        let is_lost = |ino: u32, kind: Kind| kind == Kind::Dir && self.dirs[&ino].parent == 0;
        let mut wrong = Vec::new();
        for (ino, inode) in self.inodes.iter() {
            let kind = inode.kind.expect("it is in use");
            let (names, is_lost) = (inode.names(), is_lost(ino, kind));
            if names != u32::from(inode.links) || is_lost {
                let is_nameless = names == 0 || is_lost;
                wrong.push((
                    ino,
                    kind,
                    is_nameless,
                    inode.has_contents,
                    inode.links,
                    names,
                ));
            }
        }
        for (ino, kind, nameless, has_contents, links, names) in wrong {
            let place = self.place(ino);
            let links_at = offset_of!(Inode, links_count);
            if nameless && (has_contents || kind == Kind::Dir) {
                let detail = format!("inode {ino}, a {kind:?}, has no name");
                if !self.soft {
                    self.found(Problem::Nameless, detail, (Vec::new(), None));
                    continue;
                }
                let edits = vec![field(place, links_at, &[0; 2]), self.removal_time(place)];
                let delta = Some(Delta::Nameless { ino });
                self.found(Problem::Interrupted, detail, (edits, delta));
                self.gone(ino);
            } else if nameless {
                let edits = vec![field(place, links_at, &[0; 2]), self.removal_time(place)];
                let detail = format!("inode {ino} has neither a name nor contents");
                let delta = Some(Delta::Nameless { ino });
                self.found(Problem::Orphan, detail, (edits, delta));
                self.gone(ino);
            } else if let Ok(names) = u16::try_from(names) {
                // Its tag goes with what counts its other name, when that is gone.
                let is_moving = self.tags.contains_key(&ino);
                if is_moving && !self.is_live && self.has_found(Problem::TwoNames) {
                    continue;
                }
                let mut edits = vec![field(place, links_at, &names.to_le_bytes())];
                if is_moving {
                    edits.push(field(place, offset_of!(Inode, checksum_lo), &[0; 4]));
                }
                let detail = format!("inode {ino} has {names} names, and counts {links}");
                // No crash leaves too low a count: what else is wrong then?
                let by = i32::from(names) - i32::from(links);
                let delta = (by < 0 || !self.soft).then_some(Delta::Links { ino, by });
                self.found(Problem::LinkCount, detail, (edits, delta));
            } else {
                self.damage(format!("inode {ino} has {names} names"));
            }
        }
    }
}

impl Audit {
    /// An inode is going to be free. In a file system that is in use it has its bit until then.
    fn gone(&mut self, ino: u32) {
        if !self.is_live {
            self.used.clear(ino.into());
            self.inodes.remove(ino);
            self.dirs.remove(&ino);
        }
    }
}

/// Lets an entry name another inode; 0: none.
fn rename(block: u64, entry: &Entry<'_>, ino: u32) -> Edit {
    Edit::new(block, entry.offset, ino.to_le_bytes().to_vec())
}

/// Lets an entry say of what kind its inode is.
fn set_kind(block: u64, entry: &Entry<'_>, kind: Kind) -> Edit {
    Edit::new(
        block,
        entry.offset + offset_of!(DirEntry, file_type),
        vec![dir::number_of(kind)],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another name of an inode, in a directory that tells it apart.
    fn extra(ino: u32, dir: u32) -> Extra {
        let removal = Finding {
            problem: Problem::TwoNames,
            detail: String::new(),
            edits: Vec::new(),
            delta: None,
        };
        Extra {
            ino,
            dir,
            heir: None,
            removal,
        }
    }

    #[test]
    fn names_come_in_their_order_and_those_first_of_what_is_known() {
        let mut extras = Extras::default();
        for (ino, dir) in [(20, 1), (21, 2), (22, 3), (21, 4), (20, 5)] {
            extras.add(extra(ino, dir));
        }
        let ready = |extras: &mut Extras| extras.next_ready().map(|extra| extra.dir);
        assert_eq!(ready(&mut extras), None);
        extras.is_known(21);
        extras.add(extra(21, 6));
        assert_eq!(
            [(); 4].map(|()| ready(&mut extras)),
            [Some(2), Some(4), Some(6), None]
        );
        // By this one 20 is known: its other name is ready, once.
        assert_eq!(extras.next_waiting().map(|extra| extra.dir), Some(1));
        extras.is_known(20);
        assert_eq!([(); 2].map(|()| ready(&mut extras)), [Some(5), None]);
        assert_eq!(extras.next_waiting().map(|extra| extra.dir), Some(3));
        assert!(extras.next_waiting().is_none());
    }
}
