//! Damaged and hostile images: an error that names the block and what is wrong, and no panic.

mod common;

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use block::{Disk, Memory, Random};
use common::{Image, format_options, memory, mount, seeds};
use ffs::{Ffs, FormatOptions, MountError, Node, format};
use vfs::{Error, FileSystem, Kind, Result, SeekFor};

/// A new file system of 1 MiB in blocks of 1024 bytes, and where its parts are.
struct Target {
    bytes: Vec<u8>,
}

/// Block of the group descriptors.
const DESCRIPTORS: usize = 2;
const BLOCK: usize = 1024;
/// Offsets in an inode.
const MODE: usize = 0;
const SIZE: usize = 4;
const LINKS: usize = 26;
const FLAGS: usize = 32;
const POINTERS: usize = 40;
const XATTR_BLOCK: usize = 104;
const EXTRA_LEN: usize = 128;
const XATTRS: usize = 160;
/// Offsets of the third entry of the root directory, lost+found's.
const ENTRY: usize = 24;

impl Target {
    fn new() -> Target {
        let device = Arc::new(Memory::new(1 << 20));
        let options = FormatOptions {
            block_size: BLOCK as u32,
            ..format_options()
        };
        format(&Disk::new(device.clone()), &options).expect("formatted");
        Target {
            bytes: device.contents(),
        }
    }

    fn word(&self, at: usize) -> usize {
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("four bytes")) as usize
    }

    /// The block of the inode table that has inodes 1 to 4.
    fn table(&self) -> usize {
        self.word(DESCRIPTORS * BLOCK + 8)
    }

    /// Byte offset of the root's inode, the second.
    fn root(&self) -> usize {
        self.table() * BLOCK + 256
    }

    /// The block of the root directory.
    fn names(&self) -> usize {
        self.word(self.root() + POINTERS)
    }

    /// What goes wrong when these bytes are put there.
    fn with(mut self, at: usize, bytes: &[u8]) -> String {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        match mount(memory(self.bytes), true) {
            Err(error) => error.to_string(),
            Ok(fs) => look_at(&fs, &fs.root(), &mut HashSet::new())
                .expect_err("it is damaged")
                .to_string(),
        }
    }
}

/// Reads what there is of a node and below it, once.
fn look_at(fs: &Ffs, node: &Node, seen: &mut HashSet<u64>) -> Result<()> {
    let attr = fs.attr(node);
    if !seen.insert(attr.ino) {
        return Ok(());
    }
    for name in fs.listxattr(node)? {
        fs.getxattr(node, &name)?;
    }
    match attr.kind {
        Kind::File => {
            let mut bytes = vec![0; 40_000];
            fs.read(node, 0, &mut bytes)?;
            for at in [attr.size / 2, attr.size.saturating_sub(30_000)] {
                fs.read(node, at, &mut bytes)?;
            }
            if attr.size > 0 {
                fs.seek(node, 0, SeekFor::Hole)?;
            }
        }
        Kind::Symlink => drop(fs.readlink(node)?),
        Kind::Dir => {
            let mut names = Vec::new();
            fs.readdir(node, 0, &mut |entry| {
                names.push(entry.name.to_vec());
                true
            })?;
            fs.parent(node)?;
            for name in names {
                look_at(fs, &fs.lookup(node, &name)?, seen)?;
            }
        }
        _ => {}
    }
    Ok(())
}

#[test]
fn damage_is_an_error_that_names_the_block_and_what_is_wrong() {
    type Place = fn(&Target) -> usize;
    let root = |target: &Target| target.root();
    let cases: &[(Place, usize, &[u8], &str)] = &[
        (
            |_| DESCRIPTORS * BLOCK,
            8,
            &[0xFF; 4],
            "inode table of group 0 at block 4294967295",
        ),
        (root, MODE, &[0, 0], "inode 2: mode 0o0 is of no kind"),
        (root, LINKS, &[0, 0], "inode 2, the root, is no directory"),
        (root, SIZE, &[100, 0, 0, 0], "inode 2: Dir of 100 bytes"),
        (
            root,
            FLAGS,
            &[0, 0, 0, 0x10],
            "inode 2: flags 0x10000000 are not supported",
        ),
        (
            root,
            FLAGS,
            &[0, 0, 8, 0],
            "inode 2: flags 0x80000 are not supported",
        ),
        (
            root,
            POINTERS,
            &[0; 4],
            "directory 2 has a hole at its block 0",
        ),
        (
            root,
            POINTERS,
            &[0, 0, 1, 0],
            "it leads to block 65536, outside the disk",
        ),
        (
            root,
            XATTR_BLOCK,
            &[0, 0, 1, 0],
            "extended attributes in block 65536, outside the disk",
        ),
        (
            root,
            XATTR_BLOCK,
            &[2, 0, 0, 0],
            "extended attributes: magic",
        ),
        (root, EXTRA_LEN, &[3, 0], "inode 2: 3 further bytes"),
        (
            root,
            XATTRS,
            &[0, 0, 2, 0xEA, 9, 1],
            "inode 2: extended attributes: a value of",
        ),
        (
            root,
            XATTRS,
            &[0, 0, 2, 0xEA, 0xFF, 1],
            "extended attributes: a name is cut off",
        ),
        (
            root,
            XATTRS,
            &[0, 0, 2, 0xEA, 9, 77],
            "extended attributes: a name of kind 77",
        ),
    ];
    for (place, offset, bytes, what) in cases {
        let target = Target::new();
        let (place, table) = (place(&target), target.table());
        let mut bytes = bytes.to_vec();
        if what.contains("a value of") {
            // A name, and a value that lies behind the inode.
            bytes.extend([0xFF, 0, 0, 0, 0, 0, 0xFF, 0, 0, 0, 0, 0, 0, 0]);
            bytes.extend(b"123456789");
        }
        let error = target.with(place + offset, &bytes);
        assert!(error.contains(what), "{error}; expected: {what}");
        let named = [DESCRIPTORS, table].map(|block| format!("block {block}:"));
        let in_block = *bytes == [2, 0, 0, 0];
        assert!(
            in_block || named.iter().any(|named| error.contains(named)),
            "{error}"
        );
    }
}

