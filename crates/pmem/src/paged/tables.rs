//! The page tables of the memory's address space. The kernel has one for each 2 MiB of it, of 4
//! KiB, and keeps it when the pages are gone: in the end 1 byte for each 512 that were ever loaded
//! from. It gives a table back when all that it maps is given back at once (Linux 6.14).
//!
//! So the pages are counted that have memory, for each table. The last one to go takes the whole
//! stretch with it, in one call in place of its own:
//!
//! ```text
//! in use: n pages --fill--> n + 1;  --discard--> n - 1
//! 1 page --discard--> taken, by whoever discards --given back--> 0
//! ```
//!
//! > **P6.** Nobody gives a page memory while its table is taken.
//!
//! Whoever fills a page counts it first, and waits while the table is taken, which is for one call
//! of the kernel. So what is given back holds nothing: pages there are absent, and stay so. Who has
//! taken a table waits for nothing.

use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};

use super::Shared;
use crate::PAGE;

/// Pages that a table maps.
const TABLE_PAGES: u64 = 512;
/// Somebody gives the table back.
const TAKEN: u16 = u16::MAX;

pub(super) struct Tables {
    /// Pages before the memory that the first table maps.
    shift: u64,
    /// Pages of the memory.
    pages: u64,
    /// How many pages of each table have memory.
    used: Box<[AtomicU16]>,
}

impl Tables {
    /// For so many pages from an address on.
    pub(super) fn new(address: usize, pages: u64) -> Tables {
        let shift = address as u64 / PAGE % TABLE_PAGES;
        let count = (shift + pages).div_ceil(TABLE_PAGES);
        Tables {
            shift,
            pages,
            used: (0..count).map(|_| AtomicU16::new(0)).collect(),
        }
    }

    /// The parts of consecutive pages that are in one table each, with its number.
    fn parts(&self, pages: Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> + use<> {
        let (shift, mut at) = (self.shift, pages.start);
        std::iter::from_fn(move || {
            let table = (shift + at) / TABLE_PAGES;
            let part = at..((table + 1) * TABLE_PAGES - shift).min(pages.end);
            at = part.end;
            (!part.is_empty()).then_some((table as usize, part))
        })
    }

    /// Of a range of pages those in tables of which any page has memory, in parts. A table without
    /// costs a look at its count.
    pub(super) fn in_use(&self, pages: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let mut at = pages.start;
        std::iter::from_fn(move || {
            let first = (self.shift + at) / TABLE_PAGES;
            let unused = |used: &AtomicU16| used.load(Ordering::Acquire) == 0;
            let rest = self.used.iter().skip(first as usize);
            let skipped = rest.take_while(|&used| unused(used)).count() as u64;
            if skipped > 0 {
                at = (first + skipped) * TABLE_PAGES - self.shift;
            }
            let (_, part) = self.parts(at..pages.end).next()?;
            at = part.end;
            Some(part)
        })
    }

    /// The pages of a table, if all of them are the memory's: it may map others' besides.
    fn whole(&self, table: usize) -> Option<Range<u64>> {
        let start = (table as u64 * TABLE_PAGES).checked_sub(self.shift)?;
        let end = start + TABLE_PAGES;
        (end <= self.pages).then_some(start..end)
    }

    /// Pages are about to get memory.
    fn enter(&self, table: usize, count: u64) {
        let used = &self.used[table];
        let one_more = |n| (n != TAKEN).then(|| n + count as u16);
        while let Err(_taken) = used.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_more) {
            std::thread::yield_now();
        }
    }

