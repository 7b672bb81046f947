//! Making and removing names: the paper's filetest and dirtest (SoupFS §4.2, Fig. 9).
//!
//! Each round makes all files in one directory, removes them, makes directories, removes those.
//! Twice: *settled*, where each phase finds what the phase before did persisted (what a removal
//! then costs in the background is shown beside it), and *back to back*, as the paper has it.

use super::claims::{self, Compared};
use crate::participants::Participants;
use crate::plan::Plan;
use crate::report::{Better, Check, Found, OURS, Run, Shape, Verdict, below, short};
use crate::runner::run_rounds;
use crate::series::Series;
use crate::target::Result;
use crate::workloads::names as make_names;
use crate::workloads::names::{LATENCIES, PHASES, Phases, Singles};

const NAMES: u64 = 10_000;
const LEN: u64 = 1 << 30;

const SETTLED: &str = "Settled";
const BACK_TO_BACK: &str = "Back to back";
/// The distribution that the paper shows.
const CREATE: &str = LATENCIES[0];

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let participants = Participants::new(plan, LEN)?;
    let names = make_names("f", plan.scaled(NAMES))?;
    let about = format!("{} names made and removed in one directory", names.len());
    let mut run = Run::new("names", about);
    for (settle, title) in [(true, SETTLED), (false, BACK_TO_BACK)] {
        let work = Phases {
            names: &names,
            settle,
        };
        let measured = run_rounds(plan, &participants, &title.to_lowercase(), &work)?;
        let chart = measured.chart(PHASES, (title, "operation"), Shape::Bars, Better::Less);
        run.charts.push(if settle {
            chart
        } else {
            chart.like("SoupFS Fig. 9(a, b)")
        });
    }
    let work = Singles { names: &names };
    let measured = run_rounds(plan, &participants, "single operations", &work)?;
    for title in LATENCIES {
        let x = "part of the operations";
        let chart = measured.chart(title, (title, x), Shape::Quantiles, Better::Less);
        run.charts.push(match title {
            CREATE => chart.like("SoupFS Fig. 9(c)"),
            _ => chart,
        });
    }
    run.baseline = participants.baseline(plan);
    run.checks = checks(&run);
    run.notes = vec![
        plan.clock_note(),
        "ns: of the caller per operation; persist ns: of a sync right after the phase, divided by \
         its operations, \
         not part of the caller's figure (tmpfs persists nothing)"
            .into(),
        "lines, fences, bytes: of the caller and of persisting run_threads; caller's: of the \
         calling thread"
            .into(),
        "back to back: a removal mostly meets what is not persisted yet, and cancels it".into(),
        "latencies: by the wall clock, reading it included; of each part the median over the \
         rounds; the tail is \
         other programs' turns on the core"
            .into(),
    ];
    Ok((run, participants.peers()))
}

/// More than this times the median is long: for a tail, and for the slowest of all.
const LONG_TAIL: f64 = 10.0;
const LONG_MAX: f64 = 100.0;

fn checks(run: &Run) -> Vec<Check> {
    let ratios = Compared::new(run, BACK_TO_BACK).ratios();
    let list = claims::list(&ratios);
    let at = |part: f64| claims::rounds(run, CREATE, OURS, part);
    let over = |part: f64| at(part).zip(at(0.5)).map(|(part, half)| part.over(half));
    let [ninety, tail, max] = [0.9, 0.999, 1.0].map(over);
    let say = |times: &Option<Series>| times.as_ref().map_or("-".into(), claims::with_interval);
    let half = at(0.5).map_or("-".into(), |half| short(half.median()));
    vec![
        claims::about_others(
            "SoupFS Fig. 9(a, b): SoupFS is the fastest of all in create, unlink, mkdir and rmdir, \
             by \
             43 % to 405 % over NOVA in throughput.",
            format!(
                "Function calls in-process over {}: {list} times as fast.",
                run.baseline
            ),
            "The paper's systems are modules of old kernels; the peers here promise less (tmpfs) \
             or \
             flush their journal to memory. Ours saves the system call, the paper's does not: its \
             ratios come from the flushes alone.",
        ),
        claims::check(
            "SoupFS Fig. 9(c): most creates take nearly the same time, around 3 us.",
            below([ninety.clone()], 2.0),
            format!(
                "Half of the creates take at most {half} ns, nine of ten at most {} times as long; \
                 \"nearly the same\" is taken to mean less than twice.",
                say(&ninety)
            ),
            "The first creates of a directory are faster, as its table fits into the caches.",
        ),
        claims::check(
            "SoupFS Fig. 9(c): creates have no long tail.",
            both(
                below([tail.clone()], LONG_TAIL),
                below([max.clone()], LONG_MAX),
            ),
            format!(
                "Over the median, 99.9 % take at most {} times as long, the slowest {} times; a \
                 tail is \
                 taken to be long from {LONG_TAIL} times on, the slowest from {LONG_MAX} times on.",
                say(&tail),
                say(&max)
            ),
            "The slowest are other programs' turns on the core, and the directory that grows.",
        ),
    ]
}

/// Two claims in one: it holds if both do, and does not if one does not.
fn both(one: Verdict, other: Verdict) -> Verdict {
    match (one, other) {
        (Verdict::Agrees, verdict) | (verdict, Verdict::Agrees) => verdict,
        (Verdict::Differs, _) | (_, Verdict::Differs) => Verdict::Differs,
        (verdict, _) => verdict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Chart, Line, Point};

    /// What is said of the tail of creates that took so long, in five rounds each.
    fn tail(ns: [f64; 4]) -> Verdict {
        let parts = [0.5, 0.9, 0.999, 1.0].into_iter().zip(ns);
        let point = |(part, ns): (f64, f64)| Point::new(part, [ns; 5].into_iter().collect());
        let line = Line {
            target: OURS.into(),
            points: parts.map(point).collect(),
        };
        let mut run = Run::new("names", "");
        run.charts = vec![Chart {
            lines: vec![line],
            ..Chart::new(CREATE, "part", "ns", Better::Less, Shape::Quantiles)
        }];
        let all = checks(&run);
        let found = all
            .iter()
            .find(|check| check.paper.contains("no long tail"));
        found.unwrap().verdict
    }

    #[test]
    fn a_tail_is_long_by_its_last_thousandth_and_by_its_maximum() {
        assert_eq!(tail([300.0, 400.0, 900.0, 9e3]), Verdict::Agrees);
        assert_eq!(tail([300.0, 400.0, 9e3, 9e3]), Verdict::Differs);
        assert_eq!(tail([300.0, 400.0, 900.0, 9e6]), Verdict::Differs);
    }
}
