//! Crash states of a recording: beside a definition by brute force, and whether bugs that are
//! injected into a device are noticed.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use block::device::{Completion, Device, Info, Io, Request};
use block::record::{Change, Event, Token, Trace};
use block::{Buffer, Disk, Faults, Memory, Random, Ticket, Wave};
use parking_lot::Mutex;

use crate::common::{backends, for_seeds, sectors};
use crate::publish::{LEN, first_wrong, is_right, publish_all, recorded};

const SECTORS: usize = 2;

/// A random trace of few changes to a device of two sectors. Each change of a sector has a byte of
/// its own.
fn random_trace(random: &mut Random) -> Trace {
    let mut trace = Trace::new(vec![0; 512 * SECTORS]);
    let mut flying = Vec::new();
    let mut byte = 0;
    let mut left = 7;
    while left > 0 || !flying.is_empty() {
        if left > 0 && random.one_in(2) {
            left -= 1;
            byte += 1;
            let first = random.below(SECTORS as u64);
            let count = 1 + random.below(SECTORS as u64 - first);
            let (at, len) = (512 * first, 512 * count);
            let change = match random.below(7) {
                0..=2 => Change::Write {
                    at,
                    bytes: vec![byte; len as usize].into(),
                },
                3 => Change::Zero { at, len },
                4 => Change::Discard { at, len },
                _ => Change::Flush,
            };
            flying.push(trace.submit(change));
        } else if !flying.is_empty() {
            let one = flying.swap_remove(random.below(flying.len() as u64) as usize);
            trace.complete(one, !random.one_in(8));
        }
        if left > 0 && random.one_in(30) {
            return trace;
        }
    }
    trace
}

/// A disk with a volatile cache, for one sector: all that it may do is tried.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Sector {
    medium: u8,
    /// What the cache has and the medium has not.
    cached: Option<u8>,
    /// Changes that have not reached the cache, and their contents.
    coming: Vec<(usize, u8)>,
    /// Flushes in flight that have not seen this sector clean since their submission.
    owed: Vec<usize>,
}

/// What the two sectors may hold after all events, by brute force.
fn brute_force(trace: &Trace, sector: usize) -> BTreeSet<u8> {
    let mut states = BTreeSet::from([Sector {
        medium: 0,
        cached: None,
        coming: Vec::new(),
        owed: Vec::new(),
    }]);
    let mut changes = Vec::new();
    for event in &trace.events {
        states = closure(states);
        match event {
            Event::Submitted(change) => {
                let id = changes.len();
                changes.push(change.clone());
                states = states
                    .into_iter()
                    .map(|state| submitted(state, id, change, sector))
                    .collect();
            }
            Event::Completed { id, ok } => {
                let completed = |state| completed(state, *id, *ok, &changes[*id]);
                states = states.into_iter().flat_map(completed).collect();
            }
            Event::Mark(_) => {}
        }
    }
    closure(states)
        .into_iter()
        .map(|state| state.medium)
        .collect()
}

fn submitted(mut state: Sector, id: usize, change: &Change, sector: usize) -> Sector {
    let (at, len, byte) = match change {
        Change::Write { at, bytes } => (*at, bytes.len() as u64, bytes[0]),
        Change::Zero { at, len } | Change::Discard { at, len } => (*at, *len, 0),
        Change::Flush => {
            if state.cached.is_some() {
                state.owed.push(id);
            }
            return state;
        }
    };
    if (at..at + len).contains(&(512 * sector as u64)) {
        state.coming.push((id, byte));
    }
    state
}

/// The states, of which a change that is complete has left this.
fn completed(mut state: Sector, id: usize, ok: bool, change: &Change) -> Vec<Sector> {
    let arrived = state.coming.iter().all(|(coming, _)| *coming != id);
    match change {
        Change::Flush if ok => {
            // Those in which it has not done its work are not possible.
            let done = !state.owed.contains(&id);
            if done { vec![state] } else { Vec::new() }
        }
        Change::Flush => {
            state.owed.retain(|flush| *flush != id);
            let mut dropped = state.clone();
            dropped.cached = None;
            dropped.owed.clear();
            vec![state, dropped]
        }
        Change::Write { .. } | Change::Zero { .. } if ok && !arrived => Vec::new(),
        // A discard, or what failed: done or not.
        _ => {
            state.coming.retain(|(coming, _)| *coming != id);
            vec![state]
        }
    }
}

