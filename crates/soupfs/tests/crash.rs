//! Every state that a crash may leave of SoupFS is one that a user can go on with.
//!
//! Workloads run on a recorded pool; from the record come the images that a crash may leave, by
//! `docs/crash-model.md`; each is audited, mounted and compared with what history allows.
//!
//! A failure prints a token; `TUREEN_REPLAY=<token> cargo test -p soupfs --test crash replay` judges that
//! state again. `TUREEN_CRASH_SECONDS=600` lets each family of workloads run for so long.

#[path = "crash/explore.rs"]
mod explore;
#[path = "crash/judge.rs"]
mod judge;
#[path = "crash/media.rs"]
mod media;
#[path = "crash/mutants.rs"]
mod mutants;
#[path = "crash/op.rs"]
mod op;
#[path = "crash/random.rs"]
mod random;
#[path = "crash/run.rs"]
mod run;
#[path = "crash/tree.rs"]
mod tree;
#[path = "crash/workloads.rs"]
mod workloads;

use explore::{Effort, explore};
use media::Explored;
use pmem::Domain;
use run::Workload;
use std::time::{Duration, Instant};

const DOMAINS: [Domain; 3] = [Domain::Line, Domain::Cache, Domain::Page];

/// For how long each family is to go on, if not only over its first workloads.
fn seconds() -> Option<Duration> {
    std::env::var("TUREEN_CRASH_SECONDS")
        .ok()?
        .parse()
        .ok()
        .map(Duration::from_secs)
}

/// Explore workload after workload: the first `normal`, or as many as there is time for.
fn explore_all(
    family: &str,
    normal: u64,
    domains: &[Domain],
    workload: impl Fn(u64) -> Option<Workload>,
) {
    let start = Instant::now();
    let time = seconds();
    let (mut sum, mut number) = (Explored::default(), 0);
    let mut failures: Vec<String> = Vec::new();
    while time.map_or(number < normal, |time| start.elapsed() < time) {
        let Some(workload) = workload(number) else {
            break;
        };
        for &domain in domains {
            match explore(&workload, domain, Effort::NORMAL, None) {
                Ok(explored) => sum.add(explored),
                Err(account) => failures.push(account),
            }
        }
        number += 1;
        if failures.len() >= 5 {
            break;
        }
    }
    let per_second = sum.judged as f64 / start.elapsed().as_secs_f64();
    println!(
        "{family}: {number} workloads, {} states, {} different, {per_second:.0} a second",
        sum.states, sum.judged
    );
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn every_operation_survives_every_crash() {
    let (ops, syncs) = (
        workloads::operations().len() as u64,
        workloads::syncs().len() as u64,
    );
    explore_all("single operations", ops * 2, &DOMAINS, |n| {
        // First each with a sweep, then with other syncs.
        let sync = if n < ops { 1 } else { (n / ops + n) % syncs };
        (n < ops * syncs).then(|| workloads::single((n % ops) as usize, sync as usize))
    });
}

#[test]
fn syncs_of_several_threads_survive_every_crash() {
    let (ops, syncs) = (
        workloads::operations().len() as u64,
        workloads::syncs().len() as u64,
    );
    explore_all("several threads", 40, &[Domain::Line, Domain::Page], |n| {
        (n < ops * syncs).then(|| workloads::threaded((n * 7 % ops) as usize, (n % syncs) as usize))
    });
}

#[test]
fn pairs_of_operations_survive_crashes() {
    explore_all("pairs of operations", 150, &DOMAINS, |n| {
        Some(workloads::some_pair(n))
    });
}

#[test]
fn growing_directories_survive_crashes() {
    let sizes = [(40, 3), (80, 0), (200, 4), (300, 9)];
    explore_all("growing directories", 3, &DOMAINS, |n| {
        sizes
            .get(n as usize)
            .map(|&(names, syncs)| workloads::growth(names, syncs))
    });
}

#[test]
fn chains_of_directories_survive_crashes() {
    explore_all("chains of directories", 4, &DOMAINS, |n| {
        (n < 30).then(|| workloads::chain(2 + n as usize))
    });
}

#[test]
fn random_sequences_survive_crashes() {
    explore_all("random sequences", 20, &DOMAINS, |n| {
        Some(workloads::random(n))
    });
}

#[test]
fn replay() {
    let Ok(token) = std::env::var("TUREEN_REPLAY") else {
        return;
    };
    let mut parts = token.split(':');
    let workload = parts
        .next()
        .and_then(workloads::by_name)
        .expect("token: workload");
    let domain: Domain = parts
        .next()
        .expect("token: domain")
        .parse()
        .expect("token: domain");
    let only = parts.next().map(|state| {
        let (point, state) = state
            .trim_start_matches('p')
            .split_once(".s")
            .expect("token: p1.s2");
        (
            point.parse().expect("token: point"),
            state.parse().expect("token: state"),
        )
    });
    match explore(&workload, domain, Effort::NORMAL, only) {
        Ok(explored) => println!("{} states, nothing wrong", explored.judged),
        Err(account) => panic!("{account}"),
    }
}

#[test]
fn a_second_life_survives_crashes() {
    explore_all("second lives", 20, &[Domain::Line, Domain::Cache], |n| {
        Some(workloads::second_life(n).unwrap_or_else(|e| panic!("life-{n}: {e}")))
    });
}

#[test]
fn churning_directories_survive_crashes() {
    explore_all("churning directories", 2, &DOMAINS, |n| {
        [(12, 5), (40, 16), (70, 12)]
            .get(n as usize)
            .map(|&(names, rounds)| workloads::churn(names, rounds))
    });
}

#[test]
fn leaving_out_flushes_or_fences_is_noticed() {
    let (ops, syncs) = (
        workloads::operations().len() as u64,
        workloads::syncs().len() as u64,
    );
    for domain in [Domain::Line, Domain::Page] {
        let more = [
            workloads::chain(4),
            workloads::threaded(0, 3),
            workloads::threaded(50, 2),
            workloads::pair(12, 1, 0, 1),
            workloads::pair(18, 1, 3, 1),
            workloads::pair(62, 1, 70, 1),
            workloads::growth(80, 3),
            workloads::churn(12, 5),
            workloads::churn(40, 16),
        ];
        let singles = (0..ops).map(|n| {
            workloads::single(
                n as usize,
                if n % 2 == 0 { 1 } else { (n % syncs) as usize },
            )
        });
        let fates = mutants::run(more.into_iter().chain(singles), domain);
        for (site, fate) in &fates {
            println!(
                "{domain} {} {}/{} {}",
                if fate.noticed > 0 {
                    "noticed "
                } else {
                    "SURVIVES"
                },
                fate.noticed,
                fate.runs,
                site
            );
            if let Some(account) = &fate.account {
                println!(
                    "      {}",
                    account
                        .lines()
                        .take(3)
                        .collect::<Vec<_>>()
                        .join(" ")
                        .chars()
                        .take(180)
                        .collect::<String>()
                );
            }
        }
    }
}

#[test]
fn leaving_out_one_flush_or_fence_is_noticed() {
    for workload in [
        workloads::pair(12, 1, 0, 1),
        workloads::pair(62, 2, 70, 1),
        workloads::single(56, 1),
        workloads::threaded(0, 3),
    ] {
        println!("{}", workload.name);
        for (at, site) in mutants::each(workload, Domain::Line) {
            println!("  survives: event {at}, {site}");
        }
    }
}
