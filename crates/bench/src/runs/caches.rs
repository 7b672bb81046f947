//! Persistent caches before a disk, Spindle and Tinca, beside the same engine with soft updates,
//! and with JBD2, whose log is on the disk or in memory: as Spindle's paper compares them (Fig. 5
//! and 6), and what a user asks beyond that.

mod beside;
mod fsync;
mod recovery;
mod slow;

pub(super) use recovery::reopen;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use block::Random;

use super::claims;
use super::commands::{Commands, command, output};
use crate::participants::{AnyTarget, Participants, with_paths};
use crate::plan::Plan;
use crate::report::{
    Better, Chart, Check, Found, Line, Peer, Point, Run, Shape, Verdict, X, above, below,
};
use crate::runner::{run_each, run_rounds};
use crate::sampler::{Sampler, figure};
use crate::series::Series;
use crate::target::{Blocks, Result, Setup, Target, TargetSpec};
use crate::workloads::filebench::{Filebench, PERSONALITIES};

/// Extra time of a flushed line, as in the paper: ns.
const LINE_NS: u32 = 180;
/// Of the caches: MiB. What is read and written is twice as large, as in the paper.
const CACHE_MIB: u64 = 64;
const FILE: u64 = (2 * CACHE_MIB) << 20;
const LEN: u64 = 512 << 20;
const BLOCK: u64 = 4096;
/// Writes of a transaction.
const TOGETHER: u64 = 16;
/// Writes of ten operations.
const MIXES: [u64; 5] = [10, 7, 5, 3, 0];
/// The same for fio, whose start takes longer than what it does.
const FIO_MIXES: [u64; 3] = [10, 5, 0];
/// Mean sizes of Filebench's files, and bytes of all of them.
const SIZES: [u64; 3] = [4 << 10, 16 << 10, 64 << 10];
const SET: u64 = 32 << 20;
/// Each part takes no more rounds than are needed after so long.
const TIMES: [Duration; 3] = [
    Duration::from_secs(25),
    Duration::from_secs(12),
    Duration::from_secs(25),
];

const MIX: &str = "Random mix of 4 KiB, in-process";
const LINES: &str = "Lines to memory for each write of 4 KiB";
const FENCES: &str = "Fences for each write of 4 KiB";
const FIO: &str = "fio, random mix of 4 KiB, through the mount";
const FIGURES: [&str; 3] = [
    "fileserver by file size",
    "webproxy by file size",
    "varmail by file size",
];

/// Who is compared: Tinca is the paper's baseline.
fn specs() -> Result<Vec<TargetSpec>> {
    let cached = |kind: &str| {
        format!("ffs:cache={kind},cache_mib={CACHE_MIB},flush_ns={LINE_NS}").parse::<TargetSpec>()
    };
    Ok(vec![
        cached("spindle")?,
        cached("tinca")?,
        "ffs:mode=soft".parse()?,
        "ffs:mode=journal".parse()?,
        format!("ffs:mode=journal,log=memory,flush_ns={LINE_NS}").parse()?,
    ])
}

fn name_of(kind: &str) -> String {
    format!("FFS in-process {kind} {CACHE_MIB} MiB flush+{LINE_NS}ns")
}

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let mut run = Run::new(
        "caches",
        "persistent caches before a disk: Spindle and Tinca",
    );
    run.baseline = name_of("tinca");
    let mut peers = mix(plan, &mut run)?;
    filebench(plan, &mut run)?;
    match with_paths(|| fio(plan)) {
        Ok((chart, notes)) => {
            run.charts.extend(chart);
            run.notes.extend(notes);
        }
        Err(why) => run.notes.push(format!("no fio through the mount: {why}")),
    }
    let (chart, others) = fsync::chart(&plan.part(TIMES[1]))?;
    run.charts.push(chart);
    peers.extend(others);
    run.charts.push(slow::databases(plan)?);
    run.charts.extend(slow::working_sets(plan)?);
    run.charts.extend(beside::charts(plan)?);
    let (charts, note) = recovery::by_size(plan)?;
    run.charts.extend(charts);
    run.notes.extend(note);
    run.checks = checks(&run);
    run.notes.extend(notes(plan));
    Ok((run, peers))
}