/// All that may happen by itself: changes arrive in the cache, the cache is written back.
fn closure(states: BTreeSet<Sector>) -> BTreeSet<Sector> {
    let mut queue: VecDeque<_> = states.iter().cloned().collect();
    let mut all = states;
    while let Some(state) = queue.pop_front() {
        let mut next = Vec::new();
        for i in 0..state.coming.len() {
            let mut after = state.clone();
            let (_, byte) = after.coming.remove(i);
            after.cached = Some(byte);
            next.push(after);
        }
        if let Some(byte) = state.cached {
            next.push(Sector {
                medium: byte,
                cached: None,
                owed: Vec::new(),
                ..state
            });
        }
        for state in next {
            if all.insert(state.clone()) {
                queue.push_back(state);
            }
        }
    }
    all
}

#[test]
fn crash_states_are_those_of_a_disk_with_a_volatile_cache() {
    for_seeds(3000, |seed| {
        let trace = random_trace(&mut Random::new(seed));
        let crash = trace.crash(trace.events.len());
        let images: BTreeSet<_> = crash
            .states(10_000, 0)
            .iter()
            .map(|token| crash.image(token.state).expect("a state"))
            .collect();
        let [first, second] = [0, 1].map(|sector| brute_force(&trace, sector));
        let expected: BTreeSet<_> = first
            .iter()
            .flat_map(|&a| second.iter().map(move |&b| [[a; 512], [b; 512]].concat()))
            .collect();
        assert!(images == expected);
    });
}

#[test]
fn a_token_replays_its_state() {
    for_seeds(50, |seed| {
        let trace = random_trace(&mut Random::new(seed));
        for point in trace.points() {
            let crash = trace.crash(point);
            // So few that they are sampled.
            for token in crash.states(crash.count().min(7) as usize - 1, seed) {
                let again: Token = token.to_string().parse().expect("its own token");
                assert_eq!(again, token);
                assert_eq!(trace.replay(again).ok(), crash.image(token.state));
            }
        }
        for bad in [
            "", "p1", "p1.", "p1.x", "p1.n", "1.n1", "p999.n0", "p0.n7", "p0.o0", "p0.é",
        ] {
            let replayed = bad.parse().and_then(|token| trace.replay(token));
            assert_eq!(replayed.expect_err("no state").0, bad);
        }
    });
}

#[test]
fn an_engine_that_waits_and_flushes_is_right_after_every_crash() {
    for backend in backends(LEN) {
        let (disk, recorder) = recorded(backend.device, |device| device);
        publish_all(&disk, Some(&recorder)).expect("no fault");
        let trace = recorder.trace();
        assert_eq!(first_wrong(&trace), None);
        // All is durable at the end, and it is what the device holds.
        let end = trace.crash(trace.events.len());
        assert_eq!(end.count(), 1);
        let read = disk
            .read(0, vec![Buffer::zeroed(LEN as usize)])
            .expect("no fault");
        let image = end.image("p0.newest".parse::<Token>().expect("a token").state);
        assert!(image.is_some_and(|image| image == read[0][..] && is_right(&image, 6)));
    }
}

#[test]
fn completions_in_any_order_change_nothing() {
    for_seeds(20, |seed| {
        for backend in backends(LEN) {
            let faults = Arc::new(Faults::new(backend.device));
            let (disk, recorder) = recorded(faults.clone(), |device| device);
            faults.reorder(seed);
            publish_all(&disk, Some(&recorder)).expect("no fault");
            assert_eq!(first_wrong(&recorder.trace()), None);
        }
    });
}

/// One of several who use a disk at once: it writes what it counts to, makes that durable, and only
/// then counts on.
struct Actor {
    place: u64,
    count: u8,
    /// What is in flight: the data, or the count.
    flying: Option<(bool, Ticket)>,
}

impl Actor {
    /// Goes on, if what it waits for is complete; `true`: its count is durable.
    fn go_on(&mut self, disk: &Disk, random: &mut Random) -> bool {
        let is_data = match &self.flying {
            Some((_, ticket)) if !ticket.is_done() => return false,
            Some((is_data, _)) => *is_data,
            None => false,
        };
        if let Some((_, ticket)) = self.flying.take() {
            ticket.wait().expect("no fault");
        }
        let mut wave = Wave::new();
        if is_data {
            wave.write(self.place, sectors(&[self.count]));
        } else {
            self.count += 1;
            wave.write(
                self.place + 512 * u64::from(self.count),
                sectors(&[self.count]),
            );
            if random.one_in(2) {
                wave.write(self.place + 16384, sectors(&[self.count]));
            }
        }
        self.flying = Some((!is_data, disk.submit_wave(wave)));
        !is_data && self.count > 1
    }

