//! Crash states of what was written, by the assumptions of `docs/design/block.md`.
//!
//! What may be found in a sector: what it held at one instant between two stores, not earlier than
//! its newest durable flush. The stores of one thread have an order, so the instants are known.

use std::collections::BTreeMap;

use block::{Fault, Random, SECTOR};
use rustix::io::Errno;
use testing::for_seeds;

use super::{SMALL, World, first_contents, ways, world};
use crate::PAGE;
use crate::paged::Options;

const PAGES: u64 = 24;

/// A program of stores, flushes and fences, and what each sector has held so far.
struct Program {
    random: Random,
    now: Vec<u8>,
    /// By sector: its contents after each store to it, oldest first.
    versions: BTreeMap<u64, Vec<Vec<u8>>>,
    /// By sector: the version that it had when it was flushed; to be durable with the next fence.
    flushed: BTreeMap<u64, usize>,
    /// By sector: the oldest version that may be found; and so with each fence that succeeded.
    durable: Vec<BTreeMap<u64, usize>>,
}

impl Program {
    fn new(seed: u64) -> Program {
        let now = first_contents(PAGES);
        let sectors = now
            .chunks(SECTOR as usize)
            .map(|sector| vec![sector.to_vec()]);
        Program {
            random: Random::new(seed),
            versions: (0..).zip(sectors).collect(),
            now,
            flushed: BTreeMap::new(),
            durable: vec![BTreeMap::new()],
        }
    }

    /// A range store is one instant in each page.
    fn store(&mut self, world: &World) {
        let hot = self.random.one_in(2);
        let end = if hot { 3 * SECTOR } else { PAGES * PAGE };
        let off = self.random.below(end / 8) * 8;
        let room = PAGE - off % PAGE;
        let len = match self.random.below(3) {
            0 => 8,
            1 => room.min(64),
            _ => room.min(2 * SECTOR),
        };
        let bytes: Vec<_> = (0..len).map(|_| self.random.number() as u8).collect();
        self.now[off as usize..][..len as usize].copy_from_slice(&bytes);
        for sector in off / SECTOR..(off + len).div_ceil(SECTOR) {
            let at = (sector * SECTOR) as usize;
            let version = self.now[at..][..SECTOR as usize].to_vec();
            self.versions.entry(sector).or_default().push(version);
        }
        world.paged.write(off, &bytes);
    }

    fn flush(&mut self, world: &World) {
        let off = self.random.below(PAGES * PAGE);
        let len = (1 + self.random.below(4 * PAGE)).min(PAGES * PAGE - off);
        world.paged.flush(off, len);
        for sector in off / SECTOR..(off + len).div_ceil(SECTOR) {
            self.flushed
                .insert(sector, self.versions[&sector].len() - 1);
        }
    }

    /// Marks how many fences have succeeded.
    fn fence(&mut self, world: &World) -> bool {
        let fenced = world.paged.fence().is_ok();
        if fenced {
            let mut durable = self.durable.last().expect("one at least").clone();
            durable.append(&mut self.flushed);
            self.durable.push(durable);
            world.recorder.mark((self.durable.len() - 1).to_string());
        }
        fenced
    }

    /// Runs until a fence fails.
    fn run(&mut self, world: &World, steps: u32) {
        for _ in 0..steps {
            let fenced = match self.random.below(12) {
                0 => self.fence(world),
                1 | 2 => {
                    self.flush(world);
                    true
                }
                _ => {
                    self.store(world);
                    true
                }
            };
            if !fenced {
                return;
            }
        }
    }

    /// The first sector of an image that holds what it must not.
    fn wrong(&self, image: &[u8], fences: usize) -> Option<u64> {
        let durable = &self.durable[fences];
        let mut sectors = (0..).zip(image.chunks(SECTOR as usize));
        let wrong = |&(sector, found): &(u64, &[u8])| {
            let oldest = durable.get(&sector).copied().unwrap_or(0);
            let versions = &self.versions[&sector][oldest..];
            !versions.iter().any(|version| version == found)
        };
        sectors.find(wrong).map(|(sector, _)| sector)
    }
}

/// The first crash state, by its token, that is not right, and where.
fn first_wrong(world: &World, program: &Program, states: usize) -> Option<String> {
    let trace = world.recorder.trace();
    for point in trace.points() {
        let mark = trace.marks(point).last();
        let fences = mark.map_or(0, |mark| mark.parse().expect("a number"));
        let crash = trace.crash(point);
        for token in crash.states(states, 0) {
            let image = crash.image(token.state).expect("a state of this point");
            if let Some(sector) = program.wrong(&image, fences) {
                return Some(format!("{token}: sector {sector}"));
            }
        }
    }
    None
}

#[test]
fn what_was_fenced_is_in_every_crash_state_and_no_sector_is_mixed() {
    for_seeds(12, |seed| {
        ways(SMALL).iter().for_each(|way| survive(way, seed));
    });
}

/// All crash states of a program are right.
pub(super) fn survive(way: &Options, seed: u64) {
    let world = world(first_contents(PAGES), way);
    world.faults.reorder(seed);
    let mut program = Program::new(seed);
    program.run(&world, 250);
    assert_eq!(first_wrong(&world, &program, 30), None);
    assert!(program.durable.len() > 5 && world.paged.stats().dropped > 10);
}

#[test]
fn a_fence_that_does_nothing_is_noticed() {
    let world = world(first_contents(PAGES), &Options::new(SMALL));
    let mut program = Program::new(1);
    program.run(&world, 100);
    program.store(&world);
    // What is in memory is taken for durable.
    let newest = program
        .versions
        .iter()
        .map(|(sector, all)| (*sector, all.len() - 1));
    let durable = newest.collect();
    let last = program.durable.len();
    program.durable.push(durable);
    world.recorder.mark(last.to_string());
    assert!(first_wrong(&world, &program, 30).is_some());
}

#[test]
fn after_a_fault_of_any_request_what_was_fenced_is_there() {
    for_seeds(2, |seed| fail_at_each_request(&Options::new(SMALL), seed));
}

/// Each request of a program fails in each way, and what was fenced is there.
pub(super) fn fail_at_each_request(options: &Options, seed: u64) {
    let fault = |kind: usize| match kind {
        0 => Fault::Fail(Errno::IO),
        1 => Fault::FailDone(Errno::NOSPC),
        2 => Fault::Short(Errno::IO),
        _ => Fault::Vanish,
    };
    let requests = {
        let world = world(first_contents(PAGES), options);
        Program::new(seed).run(&world, 120);
        world.faults.seen().len()
    };
    // The first one is the flush at opening.
    for number in 1..requests {
        for kind in 0..4 {
            let world = world(first_contents(PAGES), options);
            world.faults.plan(number, fault(kind));
            let mut program = Program::new(seed);
            program.run(&world, 120);
            let wrong = first_wrong(&world, &program, 6);
            assert_eq!(wrong, None, "request {number}, {:?}", fault(kind));
            let poisoned = world.paged.poisoned().is_some();
            assert!(!poisoned || world.paged.fence().is_err());
        }
    }
}
