//! Bugs that are injected are noticed.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::crashes::{fail_at_each_request, survive};
use super::protocol::tears;
use super::random::threads_beside_arrays;
use super::{SMALL, ways};
use crate::paged::Options;
use crate::paged::bug::{Bug, Bugs};

/// What ends at all ends in a few seconds. Threads that wait for each other notice a bug, too.
const PATIENCE: Duration = Duration::from_secs(10);
/// Each way is tried with so many seeds.
const SEEDS: u64 = 6;

/// What the other tests look at, with one way to hold a disk.
fn look(way: &Options, seed: u64) {
    survive(way, seed);
    threads_beside_arrays(way, seed, 4, 1000);
    assert!(!tears(way, 100), "a word is half changed");
    if seed < 2 {
        fail_at_each_request(way, seed);
    }
}

/// Whether a bug is noticed, with whichever way and seed.
fn is_noticed(bug: Bug) -> bool {
    let all = (0..SEEDS).flat_map(|seed| ways(SMALL).into_iter().map(move |way| (way, seed)));
    let mut all = all.map(|(way, seed)| {
        let way = Options {
            bugs: Bugs {
                injected: Some(bug),
            },
            ..way
        };
        let (done, ended) = channel();
        // Not joined: it may wait for ever.
        std::thread::spawn(move || {
            look(&way, seed);
            let _ = done.send(());
        });
        match ended.recv_timeout(PATIENCE) {
            Ok(()) => false,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => true,
        }
    });
    all.any(|noticed| noticed)
}

#[test]
fn a_rule_that_is_broken_is_noticed() {
    let unnoticed: Vec<_> = Bug::ALL
        .into_iter()
        .filter(|bug| !is_noticed(*bug))
        .collect();
    assert!(unnoticed.is_empty(), "nobody notices {unnoticed:?}");
}
