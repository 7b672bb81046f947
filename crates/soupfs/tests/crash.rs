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
use mutants::Site;
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
    explore_all(
        "single operations",
        ops * 3 / 2,
        &[Domain::Line, Domain::Cache],
        |n| {
            // First each with a sweep, then with other syncs.
            let sync = if n < ops { 1 } else { (n / ops + n) % syncs };
            (n < ops * syncs).then(|| workloads::single((n % ops) as usize, sync as usize))
        },
    );
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
    explore_all(
        "pairs of operations",
        80,
        &[Domain::Line, Domain::Cache],
        |n| Some(workloads::some_pair(n)),
    );
}

#[test]
fn growing_directories_survive_crashes() {
    let sizes = [(40, 3), (80, 0), (200, 4), (300, 9)];
    explore_all(
        "growing directories",
        3,
        &[Domain::Line, Domain::Cache],
        |n| {
            sizes
                .get(n as usize)
                .map(|&(names, syncs)| workloads::growth(names, syncs))
        },
    );
}

#[test]
fn chains_of_directories_survive_crashes() {
    explore_all("chains of directories", 4, &DOMAINS, |n| {
        (n < 30).then(|| workloads::chain(2 + n as usize))
    });
}

#[test]
fn random_sequences_survive_crashes() {
    explore_all("random sequences", 14, &DOMAINS, |n| {
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
    explore_all("second lives", 12, &[Domain::Line, Domain::Cache], |n| {
        Some(workloads::second_life(n).unwrap_or_else(|e| panic!("life-{n}: {e}")))
    });
}

#[test]
fn churning_directories_survive_crashes() {
    explore_all("churning directories", 2, &[Domain::Line], |n| {
        [(12, 5), (40, 16), (70, 12)]
            .get(n as usize)
            .map(|&(names, rounds)| workloads::churn(names, rounds))
    });
}

/// Flushes and fences that need not be noticed, each with the reason.
const REDUNDANT: [(&str, &str); 4] = [
    (
        "flush Journal::advance_head < Journal::retire_applied",
        "an old head replays a record whose words are in place",
    ),
    (
        "fence Journal::retire_applied",
        "what is reused is private until the next commit, whose first fence covers the head",
    ),
    (
        "fence Journal::retire < Core::retire < Persister::finish",
        "in domain `line` the sweep before it has ended with a fence",
    ),
    (
        "fence Persister::finish",
        "unmounting fences again before it marks the image clean",
    ),
];

#[test]
fn leaving_out_flushes_or_fences_is_noticed() {
    let workloads = [
        workloads::pair(12, 1, 0, 1),
        workloads::threaded(0, 3),
        workloads::chain(4),
        workloads::single(6, 1),
        workloads::single(80, 1),
        workloads::single(53, 8),
        workloads::single(57, 12),
        workloads::growth(40, 3),
        workloads::churn(12, 5),
        workloads::wrap(600),
    ];
    let excused = |site: &Site| {
        let name = site.to_string();
        REDUNDANT.iter().any(|(known, _)| name.starts_with(known))
    };
    let fates = mutants::run(workloads.into_iter(), Domain::Line, excused);
    let mut survivors = Vec::new();
    for (site, fate) in fates.iter().filter(|(site, _)| !excused(site)) {
        println!(
            "{} of {} runs object without {site}",
            fate.noticed, fate.runs
        );
        if fate.noticed == 0 {
            survivors.push(site.to_string());
        }
    }
    assert!(fates.len() > 20, "too few sites: {}", fates.len());
    assert!(
        survivors.is_empty(),
        "nobody notices that these are left out: {survivors:#?}"
    );
}
