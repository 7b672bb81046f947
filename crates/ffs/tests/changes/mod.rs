//! Random changes.

#![allow(dead_code, reason = "each test uses some of it")]

use block::Random;
use ffs::{Ffs, Node};
use vfs::{FileSystem, Kind, NewKind, NewNode, Place, RenameMode, SetAttr, XattrMode};

pub const FILE: NewNode<'static> = NewNode {
    kind: NewKind::File,
    perm: 0o644,
    uid: 0,
    gid: 0,
    xattrs: &[],
};
pub const DIR: NewNode<'static> = NewNode {
    kind: NewKind::Dir,
    perm: 0o755,
    ..FILE
};

/// A name, and its directory.
pub type Name = (Node, Vec<u8>);

/// All directories and all names.
pub fn tree(fs: &Ffs) -> vfs::Result<(Vec<Node>, Vec<Name>)> {
    let (mut dirs, mut names, mut seen) = (vec![fs.root()], Vec::new(), 0);
    while let Some(dir) = dirs.get(seen).cloned() {
        seen += 1;
        let mut there = Vec::new();
        fs.readdir(&dir, 0, &mut |entry| {
            there.push(entry.name.to_vec());
            true
        })?;
        for name in there {
            if name == b".snapshots" {
                continue; // not for everybody
            }
            let node = fs.lookup(&dir, &name)?;
            // Behind a crash a directory may have two names, one even below itself.
            let is_new = dirs.iter().all(|dir| fs.ino(dir) != fs.ino(&node));
            if fs.kind(&node) == Kind::Dir && is_new {
                dirs.push(node);
            }
            names.push((dir.clone(), name));
        }
    }
    Ok((dirs, names))
}

/// How names are moved to others.
pub const MOVES: &[RenameMode] = &[RenameMode::Replace, RenameMode::Exchange];

/// A random change, with moves of these modes. What cannot be done is left undone.
pub fn change(fs: &Ffs, random: &mut Random, step: usize, modes: &[RenameMode]) {
    let (dirs, names) = tree(fs).expect("it is sound");
    let dir = &dirs[random.below(dirs.len() as u64) as usize];
    let new = format!("n{step}-{}", "x".repeat(random.below(60) as usize));
    let new = new.as_bytes();
    let no_veto = &|_: &_| Ok(());
    if names.is_empty() {
        fs.create(dir, new, &FILE).expect("made");
        return;
    }
    let any = |random: &mut Random| &names[random.below(names.len() as u64) as usize];
    let (from, old) = any(random);
    let node = fs.lookup(from, old).expect("it was listed");
    let size = match random.below(3) {
        0 => random.below(3_000),
        1 => random.below(30_000),
        _ => random.below(400_000),
    };
    let _ = match random.below(14) {
        0..=2 => fs.create(dir, new, &FILE).map(|file| {
            let _ = fs.write(&file, size / 8, &vec![step as u8; 2_000]);
        }),
        3 => fs.create(dir, new, &DIR).map(drop),
        4 => {
            let target = vec![b'l'; 1 + random.below(200) as usize];
            let kind = NewKind::Symlink(&target);
            fs.create(dir, new, &NewNode { kind, ..FILE }).map(drop)
        }
        5 => fs.link(&node, dir, new),
        6 | 7 if fs.kind(&node) == Kind::Dir => fs.rmdir(from, old, no_veto),
        6 | 7 => fs.unlink(from, old, no_veto),
        8 => {
            let (from, to) = (Place::new(from, old), Place::new(dir, new));
            fs.rename(from, to, RenameMode::Replace, no_veto)
        }
        9 => {
            let (dir, name) = any(random);
            let (from, to) = (Place::new(from, old), Place::new(dir, name));
            let mode = modes[random.below(modes.len() as u64) as usize];
            fs.rename(from, to, mode, no_veto)
        }
        10 | 11 => {
            let len = 1 + random.below(6_000) as usize;
            fs.write(&node, size, &vec![step as u8; len]).map(drop)
        }
        12 => {
            let set = SetAttr {
                size: Some(size / 2),
                ..SetAttr::default()
            };
            fs.setattr(&node, &set).map(drop)
        }
        _ => {
            let value = vec![5; random.below(400) as usize];
            let set = SetAttr::default();
            fs.setxattr(&node, b"user.new", &value, XattrMode::Any, &set)
        }
    };
}
