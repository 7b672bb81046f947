//! Write endurance (SoupFS §3.10): how many lines of the medium each operation writes, where they
//! lie, and how evenly they wear.
//!
//! A line is written to the medium when it is flushed after a store, or stored around the caches;
//! how often it was stored to before that costs nothing. So the counts depend on how many
//! operations are persisted together, and on nothing else: they are the same on any machine.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pmem::{Recorder, StoreKind};
use soupfs::layout::{Geometry, LINE, LINES_PER_PAGE};

use super::claims;
use crate::plan::Plan;
use crate::report::{Cell, Check, Found, Run, Table, Verdict, short};
use crate::target::{Engine, Result, Setup, Target};
use crate::workloads::names;

const LEN: u64 = 256 << 20;
const BLOCK: u64 = 4096;
/// Operations that are persisted together, and those that are persisted one by one.
const TOGETHER: u64 = 10_000;
const ONE_BY_ONE: u64 = 1_000;
/// Of all writes, so many are "almost all".
const ALMOST_ALL: f64 = 0.9;

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let mut worn = Vec::new();
    for (persisted, count, each) in [
        ("together", plan.scaled(TOGETHER), false),
        ("one by one", plan.scaled(ONE_BY_ONE), true),
    ] {
        plan.progress.step(persisted, worn.len(), 2 * OPS.len());
        let all = measure(count, each)?;
        worn.extend(all.into_iter().map(|(op, worn)| (op, persisted, worn)));
    }
    let mut run = Run::new(
        "endurance",
        "lines written to the medium, in-process, counted",
    );
    run.tables = vec![per_operation(&worn), spread(&worn)];
    run.checks = checks(&worn);
    run.notes = vec![
        format!(
            "{} operations persisted together by one sync, or {} with a sync behind each; the same \
             on \
             any machine",
            plan.scaled(TOGETHER),
            plan.scaled(ONE_BY_ONE)
        ),
        "written: flushed after a store, or stored around the caches; what a processor evicts by \
         itself \
         before that is not seen and comes on top"
            .into(),
        "left in caches: stored to and not flushed by the end; written once, whenever it is \
         evicted"
            .into(),
        "journal: the redo log of the words that publish a batch; allocation: bitmaps, summaries, \
         superblock and state; home: entries, inodes, tables and contents, each in its own place"
            .into(),
    ];
    Ok((run, Vec::new()))
}

/// What operations work on.
struct Work<'a> {
    engine: &'a Engine,
    old: Vec<CString>,
    new: Vec<CString>,
    block: Vec<u8>,
    /// Opened for appending, and for writing anywhere.
    log: <Engine as Target>::File,
    data: <Engine as Target>::File,
}

/// An operation, told its number.
type Op = fn(&Work<'_>, usize) -> Result<()>;

/// Each finds what those before it left.
const OPS: [(&str, Op); 6] = [
    ("create+close", |work, i| {
        work.engine.create_close(&work.old[i])
    }),
    ("rename", |work, i| {
        work.engine.rename(&work.old[i], &work.new[i])
    }),
    ("unlink", |work, i| work.engine.unlink(&work.new[i])),
    ("append 4 KiB", |work, _| {
        work.engine.write(work.log, &work.block)
    }),
    ("overwrite 4 KiB, each block once", |work, i| {
        work.engine
            .write_at(work.data, &work.block, i as u64 * BLOCK)
    }),
    ("overwrite 4 KiB, the same block", |work, _| {
        work.engine.write_at(work.data, &work.block, 0)
    }),
];

/// What operations of one kind did to the medium.
#[derive(Debug, Clone, Copy)]
struct Worn {
    ops: u64,
    /// Lines written, by where they lie.
    written: [u64; AREAS.len()],
    /// Lines that are not what the medium has, and will be written some time.
    left: u64,
    /// Different lines.
    lines: u64,
    /// How often the one was that was written most, and where it lies.
    most: u64,
    most_in: Area,
}

/// Parts of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Area {
    Journal,
    Allocation,
    Home,
}

const AREAS: [(Area, &str); 3] = [
    (Area::Journal, "journal"),
    (Area::Allocation, "allocation"),
    (Area::Home, "home"),
];

impl Area {
    fn of(line: u64, geometry: &Geometry) -> Area {
        let page = line / LINES_PER_PAGE;
        let journal = geometry.journal..geometry.journal + geometry.journal_pages;
        let in_region = |region| geometry.allocatable(region).contains(&page);
        match page {
            page if journal.contains(&page) => Area::Journal,
            _ if (0..geometry.regions()).any(in_region) => Area::Home,
            _ => Area::Allocation,
        }
    }

    fn name(self) -> &'static str {
        AREAS[self as usize].1
    }
}

