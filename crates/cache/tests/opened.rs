//! When a cache is open, what it stands on is durable: superblocks, Head and Tail, and all entries.
//! Else a power cut behind that brings back what opening has undone or forgotten, when the places
//! have been used for something else.

use std::sync::Arc;

use block::{Disk, Memory};
use cache::layout::{COMMIT_AT, SUPERBLOCK_LEN, Superblock};
use cache::testing::Bind;
use cache::{BLOCK, Cache, Class, CreateOptions, Kind, Transaction};
use explorer::image::Image;
use explorer::medium::{Medium, Tears};
use explorer::rules::Rules;
use explorer::scratch::Scratch;
use explorer::trace::{Event, Trace};
use pmem::{Domain, LINE, Options, Pool};

const DISK_BLOCKS: u64 = 200;
const POOL_LEN: u64 = 80 * BLOCK;
const RULES: Rules = Rules::Lines(Domain::Line);

fn pool(bytes: &[u8], trace: &Arc<Trace>) -> Arc<Pool> {
    let options = Options {
        domain: Some(Domain::Line),
        recorder: Some(trace.clone()),
        ..Options::default()
    };
    Arc::new(Pool::from_bytes(bytes, &options).expect("memory"))
}

fn commit(cache: &Cache, class: Class, byte: u8) {
    let mut transaction = Transaction::default();
    for block in 10..20 {
        transaction.write(class, block * BLOCK, &[byte; BLOCK as usize]);
    }
    cache.commit(transaction).expect("it is committed");
}

/// What a killed process leaves.
struct Killed {
    disk: Disk,
    medium: Box<dyn Medium>,
    scratch: Scratch,
}

/// What a process that had a cache leaves if it is killed before one of the events of what it does
/// last, or behind all of them.
fn killed(kind: Kind, last: &dyn Fn(&Cache)) -> impl Iterator<Item = Killed> {
    let mut bytes = vec![0; (DISK_BLOCKS * BLOCK) as usize];
    Bind::label(&mut bytes);
    let disk = Disk::new(Arc::new(Memory::from_bytes(bytes)));
    let (trace, start) = (Trace::new(&[]), vec![0; POOL_LEN as usize]);
    let options = CreateOptions {
        kind,
        uuid: [9; 16],
        unit: 64,
        metadata: 8 * BLOCK,
    };
    let memory = pool(&start, &trace);
    let cache = Cache::create(memory, disk.clone(), Arc::new(Bind), &options).expect("it fits");
    commit(&cache, Class::Data, 1);
    let first = trace.len();
    last(&cache);
    drop(cache);
    let (events, _) = trace.take();
    (first..=events.len()).map(move |end| {
        let mut medium = RULES.medium(Tears::Some, 0);
        let mut scratch = Scratch::on(RULES, Image::from(start.clone()));
        for event in &events[..end] {
            medium.apply(event, &mut scratch);
        }
        medium.kill(&mut scratch);
        Killed {
            disk: disk.clone(),
            medium,
            scratch,
        }
    })
}

impl Killed {
    /// What opening the cache does to the memory.
    fn open(&self) -> Vec<Event> {
        let visible = self.scratch.image(&self.medium.visible());
        let trace = Trace::new(&[]);
        let memory = pool(&visible.bytes(), &trace);
        let opened = Cache::open(memory, self.disk.clone(), Arc::new(Bind));
        drop(opened.expect("it is opened"));
        trace.take().0
    }

    /// Lines of what a cache stands on that a power cut may take back behind these events.
    fn undurable(&self, events: &[Event]) -> usize {
        let (mut medium, durable) = (self.medium.again(), self.scratch.image(&Vec::new()));
        let mut scratch = Scratch::on(RULES, durable);
        for event in events {
            medium.apply(event, &mut scratch);
        }
        let mut bytes = [0; SUPERBLOCK_LEN];
        scratch.image(&Vec::new()).read(0, &mut bytes);
        let geometry = Superblock::read(&bytes, POOL_LEN).expect("there is a superblock");
        let entries = geometry.entries_at()..geometry.entries_at() + geometry.blocks * 16;
        let stands_on_it = |line: u64| {
            let at = line * LINE;
            at < geometry.ring_at() || entries.contains(&at) || at >= geometry.copy_at()
        };
        let units = medium.units().into_iter();
        units.filter(|(line, _)| stands_on_it(*line)).count()
    }
}

/// How a trace goes on without something.
type LeftOut = fn(&[Event]) -> Vec<Event>;

fn without_the_last_fence(events: &[Event]) -> Vec<Event> {
    let is_fence = |event: &Event| matches!(event, Event::Fence { .. });
    let last = events.iter().rposition(is_fence).expect("there is one");
    let mut events = events.to_vec();
    events.remove(last);
    events
}

fn without_flushes_of_head_and_tail(events: &[Event]) -> Vec<Event> {
    let is_one = |event: &&Event| match event {
        Event::Flush { at, .. } => at / LINE == COMMIT_AT / LINE,
        _ => false,
    };
    let all = events.iter();
    all.filter(|event| !is_one(event)).cloned().collect()
}

/// Behind each kill all of it is durable; and not if something is left out.
fn all_is_durable(last: &dyn Fn(&Cache), left_out: &[LeftOut]) {
    for kind in [Kind::Spindle, Kind::Tinca] {
        let mut noticed = vec![0; left_out.len()];
        for (end, killed) in killed(kind, last).enumerate() {
            let events = killed.open();
            assert_eq!(killed.undurable(&events), 0, "{kind}, killed at {end}");
            for (noticed, leave_out) in noticed.iter_mut().zip(left_out) {
                *noticed += killed.undurable(&leave_out(&events));
            }
        }
        assert!(!noticed.contains(&0), "{kind}: {noticed:?}");
    }
}

#[test]
fn what_recovery_has_undone_is_durable_when_the_cache_is_open() {
    let left_out: [LeftOut; 2] = [without_the_last_fence, without_flushes_of_head_and_tail];
    all_is_durable(&|cache| commit(cache, Class::Data, 2), &left_out);
    all_is_durable(&|cache| commit(cache, Class::Metadata, 2), &left_out);
}

#[test]
fn what_an_unmarked_disk_lets_a_cache_forget_is_durably_forgotten_when_it_is_open() {
    let flush = |cache: &Cache| cache.flush().expect("the disk has all");
    let behind = |cache: &Cache| {
        flush(cache);
        cache.keep_reads(true);
        let mut read = vec![0; 8 * BLOCK as usize];
        cache.read(50 * BLOCK, &mut read).expect("it is read");
    };
    let left_out: [LeftOut; 1] = [without_the_last_fence];
    let kinds = [Kind::Spindle, Kind::Tinca];
    for killed in kinds.map(|kind| killed(kind, &behind).last().expect("there is an end")) {
        let events = killed.open();
        assert_eq!(killed.undurable(&events), 0);
        for leave_out in left_out {
            assert!(
                killed.undurable(&leave_out(&events)) > 0,
                "it is not noticed"
            );
        }
    }
}
