//! Every state that a crash may leave of an ext2 file system and the persistent cache before it, by
//! lines of the memory and sectors of the disk, is one that a user can go on with.
//!
//! A failure prints a token, which `tureen explore --replay TOKEN` judges again.

mod common;

use common::judge;
use explorer::engines::ffs::cached::{SPINDLE, TINCA, disk_alone};
use explorer::explore::some_image;
use explorer::families::family;
use explorer::medium::Rules;
use explorer::run::Run;
use explorer::workload::Workload;
use pmem::Domain;
use std::process::Command;

/// Explore so many workloads of a family, by the rules of each domain, with each kind of cache.
fn explore(name: &str, count: u64, domains: &[Domain]) {
    let rules: Vec<_> = domains.iter().copied().map(Rules::Both).collect();
    common::holds(&common::campaign(
        &[(name, count)],
        &rules,
        &[SPINDLE, TINCA],
    ));
}

#[test]
fn operations_of_ace_survive_crashes() {
    explore("ace1", 6, &[Domain::Line, Domain::Cache]);
}

#[test]
fn small_caches_survive_what_they_are_told() {
    explore("cache", 5, &[Domain::Line]);
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
            let device = run.subject().device(&some_image(&run, seed));
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
