//! FxMark at 1 to N threads (HTMFS Fig. 8, Table 4).

use super::claims::{self, Compared};
use crate::participants::Participants;
use crate::plan::Plan;
use crate::report::{Better, Check, Found, OURS, Run, Shape, Verdict, above};
use crate::runner::run_rounds;
use crate::series::Series;
use crate::target::Result;
use crate::workloads::fxmark::{FxMark, Kind};

/// Appends of all threads, with room for what is not free yet.
const LEN: u64 = 2 << 30;
/// The part of as many times as there are threads that counts as scaling nearly linearly.
const NEARLY: f64 = 0.8;

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let participants = Participants::new(plan, LEN)?;
    let measured = run_rounds(plan, &participants, "fxmark", &FxMark(&Kind::ALL))?;
    let mut run = Run::new(
        "fxmark",
        "FxMark: one operation, on what threads share more or less",
    );
    run.baseline = participants.baseline(plan);
    run.charts = Kind::ALL
        .map(|kind| {
            let title = title(kind);
            measured
                .chart(kind.name(), (title, "threads"), Shape::Lines, Better::More)
                .like(kind.figure())
        })
        .into();
    run.tables.push(claims::scaling(&run.charts));
    run.checks = checks(&run);
    run.notes = vec![
        format!(
            "each phase takes {} ms, or until a thread has used up its names (creating, removing, \
             moving) or blocks \
             (appending)",
            plan.window.as_millis()
        ),
        "an operation is one call, or open and close; in MRDL it is one entry of a listing".into(),
        "sleeps: how often a thread gave up its core to wait for a lock, and once for the start"
            .into(),
    ];
    Ok((run, participants.peers()))
}

fn title(kind: Kind) -> String {
    format!("{}: {}", kind.name(), kind.about())
}

/// What the most threads reach over one, of ours and of the base.
fn scales(run: &Run, kind: Kind) -> [Option<Series>; 2] {
    let chart = run.chart(&title(kind));
    [OURS, &run.baseline].map(|target| claims::scaled(chart?, target))
}

fn checks(run: &Run) -> Vec<Check> {
    let ours = |kind: Kind| scales(run, kind)[0].clone();
    let say = |kinds: &[Kind]| {
        let each = kinds.iter().filter_map(|&kind| {
            let [own, peer] = scales(run, kind);
            let own = claims::with_interval(&own?);
            let peer = peer.map_or("-".into(), |peer| claims::with_interval(&peer));
            Some(format!("{} {own} ({} {peer})", kind.name(), run.baseline))
        });
        format!(
            "All threads over one: {}.",
            each.collect::<Vec<_>>().join(", ")
        )
    };
    let threads = run
        .charts
        .first()
        .and_then(|chart| chart.xs().last()?.number());
    // Nearly as many times as fast as there are threads.
    let nearly = |kinds: &[Kind]| {
        let all = kinds.iter().map(|&kind| ours(kind));
        threads.map_or(Verdict::Unseen, |threads| above(all, NEARLY * threads))
    };
    let names = Compared::new(run, &title(Kind::Mwcm)).ratios();
    vec![
        claims::about_others(
            "HTMFS Fig. 8(b): overwriting private blocks of one file (DWOM) scales best in HTMFS, \
             while \
             others drop.",
            say(&[Kind::Dwol, Kind::Dwom]),
            "SoupFS is not HTMFS: a writer locks its file. Lock-free writes are HOP's part.",
        ),
        claims::about_others(
            "HTMFS Table 4: overwriting one block (DWOH) gets slower with threads in HTMFS, but no \
             worse \
             than with locks.",
            say(&[Kind::Dwoh]),
            "",
        ),
        claims::check(
            "HTMFS Fig. 8(d): reads scale nearly linearly in all file systems, of private files, \
             private \
             blocks and one block.",
            nearly(&[Kind::Drbl, Kind::Drbm, Kind::Drbh]),
            say(&[Kind::Drbl, Kind::Drbm, Kind::Drbh]),
            "",
        ),
        claims::about_others(
            "HTMFS Fig. 8(e, f): creating in private directories scales until the medium's \
             bandwidth is \
             used up; in a shared directory most file systems do not scale, HTMFS does, as it \
             locks \
             buckets and not directories.",
            format!(
                "{} Over {} in MWCM: {}.",
                say(&[Kind::Mwcl, Kind::Mwcm]),
                run.baseline,
                claims::list(&names)
            ),
            "SoupFS locks buckets, too.",
        ),
        claims::check(
            "HTMFS Fig. 8(g): renames in private directories scale nearly linearly.",
            nearly(&[Kind::Mwrl]),
            say(&[Kind::Mwrl]),
            "",
        ),
        claims::about_others(
            "HTMFS Fig. 8(h): renames into a shared directory scale best in HTMFS.",
            say(&[Kind::Mwrm]),
            "A move of a file locks its two names alone here; one of a directory looks \
             for what else moves (docs/design/strong.md, section 7).",
        ),
    ]
}
