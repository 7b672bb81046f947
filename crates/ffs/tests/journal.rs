//! Journals that others left are replayed as e2fsck does it, block by block; again after a crash;
//! and hostile ones are errors that name the block.

mod common;

use std::fmt::Write;
use std::fs;
use std::sync::Arc;

use block::record::Trace;
use block::{Disk, Memory, Random, Recorder};
use common::{Image, memory, mount, read, run, seeds};
use ffs::{MountError, recover, superblock};
use vfs::FileSystem;

/// A file system with a journal, and the version of the checksums that debugfs gives it.
struct Kind {
    args: &'static [&'static str],
    checksums: &'static str,
}

const EXT3: Kind = Kind {
    args: &["-t", "ext3", "-b", "1024", "-J", "size=1"],
    checksums: "",
};
const EXT3_4K: Kind = Kind {
    args: &["-t", "ext3", "-b", "4096", "-J", "size=4"],
    checksums: "",
};
const EXT4: &[&str] = &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "64bit"];
const EXT4_32: &[&str] = &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "^64bit"];
const V3: Kind = Kind {
    args: EXT4,
    checksums: "-c -v 3",
};
const KINDS: &[Kind] = &[
    EXT3,
    EXT3_4K,
    V3,
    Kind {
        args: EXT4,
        checksums: "-c -v 2",
    },
    Kind {
        args: EXT4_32,
        checksums: "-c -v 3",
    },
    Kind {
        args: EXT4_32,
        checksums: "-c -v 2",
    },
    Kind {
        args: EXT4,
        checksums: "",
    },
];

/// Lets debugfs do what a script says.
fn debugfs(image: &Image, script: &str) {
    let path = image.folder.path().join("script");
    fs::write(&path, script).expect("written");
    let (script, image) = (path.as_os_str(), image.path.as_os_str());
    run("debugfs", ["-w".as_ref(), "-f".as_ref(), script, image]);
}

impl Kind {
    fn block_size(&self) -> usize {
        self.args[3].parse().expect("a number")
    }

    /// An image with transactions in its journal: of random blocks, some of them escaped, and
    /// revokes. The last may have no end.
    fn dirty(&self, random: &mut Random) -> Image {
        let blocks = 16 << 20 >> self.block_size().trailing_zeros();
        let image = Image::mke2fs(16 << 20, self.args);
        // Blocks that nobody uses, and few, so that they meet again.
        let block = |random: &mut Random| blocks - 1 - random.below(24) as usize;
        let mut script = String::new();
        let count = 1 + random.below(8);
        for i in 0..count {
            let mut chosen: Vec<usize> = (0..1 + random.below(9)).map(|_| block(random)).collect();
            chosen.sort_unstable();
            chosen.dedup();
            let (mut list, mut contents) = (String::new(), Vec::new());
            for block in chosen {
                write!(list, "{}{block}", if list.is_empty() { "" } else { "," })
                    .expect("a string");
                let at = contents.len();
                contents.resize(at + self.block_size(), random.number() as u8);
                if random.one_in(3) {
                    contents[at..at + 4].copy_from_slice(&0xC03B_3998_u32.to_be_bytes());
                }
            }
            let file = image.folder.path().join(format!("contents{i}"));
            fs::write(&file, contents).expect("written");
            let revoked = block(random);
            let revoke = if random.one_in(2) {
                format!("-r {revoked}")
            } else {
                String::new()
            };
            let end = if i + 1 == count && random.one_in(2) {
                "-c"
            } else {
                ""
            };
            let checksums = if i == 0 { self.checksums } else { "" };
            let what = match random.below(4) {
                0 => format!("-r {revoked}"),
                _ => format!("-b {list} {revoke} {end} {}", file.display()),
            };
            writeln!(script, "jo {checksums}\njw {what}\njc").expect("a string");
        }
        debugfs(&image, &script);
        image
    }
}

/// Replays here.
fn replayed(bytes: Vec<u8>) -> Result<Vec<u8>, MountError> {
    let device = Arc::new(Memory::from_bytes(bytes));
    let disk = Disk::new(device.clone());
    let superblock = superblock(&disk)?;
    recover(disk, &superblock)?;
    Ok(device.contents())
}

