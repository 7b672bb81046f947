//! Operations that meet half-way: one is stopped at a point within it, another one runs meanwhile,
//! and perhaps a sync on a third thread. Systematically: each operation of a table, stopped at each
//! point that it passes, beside each other one.
//!
//! A case is judged like this:
//!
//! - *Some order of the operations explains it* (linearizability): done one after another on the
//!   reference file system, none before one that had returned when it was called, they return the
//!   same and leave the same tree. What was pending before comes first.
//! - *What a crash leaves has names that some of the operations leave*, each as a whole, and each
//!   with all earlier ones on any of its names; those that had returned before a sync was called
//!   are among them, once that has returned.
//! - *Each inode is as it was at one time*, in one of those orders, and each byte of a file; not
//!   from before a sync that covers it.
//! - The auditor finds nothing but what a crash may leave. After a last sync, and unmounting, all
//!   is as the caller saw it, and the image is clean.

mod cases;
mod world;

use crate::engine::{Mounted, Mounting, Subject};
use crate::engines::usual;
use crate::image::Image;
use crate::known;
use crate::medium::Tears;
use crate::op::Op;
use crate::parallel::{Until, first_in_parallel};
use crate::scratch::{Device, Scratch};
use crate::states::{Crash, Explored, Explorer, Moment, Objection, Sampling};
use crate::trace::{Event, Trace};
use crate::tree::{BLOCK, Flaw, Id, Tree};
use cases::Style;
use pmem::Domain;
use schedule::Task;
use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use vfs::{Clock, ManualClock, Time};
use world::{Birth, Done, Inode, Orders, Past, births, time_of};

pub use cases::{Case, case, count};

/// Length of the image, in bytes.
const LEN: u64 = 1 << 20;

/// What a case did.
struct Run {
    start: Image,
    events: Vec<Event>,
    past: Past,
    /// So many of the past were pending when the others met.
    pending: usize,
    /// What callers saw at the end.
    latest: Tree,
    /// The image at the end.
    end: Device,
    stopped: Option<&'static str>,
    /// Each operation is durable when it has returned.
    durable: bool,
}

/// What became of a case that is right.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// Where the operation stopped; nowhere, if it passes fewer points in this domain than in
    /// `line`, in which cases are numbered.
    pub stopped: Option<&'static str>,
    /// What was explored.
    pub explored: Explored,
}

/// How crash states are sampled where there are many cases.
pub const SAMPLING: Sampling = Sampling {
    exhaustive: 16,
    samples: 6,
    at_flush: 0,
    tears: Tears::Some,
    seed: 0,
};

/// The search for leaks is in so many steps, which are enough.
const SEARCH_STEPS: usize = 64;

/// Makes the first so many cases be all over them; coprime to their number.
const STRIDE: u64 = 1_000_003;

/// The numbers of the cases at these positions, in an order in which any part is all over them.
pub fn some(positions: Range<u64>) -> impl Iterator<Item = u64> {
    let count = count();
    let spread = move |n: u64| (u128::from(n) * u128::from(STRIDE) % u128::from(count)) as u64;
    (positions.start..positions.end.min(count)).map(spread)
}

/// The first case that goes wrong of so many that are like this, and what is wrong; on so many
/// threads.
pub fn find(
    like: fn(&Case) -> bool,
    domain: Domain,
    most: usize,
    jobs: usize,
) -> Option<(u64, Flaw)> {
    let cases = some(0..u64::MAX).map(case).filter(like).take(most);
    first_in_parallel(cases, jobs, |case: Case, wanted| {
        let wrong = explored(&case, domain, SAMPLING, Until::Wanted(wanted)).err()?;
        Some((case.number, wrong))
    })
}

/// What is explored.
fn subject(domain: Domain) -> Subject {
    Subject {
        engine: usual(),
        rules: domain.into(),
    }
}

/// How a case mounts.
fn mounting(style: Style, clock: &Arc<ManualClock>) -> Mounting {
    Mounting {
        mode: style.mode(),
        persisters: 1,
        thresholds: style.thresholds(),
        transactions: None,
        searches: style.searches(),
        mends_first: false,
        clock: clock.clone(),
    }
}

/// An empty file system that a kill has left, and with a leak: space of what was removed.
fn crashed(subject: Subject) -> Result<Image, Flaw> {
    // Not a device of domain `cache`, on which nothing waits to be freed.
    let empty = subject.engine.empty(LEN, Style::Delayed.mode());
    let device = subject.recorded(&empty, &subject.trace(false));
    let clock = Arc::new(ManualClock::new(Time(1_000)));
    let mounted = subject
        .engine
        .mount(&device, &mounting(Style::Delayed, &clock))?;
    for op in cases::leaked() {
        let done = mounted.act(&op);
        done.map_err(|e| format!("preparing, {op}: {e}"))?;
    }
    Ok(device.image())
}

/// A mounted file system, and what was done on it.
struct Stage {
    mounted: Box<dyn Mounted>,
    clock: Arc<ManualClock>,
    trace: Arc<Trace>,
    device: Device,
    start: Image,
    /// Calls and returns so far.
    ticks: AtomicU64,
}