/// Fig. 5: reads and writes of one file, twice as large as the cache.
fn mix(plan: &Plan, run: &mut Run) -> Result<Vec<Peer>> {
    let setup = Setup {
        len: LEN,
        ..plan.setup()
    };
    let participants = Participants::of(plan, &specs()?, &setup)?;
    let blocks_max = plan.scaled(FILE / BLOCK).max(256);
    let part = Plan {
        window: plan.window.min(Duration::from_millis(200)),
        ..plan.part(TIMES[0])
    };
    let random = Mutex::new(Random::new(19));
    let measured = run_each(&part, &participants, "random mix", |one, sampler| {
        let AnyTarget::Blocks(blocks) = &one.target else {
            return Err("only the engine of ext2 has caches".into());
        };
        let mut random = random.lock().map_err(|_| "a thread panicked")?;
        MIXES
            .into_iter()
            .try_for_each(|writes| one_mix(blocks, sampler, &mut random, (writes, blocks_max)))
    })?;
    let chart = |key, unit: &str, better, like: &str| Chart {
        unit: unit.into(),
        ..measured
            .chart(key, (key, "writes of ten"), Shape::Lines, better)
            .like(like)
    };
    run.charts = vec![
        chart(MIX, "1000/s", Better::More, "Spindle Fig. 5(a)"),
        chart(LINES, "lines", Better::Less, "Spindle Fig. 5(b)"),
        chart(FENCES, "fences", Better::Less, ""),
    ];
    Ok(participants.peers())
}

fn one_mix(
    blocks: &Blocks,
    sampler: &mut Sampler<'_>,
    random: &mut Random,
    (writes, count): (u64, u64),
) -> Result<()> {
    let (target, mut data) = (&blocks.engine, vec![0x6a; BLOCK as usize]);
    if target.stat(c"file").is_err() {
        let file = target.create(c"file")?;
        (0..count).try_for_each(|i| target.write_at(file, &data, i * BLOCK))?;
        target.close(file)?;
        target.sync()?;
    }
    let file = target.open(c"file", false)?;
    let stats = || blocks.memory.as_ref().map(|memory| memory.stats());
    let (before, begin) = (stats(), Instant::now());
    let (mut done, mut written) = (0u64, 0u64);
    while begin.elapsed() < sampler.plan().window {
        let at = random.below(count) * BLOCK;
        match random.below(10) < writes {
            true => {
                target.write_at(file, &data, at)?;
                written += 1;
                if written.is_multiple_of(TOGETHER) {
                    target.fdatasync(file)?;
                }
            }
            false => target.read_at(file, &mut data, at)?,
        }
        done += 1;
    }
    target.fdatasync(file)?;
    let rate = done as f64 / begin.elapsed().as_secs_f64() / 1000.0;
    sampler.value(figure(MIX, writes), rate);
    if let Some((now, before)) = stats().zip(before).filter(|_| written > 0) {
        let stats = now - before;
        let each = |count: u64| count as f64 / written as f64;
        let lines = stats.flushed_lines + stats.bytes_non_temporal / 64;
        sampler.value(figure(LINES, writes), each(lines));
        sampler.value(figure(FENCES, writes), each(stats.fences));
    }
    target.close(file)
}

/// Fig. 6: Filebench by the size of files.
fn filebench(plan: &Plan, run: &mut Run) -> Result<()> {
    for (figure, title) in ["fileserver", "webproxy", "varmail"]
        .into_iter()
        .zip(FIGURES)
    {
        let found = PERSONALITIES.iter().find(|one| one.name == figure);
        let mut chart = Chart::new(title, "bytes", "1000/s", Better::More, Shape::Lines);
        chart.like = "Spindle Fig. 6".into();
        for size in SIZES {
            let mut personality = *found.ok_or("no such personality")?;
            personality.mean_size = size;
            personality.io = 16 << 10;
            let files = (plan.scaled(SET) / size).clamp(50, 2_000);
            let work = Filebench { personality, files };
            let setup = Setup {
                len: work.room(),
                ..plan.setup()
            };
            let participants = Participants::of(plan, &specs()?, &setup)?;
            let part = Plan {
                threads: vec![1],
                window: plan.window.min(Duration::from_millis(100)),
                ..plan.part(TIMES[1])
            };
            let what = format!("caches: {figure}");
            let measured = run_rounds(&part, &participants, &what, &work)?;
            let shape = Shape::Lines;
            let one = measured.chart(personality.name, ("", "threads"), shape, Better::More);
            for line in one.lines {
                let points = line.points.into_iter().map(|point| Point {
                    x: X::from(size),
                    ..point
                });
                match chart.lines.iter_mut().find(|own| own.target == line.target) {
                    Some(own) => own.points.extend(points),
                    None => chart.lines.push(Line {
                        target: line.target.clone(),
                        points: points.collect(),
                    }),
                }
            }
        }
        run.charts.push(chart);
    }
    Ok(())
}

