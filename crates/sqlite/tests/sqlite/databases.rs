//! Databases in images do what databases do.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};
use soupfs::Mode;
use tempfile::TempDir;
use vfs::FileSystem;

use crate::common::{connect, connect_with, format, integrity, make_image, mount, number};

/// An image of 64 MiB in a directory of its own.
fn image() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("demo.img");
    make_image(&image, 64 << 20);
    (dir, image)
}

fn fill(connection: &Connection, rows: i64) {
    let text = "CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, text TEXT);";
    connection.execute_batch(text).expect("a table");
    let transaction = connection.unchecked_transaction().expect("begun");
    for i in 0..rows {
        let row = (i, format!("row {i} {}", "x".repeat(200)));
        (transaction.execute("INSERT OR REPLACE INTO t VALUES (?, ?)", row)).expect("inserted");
    }
    transaction.commit().expect("committed");
}

const JOURNALS: [&str; 6] = ["delete", "truncate", "persist", "memory", "off", "wal"];

thread_local! {
    /// Atomic batches that this thread has committed.
    static BATCHES: Cell<u64> = const { Cell::new(0) };
}

/// Counts them by what the VFS says.
struct Batches;

impl log::Log for Batches {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.args().to_string().starts_with("an atomic batch") {
            BATCHES.set(BATCHES.get() + 1);
        }
    }

    fn flush(&self) {}
}

/// SQLite as it is built for the tests commits by them, where it has a rollback journal to spare.
#[test]
fn a_transaction_is_an_atomic_batch_where_sqlite_has_them() {
    log::set_logger(&Batches).expect("the only one");
    log::set_max_level(log::LevelFilter::Trace);
    for journal in JOURNALS {
        let (_dir, image) = image();
        let connection = connect(&image.join("app.db"));
        fill(&connection, 1);
        let mode = format!("PRAGMA journal_mode={journal}");
        let set: rusqlite::Result<String> = connection.query_row(&mode, [], |row| row.get(0));
        set.expect("set");
        let before = BATCHES.get();
        for rows in [1, 10, 1000] {
            fill(&connection, rows);
        }
        let batches = match journal {
            "off" | "wal" => 0,
            _ => 3,
        };
        assert_eq!(BATCHES.get() - before, batches, "{journal}");
        if journal == "off" {
            continue; // nothing is rolled back
        }
        let transaction = connection.unchecked_transaction().expect("begun");
        transaction.execute("DELETE FROM t", []).expect("deleted");
        transaction.rollback().expect("rolled back");
        assert_eq!(number(&connection, "SELECT count(*) FROM t"), 1000);
    }
}

/// What is committed is there when the image is opened again, in each journal mode.
fn what_is_committed_is_there(durability: &str) {
    for journal in JOURNALS {
        let (_dir, image) = image();
        let path = image.join("app.db");
        let connect = || connect_with(&path, &format!("&durability={durability}"));
        let connection = connect().expect("opened");
        let mode = format!("PRAGMA journal_mode={journal}");
        let said: String = connection
            .query_row(&mode, [], |row| row.get(0))
            .expect("set");
        assert_eq!(said, journal);
        fill(&connection, 500);
        connection
            .execute("DELETE FROM t WHERE id % 2 = 0", [])
            .expect("deleted");
        connection.close().expect("closed");
        let connection = connect().expect("opened again");
        let what = format!("{durability}, {journal}");
        assert_eq!(number(&connection, "SELECT count(*) FROM t"), 250, "{what}");
        assert_eq!(integrity(&connection), "ok", "{what}");
        connection.execute_batch("VACUUM").expect("smaller");
        assert_eq!(integrity(&connection), "ok", "{what}");
        assert_eq!(number(&connection, "SELECT count(*) FROM t"), 250, "{what}");
    }
}

#[test]
fn what_is_committed_is_there_when_the_image_is_opened_again() {
    what_is_committed_is_there("strong");
}

#[test]
fn what_is_committed_in_mode_sync_is_there_when_the_image_is_opened_again() {
    what_is_committed_is_there("sync");
}

