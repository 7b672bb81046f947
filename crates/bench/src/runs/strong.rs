//! Mode strong beside the other modes, ext4 with its data in the journal, and a bare copy; and what
//! it takes over mode delayed in FxMark, Filebench, PostMark (HTMFS Fig. 8 and 9) and db_bench
//! (Table 8).

use std::sync::Arc;
use std::time::{Duration, Instant};

use pmem::{Domain, Options, Pool};

use super::{claims, log_structured, transactions, ways};
use crate::participants::{AnyTarget, Participants};
use crate::plan::Plan;
use crate::report::{
    Better, Check, DURABLE_REQUEST, Found, IN_SYNC, Line, OURS, Point, REQUEST, Run, STRONG, Shape,
    Table, Verdict, X, above, within,
};
use crate::runner::run_rounds;
use crate::series::Series;
use crate::target::{EXT4_DATA_JOURNAL, Result, Setup, TargetSpec};
use crate::workloads::filebench::{Filebench, PERSONALITIES};
use crate::workloads::fxmark::{FxMark, Kind};
use crate::workloads::postmark::{self, Postmark};
use crate::workloads::whole::{COPIES, Whole};

const COUNT: u64 = 5_000;
const LEN: u64 = 1 << 30;
/// Files of Filebench's sets: as HTMFS's Table 5 has them for varmail.
const FILES: u64 = 1_000;
const TRANSACTIONS: u64 = 100_000;
/// FxMark's names, divided: making them takes longer than using them.
const FEWER_NAMES: u64 = 4;
/// Those of HTMFS's Fig. 8, and those beside them that it does not show.
const KINDS: [Kind; 10] = [
    Kind::Dwol,
    Kind::Dwom,
    Kind::Dwoh,
    Kind::Drbl,
    Kind::Drbm,
    Kind::Drbh,
    Kind::Mwcl,
    Kind::Mwcm,
    Kind::Mwrl,
    Kind::Mwrm,
];
/// Each part takes no more rounds than are needed after so long.
const TIMES: [Duration; 5] = [
    Duration::from_secs(20),
    Duration::from_secs(60),
    Duration::from_secs(25),
    Duration::from_secs(15),
    Duration::from_secs(30),
];
const BARE: &str = "bare copy, flush and fence";
/// As many times as there are threads, nearly.
const NEARLY: f64 = 0.8;
/// What the paper calls a small overhead; it has 2 to 8 percent.
const SMALL: (f64, f64) = (1.0 / 1.1, f64::INFINITY);

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let mut run = Run::new(
        "strong",
        "mode strong: each request whole and durable at return",
    );
    run.baseline = OURS.into();
    let ours = ["soupfs", "soupfs:mode=strong", "soupfs:mode=sync"];
    let ours: std::result::Result<Vec<TargetSpec>, _> = ours.map(str::parse).into_iter().collect();
    let ours = ours?;
    let setup = Setup {
        len: LEN,
        ..plan.setup()
    };
    let all = [&ours[..], &[TargetSpec::Kernel(EXT4_DATA_JOURNAL)]].concat();
    let participants = Participants::of(plan, &all, &setup)?;
    let peers = participants.peers();
    let work = Whole::new(plan.scaled(COUNT).max(20))?;
    let measured = run_rounds(&plan.part(TIMES[0]), &participants, "requests", &work)?;
    run.tables.push(commits(&participants));
    drop(participants);
    run.tables.push(transactions::table(plan)?);
    run.tables.extend(ways::tables(&plan.part(TIMES[4]))?);
    for title in [REQUEST, DURABLE_REQUEST] {
        let (x, shape) = ("request", Shape::Bars);
        run.charts
            .push(measured.chart(title, (title, x), shape, Better::Less));
    }
    run.charts[1].lines.push(bare(plan)?);
    overheads(plan, &ours, &setup, &mut run)?;
    match log_structured::run(plan) {
        Ok((chart, notes)) => {
            run.charts.push(chart);
            run.notes.extend(notes);
        }
        Err(why) => run.notes.push(format!("no db_bench: {why}")),
    }
    run.tables.push(claims::scaling(&of_threads(&run)));
    run.checks = checks(&run);
    run.notes.extend(notes(plan));
    Ok((run, peers))
}

