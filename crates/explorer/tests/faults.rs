//! Bugs injected into the engine are found. In a program of its own, as a bug is injected into all
//! of a process.

use explorer::mutants::{put_in, survivors};

#[test]
fn injected_faults_are_found() {
    let fates = put_in(1, &|name, _| println!("{name}"));
    assert!(fates.len() > 10, "too few: {}", fates.len());
    for (mutant, fate) in &fates {
        println!("{mutant}: {:?}", fate.noticed);
    }
    let survivors = survivors(&fates);
    assert!(survivors.is_empty(), "nobody notices these: {survivors:#?}");
}
