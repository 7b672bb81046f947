//! A log against its model: after a crash exactly the transactions up to some one are there, and
//! at least those whose commit had returned. Judged by e2fsck, too.

use std::collections::BTreeMap;
use std::process::Command;

use block::record::{Token, Trace};
use block::{Memory, Random, Recorder};
use vfs::ManualClock;
use zerocopy::FromBytes;

use super::*;
use crate::cache::Cache;
use crate::format::{FormatOptions, format};
use crate::geometry::Geometry;
use crate::journal::codec::superblock_sum;
use crate::journal::layout::{CRC32C, JournalSuperblock, MAGIC};
use crate::journal::layout::{INCOMPAT_64BIT, INCOMPAT_CSUM_V2, INCOMPAT_CSUM_V3};
use crate::layout::{SUPERBLOCK_AT, SUPERBLOCK_LEN};

const BLOCK: usize = 1024;
/// The least file system that has a journal.
const LEN: u64 = 2 << 20;
/// Blocks at its end, which nobody uses.
const HOMES: std::ops::Range<u64> = 2028..2048;
/// Blocks of the journal that are used: few, so that it is full often, and the log begins anew.
const MAXLEN: u32 = 40;

/// An empty file system with a journal of these features, of which so many blocks are used.
fn formatted(features: u32, maxlen: u32) -> Vec<u8> {
    let device = Arc::new(Memory::new(LEN));
    let options = FormatOptions {
        uuid: *b"0123456789abcdef",
        label: String::new(),
        hash_seed: [7; 16],
        time: Time::new(1_500_000_000, 0),
        owner: (0, 0),
        zeroed: true,
        block_size: BLOCK as u32,
        inode_size: 256,
        bytes_per_inode: 16384,
        journal: true,
    };
    format(&Disk::new(device.clone()), &options).expect("formatted");
    let mut image = device.contents();
    let is_journal = |block: &[u8]| block.starts_with(&MAGIC.to_be_bytes());
    let at = image.chunks(BLOCK).position(is_journal).expect("a journal") * BLOCK;
    let bytes = &mut image[at..at + BLOCK];
    let stored = JournalSuperblock::mut_from_bytes(bytes).expect("of that size");
    stored.maxlen = maxlen.into();
    stored.feature_incompat = features.into();
    if features & (INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3) != 0 {
        stored.checksum_type = CRC32C;
        stored.checksum = superblock_sum(stored).into();
    }
    image
}

fn superblock(image: &[u8]) -> Superblock {
    let at = SUPERBLOCK_AT as usize;
    Superblock::read_from_bytes(&image[at..at + SUPERBLOCK_LEN]).expect("of that size")
}

/// A file system, its log in use, and all that is written recorded.
struct Bed {
    recorder: Arc<Recorder>,
    medium: Medium,
    superblock: Superblock,
    log: Log,
}

impl Bed {
    fn new(image: Vec<u8>, mode: DataMode) -> Bed {
        let mut superblock = superblock(&image);
        let recorder = Arc::new(Recorder::new(Arc::new(Memory::from_bytes(image))));
        let disk = Disk::new(recorder.clone());
        let geometry = Geometry::new(&superblock, LEN).expect("sound");
        let cache = Cache::new(disk, BLOCK as u32, 1 << 20);
        let medium = Medium::unordered(geometry, cache);
        let clock = Arc::new(ManualClock::new(Time::new(1_500_000_000, 5)));
        let log = Log::open(&medium, &mut superblock, mode, clock).expect("opened");
        Bed {
            recorder,
            medium,
            superblock,
            log,
        }
    }

    fn disk(&self) -> &Disk {
        self.medium.cache.disk()
    }

    fn image(&self) -> Vec<u8> {
        let trace = self.recorder.trace();
        let crash = trace.crash(trace.events.len());
        crash
            .image(block::record::State::Newest)
            .expect("there is one")
    }
}

/// What a block is used for, and its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Free,
    Metadata(u64),
    Data(u64),
}

/// What all blocks are, behind each transaction.
type History = Vec<BTreeMap<u64, Use>>;

/// Contents that a number tells; some have to be escaped.
fn contents(number: u64) -> Buffer {
    let mut bytes = Buffer::zeroed(BLOCK);
    for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(number << 8 | i as u64).to_le_bytes());
    }
    if number.is_multiple_of(3) {
        bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
    }
    bytes
}