#[test]
fn what_is_committed_in_mode_delayed_is_there_when_the_image_is_opened_again() {
    what_is_committed_is_there("delayed");
}

#[test]
fn a_transaction_that_is_rolled_back_leaves_no_trace() {
    let (_dir, image) = image();
    let connection = connect(&image.join("app.db"));
    fill(&connection, 300);
    // So small a cache is written to the file before the end of the transaction.
    connection
        .execute_batch("PRAGMA cache_size=10")
        .expect("set");
    let transaction = connection.unchecked_transaction().expect("begun");
    transaction
        .execute("UPDATE t SET text = text || text || text", [])
        .expect("updated");
    transaction
        .execute("INSERT INTO t SELECT id + 1000, text FROM t", [])
        .expect("inserted");
    transaction
        .execute_batch("SAVEPOINT s; DELETE FROM t; ROLLBACK TO s")
        .expect("partly");
    assert_eq!(number(&transaction, "SELECT count(*) FROM t"), 600);
    transaction.rollback().expect("rolled back");
    assert_eq!(
        number(
            &connection,
            "SELECT count(*) FROM t WHERE length(text) < 300"
        ),
        300
    );
    assert_eq!(integrity(&connection), "ok");
}

#[test]
fn other_connections_see_a_transaction_when_it_is_committed() {
    for journal in JOURNALS {
        let (_dir, image) = image();
        let path = image.join("app.db");
        let (a, b) = (connect(&path), connect(&path));
        let mode = format!("PRAGMA journal_mode={journal}; PRAGMA cache_size=5");
        a.execute_batch(&mode).expect("set");
        // It is told at once that the other one writes, not after five seconds.
        b.busy_timeout(Duration::ZERO).expect("set");
        fill(&a, 200);
        let transaction = a.unchecked_transaction().expect("begun");
        transaction
            .execute("INSERT INTO t SELECT id + 200, text FROM t", [])
            .expect("inserted");
        let seen = b.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0));
        // A full cache wants to be written, for which nobody may read.
        let busy = |e: rusqlite::Error| e.sqlite_error_code() == Some(ErrorCode::DatabaseBusy);
        assert!(seen.map_or_else(busy, |count| count == 200), "{journal}");
        let refused = b.execute("DELETE FROM t", []).expect_err("one writes");
        assert_eq!(
            refused.sqlite_error_code(),
            Some(ErrorCode::DatabaseBusy),
            "{journal}"
        );
        transaction.commit().expect("committed");
        assert_eq!(number(&b, "SELECT count(*) FROM t"), 400, "{journal}");
        assert_eq!(integrity(&b), "ok", "{journal}");
    }
}

#[test]
fn threads_add_to_one_database() {
    for journal in ["delete", "wal"] {
        let (_dir, image) = image();
        let path = image.join("app.db");
        let first = connect(&path);
        first
            .execute_batch(&format!("PRAGMA journal_mode={journal}"))
            .expect("set");
        first
            .execute_batch("CREATE TABLE n(v); INSERT INTO n VALUES (0)")
            .expect("a table");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let connection = connect(&path);
                    connection
                        .busy_timeout(Duration::from_secs(60))
                        .expect("set");
                    for _ in 0..25 {
                        connection
                            .execute("UPDATE n SET v = v + 1", [])
                            .expect("added");
                    }
                });
            }
        });
        assert_eq!(number(&first, "SELECT v FROM n"), 100, "{journal}");
        assert_eq!(integrity(&first), "ok");
    }
}

#[test]
fn a_transaction_is_one_commit_of_the_engine() {
    let path = Path::new("/memory/one-commit");
    let options = pmem::Options {
        domain: Some(pmem::Domain::Line),
        ..pmem::Options::default()
    };
    let pool = Arc::new(pmem::Pool::anonymous(64 << 20, &options).expect("memory"));
    format(&pool);
    tureen_sqlite::attach(path, mount(pool.clone(), Mode::Strong));
    let connection = connect(&path.join("app.db"));
    fill(&connection, 2000);
    let commits = || pool.stats().commits_log;
    let before = commits();
    let transaction = connection.unchecked_transaction().expect("begun");
    transaction
        .execute("UPDATE t SET text = 'short' WHERE id % 7 = 0", [])
        .expect("updated");
    assert_eq!(commits() - before, 0, "nothing is stored before the end");
    transaction.commit().expect("committed");
    assert_eq!(commits() - before, 1);
    let before = commits();
    connection
        .execute("INSERT INTO t VALUES (100000, 'one')", [])
        .expect("inserted");
    assert_eq!(commits() - before, 1);
    drop(connection);
    tureen_sqlite::detach(path);
}