impl Stage {
    /// With what is there before anything meets. Returns what is pending of it.
    fn set(case: &Case, domain: Domain) -> Result<(Stage, Past), Flaw> {
        let subject = subject(domain);
        let style = case.style;
        let start = match style.searches() {
            true => crashed(subject)?,
            false => subject.engine.empty(LEN, style.mode()),
        };
        let trace = subject.trace(false);
        let device = subject.recorded(&start, &trace);
        let clock = Arc::new(ManualClock::new(Time(1_000)));
        trace.mark(Event::Begin(0));
        let stage = Stage {
            mounted: subject.engine.mount(&device, &mounting(style, &clock))?,
            clock,
            trace,
            device,
            start,
            ticks: AtomicU64::new(0),
        };
        let setup = cases::setup();
        for (number, op) in setup.iter().enumerate() {
            stage.clock.set(time_of(number));
            let done = stage.mounted.act(op);
            done.map_err(|e| format!("preparing, {op}: {e}"))?;
        }
        let synced = stage.mounted.act(&Op::Syncfs);
        synced.map_err(|e| format!("preparing: {e}"))?;
        stage.trace.mark(Event::End(0));
        let mut past = Past::new();
        for op in cases::pending() {
            stage.clock.set(time_of(setup.len() + past.len()));
            past.push(stage.act(past.len(), &op));
        }
        stage.clock.set(time_of(setup.len() + past.len()));
        Ok((stage, past))
    }

    /// Do an operation, which has this number in the past.
    fn act(&self, number: usize, op: &Op) -> Done {
        let time = self.clock.now();
        let called = self.ticks.fetch_add(1, SeqCst);
        self.trace.mark(Event::Begin(number + 1));
        let steps = match op {
            Op::Search(_) => SEARCH_STEPS,
            _ => 1,
        };
        let mut all = (0..steps).map(|_| self.mounted.act(op));
        let answer = all.try_for_each(|done| done.map_err(|e| e.errno()));
        self.trace.mark(Event::End(number + 1));
        let returned = self.ticks.fetch_add(1, SeqCst);
        Done {
            op: op.clone(),
            answer,
            time,
            called,
            returned,
        }
    }
}

/// How many points the operation passes that is to stop, if nothing meets it.
fn points(case: &Case) -> u32 {
    let Ok((stage, past)) = Stage::set(case, Domain::Line) else {
        return 0;
    };
    let work = || stage.act(past.len(), &case.slow);
    schedule::run(vec![Task::new(work)])[0].passed
}

fn record(case: &Case, domain: Domain) -> Result<Run, Flaw> {
    let (mut stage, mut past) = Stage::set(case, domain)?;
    let pending = past.len();
    for path in case.opens() {
        let opened = stage.mounted.open(path);
        opened.map_err(|e| format!("opening {path}: {e}"))?;
    }
    let act = &stage;
    let slow = Task::stopping(case.stop, move || act.act(pending, &case.slow));
    let others = case.others.iter().zip(pending + 1..);
    let others = others.map(|(op, number)| Task::new(move || act.act(number, op)));
    let tasks = [slow].into_iter().chain(others).collect();
    let ended = catch_unwind(AssertUnwindSafe(|| schedule::run(tasks)))
        .map_err(|_| "the engine panicked, or its threads wait for each other")?;
    let stopped = ended[0].stopped;
    past.extend(ended.into_iter().map(|task| task.result));
    stage.mounted.let_go();
    if case.style.searches() {
        let searched = stage.act(past.len(), &cases::SEARCH);
        let ended = searched
            .answer
            .map_err(|e| format!("the search for leaks: {e:?}"));
        ended?;
        past.push(searched);
    }
    past.push(stage.act(past.len(), &Op::Syncfs));
    let latest = stage.mounted.tree()?;
    let unmounted = stage.mounted.unmount();
    unmounted.map_err(|e| format!("unmount: {e}"))?;
    Ok(Run {
        start: stage.start,
        events: stage.trace.take().0,
        past,
        pending,
        latest,
        end: stage.device,
        stopped,
        durable: case.style.mode().is_durable(),
    })
}

/// Run a case and judge what it did, and what crashes leave of it.
///
/// # Errors
/// What is wrong, with the case.
pub fn explore(case: &Case, domain: Domain, sampling: Sampling) -> Result<Outcome, Flaw> {
    explored(case, domain, sampling, Until::Done)
}

fn explored(
    case: &Case,
    domain: Domain,
    sampling: Sampling,
    until: Until<'_>,
) -> Result<Outcome, Flaw> {
    let run = record(case, domain).map_err(|e| account(case, domain, None, &e))?;
    let fail = |what: &str| account(case, domain, Some(&run), what);
    let opened = case.opens();
    let orders = Orders::of(&run.past, (run.pending, &opened), &run.latest);
    let orders = orders.map_err(|e| fail(&e))?;
    let (engine, rules) = (subject(domain).engine, subject(domain).rules);
    engine
        .flawless(&run.end)
        .map_err(|e| fail(&format!("unmounted: {e}")))?;
    let mut visit = |crash: &Crash<'_>, scratch: &mut Scratch| {
        let tree = known::sound(engine, scratch, crash.overlay)?;
        judge(&run, &orders, crash.moment, &tree)
    };
    let explorer = Explorer {
        rules,
        sampling,
        only: None,
        from: 1,
        until,
        visit: &mut visit,
    };
    let explored = explorer.run(&run.events, &mut subject(domain).scratch(run.start.clone()));
    let explored = explored.map_err(|objection: Box<Objection>| {
        let place = objection.place;
        fail(&format!(
            "the state p{}.s{}: {}",
            place.point, place.state, objection.what
        ))
    })?;
    Ok(Outcome {
        stopped: run.stopped,
        explored,
    })
}