/// A random transaction. Its number is in the first of the homes.
fn transaction(random: &mut Random, history: &mut History, mode: DataMode) -> Transaction {
    let mut uses = history.last().expect("a state").clone();
    let mut transaction = Transaction::default();
    let mark = 1000 * history.len() as u64;
    transaction.write(HOMES.start, contents(mark));
    uses.insert(HOMES.start, Use::Metadata(mark));
    let count = match random.below(8) {
        0 => HOMES.end - HOMES.start,
        _ => random.below(6),
    };
    let mut touched = vec![HOMES.start];
    for number in mark + 1..mark + 1 + count {
        let block = HOMES.start + random.below(HOMES.end - HOMES.start);
        if touched.contains(&block) {
            continue;
        }
        touched.push(block);
        let bytes = contents(number);
        let now = uses.get_mut(&block).expect("a home");
        let overwrites_data = matches!(now, Use::Data(_)) && mode == DataMode::Journaled;
        *now = match *now {
            Use::Free if random.one_in(2) => {
                transaction.write_data(block, bytes);
                Use::Data(number)
            }
            Use::Free => {
                transaction.write(block, bytes);
                Use::Metadata(number)
            }
            Use::Metadata(_) | Use::Data(_) if random.one_in(2) => {
                transaction.free(block);
                Use::Free
            }
            Use::Metadata(_) => {
                transaction.write(block, bytes);
                Use::Metadata(number)
            }
            Use::Data(_) if overwrites_data => {
                transaction.write_data(block, bytes);
                Use::Data(number)
            }
            Use::Data(old) => Use::Data(old),
        };
    }
    history.push(uses);
    transaction
}

fn nothing() -> History {
    vec![HOMES.map(|block| (block, Use::Free)).collect()]
}

/// Demands that an image has the state behind a transaction, at least behind the one of this
/// number, and returns its number.
fn check(image: &[u8], history: &History, least: usize) -> std::result::Result<usize, String> {
    let block = |block: u64| &image[block as usize * BLOCK..][..BLOCK];
    let is_mark = |number: &usize| block(HOMES.start) == &contents(1000 * *number as u64)[..];
    let found = match (1..history.len()).rev().find(is_mark) {
        Some(found) => found,
        None if block(HOMES.start).iter().all(|&byte| byte == 0) => 0,
        None => return Err("the first home is of no transaction".to_owned()),
    };
    if found < least {
        return Err(format!("transaction {found}, where {least} was committed"));
    }
    for (&home, &now) in &history[found] {
        if let Use::Metadata(number) | Use::Data(number) = now
            && block(home) != &contents(number)[..]
        {
            return Err(format!(
                "block {home} is not as behind transaction {found}: {now:?}"
            ));
        }
    }
    Ok(found)
}

fn replayed(image: Vec<u8>) -> Vec<u8> {
    let superblock = superblock(&image);
    let device = Arc::new(Memory::from_bytes(image));
    let disk = Disk::new(device.clone());
    crate::journal::replay::recover(disk, &superblock).expect("replayed");
    device.contents()
}

/// Checks a crash state, by the number of transactions that were committed.
fn check_crash(
    trace: &Trace,
    token: Token,
    history: &History,
) -> std::result::Result<usize, String> {
    let image = replayed(trace.replay(token).expect("a token of this trace"));
    check(&image, history, trace.marks(token.point).count())
}

const FEATURES: [u32; 4] = [
    0,
    INCOMPAT_CSUM_V2,
    INCOMPAT_CSUM_V3 | INCOMPAT_64BIT,
    INCOMPAT_64BIT,
];

/// Seeds of random tests: `TUREEN_SEEDS`, `TUREEN_REPLAY`.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name| {
        let text = std::env::var(name).ok()?;
        text.parse::<u64>().ok()
    };
    match number("TUREEN_REPLAY") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TUREEN_SEEDS").unwrap_or(usual),
    }
}

/// Does random transactions, and sometimes settles.
fn run(seed: u64, count: usize) -> (Bed, History, DataMode) {
    run_in(MAXLEN, seed, count)
}

/// The same in a journal of so many blocks.
fn run_in(maxlen: u32, seed: u64, count: usize) -> (Bed, History, DataMode) {
    let mut random = Random::new(seed);
    let mode = match random.one_in(2) {
        true => DataMode::Ordered,
        false => DataMode::Journaled,
    };
    let bed = Bed::new(formatted(FEATURES[seed as usize % 4], maxlen), mode);
    let mut history = nothing();
    for number in 0..count {
        let transaction = transaction(&mut random, &mut history, mode);
        bed.log.commit(bed.disk(), transaction).expect("committed");
        bed.recorder.mark(format!("{number}"));
        if random.one_in(10) {
            bed.log.settle(bed.disk()).expect("settled");
        }
    }
    (bed, history, mode)
}

