//! How many requests real programs cause for each file: the second table in `docs/design/fuse.md`.
//!
//! Other versions of the programs may do otherwise, so these are upper limits, with some room for
//! what a program does once.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::Mounted;

const FILES: u64 = 100;

/// Requests of a program beside those for each file.
const ONCE: u64 = 30;

/// Runs a program in a directory; false if there is no such program.
fn run(dir: &Path, line: &str) -> bool {
    let mut words = line.split(' ');
    let status = Command::new(words.next().expect("a program"))
        .args(words)
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .stdout(Stdio::null())
        .status();
    match status {
        Ok(status) => {
            assert!(status.success(), "{line}: {status}");
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{line}");
            false
        }
    }
}

/// Files of 4 KiB in a directory `src`, and in an archive of it.
fn source() -> tempfile::TempDir {
    let temp = tempfile::tempdir().expect("a directory");
    fs::create_dir(temp.path().join("src")).expect("mkdir");
    for file in 0..FILES {
        let path = temp.path().join("src").join(file.to_string());
        fs::write(path, format!("{file:4096}")).expect("write");
    }
    temp
}

#[test]
fn programs_need_few_requests_for_each_file() {
    let (mount, source) = (Mounted::counted(|_| {}), source());
    fs::create_dir(mount.path("work")).expect("mkdir");
    let work = mount.path("work");
    let from = source.path().display();
    let git = "git -c user.name=a -c user.email=a@b -c gc.auto=0";
    assert!(run(source.path(), "tar cf src.tar src"));
    let steps = [
        (format!("cp -a {from}/src copy"), 7),
        (format!("cp -r {from}/src plain"), 5),
        (format!("tar xf {from}/src.tar"), 10),
        ("find . -printf %s".to_owned(), 0),
        ("find . -printf %s".to_owned(), 0),
        ("grep -r -c 1 copy".to_owned(), 0),
        ("tar cf - copy".to_owned(), 0),
        ("rm -r src".to_owned(), 2),
        ("rm -r plain".to_owned(), 2),
        (format!("{git} init -q"), 2),
        (format!("{git} add -A"), 14),
        (format!("{git} status"), 1),
        (format!("{git} status"), 0),
    ];
    for (line, for_each_file) in steps {
        let mut ran = false;
        let requests = mount.requests(|| ran = run(&work, &line));
        let all: u64 = requests.iter().map(|&(_, count)| count).sum();
        let most = for_each_file * FILES + ONCE;
        assert!(all <= most, "{line}: {all}, more than {most}: {requests:?}");
        if !ran {
            testing::skip!("needs cp, tar, find, grep, rm and git");
        }
    }
}
