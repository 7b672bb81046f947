//! What a life does, and what it may leave.

use std::sync::Arc;

use block::Random;
use cache::testing::Bind;
use cache::{BLOCK, Cache, Class, Transaction};

use crate::world::World;

/// Blocks of the disk.
pub const DISK_BLOCKS: u64 = 150;

/// Contents of a disk.
pub type Contents = Vec<u8>;

/// Something that a life does.
#[derive(Debug, Clone)]
pub enum Step {
    /// Commits: class, byte, what; and blocks that are freed.
    Commit(Vec<(Class, u64, Vec<u8>)>, Vec<u64>),
    /// Frees so many blocks from one on.
    Free(u64, u64),
    /// They become somebody's again: bytes in all of them, and in a block of metadata.
    New(u64, u64, u8, u64),
    /// Lets the disk have everything.
    Flush,
    /// Switches to write-through, or back.
    Through(bool),
}

/// What a life does.
pub struct Script {
    pub steps: Vec<Step>,
}

impl Script {
    /// A random one. Some blocks are always metadata, some data, some either.
    pub fn random(world: &mut World) -> Script {
        let random = &mut world.random;
        let steps = (0..2 + random.below(14)).flat_map(|_| match random.below(36) {
            0 | 1 => vec![Step::Flush],
            2 | 3 => vec![Step::Through(random.one_in(3))],
            4..8 => new(random).into(),
            8 => vec![large(random)],
            _ => vec![commit(random)],
        });
        Script {
            steps: steps.collect(),
        }
    }
}

/// Blocks that nobody has, and then somebody.
fn new(random: &mut Random) -> [Step; 2] {
    let (count, byte) = (1 + random.below(6), random.number() as u8);
    let first = 1 + random.below(DISK_BLOCKS - count - 2);
    let metadata = first + count;
    [
        Step::Free(first, count),
        Step::New(first, count, byte, metadata),
    ]
}

/// Nearly as many blocks as the smallest cache has: the ring is full of them.
fn large(random: &mut Random) -> Step {
    let first = 1 + random.below(DISK_BLOCKS - 63);
    let write = |block| {
        let class = [Class::Data, Class::Metadata][(block % 2) as usize];
        (
            class,
            block * BLOCK,
            vec![block as u8 ^ 0x55; BLOCK as usize],
        )
    };
    Step::Commit((first..first + 62).map(write).collect(), Vec::new())
}

fn commit(random: &mut Random) -> Step {
    let count = match random.below(8) {
        0 => 30,
        _ => 1 + random.below(6),
    };
    let mut writes = Vec::new();
    for _ in 0..count {
        let block = random.below(DISK_BLOCKS);
        let class = match block % 3 {
            0 => Class::Metadata,
            1 => Class::Data,
            _ if random.one_in(2) => Class::Metadata,
            _ => Class::Data,
        };
        // Whole blocks of noise, some sectors, or sectors of which little changes.
        let (first, sectors) = match random.below(3) {
            0 => (0, 8),
            _ => {
                let first = random.below(8);
                (first, 1 + random.below(8 - first))
            }
        };
        let byte = random.number() as u8;
        writes.push((
            class,
            block * BLOCK + first * 512,
            vec![byte; sectors as usize * 512],
        ));
    }
    let freed = match random.below(5) {
        0 => vec![1 + random.below(DISK_BLOCKS - 1)],
        _ => Vec::new(),
    };
    let is_written = |block: &u64| writes.iter().any(|(_, at, _)| at / BLOCK == *block);
    Step::Commit(
        writes.clone(),
        freed
            .into_iter()
            .filter(|block| !is_written(block))
            .collect(),
    )
}

/// Bytes are there.
fn put(contents: &mut Contents, unknown: &mut [bool], at: u64, bytes: &[u8]) {
    let range = at as usize..at as usize + bytes.len();
    contents[range.clone()].copy_from_slice(bytes);
    unknown[range.start / 512..range.end / 512].fill(false);
}

/// A block is nobody's.
fn forget(unknown: &mut [bool], block: u64) {
    let first = (block * 8) as usize;
    unknown[first..first + 8].fill(true);
}

impl Step {
    /// What it makes of contents. What is freed is of no matter: it is not compared until it is
    /// written again.
    pub fn apply(&self, contents: &mut Contents, unknown: &mut [bool]) {
        match self {
            Step::Commit(writes, freed) => {
                for (_, at, bytes) in writes {
                    put(contents, unknown, *at, bytes);
                }
                freed.iter().for_each(|&block| forget(unknown, block));
            }
            Step::Free(first, count) => {
                (*first..first + count).for_each(|block| forget(unknown, block));
            }
            Step::New(first, count, byte, metadata) => {
                let bytes = vec![*byte; (count * BLOCK) as usize];
                put(contents, unknown, first * BLOCK, &bytes);
                put(
                    contents,
                    unknown,
                    metadata * BLOCK,
                    &[*byte; BLOCK as usize],
                );
            }
            Step::Flush | Step::Through(_) => {}
        }
        Bind::label(contents);
    }

    /// Does it.
    pub fn run(&self, cache: &Arc<Cache>) -> Result<(), cache::CacheError> {
        match self {
            Step::Commit(writes, freed) => {
                let mut transaction = Transaction::default();
                for block in freed {
                    transaction.free(*block);
                }
                for (class, at, bytes) in writes {
                    let mut bytes = bytes.clone();
                    if *at == 0 {
                        Bind::label(&mut bytes);
                    }
                    transaction.write(*class, *at, &bytes);
                }
                cache.commit(transaction)
            }
            Step::Free(first, count) => {
                let mut transaction = Transaction::default();
                (*first..first + count).for_each(|block| transaction.free(block));
                cache.commit(transaction)
            }
            Step::New(first, count, byte, metadata) => {
                let mut transaction = Transaction::default();
                let bytes = vec![*byte; (count * BLOCK) as usize];
                transaction.write_new(first * BLOCK, &bytes);
                let bytes = [*byte; BLOCK as usize];
                transaction.write(Class::Metadata, metadata * BLOCK, &bytes);
                cache.commit(transaction)
            }
            Step::Flush => cache.flush(),
            Step::Through(is_through) => cache.set_through(*is_through),
        }
    }
}