/// FxMark, Filebench and PostMark on the modes of SoupFS.
fn overheads(plan: &Plan, ours: &[TargetSpec], setup: &Setup, run: &mut Run) -> Result<()> {
    let participants = Participants::of(plan, ours, setup)?;
    let part = Plan {
        divide: plan.divide * FEWER_NAMES,
        ..plan.part(TIMES[1])
    };
    let measured = run_rounds(&part, &participants, "strong: fxmark", &FxMark(&KINDS))?;
    run.charts.extend(KINDS.map(|kind| {
        let chart = (title(kind), "threads");
        let chart = measured.chart(kind.name(), chart, Shape::Lines, Better::More);
        chart.like(kind.figure())
    }));
    let transactions = plan.scaled(TRANSACTIONS);
    let work = Postmark { transactions };
    let measured = run_rounds(
        &plan.part(TIMES[3]),
        &participants,
        "strong: postmark",
        &work,
    )?;
    let chart = ("PostMark", "what");
    run.charts
        .push(measured.chart(postmark::CHART, chart, Shape::Bars, Better::More));
    drop(participants);
    for personality in PERSONALITIES {
        if personality.name.starts_with("fileserver") {
            continue;
        }
        let threads = plan.threads.iter().copied().max().unwrap_or(1) as u64;
        let files = plan.scaled(FILES).max(50).max(10 * threads);
        let work = Filebench { personality, files };
        let setup = Setup {
            len: work.room(),
            ..setup.clone()
        };
        let participants = Participants::of(plan, ours, &setup)?;
        let what = format!("strong: {}", personality.name);
        let measured = run_rounds(&plan.part(TIMES[2]), &participants, &what, &work)?;
        let chart = (personality.name, "threads");
        let chart = measured.chart(personality.name, chart, Shape::Lines, Better::More);
        run.charts.push(chart.like("HTMFS Fig. 9"));
    }
    Ok(())
}

fn title(kind: Kind) -> String {
    format!("{}: {}", kind.name(), kind.about())
}

fn of_threads(run: &Run) -> Vec<crate::report::Chart> {
    let charts = run.charts.iter().filter(|chart| chart.x == "threads");
    charts.cloned().collect()
}

/// What no request can take less than: the bytes around the caches or through them, made durable.
fn bare(plan: &Plan) -> Result<Line> {
    let options = Options {
        domain: Some(Domain::Line),
        ..Options::default()
    };
    let pool = Pool::anonymous(16 << 20, &options)?;
    pool.write(0, &vec![1; pool.len() as usize]);
    let count = plan.scaled(COUNT).max(20);
    let mut points = COPIES.map(|(op, _)| Point::new(op, Series::default()));
    for round in 0..=plan.rounds {
        for (point, (_, len)) in points.iter_mut().zip(COPIES) {
            let data = vec![0x69; len];
            let begin = Instant::now();
            for i in 0..count {
                let at = i * 4096 % pool.len();
                match len {
                    4096 => pool.write_nt(at, &data),
                    _ => {
                        pool.write(at, &data);
                        pool.flush(at, len as u64);
                    }
                }
                pool.fence()?;
            }
            // The first round warms up.
            if round > 0 {
                point
                    .rounds
                    .push(begin.elapsed().as_nanos() as f64 / count as f64);
            }
        }
    }
    Ok(Line {
        target: BARE.into(),
        points: points.into(),
    })
}

/// By which way requests became durable, counted over all that was measured before.
fn commits(participants: &Participants) -> Table {
    let columns = ["target", "one word", "log record", "transaction"];
    let mut table = Table::new("Commits, by their way", &columns);
    for one in &participants.running {
        if let AnyTarget::Engine(engine) = &one.target {
            let stats = Arc::clone(engine.pool()).stats();
            table.row([
                one.peer.name.as_str().into(),
                stats.commits_word.into(),
                stats.commits_log.into(),
                stats.commits_transaction.into(),
            ]);
        }
    }
    table
}

/// Mode strong over another mode, at each x of a chart.
fn over(run: &Run, title: &str, other: &str) -> Vec<(String, Option<Series>)> {
    let Some(chart) = run.chart(title) else {
        return Vec::new();
    };
    let at = |x: &&X| (chart.label(x), chart.ratio(STRONG, other, x));
    chart.xs().iter().map(at).collect()
}

