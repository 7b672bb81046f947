//! What goes to the disk, when, and in which order: counted, by a disk that is watched.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use block::device::{Immediate, Info, Request};
use block::{Disk, Events, Memory};
use cache::testing::Bind;
use cache::{BLOCK, Cache, Class, CreateOptions, Kind, Transaction, Writer};
use pmem::{Domain, Options, Pool};
use rustix::io::Errno;

const DISK_BLOCKS: u64 = 2000;
const POOL_LEN: u64 = 2 << 20;
/// Blocks of a wave that somebody waits for.
const WAVE: u64 = 64;
/// How long anything here may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Remembers where it was written to, and lets a write wait.
struct Watched {
    memory: Memory,
    written: Mutex<Vec<u64>>,
    /// Of those, how many the writer has not written.
    by_others: AtomicU64,
    waits: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Watched {
    /// Blocks that were written since this was asked last, in order.
    fn written(&self) -> Vec<u64> {
        std::mem::take(&mut *self.written.lock().expect("nobody panicked"))
    }

    /// The next write tells, and waits.
    fn stop(&self) -> (Receiver<()>, Sender<()>) {
        let (here, is_here) = mpsc::channel();
        let (go, may_go) = mpsc::channel();
        *self.waits.lock().expect("nobody panicked") = Some((here, may_go));
        (is_here, go)
    }
}

impl Immediate for Watched {
    fn info(&self) -> &Info {
        self.memory.info()
    }

    fn events(&self) -> &Events {
        self.memory.events()
    }