/// What both judges write into superblocks as they like: times, counts of mounts and writes, and
/// the checksum over it.
fn without_times(mut image: Vec<u8>) -> Vec<u8> {
    for range in [0x2C..0x36, 0x40..0x44, 0x178..0x180, 0x3FC..0x400] {
        image[1024 + range.start..1024 + range.end].fill(0);
    }
    image
}

/// Demands that two images are the same.
fn assert_same(ours: &[u8], theirs: &[u8], block_size: usize, what: &str) {
    let blocks = ours.chunks(block_size).zip(theirs.chunks(block_size));
    let differ: Vec<usize> = (0..)
        .zip(blocks)
        .filter(|(_, (a, b))| a != b)
        .map(|(i, _)| i)
        .collect();
    assert!(differ.is_empty(), "{what}: blocks {differ:?} differ");
}

#[test]
fn a_journal_is_replayed_as_e2fsck_replays_it_block_by_block() {
    needs_e2fsprogs!();
    for seed in seeds().take(12) {
        for (i, kind) in KINDS.iter().enumerate() {
            let image = kind.dirty(&mut Random::new(seed * 100 + i as u64));
            let ours = replayed(read(&image.path)).expect("replayed");
            let path = image.path.to_str().expect("a path");
            run("e2fsck", ["-fy", "-E", "journal_only", path]);
            let (ours, theirs) = (without_times(ours), without_times(read(&image.path)));
            let what = format!("{:?} {}, TUREEN_REPLAY={seed}", kind.args, kind.checksums);
            assert_same(&ours, &theirs, kind.block_size(), &what);
        }
    }
}

#[test]
fn what_e2fsck_finds_after_a_replay_is_nothing() {
    needs_e2fsprogs!();
    for kind in KINDS {
        let image = kind.dirty(&mut Random::new(1));
        let disk = image.disk();
        let superblock = superblock(&disk).expect("read");
        drop(recover(disk, &superblock).expect("replayed"));
        image.assert_clean();
    }
}

/// Records a replay.
fn recorded(image: &[u8]) -> Trace {
    let recorder = Arc::new(Recorder::new(Arc::new(Memory::from_bytes(image.to_vec()))));
    let disk = Disk::new(recorder.clone());
    let superblock = superblock(&disk).expect("read");
    drop(recover(disk, &superblock).expect("replayed"));
    recorder.trace()
}

#[test]
fn a_replay_that_a_crash_ends_is_repeated_with_the_same_result() {
    needs_e2fsprogs!();
    for (seed, kind) in seeds().take(4).zip([EXT3, V3, EXT3_4K, V3]) {
        let image = read(&kind.dirty(&mut Random::new(seed)).path);
        let expected = without_times(replayed(image.clone()).expect("replayed"));
        let trace = recorded(&image);
        for point in trace.points() {
            for token in trace.crash(point).states(12, seed) {
                let state = trace.replay(token).expect("a token of this trace");
                // The superblock's checksum is in another sector than its flag.
                let again = without_times(replayed(state).expect("replayed again"));
                let what = format!("TUREEN_REPLAY={seed}, {token}");
                assert_same(&again, &expected, kind.block_size(), &what);
            }
        }
    }
}

/// An image with a file `f`, whose contents are old but in the journal; its block is returned.
fn with_a_new_version_of_a_file(kind: &Kind) -> Image {
    let image = Image::mke2fs(16 << 20, kind.args);
    let old = image.folder.path().join("old");
    let new = image.folder.path().join("new");
    fs::write(&old, vec![b'o'; kind.block_size()]).expect("written");
    fs::write(&new, vec![b'n'; kind.block_size()]).expect("written");
    let path = image.path.to_str().expect("a path");
    run(
        "debugfs",
        ["-w", "-R", &format!("write {} f", old.display()), path],
    );
    let block = run("debugfs", ["-R", "bmap f 0", path]);
    let journal = format!(
        "jo {}\njw -b {} {}\njc\n",
        kind.checksums,
        block.trim(),
        new.display()
    );
    debugfs(&image, &journal);
    image
}

fn first_byte(fs: &ffs::Ffs) -> u8 {
    let mut byte = [0];
    let file = fs.lookup(&fs.root(), b"f").expect("there");
    assert_eq!(fs.read(&file, 0, &mut byte), Ok(1));
    byte[0]
}