#[test]
fn a_damaged_directory_entry_is_an_error_that_names_its_block() {
    for (offset, bytes, what) in [
        (
            0,
            &15_u32.to_le_bytes()[..],
            "a name leads to inode 15, which is free",
        ),
        (0, &[0xFF; 4], "it names inode 4294967295 of"),
        (
            0,
            &8_u32.to_le_bytes(),
            "it names inode 8, which is reserved",
        ),
        (4, &[0, 0], "length 0, where 1000 are left"),
        (4, &[7, 0], "length 7, where"),
        (4, &[0xF0, 0xFF], "length 65520, where"),
        (6, &[0], "a name of 0 bytes"),
        (7, &[8], "kind 8"),
        (9, b"/", "name 'l/st+found'"),
        (9, b"\0", r"name 'l\x00st+found'"),
    ] {
        let target = Target::new();
        let (names, table) = (target.names(), target.table());
        let error = target.with(names * BLOCK + ENTRY + offset, bytes);
        assert!(error.contains(what), "{error}; expected: {what}");
        let named = [names, table].map(|block| format!("block {block}:"));
        assert!(named.iter().any(|named| error.contains(named)), "{error}");
    }
}

#[test]
fn what_is_no_file_system_is_refused() {
    for len in [512, 1024, 1536, 2048, 1 << 20] {
        let error = mount(memory(vec![0; len]), true).err();
        match error.expect("it is refused") {
            MountError::TooSmall(_) => assert!(len < 2048),
            MountError::NotOurs(0) => assert!(len >= 2048),
            error => panic!("{error}"),
        }
    }
}

/// Images with little else than metadata.
fn images() -> Vec<Vec<u8>> {
    let source = tempfile::tempdir().expect("a folder");
    let root = source.path();
    for i in 0..60 {
        fs::create_dir_all(root.join(format!("dir{}", i % 7))).expect("made");
        fs::write(root.join(format!("dir{}/file{i}", i % 7)), "contents").expect("written");
    }
    let sparse = fs::File::create(root.join("sparse")).expect("made");
    for at in [5_u64, 13 << 10, 1 << 20, 60 << 20] {
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"x", at).expect("written");
    }
    symlink("t".repeat(20), root.join("short")).expect("linked");
    symlink("t".repeat(200), root.join("long")).expect("linked");
    let large = vec![b'v'; 300];
    for (name, value) in [("user.a", &b"value"[..]), ("user.b", &large)] {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(root.join("sparse"), name, value, flags).expect("attributes");
    }
    let from = root.to_str().expect("a path");
    let kinds: [&[&str]; 3] = [
        &["-t", "ext2", "-b", "1024"],
        &["-t", "ext2", "-b", "4096", "-I", "128", "-N", "256"],
        &["-t", "ext4", "-b", "1024", "-O", "^has_journal"],
    ];
    let make = |kind: &[&str]| {
        let image = Image::mke2fs(2 << 20, &[kind, &["-d", from]].concat());
        common::read(&image.path)
    };
    kinds.map(make).to_vec()
}

#[test]
fn random_damage_is_survived_and_told() {
    needs_e2fsprogs!();
    let images = images();
    let places = images.iter().map(|image| {
        let places = (0..image.len()).filter(|&at| image[at] != 0);
        places.collect::<Vec<_>>()
    });
    let places: Vec<_> = places.collect();
    let (mut sound, mut refused, mut damaged) = (0, 0, 0);
    for seed in seeds(400) {
        let mut random = Random::new(seed);
        let which = random.below(images.len() as u64) as usize;
        let mut bytes = images[which].clone();
        for _ in 0..=random.below(30) {
            let place = places[which][random.below(places[which].len() as u64) as usize];
            let at = (place + random.below(8) as usize).min(bytes.len() - 1);
            bytes[at] = match random.below(3) {
                0 => random.number() as u8,
                1 => 0xFF,
                _ => bytes[at] ^ (1 << random.below(8)),
            };
        }
        let result = std::panic::catch_unwind(|| {
            let fs = match mount(memory(bytes), true) {
                Ok(fs) => fs,
                Err(error) => return Err(error.to_string()),
            };
            Ok(look_at(&fs, &fs.root(), &mut HashSet::new()))
        });
        match result {
            Err(_) => panic!("a panic: TUREEN_REPLAY={seed}"),
            Ok(Err(_)) => refused += 1,
            Ok(Ok(Ok(()))) => sound += 1,
            Ok(Ok(Err(Error::Corrupt(what)))) if what.what.starts_with("block ") => damaged += 1,
            Ok(Ok(Err(error))) => panic!("{error}: TUREEN_REPLAY={seed}"),
        }
    }
    let all = sound > 0 && damaged > 0;
    assert!(
        all || seeds(400).count() < 100,
        "{sound} sound, {refused} refused, {damaged} damaged"
    );
}
