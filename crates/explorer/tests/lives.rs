//! What a killed process left visible, and a power cut takes back: the lives after a kill.

use explorer::campaign::replay;
use explorer::effort::{Effort, Level, OF_RUNS};
use explorer::families::by_name;
use explorer::lives::{Tamper, explore};
use explorer::run::Run;
use explorer::trace::Event;
use pmem::Domain;
use std::path::Path;

/// Workloads that write in place, claim and free space, move names and wrap the journal.
const WORKLOADS: [&str; 10] = [
    "single-6",
    "single-53",
    "pair-12",
    "pair-40",
    "zeroed-0",
    "script-5",
    "script-40",
    "random-1",
    "churn-0",
    "regions-4",
];

fn run(name: &str, domain: Domain) -> Run {
    let workload = by_name(name).expect("a workload of this name");
    Run::record(workload, domain, false).expect("it runs")
}

fn effort(kills: u64) -> Effort<'static> {
    Effort {
        lives: kills * OF_RUNS,
        ..Level::Normal.effort(0)
    }
}

#[test]
fn lives_after_kills_at_any_event_survive_power_cuts() {
    for (domain, kills) in [(Domain::Line, 12), (Domain::Page, 6), (Domain::Cache, 16)] {
        let mut judged = 0;
        for name in WORKLOADS {
            let run = run(name, domain);
            match explore(&run, &run.events, effort(kills), None, None) {
                Ok(explored) => judged += explored.judged,
                Err((run, objection)) => panic!(
                    "{name}:{domain}:delayed:normal.0:k{}.s0\n{}\n{}",
                    objection.place.point,
                    objection.what,
                    run.account()
                ),
            }
        }
        println!("{domain}: {judged} states");
        assert!(judged > 500, "{domain}: only {judged} states");
    }
}

/// Whether the judges object when the lives after a kill are tampered with.
fn noticed(domain: Domain, tamper: Tamper<'_>) -> bool {
    WORKLOADS.iter().any(|name| {
        let run = run(name, domain);
        explore(&run, &run.events, effort(20), None, Some(tamper)).is_err()
    })
}

/// The trace of a life without what comes before its first store.
fn without_what_comes_first(run: &Run, is_left_out: fn(&Event) -> bool) -> Vec<Event> {
    let stores = |event: &Event| matches!(event, Event::Store { .. });
    let first = run.events.iter().position(stores);
    let first = first.unwrap_or(run.events.len());
    let events = run.events.iter().enumerate();
    let kept = events.filter(|(i, event)| *i >= first || !is_left_out(event));
    kept.map(|(_, event)| event.clone()).collect()
}

#[test]
fn a_recovery_that_flushes_nothing_of_what_it_found_is_noticed() {
    let flush = |event: &Event| matches!(event, Event::Flush { .. });
    assert!(noticed(Domain::Line, &|run| without_what_comes_first(
        run, flush
    )));
}

#[test]
fn an_image_that_is_not_synced_when_it_is_opened_is_noticed() {
    let sync = |event: &Event| matches!(event, Event::Flush { .. } | Event::Fence { .. });
    assert!(noticed(Domain::Page, &|run| without_what_comes_first(
        run, sync
    )));
}

#[test]
fn a_kill_replays_by_its_token() {
    let traces = Path::new(env!("CARGO_TARGET_TMPDIR")).join("traces");
    let run = run("pair-12", Domain::Line);
    let begins = |event: &Event| *event == Event::Begin(run.from);
    let first = run.events.iter().position(begins).expect("a step");
    let token = format!("pair-12:line:delayed:normal.0:k{}.s0", first + 40);
    let token = token.parse().expect("a token");
    let explored = || replay(&token, &traces).expect("nothing is wrong").judged;
    let judged = explored();
    assert!(judged > 10 && judged == explored(), "{judged} states");
}
