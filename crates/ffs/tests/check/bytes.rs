//! Images in which a few bytes are wrong, each judged by `e2fsck -fp` on a copy: what that mends is
//! mended here, with the same exit code, and e2fsck finds nothing behind it; what it does not mend
//! is left alone.

use super::{Image, Problem, checked, common, problems};
use crate::needs_e2fsprogs;

/// The bytes of an image.
struct Bytes(Vec<u8>);

impl Bytes {
    fn word(&self, at: usize) -> usize {
        u32::from_le_bytes(self.0[at..at + 4].try_into().expect("four bytes")) as usize
    }

    /// Puts bytes there.
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// A field of the superblock.
    fn superblock(&mut self, at: usize, bytes: &[u8]) {
        self.put(1024 + at, bytes);
    }

    fn block_size(&self) -> usize {
        1024 << self.word(1024 + 24)
    }

    /// Where the descriptor of group 0 is.
    fn descriptor(&self) -> usize {
        (self.word(1024 + 20) + 1) * self.block_size()
    }

    /// Where an inode of group 0 is.
    fn inode(&self, ino: usize) -> usize {
        let size = u16::from_le_bytes([self.0[1024 + 88], self.0[1024 + 89]]);
        let size = match self.word(1024 + 76) {
            0 => 128,
            _ => size.into(),
        };
        self.word(self.descriptor() + 8) * self.block_size() + (ino - 1) * size
    }

    /// A pointer of an inode.
    fn pointer(&self, ino: usize, index: usize) -> usize {
        self.word(self.inode(ino) + 40 + 4 * index)
    }

    /// Where the superblock of the journal is.
    fn journal(&self) -> usize {
        self.pointer(8, 0) * self.block_size()
    }

    /// A word of the superblock of the journal.
    fn in_journal(&mut self, at: usize, word: u32) {
        let journal = self.journal();
        self.put(journal + at, &word.to_be_bytes());
    }
}