/// The program fio on mounts with a cache and without.
fn fio(plan: &Plan) -> Result<(Option<Chart>, Vec<String>)> {
    let plan = Plan {
        paths: true,
        ..plan.part(TIMES[2])
    };
    plan.program()?;
    let specs = [
        format!("mount-ext2:cache=spindle,cache_mib={CACHE_MIB}"),
        format!("mount-ext2:cache=tinca,cache_mib={CACHE_MIB}"),
        "mount-ext2".into(),
        "tmpfs".into(),
    ];
    let specs: std::result::Result<Vec<TargetSpec>, _> =
        specs.iter().map(|spec| spec.parse()).collect();
    let setup = Setup {
        len: LEN,
        ..plan.setup()
    };
    let participants = Participants::of(&plan, &specs?, &setup)?;
    let commands = Commands::default();
    let ms = plan.window.min(Duration::from_millis(300)).as_millis();
    let bytes = plan.scaled(FILE).max(1 << 20);
    let measured = run_each(&plan, &participants, "fio", |one, sampler| {
        for writes in FIO_MIXES {
            let mut fio = command(&["fio", "--name=mix", "--filename=fio", "--rw=randrw"]);
            fio.args([
                "--bs=4k",
                "--ioengine=psync",
                "--time_based",
                "--output-format=json",
            ]);
            fio.arg(format!("--rwmixwrite={}", writes * 10));
            fio.arg(format!("--size={bytes}"));
            fio.arg(format!("--fdatasync={TOGETHER}"));
            fio.arg(format!("--runtime={ms}ms"));
            let said = output(fio.current_dir(one.place()?));
            let rate = said.and_then(|said| operations(&said));
            let rate = rate.map(|rate| sampler.value(figure(FIO, writes), rate / 1000.0));
            commands.note(one, rate);
        }
        Ok(())
    })?;
    let shape = Shape::Lines;
    let chart = measured.chart(FIO, (FIO, "writes of ten"), shape, Better::More);
    let chart = (!chart.lines.is_empty()).then(|| chart.like("Spindle Fig. 5(a)"));
    Ok((chart, commands.notes()))
}

/// Reads and writes a second, in what fio said.
fn operations(said: &str) -> Result<f64> {
    let start = said.find('{').ok_or("fio: no figures")?;
    let all: serde_json::Value = serde_json::from_str(&said[start..])?;
    let iops = |what: &str| all["jobs"][0][what]["iops"].as_f64();
    let both = iops("read").zip(iops("write"));
    Ok(both
        .map(|(read, write)| read + write)
        .ok_or("fio: no figures")?)
}

/// Spindle over Tinca, at each x of a chart, better is more.
fn over(run: &Run, title: &str) -> Vec<(String, Series)> {
    let Some(chart) = run.chart(title) else {
        return Vec::new();
    };
    let at = |x: &&X| {
        let ratio = chart.ratio(&name_of("spindle"), &name_of("tinca"), x)?;
        Some((chart.label(x), ratio))
    };
    chart.xs().iter().filter_map(at).collect()
}

