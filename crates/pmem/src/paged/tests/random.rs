//! Random loads and stores of all kinds beside a plain array, with a cache of a few pages.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::{Duration, Instant};

use block::Random;
use testing::for_seeds;

use super::{SMALL, contents, first_contents, ways, world};
use crate::paged::{Options, Paged, Stats};
use crate::{LINE, PAGE};

const PAGES: u64 = 40;

/// Somebody who uses lines of the memory that nobody else does, and knows what they hold. Sectors
/// and pages are shared with all others.
struct User<'a> {
    paged: &'a Paged,
    random: Random,
    number: u64,
    users: u64,
    expected: Vec<u8>,
}

impl User<'_> {
    /// One of its own lines.
    fn line(&mut self) -> u64 {
        let lines = self.paged.len() / LINE / self.users;
        // Mostly near each other, so that pages are used again.
        let near = self.random.below(lines / 8);
        let any = self.random.below(lines);
        let line = if self.random.one_in(4) { any } else { near };
        (line * self.users + self.number) * LINE
    }

    fn word(&mut self) -> u64 {
        self.line() + 8 * self.random.below(8)
    }

    fn expect(&mut self, off: u64, bytes: &[u8]) {
        self.expected[off as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn expected_word(&self, off: u64) -> u64 {
        let bytes = &self.expected[off as usize..][..8];
        u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| self.random.number() as u8).collect()
    }

    fn step(&mut self) {
        let value = self.random.number();
        match self.random.below(12) {
            0..=2 => {
                let off = self.word();
                assert_eq!(self.paged.load(off), self.expected_word(off), "at {off}");
            }
            3 => {
                let off = self.word();
                self.paged.store(off, value);
                self.expect(off, &value.to_le_bytes());
            }
            4 => self.update(value),
            5 | 6 => {
                let line = self.line();
                let from = self.random.below(LINE);
                let len = 1 + self.random.below(LINE - from);
                let bytes = self.bytes(len);
                self.paged.write(line + from, &bytes);
                self.expect(line + from, &bytes);
            }
            7 => {
                let (line, bytes) = (self.line(), self.bytes(LINE));
                self.paged.write_lines(line, &bytes);
                self.expect(line, &bytes);
            }
            8 => {
                let line = self.line();
                self.paged.zero(line, LINE);
                self.expect(line, &[0; LINE as usize]);
            }
            9 => self.read(),
            10 => {
                let (off, len) = (self.line(), 1 + self.random.below(2 * PAGE));
                self.paged.flush(off, len.min(self.paged.len() - off));
            }
            _ => match self.random.below(4) {
                0 => self.paged.fence().expect("no fault"),
                1 => self.paged.prefetch(self.line(), LINE).expect("no fault"),
                _ if self.users == 1 => self.long(),
                _ => {}
            },
        }
    }

    fn update(&mut self, value: u64) {
        let off = self.word();
        let old = self.expected_word(off);
        let exchange = |word: &AtomicU64, from: u64| {
            let exchanged = word.compare_exchange(from.to_le(), value.to_le(), AcqRel, Acquire);
            exchanged.map(u64::from_le).map_err(u64::from_le)
        };
        let (found, new) = match self.random.below(4) {
            0 => {
                let or = |word: &AtomicU64| word.fetch_or(value.to_le(), AcqRel);
                (u64::from_le(self.paged.update(off, or)), old | value)
            }
            1 => {
                let and = |word: &AtomicU64| word.fetch_and(value.to_le(), AcqRel);
                (u64::from_le(self.paged.update(off, and)), old & value)
            }
            2 => {
                let found = self.paged.update(off, |word| exchange(word, old));
                (found.expect("it is the old value"), value)
            }
            _ => {
                let found = self.paged.update(off, |word| exchange(word, old ^ 1));
                (found.expect_err("it is another value"), old)
            }
        };
        assert_eq!(found, old, "at {off}");
        self.expect(off, &new.to_le_bytes());
    }

    /// Reads lines of all users, and looks at its own.
    fn read(&mut self) {
        let line = self.line();
        let len = (1 + self.random.below(2 * PAGE)).min(self.paged.len() - line);
        let mut read = vec![0; len as usize];
        self.paged.read(line, &mut read);
        for at in (0..len).step_by((self.users * LINE) as usize) {
            let own = at as usize..(at + LINE).min(len) as usize;
            let expected = &self.expected[line as usize..][own.clone()];
            assert_eq!(&read[own], expected, "at {line} + {at}");
        }
    }

    /// Stores to more than one page, or gives some up.
    fn long(&mut self) {
        if self.random.one_in(4) {
            return self.give_up();
        }
        let (line, len) = (self.line(), self.random.below(3 * PAGE));
        let bytes = self.bytes(len.min(self.paged.len() - line));
        self.paged.write(line, &bytes);
        self.expect(line, &bytes);
    }

    fn give_up(&mut self) {
        let first = self.random.below(PAGES);
        let count = self.random.below(4).min(PAGES - first);
        let (off, len) = (first * PAGE, count * PAGE);
        self.paged.discard(off, len).expect("no fault");
        self.expect(off, &vec![0; len as usize]);
        assert_eq!(self.paged.differs_from(off, off + len), off + len);
    }
}

