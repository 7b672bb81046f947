//! Slow media: what a caller notices of the time that flushes take (SoupFS §4.4, Fig. 13).

use super::claims;
use crate::participants::Participants;
use crate::plan::Plan;
use crate::report::{Better, Check, DELAYED, Found, Line, Run, Shape, X, short, within};
use crate::runner::run_rounds;
use crate::target::{Result, Setup, TargetSpec};
use crate::workloads::names;
use crate::workloads::names::{PHASES, Phases};

const NAMES: u64 = 10_000;
/// A journal for which the removals are less than half of what may be pending: else callers are
/// slowed down.
const LEN: u64 = 512 << 20;
/// Between so many times is no change.
const UNCHANGED: (f64, f64) = (0.9, 1.1);
/// The other mode; see [`DELAYED`].
const SYNC: &str = "in-process, sync";
/// Extra nanoseconds per flushed line.
const FLUSH_NS: [u64; 5] = [0, 200, 400, 600, 800];
/// Lines of the charts: what they are called, and how the engine is set up. A bound of 2 ms keeps
/// the persister at work all the time.
const CASES: [(&str, &str); 3] = [
    (DELAYED, "mode=delayed"),
    (
        "in-process, delayed, never at rest",
        "mode=delayed,bound_ms=2",
    ),
    (SYNC, "mode=sync"),
];
const OPS: [&str; 4] = ["create+close", "unlink", "mkdir", "rmdir"];

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let names = names("f", plan.scaled(NAMES))?;
    let mut specs = Vec::new();
    for (_, options) in CASES {
        for ns in FLUSH_NS {
            specs.push(format!("soupfs:{options},flush_ns={ns}").parse::<TargetSpec>()?);
        }
    }
    let setup = Setup {
        len: LEN,
        sparse: true, // there are fifteen
        ..plan.setup()
    };
    let participants = Participants::of(plan, &specs, &setup)?;
    let work = Phases {
        names: &names,
        settle: true,
    };
    let measured = run_rounds(plan, &participants, "slow flushes", &work)?;
    let x = "ns per flushed line";
    let all = measured.chart(PHASES, ("", x), Shape::Lines, Better::Less);
    let about = format!(
        "{} names made and removed on media with slow flushes",
        names.len()
    );
    let mut run = Run::new("latency", about);
    for op in OPS {
        let mut chart = all.clone();
        chart.title = op.into();
        chart.like = match op {
            "create+close" => "SoupFS Fig. 13(a)".into(),
            "unlink" => "SoupFS Fig. 13(b)".into(),
            _ => String::new(),
        };
        chart.lines = lines(&all.lines, op);
        run.charts.push(chart);
    }
    run.baseline = CASES[2].0.into();
    run.checks = checks(&run);
    run.notes = vec![
        "the extra time is spun away by the thread that flushes: the persister's in mode delayed, \
         which so \
         takes a core as long \
         as it flushes; the caller's in mode sync"
            .into(),
        plan.clock_note(),
    ];
    Ok((run, Vec::new()))
}

/// One line for each case, over the latencies, from one for each target, over the operations.
fn lines(targets: &[Line], op: &str) -> Vec<Line> {
    let cases = CASES.iter().zip(targets.chunks(FLUSH_NS.len()));
    let line = |((name, _), targets): (&(&str, &str), &[Line])| Line {
        target: (*name).into(),
        points: FLUSH_NS
            .iter()
            .zip(targets)
            .filter_map(|(ns, line)| {
                let mut point = line.at(&op.into())?.clone();
                point.x = X::from(*ns);
                Some(point)
            })
            .collect(),
    };
    cases.map(line).collect()
}

fn checks(run: &Run) -> Vec<Check> {
    let at = |op: &str, case: &str, ns: u64| claims::rounds(run, op, case, ns).cloned();
    let growth = |op: &str, case: &str| Some((at(op, case, 0)?, at(op, case, 800)?));
    let say = |op: &str, case: &str| {
        growth(op, case).map_or(String::new(), |(none, slow)| {
            format!(
                "{op} {} to {} ns, {} times",
                short(none.median()),
                short(slow.median()),
                claims::with_interval(&slow.over(&none))
            )
        })
    };
    let times = |op: &str, case: &str| growth(op, case).map(|(none, slow)| slow.over(&none));
    let names = ["create+close", "unlink"];
    let both = |case: &str| names.map(|op| say(op, case)).join("; ");
    vec![
        claims::check(
            "SoupFS Fig. 13: the latency of SoupFS's create and unlink does not change as flushes \
             take 0 to 800 \
             ns longer.",
            within(names.map(|op| times(op, DELAYED)), UNCHANGED),
            format!("Mode delayed: {}.", both(DELAYED)),
            "Callers flush nothing; what is left is the persister's use of caches and of a core. \
             Unchanged is \
             taken to mean within 10 % of it, either way.",
        ),
        claims::about_others(
            "SoupFS Fig. 13: NOVA and PMFS, which flush in the system call, take 8 us (create) and \
             12 us \
             (unlink) longer at 800 ns.",
            format!("Mode sync, which flushes in the call: {}.", both(SYNC)),
            "Mode sync stands for the systems that the paper has; it flushes seven to nine lines \
             in each.",
        ),
    ]
}