/// What is changed, and what is wrong then.
type Case = (&'static str, fn(&mut Bytes), Problem);

/// Our exit code, and that of `e2fsck -fp`, for an image of which bytes are wrong.
fn judge(image: &Image, (what, change, problem): &Case) -> (u8, i32) {
    let sound = common::read(&image.path);
    let mut bytes = Bytes(sound.clone());
    change(&mut bytes);
    std::fs::write(&image.path, &bytes.0).expect("written");
    let looked = checked(&image.disk(), false);
    assert_eq!(looked.exit_code(), 4, "{what}: {looked}");
    assert!(problems(&looked).contains(problem), "{what}: {looked}");
    let code = checked(&image.disk(), true).exit_code();
    if code == 1 {
        image.assert_clean();
        let again = checked(&image.disk(), false);
        assert_eq!(again.exit_code(), 0, "{what}: {again}");
    } else {
        assert!(common::read(&image.path) == bytes.0, "{what}: it is left");
    }
    std::fs::write(&image.path, &bytes.0).expect("written");
    let theirs = common::e2fsck(&image.path, "-fp");
    std::fs::write(&image.path, &sound).expect("written");
    (
        code,
        theirs.0.unwrap_or_else(|| panic!("{what}: {theirs:?}")),
    )
}

/// Demands that each is mended by both, or by none.
fn judge_alike(image: &Image, cases: &[Case]) {
    for case in cases {
        let (ours, theirs) = judge(image, case);
        assert_eq!(i32::from(ours), theirs, "{}", case.0);
    }
}

const EXT3: &[&str] = &["-t", "ext3", "-b", "1024", "-J", "size=1"];

/// Offsets in the superblock.
const JOURNAL_FEATURE: usize = 92;
const BACKUP_TYPE: usize = 253;

fn no_journal_inode(bytes: &mut Bytes) {
    let at = bytes.inode(8);
    bytes.put(at, &[0; 128]);
}

fn no_backup(bytes: &mut Bytes) {
    bytes.superblock(BACKUP_TYPE, &[0]);
}

#[test]
fn a_journal_that_makes_no_sense_is_begun_anew_as_it_is_empty() {
    needs_e2fsprogs!();
    let image = Image::mke2fs(8 << 20, EXT3);
    judge_alike(
        &image,
        &[
            ("magic", |b| b.in_journal(0, !0), Problem::Journal),
            ("kind", |b| b.in_journal(4, 9), Problem::Damage),
            (
                "size of a block",
                |b| b.in_journal(12, 2048),
                Problem::Journal,
            ),
            (
                "too many blocks",
                |b| b.in_journal(16, 2000),
                Problem::Journal,
            ),
            (
                "an unknown feature",
                |b| b.in_journal(40, 0x40),
                Problem::Damage,
            ),
            (
                "what only readers ignore",
                |b| b.in_journal(44, 1),
                Problem::Damage,
            ),
            ("a checksum", |b| b.in_journal(40, 8), Problem::Journal),
            (
                "a log that is not empty",
                |b| b.in_journal(28, 5),
                Problem::Damage,
            ),
        ],
    );
    let users: Case = ("users", |b| b.in_journal(64, 2), Problem::Journal);
    // e2fsck does not count what it mends there.
    assert_eq!(judge(&image, &users), (1, 0));
}

#[test]
fn the_inode_of_the_journal_is_that_of_the_copy_or_damage() {
    needs_e2fsprogs!();
    let image = Image::mke2fs(8 << 20, EXT3);
    judge_alike(
        &image,
        &[
            ("free", no_journal_inode, Problem::Journal),
            (
                "a hole",
                |b| {
                    let at = b.inode(8) + 40 + 4 * 5;
                    b.put(at, &[0; 4]);
                },
                Problem::Journal,
            ),
            (
                "outside",
                |b| {
                    let at = b.inode(8) + 40;
                    b.put(at, &12_345_678_u32.to_le_bytes());
                },
                Problem::Journal,
            ),
            (
                "there is none",
                |b| b.superblock(JOURNAL_FEATURE, &[0x38]),
                Problem::Journal,
            ),
        ],
    );
    let missing: Case = (
        "neither inode nor copy",
        |bytes| {
            no_journal_inode(bytes);
            no_backup(bytes);
        },
        Problem::Damage,
    );
    // e2fsck makes a new one.
    assert_eq!(judge(&image, &missing), (4, 1));
}

#[test]
fn bad_blocks_are_in_use_and_nobody_elses() {
    needs_e2fsprogs!();
    let image = Image::new(1 << 20);
    let list = image.folder.path().join("bad");
    std::fs::write(&list, "500\n501\n700\n").expect("written");
    let (list, path) = (
        list.to_str().expect("a path"),
        image.path.to_str().expect("a path"),
    );
    common::run("mke2fs", ["-q", "-F", "-b", "1024", "-l", list, path]);
    image.assert_clean();
    let report = checked(&image.disk(), true);
    assert_eq!(report.exit_code(), 0, "{report}");
    judge_alike(
        &image,
        &[
            (
                "outside the disk",
                |b| {
                    let at = b.inode(1) + 40;
                    b.put(at, &12_345_678_u32.to_le_bytes());
                },
                Problem::Damage,
            ),
            (
                "that of the root",
                |b| {
                    let (at, root) = (b.inode(1) + 40, b.pointer(2, 0) as u32);
                    b.put(at, &root.to_le_bytes());
                },
                Problem::Damage,
            ),
            (
                "the superblock",
                |b| {
                    let at = b.inode(1) + 40;
                    b.put(at, &1_u32.to_le_bytes());
                },
                Problem::Damage,
            ),
            (
                "it has an owner",
                |b| {
                    let at = b.inode(1) + 2;
                    b.put(at, &[1]);
                },
                Problem::Damage,
            ),
        ],
    );
}

#[test]
fn bits_behind_the_end_of_a_bitmap_are_set() {
    needs_e2fsprogs!();
    // The last group is short, and no group has as many inodes as its bitmap has bits.
    let image = Image::mke2fs(12 << 20, &["-b", "1024"]);
    judge_alike(
        &image,
        &[
            (
                "inodes",
                |b| {
                    let at = b.word(b.descriptor() + 4) * 1024 + 1023;
                    b.put(at, &[0x7F]);
                },
                Problem::Padding,
            ),
            (
                "blocks",
                |b| {
                    let at = b.word(b.descriptor() + 32) * 1024 + 1020;
                    b.put(at, &[0xFE]);
                },
                Problem::Padding,
            ),
        ],
    );
}