fn user(paged: &Paged, number: u64, users: u64, seed: u64) -> User<'_> {
    User {
        paged,
        random: Random::new(seed * users + number),
        number,
        users,
        expected: first_contents(PAGES),
    }
}

/// A thread that writes out may have yet to let go of the last pages that it has copied. Then they
/// make way for others.
fn not_too_many(paged: &Paged) -> Stats {
    let start = Instant::now();
    loop {
        let stats = paged.stats();
        if stats.pages <= stats.cache_bytes / PAGE + 1 {
            return stats;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{stats:?}");
        contents(paged);
    }
}

#[test]
fn it_is_as_a_plain_array() {
    for_seeds(40, |seed| {
        for way in ways(SMALL + seed % 5 * PAGE) {
            let world = world(first_contents(PAGES), &way);
            if seed % 2 == 1 {
                world.faults.reorder(seed);
            }
            let mut user = user(&world.paged, 0, 1, seed);
            for _ in 0..1500 {
                user.step();
                let stats = world.paged.stats();
                // While pages are being copied, others may be there that are too many.
                let cache = stats.cache_bytes / PAGE;
                assert!(stats.pages <= cache / 4 * 6, "{stats:?}");
                assert!(stats.unclean <= cache / 4 * 3, "{stats:?}");
            }
            let expected = std::mem::take(&mut user.expected);
            assert!(contents(&world.paged) == expected);
            world.paged.flush(0, PAGES * PAGE);
            world.paged.fence().expect("no fault");
            assert!(contents(&world.paged) == expected);
            assert_eq!(world.paged.stats().unclean, 0, "nobody stores");
            let stats = not_too_many(&world.paged);
            assert!(stats.dropped > 100 && stats.soft_misses > 0, "{stats:?}");
            assert!(world.memory.contents() == expected);
        }
    });
}

/// What each user expects at its lines.
fn together(users: &[User<'_>]) -> Vec<u8> {
    let mut all = first_contents(PAGES);
    for user in users {
        for line in (user.number..PAGES * PAGE / LINE).step_by(user.users as usize) {
            let own = (line * LINE) as usize..((line + 1) * LINE) as usize;
            all[own.clone()].copy_from_slice(&user.expected[own]);
        }
    }
    all
}

/// Threads that share sectors and pages lose nothing.
pub(super) fn threads_beside_arrays(way: &Options, seed: u64, count: u64, steps: usize) {
    let world = world(first_contents(PAGES), way);
    if seed % 2 == 1 {
        world.faults.reorder(seed);
    }
    let mut users: Vec<_> = (0..count)
        .map(|number| user(&world.paged, number, count, seed))
        .collect();
    std::thread::scope(|scope| {
        for user in &mut users {
            scope.spawn(|| (0..steps).for_each(|_| user.step()));
        }
    });
    let expected = together(&users);
    world.paged.flush(0, PAGES * PAGE);
    world.paged.fence().expect("no fault");
    assert!(world.memory.contents() == expected);
    assert!(contents(&world.paged) == expected);
    let stats = world.paged.stats();
    assert!(stats.pages <= stats.cache_bytes / PAGE + 1, "{stats:?}");
}

fn in_all_ways(seed: u64, count: u64, steps: usize) {
    for way in ways(SMALL) {
        threads_beside_arrays(&way, seed, count, steps);
    }
}

#[test]
fn threads_that_share_sectors_lose_nothing() {
    for_seeds(8, |seed| in_all_ways(seed, 4, 3000));
}

#[test]
fn more_threads_than_slots_lose_nothing() {
    for_seeds(1, |seed| in_all_ways(seed, 80, 100));
}
