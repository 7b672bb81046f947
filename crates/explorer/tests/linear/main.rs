//! Mode `strong` of SoupFS is linearizable, and durably so: an order of their requests explains
//! what threads see that work on one file or in one directory, and what a crash leaves of it.
//!
//! Threads run freely, or by a schedule that stops each at a point (`schedule`), which is the same
//! each time. A crash comes at any event of a recorded medium.

mod file;
mod names;

use block::Random;
use explorer::image::Image;
use explorer::image::Overlay;
use explorer::medium::Tears;
use explorer::rules::Rules;
use explorer::scratch::{Device, Scratch, pool_of};
use explorer::trace::{Event, Trace};
use file::File;
use model::linear::{Call, Sequential, explains};
use names::Dir;
use pmem::transaction::{Aborts, Software};
use pmem::{Abort, Domain, Pool};
use schedule::Task;
use soupfs::fault::{Fault, fault};
use soupfs::{FormatOptions, Mode, MountOptions, SoupFs, format};
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use testing::for_seeds;
use vfs::{ManualClock, NewKind, NewNode, Time};

/// A bug is injected in all of a process.
static INJECTING: Mutex<()> = Mutex::new(());

const DOMAINS: [Domain; 2] = [Domain::Line, Domain::Page];

/// A medium, and which attempts at transactions abort, if there are such.
#[derive(Debug, Clone, Copy)]
struct Ground {
    domain: Domain,
    aborts: Option<Aborts>,
}

impl Ground {
    const fn new(domain: Domain) -> Ground {
        Ground {
            domain,
            aborts: None,
        }
    }

    const fn transactions(aborts: Aborts) -> Ground {
        Ground {
            domain: Domain::Cache,
            aborts: Some(aborts),
        }
    }
}

const TRANSACTIONS: Ground = Ground::transactions(Aborts::Never);
const GROUNDS: [Ground; 5] = [
    Ground::new(Domain::Line),
    Ground::new(Domain::Page),
    TRANSACTIONS,
    // Locks and transactions; all ways, and each fall-back.
    Ground::transactions(Aborts::Optimistic(Abort::Conflict)),
    Ground::transactions(Aborts::From {
        first: 3,
        count: 75,
        cause: Abort::Conflict,
    }),
];
/// The name of what a recorded medium has.
const NAME: &str = "it";
/// Points that a thread passes before it stops: fewer than these, about those of two requests.
const POINTS: u64 = 40;
/// Numbers of a thread's calls in a trace: thousands are the thread.
const THREAD: usize = 1000;

type Op<S> = <<S as Subject>::Model as Sequential>::Op;
type Answer<S> = <<S as Subject>::Model as Sequential>::Answer;
type Calls<S> = Vec<Vec<Call<Op<S>, Answer<S>>>>;

/// What threads work on.
trait Subject: Sync + Sized {
    /// What it does, in sequence.
    type Model: Sequential<Op: Debug + Copy + Send + Sync, Answer: Debug + Clone + Send> + Debug;

    /// What [`Subject::make`] makes.
    fn start() -> Self::Model;
    fn make(fs: &SoupFs, name: &str) -> Self;
    /// Behind a remount.
    fn find(fs: &SoupFs, name: &str) -> Self;
    /// One by chance; no other one of the history has the number.
    fn op(random: &mut Random, number: u64) -> Op<Self>;
    fn run(&self, fs: &SoupFs, op: Op<Self>) -> Answer<Self>;
    /// What is there, while nobody changes it.
    fn state(&self, fs: &SoupFs) -> Self::Model;
}

fn new(kind: NewKind<'static>, perm: u16) -> NewNode<'static> {
    NewNode {
        kind,
        perm,
        uid: 0,
        gid: 0,
        xattrs: &[],
    }
}

fn mount(pool: &Arc<Pool>, mode: Mode, ground: Ground) -> SoupFs {
    let software = |aborts| Arc::new(Software::new(Software::LINES_MAX, aborts));
    let options = MountOptions {
        mode,
        manual: true,
        transactions: ground.aborts.map(|aborts| software(aborts) as _),
        ..MountOptions::new(Arc::new(ManualClock::new(Time(5))))
    };
    SoupFs::mount(pool.clone(), options).expect("mount")
}

/// A new file system, not mounted.
fn formatted(domain: Domain) -> Arc<Pool> {
    let pool = Arc::new(pool_of(&Image::zeros(4 << 20), domain, None));
    let options = FormatOptions {
        uuid: [7; 16],
        label: "test".into(),
        hash_key: [9; 16],
        time: Time(1),
        owner: (0, 0),
        zeroed: true,
    };
    format(&pool, &options).expect("format");
    pool
}

/// How threads meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meet {
    Freely,
    ByPoints,
}

