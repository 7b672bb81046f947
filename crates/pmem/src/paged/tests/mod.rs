//! Tests of paged memory: beside a plain array, under faults, and after crashes.

mod bugs;
mod crashes;
mod failures;
mod holes;
mod protocol;
mod random;
mod watch;

use std::sync::Arc;

use block::{Disk, Faults, Memory, Random, Recorder};

use super::bug::Bugs;
use super::{Options, Paged};
use crate::PAGE;
use watch::Watch;

/// Bytes of a cache of the smallest size.
const SMALL: u64 = 8 * PAGE;

/// Paged memory on a device in memory, with layers between.
struct World {
    paged: Paged,
    faults: Arc<Faults>,
    watch: Arc<Watch>,
    recorder: Arc<Recorder>,
    memory: Arc<Memory>,
}

/// What a world starts with.
fn first_contents(pages: u64) -> Vec<u8> {
    let mut random = Random::new(pages);
    (0..pages * PAGE / 8)
        .flat_map(|_| random.number().to_le_bytes())
        .collect()
}

fn world(contents: Vec<u8>, options: &Options) -> World {
    let memory = Arc::new(Memory::from_bytes(contents));
    let recorder = Arc::new(Recorder::new(memory.clone()));
    let watch = Arc::new(Watch::new(recorder.clone()));
    let faults = Arc::new(Faults::new(watch.clone()));
    let disk = Disk::new(faults.clone());
    World {
        paged: Paged::new(disk, options).expect("a disk without faults"),
        faults,
        watch,
        recorder,
        memory,
    }
}

/// The ways to hold a disk in memory.
fn ways(cache_bytes: u64) -> Vec<Options> {
    let both = [false, true];
    let ways = both
        .into_iter()
        .flat_map(|faults| both.map(|membarrier| (faults, membarrier)));
    let ways = ways.map(|(faults, membarrier)| Options {
        cache_bytes,
        faults,
        membarrier,
        bugs: Bugs::default(),
    });
    ways.collect()
}

/// Everything as `read` shows it.
fn contents(paged: &Paged) -> Vec<u8> {
    let mut bytes = vec![0; paged.len() as usize];
    paged.read(0, &mut bytes);
    bytes
}
