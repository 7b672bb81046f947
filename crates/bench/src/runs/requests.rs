//! One request of the mount after the other, from clients that the scheduler puts where it likes,
//! beside a client and a server that share one core.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::commands::{Commands, command, remove_all};
use super::large::quantile;
use super::pinned::Pinned;
use crate::machine::cores;
use crate::participants::{Participant, Participants, with_paths};
use crate::plan::{Plan, timed};
use crate::report::{Better, CLIENTS, Found, MEDIAN_REQUEST, ONE_CORE, Run, SLOW_REQUEST, Shape};
use crate::runner::run_each;
use crate::sampler::{Sampler, figure};
use crate::target::{Directory, Result, Setup, Target, TargetSpec};
use crate::workloads::scattered;
use crate::workloads::threads::run_threads;

const LEN: u64 = 256 << 20;
const BLOCK: u64 = 4096;
/// Requests of each kind of client.
const REQUESTS: u64 = 5_000;
const REQUESTS_MIN: u64 = 200;
/// Blocks of the file that is written.
const BLOCKS: u64 = 256;
/// Files that `cp -a` copies.
const FILES: u64 = 500;
/// What a client computes between two calls.
const COMPUTES: Duration = Duration::from_micros(50);
/// How long several clients go on, at most.
const WINDOW_MAX: Duration = Duration::from_millis(300);

const MEDIAN: &str = "median";
const SLOW: &str = "slow";
const RATE: &str = "rate";
const PLAIN: &str = "plain loop";
const BUSY: &str = "loop beside a busy program";
const COMPUTING: &str = "client that computes 50 us between calls";
const COPY: &str = "cp -a, per request";

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    with_paths(|| measure(plan))
}

fn measure(plan: &Plan) -> Result<Found> {
    let mut run = Run::new("requests", "requests of the mount, an image in memory");
    let participants = match both(plan) {
        Ok(both) => both,
        Err(why) => {
            run.notes.push(format!("no figures of the mount: {why}"));
            return Ok((run, Vec::new()));
        }
    };
    let temp = plan.temp()?;
    for i in 0..plan.scaled(FILES) {
        std::fs::write(temp.path().join(i.to_string()), [0x78; BLOCK as usize])?;
    }
    let commands = Commands::default();
    let measured = run_each(plan, &participants, "requests", |one, sampler| {
        one_by_one(plan, one, sampler)?;
        // Its own measure of time: what a request takes, whatever makes it.
        let copied = copy(one, temp.path());
        commands.note(
            one,
            copied.map(|ns| sampler.value(figure(MEDIAN, COPY), ns)),
        );
        remove_all(one.place()?, &["copy"])?;
        clients(plan, one, sampler)
    })?;
    let times = |key, title| measured.chart(key, (title, "client"), Shape::Bars, Better::Less);
    run.charts = vec![
        times(MEDIAN, MEDIAN_REQUEST),
        times(SLOW, SLOW_REQUEST),
        measured.chart(RATE, (CLIENTS, "clients"), Shape::Bars, Better::More),
    ];
    run.baseline = ONE_CORE.into();
    run.notes = vec![
        "a request: an overwrite of 4 KiB in a file that is open, timed by the wall clock; of cp \
         -a its time over the requests that the mount counted, so that what cp does itself is in \
         it"
        .into(),
        "mount: the scheduler puts client and server where it likes; the other has both on one \
         core, which is the floor, and what makes the machine busy is free to run elsewhere"
            .into(),
        format!("{} cores; several clients are kept on a core each", cores()),
    ];
    run.notes.extend(commands.notes());
    Ok((run, participants.peers()))
}

/// A mount, and one that shares a core with its client.
fn both(plan: &Plan) -> Result<Participants> {
    let setup = Setup {
        len: LEN,
        ..plan.setup()
    };
    let spec = TargetSpec::Mount(String::new());
    let mut both = Participants::of(plan, std::slice::from_ref(&spec), &setup)?;
    let _pinned = Pinned::new()?;
    both.add(plan, &spec, &setup, ONE_CORE)?;
    Ok(both)
}

