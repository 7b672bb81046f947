//! Transactions a second of SQLite: databases in images beside files, in one run.
//!
//! ```sh
//! cargo run --release -p tureen-sqlite --example compare -- DIRECTORY... [--seconds N]
//! ```
//!
//! In each directory (one on a disk, one in /dev/shm) an image and files are made, measured by
//! turns and removed: small transactions that change three rows in a table of 10,000.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};

#[path = "../tests/sqlite/common.rs"]
#[allow(dead_code)]
mod common;

/// Rounds by turns; the median counts.
const ROUNDS: usize = 5;

/// What is compared: a name, where the database is, and what is set.
struct Side {
    name: String,
    path: PathBuf,
    uri: bool,
    setup: &'static str,
}

fn open(side: &Side) -> rusqlite::Result<Connection> {
    let connection = match side.uri {
        true => common::connect(&side.path),
        false => Connection::open_with_flags(&side.path, OpenFlags::default())?,
    };
    connection.execute_batch(side.setup)?;
    Ok(connection)
}

fn fill(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, n INTEGER, text TEXT);
         WITH RECURSIVE i(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM i LIMIT 10000)
         INSERT OR IGNORE INTO t SELECT i, 0, hex(zeroblob(50)) FROM i;",
    )
}

/// Transactions a second.
fn rate(connection: &Connection, window: Duration, seed: &mut u64) -> rusqlite::Result<f64> {
    let mut update = connection.prepare_cached("UPDATE t SET n = n + 1 WHERE id = ?")?;
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < window {
        connection.execute_batch("BEGIN")?;
        for _ in 0..3 {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            update.execute([(*seed >> 33) as i64 % 10_000])?;
        }
        connection.execute_batch("COMMIT")?;
        count += 1;
    }
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}

fn sides(directory: &Path) -> Vec<Side> {
    let image = directory.join("compare.img");
    let pool = pmem::Pool::create(&image, 256 << 20, &pmem::Options::default()).expect("an image");
    let pool = Arc::new(pool);
    common::format(&pool);
    println!(
        "{}: an image is of domain {}",
        directory.display(),
        pool.domain()
    );
    drop(pool);
    let file = |name: &str| directory.join(name);
    let side = |name: &str, path, uri, setup| Side {
        name: name.to_owned(),
        path,
        uri,
        setup,
    };
    vec![
        side("image, strong, no PRAGMA", image.join("app.db"), true, ""),
        side(
            "file, journal, synchronous=full",
            file("journal.db"),
            false,
            "PRAGMA synchronous=full",
        ),
        side(
            "file, WAL, synchronous=full",
            file("wal.db"),
            false,
            "PRAGMA journal_mode=wal; PRAGMA synchronous=full",
        ),
        side(
            "file, WAL, synchronous=normal (may lose the last ones)",
            file("normal.db"),
            false,
            "PRAGMA journal_mode=wal; PRAGMA synchronous=normal",
        ),
    ]
}

fn main() -> rusqlite::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (mut directories, mut seconds) = (Vec::new(), 1.0);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seconds" => {
                let value = arguments.next().and_then(|text| text.parse().ok());
                seconds = value.expect("--seconds takes a number");
            }
            _ => directories.push(PathBuf::from(argument)),
        }
    }
    for directory in directories {
        let directory = tempfile::tempdir_in(directory).expect("a directory");
        let sides = sides(directory.path());
        let open: Vec<_> = sides.iter().map(open).collect::<Result<_, _>>()?;
        open.iter().try_for_each(fill)?;
        let (mut rates, mut seed) = (vec![Vec::new(); sides.len()], 1);
        for _ in 0..ROUNDS {
            for (connection, rates) in open.iter().zip(&mut rates) {
                rates.push(rate(
                    connection,
                    Duration::from_secs_f64(seconds),
                    &mut seed,
                )?);
            }
        }
        for (side, rates) in sides.iter().zip(&mut rates) {
            rates.sort_by(f64::total_cmp);
            let (low, median, high) = (rates[0], rates[ROUNDS / 2], rates[ROUNDS - 1]);
            println!(
                "  {median:8.0} a second ({low:.0} to {high:.0})  {}",
                side.name
            );
        }
    }
    Ok(())
}
