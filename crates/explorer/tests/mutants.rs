//! The judges can fail.

use explorer::families::{by_name, single_number, singles};
use explorer::mutants::{self, excuse};
use pmem::Domain;

#[test]
fn leaving_out_flushes_fences_or_orders_is_noticed() {
    let pair = single_number(12, 0) + singles() * single_number(0, 0);
    let names = [
        format!("pair-{pair}"),
        format!("threaded-{}", single_number(0, 3)),
        "chain-2".into(),
        format!("single-{}", single_number(6, 0)),
        format!("single-{}", single_number(80, 0)),
        format!("single-{}", single_number(53, 8)),
        format!("single-{}", single_number(57, 12)),
        "growth-0".into(),
        "churn-0".into(),
        "wrap-0".into(),
    ];
    let workloads: Vec<_> = names
        .iter()
        .map(|name| by_name(name).expect("a workload"))
        .collect();
    let fates = mutants::run(&workloads, Domain::Line, 1, false).expect("the workloads run");
    let mut survivors = Vec::new();
    for (mutant, fate) in fates.iter().filter(|(mutant, _)| excuse(mutant).is_none()) {
        println!("{mutant}: {:?}", fate.noticed);
        if fate.noticed.is_none() {
            survivors.push(mutant.to_string());
        }
    }
    assert!(fates.len() > 20, "too few: {}", fates.len());
    assert!(
        survivors.is_empty(),
        "nobody notices that these are left out: {survivors:#?}"
    );
}