    fn run(&self, request: &mut Request) -> Result<(), Errno> {
        if let Request::Write { at, from, .. } = request {
            let waits = self.waits.lock().expect("nobody panicked").take();
            if let Some((here, go)) = waits {
                here.send(()).expect("somebody listens");
                go.recv().expect("somebody lets it go on");
            }
            let bytes: usize = from.iter().map(|buffer| buffer.len()).sum();
            let mut written = self.written.lock().expect("nobody panicked");
            written.extend(*at / BLOCK..(*at + bytes as u64) / BLOCK);
            if std::thread::current().name() != Some("cache-writer") {
                self.by_others.fetch_add(1, Ordering::SeqCst);
            }
        }
        self.memory.run(request)
    }
}

fn cache() -> (Arc<Watched>, Arc<Cache>) {
    let mut bytes = vec![0; (DISK_BLOCKS * BLOCK) as usize];
    Bind::label(&mut bytes);
    let watched = Arc::new(Watched {
        memory: Memory::from_bytes(bytes),
        written: Mutex::default(),
        by_others: AtomicU64::new(0),
        waits: Mutex::default(),
    });
    let options = Options {
        domain: Some(Domain::Line),
        ..Options::default()
    };
    let pool = Arc::new(Pool::anonymous(POOL_LEN, &options).expect("memory"));
    let how = CreateOptions {
        kind: Kind::Spindle,
        uuid: [9; 16],
        unit: 64,
        metadata: 0,
    };
    let made = Cache::create(pool, Disk::new(watched.clone()), Arc::new(Bind), &how);
    (watched, Arc::new(made.expect("it fits")))
}

fn commit(cache: &Cache, blocks: impl IntoIterator<Item = u64>, byte: u8) {
    let mut transaction = Transaction::default();
    for block in blocks {
        transaction.write(Class::Data, block * BLOCK, &[byte; BLOCK as usize]);
    }
    cache.commit(transaction).expect("it fits");
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Blocks in no order, each once: none is the first one, and no two are neighbours.
fn scattered(count: u64) -> Vec<u64> {
    (0..count).map(|i| 2 + i * 7 % 997 * 2).collect()
}

/// Fills a cache with what the disk lacks, but for so many blocks.
fn fill(cache: &Cache, room: u64) -> Vec<u64> {
    // The first block is there, too, as the disk is marked.
    let blocks = scattered(cache.status().blocks - 1 - room);
    for blocks in blocks.chunks(10) {
        commit(cache, blocks.iter().copied(), 1);
    }
    assert_eq!(cache.status().dirty, cache.status().blocks - room);
    blocks
}

#[test]
fn the_writer_begins_at_half_and_ends_at_a_quarter_in_the_order_of_the_disk() {
    let (disk, cache) = cache();
    let (high, low) = (cache.status().blocks / 2, cache.status().blocks / 4);
    let mut blocks = scattered(high);
    let last = blocks.pop().expect("a block");
    for blocks in blocks.chunks(10) {
        commit(&cache, blocks.iter().copied(), 1);
    }
    assert_eq!(cache.status().dirty, high);
    disk.written();
    // It has looked when it has ended.
    drop(Writer::start(cache.clone()).expect("a thread"));
    assert_eq!(disk.written(), [], "half of it may be dirty");
    let writer = Writer::start(cache.clone()).expect("a thread");
    commit(&cache, [last], 1);
    wait_until("it does not end", || cache.status().dirty <= low);
    drop(writer);
    let (dirty, written) = (cache.status().dirty, disk.written());
    assert!((low - WAVE..=low).contains(&dirty), "{dirty} of {low}");
    assert_eq!(written.len() as u64, high + 1 - dirty, "each once");
    assert!(written.is_sorted(), "{written:?}");
}

/// Not for as many blocks as the longest wave has.
#[test]
fn who_finds_no_room_waits_for_one_short_wave() {
    let (disk, cache) = cache();
    fill(&cache, 0);
    disk.written();
    let mut longest = 0;
    for block in 0..200 {
        commit(&cache, [1001 + 2 * block], 2);
        longest = longest.max(disk.written().len() as u64);
    }
    assert_eq!(longest, WAVE);
    // Unless it needs more.
    let (_, cache) = self::cache();
    fill(&cache, 0);
    commit(&cache, (0..100).map(|i| 1001 + 2 * i), 2);
    assert_eq!(cache.status().written_out[0], 100);
}

/// Else the first blocks of the disk would be written over and over, and the last ones never.
#[test]
fn nothing_is_written_again_before_everything_was_once() {
    let (disk, cache) = cache();
    let all = fill(&cache, 0);
    disk.written();
    let mut written = HashSet::new();
    for i in 0..DISK_BLOCKS / 2 {
        // A block that is not there, so that it needs room.
        commit(&cache, [3 + 2 * i], 2);
        let wave = disk.written();
        let was_written = wave.iter().any(|block| written.contains(block));
        // Dirty again as soon as they are written.
        commit(&cache, wave.iter().copied().take(4), 3);
        written.extend(wave);
        if was_written {
            let lacking = all.iter().filter(|block| !written.contains(block));
            assert_eq!(lacking.count(), 0);
            return;
        }
    }
    panic!("what became dirty again is never written");
}

#[test]
fn who_waits_for_a_wave_takes_the_room_that_it_has_made() {
    let (disk, cache) = cache();
    fill(&cache, 0);
    disk.by_others.store(0, Ordering::SeqCst);
    let (is_here, go) = disk.stop();
    let writer = Writer::start(cache.clone()).expect("a thread");
    is_here.recv_timeout(PATIENCE).expect("it writes");
    let committing = {
        let cache = cache.clone();
        std::thread::spawn(move || commit(&cache, [1001], 2))
    };
    // So that it has most likely found that there is no room.
    std::thread::sleep(Duration::from_millis(20));
    assert!(!committing.is_finished(), "there is no room yet");
    go.send(()).expect("it waits");
    committing.join().expect("it ends");
    drop(writer);
    assert_eq!(disk.by_others.load(Ordering::SeqCst), 0);
}

/// What was dirty when commits began to wait for the disk is there; when they do not any more,
/// nothing is written.
#[test]
fn the_mode_is_switched_between_commits() {
    let (disk, cache) = cache();
    commit(&cache, 10..20, 1);
    assert_eq!((disk.written(), cache.status().dirty), (vec![0], 11));
    cache.set_through(true).expect("switched");
    assert_eq!(cache.status().dirty, 0);
    let written = disk.written();
    assert!(
        (10..20).all(|block| written.contains(&block)),
        "{written:?}"
    );
    commit(&cache, 20..30, 2);
    let written = disk.written();
    assert!(
        (20..30).all(|block| written.contains(&block)),
        "{written:?}"
    );
    cache.set_through(false).expect("switched");
    disk.written();
    commit(&cache, 30..40, 3);
    assert_eq!(disk.written(), []);
    let status = cache.status();
    assert!(!status.is_through && status.dirty == 11, "{status:?}");
    // And while others commit.
    std::thread::scope(|scope| {
        let committing = scope.spawn(|| (0..200).for_each(|i| commit(&cache, [50 + i], 4)));
        let mut is_through = false;
        while !committing.is_finished() {
            is_through = !is_through;
            cache.set_through(is_through).expect("switched");
        }
    });
    cache.set_through(true).expect("switched");
    let contents = disk.memory.contents();
    assert!((50..250).all(|block| contents[(block * BLOCK) as usize] == 4));
}
