//! Soft updates beside the other modes of the same engine, as their paper compares them (section
//! 5): on a modelled disk, where time and counts are the same on every machine, and on a real one.

mod counts;
mod crashes;
mod modelled;
mod snapshots;

pub(super) use modelled::Simulated;

use std::sync::mpsc::{self, SyncSender};

use crate::participants::{AnyTarget, Participants, file_system_of};
use crate::plan::Plan;
use crate::report::{Better, Chart, Check, Found, Line, Point, Run, Shape, below, short};
use crate::runner::run_each;
use crate::sampler::figure;
use crate::series::Series;
use crate::target::{BLOCK_MODES, Result, Setup, Target, TargetSpec};
use crate::workloads::paced::{Pace, Task, WRITE_EVERY_NS};

use super::claims;

/// Of an image on the real disk: bytes.
const LEN: u64 = 256 << 20;
/// Rounds on the real disk take no longer than this.
const TIME: std::time::Duration = std::time::Duration::from_secs(60);

const ON_MODEL: &str = "Tasks on a modelled disk";
const ON_DISK: &str = "Tasks on a file of a disk, in-process";

/// How the paper calls what is compared, and which mode of ours that is.
const NORMAL: &str = "sync";
const ASYNCHRONOUS: &str = "async";
const SOFT: &str = "soft";

/// What stands in tables for a mode.
fn name_of(mode: &str) -> String {
    format!("FFS in-process {mode}")
}

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let mut run = Run::new(
        "soft-updates",
        "soft updates beside the other modes of the engine of ext2",
    );
    run.baseline = name_of(ASYNCHRONOUS);
    run.charts = vec![modelled::tasks(plan, ON_MODEL)?];
    let (on_disk, peers) = tasks_on_disk(plan)?;
    run.charts.push(on_disk);
    run.charts.extend(modelled::files_by_size(plan)?);
    run.tables = vec![counts::batches(plan)?, counts::memory(plan)?];
    match crashes::mounts(plan) {
        Ok(chart) => run.charts.push(chart),
        Err(why) => run.notes.push(format!("no mounts after a crash: {why}")),
    }
    run.tables.push(snapshots::table(plan)?);
    run.checks = checks(&run);
    run.notes.extend(notes(plan));
    Ok((run, peers))
}

/// The tasks as fast as they go, on an image on the plan's disk; what is dirty is written by a
/// thread beside them.
fn tasks_on_disk(plan: &Plan) -> Result<(Chart, Vec<crate::report::Peer>)> {
    let specs: std::result::Result<Vec<TargetSpec>, _> = BLOCK_MODES
        .iter()
        .map(|(mode, _)| format!("ffs:mode={mode}").parse())
        .collect();
    let setup = Setup {
        len: LEN,
        ..plan.setup()
    };
    let participants = Participants::on_disk(plan, &specs?, &setup)?;
    let measured = run_each(&plan.part(TIME), &participants, "tasks", |one, sampler| {
        let AnyTarget::Blocks(blocks) = &one.target else {
            return Err("only the engine of ext2 has these modes".into());
        };
        let target = &blocks.engine;
        for task in Task::ALL {
            let turns = plan.scaled(task.turns()).max(2);
            task.prepare(target, turns)?;
            sampler.counted(figure(ON_DISK, task.name()), turns as usize, || {
                at_once(target, task, turns)
            })?;
            task.clean(target, turns)?;
        }
        Ok(())
    })?;
    let (x, shape) = ("a run, a source, a mail", Shape::Bars);
    let chart = measured.chart(ON_DISK, (ON_DISK, x), shape, Better::Less);
    Ok((chart, super::disk::peers(&participants)))
}

/// A task without its pauses, until all is durable.
fn at_once<T: Target>(target: &T, task: Task, turns: u64) -> Result<()> {
    let (due, is_due) = mpsc::sync_channel::<()>(1);
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || is_due.iter().try_for_each(|()| target.sync()));
        let mut pace = AtOnce {
            due,
            now_ns: 0,
            next_ns: WRITE_EVERY_NS,
        };
        let done = task.run(target, &mut pace, turns);
        drop(pace);
        let written = writer.join().map_err(|_| "a thread panicked")?;
        done.and(written).and_then(|()| target.sync())
    })
}

/// Nobody waits for what the task would compute; it only says when to write behind it.
struct AtOnce {
    due: SyncSender<()>,
    now_ns: u64,
    next_ns: u64,
}

impl Pace for AtOnce {
    fn call(&mut self, call: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        call()
    }

    fn compute(&mut self, ns: u64) -> Result<()> {
        self.now_ns += ns;
        if self.now_ns >= self.next_ns {
            self.next_ns = self.now_ns + WRITE_EVERY_NS;
            // If it still writes, it is behind: it writes all of it next.
            let _ = self.due.try_send(());
        }
        Ok(())
    }
}

/// A figure of a mode over that of another, of each task that has both.
fn over(run: &Run, what: impl Fn(&Point) -> f64, modes: [&str; 2]) -> Vec<(Task, f64)> {
    let Some(chart) = run.chart(ON_MODEL) else {
        return Vec::new();
    };
    let at = |mode: &str, task: Task| {
        let line = chart.line(&name_of(mode))?;
        line.at(&task.name().into()).map(&what)
    };
    let of = |task: Task| Some((task, at(modes[0], task)? / at(modes[1], task)?));
    Task::ALL.into_iter().filter_map(of).collect()
}

fn seconds(point: &Point) -> f64 {
    point.rounds.median()
}