/// This thread stays on the core of its server, if that is what is measured.
fn beside_server(one: &Participant) -> Result<Option<Pinned>> {
    (one.peer.name == ONE_CORE).then(Pinned::new).transpose()
}

/// One client, whose requests are timed each.
fn one_by_one(plan: &Plan, one: &Participant, sampler: &mut Sampler<'_>) -> Result<()> {
    let target = one.directory()?;
    let count = plan.scaled(REQUESTS).max(REQUESTS_MIN);
    target.create_close(c"file")?;
    let file = target.open(c"file", false)?;
    let block = [0x79; BLOCK as usize];
    let write = |i: u64| target.write_at(file, &block, scattered(i, BLOCKS) * BLOCK);
    (0..BLOCKS).try_for_each(write)?;
    let mut kinds: [(&'static str, Vec<f64>); 3] =
        [PLAIN, BUSY, COMPUTING].map(|kind| (kind, Vec::new()));
    for (kind, ns) in &mut kinds {
        let computes = *kind == COMPUTING;
        let mut requests = || -> Result<()> {
            let _pinned = beside_server(one)?;
            for i in 0..count {
                if computes {
                    compute(COMPUTES);
                }
                ns.push(timed(|| write(i))?.as_nanos() as f64);
            }
            Ok(())
        };
        match *kind {
            BUSY => beside_busy(requests)?,
            _ => requests()?,
        }
    }
    target.close(file)?;
    target.unlink(c"file")?;
    for (kind, mut ns) in kinds {
        ns.sort_by(f64::total_cmp);
        sampler.value(figure(MEDIAN, kind), quantile(&ns, 0.5));
        sampler.value(figure(SLOW, kind), quantile(&ns, 0.9));
    }
    Ok(())
}

/// Work that takes so long.
fn compute(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        black_box(0);
    }
}

/// Do `work` while a thread computes all the time.
fn beside_busy(work: impl FnOnce() -> Result<()>) -> Result<()> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                black_box(0);
            }
        });
        let worked = work();
        done.store(true, Ordering::Relaxed);
        worked
    })
}

/// What `cp -a` of files takes for each request: ns.
fn copy(one: &Participant, from: &std::path::Path) -> Result<f64> {
    let _pinned = beside_server(one)?;
    let before = one.counters.read();
    let start = Instant::now();
    let mut cp = command(&["cp", "-a"]);
    super::commands::output(cp.arg(from).arg("copy").current_dir(one.place()?))?;
    let time = start.elapsed();
    match one.counters.read().since(&before).of("requests") {
        0 => Err("the mount counts no requests".into()),
        requests => Ok(time.as_nanos() as f64 / requests as f64),
    }
}

/// One client, and as many as there are cores but two at most, each on a core of its own.
fn clients(plan: &Plan, one: &Participant, sampler: &mut Sampler<'_>) -> Result<()> {
    if one.peer.name == ONE_CORE {
        return Ok(());
    }
    let target: &Directory = &one.directory()?;
    let window = plan.window.min(WINDOW_MAX);
    let block = [0x7a; BLOCK as usize];
    for count in (1..=2).take_while(|count| *count <= cores()) {
        let files = (0..count).map(|i| {
            let name = if i == 0 { c"one" } else { c"two" };
            target.create(name).map(|file| (name, file))
        });
        let files = files.collect::<Result<Vec<_>>>()?;
        sampler.rate(figure(RATE, count), || {
            run_threads(count, Some(window), |number, until| {
                let _pinned = Pinned::on(number)?;
                until.repeat(u64::MAX, 1, |i| {
                    target.write_at(files[number].1, &block, scattered(i, BLOCKS) * BLOCK)
                })
            })
        })?;
        for (name, file) in files {
            target.close(file)?;
            target.unlink(name)?;
        }
    }
    Ok(())
}
