//! Every state that a crash may leave of an ext2 file system and the persistent cache before it, by
//! lines of the memory and sectors of the disk, is one that a user can go on with.
//!
//! A failure prints a token, which `tureen explore --replay TOKEN` judges again.

mod common;

use cache::layout::COMMIT_AT;
use common::judge;
use explorer::engine::Mode;
use explorer::engines::ffs::cached::{SPINDLE, SPINDLE_1K, TINCA, TINCA_1K, disk_alone};
use explorer::families::family;
use explorer::rules::Rules;
use explorer::run::Run;
use explorer::trace::Event;
use explorer::workload::Workload;
use pmem::Domain;
use std::process::Command;

/// Explore so many workloads of a family, by the rules of each domain, with each kind of cache.
fn explore(name: &str, count: u64, domains: &[Domain]) {
    explore_in(name, count, domains, &[SPINDLE, TINCA]);
}

fn explore_in(name: &str, count: u64, domains: &[Domain], modes: &[Mode]) {
    let rules: Vec<_> = domains.iter().copied().map(Rules::Both).collect();
    common::holds(&common::campaign(&[(name, count)], &rules, modes));
}

#[test]
fn operations_of_ace_survive_crashes() {
    explore("ace1", 6, &[Domain::Line, Domain::Cache]);
}

#[test]
fn small_caches_survive_what_they_are_told() {
    explore("cache", 5, &[Domain::Line]);
}

/// New blocks go past the cache, and those that are read are kept.
#[test]
fn what_goes_past_a_cache_and_what_is_read_survives_crashes() {
    explore("cache-tight", 4, &[Domain::Line]);
    explore("cache-tight", 1, &[Domain::Cache]);
}

/// In a cache on another disk a fence covers what any thread has flushed, and stores around the
/// cache are like others.
#[test]
fn a_cache_in_domain_page_survives_crashes() {
    explore("ace1", 4, &[Domain::Page]);
    explore("cache-tight", 1, &[Domain::Page]);
}

#[test]
fn blocks_that_share_one_of_the_cache_survive_crashes() {
    explore_in("ace1", 3, &[Domain::Line], &[SPINDLE_1K, TINCA_1K]);
    explore_in("cache", 2, &[Domain::Line], &[SPINDLE_1K]);
}

#[test]
fn a_cache_that_is_resized_survives_crashes() {
    for mode in ["spindle", "tinca"] {
        for token in ["cache-30", "cache-killed-5", "cache-killed-6"] {
            judge(&format!("{token}:line+sectors:{mode}:quick.0"));
        }
    }
}

/// The ring begins again within a transaction of what is explored, in some workload with each kind
/// of cache, whether that is of many blocks, more than are free, or of few.
#[test]
fn a_ring_that_begins_again_survives_crashes() {
    // Tinca has no log, and so some blocks more than 64.
    for (mode, slots) in [(SPINDLE, 64), (TINCA, 128)] {
        for is_large in [true, false] {
            let (mut met, mut largest) = (None, 0);
            let ring = family("cache-ring").expect("a family of this name");
            let numbers = 0..ring.size.expect("it ends");
            for number in numbers.filter(|n| n.is_multiple_of(2) == is_large) {
                let workload = ring.workload(number).expect("it is made");
                let workload = Workload { mode, ..workload };
                let run = Run::record(workload, Rules::Both(Domain::Line), false);
                for (head, next) in transactions(&run.expect("it runs"), slots) {
                    largest = largest.max(next - head);
                    let begins_again = head / slots != (next - 1) / slots;
                    let is_within = begins_again && !head.is_multiple_of(slots);
                    met = met.or(is_within.then_some(number));
                }
            }
            let number = met.expect("one in which the ring begins again");
            println!("{}: {number}, {largest} slots at most", mode.name);
            // Of 64 blocks at most 8 make way at once.
            assert!(!is_large || largest > 12, "{largest} slots at most");
            judge(&format!(
                "cache-ring-{number}:line+sectors:{}:quick.0",
                mode.name
            ));
        }
    }
}

/// Of each transaction that is explored, Head before it and behind it. Who opens the cache leaves a
/// lap out.
fn transactions(run: &Run, slots: u64) -> Vec<(u64, u64)> {
    let (mut head, mut all, mut is_explored) = (0, Vec::new(), false);
    for event in &run.events {
        match event {
            Event::Begin(step) => is_explored = *step >= run.from,
            Event::Store { at, bytes, .. } if *at == COMMIT_AT => {
                let now = u64::from_le_bytes(bytes[..].try_into().expect("a word"));
                if is_explored && now - head != slots {
                    all.push((head, now));
                }
                head = now;
            }
            _ => {}
        }
    }
    all
}

/// A cache that was made over a detached one was that one with half of its contents: "corrupt".
/// Found by a kill whose next life was to attach it; and the next mount relied on a superblock that
/// a killed process had stored, and not made durable: a power cut took the whole cache away.
#[test]
fn a_cache_made_anew_is_there_or_not() {
    judge("cache-killed-4[4,6]:line+sectors:spindle:quick.0");
}

/// After a crash at any moment the cache gives the disk all that it has, and e2fsck is silent.
#[test]
fn what_the_disk_gets_is_clean_for_e2fsck() {
    if Command::new("e2fsck").arg("-V").output().is_err() {
        testing::skip!("needs e2fsprogs (e2fsck)");
    }
    let rules = Rules::Both(Domain::Line);
    let image = tempfile::NamedTempFile::new().expect("a file");
    for (number, mode) in [(1, SPINDLE), (10, TINCA), (13, SPINDLE), (16, TINCA)] {
        let family = family("cache").expect("a family of this name");
        let workload = Workload {
            mode,
            ..family.workload(number).expect("it is made")
        };
        let run = Run::record(workload, rules, false).expect("it runs");
        for seed in 0..5 {
            let device = run.subject().device(&run.some_image(seed));
            let disk = disk_alone(&device).expect("it is given back");
            std::fs::write(image.path(), disk).expect("written");
            let mut e2fsck = Command::new("e2fsck");
            let checked = e2fsck.arg("-fn").arg(image.path()).output();
            let checked = checked.expect("it runs");
            let text = String::from_utf8_lossy(&checked.stdout);
            assert!(checked.status.success(), "cache-{number}, {seed}: {text}");
        }
    }
}

/// The first block, of which the file system's superblock is a part, was written with all that was
/// new in it and without the mark at once: torn, the disk was used alone with old counts.
#[test]
fn all_else_is_there_before_the_mark_goes() {
    for workload in [
        "ace1-0:cache+sectors:spindle-1k",
        "cache-killed-0:line+sectors:spindle-1k",
        "cache-killed-0:page+sectors:spindle-1k",
        "cache-killed-0:line+sectors:tinca-1k",
        "cache-killed-3:line+sectors:spindle-1k",
    ] {
        judge(&format!("{workload}:quick.0"));
    }
}