#[test]
fn mounting_replays_the_journal_in_dram_alone_for_who_only_reads() {
    needs_e2fsprogs!();
    for kind in KINDS {
        let image = with_a_new_version_of_a_file(kind);
        let before = read(&image.path);
        let fs = mount(image.disk(), true).expect("it mounts");
        assert_eq!(first_byte(&fs), b'n', "{:?}", kind.args);
        fs.unmount().expect("unmounted");
        drop(fs);
        assert!(read(&image.path) == before, "nothing is written");
        let written = mount(image.disk(), false);
        if kind.args[1] == "ext4" {
            assert!(matches!(written.err(), Some(MountError::ReadOnly(_))));
            assert!(read(&image.path) == before, "nothing is written");
            continue;
        }
        let fs = written.expect("it mounts");
        assert_eq!(first_byte(&fs), b'n');
        fs.unmount().expect("unmounted");
        drop(fs);
        image.assert_clean();
        assert_eq!(first_byte(&image.mount()), b'n');
    }
}

/// Where a journal of 1 KiB blocks is: that of its superblock.
fn journal_at(image: &Image) -> usize {
    let path = image.path.to_str().expect("a path");
    let block = run("debugfs", ["-R", "bmap <8> 0", path]);
    block.trim().parse::<usize>().expect("a number") * 1024
}

#[test]
fn a_damaged_journal_is_an_error_that_names_the_block() {
    needs_e2fsprogs!();
    let cases: &[(&Kind, usize, &[u8], &str)] = &[
        (&EXT3, 0, &[0], "magic 0x003b3998"),
        (&EXT3, 7, &[9], "a superblock of kind 9"),
        (&EXT3, 14, &[8], "blocks of 2048 bytes"),
        (&EXT3, 16, &[1], "and its file has 1024"),
        (&EXT3, 23, &[0], "a log from block 0 to 1024"),
        (&EXT3, 22, &[3, 250], "a log from block 1018 to 1024"),
        (&EXT3, 28, &[1], "the log begins at its block 16777217"),
        (
            &EXT3,
            43,
            &[0x21],
            "its feature fast_commit is not supported",
        ),
        (
            &EXT3,
            40,
            &[0x80],
            "its feature 0x80000000 is not supported",
        ),
        (&EXT3, 43, &[0x19], "two versions of checksums"),
        (&EXT3, 43, &[0x11], "checksums of kind 0"),
        (&EXT3, 1024 + 12, &[1], "it has a copy of block 1"),
        (&V3, 300, &[1], "wrong checksum of its superblock"),
        (&V3, 1024 + 600, &[1], "wrong checksum"),
        (&V3, 2048 + 600, &[1], "wrong checksum of a copy of block"),
    ];
    for (kind, at, bytes, what) in cases {
        let image = with_a_new_version_of_a_file(kind);
        let at = journal_at(&image) + at;
        let mut contents = read(&image.path);
        contents[at..at + bytes.len()].copy_from_slice(bytes);
        let error = match replayed(contents.clone()) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("replayed; expected: {what}"),
        };
        assert!(error.contains(what), "{error}; expected: {what}");
        assert!(
            error.contains(&format!("block {}: journal", at / 1024)),
            "{error}"
        );
        // Who only reads is told so, too.
        assert!(mount(memory(contents), true).is_err());
    }
}

#[test]
fn what_random_bytes_do_to_a_journal_is_no_panic() {
    needs_e2fsprogs!();
    for kind in [EXT3, V3] {
        let image = kind.dirty(&mut Random::new(7));
        let (at, contents) = (journal_at(&image), read(&image.path));
        for seed in seeds().take(150) {
            let mut random = Random::new(seed);
            let mut contents = contents.clone();
            for _ in 0..1 + random.below(4) {
                let at = at + random.below(12 * 1024) as usize;
                contents[at] = random.number() as u8;
            }
            if let Err(MountError::Failed(error)) = replayed(contents) {
                assert!(
                    error.to_string().contains("block "),
                    "{error}, TUREEN_REPLAY={seed}"
                );
            }
        }
    }
}
