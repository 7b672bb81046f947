//! The judges can fail. The whole table is `docs/crash-mutants.md`, which
//! `tureen explore --mutants` makes.

use explorer::mutants::{leave_out, survivors, workloads};

#[test]
fn leaving_out_flushes_fences_or_orders_is_noticed() {
    let fates = leave_out(&workloads(), 1, false, &|name, open| {
        println!("{name}: {open} mutants to try");
    })
    .expect("the workloads run");
    assert!(fates.len() > 40, "too few: {}", fates.len());
    let survivors = survivors(&fates);
    assert!(
        survivors.is_empty(),
        "nobody notices that these are left out: {survivors:#?}"
    );
}
