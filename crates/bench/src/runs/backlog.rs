//! The persister's backlog: under a sustained load, and when callers make more than the medium
//! takes.

use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pmem::Latency;

use crate::machine::{cores, dram};
use crate::plan::Plan;
use crate::report::{Better, Chart, Found, Line, OURS, Point, Run, Shape};
use crate::target::{Engine, Result, Setup, Target};

/// Extra nanoseconds per flushed line.
const FLUSH_NS: [u32; 3] = [0, 200, 800];
const LEN: u64 = 1 << 30;
/// Files that exist at a time. They are empty: with contents it would soon be free space that
/// callers wait for, and not the persister's backlog.
const FILES: u64 = 20_000;
/// Windows of the plan that a case takes, and how long that is at least: the persister wakes once a
/// second.
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

/// Runs the family `persister`: what the persister takes of a sustained load.
pub fn run_sustained(plan: &Plan) -> Result<Found> {
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
                target: format!("in-process, {name}"),
                points: points.collect(),
            });
        }
    }
    let about = "one thread makes files and removes older ones without pause".to_owned();
    let mut run = Run::new("persister", about);
    run.charts = charts.into();
    run.notes =
        vec![
        format!("{FILES} files exist at a time; mounted with the defaults (bound of 1 s, backlog \
         of 256 MiB)"),
        "operations: creates and unlinks; persisted: operations and inodes in published batches, \
         so a file that \
         is made and \
         removed within a sweep is in none"
            .into(),
        "behind by: how old the oldest change is that is not persisted".into(),
        format!("caller and persister need a core each; there are {}", cores()),
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
                100.0 * status.backlog.words as f64 / status.backlog.words_max as f64,
                status.late.as_secs_f64() * 1000.0,
            ],
        });
        before = (now, called, captured);
        // Steps that were missed, because the core was taken or the answer came late, are left out.
        i = (begin.elapsed().as_nanos() / step.as_nanos()) as u32 + 1;
    }
    rows
}

/// Extra nanoseconds per flushed line.
const OVERLOAD_FLUSH_NS: u32 = 2_000;
/// DRAM for pending operations: small, so that the limit is met soon.
const BACKLOG: u64 = 64 << 20;
/// Inodes kept: few, so that what grows is the backlog.
const INODES: u64 = 20_000;
const STEP: Duration = Duration::from_millis(100);
const OVERLOAD_STEPS: u64 = 80;
const NAMES_PER_DIR: u64 = 1_000;
/// Operations between two looks at the clock for the step.
const LOOK_EVERY: u64 = 16;

/// What is seen at each step.
const OVERLOAD_SEEN: [(&str, &str, Better); 5] = [
    ("Creates", "1000/s", Better::More),
    ("Longest create", "us", Better::Less),
    ("Backlog", "% of its limit", Better::Less),
    ("How late the consistent view is", "ms", Better::Less),
    ("DRAM", "MiB", Better::Less),
];

/// Runs the family `overload`: what callers see when the persister cannot keep up.
pub fn run_overload(plan: &Plan) -> Result<Found> {
    let temp = plan.temp()?;
    let latency = Latency {
        flush_ns: OVERLOAD_FLUSH_NS,
        ..Latency::default()
    };
    let setup = Setup {
        len: 3 << 30,
        latency,
        backlog_max: BACKLOG,
        inodes_max: INODES,
        ..plan.setup()
    };
    let engine = setup.mount("SoupFS", setup.create(&temp.path().join("image"))?)?;
    let mut charts = OVERLOAD_SEEN.map(|(title, unit, better)| {
        let mut chart = Chart::new(title, "ms", unit, better, Shape::Timeline);
        chart.lines.push(Line {
            target: OURS.into(),
            points: Vec::new(),
        });
        chart
    });
    let base = dram();
    let mut writer = Writer::new(&engine);
    let steps = plan.scaled(OVERLOAD_STEPS).max(5);
    for step in 1..=steps {
        plan.progress.step("creates", step as usize, steps as usize);
        let (done, longest, time) = writer.step()?;
        let status = engine.status();
        let backlog = status.backlog;
        let seen = [
            done as f64 / time.as_secs_f64() / 1000.0,
            longest.as_nanos() as f64 / 1000.0,
            100.0 * backlog.words as f64 / backlog.words_max as f64,
            status.late.as_secs_f64() * 1000.0,
            dram().saturating_sub(base) as f64 / f64::from(1 << 20),
        ];
        for (chart, value) in charts.iter_mut().zip(seen) {
            let point = Point::once(step * STEP.as_millis() as u64, value);
            chart.lines[0].points.push(point);
        }
    }
    let mut run = Run::new(
        "overload",
        format!(
            "one thread creates files without pause, each flushed line takes {OVERLOAD_FLUSH_NS} \
             ns more"
        ),
    );
    run.charts = charts.into();
    run.notes = vec![format!(
        "the backlog may take {} MiB (the default is 256), {INODES} inodes are kept beyond those \
         in use; \
             DRAM is what the process has gained since the mount",
        BACKLOG >> 20
    )];
    Ok((run, Vec::new()))
}

/// Creates files, in ever new directories.
struct Writer<'a> {
    engine: &'a Engine,
    made: u64,
}

impl Writer<'_> {
    fn new(engine: &Engine) -> Writer<'_> {
        Writer { engine, made: 0 }
    }

    /// Creates for the length of a step: how many, the longest, and the time it took in all.
    fn step(&mut self) -> Result<(u64, Duration, Duration)> {
        let (begin, first) = (Instant::now(), self.made);
        let mut longest = Duration::ZERO;
        while begin.elapsed() < STEP {
            for _ in 0..LOOK_EVERY {
                longest = longest.max(self.create()?);
            }
        }
        Ok((self.made - first, longest, begin.elapsed()))
    }

    fn create(&mut self) -> Result<Duration> {
        let dir = self.made / NAMES_PER_DIR;
        if self.made.is_multiple_of(NAMES_PER_DIR) {
            self.engine.mkdir(&CString::new(format!("{dir}"))?)?;
        }
        let name = CString::new(format!("{dir}/{}", self.made))?;
        self.made += 1;
        let start = Instant::now();
        self.engine.create_close(&name)?;
        Ok(start.elapsed())
    }
}
