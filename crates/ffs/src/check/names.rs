//! Who is named by whom.

use std::collections::VecDeque;
use std::mem::offset_of;

use vfs::{Error, Kind};

use super::audit::{Audit, field};
use super::{Edit, Problem, Progress, read};
use crate::features;
use crate::image::dir::{self, Entry};
use crate::layout::{DirEntry, Inode, ROOT_INO};

impl Audit<'_> {
    /// Follows all names from the root, and counts them.
    pub(super) fn names(&mut self, progress: Progress<'_>) -> Result<(), Error> {
        match self.inodes.get_mut(&ROOT_INO) {
            Some(root) if root.kind == Kind::Dir => root.parent = ROOT_INO,
            _ => {
                self.damage("there is no root directory".to_owned());
                return Ok(());
            }
        }
        let dirs = self.inodes.values().filter(|inode| inode.kind == Kind::Dir);
        let dirs = dirs.count() as u64;
        let mut queue = VecDeque::from([ROOT_INO]);
        let mut done = 0;
        while let Some(dir) = queue.pop_front() {
            progress("names", done, dirs);
            done += 1;
            self.directory(dir, &mut queue)?;
        }
        self.counts();
        Ok(())
    }

    fn directory(&mut self, dir: u32, queue: &mut VecDeque<u32>) -> Result<(), Error> {
        let blocks = std::mem::take(&mut self.inodes.get_mut(&dir).expect("it is queued").blocks);
        let mut position = 0;
        for block in blocks {
            let bytes = read(self.disk, self.geometry, block)?;
            for entry in dir::entries(self.geometry, block, &bytes) {
                match entry {
                    Ok(entry) => self.entry((dir, position), block, &entry, queue),
                    Err(error) => self.damage(format!("directory {dir}: {error}")),
                }
                position += 1;
            }
        }
        if position < 2 {
            self.damage(format!("directory {dir} has no '.' and '..'"));
        }
        Ok(())
    }

    /// An entry, the `position`th in use of its directory.
    fn entry(
        &mut self,
        (dir, position): (u32, usize),
        block: u64,
        entry: &Entry<'_>,
        queue: &mut VecDeque<u32>,
    ) {
        let name = entry.name.escape_ascii();
        let parent = self.inodes[&dir].parent;
        let own = match position {
            0 => Some((&b"."[..], dir)),
            1 => Some((&b".."[..], parent)),
            _ => None,
        };
        if let Some(own) = own {
            if own != (entry.name, entry.ino) {
                let (ino, right) = (entry.ino, own.1);
                self.damage(format!(
                    "directory {dir}: '{name}' names {ino}, not {right}"
                ));
                return;
            }
        } else if entry.name == b"." || entry.name == b".." {
            self.damage(format!("directory {dir}: a further '{name}'"));
            return;
        }
        let Some(inode) = self.inodes.get_mut(&entry.ino) else {
            let edit = Edit {
                block,
                offset: entry.offset,
                bytes: vec![0; 4],
            };
            let detail = format!(
                "directory {dir}: '{name}' names inode {}, which is free",
                entry.ino
            );
            self.found(Problem::DeadEntry, detail, vec![edit]);
            return;
        };
        inode.names += 1;
        let kind = inode.kind;
        if own.is_none() && kind == Kind::Dir {
            match inode.parent {
                0 => {
                    inode.parent = dir;
                    queue.push_back(entry.ino);
                }
                other => {
                    let ino = entry.ino;
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
            let edit = Edit {
                block,
                offset: entry.offset + offset_of!(DirEntry, file_type),
                bytes: vec![dir::number_of(kind)],
            };
            let detail = format!("directory {dir}: '{name}' does not say that it is {kind:?}");
            self.found(Problem::EntryKind, detail, vec![edit]);
        }
    }

    /// Compares the numbers of names.
    fn counts(&mut self) {
        let wrong = self.inodes.iter().filter(|(_, inode)| {
            inode.names != u32::from(inode.links) || (inode.kind == Kind::Dir && inode.parent == 0)
        });
        let wrong: Vec<u32> = wrong.map(|(&ino, _)| ino).collect();
        for ino in wrong {
            let inode = &self.inodes[&ino];
            let (place, names, links) = (inode.place, inode.names, inode.links);
            let nameless = names == 0 || (inode.kind == Kind::Dir && inode.parent == 0);
            let links_at = offset_of!(Inode, links_count);
            if nameless && (inode.has_contents || inode.kind == Kind::Dir) {
                let detail = format!("inode {ino}, a {:?}, has no name", inode.kind);
                self.found(Problem::Nameless, detail, Vec::new());
            } else if nameless {
                let edits = vec![field(place, links_at, &[0; 2]), self.removal_time(place)];
                let detail = format!("inode {ino} has neither a name nor contents");
                self.found(Problem::Orphan, detail, edits);
                self.used.clear(ino.into());
                self.inodes.remove(&ino);
            } else if let Ok(names) = u16::try_from(names) {
                let edit = field(place, links_at, &names.to_le_bytes());
                let detail = format!("inode {ino} has {names} names, and counts {links}");
                self.found(Problem::LinkCount, detail, vec![edit]);
            } else {
                self.damage(format!("inode {ino} has {names} names"));
            }
        }
    }
}
