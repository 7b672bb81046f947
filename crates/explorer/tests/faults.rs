//! Bugs injected into the engine are found. In a program of its own, as a bug is injected into all
//! of a process.
//!
//! `TUREEN_BUG=Repair`: only those whose names have this in them.

use explorer::engines::usual;
use explorer::mutants::{put_in, survivors};

#[test]
fn injected_faults_are_found() {
    let only = std::env::var("TUREEN_BUG").ok();
    let start = std::time::Instant::now();
    let watch = |name: &str| println!("{:4} s {name}", start.elapsed().as_secs());
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let fates = put_in(usual(), only.as_deref(), jobs, &watch);
    assert!(
        only.is_some() || fates.len() > 10,
        "too few: {}",
        fates.len()
    );
    for ((mutant, domain), fate) in &fates {
        println!("{mutant} ({domain}): {:?}", fate.noticed);
    }
    let survivors = survivors(&fates);
    assert!(survivors.is_empty(), "nobody notices these: {survivors:#?}");
}