/// The operations of two to four threads.
fn operations<S: Subject>(random: &mut Random) -> Vec<Vec<Op<S>>> {
    let (threads, ops) = *random.pick(&[(2, 4), (3, 3), (4, 2)]);
    let mut number = 0;
    let mut op = || {
        number += 1;
        S::op(random, number)
    };
    (0..threads)
        .map(|_| (0..ops).map(|_| op()).collect())
        .collect()
}

/// Run each thread's operations; the trace has when each began and ended.
fn answers<S: Subject>(
    (fs, subject): (&SoupFs, &S),
    ops: &[Vec<Op<S>>],
    (meet, random): (Meet, &mut Random),
    trace: &Trace,
) -> Vec<Vec<Answer<S>>> {
    let (ready, threads) = (AtomicUsize::new(0), ops.len());
    let run = |thread: usize| {
        ready.fetch_add(1, SeqCst);
        // Not a barrier that sleeps: waking takes longer than all that is done here.
        while meet == Meet::Freely && ready.load(SeqCst) < threads {
            std::thread::yield_now();
        }
        let one = |(number, &op): (usize, &Op<S>)| {
            trace.mark(Event::Begin(thread * THREAD + number));
            let answer = subject.run(fs, op);
            trace.mark(Event::End(thread * THREAD + number));
            answer
        };
        ops[thread].iter().enumerate().map(one).collect()
    };
    match meet {
        Meet::Freely => std::thread::scope(|scope| {
            let run = &run;
            let spawn = |thread| scope.spawn(move || run(thread));
            let spawned: Vec<_> = (0..threads).map(spawn).collect();
            let joined = spawned.into_iter().map(|thread| thread.join());
            joined.map(|all| all.expect("no panic")).collect()
        }),
        Meet::ByPoints => {
            let run = &run;
            let task = |thread| {
                let points = random.below(POINTS) as u32;
                Task::stopping(points, move || run(thread))
            };
            let ended = schedule::run((0..threads).map(task).collect());
            ended.into_iter().map(|ended| ended.result).collect()
        }
    }
}

/// Run operations by chance; what was called when, and what was returned.
fn history<S: Subject>(
    on: (&SoupFs, &S),
    (meet, random): (Meet, &mut Random),
    trace: &Trace,
) -> Calls<S> {
    let ops = operations::<S>(random);
    let answers = answers(on, &ops, (meet, random), trace);
    let when = |event| {
        let at = trace.with(0, |events| events.iter().position(|e| *e == event));
        at.expect("it is in the trace") as u64
    };
    let call = |thread: usize, number: usize| Call {
        op: ops[thread][number],
        called: when(Event::Begin(thread * THREAD + number)),
        returned: Some((
            when(Event::End(thread * THREAD + number)),
            answers[thread][number].clone(),
        )),
    };
    (0..ops.len())
        .map(|thread| (0..ops[thread].len()).map(|n| call(thread, n)).collect())
        .collect()
}

/// What no order explains.
fn check<S: Subject>(calls: &Calls<S>, left: &S::Model) -> Result<(), String> {
    match explains(&S::start(), calls, |state| state == left) {
        true => Ok(()),
        false => Err(format!("no order explains {calls:#?}\nwhich left {left:?}")),
    }
}

/// Threads on a new subject of a file system.
fn met<S: Subject>(fs: &SoupFs, meet: Meet, seed: u64, name: &str) -> Result<(), String> {
    let subject = S::make(fs, name);
    let random = &mut Random::new(seed);
    let calls = history((fs, &subject), (meet, random), &Trace::new(&[]));
    check::<S>(&calls, &subject.state(fs))
}

/// The history up to a crash: what had returned by then, and what was called.
fn until<S: Subject>(calls: &Calls<S>, crash: u64) -> Calls<S> {
    let cut = |calls: &Vec<Call<Op<S>, Answer<S>>>| {
        let called = calls.iter().take_while(|call| call.called < crash);
        let returned = called.map(|call| Call {
            op: call.op,
            called: call.called,
            returned: call.returned.clone().filter(|(at, _)| *at < crash),
        });
        returned.collect()
    };
    calls.iter().map(cut).collect()
}

/// A subject on a medium.
fn prepared<S: Subject>(domain: Domain) -> Image {
    let pool = formatted(domain);
    let fs = mount(&pool, Mode::Strong, Ground::new(domain));
    drop(S::make(&fs, NAME));
    fs.unmount().expect("unmounted");
    Device::Memory(pool).image()
}