#[test]
fn after_a_crash_the_transactions_up_to_some_one_are_there_and_all_that_were_committed() {
    for seed in seeds(24) {
        let (bed, history, mode) = run(seed, 20);
        let trace = bed.recorder.trace();
        for point in trace.points() {
            for token in trace.crash(point).states(6, seed) {
                if let Err(what) = check_crash(&trace, token, &history) {
                    panic!("{what} ({mode:?}, TUREEN_REPLAY={seed}, {token})");
                }
            }
        }
    }
}

#[test]
fn a_crash_while_another_mount_uses_the_log_leaves_what_both_committed() {
    for seed in seeds(12) {
        let (bed, mut history, mode) = run(seed, 10);
        // A crash, a replay, and the next mount.
        let image = replayed(bed.image());
        assert_eq!(check(&image, &history, 10), Ok(10));
        let next = Bed::new(image, mode);
        let mut random = Random::new(!seed);
        for number in 0..10 {
            let transaction = transaction(&mut random, &mut history, mode);
            next.log
                .commit(next.disk(), transaction)
                .expect("committed");
            next.recorder.mark(format!("{number}"));
        }
        let trace = next.recorder.trace();
        for point in trace.points() {
            for token in trace.crash(point).states(4, seed) {
                let image = replayed(trace.replay(token).expect("a token of this trace"));
                let least = 10 + trace.marks(token.point).count();
                if let Err(what) = check(&image, &history, least) {
                    panic!("{what} ({mode:?}, TUREEN_REPLAY={seed}, {token})");
                }
            }
        }
    }
}

#[test]
fn a_log_that_is_closed_is_empty_and_the_disk_alone_has_everything() {
    for seed in seeds(8) {
        let (mut bed, history, _) = run(seed, 15);
        for (block, now) in history.last().expect("a state") {
            let newest = bed.log.newest(*block);
            if let (Some(newest), Use::Metadata(number)) = (newest, now) {
                assert!(newest[..] == contents(*number)[..], "block {block}");
            }
        }
        let disk = bed.medium.cache.disk();
        bed.log.close(disk, &mut bed.superblock).expect("closed");
        let image = bed.image();
        assert!(!super::super::needs_recovery(&superblock(&image)));
        assert_eq!(check(&image, &history, 15), Ok(15), "TUREEN_REPLAY={seed}");
        assert!(bed.log.newest(HOMES.start).is_none());
    }
}

#[test]
fn threads_that_commit_at_once_share_transactions() {
    let bed = Bed::new(formatted(0, MAXLEN), DataMode::Ordered);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let bed = &bed;
            scope.spawn(move || {
                for round in 1..=30 {
                    let mut transaction = Transaction::default();
                    transaction.write(HOMES.start + thread, contents(round));
                    bed.log.commit(bed.disk(), transaction).expect("committed");
                }
            });
        }
    });
    assert!(bed.log.writer.lock().count <= 120);
    let image = replayed(bed.image());
    for thread in 0..4 {
        let at = (HOMES.start + thread) as usize * BLOCK;
        assert!(image[at..at + BLOCK] == contents(30)[..], "thread {thread}");
    }
}

#[test]
fn a_transaction_takes_in_a_later_one() {
    let mut first = Transaction::default();
    first.write(1, contents(1));
    first.write(2, contents(2));
    first.free(3);
    let mut later = Transaction::default();
    later.free(1);
    later.write(3, contents(3));
    later.write_data(4, contents(4));
    first.absorb(later);
    assert_eq!(first.copies.keys().collect::<Vec<_>>(), [&2, &3]);
    assert_eq!(first.freed.iter().collect::<Vec<_>>(), [&1]);
    assert_eq!(first.data.keys().collect::<Vec<_>>(), [&4]);
}

#[test]
#[should_panic(expected = "whose end as metadata is not committed")]
fn a_freed_block_is_used_for_data_only_behind_the_commit() {
    let mut transaction = Transaction::default();
    transaction.free(1);
    transaction.write_data(1, contents(1));
}