impl Worn {
    fn each(&self, count: u64) -> f64 {
        count as f64 / self.ops as f64
    }

    fn total(&self) -> u64 {
        self.written.iter().sum()
    }

    /// The part of all writes that went to the journal.
    fn journal(&self) -> f64 {
        self.written[Area::Journal as usize] as f64 / self.total().max(1) as f64
    }

    /// Writes of a line that was written at all.
    fn mean(&self) -> f64 {
        self.total() as f64 / self.lines.max(1) as f64
    }
}

/// All operations, so many of each, with a sync behind all of a kind or behind each.
fn measure(count: u64, each: bool) -> Result<Vec<(&'static str, Worn)>> {
    let medium = Arc::new(Medium::default());
    let setup = Setup {
        len: LEN,
        manual: true,
        ..Setup::default()
    };
    let engine = setup.mount("SoupFS", setup.recorded(medium.clone())?)?;
    engine.create_close(c"log")?;
    let block = vec![0x65; BLOCK as usize];
    let work = Work {
        engine: &engine,
        old: names("f", count)?,
        new: names("g", count)?,
        log: engine.open(c"log", true)?,
        data: engine.create(c"data")?,
        block,
    };
    // The first write to a block allocates it, which is an append's matter.
    (0..count as usize).try_for_each(|i| OPS[4].1(&work, i))?;
    let mut all = Vec::new();
    for (name, op) in OPS {
        engine.sync()?;
        medium.begin();
        for i in 0..count as usize {
            op(&work, i)?;
            if each {
                engine.sync()?;
            }
        }
        engine.sync()?;
        all.push((name, medium.worn(count)));
    }
    engine.close(work.log)?;
    engine.close(work.data)?;
    engine.unmount()?;
    Ok(all)
}

/// Sees which lines reach the medium.
#[derive(Default)]
struct Medium(Mutex<Lines>);

#[derive(Default)]
struct Lines {
    /// Stored to through the caches, and not flushed since.
    dirty: HashSet<u64>,
    /// Stored around the caches, and combined until the next fence.
    combined: HashSet<u64>,
    /// How often each was written.
    writes: HashMap<u64, u64>,
}

impl Medium {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts from now on.
    fn begin(&self) {
        *self.lines() = Lines::default();
    }

    fn worn(&self, ops: u64) -> Worn {
        let (lines, geometry) = (self.lines(), Geometry::for_len(LEN));
        let mut written = [0; AREAS.len()];
        for (&line, count) in &lines.writes {
            written[Area::of(line, &geometry) as usize] += count;
        }
        // Of several that were written equally often the first, so that the report is always the
        // same.
        let first = |(line, count): (&u64, &u64)| (*count, std::cmp::Reverse(*line));
        let most = lines.writes.iter().map(first).max();
        let (most, line) = most.map_or((0, 0), |(count, line)| (count, line.0));
        Worn {
            ops,
            written,
            left: lines.dirty.len() as u64,
            lines: lines.writes.len() as u64,
            most,
            most_in: Area::of(line, &geometry),
        }
    }
}

fn lines_of(off: u64, len: u64) -> std::ops::Range<u64> {
    off / LINE..(off + len).div_ceil(LINE)
}

impl Lines {
    fn written(&mut self, line: u64) {
        *self.writes.entry(line).or_default() += 1;
    }
}

impl Recorder for Medium {
    fn store(&self, off: u64, bytes: &[u8], kind: StoreKind) {
        let mut lines = self.lines();
        let touched = lines_of(off, bytes.len() as u64);
        match kind {
            StoreKind::Cached => lines.dirty.extend(touched),
            StoreKind::NonTemporal => lines.combined.extend(touched),
        }
    }

    fn flush(&self, off: u64, len: u64) {
        let mut lines = self.lines();
        for line in lines_of(off, len) {
            // Flushing what is not dirty writes nothing.
            if lines.dirty.remove(&line) {
                lines.written(line);
            }
        }
    }

    fn fence(&self) {
        let mut lines = self.lines();
        let combined = std::mem::take(&mut lines.combined);
        combined.into_iter().for_each(|line| lines.written(line));
    }

    fn mark(&self, _text: &str) {}
}

/// Operation, how it was persisted, what it did.
type Row = (&'static str, &'static str, Worn);

fn per_operation(worn: &[Row]) -> Table {
    let columns = ["operation", "persisted", "lines written/op"].map(str::to_owned);
    let mut columns = columns.to_vec();
    columns.extend(AREAS.map(|(_, name)| format!("{name}/op")));
    columns.push("left in caches/op".into());
    let mut table = Table::with_columns("Lines written to the medium, per operation", columns);
    for &(op, persisted, worn) in worn {
        let mut row: Vec<Cell> = vec![op.into(), persisted.into(), worn.each(worn.total()).into()];
        row.extend(worn.written.map(|count| Cell::from(worn.each(count))));
        row.push(worn.each(worn.left).into());
        table.rows.push(row);
    }
    table
}