    /// Pages are about to lose theirs. Whether they are the last: then the caller has taken the
    /// table.
    fn leave(&self, table: usize, count: u64) -> bool {
        let used = &self.used[table];
        let whole = self.whole(table).is_some();
        let fewer = |n: u16| {
            debug_assert!(n != TAKEN && u64::from(n) >= count, "they have memory");
            let left = n - count as u16;
            Some(if left == 0 && whole { TAKEN } else { left })
        };
        let before = used.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fewer);
        before.is_ok_and(|before| u64::from(before) == count) && whole
    }

    /// A table that the caller has taken is given back.
    fn given_back(&self, table: usize) {
        self.used[table].store(0, Ordering::Release);
    }
}

impl Shared {
    /// Puts contents into absent pages from one on.
    pub(super) fn fill(&self, first: u64, contents: &[u8]) {
        let end = first + contents.len() as u64 / PAGE;
        for (table, part) in self.tables.parts(first..end) {
            self.tables.enter(table, part.end - part.start);
        }
        match &self.faults {
            Some(faults) => faults.fill(first * PAGE, contents),
            None => self.region.write(first * PAGE, contents),
        }
    }

    /// Gives the memory of pages back that nobody loads from or stores to, with their tables if
    /// there are no others in these.
    pub(super) fn discard(&self, first: u64, count: u64) {
        for (table, part) in self.tables.parts(first..first + count) {
            let whole = self.tables.whole(table);
            let last = self.tables.leave(table, part.end - part.start);
            let pages = whole.filter(|_| last).unwrap_or(part);
            let (at, len) = (pages.start * PAGE, (pages.end - pages.start) * PAGE);
            if let Err(error) = self.region.discard(at, len) {
                // They are filled again before anybody looks at them: only the memory is not free.
                log::error!("cannot give memory back: {error}");
            }
            if last {
                self.tables.given_back(table);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_page_takes_its_table_along_if_no_other_memory_is_in_it() {
        // Three pages in the first table, all of the second, one in the third.
        let tables = Tables::new(((1 << 20) - 3) * PAGE as usize, 3 + 512 + 1);
        let parts: Vec<_> = tables.parts(1..516).collect();
        assert_eq!(parts, [(0, 1..3), (1, 3..515), (2, 515..516)]);
        assert_eq!(tables.whole(1), Some(3..515));
        for (table, part) in parts {
            let count = part.end - part.start;
            tables.enter(table, count);
            assert_eq!(tables.leave(table, count), table == 1);
        }
        tables.given_back(1);
        tables.enter(1, 2);
        assert!(!tables.leave(1, 1) && tables.leave(1, 1));
    }

    #[test]
    fn only_tables_in_use_are_looked_at() {
        // Three pages in the first table, three whole ones, one page in the last.
        let tables = Tables::new(((1 << 20) - 3) * PAGE as usize, 3 + 3 * 512 + 1);
        let in_use = |pages| {
            let parts = tables.in_use(pages);
            parts.map(|part| (part.start, part.end)).collect::<Vec<_>>()
        };
        assert_eq!(in_use(0..tables.pages), []);
        tables.enter(2, 1);
        assert_eq!(in_use(0..tables.pages), [(515, 1027)]);
        assert_eq!(in_use(600..1026), [(600, 1026)]);
        assert_eq!(in_use(0..515), []);
        assert_eq!(in_use(1027..tables.pages), []);
        tables.enter(0, 1);
        tables.enter(3, 1);
        tables.enter(4, 1);
        assert_eq!(
            in_use(1..1540),
            [(1, 3), (515, 1027), (1027, 1539), (1539, 1540)]
        );
    }

    #[test]
    fn who_fills_a_page_waits_for_who_gives_its_table_back() {
        let tables = Tables::new(0, TABLE_PAGES);
        tables.enter(0, 1);
        assert!(tables.leave(0, 1));
        std::thread::scope(|scope| {
            let filling = scope.spawn(|| tables.enter(0, 1));
            assert_eq!(tables.used[0].load(Ordering::SeqCst), TAKEN);
            tables.given_back(0);
            filling.join().expect("it went on");
        });
        assert_eq!(tables.used[0].load(Ordering::SeqCst), 1);
    }
}
