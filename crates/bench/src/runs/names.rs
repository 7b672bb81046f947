//! Making and removing names: the paper's filetest and dirtest (SoupFS §4.2, Fig. 9).
//!
//! Each round makes all files in one directory, removes them, makes directories, removes those.
//! Twice: *settled*, where each phase finds what the phase before did persisted (what a removal
//! then costs in the background is shown beside it), and *back to back*, as the paper has it.

use super::claims::{self, Compared};
use crate::participants::Participants;
use crate::plan::Plan;
use crate::report::{Better, Check, Found, OURS, Run, Shape, below, short};
use crate::runner::run_rounds;
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

fn checks(run: &Run) -> Vec<Check> {
    let compared = Compared::new(run, BACK_TO_BACK);
    let ratios = compared.ratios();
    let list = claims::list(&ratios);
    let at = |part: f64| claims::rounds(run, CREATE, OURS, part);
    let spread = at(0.9).zip(at(0.5));
    let tail = spread.map(|(ninety, half)| ninety.over(half));
    vec![
        claims::check(
            "SoupFS Fig. 9(a, b): SoupFS is the fastest of all in create, unlink, mkdir and rmdir, \
             by 43 % to \
             405 % over \
             NOVA in throughput.",
            compared.better(),
            format!("SoupFS in-process over {}: {list} times as fast.", run.baseline),
            "The paper's systems are modules of old kernels; the peers here promise less (tmpfs) \
             or flush their \
             journal \
             to memory. Ours saves the system call, the paper's does not: its ratios come from the \
             flushes alone.",
        ),
        claims::check(
            "SoupFS Fig. 9(c): most creates take nearly the same time, around 3 us; no long tail.",
            below([tail.clone()], 2.0),
            spread.zip(tail).map_or(String::new(), |((ninety, half), tail)| {
                format!(
                    "Half of the creates take at most {} ns, nine of ten {} ns: {} times as long; \
                     \"no long tail\" \
                     is taken to mean less than twice.",
                    short(half.median()),
                    short(ninety.median()),
                    claims::with_interval(&tail)
                )
            }),
            "The first creates of a directory are faster, as its table fits into the caches.",
        ),
    ]
}
