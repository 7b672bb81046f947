//! What several programs of tests do with campaigns, tokens and injected bugs.

// Each program uses some of it.
#![allow(dead_code)]

use explorer::campaign::{Campaign, Progress, Summary, replay};
use explorer::effort::Level;
use explorer::engine::{Engine, Mode};
use explorer::families::family;
use explorer::mutants::{self, Mutant, inject_each, leave_out, survivors};
use explorer::rules::Rules;
use pmem::Domain;
use std::path::{Path, PathBuf};

/// Where runs of several threads that fail are kept.
pub fn traces() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("traces")
}

/// So many workloads of each of these families, at level quick, in the order that tokens have.
pub fn campaign(families: &[(&str, u64)], rules: &[Rules], modes: &[Mode]) -> Campaign {
    let family = |&(name, count): &(&str, u64)| {
        let family = family(name).expect("a family of this name");
        (family, Some(count))
    };
    Campaign {
        families: families.iter().map(family).collect(),
        rules: rules.to_vec(),
        modes: modes.to_vec(),
        level: Level::Quick,
        seed: 0,
        time: None,
        jobs: 1,
        shard: (0, 1),
        spread: true,
        others: 0,
        failures_max: 5,
        traces: traces(),
    }
}

/// Runs a campaign in which nothing is wrong, and in most runs of each family is something to
/// explore.
pub fn holds(campaign: &Campaign) -> Summary {
    let summary = campaign.run(&Progress::default());
    println!("{}", summary.text());
    let accounts: Vec<_> = summary.failures.iter().map(|f| &*f.account).collect();
    assert!(accounts.is_empty(), "{}", accounts.join("\n\n"));
    for part in &summary.parts {
        let (empty, runs) = (part.explored.inapplicable, part.runs);
        let family = &part.family;
        assert!(
            2 * empty < runs,
            "{family}: nothing to explore in {empty} of {runs} runs"
        );
    }
    summary
}

/// All states of a token are as they may be, and there are some.
#[track_caller]
pub fn judge(token: &str) {
    let token = token.parse().expect("a token");
    let explored = replay(&token, &traces()).unwrap_or_else(|account| panic!("{account}"));
    assert!(explored.judged > 0);
}

/// The bugs of an engine, at least so many on all media, are noticed. `TUREEN_BUG=Repair`: only
/// those whose names have this in them.
pub fn faults_are_found(engine: &'static dyn Engine, least: usize) {
    let only = std::env::var("TUREEN_BUG").ok();
    let start = std::time::Instant::now();
    let watch = |name: &str| println!("{:4} s {name}", start.elapsed().as_secs());
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let fates = inject_each(engine, only.as_deref(), jobs, &watch);
    assert!(only.is_some() || fates.len() > least, "{}", fates.len());
    for ((mutant, rules), fate) in &fates {
        println!("{mutant} ({rules}): {:?}", fate.noticed);
    }
    let survivors = survivors(&fates);
    assert!(survivors.is_empty(), "nobody notices these: {survivors:#?}");
}

/// What there is to leave out of an engine in a domain, each by itself, is noticed in a tour if its
/// name has `of` in it, with workloads whose names begin with `only`; at least so many mutants.
/// `TUREEN_WORKLOAD=mkfs`: with these only, for a look at what they notice.
pub fn left_out_is_noticed(
    (engine, tour): (&'static dyn Engine, &str),
    domain: Domain,
    (only, of): (&str, &str),
    least: usize,
) {
    let table = mutants::of(engine).expect("it has mutants");
    let tour = table.tours.iter().find(|known| known.name == tour);
    let mut workloads = (tour.expect("a tour of this name").made)();
    workloads.retain(|workload| workload.name.starts_with(only));
    let only = std::env::var("TUREEN_WORKLOAD").ok();
    if let Some(only) = &only {
        workloads.retain(|workload| workload.name.starts_with(only));
    }
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let start = std::time::Instant::now();
    let watch = |name: &str, open| {
        println!(
            "{:4} s {name}: {open} mutants to try",
            start.elapsed().as_secs()
        );
    };
    let chosen = |mutant: &Mutant| mutant.to_string().contains(of);
    let fates = leave_out(&workloads, domain, jobs, (false, &chosen), &watch);
    let fates = fates.expect("the workloads run");
    for ((mutant, domain), fate) in &fates {
        let noticed = fate
            .noticed
            .as_ref()
            .map(|(by, what)| (by, what.lines().next()));
        println!("{mutant} ({domain}): {noticed:?}");
    }
    let enough = only.is_some() || fates.len() > least;
    assert!(enough, "too few: {}", fates.len());
    let survivors = survivors(&fates);
    assert!(
        survivors.is_empty(),
        "nobody notices that these are left out: {survivors:#?}"
    );
}
