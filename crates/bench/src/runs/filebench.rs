//! Filebench: fileserver, fileserver-1K, webproxy, varmail at 1 to N threads (SoupFS Fig. 11 and 12;
//! HTMFS Fig. 9).

use super::reading::{self, Compared, OURS};
use crate::field::Field;
use crate::plan::Plan;
use crate::report::{Better, Check, Found, Run, Shape, Verdict, short};
use crate::runner::rounds;
use crate::target::Result;
use crate::workloads::filebench::{Filebench, PERSONALITIES, Personality};

/// Files, at least: a set that can still be called one.
const FILES_MIN: u64 = 100;
/// Files for each thread, at least: of so many it has two that it may make and eight to use.
const FILES_PER_THREAD: u64 = 10;

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let mut run = Run::new("filebench", "Filebench's file, proxy and mail servers");
    let mut peers = Vec::new();
    for personality in PERSONALITIES {
        let files = files_of(&personality, plan);
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
        let files = files_of(&one, plan);
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

/// Files in the set, after scaling.
fn files_of(personality: &Personality, plan: &Plan) -> u64 {
    let threads = plan.threads.iter().copied().max().unwrap_or(1) as u64;
    plan.scaled(personality.files)
        .max(FILES_MIN)
        .max(FILES_PER_THREAD * threads)
}

fn checks(run: &Run) -> Vec<Check> {
    // With one thread.
    let over = |name: &str| Compared::new(run, name).first();
    let ours = |name: &str| reading::rounds(run, name, OURS, 1u64);
    let line = |name: &str| {
        let ratio = over(name).map_or("-".into(), |ratio| reading::told(&ratio));
        format!("{ratio} ({name})")
    };
    let each: Vec<String> = PERSONALITIES.iter().map(|one| line(one.name)).collect();
    let small = ours("fileserver-1K").zip(ours("fileserver"));
    let gain = over("fileserver-1K").zip(over("fileserver"));
    let most = |name: &str| reading::scaled(run.chart(name)?, OURS);
    let scaled: Vec<_> = PERSONALITIES
        .iter()
        .map(|one| (one.name, most(one.name)))
        .collect();
    vec![
        reading::check(
            "SoupFS Fig. 11: SoupFS performs best in general.",
            reading::above(PERSONALITIES.iter().map(|one| over(one.name)), 1.0),
            format!("With one thread over {}: {}.", run.base, each.join(", ")),
            "In varmail ours makes each mail durable, tmpfs makes nothing durable: mode for mode only a peer \
             with a journal compares (`--peers`).",
        ),
        reading::check(
            "SoupFS Fig. 11(a, b): fileserver is bound by writing data; with files of 1 KiB the throughput of \
             all rises.",
            reading::above([small.map(|(small, large)| small.over(large))], 1.0),
            small.map_or(String::new(), |(small, large)| {
                format!(
                    "{} against {} thousand operations a second: {} times.",
                    short(small.median()),
                    short(large.median()),
                    reading::told(&small.over(large))
                )
            }),
            "",
        ),
        reading::check(
            "SoupFS §4.3: its lead is larger where metadata dominates (fileserver-1K, up to 89 % over NOVA) \
             than in fileserver (slightly better).",
            reading::above([gain.as_ref().map(|(small, large)| small.over(large))], 1.0),
            gain.map_or(String::new(), |(small, large)| {
                format!(
                    "{} times {} with small files, {} with large ones.",
                    reading::told(&small),
                    run.base,
                    reading::told(&large)
                )
            }),
            "",
        ),
        reading::check(
            "SoupFS Fig. 11(c): in webproxy it is slightly better with few threads, for its creates and removals.",
            reading::above([over("webproxy")], 1.0),
            format!("With one thread {}.", line("webproxy")),
            "Most of it is reading 16 KiB files whole: copies, and a system call each for the peers.",
        ),
        reading::check(
            "SoupFS Fig. 11(d): in varmail it outperforms NOVA by up to 75 %, and EXT4 loses what its page \
             cache gives to fsync.",
            match run.base.as_str() {
                // It keeps nothing, so its fsync is free.
                "tmpfs" => Verdict::Unseen,
                _ => reading::above([over("varmail")], 1.0),
            },
            format!("With one thread {}.", line("varmail")),
            "To be seen only beside a peer that makes mails durable: `--peers --against ext4`.",
        ),
        reading::check(
            "SoupFS Fig. 12: within one NUMA node throughput still does not scale well; Fig. 11: it drops \
             beyond one node.",
            Verdict::Unseen,
            String::new(),
            &format!(
                "There is one node of few cores here. All threads over one: {}. What bounds scaling is counted in \
                 `sharing` and `scaling`.",
                scaled
                    .iter()
                    .filter_map(|(name, ratio)| Some(format!(
                        "{} ({name})",
                        reading::told(ratio.as_ref()?)
                    )))
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        ),
    ]
}
