//! Any crash leaves a database as it was behind some transaction, and not before one that had
//! returned.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::Random;
use explorer::image::{Image, Overlay};
use explorer::medium::Tears;
use explorer::rules::Rules;
use explorer::scratch::{Scratch, pool_of};

use explorer::trace::Trace;
use pmem::Domain;
use rusqlite::Connection;
use soupfs::Mode;

use crate::common::{connect, format, integrity, mount};

const IMAGE_BYTES: u64 = 8 << 20;
const TRANSACTIONS: u64 = 12;

/// What a medium promises, and how it is mounted.
type Medium = (Domain, Mode);
/// Where a transaction without a journal is torn.
const DELAYED: Medium = (Domain::Line, Mode::Delayed);

/// What a database holds.
type Rows = Vec<(i64, String)>;

fn rows(connection: &Connection) -> rusqlite::Result<Rows> {
    let mut all = connection.prepare("SELECT id, text FROM t ORDER BY id")?;
    all.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// A path of its own for a file system in memory.
fn place() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("/memory/crash-{}", NEXT.fetch_add(1, Ordering::Relaxed)).into()
}

/// A transaction of several statements, by a seed.
fn transaction(connection: &Connection, random: &mut Random) {
    let transaction = connection.unchecked_transaction().expect("begun");
    for _ in 0..=random.below(6) {
        let (id, len) = (random.below(40), random.below(3000));
        let row = (id as i64, len as i64);
        let statement = match random.below(4) {
            0 => "DELETE FROM t WHERE id % 5 = ?1 % 5 AND id > ?2 % 40",
            _ => "INSERT OR REPLACE INTO t VALUES (?1, substr(hex(zeroblob(?2)), 1, ?2) || ?1)",
        };
        transaction.execute(statement, row).expect("executed");
    }
    transaction.commit().expect("committed");
}

/// Runs transactions on a recorded medium: the image before, the trace, what the database held
/// behind each of them, and how long the trace was then.
fn run(seed: u64, (domain, mode): Medium, setup: &str) -> (Image, Arc<Trace>, Vec<(Rows, usize)>) {
    let empty = Arc::new(pool_of(&Image::zeros(IMAGE_BYTES), domain, None));
    format(&empty);
    let start = explorer::scratch::Device::Memory(empty).image();
    let trace = Trace::new(&[]);
    let pool = Arc::new(pool_of(&start, domain, Some(trace.clone())));
    let (place, mut random) = (place(), Random::new(seed));
    tureen_sqlite::attach(&place, mount(pool, mode));
    let connection = connect(&place.join("app.db"));
    connection.execute_batch(setup).expect("set");
    connection
        .execute_batch("CREATE TABLE t(id INTEGER PRIMARY KEY, text TEXT)")
        .expect("made");
    let mut behind = vec![(Rows::new(), trace.len())];
    for _ in 0..TRANSACTIONS {
        transaction(&connection, &mut random);
        behind.push((rows(&connection).expect("read"), trace.len()));
    }
    drop(connection);
    tureen_sqlite::detach(&place);
    (start, trace, behind)
}

/// What is wrong with a crash state.
fn judge(state: &Image, behind: &[(Rows, usize)], at: usize) -> Result<(), String> {
    let place = place();
    let pool = Arc::new(pool_of(state, Domain::Cache, None));
    tureen_sqlite::attach(&place, mount(pool, Mode::Strong));
    let connection = connect(&place.join("app.db"));
    let found = rows(&connection).map_err(|e| e.to_string());
    let integrity = integrity(&connection);
    drop(connection);
    tureen_sqlite::detach(&place);
    if integrity != "ok" {
        return Err(integrity);
    }
    let found = found?;
    let returned = behind.iter().rposition(|(_, len)| *len <= at);
    let returned = returned.ok_or("no table")?;
    let allowed = &behind[returned..behind.len().min(returned + 2)];
    match allowed.iter().any(|(rows, _)| *rows == found) {
        true => Ok(()),
        false => Err(format!(
            "it is neither as transaction {returned} left it nor as the next"
        )),
    }
}

/// Judges states of a run, some at each of so many events; the first that is wrong.
fn flaw(seed: u64, on: Medium, setup: &str, crashes: u64) -> Option<String> {
    let (start, trace, behind) = run(seed, on, setup);
    let (events, _) = trace.take();
    let mut random = Random::new(seed ^ 0x5eed);
    let first = behind[0].1;
    let mut points: Vec<usize> = (0..crashes)
        .map(|_| first + random.below((events.len() - first) as u64) as usize)
        .collect();
    points.sort_unstable();
    let mut medium = Rules::Lines(on.0).medium(Tears::Some, seed);
    let mut scratch = Scratch::new(start);
    let mut done = 0;
    for at in points {
        for event in &events[done..at] {
            medium.apply(event, &mut scratch);
        }
        done = at;
        let mut any = Overlay::new();
        for (unit, versions) in medium.units() {
            medium.put(unit, random.below(versions as u64) as usize, &mut any);
        }
        for overlay in [Overlay::new(), medium.visible(), any] {
            if let Err(what) = judge(&scratch.image(&overlay), &behind, at) {
                return Some(format!(
                    "seed {seed}, {on:?}, {setup:?}, event {at}: {what}"
                ));
            }
        }
    }
    None
}

/// Crashes of each run; `TUREEN_CRASHES` has more of them.
fn crashes() -> u64 {
    std::env::var("TUREEN_CRASHES").map_or(25, |text| text.parse().expect("a number"))
}

#[test]
fn a_crash_leaves_each_transaction_whole_or_not_at_all() {
    let setups = [
        "",
        "PRAGMA journal_mode=off",
        "PRAGMA synchronous=off; PRAGMA cache_size=3",
        "PRAGMA page_size=1024; PRAGMA auto_vacuum=full",
        "PRAGMA journal_mode=wal; PRAGMA synchronous=full; PRAGMA wal_autocheckpoint=5",
    ];
    for domain in [Domain::Line, Domain::Cache, Domain::Page] {
        for (seed, setup) in (1..).zip(setups) {
            assert_eq!(flaw(seed, (domain, Mode::Strong), setup, crashes()), None);
        }
    }
}

/// The judge sees a transaction that is not one: a database without a journal in a mode in which
/// each page is written by itself.
#[test]
fn without_a_journal_and_without_strong_writes_a_crash_leaves_a_part() {
    let setup = "PRAGMA journal_mode=off";
    let noticed = (1..20).any(|seed| flaw(seed, DELAYED, setup, 40).is_some());
    assert!(noticed, "the judge sees nothing");
}
