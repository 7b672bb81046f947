//! `tureen explore`, as people and scripts call it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use explorer::effort::Level;
use explorer::explore::explore_run;
use explorer::families::{by_name, families};
use explorer::kept::keep;
use explorer::run::Run;
use explorer::token::Token;
use explorer::trace::Event;
use pmem::Domain;
use serde_json::Value;

/// A few workloads, quickly.
const SHORT: [&str; 9] = [
    "ace1",
    "--count",
    "6",
    "--level",
    "quick",
    "--domains",
    "line,page",
    "--modes",
    "delayed",
];

fn explore(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tureen"));
    let command = command.arg("explore").args(args);
    command.output().expect("the program starts")
}

/// What it prints when it ends with this code.
fn ends(args: &[&str], code: i32) -> String {
    let output = explore(args);
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(output.status.code(), Some(code), "{args:?}: {out}{err}");
    format!("{out}{err}")
}

/// Its report in JSON.
fn report(args: &[&str]) -> Value {
    let output = explore(&[args, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{args:?}");
    serde_json::from_slice(&output.stdout).expect("nothing but JSON")
}

/// A figure of the only family.
fn figure(report: &Value, name: &str) -> u64 {
    let figure = report["parts"][0][name].as_u64();
    figure.unwrap_or_else(|| panic!("{name} in {report}"))
}

#[test]
fn the_list_has_every_family_with_its_size() {
    let list = ends(&["--list"], 0);
    assert_eq!(list.lines().count(), families().len());
    for (line, family) in list.lines().zip(families()) {
        let mut words = line.split_whitespace();
        assert_eq!(words.next(), Some(family.name));
        let size = family.size.map_or("endless".into(), |n| n.to_string());
        assert_eq!(words.next(), Some(&*size));
        assert_eq!(line.contains("(only if named)"), !family.usual, "{line}");
    }
}

#[test]
fn wrong_arguments_are_refused_with_a_reason() {
    for (args, reason) in [
        (&["ace9"][..], "--list"),
        (&["random", "--complete"], "endless"),
        (&["ace1", "--shard", "3/2"], "K/N"),
        (&["ace1", "--shard", "0/2"], "K/N"),
        (&["ace1", "--domains", "lime"], "lime"),
        (&["ace1", "--modes", "eager"], "delayed, sync or strong"),
        (&["ace1", "--level", "high"], "quick, normal or thorough"),
        (
            &["ace1", "--complete", "--seconds", "5"],
            "cannot be used with",
        ),
        (&["ace1", "--seconds", "soon"], "soon"),
        (&["ace1", "--seconds", "0"], "no time"),
        (&["ace1", "--count", "0"], "1.."),
        (&["ace1", "--jobs", "0"], "1..=1024"),
        (&["ace1", "--e2fsck", "5"], "--engine ext2"),
        (&["--list", "--json"], "cannot be used with"),
        (&["--replay", "ace1-0"], "no token"),
        (
            &["ace1", "--replay", "ace1-0:line:delayed:quick.0"],
            "cannot be used with",
        ),
    ] {
        let said = ends(args, 2);
        assert!(said.contains(reason), "{args:?}: {said}");
    }
}

#[test]
fn a_short_run_sums_up_what_it_saw() {
    let text = ends(&SHORT, 0);
    assert!(text.starts_with("family "), "{text}");
    assert!(text.contains("6 of 280"), "{text}");
    assert!(text.ends_with("0 failures\n"), "{text}");
    let report = report(&SHORT);
    assert_eq!(report["parts"][0]["family"], "ace1");
    assert_eq!(
        (figure(&report, "workloads"), figure(&report, "runs")),
        (6, 12)
    );
    assert!(
        figure(&report, "judged") > 100 && figure(&report, "states") > figure(&report, "judged")
    );
    assert_eq!(report["failures"], Value::Array(Vec::new()));
    assert_eq!(report["out_of_time"], false);
}

#[test]
fn a_run_ends_when_its_time_is_over() {
    let report = report(&["pair", "--seconds", "1", "--jobs", "1"]);
    assert_eq!(report["out_of_time"], true);
    // How many a busy machine comes to, nobody can tell.
    assert_eq!(report["failures"], Value::Array(Vec::new()));
}

#[test]
fn the_largest_seed_and_a_time_without_end_are_arguments_like_others() {
    let seed = u64::MAX.to_string();
    let time = i64::MAX.to_string();
    let args = [
        "random", "--count", "1", "--level", "quick", "--seed", &seed,
    ];
    let report = report(&[&args[..], &["--seconds", &time]].concat());
    assert_eq!(figure(&report, "workloads"), 1);
}

#[test]
fn an_interrupted_run_sums_up_what_it_saw() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tureen"));
    let command = command.args([
        "explore",
        "pair",
        "random",
        "--complete",
        "--count",
        "1000000000",
    ]);
    let command = command.args(["--level", "quick", "--json"]);
    let command = command.env("RUST_LOG", "tureen=debug");
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut told = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let has_judged = |line: &str| line.contains(" states, ") && !line.contains(" 0 states, ");
    let judged = told.find(|line| has_judged(line.as_ref().expect("text")));
    assert!(judged.is_some(), "it tells how far it is");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("signal");
    let output = child.wait_with_output().expect("its output");
    assert_eq!(output.status.code(), Some(130));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let parts = report["parts"].as_array().expect("families");
    let judged = parts.iter().filter_map(|part| part["judged"].as_u64());
    assert!(judged.sum::<u64>() > 0);
}

#[test]
fn shards_are_the_whole_between_them() {
    let whole = report(&SHORT);
    let shards = ["1/3", "2/3", "3/3"].map(|k| report(&[&SHORT[..], &["--shard", k]].concat()));
    for name in [
        "workloads",
        "runs",
        "states",
        "judged",
        "complete",
        "sampled",
    ] {
        let sum: u64 = shards.iter().map(|shard| figure(shard, name)).sum();
        assert_eq!(sum, figure(&whole, name), "{name}");
    }
    assert!(shards.iter().all(|shard| figure(shard, "workloads") == 2));
}

#[test]
fn a_token_of_a_run_that_is_right_replays_without_a_failure() {
    let run = ends(&["--replay", "ace1-7:line:delayed:quick.0"], 0);
    assert!(run.contains("nothing wrong"), "{run}");
    // Which points have states to judge changes with the engine.
    let token = |point| format!("ace1-7:line:delayed:quick.0:p{point}.s0");
    let state = (0..100)
        .map(|point| explore(&["--replay", &token(point)]))
        .find(|output| output.status.success())
        .expect("some point has a state");
    let state = String::from_utf8_lossy(&state.stdout);
    assert!(state.starts_with("1 states, nothing wrong"), "{state}");
    let kept = ends(&["--replay", "script-0[0-8,9,15]:page:sync:quick.3"], 0);
    assert!(kept.contains("nothing wrong"), "{kept}");
}

#[test]
fn a_token_that_names_nothing_is_a_failure() {
    for (token, reason) in [
        ("ace1-7:line:delayed:quick.0:p999999.s0", "no such state"),
        ("ace1-99999:line:delayed:quick.0", "there is no ace1-99999"),
        ("ace1-7[900]:line:delayed:quick.0", "not so many operations"),
        ("both-7@00c0ffee:line:delayed:quick.0", "the recorded run"),
    ] {
        let said = ends(&["--replay", token, "--traces", "/nonexistent"], 1);
        assert!(said.contains(reason), "{token}: {said}");
    }
}

/// The token of a state that is wrong: of a run of two threads that is kept in a directory, without
/// its flushes.
fn injected(dir: &Path) -> Token {
    let token: Token = "both-25:line:delayed:quick.0".parse().expect("a token");
    let workload = by_name(&token.workload).expect("a workload of this name");
    let mut run = Run::record(workload, Domain::Line, false).expect("it runs");
    run.events
        .retain(|event| !matches!(event, Event::Flush { .. }));
    let effort = Level::Quick.effort(0);
    let objection = explore_run(&run, &run.events, effort, None).expect_err("it is wrong");
    Token {
        place: Some(objection.place),
        ..keep(dir, &token, &run).expect("kept")
    }
}

#[test]
fn a_failure_of_two_threads_replays_from_its_record_with_an_account() {
    let dir = tempfile::tempdir().expect("a directory");
    let token = injected(dir.path()).to_string();
    let traces = dir.path().to_str().expect("text");
    let account = ends(&["--replay", &token, "--traces", traces], 1);
    assert_eq!(account.lines().next(), Some(&*token));
    for part in [
        "crash ",
        "what is wrong: ",
        "steps:",
        "the last events before the crash:",
        "lines newer than is durable for sure",
    ] {
        assert!(account.contains(part), "{part}: {account}");
    }
    assert_eq!(ends(&["--replay", &token, "--traces", traces], 1), account);
}

#[test]
fn a_panic_is_a_failure_when_it_is_replayed_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let token: Token = "both-25:line:delayed:quick.0".parse().expect("a token");
    let workload = by_name(&token.workload).expect("a workload of this name");
    let mut run = Run::record(workload, Domain::Line, false).expect("it runs");
    // No judge expects a store outside the image.
    let beyond = Event::Store {
        at: u64::MAX / 2,
        bytes: vec![1; 8],
        around: None,
    };
    run.events.push(beyond);
    let token = keep(dir.path(), &token, &run).expect("kept").to_string();
    let traces = dir.path().to_str().expect("text");
    let said = ends(&["--replay", &token, "--traces", traces], 1);
    assert!(
        said.contains(&token) && said.contains("panicked: "),
        "{said}"
    );
}

#[test]
fn a_table_of_mutants_that_cannot_be_written_is_told_before_they_are_tried() {
    let said = ends(&["--mutants", "no/such/file.md"], 1);
    assert!(said.contains("no/such/file.md: No such file"), "{said}");
    assert!(!said.contains("to try"), "{said}");
}
