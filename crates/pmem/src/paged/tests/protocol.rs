//! The rules of `docs/design/page.md`, each where it can be seen.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use block::device::Op;
use block::record::{Change, Event};

use super::{SMALL, World, first_contents, ways, world};
use crate::PAGE;
use crate::paged::{Options, Paged};

/// How long a change of two steps takes.
const STEP: Duration = Duration::from_micros(10);

/// The writes since an event, with what they wrote.
fn writes(world: &World, since: usize) -> Vec<(u64, Vec<u8>)> {
    let trace = world.recorder.trace();
    let writes = trace.events[since..]
        .iter()
        .filter_map(|event| match event {
            Event::Submitted(Change::Write { at, bytes }) => Some((*at, bytes.to_vec())),
            _ => None,
        });
    writes.collect()
}

fn events(world: &World) -> usize {
    world.recorder.trace().events.len()
}

#[test]
fn faults_are_served_where_that_is_asked_for() {
    for way in ways(SMALL) {
        let world = world(vec![0; 64 * PAGE as usize], &way);
        if way.faults && !world.paged.by_faults() {
            testing::skip!("needs userfaultfd, which is refused here");
        }
        assert_eq!(world.paged.by_faults(), way.faults);
    }
}

#[test]
fn a_fence_writes_the_stored_sectors_of_flushed_ranges_and_no_others() {
    for way in ways(SMALL) {
        let world = world(vec![0; 64 * PAGE as usize], &way);
        let paged = &world.paged;
        paged.store(8, 1);
        paged.store(512 * 3, 2); // of the same page, and not flushed
        paged.write(PAGE + 500, &[3; 20]); // two sectors
        paged.store(5 * PAGE, 4); // not flushed
        paged.flush(8, 8);
        paged.flush(PAGE, PAGE);
        paged.flush(9 * PAGE, PAGE); // not stored to
        let before = events(&world);
        paged.fence().expect("no fault");
        let places = |since| {
            let writes = writes(&world, since).into_iter();
            writes
                .map(|(at, bytes)| (at, bytes.len()))
                .collect::<Vec<_>>()
        };
        assert_eq!(places(before), [(0, 512), (PAGE, 1024)]);
        let trace = world.recorder.trace();
        let flushes = |event: &&Event| **event == Event::Submitted(Change::Flush);
        assert_eq!(trace.events[before..].iter().filter(flushes).count(), 1);
        // Nothing of that is written again; what was left is written when it is flushed.
        let before = events(&world);
        paged.flush(0, 6 * PAGE);
        paged.fence().expect("no fault");
        assert_eq!(places(before), [(512 * 3, 512), (5 * PAGE, 512)]);
        // A fence with nothing flushed asks for nothing.
        let before = events(&world);
        paged.fence().expect("no fault");
        assert_eq!(events(&world), before);
    }
}

/// Runs a fence in another thread, and something else while its writes are held back.
fn while_a_fence_is_in_flight(world: &World, meanwhile: impl FnOnce(&Paged)) {
    std::thread::scope(|scope| {
        let held = world.watch.hold(Op::Write);
        let fence = scope.spawn(|| world.paged.fence());
        world.watch.await_held(1);
        meanwhile(&world.paged);
        drop(held);
        fence.join().expect("no panic").expect("no fault");
    });
}

#[test]
fn writes_in_flight_keep_neither_stores_nor_readers_waiting() {
    for way in ways(SMALL) {
        let first = first_contents(64);
        let world = world(first.clone(), &way);
        world.paged.store(0, 1);
        world.paged.flush(0, 8);
        while_a_fence_is_in_flight(&world, |paged| {
            // P3: a sector that was copied may be stored to at once.
            paged.store(0, 2);
            assert_eq!(paged.load(0), 2);
            // Readers drop pages, so that there is room for what they read; not this one (P5).
            for page in (1..64).chain(1..64) {
                let expected = &first[(page * PAGE) as usize..][..8];
                assert_eq!(paged.load(page * PAGE).to_le_bytes(), expected);
            }
            assert!(paged.stats().dropped > 0);
            assert_eq!(paged.load(0), 2);
        });
        // What was stored meanwhile is not lost, and written when it is flushed.
        let before = events(&world);
        world.paged.flush(0, 8);
        world.paged.fence().expect("no fault");
        assert_eq!(writes(&world, before)[0].1[..8], 2_u64.to_le_bytes());
    }
}

/// Pages far from each other, so that nothing is read ahead.
#[test]
fn reads_of_many_threads_are_in_flight_together() {
    const THREADS: u64 = 24;
    const APART: u64 = 128;
    for way in ways(8 * THREADS * PAGE) {
        let first = first_contents(THREADS * APART);
        let world = world(first.clone(), &way);
        let (paged, first) = (&world.paged, &first);
        std::thread::scope(|scope| {
            let held = world.watch.hold(Op::Read);
            for page in (0..THREADS).map(|thread| thread * APART) {
                let expected = &first[(page * PAGE) as usize..][..8];
                scope.spawn(move || assert_eq!(paged.load(page * PAGE).to_le_bytes(), expected));
            }
            world.watch.await_held(THREADS as usize);
            drop(held);
        });
        assert_eq!(paged.stats().misses, THREADS);
    }
}

#[test]
fn two_writes_of_a_sector_are_never_in_flight_together() {
    // The layer that watches would panic.
    for way in ways(SMALL) {
        let world = world(vec![0; 64 * PAGE as usize], &way);
        world.paged.store(0, 1);
        world.paged.flush(0, 8);
        while_a_fence_is_in_flight(&world, |paged| {
            paged.store(0, 2);
            // More than half of the cache is unclean, so that it is written out, but for this page.
            for page in 1..6 {
                paged.store(page * PAGE, page);
            }
        });
        world.paged.flush(0, 64 * PAGE);
        world.paged.fence().expect("no fault");
        assert_eq!(world.memory.contents()[..8], 2_u64.to_le_bytes());
    }
}

/// Changes a word in two steps, over and over, while another thread writes it out; returns whether
/// it was written between the steps.
pub(super) fn tears(options: &Options, rounds: u64) -> bool {
    let world = world(vec![0; 64 * PAGE as usize], options);
    let stop = AtomicBool::new(false);
    let in_two_steps = |word: &AtomicU64| {
        word.fetch_add(1, Ordering::Relaxed);
        let begun = Instant::now();
        while begun.elapsed() < STEP {
            std::hint::spin_loop();
        }
        word.fetch_add(1, Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                world.paged.update(512, in_two_steps);
            }
        });
        for _ in 0..rounds {
            world.paged.flush(512, 8);
            world.paged.fence().expect("no fault");
        }
        stop.store(true, Ordering::Relaxed);
    });
    let writes = writes(&world, 0);
    writes.iter().any(|(_, bytes)| bytes[0] % 2 == 1)
}

#[test]
fn a_written_sector_is_as_it_was_at_one_instant() {
    for way in ways(SMALL) {
        assert!(!tears(&way, 3000));
    }
}