/// In what `PRAGMA tureen_counters` says.
fn counter(connection: &Connection, name: &str) -> u64 {
    let text: String = connection
        .query_row("PRAGMA tureen_counters", [], |row| row.get(0))
        .expect("counters");
    let (_, rest) = (text.split_once(&format!("\"{name}\":"))).expect("there is one");
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
    digits.expect("a number").parse().expect("a number")
}

#[test]
fn a_pragma_tells_what_the_medium_of_the_domain_asked_for_did() {
    let (_dir, image) = image();
    for domain in ["line", "page"] {
        let path = image.join(format!("{domain}.db"));
        let connection = connect_with(&path, &format!("&domain={domain}")).expect("it opens");
        fill(&connection, 10);
        let read = || ["flushed_lines", "fences", "stored_bytes"].map(|n| counter(&connection, n));
        let before = read();
        (connection.execute("UPDATE t SET text = 'new' WHERE id = 3", [])).expect("updated");
        let after = read();
        let grown = before
            .iter()
            .zip(after)
            .all(|(before, after)| *before < after);
        assert!(grown, "{domain}: {before:?}, {after:?}");
        let synced = counter(&connection, "syncs") > 0;
        assert_eq!(synced, domain == "page", "{domain}");
    }
    // A PRAGMA that is not ours is SQLite's, and so is ours on another VFS.
    let plain = Connection::open_in_memory().expect("it opens");
    let none = plain.query_row("PRAGMA tureen_counters", [], |_| Ok(()));
    assert_eq!(none, Err(rusqlite::Error::QueryReturnedNoRows));
}

#[test]
fn pages_smaller_than_those_of_the_engine_and_larger_ones_do_too() {
    for size in [512, 1024, 2048, 8192, 65536] {
        let (_dir, image) = image();
        let path = image.join("app.db");
        let connection = connect(&path);
        connection
            .execute_batch(&format!("PRAGMA page_size={size}"))
            .expect("set");
        fill(&connection, 300);
        connection
            .execute("DELETE FROM t WHERE id % 3 = 0", [])
            .expect("deleted");
        assert_eq!(number(&connection, "PRAGMA page_size"), size);
        connection.close().expect("closed");
        let connection = connect(&path);
        assert_eq!(number(&connection, "SELECT count(*) FROM t"), 200, "{size}");
        assert_eq!(integrity(&connection), "ok", "{size}");
    }
}

#[test]
fn a_transaction_beyond_its_bound_fails_and_leaves_the_one_before() {
    let (_dir, image) = image();
    let path = image.join("app.db");
    let connection = connect_with(&path, "&pending=200000").expect("opened");
    fill(&connection, 100);
    connection
        .execute_batch("PRAGMA cache_size=5")
        .expect("set");
    let many = "WITH RECURSIVE n(i) AS (SELECT 1000 UNION ALL SELECT i + 1 FROM n LIMIT 5000)
                INSERT INTO t SELECT i, hex(randomblob(100)) FROM n";
    let refused = connection
        .execute(many, [])
        .expect_err("it changes too much");
    assert_eq!(refused.sqlite_error_code(), Some(ErrorCode::DiskFull));
    assert_eq!(number(&connection, "SELECT count(*) FROM t"), 100);
    assert_eq!(integrity(&connection), "ok");
    fill(&connection, 120);
    assert_eq!(number(&connection, "SELECT count(*) FROM t"), 120);
}

