//! Bugs injected into soft updates and the log on ext2 are found. In a program of its own, as a bug
//! is injected into all of a process.

mod common;

use explorer::engines::ffs::ENGINE;

#[test]
fn faults_of_soft_updates_are_found() {
    common::faults_are_found(&ENGINE, 40);
}
