//! The judges can fail. The whole table is `docs/crash-mutants.md`, which
//! `tureen explore --mutants` makes.
//!
//! `TUREEN_WORKLOAD=mkfs`: only with workloads whose names begin with this, for a look at what they
//! notice.

use explorer::engines::usual;
use explorer::mutants::{leave_out, survivors};
use pmem::Domain;

/// Leave out what there is in a domain, each by itself; at least so many mutants.
fn leave_out_all(domain: Domain, least: usize) {
    let table = usual().mutants().expect("it has mutants");
    let mut workloads = (table.places)();
    let only = std::env::var("TUREEN_WORKLOAD").ok();
    if let Some(only) = &only {
        workloads.retain(|workload| workload.name.starts_with(only));
    }
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let fates = leave_out(&workloads, domain, jobs, false, &|name, open| {
        println!("{name}: {open} mutants to try");
    })
    .expect("the workloads run");
    assert!(
        only.is_some() || fates.len() > least,
        "too few: {}",
        fates.len()
    );
    let survivors = survivors(&fates);
    assert!(
        survivors.is_empty(),
        "nobody notices that these are left out: {survivors:#?}"
    );
}

#[test]
fn leaving_out_flushes_fences_or_orders_is_noticed() {
    leave_out_all(Domain::Line, 40);
}

/// There a fence covers what any thread has flushed (M12).
#[test]
fn leaving_them_out_is_noticed_on_a_disk() {
    leave_out_all(Domain::Page, 40);
}
