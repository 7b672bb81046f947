//! Indexes of names in directories, as e2fsck makes them: sound ones, and ones that are wrong.

use super::bytes::{Bytes, Case, judge, judge_alike, judge_bytes};
use super::{Image, Problem, checked, common};
use crate::needs_e2fsprogs;

/// An image of which the directory of inode 12 has an index, in blocks of 1024 bytes.
fn with_index(names: usize, args: &[&str]) -> Image {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let source = tempfile::tempdir().expect("a folder");
    let dir = source.path().join("dir");
    std::fs::create_dir(&dir).expect("made");
    for number in 0..names {
        // Of all lengths, and with characters that may have a sign.
        let mut name = format!("{number}").into_bytes();
        name.extend((0..number % 90).map(|at| [b'n', 0xE9][(number >> 3) & at & 1]));
        std::fs::write(dir.join(OsStr::from_bytes(&name)), b"").expect("written");
    }
    let from = source.path().to_str().expect("a path");
    let size = ["-b", "1024", "-N", "8192", "-d", from];
    let image = Image::mke2fs(16 << 20, &[&size, args].concat());
    let made = common::e2fsck(&image.path, "-fyD");
    assert!(matches!(made.0, Some(0 | 1)), "{made:?}");
    image.assert_clean();
    let bytes = Bytes(common::read(&image.path));
    assert!(bytes.0[bytes.inode(INDEXED) + 33] & 0x10 != 0, "it has one");
    image
}

const INDEXED: usize = 12;

impl Bytes {
    /// Where the root of the index is.
    fn root(&self) -> usize {
        self.pointer(INDEXED, 0) * 1024
    }

    fn in_root(&mut self, at: usize, bytes: &[u8]) {
        let root = self.root();
        self.put(root + at, bytes);
    }
}

#[test]
fn a_sound_index_is_left_alone_whatever_its_hashes_are() {
    needs_e2fsprogs!();
    // With nodes below the root, and without.
    for names in [400, 6000] {
        let image = with_index(names, &[]);
        for hash in ["half_md4", "tea", "legacy"] {
            for flags in ["1", "2"] {
                super::debug(&image.path, &format!("ssv def_hash_version {hash}"));
                super::debug(&image.path, &format!("ssv flags {flags}"));
                let made = common::e2fsck(&image.path, "-fyD");
                assert!(matches!(made.0, Some(0 | 1)), "{made:?}");
                let bytes = Bytes(common::read(&image.path));
                let levels = bytes.0[bytes.root() + 30];
                assert_eq!(levels, u8::from(names > 400), "{names} names");
                let report = checked(&image.disk(), true);
                let what = format!("{hash}, {names} names, {flags}: {report}");
                assert_eq!(report.exit_code(), 0, "{what}");
                image.assert_clean();
            }
        }
    }
}

#[test]
fn an_index_that_is_wrong_is_given_up() {
    needs_e2fsprogs!();
    let image = with_index(400, &[]);
    judge_alike(
        &image,
        &[
            ("kind of hashes", |b| b.in_root(28, &[9]), Problem::Index),
            ("length of that", |b| b.in_root(29, &[4]), Problem::Index),
            ("flags", |b| b.in_root(31, &[1]), Problem::Index),
            ("levels", |b| b.in_root(30, &[9]), Problem::Index),
            ("not empty", |b| b.in_root(24, &[9]), Problem::Index),
            (
                "no such feature",
                |b| b.superblock(92, &[0x18]),
                Problem::Index,
            ),
        ],
    );
    // Of these `e2fsck -p` repairs some, and not others.
    let cases: [Case; 6] = [
        ("room", |b| b.in_root(32, &[9]), Problem::Index),
        ("number of entries", |b| b.in_root(34, &[3]), Problem::Index),
        (
            "a block twice",
            |b| b.in_root(32 + 12, &[1]),
            Problem::Index,
        ),
        ("no block", |b| b.in_root(32 + 13, &[2]), Problem::Index),
        ("a hash", |b| b.in_root(32 + 8, &[0xFF; 4]), Problem::Index),
        ("a level too many", |b| b.in_root(30, &[1]), Problem::Index),
    ];
    for case in &cases {
        assert_eq!(judge(&image, case).0, 1, "{}", case.0);
    }
    let image = with_index(6000, &[]);
    let bytes = Bytes(common::read(&image.path));
    let node = bytes.word(bytes.root() + 32 + 4);
    let path = image.path.to_str().expect("a path");
    let block = common::run("debugfs", ["-R", &format!("bmap <{INDEXED}> {node}"), path]);
    let at = block.trim().parse::<usize>().expect("a number") * 1024;
    // What is no node, and one whose second hash is in no order.
    for (offset, value) in [(6, [1]), (8 + 8 + 3, [0xFF])] {
        let mut damaged = Bytes(bytes.0.clone());
        damaged.put(at + offset, &value);
        let what = format!("a node at byte {offset}");
        assert_eq!(
            judge_bytes(&image, &what, &damaged, Problem::Index).0,
            1,
            "{what}"
        );
    }
}
