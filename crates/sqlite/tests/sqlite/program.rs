//! The extension in the `sqlite3` of this machine, which is killed at any moment.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use block::Random;

use crate::common::make_image;

/// The extension, as it was built with this test.
fn extension() -> PathBuf {
    let here = std::env::current_exe().expect("this program");
    let deps = here.parent().expect("its directory");
    let found = [deps, deps.parent().expect("target")].map(|dir| dir.join("libtureen_sqlite.so"));
    let found = found.into_iter().find(|path| path.is_file());
    found.expect("the extension is built with its tests")
}

fn has_sqlite() -> bool {
    Command::new("sqlite3").arg("--version").output().is_ok()
}

/// A `sqlite3` with a database in an image.
fn sqlite(image: &Path) -> Command {
    let mut command = Command::new("sqlite3");
    command.args(["-batch", "-bail", ":memory:"]);
    command.arg("-cmd").arg(format!(
        ".load {}",
        extension().with_extension("").display()
    ));
    let open = format!(".open file:{}/app.db?vfs=tureen", image.display());
    command.arg("-cmd").arg(open);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn ask(image: &Path, statements: &str) -> String {
    let mut child = sqlite(image).spawn().expect("started");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(statements.as_bytes()).expect("written");
    drop(stdin);
    let output = child.wait_with_output().expect("ended");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{statements}: {errors}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn the_extension_opens_databases_in_images() {
    if !has_sqlite() {
        testing::skip!("needs sqlite3");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("demo.img");
    make_image(&image, 64 << 20);
    ask(
        &image,
        "CREATE TABLE t(v); INSERT INTO t VALUES (1), (2), (39);",
    );
    assert_eq!(
        ask(&image, "SELECT sum(v) FROM t; PRAGMA integrity_check;"),
        "42\nok"
    );
    assert_eq!(ask(&image, ".vfsname"), "tureen");
}

/// Each transaction adds a row and moves an amount between two others; it says its number when it
/// is committed. Killed anywhere, all that were said are there, and the sum is as it was.
#[test]
fn what_was_committed_outlives_a_kill_at_any_moment() {
    if !has_sqlite() {
        testing::skip!("needs sqlite3");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("demo.img");
    make_image(&image, 64 << 20);
    ask(
        &image,
        "CREATE TABLE log(n INTEGER PRIMARY KEY, text); CREATE TABLE account(id, amount);
         INSERT INTO account VALUES (1, 1000), (2, 1000);",
    );
    let rounds = std::env::var("TUREEN_ROUNDS").map_or(8, |text| text.parse().expect("a number"));
    let mut random = Random::new(0x5e1f);
    let mut said = 0;
    for round in 0..rounds {
        let mut child = sqlite(&image).spawn().expect("started");
        let (mut stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let until = said + 1 + random.below(40);
        let mut lines = BufReader::new(stdout.expect("piped")).lines();
        let mut input = stdin.take().expect("piped");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for n in said + 1..said + 1000 {
                    let amount = n % 17;
                    let statements = format!(
                        "BEGIN; INSERT OR REPLACE INTO log VALUES ({n}, hex(randomblob({})));
                         UPDATE account SET amount = amount - {amount} WHERE id = 1;
                         UPDATE account SET amount = amount + {amount} WHERE id = 2; COMMIT;
                         SELECT {n};\n",
                        n % 5 * 700
                    );
                    if input.write_all(statements.as_bytes()).is_err() {
                        return; // it was killed
                    }
                }
            });
            for line in lines.by_ref().map_while(Result::ok) {
                said = line.parse().expect("a number");
                if said >= until {
                    break;
                }
            }
            child.kill().expect("killed");
            said = lines
                .map_while(Result::ok)
                .filter_map(|line| line.parse().ok())
                .last()
                .unwrap_or(said);
        });
        child.wait().expect("ended");
        let state = ask(
            &image,
            "PRAGMA integrity_check; SELECT sum(amount) FROM account;
             SELECT count(*) = max(n) FROM log; SELECT max(n) FROM log;",
        );
        let state: Vec<&str> = state.lines().collect();
        assert_eq!(state[..3], ["ok", "2000", "1"], "round {round}");
        let last: u64 = state[3].parse().expect("a number");
        assert!(
            last >= said,
            "round {round}: {said} was committed, {last} is there"
        );
        said = last;
    }
}
