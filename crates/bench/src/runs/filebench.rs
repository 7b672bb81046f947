//! Filebench: fileserver, fileserver-1K, webproxy, varmail at 1 to N threads (SoupFS Fig. 11 and
//! 12; HTMFS Fig. 9).

use super::claims::{self, Compared};
use crate::machine::cores;
use crate::participants::Participants;
use crate::plan::Plan;
use crate::report::{Better, Check, Found, OURS, Run, Shape, Verdict, above, short};
use crate::runner::run_rounds;
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
        let participants = Participants::new(plan, work.room())?;
        let name = personality.name;
        let measured = run_rounds(plan, &participants, name, &work)?;
        let chart = measured.chart(name, (name, "threads"), Shape::Lines, Better::More);
        run.charts.push(chart.like(personality.figure));
        run.baseline = participants.baseline(plan);
        peers = participants.peers();
    }
    run.tables.push(claims::scaling(&run.charts));
    run.checks = checks(&run);
    let files = PERSONALITIES.map(|one| {
        let files = files_of(&one, plan);
        format!("{} {files} files of {} KiB", one.name, one.mean_size >> 10)
    });
    run.notes = vec![
        format!(
            "{}; sizes from a gamma distribution, 80 % exist at the beginning, appends of up to 16 \
             KiB",
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
    let ours = |name: &str| claims::rounds(run, name, OURS, 1u64);
    let line = |name: &str| {
        let ratio = over(name).map_or("-".into(), |ratio| claims::with_interval(&ratio));
        format!("{ratio} ({name})")
    };
    let each: Vec<String> = PERSONALITIES.iter().map(|one| line(one.name)).collect();
    let small = ours("fileserver-1K").zip(ours("fileserver"));
    let gain = over("fileserver-1K").zip(over("fileserver"));
    let most = |name: &str| claims::scaled(run.chart(name)?, OURS);
    let scaled: Vec<_> = PERSONALITIES
        .iter()
        .map(|one| (one.name, most(one.name)))
        .collect();
    vec![
        claims::about_others(
            "SoupFS Fig. 11: SoupFS performs best in general, of EXT4, EXT4-DAX, PMFS and NOVA.",
            format!(
                "Function calls in-process, with one thread over {}: {}.",
                run.baseline,
                each.join(", ")
            ),
            "In varmail ours makes each mail durable, tmpfs makes nothing durable: mode for mode \
             only a \
             peer with a journal compares (`--peers --against ext4`).",
        ),
        claims::check(
            "SoupFS Fig. 11(a, b): fileserver is bound by writing data; with files of 1 KiB the \
             throughput rises.",
            above([small.map(|(small, large)| small.over(large))], 1.0),
            small.map_or(String::new(), |(small, large)| {
                format!(
                    "{} against {} thousand operations a second: {} times.",
                    short(small.median()),
                    short(large.median()),
                    claims::with_interval(&small.over(large))
                )
            }),
            "",
        ),
        claims::about_others(
            "SoupFS §4.3: its lead is larger where metadata dominates (fileserver-1K, up to 89 % \
             over \
             NOVA) than in fileserver (slightly better).",
            gain.map_or(String::new(), |(small, large)| {
                format!(
                    "{} times {} with small files, {} with large ones.",
                    claims::with_interval(&small),
                    run.baseline,
                    claims::with_interval(&large)
                )
            }),
            "",
        ),
        claims::about_others(
            "SoupFS Fig. 11(c): in webproxy it is slightly better than NOVA with few threads, for \
             its \
             creates and removals.",
            format!("With one thread {}.", line("webproxy")),
            "Most of it is reading 16 KiB files whole: copies, and a system call each for the \
             peers.",
        ),
        claims::about_others(
            "SoupFS Fig. 11(d): in varmail it outperforms NOVA by up to 75 %, and EXT4 loses what \
             its \
             page cache gives to fsync.",
            format!("With one thread {}.", line("varmail")),
            "To be seen only beside a peer that makes mails durable: `--peers --against ext4`.",
        ),
        claims::check(
            "SoupFS Fig. 12: within one NUMA node throughput still does not scale well; Fig. 11: \
             it \
             drops beyond one node.",
            Verdict::Unseen,
            String::new(),
            &format!(
                "This machine has {} cores. All threads over one: {}. What bounds scaling is \
                 counted in \
                 `sharing` and `scaling`.",
                cores(),
                scaled
                    .iter()
                    .filter_map(|(name, ratio)| Some(format!(
                        "{} ({name})",
                        claims::with_interval(ratio.as_ref()?)
                    )))
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        ),
    ]
}
