//! What tests of several crates share. No part of the program.
//!
//! A test that cannot run here says so with [`skip!`]: one line on standard error, past the test
//! harness, which would swallow it; and, where the variable [`SKIPPED`] names a file, a line there, so
//! that who runs all tests can count them. `.ci/run` fails if there is one although it runs as root.

pub mod raw;

use std::fs::OpenOptions;
use std::io::Write;

/// The variable that names the file with a line for each skipped test.
pub const SKIPPED: &str = "TUREEN_SKIPPED";

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
    // Not by `eprintln!`, whose output is shown for tests that fail only. If standard error is closed,
    // there is nobody to tell.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os(SKIPPED) {
        let list = OpenOptions::new().append(true).create(true).open(path);
        list.and_then(|mut list| list.write_all(line.as_bytes()))
            .expect("the list of skipped tests can be written");
    }
}

/// Ends a test that cannot run here, and says why: `skip!("needs root")`. With a second argument the
/// test returns that.
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    /// Run by the next test, in a process of its own.
    #[test]
    #[ignore = "skips itself, for another test to see"]
    fn skips() {
        skip!("as a test");
    }

    #[test]
    fn a_skipped_test_is_told_and_counted() {
        let list = std::env::temp_dir().join(format!("skipped-{}", std::process::id()));
        let program = std::env::current_exe().expect("its path");
        let output = Command::new(program)
            .args(["--exact", "tests::skips", "--ignored"])
            .env(super::SKIPPED, &list)
            .output()
            .expect("it runs");
        let listed = std::fs::read_to_string(&list).expect("a list");
        std::fs::remove_file(&list).expect("it is ours");
        assert!(output.status.success());
        assert_eq!(listed.lines().count(), 1);
        assert!(
            listed.starts_with("skipped: tests::skips (crates/testing/src/lib.rs:"),
            "{listed}"
        );
        assert!(listed.ends_with("): as a test\n"), "{listed}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(&listed));
    }
}
