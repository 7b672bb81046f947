//! Bugs planted in the engine are found. In a program of its own, as a bug is planted in all of a process.

use explorer::mutants::{put_in, survivors};

#[test]
fn planted_bugs_are_found() {
    let fates = put_in(1, &|name, _| println!("{name}"));
    assert!(fates.len() > 10, "too few: {}", fates.len());
    for (mutant, fate) in &fates {
        println!("{mutant}: {:?}", fate.noticed);
    }
    let survivors = survivors(&fates);
    assert!(survivors.is_empty(), "nobody notices these: {survivors:#?}");
}
