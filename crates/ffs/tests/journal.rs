//! Journals that others left are replayed as e2fsck does it, block by block; again after a crash;
//! and hostile ones are errors that name the block.

mod common;

use std::ffi::OsStr;
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::{fs, io};

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
    for seed in seeds(12) {
        for (i, kind) in KINDS.iter().enumerate() {
            let image = kind.dirty(&mut Random::new(seed * 100 + i as u64));
            let ours = replayed(read(&image.path)).expect("replayed");
            let path = image.path.to_str().expect("a path");
            run("e2fsck", ["-y", "-E", "journal_only", path]);
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
    for (seed, kind) in seeds(4).zip([EXT3, V3, EXT3_4K, V3]) {
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
fn a_journal_whose_inode_is_gone_is_that_of_the_superblocks_copy() {
    needs_e2fsprogs!();
    let image = with_a_new_version_of_a_file(&EXT3);
    debugfs(&image, "clri <8>\n");
    let fs = mount(image.disk(), true).expect("it mounts");
    assert_eq!(first_byte(&fs), b'n');
    drop(fs);
    let disk = image.disk();
    let superblock = superblock(&disk).expect("read");
    let disk = recover(disk, &superblock).expect("replayed");
    let report = ffs::check::check(&disk, true, common::TIME, &|_, _, _| {});
    assert_eq!(report.map(|report| report.exit_code()), Ok(1));
    drop(disk);
    image.assert_clean();
    assert_eq!(first_byte(&image.mount()), b'n');
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
        for seed in seeds(150) {
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

/// The bytes of a file that is several blocks long, indirect ones among them.
fn long() -> Vec<u8> {
    (0..40_000_u32).map(|i| (i % 251) as u8).collect()
}

#[test]
fn mounting_for_writing_frees_orphans_and_cuts_off_what_was_to_be() {
    needs_e2fsprogs!();
    let image = Image::mke2fs(16 << 20, EXT3.args);
    let contents = image.folder.path().join("contents");
    fs::write(&contents, long()).expect("written");
    let contents = contents.display();
    // 12 and 14 have no names, 13 is to end at byte 1500.
    debugfs(
        &image,
        &format!(
            "write {contents} a\nwrite {contents} b\nwrite {contents} c\nunlink a\nunlink c\n\
             sif <12> links_count 0\nsif <12> dtime @13\nsif <13> dtime @14\nsif <13> size 1500\n\
             sif <14> links_count 0\nsif <14> dtime @0\nssv last_orphan 12\n"
        ),
    );
    let orphans = || {
        image
            .dump()
            .iter()
            .any(|line| line.starts_with("First orphan"))
    };
    assert!(orphans());
    let fs = mount(image.disk(), false).expect("it mounts");
    let file = fs.lookup(&fs.root(), b"b").expect("there");
    let mut bytes = vec![0; 40_000];
    assert_eq!(fs.read(&file, 0, &mut bytes), Ok(1500));
    assert_eq!(bytes[..1500], long()[..1500]);
    drop(file);
    fs.unmount().expect("unmounted");
    drop(fs);
    assert!(!orphans());
    image.assert_clean();
}

#[test]
fn a_list_of_orphans_that_cannot_be_is_an_error() {
    needs_e2fsprogs!();
    for (first, dtime) in [(5, 0), (100_000, 0), (12, 12)] {
        let image = Image::mke2fs(16 << 20, EXT3.args);
        let script = format!(
            "write {} a\nsif <12> dtime @{dtime}\nssv last_orphan {first}\n",
            "/dev/null"
        );
        debugfs(&image, &script);
        let error = mount(image.disk(), false).err().expect("it is damaged");
        assert!(
            error
                .to_string()
                .contains("cannot be the next in the list of orphans"),
            "{error}"
        );
    }
}

/// Images with a journal in use, as the kernel leaves them when it ends at once: copied while they
/// are mounted, with an orphan or without. `None`: it may not mount anything here.
fn left_by_the_kernel(kind: &Kind, orphan: bool) -> Option<Image> {
    let image = Image::mke2fs(32 << 20, kind.args);
    let at = image.folder.path().join("mounted");
    fs::create_dir(&at).expect("a folder");
    let call = |tool: &str, args: &[&OsStr]| {
        let status = Command::new(tool).args(args).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    let (o, how) = (OsStr::new("-o"), OsStr::new("loop"));
    if !call("mount", &[o, how, image.path.as_os_str(), at.as_os_str()]) {
        return None;
    }
    let copy = work(&at, orphan).and_then(|_open| fs::read(&image.path));
    // Lazily: a process that is being started elsewhere may hold copies of descriptors here. What
    // the kernel writes then goes to the image that is replaced.
    assert!(
        call("umount", &["-l".as_ref(), at.as_os_str()]),
        "unmounted"
    );
    fs::remove_file(&image.path).expect("removed");
    fs::write(&image.path, copy.expect("the kernel's file system works")).expect("written");
    Some(image)
}

/// Makes, removes and moves, in a directory; an orphan has no name at the end, but a user.
fn work(at: &Path, orphan: bool) -> io::Result<fs::File> {
    let sync = || fs::File::open(at).and_then(|dir| Ok(rustix::fs::syncfs(dir)?));
    fs::create_dir(at.join("d"))?;
    for i in 0..40 {
        fs::write(at.join(format!("d/f{i}")), format!("contents {i}"))?;
    }
    sync()?;
    for i in (0..40).step_by(2) {
        fs::remove_file(at.join(format!("d/f{i}")))?;
    }
    for i in 0..10 {
        fs::create_dir(at.join(format!("e{i}")))?;
    }
    sync()?;
    // Freed directories: revokes.
    for i in 0..9 {
        fs::remove_dir(at.join(format!("e{i}")))?;
    }
    fs::rename(at.join("d/f1"), at.join("e9/moved"))?;
    fs::write(at.join("long"), long())?;
    let open = fs::File::create(at.join("open"))?;
    fs::write(at.join("open"), long())?;
    if orphan {
        fs::remove_file(at.join("open"))?;
    }
    sync()?;
    Ok(open)
}

#[test]
fn what_the_kernel_left_is_replayed_as_e2fsck_replays_it_and_is_all_there() {
    needs_e2fsprogs!();
    for kind in [EXT3, EXT3_4K, V3] {
        let Some(image) = left_by_the_kernel(&kind, false) else {
            testing::skip!("needs root, and the kernel's ext4 by a loop device");
        };
        let before = read(&image.path);
        look_at_work(&mount(memory(before.clone()), true).expect("it mounts"));
        let ours = without_times(replayed(before).expect("replayed"));
        let path = image.path.to_str().expect("a path");
        run("e2fsck", ["-y", "-E", "journal_only", path]);
        let theirs = without_times(read(&image.path));
        assert_same(
            &ours,
            &theirs,
            kind.block_size(),
            &format!("{:?}", kind.args),
        );
    }
}

#[test]
fn what_the_kernel_left_with_an_orphan_is_clean_after_a_mount() {
    needs_e2fsprogs!();
    for kind in [EXT3, EXT3_4K] {
        let Some(image) = left_by_the_kernel(&kind, true) else {
            testing::skip!("needs root, and the kernel's ext4 by a loop device");
        };
        let is_orphan = |line: &String| line.starts_with("First orphan");
        assert!(image.dump().iter().any(is_orphan));
        let fs = mount(image.disk(), false).expect("it mounts");
        look_at_work(&fs);
        fs.unmount().expect("unmounted");
        drop(fs);
        assert!(!image.dump().iter().any(is_orphan));
        image.assert_clean();
    }
}

/// Demands that what [`work`] did is there.
fn look_at_work(fs: &ffs::Ffs) {
    let root = fs.root();
    let d = fs.lookup(&root, b"d").expect("there");
    assert!(fs.lookup(&d, b"f0").is_err() && fs.lookup(&d, b"f1").is_err());
    let moved = fs.lookup(&root, b"e9").expect("there");
    let moved = fs.lookup(&moved, b"moved").expect("there");
    let mut bytes = vec![0; 40_000];
    assert_eq!(fs.read(&moved, 0, &mut bytes), Ok(10));
    assert_eq!(&bytes[..10], b"contents 1");
    let file = fs.lookup(&root, b"long").expect("there");
    assert_eq!(fs.read(&file, 0, &mut bytes), Ok(40_000));
    assert_eq!(bytes, long());
    assert!(fs.lookup(&root, b"e0").is_err());
}
