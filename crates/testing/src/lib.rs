//! What tests of several crates share. No part of the program.
//!
//! A test that cannot run here says so with [`skip!`]: one line on standard error, past the test
//! harness, which would swallow it; and, where the variable [`SKIPPED`] names a file, a line there,
//! so that who runs all tests can count them. `.ci/run` fails if there is one although it runs as
//! root.

pub mod layers;
mod loops;
pub mod raw;

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

pub use loops::{Loop, run};

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

/// Runs a random test for each of `seeds` seeds from 0 on, or for the one that TUREEN_REPLAY names.
/// A failure says how to replay it.
pub fn for_seeds(seeds: u64, test: impl Fn(u64)) {
    struct Replay(u64);
    impl Drop for Replay {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("to replay: TUREEN_REPLAY={}", self.0);
            }
        }
    }
    let variable = |name| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse().ok())
    };
    let range = match variable("TUREEN_REPLAY") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("TUREEN_SEEDS").unwrap_or(seeds),
    };
    for seed in range {
        let _replay = Replay(seed);
        test(seed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