fn checks(run: &Run) -> Vec<Check> {
    // Without writes there is nothing that a cache of writes could make faster.
    let mixes: Vec<_> = over(run, MIX)
        .into_iter()
        .filter(|(name, _)| !name.starts_with("0 "))
        .collect();
    let figures = |all: &[(String, Series)]| -> Vec<Option<Series>> {
        all.iter().map(|(_, ratio)| Some(ratio.clone())).collect()
    };
    let lines = over(run, LINES);
    let fewer: Vec<_> = lines
        .iter()
        .map(|(name, ratio)| {
            let over = ratio.values().iter().map(|ratio| 1.0 / ratio).collect();
            (name.clone(), over)
        })
        .collect();
    let mut all = vec![
        claims::check(
            "Spindle Fig. 5(a): 1.13 to 1.30 times the throughput of Tinca in a random mix of 4 \
             KiB.",
            above(figures(&mixes), 1.13),
            format!("Times Tinca, in-process: {}.", claims::list(&mixes)),
            "Tinca flushes and fences each block twice, and whole blocks of metadata; Spindle has \
             three fences for a transaction. Reads alone change nothing here: times of access are \
             not written for each.",
        ),
        claims::check(
            "Spindle Fig. 5(b): up to 32.6 percent fewer lines flushed for each write than Tinca.",
            below(figures(&fewer), 1.0 - 0.326 / 2.0),
            format!("Lines to memory over Tinca's: {}.", claims::list(&fewer)),
            "The same is taken to mean at least half of the saving at each mix. Lines that are \
             written around the caches count as flushed: a block of data takes 64 either way.",
        ),
    ];
    for (title, most) in FIGURES.into_iter().zip(["1.41", "1.47", "1.26 to 1.50"]) {
        let found = over(run, title);
        let what = title.split(' ').next().unwrap_or(title);
        all.push(claims::check(
            &format!("Spindle Fig. 6: {what} at up to {most} times the throughput of Tinca."),
            above(figures(&found), 1.0),
            format!("Times Tinca: {}.", claims::list(&found)),
            "The same is taken to mean more than Tinca at each size.",
        ));
    }
    let peers = "Spindle, section 5: measured before a disk of 1 TB, with ext4 above.";
    all.push(claims::check(
        peers,
        Verdict::Unseen,
        String::new(),
        "The file system is our engine of ext2, in-process; the disk is a file in memory, so that \
         writing out costs little (for a slow one see the modelled disk).",
    ));
    all.extend(fsync::checks(run));
    all.extend(slow::checks(run));
    all.extend(beside::checks(run));
    all
}

fn notes(plan: &Plan) -> Vec<String> {
    vec![
        format!(
            "caches of {CACHE_MIB} MiB in domain line, of which each flushed line takes {LINE_NS} \
             ns more (the paper's); the file has {} MiB; a transaction has {TOGETHER} writes; the \
             file system keeps 128 MiB in DRAM, so that reads seldom reach the cache",
            (plan.scaled(FILE / BLOCK).max(256) * BLOCK) >> 20
        ),
        "journal: JBD2 with its data in the log, which is on the disk or, as `log in memory`, in \
         memory of domain line beside it, with the caches' time for a line; a disk that is a file \
         in memory costs nothing to wait for, so see the modelled disk for what a log on a disk \
         costs"
            .into(),
        format!(
            "Filebench: one thread, files of {} KiB in all, I/O of 16 KiB, as in the paper's Table \
             1; its sets have 20 GB",
            plan.scaled(SET) >> 10
        ),
        format!(
            "fio: psync, one job, fdatasync every {TOGETHER} writes, on mounts of images in \
             memory; their caches are memory files, of domain cache, that flush nothing"
        ),
        short_of_peers(),
    ]
}

/// Peers of the kernel's that could stand beside, where a kernel has them.
fn short_of_peers() -> String {
    let has = |module: &str| std::path::Path::new("/sys/module").join(module).exists();
    let missing: Vec<_> = ["dm_writecache", "bcache"]
        .into_iter()
        .filter(|module| !has(module))
        .collect();
    match missing.as_slice() {
        [] => "dm-writecache and bcache: this kernel has them; they are not set up here".into(),
        some => format!(
            "did not take part: {} (this kernel has no such module)",
            some.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_of_fio_are_added() {
        let said = "note: x\n{\"jobs\": [{\"read\": {\"iops\": 1.5}, \"write\": {\"iops\": 2}}]}";
        assert_eq!(operations(said).unwrap(), 3.5);
        assert!(operations("nothing").is_err());
    }
}