/// What was to be durable next has no end then, and nobody joins it.
#[test]
fn a_log_that_failed_takes_in_nothing() {
    let bed = Bed::new(formatted(0, MAXLEN), DataMode::Ordered);
    let journal = bed.log.writer.lock().journal.ring.disk_block(1);
    let disk = bed.medium.cache.disk();
    let changes: [&dyn Fn(&mut Transaction); 3] = [
        &|t| t.write(journal, contents(1)),
        &|t| t.write(HOMES.start, contents(2)),
        &|t| t.write_data(HOMES.start, contents(3)),
    ];
    for change in changes {
        let mut transaction = Transaction::default();
        change(&mut transaction);
        let error = bed.log.commit(disk, transaction).expect_err("damage");
        assert!(error.to_string().contains("the journal lies there"));
    }
}

/// What a tool of e2fsprogs says of an image, and whether it succeeded; `None`: it is not there.
fn said(tool: &str, args: &[&str], path: &std::path::Path) -> Option<(bool, String)> {
    let places = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(tool);
    let command = command.env("PATH", format!("{places}:/usr/sbin:/sbin"));
    let output = command
        .env("LC_ALL", "C")
        .args(args)
        .arg(path)
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some((output.status.success(), text))
}

#[test]
fn e2fsprogs_read_the_log_and_replay_it_to_the_same_blocks() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    for seed in seeds(12) {
        let (bed, history, _) = run(seed, 12);
        let image = bed.image();
        std::fs::write(&path, &image).expect("written");
        let Some((_, log)) = said("debugfs", &["-R", "logdump"], &path) else {
            testing::skip!("needs e2fsprogs (e2fsck, debugfs)");
        };
        let live = bed.log.writer.lock().live.len();
        let commits = log.matches("type 2 (commit block)").count();
        assert_eq!(commits, live, "TUREEN_REPLAY={seed}: {log}");
        let checked = said("e2fsck", &["-y", "-E", "journal_only"], &path).expect("it runs");
        assert!(checked.0, "TUREEN_REPLAY={seed}: {}", checked.1);
        let theirs = std::fs::read(&path).expect("read");
        assert_eq!(check(&theirs, &history, 12), Ok(12), "TUREEN_REPLAY={seed}");
        let ours = replayed(image);
        let differ = |block: &usize| {
            let range = block * BLOCK..(block + 1) * BLOCK;
            ours[range.clone()] != theirs[range]
        };
        // But for the times in the superblock.
        let differing: Vec<usize> = (2..ours.len() / BLOCK).filter(differ).collect();
        assert!(
            differing.is_empty(),
            "TUREEN_REPLAY={seed}: blocks {differing:?} differ"
        );
        let checked = said("e2fsck", &["-fn"], &path).expect("it runs");
        assert!(checked.0, "TUREEN_REPLAY={seed}: {}", checked.1);
    }
}

#[test]
fn what_was_left_in_a_log_without_the_flag_never_comes_back() {
    // So few that the log has not come round.
    let (bed, ..) = run(2, 3);
    let mut image = bed.image();
    assert!(
        bed.log.writer.lock().live.len() > 1,
        "several transactions are in the log"
    );
    let at = SUPERBLOCK_AT as usize;
    let wiped = super::super::without_flag(&superblock(&image));
    image[at..at + SUPERBLOCK_LEN].copy_from_slice(wiped.as_bytes());
    let homes = HOMES.start as usize * BLOCK..HOMES.end as usize * BLOCK;
    let mut expected = image[homes.clone()].to_vec();
    let next = Bed::new(image, DataMode::Ordered);
    for number in 1..4 {
        assert!(replayed(next.image())[homes.clone()] == expected);
        let mut transaction = Transaction::default();
        transaction.write(HOMES.start, contents(number));
        next.log
            .commit(next.disk(), transaction)
            .expect("committed");
        expected[..BLOCK].copy_from_slice(&contents(number));
    }
    assert!(replayed(next.image())[homes] == expected);
}

#[test]
fn the_kernel_replays_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, at) = (folder.path().join("image"), folder.path().join("mounted"));
    std::fs::create_dir(&at).expect("a folder");
    for seed in seeds(4) {
        // It wants 1024 blocks.
        let (bed, history, _) = run_in(1024, seed, 12);
        std::fs::write(&path, bed.image()).expect("written");
        let mount = ["-o", "loop", path.to_str().expect("a path")];
        if !said("mount", &mount, &at).is_some_and(|said| said.0) {
            testing::skip!("needs root, and the kernel's ext4 by a loop device");
        }
        assert!(said("umount", &[], &at).is_some_and(|said| said.0));
        let theirs = std::fs::read(&path).expect("read");
        assert_eq!(check(&theirs, &history, 12), Ok(12), "TUREEN_REPLAY={seed}");
        assert!(!super::super::needs_recovery(&superblock(&theirs)));
    }
}
