//! A sustained load: what the persister takes, and how far behind it is.

use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pmem::Latency;

use crate::plan::Plan;
use crate::report::{Better, Chart, Found, Line, Point, Run, Shape};
use crate::target::{Engine, Result, Setup, Target};

/// Extra nanoseconds per flushed line.
const FLUSH_NS: [u32; 3] = [0, 200, 800];
const LEN: u64 = 1 << 30;
/// Files that exist at a time. They are empty: with contents it would soon be free space that callers wait
/// for, and not the persister's backlog.
const FILES: u64 = 20_000;
/// Windows of the plan that a case takes, and how long that is at least: the persister wakes once a second.
const WINDOWS: u32 = 4;
const TIME_MIN: Duration = Duration::from_secs(3);
const STEPS: u32 = 60;

/// What is seen at each step.
const SEEN: [(&str, &str, Better); 4] = [
    ("Operations called", "1000/s", Better::More),
    ("Operations persisted", "1000/s", Better::More),
    ("Backlog", "% of its limit", Better::Less),
    ("Behind by", "ms", Better::Less),
];

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let time = (plan.window * WINDOWS).max(TIME_MIN);
    let mut charts =
        SEEN.map(|(title, unit, better)| Chart::new(title, "ms", unit, better, Shape::Timeline));
    for (i, flush_ns) in FLUSH_NS.into_iter().enumerate() {
        let name = format!("flush+{flush_ns}ns");
        plan.progress.step(&name, i, FLUSH_NS.len());
        let seen = case(plan, flush_ns, time)?;
        for (column, chart) in charts.iter_mut().enumerate() {
            let points = seen
                .iter()
                .map(|row| Point::once(row.ms, row.values[column]));
            chart.lines.push(Line {
                target: name.clone(),
                points: points.collect(),
            });
        }
    }
    let about = "one thread makes files and removes older ones without pause".to_owned();
    let mut run = Run::new("persister", about);
    run.charts = charts.into();
    run.notes = vec![
        format!("{FILES} files exist at a time; mounted with the defaults (bound of 1 s, backlog of 256 MiB)"),
        "operations: creates and unlinks; persisted: operations and inodes in published batches, so a file that \
         is made and \
         removed within a sweep is in none"
            .into(),
        "behind by: how old the oldest change is that is not persisted".into(),
        "on two cores the caller and the persister have one each".into(),
    ];
    Ok((run, Vec::new()))
}

/// What was seen at a step.
struct Row {
    ms: f64,
    values: [f64; SEEN.len()],
}

fn case(plan: &Plan, flush_ns: u32, time: Duration) -> Result<Vec<Row>> {
    let temp = plan.temp()?;
    let latency = Latency {
        flush_ns,
        ..Latency::default()
    };
    let setup = Setup {
        len: LEN,
        latency,
        ..plan.setup()
    };
    let engine = setup.mount("SoupFS", setup.create(&temp.path().join("image"))?)?;
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let result = write(&engine, &stop, &done);
            stop.store(true, Relaxed);
            result
        });
        let rows = watch(&engine, &stop, &done, time / STEPS);
        stop.store(true, Relaxed);
        writer.join().map_err(|_| "the writer panicked")??;
        Ok(rows)
    })
}

fn write(engine: &Engine, stop: &AtomicBool, done: &AtomicU64) -> Result<()> {
    let name = |i: u64| CString::new(format!("{:03}/{i:09}", i % 100));
    for dir in 0..100 {
        engine.mkdir(&CString::new(format!("{dir:03}"))?)?;
    }
    for i in 0.. {
        if stop.load(Relaxed) {
            break;
        }
        engine.create_close(&name(i)?)?;
        done.fetch_add(1, Relaxed);
        if i >= FILES {
            engine.unlink(&name(i - FILES)?)?;
            done.fetch_add(1, Relaxed);
        }
    }
    Ok(())
}

fn watch(engine: &Engine, stop: &AtomicBool, done: &AtomicU64, step: Duration) -> Vec<Row> {
    let begin = Instant::now();
    let mut rows = Vec::new();
    let mut before = (begin, 0, 0);
    let mut i = 1;
    while i <= STEPS {
        std::thread::sleep((step * i).saturating_sub(begin.elapsed()));
        if stop.load(Relaxed) {
            break;
        }
        let (status, now) = (engine.status(), Instant::now());
        let (called, captured) = (done.load(Relaxed), status.backlog.captured);
        let thousands = |count: u64| count as f64 / (now - before.0).as_secs_f64() / 1000.0;
        rows.push(Row {
            // As planned, so that cases can be laid side by side.
            ms: (step * i).as_millis() as f64,
            values: [
                thousands(called - before.1),
                thousands(captured - before.2),
                100.0 * status.backlog.ops as f64 / status.backlog.ops_max as f64,
                status.late.as_secs_f64() * 1000.0,
            ],
        });
        before = (now, called, captured);
        // Steps that were missed, because the core was taken or the answer came late, are left out.
        i = (begin.elapsed().as_nanos() / step.as_nanos()) as u32 + 1;
    }
    rows
}