fn spread(worn: &[Row]) -> Table {
    let columns = [
        "operation",
        "persisted",
        "different lines",
        "mean writes of a line",
        "most-written line",
        "times the mean",
        "which lies in",
    ];
    let mut table = Table::new("How evenly lines wear", &columns);
    for &(op, persisted, worn) in worn {
        table.row([
            op.into(),
            persisted.into(),
            worn.lines.into(),
            worn.mean().into(),
            worn.most.into(),
            (worn.most as f64 / worn.mean().max(f64::MIN_POSITIVE)).into(),
            worn.most_in.name().into(),
        ]);
    }
    table
}

/// What the paper says, beside counts: no matter of intervals.
fn checks(worn: &[Row]) -> Vec<Check> {
    let journal = |persisted: &str| {
        let rows = worn.iter().filter(|row| row.1 == persisted);
        let parts = rows.map(|(op, _, worn)| format!("{} % ({op})", short(100.0 * worn.journal())));
        parts.collect::<Vec<_>>().join(", ")
    };
    let (together, one_by_one) = (journal("together"), journal("one by one"));
    let almost_all = worn.iter().all(|row| row.2.journal() <= 1.0 - ALMOST_ALL);
    let left = worn.iter().map(|row| row.2.each(row.2.left));
    vec![
        claims::check(
            "SoupFS §3.10: almost all writes to the medium modify the persistent state of the file \
             system, \
             as there is no journal.",
            Some(almost_all),
            format!(
                "Of the lines written, the journal takes {together}; persisted one by one \
                 {one_by_one}."
            ),
            "Ours has a journal, for the words that publish a batch and for no copies of what they \
             lead to: \
             operations that are persisted together share its lines. Almost all is taken to mean \
             nine of ten.",
        ),
        claims::check(
            "SoupFS §3.10: the only exception are latest next pointers in entries, which change in \
             removals alone and mostly stay in the caches until the operation is persisted.",
            Verdict::Unseen,
            String::new(),
            &format!(
                "A line is counted as a whole: that one word of it is such a pointer is not seen. \
                 Behind the last sync at most {} lines for each operation are left in the caches.",
                short(left.fold(0.0, f64::max))
            ),
        ),
        claims::about_others(
            "SoupFS §3.10: its write endurance is expected to be better than that of other file \
             systems \
             for such media, which write temporary copies to a journal.",
            String::new(),
            "The paper measures nothing here.",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_when_it_is_flushed_after_a_store_and_not_before_or_again() {
        let medium = Medium::default();
        let writes = |line: u64| medium.lines().writes.get(&line).copied().unwrap_or(0);
        medium.store(0, &[1; 8], StoreKind::Cached);
        medium.store(8, &[1; 8], StoreKind::Cached);
        assert_eq!(writes(0), 0);
        medium.flush(0, 64);
        medium.flush(0, 64);
        assert_eq!(writes(0), 1);
        // Two stores around the caches to one line, and a byte of the next.
        medium.store(64, &[1; 32], StoreKind::NonTemporal);
        medium.store(96, &[1; 33], StoreKind::NonTemporal);
        assert_eq!((writes(1), writes(2)), (0, 0));
        medium.fence();
        medium.fence();
        assert_eq!((writes(1), writes(2)), (1, 1));
    }

    #[test]
    fn one_block_wears_with_each_sync_and_not_with_each_overwrite() {
        let count = 40;
        let of = |each| measure(count, each).unwrap().last().unwrap().1;
        let (together, one_by_one) = (of(false), of(true));
        let home = |worn: Worn| worn.written[Area::Home as usize];
        assert!((64..64 + count).contains(&home(together)), "{together:?}");
        assert!(home(one_by_one) >= 64 * count, "{one_by_one:?}");
        assert_eq!(one_by_one.most, count, "{one_by_one:?}");
    }

    #[test]
    fn the_parts_of_an_image_are_told_apart() {
        let geometry = Geometry::for_len(LEN);
        let of = |page: u64| Area::of(page * LINES_PER_PAGE, &geometry);
        assert_eq!(of(0), Area::Allocation);
        assert_eq!(of(geometry.journal), Area::Journal);
        assert_eq!(of(geometry.map_start(0)), Area::Allocation);
        assert_eq!(of(geometry.map_end(0)), Area::Home);
        assert_eq!(of(geometry.pages - 1), Area::Allocation);
    }
}
