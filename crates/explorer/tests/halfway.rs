//! Operations that meet half-way: a sample of all cases, or those that the environment says.
//!
//! - `TUREEN_HALFWAY=20000`: so many, or `all`; `20000..40000`: those at these positions.
//! - `TUREEN_DOMAINS=line,page`: in these domains.
//! - `TUREEN_REPLAY=halfway-123:page`: this one.

use explorer::halfway::{self, Case, SAMPLING, case, count, explore};
use explorer::op::Op;
use pmem::Domain;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vfs::{Fallocate, Fsync, RenameMode};

/// Cases of a test run, by domain.
const SAMPLES: [(Domain, u64); 3] = [
    (Domain::Line, 1000),
    (Domain::Page, 300),
    (Domain::Cache, 300),
];
/// Flaws after which no more cases are tried.
const FLAWS_MAX: usize = 8;
/// After so many cases it says how far it has come.
const PROGRESS: u64 = 1000;

/// A case in a domain.
type Tried = (u64, Domain);

/// The cases to try, and the position of the first.
fn cases() -> (u64, Vec<Tried>) {
    let token = std::env::var("TUREEN_REPLAY").ok();
    if let Some(token) = token.as_deref().and_then(|t| t.strip_prefix("halfway-")) {
        let (case, domain) = token.split_once(':').expect("halfway-NUMBER:DOMAIN");
        let domain = domain.parse().expect("a domain");
        return (0, vec![(case.parse().expect("a number"), domain)]);
    }
    let domains = std::env::var("TUREEN_DOMAINS").ok();
    let domains: Option<Vec<Domain>> = domains.map(|all| {
        all.split(',')
            .map(|one| one.parse().expect("a domain"))
            .collect()
    });
    let wanted = positions();
    let start = wanted.as_ref().map_or(0, |positions| positions.start);
    let samples = SAMPLES.into_iter();
    let samples = samples.filter(|(domain, _)| {
        domains
            .as_ref()
            .is_none_or(|domains| domains.contains(domain))
    });
    let cases = samples.flat_map(|(domain, sample)| {
        let positions = wanted.clone().unwrap_or(0..sample);
        halfway::some(positions).map(move |number| (number, domain))
    });
    (start, cases.collect())
}

/// The positions that the environment says.
fn positions() -> Option<Range<u64>> {
    let number = |text: &str| text.parse().expect("a number, a range, or all");
    let text = std::env::var("TUREEN_HALFWAY").ok()?;
    Some(match text.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None if text == "all" => 0..count(),
        None => 0..number(&text),
    })
}

/// Cases that went wrong once: what stops, at any of its points, beside which others. A truncation
/// whose index gets lower, beside who looks at what is left of the file before its batch is
/// settled; two moves that leave whiteouts, the first one half-way, beside a sync of a file that
/// has lost its names.
#[test]
fn what_went_wrong_once_is_right() {
    let cut = Op::Truncate("foo".into(), 100);
    let punch = Op::Fallocate("foo".into(), Fallocate::Punch, 0, 4096);
    let moves = Op::Rename("new".into(), "w".into(), RenameMode::Whiteout);
    let fsync = Op::Fsync("new".into(), Fsync::All);
    let is_one = |case: &Case| {
        (case.slow == cut && case.others == [punch.clone()])
            || (case.slow == moves && case.others == [moves.clone(), fsync.clone()])
    };
    let mut tried = 0;
    for case in (0..count()).map(case).filter(is_one) {
        explore(&case, Domain::Line, SAMPLING).unwrap_or_else(|flaw| panic!("{flaw}"));
        tried += 1;
    }
    assert!(tried > 20, "too few: {tried}");
}

/// The search for leaks, and the checkpoint that it makes, are stopped at each of their points, and
/// meet an operation at each of its own.
#[test]
fn the_search_for_leaks_meets_operations_half_way() {
    let is_search = |op: &Op| matches!(op, Op::Search(_));
    let alone = |case: &Case| case.others.len() == 1;
    let searches =
        |case: &Case| is_search(&case.slow) && case.others[0] == Op::Unlink("N/x".into());
    let beside = |case: &Case| is_search(&case.others[0]);
    let (mut stopped, mut states, mut tried) = (BTreeSet::new(), 0, 0);
    for case in (0..count()).map(case).filter(alone) {
        if !searches(&case) && !beside(&case) {
            continue;
        }
        let outcome = explore(&case, Domain::Line, SAMPLING);
        let outcome = outcome.unwrap_or_else(|flaw| panic!("{flaw}"));
        states += outcome.explored.judged;
        tried += 1;
        if searches(&case) {
            stopped.insert(outcome.stopped.expect("it passes so many points"));
        }
    }
    println!("{states} states in {tried} cases, {stopped:?}");
    for point in [
        "search: between two steps",
        "search: looked at an inode",
        "search: nothing is left to look at",
        "search: freed and not flushed",
        "checkpoint: flushed and not fenced",
        "checkpoint: the head is not durable",
    ] {
        assert!(
            stopped.contains(point),
            "{point:?} is not among {stopped:?}"
        );
    }
}

#[test]
fn what_meets_half_way_is_explained_by_some_order_and_survives_crashes() {
    let (from, cases) = cases();
    let (next, judged) = (AtomicU64::new(0), AtomicU64::new(0));
    let stopped: Mutex<BTreeMap<&str, u64>> = Mutex::default();
    let flaws: Mutex<Vec<String>> = Mutex::default();
    let work = || {
        loop {
            let begun = next.fetch_add(1, Relaxed);
            let Some(&(number, domain)) = cases.get(begun as usize) else {
                break;
            };
            if begun > 0 && begun.is_multiple_of(PROGRESS) {
                let (all, flaws) = (cases.len(), flaws.lock().expect("no panic").len());
                let at = from + begun;
                println!("{begun} of {all} cases, up to position {at}, {flaws} flaws");
            }
            let outcome = match explore(&case(number), domain, SAMPLING) {
                Ok(outcome) => outcome,
                Err(flaw) => {
                    let flaw =
                        format!("{flaw}TUREEN_REPLAY=halfway-{number}:{domain} replays it\n");
                    println!("{flaw}");
                    let mut flaws = flaws.lock().expect("no panic");
                    flaws.push(flaw);
                    if flaws.len() == FLAWS_MAX {
                        next.store(u64::MAX / 2, Relaxed);
                    }
                    continue;
                }
            };
            judged.fetch_add(outcome.explored.judged, Relaxed);
            let point = match (outcome.stopped, domain) {
                (Some(point), _) => point,
                (None, Domain::Line) => panic!("{number}: it passes so many points"),
                (None, Domain::Page | Domain::Cache) => "nowhere: fewer points in this domain",
            };
            *stopped.lock().expect("no panic").entry(point).or_default() += 1;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let stopped = stopped.into_inner().expect("no panic");
    println!(
        "{} cases, {} in each domain, {} states",
        cases.len(),
        count(),
        judged.into_inner()
    );
    stopped
        .iter()
        .for_each(|(point, cases)| println!("{cases:6} {point}"));
    let flaws = flaws.into_inner().expect("no panic");
    assert!(flaws.is_empty(), "{}", flaws.join("\n"));
}
