//! Every crash state of a few commits: recovery gives exactly the state before or after.

mod crash;

use std::collections::BTreeMap;
use std::sync::Arc;

use crash::{When, every_crash};
use explorer::medium::Lines;
use explorer::states::Explored;
use explorer::trace::{Event, Trace};
use pmem::{Domain, Journal, Options, Pool, Record, Recovered};

const POOL: u64 = 8192;
const JOURNAL: u64 = 128;
const WORDS: u64 = 4096;
/// A line per step, which the step's commit publishes.
const PUBLISHED: u64 = 6144;

/// Words by name: A and B share a line, the others have one each.
const A: u64 = WORDS;
const B: u64 = WORDS + 8;
const C: u64 = WORDS + 64;
const D: u64 = WORDS + 128;
const E: u64 = WORDS + 192;

/// Where a store may overtake another, so that flushes and fences matter.
const UNORDERED: [Domain; 2] = [Domain::Line, Domain::Page];

/// What a program does with its journal.
enum Step {
    /// What it publishes is flushed before.
    Commit(&'static [(u64, u64)]),
    /// What it publishes is carried.
    Carry(&'static [(u64, u64)]),
    /// Makes some of the transactions durable in place: so many lines.
    CheckpointSome(u64),
    /// Nothing is replayed any more until the next commit.
    Checkpoint,
    /// Uses a word of checkpointed transactions for something else, without the journal.
    Reuse(u64, u64),
}

/// Which values are durable: the journal's words and the number of the newest step.
type State = BTreeMap<u64, u64>;

fn apply(state: &mut State, step: &Step) {
    match step {
        Step::Commit(words) | Step::Carry(words) => state.extend(words.iter().copied()),
        Step::Checkpoint | Step::CheckpointSome(_) => {}
        Step::Reuse(word, value) => drop(state.insert(*word, *value)),
    }
}

fn commits(step: &Step) -> bool {
    matches!(step, Step::Commit(_) | Step::Carry(_))
}

struct Scenario {
    ring_lines: u64,
    /// Commit once more after each recovery.
    goes_on: bool,
    steps: Vec<Step>,
}

impl Scenario {
    fn journal_len(&self) -> u64 {
        (2 + self.ring_lines) * 64
    }

    /// The formatted pool, before the first step.
    fn start(&self) -> Vec<u8> {
        let pool = Pool::anonymous(POOL, &Options::default()).expect("memory");
        Journal::format(&pool, JOURNAL, self.journal_len());
        pool.snapshot()
    }

    /// Runs the steps on a recorded pool; returns the start and the trace.
    fn run(&self, domain: Domain) -> (Vec<u8>, Vec<Event>) {
        let start = self.start();
        let trace = Trace::new(&[]);
        let pool = recorded(&start, domain, &trace);
        let (mut journal, found) =
            Journal::recover(&pool, JOURNAL, self.journal_len(), |_| true).expect("journal");
        assert_eq!(found, Recovered::default());
        for (i, step) in self.steps.iter().enumerate() {
            trace.mark(Event::Begin(i + 1));
            match step {
                Step::Commit(words) | Step::Carry(words) => {
                    let published = PUBLISHED + 64 * i as u64;
                    pool.store(published, 1);
                    let mut record: Record = words.iter().copied().collect();
                    if let Step::Carry(_) = step {
                        record.carry(&pool, published, 8);
                    } else {
                        pool.flush(published, 8);
                        record.rely_on_flushed();
                    }
                    journal.commit(&record).expect("commit");
                }
                Step::CheckpointSome(lines) => {
                    journal.checkpoint_some(*lines).expect("checkpoint");
                }
                Step::Checkpoint => journal.checkpoint().expect("checkpoint"),
                Step::Reuse(word, value) => {
                    pool.store(*word, *value);
                    pool.flush(*word, 8);
                    pool.fence().expect("fence");
                }
            }
            trace.mark(Event::End(i + 1));
        }
        (start, trace.take().0)
    }

    /// Recovers every crash state of a trace; an error describes the first that is wrong.
    fn check(&self, start: &[u8], events: &[Event], domain: Domain) -> Result<Found, String> {
        let mut replayed = Vec::new();
        let medium = Lines::thorough(domain);
        let explored = every_crash(domain, medium, start, events, |when, image| {
            let recovered = self.recover(&memory(image))?;
            if recovered.transactions > 0 {
                if self.is_checkpointed(when) {
                    return Err("a checkpointed transaction is replayed".to_owned());
                }
                if replayed.len() < 64 {
                    replayed.push(image.to_vec());
                }
            }
            self.judge(&recovered, when)
        })?;
        Ok(Found { explored, replayed })
    }

    /// Whether all that was committed has been checkpointed.
    fn is_checkpointed(&self, when: When) -> bool {
        let newest = self.steps[..when.begun].iter().rposition(commits);
        let checkpoints = |step: &Step| matches!(step, Step::Checkpoint);
        newest.is_none_or(|newest| {
            self.steps[..when.ended]
                .iter()
                .skip(newest)
                .any(checkpoints)
        })
    }

    /// Recovers, and commits once more on a copy: the next recovery must find just that.
    fn recover(&self, pool: &Arc<Pool>) -> Result<After, String> {
        let after = self.recover_only(pool)?;
        if !self.goes_on {
            return Ok(after);
        }
        let copy =
            Arc::new(Pool::from_bytes(&pool.snapshot(), &Options::default()).expect("memory"));
        let (mut journal, _) = Journal::recover(&copy, JOURNAL, self.journal_len(), |_| true)
            .map_err(|error| error.to_string())?;
        journal
            .commit(&[(A, 100), (E, 100)].into_iter().collect())
            .map_err(|error| error.to_string())?;
        let again = self.recover_only(&copy)?;
        let mut expected = after.words.clone();
        expected.extend([(A, 100), (E, 100)]);
        if again.words != expected {
            return Err(format!("one more commit after {after:?} gives {again:?}"));
        }
        Ok(after)
    }

    fn recover_only(&self, pool: &Arc<Pool>) -> Result<After, String> {
        let (_, found) = Journal::recover(pool, JOURNAL, self.journal_len(), |_| true)
            .map_err(|error| error.to_string())?;
        let words = [A, B, C, D, E]
            .into_iter()
            .map(|word| (word, pool.load(word)))
            .collect();
        let published = (0..self.steps.len())
            .map(|i| pool.load(PUBLISHED + 64 * i as u64) == 1)
            .collect();
        Ok(After {
            transactions: found.transactions,
            words,
            published,
        })
    }

    /// The recovered state must be that after the steps that had ended, or that had begun, with
    /// all published.
    fn judge(&self, after: &After, When { begun, ended }: When) -> Result<(), String> {
        let fits = (ended..=begun).any(|steps| {
            let mut expected: State = [A, B, C, D, E].into_iter().map(|word| (word, 0)).collect();
            for step in &self.steps[..steps] {
                apply(&mut expected, step);
            }
            let published = self.steps[..steps]
                .iter()
                .zip(&after.published)
                .all(|(step, published)| !commits(step) || *published);
            expected == after.words && published
        });
        let problem = || format!("neither {ended} nor {begun} steps: {:?}", after);
        if fits { Ok(()) } else { Err(problem()) }
    }
}

#[derive(Debug)]
struct Found {
    explored: Explored,
    /// Some images whose recovery replays.
    replayed: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct After {
    transactions: u64,
    words: State,
    published: Vec<bool>,
}

/// In domain `line`, so that the log is used always.
fn memory(bytes: &[u8]) -> Arc<Pool> {
    let options = Options {
        domain: Some(Domain::Line),
        ..Options::default()
    };
    Arc::new(Pool::from_bytes(bytes, &options).expect("memory"))
}

fn recorded(bytes: &[u8], domain: Domain, trace: &Arc<Trace>) -> Arc<Pool> {
    let options = Options {
        domain: Some(domain),
        recorder: Some(trace.clone()),
        ..Options::default()
    };
    Arc::new(Pool::from_bytes(bytes, &options).expect("memory"))
}

/// The step of [`mixed`] that makes a part of a checkpoint.
const PART: usize = 3;

/// Commits in each order that matters: fresh, over live words, beside them; checkpoints of some
/// and of all; words that are used again.
fn mixed() -> Scenario {
    Scenario {
        ring_lines: 12,
        goes_on: true,
        steps: vec![
            Step::Commit(&[(A, 1), (C, 1)]),
            Step::Carry(&[(D, 2)]),
            Step::CheckpointSome(2),
            Step::Commit(&[(E, 3)]),
            Step::CheckpointSome(2),
            Step::Carry(&[(D, 4)]),
            Step::Checkpoint,
            Step::Reuse(D, 7),
            Step::Commit(&[(D, 8), (E, 8)]),
            Step::Commit(&[(D, 9), (A, 9)]),
        ],
    }
}

/// Records of several lines, so that they wrap around and the ring overflows.
fn wrapping() -> Scenario {
    Scenario {
        ring_lines: 3,
        goes_on: true,
        steps: vec![
            Step::Commit(&[(A, 1), (B, 1), (C, 1)]),
            Step::Commit(&[(A, 2), (B, 2)]),
            Step::Carry(&[(A, 3), (B, 3)]),
            Step::Commit(&[(A, 4), (C, 4), (E, 4)]),
        ],
    }
}

/// Words of a record of four lines.
const WHOLE_RING: [(u64, u64); 12] = {
    let [b, c, d] = [(B, 3), (C, 3), (D, 3)];
    [b, c, d, b, c, d, b, c, d, b, c, d]
};

/// A record that is written over several old ones, of which the first must not be replayed alone.
fn overtaking() -> Scenario {
    Scenario {
        ring_lines: 4,
        goes_on: true,
        steps: vec![
            Step::Commit(&[(A, 1)]),
            Step::Commit(&[(A, 2)]),
            Step::Commit(&WHOLE_RING),
        ],
    }
}

#[test]
fn every_crash_of_mixed_commits_in_domains_line_and_page_recovers_to_before_or_after() {
    let scenario = mixed();
    for domain in UNORDERED {
        let (start, events) = scenario.run(domain);
        let found = scenario.check(&start, &events, domain).expect("consistent");
        assert!(
            found.explored.judged > 500 && !found.replayed.is_empty(),
            "{} states",
            found.explored.judged
        );
    }
}

#[test]
fn every_crash_of_records_that_wrap_recovers_to_before_or_after() {
    let scenario = wrapping();
    for domain in UNORDERED {
        let (start, events) = scenario.run(domain);
        let found = scenario.check(&start, &events, domain).expect("consistent");
        let judged = found.explored.judged;
        assert!(
            judged > 500 && !found.replayed.is_empty(),
            "{judged} states"
        );
    }
}

#[test]
fn every_crash_while_several_records_are_written_over_recovers_to_before_or_after() {
    let scenario = overtaking();
    for domain in UNORDERED {
        let (start, events) = scenario.run(domain);
        let found = scenario.check(&start, &events, domain).expect("consistent");
        let judged = found.explored.judged;
        assert!(judged > 200, "{judged} states");
    }
}

#[test]
fn every_crash_in_domain_cache_recovers_to_before_or_after() {
    for scenario in [mixed(), wrapping()] {
        let (start, events) = scenario.run(Domain::Cache);
        let found = scenario
            .check(&start, &events, Domain::Cache)
            .expect("consistent");
        assert!(
            found.explored.judged > 50 && !found.replayed.is_empty(),
            "{} states",
            found.explored.judged
        );
    }
}

#[test]
fn a_crash_in_recovery_leaves_all_to_the_next_recovery() {
    let scenario = mixed();
    let (start, events) = scenario.run(Domain::Line);
    let found = scenario
        .check(&start, &events, Domain::Line)
        .expect("consistent");
    for image in &found.replayed {
        let trace = Trace::new(&[]);
        let pool = recorded(image, Domain::Line, &trace);
        let first = scenario.recover(&pool).expect("recovery");
        let events = trace.take().0;
        let medium = Lines::thorough(Domain::Line);
        every_crash(Domain::Line, medium, image, &events, |_, image| {
            let again = scenario.recover(&memory(image))?;
            if again.words == first.words {
                Ok(())
            } else {
                Err(format!("{again:?}"))
            }
        })
        .expect("the same state");
    }
}

/// The steps' part of a trace. What recovery flushes before them is what a dead process may have
/// left: that it matters is for `second_life` to show.
fn first_step(events: &[Event]) -> usize {
    let begins = |event: &Event| matches!(event, Event::Begin(_));
    events.iter().position(begins).expect("a step")
}

/// Whether this fence covers a head that makes room for the record behind it. Without it, the old
/// head may lead to records that the new one is written over: which shows only where that covers
/// several of them.
fn covers_a_head(events: &[Event], at: usize) -> bool {
    let head = JOURNAL + 64;
    matches!(events[at - 2], Event::Store { at, .. } if at == head)
}

/// Whether this fence covers a part of what is to be durable before the head moves, and another
/// part follows. It is there for the case that another thread flushes that (M6), whose fence does
/// not cover the first.
fn covers_a_part(events: &[Event], at: usize) -> bool {
    let step = events[..at].iter().rev().find_map(|event| match event {
        Event::Begin(step) => Some(*step),
        _ => None,
    });
    step == Some(PART)
}

#[test]
fn each_fence_left_out_is_caught() {
    for domain in UNORDERED {
        for (scenario, covers_several) in
            [(mixed(), true), (wrapping(), false), (overtaking(), true)]
        {
            fences_left_out_are_caught(scenario, covers_several, domain);
        }
    }
}

/// To leave a fence out of the trace is to leave it out of the code, at that place.
fn fences_left_out_are_caught(scenario: Scenario, covers_several: bool, domain: Domain) {
    let parts = matches!(scenario.steps[PART - 1], Step::CheckpointSome(_));
    let scenario = Scenario {
        goes_on: false,
        ..scenario
    };
    let (start, events) = scenario.run(domain);
    let is_fence = |at: &usize| matches!(events[*at], Event::Fence { .. });
    for at in (first_step(&events)..events.len()).filter(is_fence) {
        let mut injected = events.clone();
        injected.remove(at);
        let caught = scenario.check(&start, &injected, domain).is_err();
        assert!(
            caught
                || parts && covers_a_part(&events, at)
                || !covers_several && covers_a_head(&events, at),
            "{domain}: the fence at event {at} may be left out: {:?}",
            &events[at - 3..=at + 1]
        );
    }
}

/// Whether it is noticed, in each domain, that two events of a run are exchanged.
fn exchanged_is_caught(scenario: &Scenario, of: impl Fn(&[Event]) -> (usize, usize)) -> bool {
    UNORDERED.into_iter().all(|domain| {
        let (start, mut events) = scenario.run(domain);
        let (one, other) = of(&events);
        events.swap(one, other);
        scenario.check(&start, &events, domain).is_err()
    })
}

#[test]
fn a_head_that_moves_before_its_places_are_durable_is_caught() {
    let scenario = Scenario {
        goes_on: false,
        ..mixed()
    };
    let head_of_checkpoint = |events: &[Event]| {
        let checkpoint = events.iter().position(|e| *e == Event::Begin(7));
        let checkpoint = checkpoint.expect("the step that checkpoints all");
        let head = |e: &Event| matches!(e, Event::Store { at, .. } if *at == JOURNAL + 64);
        let head = checkpoint + events[checkpoint..].iter().position(head).expect("a head");
        // Before the fence that covers the places.
        (head - 1, head)
    };
    assert!(exchanged_is_caught(&scenario, head_of_checkpoint));
}

#[test]
fn a_head_that_is_durable_late_is_caught_where_several_records_are_written_over() {
    let scenario = Scenario {
        goes_on: false,
        ..overtaking()
    };
    let flush_and_fence = |events: &[Event]| {
        let head = |e: &Event| matches!(e, Event::Store { at, .. } if *at == JOURNAL + 64);
        let head = events.iter().rposition(head).expect("a head");
        (head + 1, head + 2)
    };
    assert!(exchanged_is_caught(&scenario, flush_and_fence));
}

/// Commits of one fence each, of which each of the later ones flushes places of those before.
fn paying() -> Scenario {
    Scenario {
        ring_lines: 8,
        goes_on: false,
        steps: vec![
            Step::Carry(&[(A, 1)]),
            Step::Carry(&[(C, 2)]),
            Step::Carry(&[(D, 3)]),
            Step::Carry(&[(E, 4)]),
            Step::Carry(&[(B, 5)]),
        ],
    }
}

#[test]
fn places_that_are_durable_after_the_commit_that_pays_for_them_are_caught() {
    let scenario = paying();
    for domain in UNORDERED {
        let (start, events) = scenario.run(domain);
        let checked = scenario.check(&start, &events, domain);
        checked.expect("the journal is right");
        let is_place = |event: &Event| matches!(event, Event::Flush { at, .. } if *at >= WORDS);
        let places: Vec<_> = (first_step(&events)..events.len())
            .filter(|&at| is_place(&events[at]))
            .collect();
        let caught = places.iter().filter(|&&at| {
            let fence = |event: &Event| matches!(event, Event::Fence { .. });
            let fence = at + events[at..].iter().position(fence).expect("of its commit");
            let mut late = events.clone();
            let flush = late.remove(at);
            late.insert(fence, flush);
            scenario.check(&start, &late, domain).is_err()
        });
        let caught = caught.count();
        assert!(caught > 0, "{domain}: none of {} flushes", places.len());
    }
}

#[test]
fn each_flush_left_out_is_caught() {
    for domain in UNORDERED {
        flushes_left_out_are_caught(domain);
    }
}

fn flushes_left_out_are_caught(domain: Domain) {
    let scenario = Scenario {
        goes_on: false,
        ..mixed()
    };
    let (start, events) = scenario.run(domain);
    // What is flushed after the last fence is for a commit that the scenario does not have.
    let last_fence = events
        .iter()
        .rposition(|event| matches!(event, Event::Fence { .. }));
    let last_fence = last_fence.expect("commits fence");
    let mut heads_caught = 0;
    let steps = events[..last_fence].iter().enumerate();
    for (at, event) in steps.skip(first_step(&events)) {
        let Event::Flush { at: off, .. } = event else {
            continue;
        };
        let mut injected = events.clone();
        injected.remove(at);
        let caught = scenario.check(&start, &injected, domain).is_err();
        // A head that stays behind does harm only where a record or word is used again.
        if *off == JOURNAL + 64 {
            heads_caught += usize::from(caught);
        } else {
            assert!(caught, "{domain}: {event:?} at event {at} may be left out");
        }
    }
    assert!(heads_caught > 0, "{domain}: no flush of the head matters");
}
