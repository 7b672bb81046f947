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
        let steps = (0..2 + random.below(14)).map(|_| match random.below(16) {
            0 => Step::Flush,
            1 => Step::Through(random.one_in(3)),
            _ => commit(random),
        });
        Script {
            steps: steps.collect(),
        }
    }
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

impl Step {
    /// What it makes of contents. What is freed is of no matter: it is not compared until it is
    /// written again.
    pub fn apply(&self, contents: &mut Contents, unknown: &mut [bool]) {
        let Step::Commit(writes, freed) = self else {
            return;
        };
        for (_, at, bytes) in writes {
            let at = *at as usize;
            contents[at..at + bytes.len()].copy_from_slice(bytes);
            unknown[at / 512..(at + bytes.len()) / 512].fill(false);
        }
        for block in freed {
            let first = (block * 8) as usize;
            unknown[first..first + 8].fill(true);
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
            Step::Flush => cache.flush(),
            Step::Through(is_through) => cache.set_through(*is_through),
        }
    }
}
