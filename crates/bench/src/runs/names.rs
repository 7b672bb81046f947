//! Making and removing names: the paper's filetest and dirtest (SoupFS §4.2, Fig. 9).
//!
//! Each round makes all files in one directory, removes them, makes directories, removes those.
//! Twice: *settled*, where each phase finds what the phase before did persisted (what a removal
//! then costs in the background is shown beside it), and *back to back*, as the paper has it.

use super::reading::{self, Compared, OURS};
use crate::field::Field;
use crate::plan::Plan;
use crate::report::{Better, Check, Found, Run, Shape, short};
use crate::runner::rounds;
use crate::target::Result;
use crate::workloads::names as make_names;
use crate::workloads::names::{PHASES, Phases, Singles};

const NAMES: u64 = 10_000;
const LEN: u64 = 1 << 30;

const SETTLED: &str = "Settled";
const BACK_TO_BACK: &str = "Back to back";

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let field = Field::new(plan, LEN)?;
    let names = make_names("f", plan.scaled(NAMES))?;
    let about = format!("{} names made and removed in one directory", names.len());
    let mut run = Run::new("names", about);
    for (settle, title) in [(true, SETTLED), (false, BACK_TO_BACK)] {
        let work = Phases {
            names: &names,
            settle,
        };
        let measured = rounds(plan, &field, &title.to_lowercase(), &work)?;
        let chart = measured.chart(PHASES, title, "operation", Shape::Bars, Better::Less);
        run.charts.push(if settle {
            chart
        } else {
            chart.like("SoupFS Fig. 9(a, b)")
        });
    }
    let singles = Singles::new(&names);
    rounds(plan, &field, "single operations", &singles)?;
    let order = field.contestants.iter().map(|one| one.peer.name.as_str());
    run.charts.extend(singles.charts(order));
    run.base = field.base(plan);
    run.checks = checks(&run);
    run.notes = vec![
        plan.clock_note(),
        "ns: of the caller per operation; persist ns: of a sync right after the phase, divided by its operations, \
         not part of the caller's figure (tmpfs persists nothing)"
            .into(),
        "lines, fences, bytes: of the caller and of persisting together; caller's: of the calling thread".into(),
        "back to back: a removal mostly meets what is not persisted yet, and cancels it".into(),
        "latencies: by the wall clock, reading it included; of each part the median over the rounds; the tail is \
         other programs' turns on the core"
            .into(),
    ];
    Ok((run, field.peers()))
}

fn checks(run: &Run) -> Vec<Check> {
    let compared = Compared::new(run, BACK_TO_BACK);
    let ratios = compared.ratios();
    let list = reading::list(&ratios);
    let at = |part: f64| reading::rounds(run, "Latency of create+close", OURS, part);
    let spread = at(0.9).zip(at(0.5));
    let tail = spread.map(|(ninety, half)| ninety.over(half));
    vec![
        reading::check(
            "SoupFS Fig. 9(a, b): SoupFS is the fastest of all in create, unlink, mkdir and rmdir, by 43 % to \
             405 % over \
             NOVA in throughput.",
            compared.better(),
            format!("SoupFS in-process over {}: {list} times as fast.", run.base),
            "The paper's systems are modules of old kernels; the peers here promise less (tmpfs) or flush their \
             journal \
             to memory. Ours saves the system call, the paper's does not: its ratios come from the flushes alone.",
        ),
        reading::check(
            "SoupFS Fig. 9(c): most creates take nearly the same time, around 3 us; no long tail.",
            reading::below([tail.clone()], 2.0),
            spread.zip(tail).map_or(String::new(), |((ninety, half), tail)| {
                format!(
                    "Half of the creates take at most {} ns, nine of ten {} ns: {} times as long; \"no long tail\" \
                     is taken to mean less than twice.",
                    short(half.median()),
                    short(ninety.median()),
                    reading::told(&tail)
                )
            }),
            "The first creates of a directory are faster, as its table fits into the caches.",
        ),
    ]
}