fn writes(point: &Point) -> f64 {
    let of = |name| point.extra(name).unwrap_or(0.0);
    of(modelled::WAITED) + of(modelled::BEHIND)
}

fn say(ratios: &[(Task, f64)]) -> String {
    let each = ratios
        .iter()
        .map(|(task, ratio)| format!("{} ({})", short(*ratio), task.name()));
    each.collect::<Vec<_>>().join(", ")
}

/// Counted, or of a simulated clock, and so the same in each round; not to be seen without both.
fn decided(ratios: &[(Task, f64)], holds: impl Fn(&(Task, f64)) -> bool) -> Option<bool> {
    (!ratios.is_empty()).then(|| ratios.iter().all(holds))
}

fn checks(run: &Run) -> Vec<Check> {
    let time = over(run, seconds, [SOFT, ASYNCHRONOUS]);
    let saved = over(run, writes, [SOFT, NORMAL]);
    let gained = over(run, seconds, [SOFT, NORMAL]);
    let real = |task: Task| -> Option<Series> {
        let chart = run.chart(ON_DISK)?;
        let of = |mode: &str| Some(&chart.line(&name_of(mode))?.at(&task.name().into())?.rounds);
        Some(of(SOFT)?.over(of(ASYNCHRONOUS)?))
    };
    let reals = Task::ALL.map(|task| (task.name().to_owned(), real(task)));
    let said: Vec<_> = reals
        .iter()
        .filter_map(|(name, ratio)| Some((name.clone(), ratio.clone()?)))
        .collect();
    let most = |(task, ratio): &(Task, f64)| {
        // 42, 75 and 70 percent fewer; half of that is not the same any more.
        let fewer = match task {
            Task::Torture => 0.42,
            Task::Build => 0.75,
            Task::Mail => 0.70,
        };
        *ratio <= 1.0 - fewer / 2.0
    };
    let waited = run.chart(ON_MODEL).and_then(|chart| {
        let point = chart
            .line(&name_of(SOFT))?
            .at(&Task::Torture.name().into())?;
        Some((point.extra(modelled::WAITED)?, writes(point)))
    });
    let mut all = vec![
        claims::check(
            "Soft updates, section 5: they take at most 5 percent more time than asynchronous \
             writes (torture test 0.6 percent, build none).",
            decided(&time, |(task, ratio)| *task == Task::Mail || *ratio <= 1.05),
            format!(
                "On the modelled disk, times the time of async: {}.",
                say(&time)
            ),
            "The mail server does not decide it: the paper has none with asynchronous writes. \
             Mails are durable at each step, which costs soft updates waves with a flush each.",
        ),
        claims::check(
            "The same, on this disk.",
            below(reals.into_iter().take(2).map(|(_, ratio)| ratio), 1.05),
            format!("Times the time of async: {}.", claims::list(&said)),
            "Without pauses and computing, so that all of the difference is seen.",
        ),
        claims::check(
            "Section 5: 42 percent fewer writes than with synchronous ones in the torture test, 75 \
             in the build, 70 in the mail server.",
            decided(&saved, most),
            format!("Writes over those of mode sync: {}.", say(&saved)),
            "The same is taken to mean at least half of the saving. Mode sync writes bitmaps, too, \
             which FFS left to its check; waves merge neighbours into one request.",
        ),
        claims::check(
            "Section 5: 27 percent less time than with synchronous writes in the torture test, 21 \
             in the build.",
            decided(&gained, |(_, ratio)| *ratio < 1.0),
            format!("Times the time of mode sync: {}.", say(&gained)),
            "How much less is decided by what the tasks compute, which is stated and not measured.",
        ),
        claims::check(
            "Section 5: almost no write is synchronous in the torture test (6 of 1,113,692).",
            waited.map(|(waited, all)| waited <= all / 1000.0),
            waited.map_or(String::new(), |(waited, all)| {
                format!(
                    "A caller waited for {} of {} writes.",
                    short(waited),
                    short(all)
                )
            }),
            "Of so few one would be too many. Who waits takes a name that the disk keeps until \
             something else is there, as that of a file that was moved; the test moves none.",
        ),
    ];
    all.extend(modelled::checks(run));
    all.extend(counts::checks(run));
    all
}

fn notes(plan: &Plan) -> Vec<String> {
    let turns = |task: Task| plan.scaled(task.turns()).max(2);
    vec![
        format!(
            "tasks: {} runs of a torture test (a copy of a tree of 300 files, an Andrew benchmark, \
             searches, pauses of up to 60 s, a removal), a build of {} sources, {} mails; the same \
             calls each time",
            turns(Task::Torture),
            turns(Task::Build),
            turns(Task::Mail)
        ),
        format!(
            "modelled disk: 7200 turns a minute, seeks of 1 to 16 ms, no cache for writes; a \
             simulated clock. What a task computes and pauses is stated; every {} s of that all \
             that is dirty is written, which takes the disk and not the caller until he needs it; \
             the time ends when all is durable",
            WRITE_EVERY_NS / 1_000_000_000
        ),
        "waited for: writes during calls; behind: those of every 30 s and at the end. requests: of \
         neighbours merged; blocks: of 4 KiB"
            .into(),
        format!(
            "on a file: an image of {} MiB on {} ({}); a thread writes beside the task as often as \
             on the modelled disk",
            LEN >> 20,
            file_system_of(&plan.disk),
            plan.disk.display()
        ),
        snapshots::note(plan),
    ]
}

/// A line of a mode.
fn line(mode: &str, points: Vec<Point>) -> Line {
    Line {
        target: name_of(mode),
        points,
    }
}