    fn is_right(&self, image: &[u8], promised: u8) -> bool {
        let at = |sector: u8| image[self.place as usize + 512 * usize::from(sector)];
        at(0) >= promised && (1..=at(0)).all(|count| at(count) == count)
    }
}

#[test]
fn who_shares_a_flush_shares_only_one_that_covers_his_writes() {
    for_seeds(150, |seed| {
        let faults = Arc::new(Faults::new(Arc::new(Memory::new(65536))));
        let (disk, recorder) = recorded(faults.clone(), |device| device);
        faults.reorder(seed);
        let mut random = Random::new(seed);
        let mut actors = [0, 8192, 32768].map(|place| Actor {
            place,
            count: 0,
            flying: None,
        });
        while actors.iter().all(|actor| actor.count < 8) {
            let i = random.below(3) as usize;
            if actors[i].go_on(&disk, &mut random) {
                recorder.mark(format!("{i} {}", actors[i].count - 1));
            }
        }
        let trace = recorder.trace();
        // Marks come a little late: at every event, not only where states are the most.
        for point in 0..=trace.events.len() {
            let mut promised = [0; 3];
            for mark in trace.marks(point) {
                let (i, count) = mark.split_once(' ').expect("two words");
                promised[i.parse::<usize>().expect("an actor")] = count.parse().expect("a count");
            }
            let crash = trace.crash(point);
            for token in crash.states(20, seed) {
                let image = crash.image(token.state).expect("a state");
                let right = |(actor, promised): (&Actor, u8)| actor.is_right(&image, promised);
                assert!(actors.iter().zip(promised).all(right), "{token}");
            }
        }
    });
}

/// A bug of a device.
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    /// Flushes are dropped, and said to be done.
    DropsFlushes,
    /// The flush behind a write is dropped.
    DropsFlushesBehindWrites,
    /// Writes are said to be done when they are submitted. They are done behind the next flush.
    AnswersEarly,
}

struct Buggy {
    inner: Arc<dyn Device>,
    bug: Bug,
    late: Mutex<Vec<Io>>,
}

impl Buggy {
    fn pass(&self, mut io: Io) -> Option<Io> {
        match (&mut io.request, self.bug) {
            (Request::Flush, Bug::DropsFlushes) => {
                io.complete(Ok(()));
                None
            }
            (Request::Write { flush, .. }, Bug::DropsFlushesBehindWrites) => {
                *flush = false;
                Some(io)
            }
            (
                Request::Write {
                    at,
                    from,
                    flush: false,
                },
                Bug::AnswersEarly,
            ) => {
                let request = Request::Write {
                    at: *at,
                    from: from.clone(),
                    flush: false,
                };
                let done = Box::new(|_: Completion| {});
                self.late.lock().push(Io { request, done });
                io.complete(Ok(()));
                None
            }
            _ => Some(io),
        }
    }
}

impl Device for Buggy {
    fn info(&self) -> &Info {
        self.inner.info()
    }

    fn submit(&self, ios: Vec<Io>) {
        for io in ios {
            let flushes = io.request.flushes();
            if let Some(io) = self.pass(io) {
                self.inner.submit(vec![io]);
            }
            if flushes {
                self.inner.submit(std::mem::take(&mut *self.late.lock()));
            }
        }
        self.inner.notify();
    }

    fn delivered(&self) -> u64 {
        self.inner.delivered()
    }

    fn wait(&self, seen: u64) {
        self.inner.wait(seen);
    }

    fn notify(&self) {
        self.inner.notify();
    }
}

#[test]
fn a_device_that_lies_is_noticed() {
    for bug in [
        Bug::DropsFlushes,
        Bug::DropsFlushesBehindWrites,
        Bug::AnswersEarly,
    ] {
        let (disk, recorder) = recorded(Arc::new(Memory::new(LEN)), |inner| {
            Arc::new(Buggy {
                inner,
                bug,
                late: Mutex::default(),
            })
        });
        // What reads of late writes yield is not what is tested.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            publish_all(&disk, Some(&recorder))
        }));
        let trace = recorder.trace();
        let token = first_wrong(&trace).expect("a state that is wrong");
        let replayed = token.parse().and_then(|token| trace.replay(token));
        assert!(replayed.is_ok(), "{token}");
    }
}
