//! A log-structured store on mounts, as HTMFS has LevelDB (Table 8): db_bench of RocksDB, which is
//! made from it.

use std::time::Duration;

use super::commands::{Commands, command, output, remove_all};
use super::databases::micros;
use crate::participants::{Participant, Participants, with_paths};
use crate::plan::Plan;
use crate::report::{Better, Chart, Shape};
use crate::runner::run_each;
use crate::sampler::figure;
use crate::target::{Result, Setup, TargetSpec};

/// The chart.
const TITLE: &str = "db_bench of RocksDB, by system calls";

const LEN: u64 = 512 << 20;
/// Keys, of which fillsync puts one in so many.
const KEYS: u64 = 20_000;
const SYNCED: u64 = 20;
/// What the paper has, but for reads of a few hot keys. Those in a row share a store.
const BENCHMARKS: [&[&str]; 4] = [
    &["fillsync"],
    &["fillseq"],
    &["fillrandom", "overwrite", "readrandom", "deleterandom"],
    &["fillrandom", "readseq"],
];
const TIME: Duration = Duration::from_secs(25);

/// Runs it; returns notes, too.
pub fn run(plan: &Plan) -> Result<(Chart, Vec<String>)> {
    with_paths(|| {
        let plan = Plan {
            paths: true,
            ..plan.part(TIME)
        };
        measure(&plan)
    })
}

fn measure(plan: &Plan) -> Result<(Chart, Vec<String>)> {
    let mounts = ["mount", "mount:mode=strong", "mount:mode=sync", "tmpfs"];
    let mounts: std::result::Result<Vec<TargetSpec>, _> =
        mounts.map(str::parse).into_iter().collect();
    let specs = [mounts?, vec![TargetSpec::Kernel("ext4")]].concat();
    let setup = Setup {
        len: LEN,
        ..plan.setup()
    };
    let participants = Participants::of(plan, &specs, &setup)?;
    let keys = plan.scaled(KEYS).max(100);
    let commands = Commands::default();
    let measured = run_each(plan, &participants, "db_bench", |one, sampler| {
        for (number, benchmarks) in BENCHMARKS.iter().enumerate() {
            // The second time they are there for what comes behind.
            let told = |name: &&&str| number != 3 || **name != "fillrandom";
            let done = db_bench(one, benchmarks, keys).map(|times| {
                for (name, ns) in benchmarks.iter().zip(times).filter(|(name, _)| told(name)) {
                    sampler.value(figure(TITLE, *name), ns);
                }
            });
            commands.note(one, done);
        }
        Ok(())
    })?;
    let chart = measured.chart(TITLE, (TITLE, "what"), Shape::Bars, Better::Less);
    let mut notes = vec![format!(
        "db_bench: of RocksDB (Debian: rocksdb-tools), its own figures; {keys} keys, values of 100 \
         bytes, one in {SYNCED} put with fillsync; images in memory"
    )];
    notes.extend(commands.notes());
    Ok((chart.like("HTMFS Table 8"), notes))
}

/// What each of these takes, one after the other on one store: ns.
fn db_bench(one: &Participant, benchmarks: &[&str], keys: u64) -> Result<Vec<f64>> {
    let dir = one.place()?;
    let mut bench = command(&["db_bench", "--db=kv", "--compression_type=none"]);
    bench.arg(format!("--benchmarks={}", benchmarks.join(",")));
    bench.arg(format!("--num={keys}"));
    if benchmarks[0] == "fillsync" {
        // Its keys are drawn from a thousandth of the number.
        bench.arg(format!("--writes={}", keys / SYNCED));
    }
    let said = output(bench.current_dir(dir));
    remove_all(dir, &["kv"])?;
    let said = said?;
    let figure = |name: &&str| {
        let missing = || format!("db_bench: no figure of {name}");
        Ok(micros(&said, name).ok_or_else(missing)? * 1000.0)
    };
    benchmarks.iter().map(figure).collect()
}