fn list(all: &[(String, Option<Series>)]) -> String {
    let each: Vec<_> = all
        .iter()
        .filter_map(|(name, ratio)| Some((name.clone(), ratio.clone()?)))
        .collect();
    claims::list(&each)
}

fn checks(run: &Run) -> Vec<Check> {
    let most = |kind: Kind| claims::scaled(run.chart(&title(kind))?, STRONG);
    let say = |kinds: &[Kind]| {
        let each = kinds
            .iter()
            .map(|&kind| (kind.name().to_owned(), most(kind)));
        format!("All threads over one: {}.", list(&each.collect::<Vec<_>>()))
    };
    let threads = run
        .chart(&title(KINDS[0]))
        .and_then(|chart| chart.xs().last()?.number());
    let scales = |kinds: &[Kind]| match threads {
        Some(threads) if threads > 1.0 => {
            above(kinds.iter().map(|&kind| most(kind)), NEARLY * threads)
        }
        _ => Verdict::Unseen,
    };
    let fig8 = |paper: &str, kinds: &[Kind], why: &str| {
        claims::check(paper, scales(kinds), say(kinds), why)
    };
    let ratios = |titles: &[&str], other: &str| -> Vec<(String, Option<Series>)> {
        let all = titles.iter().flat_map(|title| {
            let named = move |(x, ratio)| (format!("{title}, {x}"), ratio);
            over(run, title, other).into_iter().map(named)
        });
        all.collect()
    };
    let servers = ratios(&["webproxy", "varmail"], OURS);
    let small = |all: &[(String, Option<Series>)]| {
        within(all.iter().map(|(_, ratio)| ratio.clone()), SMALL)
    };
    let locks = "Requests of one inode come one after the other, and commit under one lock; who \
                 only looks takes none.";
    vec![
        fig8(
            "HTMFS Fig. 8(a, b): with HOP, overwriting blocks of private files, and private blocks \
             of one file, scales with threads.",
            &[Kind::Dwol, Kind::Dwom],
            locks,
        ),
        fig8(
            "HTMFS Fig. 8(d): with HOP reads scale nearly linearly.",
            &[Kind::Drbl, Kind::Drbm, Kind::Drbh],
            "",
        ),
        fig8(
            "HTMFS Fig. 8(e, f): with HOP creating scales up to eight threads, in private \
             directories and in a shared one.",
            &[Kind::Mwcl, Kind::Mwcm],
            locks,
        ),
        fig8(
            "HTMFS Fig. 8(g, h): with HOP renames scale, in private directories and into a shared \
             one.",
            &[Kind::Mwrl, Kind::Mwrm],
            locks,
        ),
        transactions::check(run),
        ways::check(run),
        claims::about_others(
            "HTMFS Table 4: writing one block with many threads falls back to locks fast, and \
             stays above a third of one thread's rate.",
            say(&[Kind::Dwoh]),
            "In domain line, where mode strong takes the lock at once. How transactions of domain \
             cache fall back is in the table that counts them.",
        ),
        claims::check(
            "HTMFS Fig. 9: strong requests take little of the throughput of webproxy and varmail.",
            small(&servers),
            format!("Times the throughput of mode delayed: {}.", list(&servers)),
            "Little is taken to mean within 10 percent. In webproxy mode delayed makes nothing \
             durable in the call.",
        ),
    ]
}

fn notes(plan: &Plan) -> Vec<String> {
    vec![
        plan.clock_note(),
        format!(
            "{} of each request, by one caller; overwrites of a file of 4 MiB in an order without \
             locality; in mode delayed nothing is durable at return but what ends in fsync",
            plan.scaled(COUNT).max(20)
        ),
        format!("{BARE}: 64 bytes through the cache, 4 KiB around it, to mapped memory"),
        format!(
            "ext4 data=journal: on a loop device in memory; {IN_SYNC}: names durable at return, \
             contents not"
        ),
        "Filebench: 1,000 files, as HTMFS's Table 5 has varmail; FxMark with a quarter of the names"
            .into(),
    ]
}
