//! Bugs injected into the cache are found. In a program of its own, as a bug is injected into all
//! of a process.

mod common;

use explorer::engines::ffs::cached::ENGINE;

#[test]
fn faults_of_the_cache_are_found() {
    common::faults_are_found(&ENGINE, 20);
}
