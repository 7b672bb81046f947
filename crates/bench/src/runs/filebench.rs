//! Filebench: fileserver, fileserver-1K, webproxy, varmail at 1 to N threads (SoupFS Fig. 11 and 12;
//! HTMFS Fig. 9).

use super::reading::{self, Compared, OURS};
use crate::field::Field;
use crate::plan::Plan;
use crate::report::{Better, Check, Found, Run, Shape, short};
use crate::runner::rounds;
use crate::target::Result;
use crate::workloads::filebench::{Filebench, PERSONALITIES};

/// Fewer files than this leave a thread without any.
const FILES_MIN: u64 = 100;

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let mut run = Run::new("filebench", "Filebench's file, proxy and mail servers");
    let mut peers = Vec::new();
    for personality in PERSONALITIES {
        let files = plan.scaled(personality.files).max(FILES_MIN);
        let work = Filebench { personality, files };
        let field = Field::new(plan, work.room())?;
        let name = personality.name;
        let measured = rounds(plan, &field, name, &work)?;
        let chart = measured.chart(name, name, "threads", Shape::Lines, Better::More);
        run.charts.push(chart.like(personality.figure));
        run.base = field.base(plan);
        peers = field.peers();
    }
    run.tables.push(reading::scaling(&run.charts));
    run.checks = checks(&run);
    let files = PERSONALITIES.map(|one| {
        let files = plan.scaled(one.files).max(FILES_MIN);
        format!("{} {files} files of {} KiB", one.name, one.mean_size >> 10)
    });
    run.notes = vec![
        format!(
            "{}; sizes from a gamma distribution, 80 % exist at the beginning, appends of up to 16 KiB",
            files.join(", ")
        ),
        format!(
            "each phase takes {} ms; operations are counted as Filebench does",
            plan.window.as_millis()
        ),
        "each thread uses a part of the files; the directories are shared by all".into(),
        "nothing is waited for within a phase: the persister competes for the cores".into(),
    ];
    Ok((run, peers))
}

fn checks(run: &Run) -> Vec<Check> {
    let over = |name: &str| {
        Compared::new(run, name)
            .ratios()
            .first()
            .map(|(_, ratio)| *ratio)
    };
    let rate = |name: &str| reading::median(run, name, OURS, 1u64);
    let line = |name: &str| format!("{} ({name})", over(name).map_or("-".into(), short));
    let all: Vec<f64> = PERSONALITIES
        .iter()
        .filter_map(|one| over(one.name))
        .collect();
    let each: Vec<String> = PERSONALITIES.iter().map(|one| line(one.name)).collect();
    let small = rate("fileserver-1K").zip(rate("fileserver"));
    let least_gain = over("fileserver").zip(over("fileserver-1K"));
    vec![
        reading::check(
            "SoupFS Fig. 11: SoupFS performs best in general.",
            (!all.is_empty()).then(|| all.iter().all(|ratio| *ratio > 1.0)),
            format!("With one thread over {}: {}.", run.base, each.join(", ")),
            "In varmail ours makes each mail durable, tmpfs makes nothing durable: mode for mode only a peer \
             with a journal \
             compares (`--peers`).",
        ),
        reading::check(
            "SoupFS Fig. 11(a, b): fileserver is bound by writing data; with files of 1 KiB the throughput of \
             all rises.",
            small.map(|(small, large)| small > large),
            small.map_or(String::new(), |(small, large)| {
                format!(
                    "{} against {} thousand operations a second.",
                    short(small),
                    short(large)
                )
            }),
            "",
        ),
        reading::check(
            "SoupFS §4.3: its lead is larger where metadata dominates (fileserver-1K, up to 89 % over NOVA) \
             than in fileserver \
             (slightly better).",
            least_gain.map(|(large, small)| small > large),
            least_gain.map_or(String::new(), |(large, small)| {
                format!(
                    "{} times {} with small files, {} with large ones.",
                    short(small),
                    run.base,
                    short(large)
                )
            }),
            "",
        ),
        reading::check(
            "SoupFS Fig. 12: within one NUMA node throughput still does not scale well; Fig. 11: it drops \
             beyond one node.",
            None,
            String::new(),
            "There is one node of few cores here. What bounds scaling is counted in `sharing`.",
        ),
    ]
}
