//! Beyond this machine's cores: FxMark's lines that change hands, in DRAM and on the medium, and
//! what a model makes of them for up to 64 cores.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use super::trace::{Traced, kinds, trace};
use crate::plan::Plan;
use crate::report::{Cell, Found, Run, Table, short};
use crate::series::Series;
use crate::target::{Result, Setup};
use crate::workloads::fxmark::{Kind, Stage};
use crate::workloads::threads::run_threads;

/// Threads of the trace.
const THREADS: usize = 8;
/// For how many cores the model speaks.
const CORES: [u32; 6] = [2, 4, 8, 16, 32, 64];
/// What a line takes from one core of a socket to another: an assumption.
const TRANSFER_NS: f64 = 100.0;
const LEN: u64 = 1 << 30;
/// Operations that are timed in a round, at most, and how long.
const STEPS: u64 = 10_000;
const WINDOW: Duration = Duration::from_millis(50);

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let mut run = Run::new(
        "scaling",
        "FxMark beyond this machine's cores: counted and reckoned",
    );
    match trace(plan, THREADS) {
        Ok(traced) => run.tables = tables(plan, &traced)?,
        Err(why) => run.notes.push(format!("nothing was traced: {why}")),
    }
    run.notes.extend([
        format!(
            "counted by valgrind (lackey) in {THREADS} threads that take turns operation by \
             operation: the worst case, \
             and the same on any machine; mode delayed, nothing is persisted meanwhile; what the \
             kernel does is not \
             seen"
        ),
        "changes hands: a line that is written while another thread has it, or read after another \
         one wrote it; \
         hottest: the one line that does so most often"
            .into(),
        "held: the part of the operation's instructions between the first and the last use of the \
         line that takes \
         longest if it is a lock; for what is only counted up and down that is too much"
            .into(),
        format!(
            "model: an operation takes its time with one thread and {TRANSFER_NS} ns (an \
             assumption: within one socket) \
             for each line that changes hands; the hottest line cannot change hands more often \
             than once in that time \
             (the larger figure), nor, if it is a lock, be taken before it is given back (the \
             smaller one)"
        ),
        "files and directories were made and opened by one thread one after the other, so that \
         what belongs to \
         neighbours may lie in one line: that is counted too, and shows as a share of a half or \
         less"
            .into(),
        "not in the model: the bandwidth of the medium, the persister, other sockets".into(),
    ]);
    Ok((run, Vec::new()))
}

fn tables(plan: &Plan, traced: &[Traced]) -> Result<Vec<Table>> {
    let columns = [
        "what",
        "instructions/op",
        "change hands/op, DRAM",
        "change hands/op, medium",
        "hottest/op",
        "held, % of op",
    ];
    let mut counted = Table::new("Lines that change hands, in-process", &columns);
    let mut columns = vec!["what".to_owned(), "ns/op, 1 thread".into()];
    columns.extend(CORES.map(|cores| format!("{cores} cores")));
    columns.push("2 threads, measured".into());
    let mut model = Table::with_columns("Times as fast as one core, as the model has it", columns);
    for (i, (kind, traced)) in kinds().zip(traced).enumerate() {
        plan.progress.step(kind.name(), i, kinds().count());
        let what = format!("{}: {}", kind.name(), kind.about());
        let (one, two) = measure(plan, kind)?;
        let ns = one.median();
        let each = |count: u64| Cell::from(count as f64 / traced.ops.max(1) as f64);
        counted.row([
            what.as_str().into(),
            each(traced.instructions),
            each(traced.dram),
            each(traced.medium),
            traced.hottest().times.into(),
            (100.0 * traced.slowest(ns, TRANSFER_NS).held).into(),
        ]);
        let mut row: Vec<Cell> = vec![what.into(), one.into()];
        row.extend(CORES.map(|cores| reckoned(traced, ns, cores).into()));
        row.push(two.map_or(Cell::Nothing, Cell::from));
        model.rows.push(row);
    }
    let mut transfer = Table::new("A line from core to core", &["", "ns"]);
    transfer.row(["assumed".into(), TRANSFER_NS.into()]);
    if let Some(ns) = ping_pong(plan)? {
        transfer.row(["measured here, between two threads".into(), ns.into()]);
    }
    Ok(vec![counted, model, transfer])
}

/// How many times as fast so many cores are: at least (locks) and at most (lines).
fn reckoned(traced: &Traced, ns: f64, cores: u32) -> String {
    let changes = (traced.dram + traced.medium) as f64 / traced.ops.max(1) as f64;
    let parallel = f64::from(cores) * ns / (ns + changes * TRANSFER_NS);
    let slowest = traced.slowest(ns, TRANSFER_NS);
    let least = ns / (slowest.times * TRANSFER_NS + slowest.held * ns);
    let most = ns / (traced.hottest().times * TRANSFER_NS);
    let (least, most) = (parallel.min(least), parallel.min(most));
    match (short(least), short(most)) {
        (least, most) if least == most => most,
        (least, most) => format!("{least} to {most}"),
    }
}

/// ns of an operation with one thread, and how many times as fast two are, in this machine's time.
fn measure(plan: &Plan, kind: Kind) -> Result<(Series, Option<Series>)> {
    let setup = Setup {
        len: LEN,
        ..plan.setup()
    };
    let temp = plan.temp()?;
    let engine = setup.mount("SoupFS", setup.create(&temp.path().join("image"))?)?;
    let mut ns = [Series::default(), Series::default()];
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    for round in 0..=plan.rounds {
        for threads in 1..=cores.min(2) {
            let stage = Stage::new(kind, &engine, threads, STEPS)?;
            let steps: Vec<_> = (0..threads).map(|_| AtomicU64::new(0)).collect();
            let done = run_threads(threads, Some(WINDOW), |thread, until| {
                let mut block = [0x65; 4096];
                let done =
                    until.repeat(STEPS, 16, |i| stage.step(thread, i, &mut block).map(drop))?;
                steps[thread].store(done, SeqCst);
                Ok(done)
            })?;
            let steps: Vec<u64> = steps.into_iter().map(AtomicU64::into_inner).collect();
            stage.clear(&steps)?;
            // The first warms up.
            if round > 0 {
                ns[threads - 1].push(done.time.as_nanos() as f64 / done.ops.max(1) as f64);
            }
        }
    }
    let [one, two] = ns;
    let faster = (!two.is_empty()).then(|| one.over(&two));
    Ok((one, faster))
}

/// What a line takes to another core and back, halved: each thread waits for the other one's
/// number.
fn ping_pong(plan: &Plan) -> Result<Option<Series>> {
    const TURNS: u64 = 100_000;
    if std::thread::available_parallelism().map_or(1, |n| n.get()) < 2 {
        return Ok(None);
    }
    let once = || -> Result<f64> {
        let ball = AtomicU64::new(0);
        let play = |mine: u64| {
            for turn in (0..TURNS).filter(|turn| turn % 2 == mine) {
                while ball.load(SeqCst) != turn {
                    std::hint::spin_loop();
                }
                ball.store(turn + 1, SeqCst);
            }
        };
        let start = Instant::now();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| play(1));
            play(0);
            other.join().map_err(|_| "a thread panicked")
        })?;
        Ok(start.elapsed().as_nanos() as f64 / TURNS as f64)
    };
    (0..plan.rounds)
        .map(|_| once())
        .collect::<Result<_>>()
        .map(Some)
}
