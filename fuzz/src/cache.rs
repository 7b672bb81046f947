//! The target `cache`: hostile contents of the memory of a cache.
//!
//! An input is: a byte that chooses the kind, damage, and what is done then. The damage is of what
//! the cache stores beside blocks, and knows its form: superblocks, slots and records are sealed
//! with their checksums, and of the lap that is read.
//!
//! What must hold: nothing panics or hangs. A cache is refused, or it opens; then all of it can be
//! read, and what is committed is there, on the disk too when that was flushed. Opening it again
//! finds the same.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use ::cache::layout::{LINE, Record, SUPERBLOCK_LEN, Slot, State, Superblock};
use ::cache::testing::Bind;
use ::cache::{BLOCK, Cache, Class, CreateOptions, Kind, Transaction};
use block::{Disk, Memory};
use pmem::{Domain, Options, Pool};

use crate::bytes::Bytes;

const DISK_BLOCKS: u64 = 100;
const MEMORY_LEN: u64 = 80 * BLOCK;
/// Damages at most.
const DAMAGES: usize = 8;

/// A cache in use, and its disk.
struct Base {
    superblock: Superblock,
    memory: Vec<u8>,
    disk: Vec<u8>,
}

fn bases() -> &'static [Base; 2] {
    static BASES: OnceLock<[Base; 2]> = OnceLock::new();
    BASES.get_or_init(|| [Kind::Spindle, Kind::Tinca].map(base))
}

fn base(kind: Kind) -> Base {
    let mut disk = vec![0; (DISK_BLOCKS * BLOCK) as usize];
    Bind::label(&mut disk);
    let disk = Arc::new(Memory::from_bytes(disk));
    let pool = Arc::new(pool(&vec![0; MEMORY_LEN as usize]));
    let how = CreateOptions {
        kind,
        uuid: [9; 16],
        unit: LINE,
        metadata: 16 * BLOCK,
    };
    let device = Disk::new(disk.clone());
    let cache = Cache::create(pool.clone(), device, Arc::new(Bind), &how).expect("it fits");
    for round in 0..3 {
        let commit = |class, blocks: std::ops::Range<u64>| {
            let mut transaction = Transaction::default();
            for block in blocks {
                transaction.write(class, block * BLOCK, &[round; BLOCK as usize]);
            }
            cache.commit(transaction).expect("it fits");
        };
        commit(Class::Data, 1..20);
        commit(Class::Metadata, 20..40);
    }
    drop(cache);
    let memory = pool.snapshot();
    let first = memory[..SUPERBLOCK_LEN].try_into().expect("so many bytes");
    Base {
        superblock: Superblock::read(first, MEMORY_LEN).expect("it is one"),
        memory,
        disk: disk.contents(),
    }
}

fn pool(bytes: &[u8]) -> Pool {
    let options = Options {
        domain: Some(Domain::Line),
        ..Options::default()
    };
    Pool::from_bytes(bytes, &options).expect("memory")
}

/// Runs an input.
///
/// # Panics
/// When something is wrong.
pub fn run(input: &[u8]) {
    let mut input = Bytes::new(input);
    let base = &bases()[input.below(2)];
    let mut memory = base.memory.clone();
    for _ in 0..1 + input.below(DAMAGES) {
        damage(base, &mut memory, &mut input);
    }
    // A pool for which nothing is recovered for good.
    let _ = ::cache::examine(Arc::new(pool(&memory)));
    let pool = Arc::new(pool(&memory));
    let disk = Arc::new(Memory::from_bytes(base.disk.clone()));
    let open = || Cache::open(pool.clone(), Disk::new(disk.clone()), Arc::new(Bind));
    let Ok(cache) = open() else { return };
    let shown = all(&cache);
    drop(cache);
    let cache = open().expect("what opened once opens again");
    assert!(all(&cache) == shown, "opened again it holds something else");
    used(cache, &disk, &mut input);
}

fn all(cache: &Cache) -> Vec<u8> {
    let mut bytes = vec![0; (DISK_BLOCKS * BLOCK) as usize];
    cache.read(0, &mut bytes).expect("memory does not fail");
    bytes
}

