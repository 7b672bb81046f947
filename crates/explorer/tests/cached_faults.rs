//! Bugs injected into the cache are found. In a program of its own, as a bug is injected into all of
//! a process.
//!
//! `TUREEN_BUG=Head`: only those whose names have this in them.

use explorer::engines::ffs::cached::ENGINE;
use explorer::mutants::{put_in, survivors};

#[test]
fn faults_of_the_cache_are_found() {
    let only = std::env::var("TUREEN_BUG").ok();
    let start = std::time::Instant::now();
    let watch = |name: &str| println!("{:4} s {name}", start.elapsed().as_secs());
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let fates = put_in(&ENGINE, only.as_deref(), jobs, &watch);
    assert!(only.is_some() || fates.len() > 20, "{}", fates.len());
    for ((mutant, domain), fate) in &fates {
        println!("{mutant} ({domain}): {:?}", fate.noticed);
    }
    let survivors = survivors(&fates);
    assert!(survivors.is_empty(), "nobody notices these: {survivors:#?}");
}
