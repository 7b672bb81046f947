//! Databases that make each transaction durable, on a disk: SQLite and RocksDB.

use std::time::Duration;

use super::commands::{Commands, command, output, remove_all};
use super::disk;
use crate::participants::{Participant, Participants, with_paths};
use crate::plan::Plan;
use crate::report::{Better, DATABASES, Found, Run, Shape};
use crate::runner::run_each;
use crate::sampler::{Sampler, figure};
use crate::target::Result;

const CHART: &str = "databases";
/// Of each; no fewer than some, or starting the program is what is measured.
const TRANSACTIONS: u64 = 500;
const TRANSACTIONS_MIN: u64 = 20;
const LEN: u64 = 512 << 20;
/// A slow disk has fewer rounds.
const TIME: Duration = Duration::from_secs(90);

/// Names, and the modes of SQLite's journal.
const SQLITE: [(&str, &str); 2] = [
    ("SQLite, WAL, a transaction", "WAL"),
    ("SQLite, rollback journal, a transaction", "DELETE"),
];
const FILL_SYNC: &str = "RocksDB, fillsync, a put";

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    with_paths(|| {
        let plan = Plan {
            paths: true,
            ..plan.part(TIME)
        };
        measure(&plan)
    })
}

fn measure(plan: &Plan) -> Result<Found> {
    let participants = Participants::on_disk(plan, &disk::specs(), &disk::setup(plan, LEN))?;
    let count = plan.scaled(TRANSACTIONS).max(TRANSACTIONS_MIN);
    let commands = Commands::default();
    let measured = run_each(plan, &participants, "databases", |one, sampler| {
        for (name, mode) in SQLITE {
            sqlite(&commands, (one, sampler), (name, mode), count)?;
        }
        let put = fill_sync(one, count).map(|ns| sampler.value(figure(CHART, FILL_SYNC), ns));
        commands.note(one, put);
        Ok(())
    })?;
    let mut run = Run::new("databases", "durable transactions of databases, on a disk");
    let title = (DATABASES, "transaction");
    run.charts = vec![measured.chart(CHART, title, Shape::Bars, Better::Less)];
    run.baseline = disk::baseline(plan, &participants);
    run.notes = vec![
        format!(
            "{count} transactions by one process, started and ended in their time: sqlite3, each \
             an insert of 100 bytes, synchronous=full"
        ),
        "db_bench: of RocksDB (Debian: rocksdb-tools); its own figure".into(),
    ];
    run.notes.extend(commands.notes());
    Ok((run, disk::peers(&participants)))
}

fn sqlite(
    commands: &Commands,
    (one, sampler): (&Participant, &mut Sampler<'_>),
    (name, mode): (&'static str, &str),
    count: u64,
) -> Result<()> {
    let names = ["db", "db-wal", "db-shm", "db-journal"];
    remove_all(one.place()?, &names)?;
    let insert = "INSERT INTO t(body) VALUES(randomblob(100));\n";
    let script = format!(
        "PRAGMA journal_mode={mode}; PRAGMA synchronous=FULL;\n\
         CREATE TABLE t(id INTEGER PRIMARY KEY, body BLOB);\n{}",
        insert.repeat(count as usize)
    );
    let sqlite = command(&["sqlite3", "-batch", "db", &script]);
    commands.time((one, sampler), figure(CHART, name), count as usize, sqlite)?;
    remove_all(one.place()?, &names)
}

/// What db_bench takes for a put: ns.
fn fill_sync(one: &Participant, count: u64) -> Result<f64> {
    let dir = one.place()?;
    // Keys are drawn from a thousandth of the number.
    let (num, writes) = (
        format!("--num={}", count * 1000),
        format!("--writes={count}"),
    );
    let mut bench = command(&["db_bench", "--benchmarks=fillsync", "--db=kv"]);
    bench.args([num, writes]);
    let said = output(bench.current_dir(dir));
    remove_all(dir, &["kv"])?;
    Ok(micros(&said?, "fillsync").ok_or("db_bench: no figure of fillsync")? * 1000.0)
}

/// A figure in what db_bench said: `fillsync : 1234.567 micros/op; ...`.
pub(super) fn micros(said: &str, benchmark: &str) -> Option<f64> {
    let mut lines = said.lines().filter_map(|line| line.split_once(':'));
    let (_, figures) = lines.find(|(name, _)| name.trim() == benchmark)?;
    let (figure, _) = figures.split_once("micros/op")?;
    figure.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_of_db_bench_is_found() {
        let said = "Keys: 16 bytes\nfillsync     :     123.250 micros/op;    0.9 MB/s\n";
        assert_eq!(micros(said, "fillsync"), Some(123.25));
        assert_eq!(micros(said, "fillseq"), None);
        assert_eq!(micros("nothing", "fillsync"), None);
    }
}
