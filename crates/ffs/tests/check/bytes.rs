//! Images in which a few bytes are wrong, each judged by `e2fsck -fp` on a copy: what that mends is
//! mended here, with the same exit code, and e2fsck finds nothing behind it; what it does not mend
//! is left alone.

use super::{Image, Problem, checked, common, problems};
use crate::needs_e2fsprogs;

/// The bytes of an image.
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    /// A word of 32 bits.
    pub fn word(&self, at: usize) -> usize {
        u32::from_le_bytes(self.0[at..at + 4].try_into().expect("four bytes")) as usize
    }

    /// Puts bytes there.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// A field of the superblock.
    pub fn superblock(&mut self, at: usize, bytes: &[u8]) {
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
    pub fn inode(&self, ino: usize) -> usize {
        let size = u16::from_le_bytes([self.0[1024 + 88], self.0[1024 + 89]]);
        let size = match self.word(1024 + 76) {
            0 => 128,
            _ => size.into(),
        };
        self.word(self.descriptor() + 8) * self.block_size() + (ino - 1) * size
    }

    /// A pointer of an inode.
    pub fn pointer(&self, ino: usize, index: usize) -> usize {
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
pub type Case = (&'static str, fn(&mut Bytes), Problem);

/// Our exit code, and that of `e2fsck -fp`, for an image of which bytes are wrong.
pub fn judge(image: &Image, (what, change, problem): &Case) -> (u8, i32) {
    let sound = common::read(&image.path);
    let mut bytes = Bytes(sound.clone());
    change(&mut bytes);
    let codes = judge_bytes(image, what, &bytes, *problem);
    std::fs::write(&image.path, &sound).expect("written");
    codes
}

/// The same, for an image of these bytes.
pub fn judge_bytes(image: &Image, what: &str, bytes: &Bytes, problem: Problem) -> (u8, i32) {
    std::fs::write(&image.path, &bytes.0).expect("written");
    let looked = checked(&image.disk(), false);
    assert_eq!(looked.exit_code(), 4, "{what}: {looked}");
    assert!(problems(&looked).contains(&problem), "{what}: {looked}");
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
    (
        code,
        theirs.0.unwrap_or_else(|| panic!("{what}: {theirs:?}")),
    )
}

/// Demands that each is mended by both, or by none.
pub fn judge_alike(image: &Image, cases: &[Case]) {
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

impl Bytes {
    /// Bytes of an inode.
    fn in_inode(&mut self, ino: usize, at: usize, bytes: &[u8]) {
        let inode = self.inode(ino);
        self.put(inode + at, bytes);
    }
}

/// The first inodes of [`with_kinds`].
const FILE: usize = 12;
const DIR: usize = 13;
const LINK: usize = 14;
const SLOW: usize = 15;
const DEVICE: usize = 16;
const PIPE: usize = 17;
/// One that is free.
const FREE: usize = 30;

/// An image with one inode of each kind.
fn with_kinds(args: &[&str]) -> Image {
    let image = Image::mke2fs(4 << 20, &[&["-b", "1024"], args].concat());
    let file = image.folder.path().join("file");
    std::fs::write(&file, [7; 3000]).expect("written");
    let slow = format!("symlink slow {}", "t".repeat(100));
    let write = format!("write {} file", file.display());
    let commands = [
        &write,
        "mkdir dir",
        "symlink link target",
        &slow,
        "mknod device c 1 3",
        "mknod pipe p",
    ];
    for command in commands {
        super::debug(&image.path, command);
    }
    image.assert_clean();
    image
}

#[test]
fn fields_that_should_be_zero_are_as_e2fsck_has_it() {
    needs_e2fsprogs!();
    let image = with_kinds(&["-I", "256"]);
    judge_alike(
        &image,
        &[
            (
                "a pipe's size",
                |b| b.in_inode(PIPE, 4, &[9]),
                Problem::Field,
            ),
            (
                "a device's size",
                |b| b.in_inode(DEVICE, 108, &[1]),
                Problem::Field,
            ),
            (
                "a device's index",
                |b| b.in_inode(DEVICE, 33, &[0x10]),
                Problem::Field,
            ),
            (
                "a file's index",
                |b| b.in_inode(FILE, 33, &[0x10]),
                Problem::Field,
            ),
            (
                "a device's pointers",
                |b| {
                    b.in_inode(DEVICE, 32, &[0x10]);
                    b.in_inode(DEVICE, 60, &[5]);
                },
                Problem::Damage,
            ),
            (
                "a wide block of attributes",
                |b| b.in_inode(FILE, 118, &[2]),
                Problem::Field,
            ),
            (
                "the further bytes",
                |b| b.in_inode(DIR, 128, &[3]),
                Problem::Field,
            ),
            (
                "a fragment",
                |b| b.in_inode(FILE, 112, &[2]),
                Problem::Damage,
            ),
            (
                "wide blocks",
                |b| b.in_inode(FILE, 116, &[2]),
                Problem::Damage,
            ),
            ("a flag", |b| b.in_inode(FILE, 33, &[0x20]), Problem::Damage),
            (
                "another flag",
                |b| b.in_inode(DIR, 35, &[0x40]),
                Problem::Damage,
            ),
            (
                "what follows a name",
                |b| {
                    let at = b.pointer(DIR, 0) * 1024;
                    b.put(at + 9, &[7]);
                    b.put(at + 12 + 10, &[7]);
                },
                Problem::Damage,
            ),
            (
                "a size that pointers do not reach",
                |b| b.in_inode(FILE, 109, &[1]),
                Problem::Size,
            ),
            ("a target", |b| b.in_inode(LINK, 4, &[3]), Problem::Damage),
            (
                "a target's end",
                |b| b.in_inode(LINK, 46, &[7]),
                Problem::Damage,
            ),
            (
                "a target in a block",
                |b| {
                    let at = b.pointer(SLOW, 0) * 1024 + 50;
                    b.put(at, &[0]);
                },
                Problem::Damage,
            ),
            (
                "a directory's size",
                |b| b.in_inode(DIR, 4, &[7]),
                Problem::Size,
            ),
            (
                "a directory's large size",
                |b| b.in_inode(DIR, 108, &[7]),
                Problem::Size,
            ),
        ],
    );
    // e2fsck does not count what it mends there.
    let group: Case = (
        "flags of a group",
        |b| {
            let at = b.descriptor() + 18;
            b.put(at, &[1]);
        },
        Problem::Field,
    );
    assert_eq!(judge(&image, &group), (1, 0));
}

#[test]
fn what_was_in_a_list_of_orphans_that_is_broken_is_damage() {
    needs_e2fsprogs!();
    let image = with_kinds(&[]);
    judge_alike(
        &image,
        &[
            ("in use", |b| b.in_inode(FILE, 20, &[13]), Problem::Damage),
            ("free", |b| b.in_inode(FREE, 20, &[13]), Problem::Damage),
            ("reserved", |b| b.in_inode(9, 20, &[13]), Problem::Damage),
            (
                "of no names",
                |b| {
                    b.in_inode(FREE, 0, &[0, 0x81]);
                    b.in_inode(FREE, 20, &[13]);
                },
                Problem::Damage,
            ),
            (
                "where there are small dates, it is a date",
                |b| {
                    b.superblock(48, &[3, 0, 0, 0]);
                    b.in_inode(FILE, 20, &[13]);
                },
                Problem::RemovalTime,
            ),
        ],
    );
}

#[test]
fn reserved_inodes_have_what_they_are_for() {
    needs_e2fsprogs!();
    let image = with_kinds(&[]);
    judge_alike(
        &image,
        &[
            (
                "a quota's names",
                |b| b.in_inode(3, 26, &[1]),
                Problem::Field,
            ),
            (
                "a quota's block",
                |b| b.in_inode(4, 40, &[5]),
                Problem::Field,
            ),
            (
                "a kind",
                |b| b.in_inode(9, 0, &[0x80, 0x81]),
                Problem::Field,
            ),
            (
                "a directory",
                |b| b.in_inode(5, 0, &[0xED, 0x41]),
                Problem::Field,
            ),
            (
                "the number of blocks kept for descriptors",
                |b| b.in_inode(7, 28, &[4]),
                Problem::BlockCount,
            ),
            (
                "another block",
                |b| b.in_inode(7, 40, &[0x80, 0x0B]),
                Problem::Damage,
            ),
            (
                "what leads to kept blocks",
                |b| {
                    let at = b.pointer(7, 13) * 1024 + 4;
                    b.put(at, &[0; 4]);
                },
                Problem::Damage,
            ),
            (
                "no such feature",
                |b| b.superblock(92, &[0x28]),
                Problem::Damage,
            ),
        ],
    );
}

#[test]
fn a_feature_that_is_used_is_listed() {
    needs_e2fsprogs!();
    let large: Case = (
        "large",
        |b| b.in_inode(FILE, 4, &[0, 0, 0, 0xC0]),
        Problem::Features,
    );
    for args in [&["-O", "^large_file"][..], &["-r", "0", "-I", "128"]] {
        let image = with_kinds(args);
        judge_alike(&image, &[large]);
    }
    let image = with_kinds(&["-I", "128"]);
    super::debug(
        &image.path,
        &format!("ea_set file user.name {}", "v".repeat(200)),
    );
    image.assert_clean();
    let cases: [Case; 1] = [("attributes", |b| b.superblock(92, &[0x30]), Problem::Damage)];
    judge_alike(&image, &cases);
}

#[test]
fn a_superblock_that_others_refuse_is_damage() {
    needs_e2fsprogs!();
    let image = with_kinds(&[]);
    let cases: [Case; 3] = [
        (
            "reserved blocks",
            |b| b.superblock(8, &[0xFF; 4]),
            Problem::Damage,
        ),
        ("clusters", |b| b.superblock(28, &[1]), Problem::Damage),
        (
            "blocks of a group",
            |b| b.superblock(36, &[1]),
            Problem::Damage,
        ),
    ];
    for case in &cases {
        assert_eq!(judge(&image, case), (4, 8));
    }
}