/// The case and what is wrong with it, for people.
fn account(case: &Case, domain: Domain, run: Option<&Run>, what: &str) -> String {
    let mut text = format!(
        "halfway-{}:{domain} ({:?}): {} stops behind {} points",
        case.number, case.style, case.slow, case.stop
    );
    if let Some(point) = run.and_then(|run| run.stopped) {
        text += &format!(", at {point:?}");
    }
    text += &format!(", beside {:?}:\n{what}\n", case.others);
    for (number, done) in run.iter().flat_map(|run| &run.past).enumerate() {
        let (from, to) = (done.called, done.returned);
        text += &format!(
            "    {number}: {from:3}..{to:3} {} -> {:?}\n",
            done.op, done.answer
        );
    }
    text
}

/// The operations that had returned at a moment.
fn returned(run: &Run, moment: Moment) -> BTreeSet<usize> {
    let is_now = |event: &Event| match *event {
        Event::Begin(step) => !moment.ended && step == moment.step,
        Event::End(step) => moment.ended && step == moment.step,
        _ => false,
    };
    let mut returned = BTreeSet::new();
    for event in &run.events {
        if let Event::End(step @ 1..) = event {
            returned.insert(step - 1);
        }
        if is_now(event) {
            break;
        }
    }
    returned
}

/// Whether a crash at this moment may leave this tree.
fn judge(run: &Run, orders: &Orders, moment: Moment, tree: &Tree) -> Result<(), Flaw> {
    tree.links()?;
    let returned = returned(run, moment);
    let is_sync = |&number: &usize| run.past[number].syncs();
    let syncs: Vec<usize> = returned.iter().copied().filter(is_sync).collect();
    let required = |&sync: &usize| orders.required(&run.past, sync);
    let mut required: BTreeSet<usize> = syncs.iter().flat_map(required).collect();
    if run.durable {
        required.extend(returned.iter().filter(|&&n| run.past[n].changes_names()));
    }
    let mut why = "its names are none that some of the operations leave".to_owned();
    for left in &orders.left {
        let Some(births) = births(tree, &left.names) else {
            continue;
        };
        if !required.is_subset(&left.done) {
            why = format!(
                "its names are those of {:?}, and {required:?} were synced",
                left.done
            );
            continue;
        }
        let inodes = births.iter();
        let mut inodes = inodes.map(|(&id, &birth)| inode(run, orders, tree, (id, birth), &syncs));
        match inodes.find_map(Result::err) {
            None => return Ok(()),
            Some(flaw) => why = flaw,
        }
    }
    Err(format!("{why}\n  root: {:?}", tree.objects[&tree.root]))
}

/// Whether an inode is as it was at one time, and each of its bytes.
fn inode(
    run: &Run,
    orders: &Orders,
    tree: &Tree,
    (id, birth): (Id, Birth),
    syncs: &[usize],
) -> Result<(), Flaw> {
    let known = orders.candidates(&run.past, birth, syncs);
    let found = crate::judge::alone(&tree.objects[&id]);
    if !known.iter().any(|inode| inode.object == found) {
        let known: Vec<_> = known.iter().map(|inode| &inode.object).collect();
        return Err(format!(
            "inode {} is {found:?}\n  instead of one of {known:?}",
            id.0
        ));
    }
    let nothing = Default::default();
    let blocks = tree.contents.get(&id).unwrap_or(&nothing);
    for block in 0..found.size.div_ceil(BLOCK) {
        let len = BLOCK.min(found.size - block * BLOCK) as usize;
        let zeros = vec![0; len];
        let bytes = blocks.get(&block).unwrap_or(&zeros);
        if known
            .iter()
            .any(|inode| inode.blocks.get(&block) == Some(bytes))
        {
            continue;
        }
        for (i, &byte) in bytes.iter().enumerate().take(len) {
            let at = block * BLOCK + i as u64;
            if !known.iter().any(|inode| had(inode, at, byte)) {
                return Err(format!("byte {at} of inode {} is {byte:#x}", id.0));
            }
        }
    }
    Ok(())
}

/// Whether an inode had this byte at some place, or ended before it: then it is void, and zero.
fn had(inode: &Inode, at: u64, byte: u8) -> bool {
    match at < inode.object.size {
        false => byte == 0,
        true => {
            let block = inode.blocks.get(&(at / BLOCK));
            let had = block.and_then(|block| block.get((at % BLOCK) as usize));
            had.copied().unwrap_or(0) == byte
        }
    }
}