/// Threads on a recorded medium, and crashes at some events of it.
fn crashed<S: Subject>(
    (start, ground): (&Image, Ground),
    (mode, meet): (Mode, Meet),
    seed: u64,
) -> Result<(), String> {
    let (trace, random, domain) = (Trace::new(&[]), &mut Random::new(seed), ground.domain);
    let pool = Arc::new(pool_of(start, domain, Some(trace.clone())));
    let fs = mount(&pool, mode, ground);
    let first = trace.len() as u64;
    let subject = S::find(&fs, NAME);
    let calls = history((&fs, &subject), (meet, random), &trace);
    check::<S>(&calls, &subject.state(&fs))?;
    drop(subject);
    let (events, _) = trace.take();
    let mut crashes: Vec<u64> = (0..4)
        .map(|_| first + random.below(events.len() as u64 - first + 1))
        .collect();
    crashes.sort_unstable();
    let mut medium = Rules::Lines(domain).medium(Tears::Some, seed);
    let (mut scratch, mut done) = (Scratch::new(start.clone()), 0);
    for crash in crashes {
        for event in &events[done..crash as usize] {
            medium.apply(event, &mut scratch);
        }
        done = crash as usize;
        let mut any = Overlay::new();
        for (unit, versions) in medium.units() {
            medium.put(unit, random.below(versions as u64) as usize, &mut any);
        }
        for overlay in [Overlay::new(), medium.visible(), any] {
            let left = scratch.with(&overlay, |device| {
                let fs = mount(device.pool(), Mode::Strong, Ground::new(domain));
                let left = S::find(&fs, NAME).state(&fs);
                fs.unmount().expect("unmounted");
                left
            });
            let what = check::<S>(&until::<S>(&calls, crash), &left);
            what.map_err(|what| format!("a crash at event {crash} in {domain}: {what}"))?;
        }
    }
    Ok(())
}

/// How often the operations of a seed are run whose threads meet by chance.
fn times(meet: Meet) -> u64 {
    let replays = meet == Meet::Freely && std::env::var_os("TUREEN_REPLAY").is_some();
    if replays { 1000 } else { 1 }
}

fn explained<S: Subject>(meet: Meet, seeds: u64) {
    let _injecting = INJECTING.lock().unwrap_or_else(PoisonError::into_inner);
    for ground in GROUNDS {
        for_seeds(seeds, |seed| {
            let fs = mount(&formatted(ground.domain), Mode::Strong, ground);
            for time in 0..times(meet) {
                let name = format!("{time}");
                if let Err(what) = met::<S>(&fs, meet, seed, &name) {
                    panic!("seed {seed}, {meet:?}, {ground:?}: {what}");
                }
            }
        });
    }
}

#[test]
fn some_order_explains_what_threads_see_of_one_file() {
    explained::<File>(Meet::Freely, 250);
    explained::<File>(Meet::ByPoints, 250);
}

#[test]
fn some_order_explains_what_threads_see_of_one_directory() {
    explained::<Dir>(Meet::Freely, 250);
    explained::<Dir>(Meet::ByPoints, 250);
}

fn durable<S: Subject>(seeds: u64) {
    let _injecting = INJECTING.lock().unwrap_or_else(PoisonError::into_inner);
    for ground in GROUNDS {
        let start = prepared::<S>(ground.domain);
        for meet in [Meet::Freely, Meet::ByPoints] {
            for_seeds(seeds, |seed| {
                for _ in 0..times(meet) {
                    let crashed = crashed::<S>((&start, ground), (Mode::Strong, meet), seed);
                    if let Err(what) = crashed {
                        panic!("seed {seed}, {meet:?}: {what}");
                    }
                }
            });
        }
    }
}

#[test]
fn a_crash_leaves_of_one_file_what_some_order_leaves() {
    durable::<File>(25);
}

#[test]
fn a_crash_leaves_of_one_directory_what_some_order_leaves() {
    durable::<Dir>(25);
}

/// Whether a history of these seeds is refused while a bug is injected.
fn noticed(bug: Option<Fault>, refused: impl Fn(u64) -> bool) -> bool {
    assert!(fault(bug) || bug.is_none(), "a test build has faults");
    let noticed = (0..400).any(refused);
    fault(None);
    noticed
}

fn notices<S: Subject>() {
    let _injecting = INJECTING.lock().unwrap_or_else(PoisonError::into_inner);
    for domain in DOMAINS {
        let torn = |seed| {
            let fs = mount(&formatted(domain), Mode::Strong, Ground::new(domain));
            met::<S>(&fs, Meet::ByPoints, seed, "0").is_err()
        };
        let half = noticed(Some(Fault::NoOddPhase), torn);
        assert!(half, "nobody notices that numbers stay even in {domain}");
        let start = prepared::<S>(domain);
        let lost = |mode| {
            let start = &start;
            move |seed| {
                crashed::<S>((start, Ground::new(domain)), (mode, Meet::ByPoints), seed).is_err()
            }
        };
        let early = noticed(Some(Fault::SeenEarly), lost(Mode::Strong));
        assert!(early, "nobody notices what is seen early in {domain}");
        let late = noticed(None, lost(Mode::Delayed));
        assert!(late, "nobody notices what is durable late in {domain}");
    }
}

#[test]
fn what_no_order_explains_of_one_file_is_noticed() {
    notices::<File>();
}

#[test]
fn what_no_order_explains_of_one_directory_is_noticed() {
    notices::<Dir>();
}