#[test]
fn a_full_image_refuses_a_transaction_and_keeps_the_database() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("small.img");
    make_image(&image, 4 << 20);
    let connection = connect(&image.join("app.db"));
    fill(&connection, 100);
    let many = "WITH RECURSIVE n(i) AS (SELECT 1000 UNION ALL SELECT i + 1 FROM n LIMIT 50000)
                INSERT INTO t SELECT i, hex(randomblob(100)) FROM n";
    let refused = connection.execute(many, []).expect_err("it does not fit");
    assert_eq!(refused.sqlite_error_code(), Some(ErrorCode::DiskFull));
    assert_eq!(number(&connection, "SELECT count(*) FROM t"), 100);
    assert_eq!(integrity(&connection), "ok");
}

#[test]
fn a_journal_that_was_left_in_the_image_is_rolled_back() {
    let (dir, image) = image();
    // A database in an ordinary directory, in the middle of a transaction.
    let plain = dir.path().join("plain.db");
    let source = Connection::open(&plain).expect("opened");
    fill(&source, 300);
    source.execute_batch("PRAGMA cache_size=2").expect("set");
    let transaction = source.unchecked_transaction().expect("begun");
    transaction
        .execute("UPDATE t SET text = upper(text)", [])
        .expect("updated");
    let journal = dir.path().join("plain.db-journal");
    let copies = [(&plain, "app.db"), (&journal, "app.db-journal")];
    {
        let pool = pmem::Pool::open(&image, &pmem::Options::default()).expect("opened");
        let fs = mount(Arc::new(pool), Mode::Strong);
        for (from, to) in copies {
            let new = vfs::NewNode {
                kind: vfs::NewKind::File,
                perm: 0o600,
                uid: 0,
                gid: 0,
                xattrs: &[],
            };
            let node = fs.create(&fs.root(), to.as_bytes(), &new).expect("made");
            let bytes = std::fs::read(from).expect("read");
            assert!(!bytes.is_empty(), "the cache was written out");
            fs.write(&node, 0, &bytes).expect("written");
        }
        fs.unmount().expect("unmounted");
    }
    drop(transaction);
    let connection = connect(&image.join("app.db"));
    assert_eq!(
        number(
            &connection,
            "SELECT count(*) FROM t WHERE text LIKE 'row %'"
        ),
        300
    );
    let upper = number(
        &connection,
        "SELECT count(*) FROM t WHERE text GLOB 'ROW *'",
    );
    assert_eq!(upper, 0, "the journal was not used");
    assert_eq!(integrity(&connection), "ok");
    connection
        .execute("DELETE FROM t WHERE id > 10", [])
        .expect("it goes on");
}

#[test]
fn names_that_lead_into_no_image_are_left_to_the_other_vfs() {
    let dir = tempfile::tempdir().expect("a directory");
    let connection = connect(&dir.path().join("plain.db"));
    fill(&connection, 10);
    connection.close().expect("closed");
    assert!(dir.path().join("plain.db").is_file());
}

#[test]
fn what_cannot_be_opened_is_refused() {
    let (dir, image) = image();
    let cannot = |path: &Path, parameters: &str| {
        let refused =
            connect_with(path, parameters).and_then(|c| c.execute_batch("PRAGMA user_version"));
        let refused = refused.expect_err("refused");
        assert_eq!(
            refused.sqlite_error_code(),
            Some(ErrorCode::CannotOpen),
            "{refused}"
        );
    };
    cannot(&image.join("no/such/app.db"), "");
    cannot(&image.join("app.db"), "&durability=full");
    cannot(&image.join("app.db"), "&pending=many");
    cannot(&image.join("app.db"), "&domain=byte");
    cannot(&dir.path().join("none.img/app.db"), "");
    let text = dir.path().join("text");
    std::fs::write(&text, "no image").expect("written");
    cannot(&text.join("app.db"), "");
    let open = connect(&image.join("app.db"));
    fill(&open, 1);
    cannot(&image.join("other.db"), "&durability=sync");
    cannot(&image.join("other.db"), "&domain=line");
    // The image is this process's as long as a database is open.
    assert!(pmem::Pool::open(&image, &pmem::Options::default()).is_err());
    drop(open);
    assert!(pmem::Pool::open(&image, &pmem::Options::default()).is_ok());
}