/// What is committed is there. Of the rest nothing is said: what the damage made clean may make way
/// for what the disk has.
fn used(cache: Cache, disk: &Arc<Memory>, input: &mut Bytes<'_>) {
    let mut expected: BTreeMap<u64, u8> = BTreeMap::new();
    while !input.is_empty() {
        let byte = input.byte();
        let class = [Class::Data, Class::Metadata][usize::from(byte % 2)];
        let mut transaction = Transaction::default();
        for _ in 0..cache.transaction_max().min(1 + input.below(40)) {
            let block = 1 + input.below(DISK_BLOCKS as usize - 1) as u64;
            expected.insert(block, byte);
            transaction.write(class, block * BLOCK, &[byte; BLOCK as usize]);
        }
        cache.commit(transaction).expect("it fits");
        is_there(&all(&cache), &expected);
    }
    cache.detach().expect("memory and disk do not fail");
    is_there(&disk.contents(), &expected);
}

fn is_there(found: &[u8], expected: &BTreeMap<u64, u8>) {
    let blocks = found.chunks(BLOCK as usize).zip(0..);
    for (bytes, block) in blocks {
        if let Some(byte) = expected.get(&block) {
            let is_it = bytes.iter().all(|found| found == byte);
            assert!(is_it, "block {block} is not what was committed");
        }
    }
}

fn put(memory: &mut [u8], at: u64, bytes: &[u8]) {
    if let Some(there) = memory.get_mut(at as usize..at as usize + bytes.len()) {
        there.copy_from_slice(bytes);
    }
}

fn put_words(memory: &mut [u8], at: u64, words: &[u64]) {
    for (word, at) in words.iter().zip((at..).step_by(8)) {
        put(memory, at, &word.to_le_bytes());
    }
}

fn word(memory: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(memory[at as usize..][..8].try_into().expect("8 bytes"))
}

/// A number that may be anything, and is near something more often.
fn number(input: &mut Bytes<'_>, near: u64) -> u64 {
    match input.byte() % 4 {
        0 => input.short(),
        1 => near.wrapping_add(input.short()).wrapping_sub(1 << 8),
        2 => 1 << (input.byte() % 64),
        _ => u64::MAX - input.short(),
    }
}

fn state(input: &mut Bytes<'_>) -> State {
    State::of(u64::from(input.byte()) | u64::from(input.byte() % 16) << 32)
}

/// Damages the memory in one of the forms that matter.
fn damage(base: &Base, memory: &mut [u8], input: &mut Bytes<'_>) {
    let layout = &base.superblock;
    let commit_at = ::cache::layout::COMMIT_AT;
    let (head, tail) = (word(memory, commit_at), word(memory, commit_at + 8));
    match input.byte() % 7 {
        0 => put_words(memory, commit_at, &[number(input, head)]),
        1 => put_words(memory, commit_at + 8, &[number(input, tail)]),
        2 => {
            let mut superblock = layout.clone();
            let field = match input.byte() % 7 {
                0 => &mut superblock.disk_len,
                1 => &mut superblock.blocks,
                2 => &mut superblock.slots,
                3 => &mut superblock.records,
                4 => &mut superblock.unit,
                _ => &mut superblock.metadata_min,
            };
            *field = number(input, *field);
            superblock.is_through = input.byte().is_multiple_of(4);
            put(memory, 0, &superblock.bytes());
        }
        3 => {
            let position = head.wrapping_add(input.below(64) as u64);
            let slot = Slot {
                entry: Some(u32::from(input.byte())),
                old: state(input),
            };
            let at = layout.ring_at() + position % layout.slots * 16;
            put_words(memory, at, &slot.words(position / layout.slots));
        }
        4 => {
            let at = layout.entries_at() + input.below(80) as u64 * 16;
            put_words(memory, at, &[number(input, 50), state(input).word()]);
        }
        5 if layout.records > 0 => {
            let blocks = layout.blocks_at();
            let record = Record {
                tail,
                at: match input.byte() % 3 {
                    0 => number(input, blocks),
                    _ => blocks + input.short() * LINE,
                },
            };
            let (unit, at) = ([input.byte(); LINE as usize], input.below(64) as u64);
            let at = layout.log_at() + at * layout.record_len();
            put_words(memory, at, &record.words(&unit));
            put(memory, at + LINE, &unit);
        }
        _ => {
            let at = input.short() % layout.blocks_at();
            memory[at as usize] ^= input.byte();
        }
    }
}
