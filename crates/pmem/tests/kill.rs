//! A process that commits is killed (SIGKILL): what it committed is there, by whole transactions.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use pmem::{Journal, Options, Pool};

/// Set for the child: the image to commit to.
const IMAGE: &str = "PMEM_KILL_IMAGE";
const JOURNAL_LEN: u64 = 4096;
/// In a line each, over two pages.
const WORDS: [u64; 8] = [4096, 4160, 4224, 4288, 8192, 8256, 8320, 8384];
/// What the child says, with a number behind it.
const COMMITTED: &str = "committed ";
const ROUNDS: usize = 10;

fn open(path: &Path) -> (Arc<Pool>, Journal) {
    let pool = Arc::new(Pool::open(path, &Options::default()).expect("open"));
    let (journal, _) =
        Journal::recover(&pool, 0, JOURNAL_LEN, |word| WORDS.contains(&word)).expect("recover");
    (pool, journal)
}

/// The child: counts up in all words at once, and says what it has committed, until it is killed.
fn commit_forever(path: &Path) -> ! {
    let (pool, mut journal) = open(path);
    for value in pool.load(WORDS[0]) + 1.. {
        journal
            .commit(&WORDS.map(|word| (word, value)).into_iter().collect())
            .expect("commit");
        // In one piece, as the kill may come at any time.
        let line = format!("{COMMITTED}{value}\n");
        std::io::stderr()
            .write_all(line.as_bytes())
            .expect("a pipe");
    }
    unreachable!("more commits than a u64 counts")
}

fn kill_and_check(path: &Path) {
    let mut newest = 0;
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args([
                "--exact",
                "what_a_killed_process_committed_is_there_by_whole_transactions",
            ])
            .env(IMAGE, path)
            .arg("--nocapture")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("spawn");
        // Once it has recovered and made some commits: it is in the midst of another one then.
        let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let mut committed = lines.map(|line| {
            let line = line.expect("text");
            let value = line
                .strip_prefix(COMMITTED)
                .and_then(|value| value.parse().ok());
            value.unwrap_or_else(|| panic!("the child says: {line}"))
        });
        let said = committed.nth(3 * round).expect("the child ended by itself");
        child.kill().expect("kill");
        let said: u64 = committed.last().unwrap_or(said);
        child.wait().expect("wait");
        let (pool, _) = open(path);
        let values = WORDS.map(|word| pool.load(word));
        assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
        assert!(said > newest, "{said} after {newest}");
        assert!(
            values[0] >= said,
            "{} is there, and {said} was committed",
            values[0]
        );
        newest = values[0];
    }
    assert!(newest > 0, "no child committed anything");
}

#[test]
fn what_a_killed_process_committed_is_there_by_whole_transactions() {
    if let Some(path) = std::env::var_os(IMAGE) {
        commit_forever(Path::new(&path));
    }
    // A disk, and memory, where hardware transactions are used if there are any.
    for dir in [tempfile::tempdir(), tempfile::tempdir_in("/dev/shm")] {
        let Ok(dir) = dir else {
            testing::skip!("needs /dev/shm and a directory for temporary files");
        };
        let path = dir.path().join("image");
        let pool = Pool::create(&path, 3 * 4096, &Options::default()).expect("create");
        Journal::format(&pool, 0, JOURNAL_LEN);
        pool.fence().expect("fence");
        println!("domain {}", pool.domain());
        drop(pool);
        kill_and_check(&path);
    }
}
