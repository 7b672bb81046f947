//! What tests of several crates share. No part of the program.
//!
//! A test that cannot run here says so with [`skip!`]: one line on standard error, past the test
//! harness, which would swallow it; and, where the variable [`SKIPPED`] names a file, a line there,
//! so that they can be counted. A reason that begins with "needs" names what root can have or
//! install: `.ci/run` fails if there is one although it runs as root. Other reasons name what the
//! processor or the kernel lacks.

pub mod layers;
mod loops;
mod offered;
pub mod raw;

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use loops::{Loop, run};
pub use offered::RingOffered;

/// The variable that names the file with a line for each skipped test.
pub const SKIPPED: &str = "TUREEN_SKIPPED";

/// What was said in this process.
static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Whether the tests run as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Says that a test, or a part of it, does not run here. Used by [`skip!`].
///
/// # Panics
/// When the file of skipped tests cannot be written: they would not be counted.
pub fn skipped(place: &str, why: &str) {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let line = format!("skipped: {test} ({place}): {why}\n");
    let list = std::env::var_os(SKIPPED).map(PathBuf::from);
    // Not by `eprintln!`, whose output is shown for tests that fail only.
    say_once(line, &mut std::io::stderr(), list.as_deref());
}

/// A test of many cases says it once.
fn say_once(line: String, to: &mut impl Write, list: Option<&Path>) {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.contains(&line) {
        return;
    }
    // If standard error is closed, there is nobody to tell.
    let _ = to.write_all(line.as_bytes());
    if let Some(path) = list {
        let list = OpenOptions::new().append(true).create(true).open(path);
        list.and_then(|mut list| list.write_all(line.as_bytes()))
            .expect("the list of skipped tests can be written");
    }
    said.insert(line);
}

/// Ends a test that cannot run here, and says why: `skip!("needs root")`. With a second argument
/// the test returns that.
#[macro_export]
macro_rules! skip {
    ($why:expr) => {
        $crate::skip!($why, ())
    };
    ($why:expr, $value:expr) => {{
        $crate::skipped(concat!(file!(), ":", line!()), $why);
        return $value;
    }};
}

/// Ends a test that needs root, and says so, unless it runs as root.
#[macro_export]
macro_rules! needs_root {
    () => {
        $crate::needs_root!(())
    };
    ($value:expr) => {
        if !$crate::is_root() {
            $crate::skip!("needs root", $value);
        }
    };
}

/// Says how to replay a seed if the test panics with it, in this thread or in one that it joins.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to replay: TUREEN_REPLAY={}", self.0);
        }
    }
}

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    value.parse().ok()
}

/// Runs a random test for each of `seeds` seeds from 0 on, or for the one that TUREEN_REPLAY names.
/// A failure says how to replay it.
pub fn for_seeds(seeds: u64, test: impl Fn(u64)) {
    let range = match variable("TUREEN_REPLAY") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("TUREEN_SEEDS").unwrap_or(seeds),
    };
    for seed in range {
        let _replay = Replay(seed);
        test(seed);
    }
}

/// How long a test of threads that meet by chance goes on: TUREEN_STRESS_SECONDS, or 3.
pub fn stress_time() -> Duration {
    Duration::from_secs(variable("TUREEN_STRESS_SECONDS").unwrap_or(3))
}

/// Runs a random test of threads that meet by chance for [`stress_time`]. Each process tries other
/// seeds; or the one that TUREEN_REPLAY names, over and over. A failure says how to replay it.
pub fn stress(mut test: impl FnMut(u64)) {
    let until = Instant::now() + stress_time();
    let replayed = variable("TUREEN_REPLAY");
    let mut seed = replayed.unwrap_or(u64::from(std::process::id()) * 1000);
    while Instant::now() < until {
        let _replay = Replay(seed);
        test(seed);
        seed += u64::from(replayed.is_none());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// It runs itself in a process of its own, where that variable makes it fail.
    #[test]
    fn a_failure_in_any_thread_says_how_to_replay_its_seed() {
        const FAILS: &str = "TUREEN_TESTING_FAILS";
        if std::env::var_os(FAILS).is_some() {
            return stress(|_| std::thread::scope(|scope| drop(scope.spawn(|| panic!("lost")))));
        }
        let failed = Command::new(std::env::current_exe().expect("a program"))
            .args([
                "--exact",
                "tests::a_failure_in_any_thread_says_how_to_replay_its_seed",
            ])
            .envs([(FAILS, "1"), ("TUREEN_REPLAY", "4711")])
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&failed.stdout).into_owned();
        assert!(!failed.status.success(), "{said}");
        assert!(said.contains("to replay: TUREEN_REPLAY=4711"), "{said}");
    }

    #[test]
    fn what_is_skipped_is_told_and_listed_once() {
        let list = std::env::temp_dir().join(format!("skipped-{}", std::process::id()));
        let mut told = Vec::new();
        for line in ["one\n", "one\n", "two\n"] {
            say_once(line.to_owned(), &mut told, Some(&list));
        }
        let listed = std::fs::read_to_string(&list).expect("a list");
        std::fs::remove_file(&list).expect("it is ours");
        assert_eq!(listed, "one\ntwo\n");
        assert_eq!(told, listed.as_bytes());
    }
}
