//! More changes than the medium takes: what callers see when the persister cannot keep up.

use std::ffi::CString;
use std::time::{Duration, Instant};

use pmem::Latency;

use crate::machine::dram;
use crate::plan::Plan;
use crate::report::{Better, Chart, Found, Line, Point, Run, Shape};
use crate::target::{Engine, Setup};
use crate::target::{Result, Target};

/// Extra nanoseconds per flushed line.
const FLUSH_NS: u32 = 2_000;
/// DRAM for pending operations: small, so that the limit is met soon.
const BACKLOG: u64 = 64 << 20;
/// Inodes kept: few, so that what grows is the backlog.
const INODES: u64 = 20_000;
const STEP: Duration = Duration::from_millis(100);
const STEPS: u64 = 80;
const NAMES_PER_DIR: u64 = 1_000;
/// Operations between two looks at the clock for the step.
const LOOK_EVERY: u64 = 16;

/// What is seen at each step.
const SEEN: [(&str, &str, Better); 5] = [
    ("Creates", "1000/s", Better::More),
    ("Longest create", "us", Better::Less),
    ("Backlog", "% of its limit", Better::Less),
    ("How late the consistent view is", "ms", Better::Less),
    ("DRAM", "MiB", Better::Less),
];

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let temp = plan.temp()?;
    let latency = Latency {
        flush_ns: FLUSH_NS,
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
    let mut charts = SEEN.map(|(title, unit, better)| {
        let mut chart = Chart::new(title, "ms", unit, better, Shape::Timeline);
        chart.lines.push(Line {
            target: "SoupFS".into(),
            points: Vec::new(),
        });
        chart
    });
    let base = dram();
    let mut writer = Writer::new(&engine);
    let steps = plan.scaled(STEPS).max(5);
    for step in 1..=steps {
        plan.progress.step("creates", step as usize, steps as usize);
        let (done, longest, time) = writer.step()?;
        let status = engine.status();
        let backlog = status.backlog;
        let seen = [
            done as f64 / time.as_secs_f64() / 1000.0,
            longest.as_nanos() as f64 / 1000.0,
            100.0 * backlog.ops as f64 / backlog.ops_max as f64,
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
            "one thread creates files without pause, each flushed line takes {FLUSH_NS} ns more"
        ),
    );
    run.charts = charts.into();
    run.notes = vec![format!(
        "the backlog may take {} MiB (the default is 256), {INODES} inodes are kept beyond those in use; \
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
