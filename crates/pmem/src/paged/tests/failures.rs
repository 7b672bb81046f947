//! A disk that fails.

use block::{Fault, Op};
use rustix::io::Errno;

use super::{SMALL, contents, first_contents, ways, world};
use crate::PAGE;

const PAGES: u64 = 64;

#[test]
fn after_a_failed_write_memory_has_everything_and_no_fence_succeeds() {
    for way in ways(SMALL) {
        let mut expected = first_contents(PAGES);
        let world = world(expected.clone(), &way);
        let paged = &world.paged;
        let store = |expected: &mut Vec<u8>, page: u64, value: u64| {
            paged.store(page * PAGE, value);
            expected[(page * PAGE) as usize..][..8].copy_from_slice(&value.to_le_bytes());
        };
        store(&mut expected, 1, 11);
        paged.flush(PAGE, 8);
        world
            .faults
            .plan(world.faults.seen().len(), Fault::Fail(Errno::NOSPC));
        let error = paged.fence().expect_err("a fault");
        assert_eq!((error.errno, error.action.op), (Errno::NOSPC, Op::Write));
        assert_eq!(paged.poisoned(), Some(error.clone()));
        assert_eq!(paged.fence(), Err(error));
        // Nobody waits for room, and nothing that the disk does not have is dropped.
        (2..PAGES).for_each(|page| store(&mut expected, page, 100 + page));
        assert!(contents(paged) == expected);
        let writes = |op: &&Op| **op == Op::Write;
        assert_eq!(world.faults.seen().iter().filter(writes).count(), 1);
    }
}

#[test]
fn a_page_that_cannot_be_read_is_zeros_and_nothing_is_written_after() {
    for way in ways(SMALL) {
        let first = first_contents(PAGES);
        let world = world(first.clone(), &way);
        world.paged.store(0, 1);
        let fail_next = || {
            world
                .faults
                .plan(world.faults.seen().len(), Fault::Fail(Errno::IO))
        };
        fail_next();
        // A checked access has no consequences.
        let error = world.paged.prefetch(5 * PAGE, 1).expect_err("a fault");
        assert_eq!((error.errno, error.action.op), (Errno::IO, Op::Read));
        assert_eq!(world.paged.poisoned(), None);
        assert_eq!(
            world.paged.load(5 * PAGE).to_le_bytes(),
            first[5 * PAGE as usize..][..8]
        );
        fail_next();
        assert!(!world.paged.has_blanks());
        assert_eq!(world.paged.load(9 * PAGE), 0);
        assert!(world.paged.has_blanks());
        let error = world.paged.poisoned();
        assert!(error.is_some());
        // Who asks is told, and of other pages there is nothing to tell.
        assert_eq!(world.paged.prefetch(9 * PAGE, 1).err(), error);
        assert_eq!(world.paged.prefetch(10 * PAGE, 1), Ok(()));
        assert_eq!(world.paged.prefetch(10 * PAGE - 1, 2).err(), error);
        world.paged.flush(0, 8);
        assert!(world.paged.fence().is_err());
        assert!(world.memory.contents() == first);
    }
}

#[test]
fn a_failure_of_what_is_read_ahead_is_none() {
    for way in ways(64 * PAGE) {
        let first = first_contents(PAGES);
        let world = world(first.clone(), &way);
        world.paged.load(0);
        // The second miss reads ahead, and then what it needs.
        world
            .faults
            .plan(world.faults.seen().len(), Fault::Fail(Errno::IO));
        let loaded = world.paged.load(PAGE);
        assert_eq!(loaded.to_le_bytes(), first[PAGE as usize..][..8]);
        assert_eq!(world.paged.poisoned(), None);
        assert!(contents(&world.paged) == first);
        assert!(world.paged.stats().read_ahead > 0);
    }
}

/// Ranges that are scattered over the pages, with neighbours and pages that are met twice.
fn scattered() -> impl Iterator<Item = (u64, u64)> {
    let words = (0..PAGES / 3).map(|n| (n * 3 * PAGE + 8, 8));
    words.chain([(9 * PAGE - 4, 8), (9 * PAGE, 2 * PAGE)])
}

#[test]
fn many_pages_are_brought_in_and_one_that_cannot_be_read_stays_absent() {
    for way in ways(64 * PAGE) {
        for fails in [None, Some(0), Some(4)] {
            let first = first_contents(PAGES);
            let world = world(first.clone(), &way);
            let before = world.faults.seen().len();
            if let Some(number) = fails {
                world.faults.plan(before + number, Fault::Fail(Errno::IO));
            }
            world.paged.prefetch_many(scattered());
            let is_read = |op: &&Op| **op == Op::Read;
            let reads = world.faults.seen()[before..].iter().filter(is_read).count();
            // Pages 8 to 10 are one read.
            assert_eq!(reads as u64, PAGES / 3);
            assert_eq!(world.paged.poisoned(), None);
            // Who needs it reads it.
            for (off, _) in scattered() {
                let word = (off & !7) as usize;
                let loaded = world.paged.load(word as u64);
                assert_eq!(loaded.to_le_bytes(), first[word..][..8]);
            }
            let reads_again = world.faults.seen().len() - before - reads;
            assert_eq!(reads_again, usize::from(fails.is_some()));
            assert!(contents(&world.paged) == first);
        }
    }
}

#[test]
fn many_pages_that_are_more_than_there_is_room_for_are_brought_in_all_the_same() {
    for way in ways(SMALL) {
        let first = first_contents(PAGES);
        let world = world(first.clone(), &way);
        world.paged.store(3 * PAGE, 7);
        world.paged.prefetch_many([(0, PAGES * PAGE)].into_iter());
        assert_eq!(world.paged.load(3 * PAGE), 7);
        assert!(contents(&world.paged)[4 * PAGE as usize..] == first[4 * PAGE as usize..]);
    }
}

#[test]
fn contents_that_a_disk_cannot_discard_stay() {
    for way in ways(SMALL) {
        let mut expected = first_contents(PAGES);
        let world = world(expected.clone(), &way);
        let paged = &world.paged;
        paged.store(3 * PAGE, 7);
        expected[3 * PAGE as usize..][..8].copy_from_slice(&7_u64.to_le_bytes());
        let refuse = Fault::Fail(Errno::OPNOTSUPP);
        world.faults.plan(world.faults.seen().len(), refuse);
        let error = paged.discard(2 * PAGE, 4 * PAGE).expect_err("a fault");
        assert_eq!(error.errno, Errno::OPNOTSUPP);
        assert_eq!(paged.poisoned(), None);
        assert!(contents(paged) == expected);
        paged.flush(3 * PAGE, 8);
        paged.fence().expect("no fault");
        assert!(world.memory.contents() == expected);
    }
}
