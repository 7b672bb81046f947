//! Bugs injected into the engine are found. In a program of its own, as a bug is injected into all
//! of a process.

mod common;

use explorer::engines::usual;

#[test]
fn injected_faults_are_found() {
    common::faults_are_found(usual(), 10);
}
