//! FxMark at 1 to N threads (HTMFS Fig. 8, Table 4).

use super::reading::{self, Compared, OURS};
use crate::field::Field;
use crate::plan::Plan;
use crate::report::{Better, Check, Found, Run, Shape, X, short};
use crate::runner::rounds;
use crate::target::Result;
use crate::workloads::fxmark::{FxMark, Kind};

/// Appends of all threads, with room for what is not free yet.
const LEN: u64 = 2 << 30;

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let field = Field::new(plan, LEN)?;
    let measured = rounds(plan, &field, "fxmark", &FxMark)?;
    let mut run = Run::new(
        "fxmark",
        "FxMark: one operation, on what threads share more or less",
    );
    run.base = field.base(plan);
    run.charts = Kind::ALL
        .map(|kind| {
            let title = title(kind);
            measured
                .chart(kind.name(), title, "threads", Shape::Lines, Better::More)
                .like(kind.figure())
        })
        .into();
    run.tables.push(reading::scaling(&run.charts));
    run.checks = checks(&run);
    run.notes = vec![
        format!(
            "each phase takes {} ms, or until a thread has used up its names (creating, removing, moving) or blocks \
             (appending)",
            plan.window.as_millis()
        ),
        "an operation is one call, or open and close; in MRDL it is one entry of a listing".into(),
        "sleeps: how often a thread gave up its core to wait for a lock, and once for the start"
            .into(),
    ];
    Ok((run, field.peers()))
}

fn title(kind: Kind) -> String {
    format!("{}: {}", kind.name(), kind.about())
}

/// What the most threads reach over one.
fn scales(run: &Run, target: &str, kind: Kind) -> Option<f64> {
    let chart = run.chart(&title(kind))?;
    let xs = chart.xs();
    let (first, last) = (xs.first()?, xs.last()?);
    if first == last {
        return None;
    }
    let at = |x: &X| Some(chart.line(target)?.at(x)?.rounds.median());
    Some(at(last)? / at(first)?)
}

fn checks(run: &Run) -> Vec<Check> {
    let scaled = |kind: Kind| scales(run, OURS, kind);
    let peer = |kind: Kind| scales(run, &run.base, kind);
    let say = |kinds: &[Kind]| {
        let each = kinds.iter().filter_map(|&kind| {
            let own = short(scaled(kind)?);
            let peer = peer(kind).map_or("-".into(), short);
            Some(format!("{} {own} ({} {peer})", kind.name(), run.base))
        });
        format!(
            "All threads over one: {}.",
            each.collect::<Vec<_>>().join(", ")
        )
    };
    let best = |kind: Kind| scaled(kind).zip(peer(kind)).map(|(own, peer)| own >= peer);
    let slowest = [Kind::Drbl, Kind::Drbm, Kind::Drbh]
        .into_iter()
        .filter_map(scaled)
        .reduce(f64::min);
    let threads = run
        .charts
        .first()
        .and_then(|chart| chart.xs().last()?.number());
    let near = |factor: f64| threads.map(|threads| factor > 0.8 * threads);
    let names = Compared::new(run, &title(Kind::Mwcm)).ratios();
    vec![
        reading::check(
            "HTMFS Fig. 8(b): overwriting private blocks of one file (DWOM) scales best in HTMFS, while others drop.",
            best(Kind::Dwom),
            say(&[Kind::Dwol, Kind::Dwom]),
            "SoupFS is not HTMFS: a writer locks its file. Lock-free writes are HOP's part.",
        ),
        reading::check(
            "HTMFS Table 4: overwriting one block (DWOH) gets slower with threads, but no worse than with locks.",
            scaled(Kind::Dwoh).map(|factor| factor < 1.0),
            say(&[Kind::Dwoh]),
            "",
        ),
        reading::check(
            "HTMFS Fig. 8(d): reads scale nearly linearly in all file systems, of private files, private blocks \
             and one block.",
            slowest.and_then(near),
            say(&[Kind::Drbl, Kind::Drbm, Kind::Drbh]),
            "",
        ),
        reading::check(
            "HTMFS Fig. 8(e, f): creating in private directories scales until the medium's bandwidth is used \
             up; in a shared \
             directory most file systems do not scale, HTMFS does, as it locks buckets and not directories.",
            best(Kind::Mwcm),
            format!(
                "{} Over {} in MWCM: {}.",
                say(&[Kind::Mwcl, Kind::Mwcm]),
                run.base,
                reading::list(&names)
            ),
            "SoupFS locks buckets, too.",
        ),
        reading::check(
            "HTMFS Fig. 8(g, h): renames in private directories scale nearly linearly; into a shared one HTMFS \
             scales best.",
            scaled(Kind::Mwrl).and_then(near),
            say(&[Kind::Mwrl, Kind::Mwrm]),
            "A move between directories takes a lock of the whole file system here (ARCHITECTURE.md, invariant 9).",
        ),
    ]
}
