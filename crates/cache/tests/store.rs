//! A cache by itself: what it costs, what it refuses, threads, a failing disk, hostile contents.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use block::device::{Immediate, Info, Request};
use block::{Disk, Events, Fault, Faults, Memory, Random};
use cache::testing::Bind;
use cache::{BLOCK, Binding, Cache, CacheError, Cached, Class, CreateOptions, Kind, Transaction};
use pmem::{Domain, Options, Pool, Recorder, StoreKind, Syncer};
use rustix::io::Errno;

const DISK_BLOCKS: u64 = 2000;
const POOL_LEN: u64 = 2 << 20;
/// How long anything here may take.
const PATIENCE: Duration = Duration::from_secs(60);

fn memory() -> Arc<Memory> {
    let mut bytes = vec![0; (DISK_BLOCKS * BLOCK) as usize];
    Bind::label(&mut bytes);
    Arc::new(Memory::from_bytes(bytes))
}

fn pool() -> Arc<Pool> {
    let options = Options {
        domain: Some(Domain::Line),
        ..Options::default()
    };
    Arc::new(Pool::anonymous(POOL_LEN, &options).expect("memory"))
}

fn options(kind: Kind, unit: u64) -> CreateOptions {
    CreateOptions {
        kind,
        uuid: [9; 16],
        unit,
        metadata: 32 * BLOCK,
    }
}

fn cache(kind: Kind, unit: u64) -> (Arc<Pool>, Arc<Memory>, Arc<Cache>) {
    let (pool, memory) = (pool(), memory());
    let disk = Disk::new(memory.clone());
    let made = Cache::create(pool.clone(), disk, Arc::new(Bind), &options(kind, unit));
    (pool, memory, Arc::new(made.expect("it fits")))
}

fn write(class: Class, blocks: impl IntoIterator<Item = u64>, byte: u8) -> Transaction {
    let mut transaction = Transaction::default();
    for block in blocks {
        transaction.write(class, block * BLOCK, &[byte; BLOCK as usize]);
    }
    transaction
}

/// Metadata of which one line of each block changes.
fn touch(blocks: impl IntoIterator<Item = u64>, base: u8, byte: u8) -> Transaction {
    let mut transaction = Transaction::default();
    for block in blocks {
        let mut bytes = [base; BLOCK as usize];
        bytes[640..700].fill(byte);
        transaction.write(Class::Metadata, block * BLOCK, &bytes);
    }
    transaction
}

/// Lines that reach the memory, and fences, for each block of a transaction.
fn cost(pool: &Pool, blocks: u64, act: impl FnOnce()) -> (f64, u64) {
    let before = pool.stats();
    act();
    let stats = pool.stats() - before;
    // What goes around the cache is not flushed, and is a line written all the same.
    let lines = stats.flushed_lines + stats.bytes_non_temporal / 64;
    (lines as f64 / blocks as f64, stats.fences)
}

/// Section 3 of the design, and of the paper: about 67 lines for a block of data and 9 for one of
/// metadata, where Tinca has 68 for each.
#[test]
fn a_block_costs_so_many_lines() {
    let blocks = 10..110;
    let measure = |kind: Kind, unit: u64| {
        let (pool, _, cache) = cache(kind, unit);
        let commit = |transaction| cache.commit(transaction).expect("it fits");
        commit(write(Class::Data, [1], 1));
        let miss = cost(&pool, 100, || commit(write(Class::Data, blocks.clone(), 1)));
        let hit = cost(&pool, 100, || commit(write(Class::Data, blocks.clone(), 2)));
        commit(write(Class::Metadata, blocks.clone(), 3));
        let metadata = cost(&pool, 100, || commit(touch(blocks.clone(), 3, 4)));
        [miss, hit, metadata]
    };
    let spindle = measure(Kind::Spindle, 64);
    let as_published = measure(Kind::Spindle, 256);
    let tinca = measure(Kind::Tinca, 64);
    for ((lines, fences), max) in spindle.into_iter().zip([64.6, 64.6, 3.1]) {
        assert!(lines <= max, "{spindle:?}");
        assert_eq!(fences, 3, "{spindle:?}");
    }
    // Sub-blocks of the size of an inode, as in the paper.
    assert!(as_published[2].0 <= 9.1, "{as_published:?}");
    for (lines, fences) in tinca {
        assert!((67.0..=69.0).contains(&lines), "{tinca:?}");
        assert_eq!(fences, 401, "{tinca:?}");
    }
}

#[test]
fn what_is_written_is_counted_by_class() {
    let (_, _, cache) = cache(Kind::Spindle, 64);
    let data = cache.commit(write(Class::Data, 10..13, 1));
    let metadata = cache.commit(write(Class::Metadata, 20..22, 1));
    let touched = cache.commit(touch(20..22, 1, 2));
    data.and(metadata).and(touched).expect("they are committed");
    // The first block is there, too: the disk is marked.
    let status = cache.status();
    assert_eq!((status.dirty, status.dirty_metadata), (6, 3));
    assert_eq!((status.blocks_written, status.units), ([3, 3], 2));
    let in_place = 2.0 * (64.0 + 2.0 * 64.0) / 4096.0;
    assert_eq!(status.memory_amplification(), [1.0, (3.0 + in_place) / 5.0]);
    assert_eq!(status.disk_amplification(), [0.0; 2]);
    cache.flush().expect("the disk has all");
    let status = cache.status();
    assert_eq!((status.dirty, status.dirty_metadata), (0, 0));
    assert_eq!(status.written_out, [3, 2]);
    assert_eq!(status.disk_amplification(), [1.0, 2.0 / 5.0]);
}

#[test]
fn what_can_never_fit_changes_nothing() {
    for kind in [Kind::Spindle, Kind::Tinca] {
        let (_, memory, cache) = cache(kind, 64);
        let max = cache.transaction_max() as u64;
        let refused = cache.commit(write(Class::Data, 1..max + 2, 5));
        assert!(
            matches!(refused, Err(CacheError::TooLarge { .. })),
            "{refused:?}"
        );
        assert_eq!(cache.status().cached, 0);
        let fits = cache.commit(write(Class::Data, 1..max + 1, 6));
        fits.expect("it fits");
        // And again, although all of it is dirty.
        cache
            .commit(write(Class::Data, 500..500 + max, 7))
            .expect("it fits");
        cache.flush().expect("written");
        let contents = memory.contents();
        assert_eq!(contents[BLOCK as usize..][..4], [6; 4]);
        assert_eq!(contents[(500 * BLOCK) as usize..][..4], [7; 4]);
        assert_eq!(Bind.marked(&contents), None);
    }
}

#[test]
fn a_disk_with_a_dirty_cache_belongs_to_that_alone() {
    let (pool, memory, cache) = cache(Kind::Spindle, 64);
    cache.commit(write(Class::Data, [5], 1)).expect("it fits");
    drop(cache);
    let disk = || Disk::new(memory.clone());
    let how = options(Kind::Spindle, 64);
    let other = self::pool();
    let second = Cache::create(other.clone(), disk(), Arc::new(Bind), &how);
    assert!(matches!(second, Err(CacheError::Unbound(_))));
    // A cache of another disk of the same name, which was dirty when that was copied.
    let copy = Disk::new(self::memory());
    let opened = Cache::open(pool.clone(), copy, Arc::new(Bind));
    let Err(CacheError::Unbound(what)) = opened else {
        panic!("the disk is not marked, and the cache has a block for it");
    };
    assert!(
        what.contains("lacks") || what.contains("says it has all"),
        "{what}"
    );
    let cache = Cache::open(pool.clone(), disk(), Arc::new(Bind)).expect("it is bound");
    cache.detach().expect("written");
    assert_eq!(memory.contents()[(5 * BLOCK) as usize], 1);
    let detached = Cache::open(pool.clone(), disk(), Arc::new(Bind));
    assert!(matches!(detached, Err(CacheError::Unbound(_))));
    Cache::attach(pool, disk(), Arc::new(Bind)).expect("it is free");
}

#[test]
fn a_cache_is_resized_within_its_memory() {
    for kind in [Kind::Spindle, Kind::Tinca] {
        let (pool, memory, cache) = cache(kind, 64);
        let all = cache.status().blocks;
        cache.set_through(true).expect("switched");
        cache.commit(write(Class::Data, 5..9, 1)).expect("it fits");
        let resize = |cache: Arc<Cache>, len| Arc::into_inner(cache).expect("one").resize(len);
        let open = || {
            let disk = Disk::new(memory.clone());
            Arc::new(Cache::open(pool.clone(), disk, Arc::new(Bind)).expect("it is bound"))
        };
        // What is refused changes nothing.
        let refused = resize(cache, POOL_LEN + 1);
        assert!(matches!(refused, Err(CacheError::Unbound(_))));
        let refused = resize(open(), 1000);
        assert!(matches!(refused, Err(CacheError::TooSmall { .. })));
        assert_eq!(open().status().cached, 5);
        let small = resize(open(), 400 << 10).expect("it fits");
        let status = small.status();
        assert!(status.blocks < all / 4 && status.cached == 0, "{status:?}");
        assert!(status.is_through && status.kind == kind);
        assert_eq!(memory.contents()[(5 * BLOCK) as usize], 1);
        assert_eq!(Bind.marked(&memory.contents()), None);
        small.commit(write(Class::Data, 5..9, 2)).expect("it fits");
        drop(small);
        assert_eq!(open().status().blocks, status.blocks);
        let large = resize(open(), POOL_LEN).expect("it fits");
        assert_eq!(large.status().blocks, all);
        assert_eq!(memory.contents()[(5 * BLOCK) as usize], 2);
    }
}

#[test]
fn write_through_leaves_nothing_dirty_but_the_mark() {
    let (pool, memory, cache) = cache(Kind::Spindle, 64);
    cache.set_through(true).expect("switched");
    cache.commit(write(Class::Data, 5..50, 1)).expect("it fits");
    assert_eq!(memory.contents()[(49 * BLOCK) as usize], 1);
    assert_eq!(cache.status().dirty, 1);
    drop(cache);
    let again = Cache::open(pool, Disk::new(memory), Arc::new(Bind)).expect("it is bound");
    assert!(again.status().is_through);
}

fn new(blocks: impl IntoIterator<Item = u64>, byte: u8) -> Transaction {
    let mut transaction = Transaction::default();
    for block in blocks {
        transaction.write_new(block * BLOCK, &[byte; BLOCK as usize]);
    }
    transaction
}

/// The first byte of each of some blocks, as they are read.
fn bytes(cache: &Cache, blocks: std::ops::Range<u64>) -> Vec<u8> {
    let mut read = vec![0; ((blocks.end - blocks.start) * BLOCK) as usize];
    cache.read(blocks.start * BLOCK, &mut read).expect("read");
    read.into_iter().step_by(BLOCK as usize).collect()
}

#[test]
fn large_runs_of_new_blocks_go_past_the_cache() {
    for kind in [Kind::Spindle, Kind::Tinca] {
        let (_, memory, cache) = cache(kind, 64);
        let on_disk = |block: u64| memory.contents()[(block * BLOCK) as usize];
        let commit = |transaction| cache.commit(transaction).expect("it fits");
        commit(new(10..20, 1));
        assert_eq!((cache.status().past, on_disk(10)), (0, 0), "not asked for");
        cache.set_bypass(4 * BLOCK);
        let mut transaction = new(30..40, 2);
        // Too few neighbours; and what may be in use.
        transaction.write_new(50 * BLOCK, &[2; 3 * BLOCK as usize]);
        transaction.write(Class::Data, 60 * BLOCK, &[2; 10 * BLOCK as usize]);
        commit(transaction);
        assert_eq!(cache.status().past, 10);
        assert!((30..40).all(|block| on_disk(block) == 2));
        assert_eq!((on_disk(50), on_disk(60)), (0, 0));
        // An older block that is cached, and perhaps dirty, stays the only place.
        commit(new(10..20, 3));
        assert_eq!((cache.status().past, on_disk(10)), (10, 0));
        // A part of a block that shares it with others.
        let mut transaction = new(81..84, 4);
        transaction.write_new(80 * BLOCK, &[4; 2048]);
        transaction.write(Class::Data, 80 * BLOCK + 2048, &[4; 2048]);
        commit(transaction);
        assert_eq!(cache.status().past, 10);
        let expected = [vec![3; 10], vec![0; 10], vec![2; 10]].concat();
        assert_eq!(bytes(&cache, 10..40), expected);
        // More of them than the cache could take.
        commit(new(500..1500, 5));
        assert_eq!(cache.status().past, 1010);
        cache.flush().expect("written");
        assert!((500..1500).all(|block| on_disk(block) == 5));
        assert!((10..20).all(|block| on_disk(block) == 3));
    }
}

#[test]
fn what_is_read_is_kept_as_long_as_clean_blocks_make_way() {
    let (pool, memory, cache) = cache(Kind::Spindle, 64);
    cache.commit(write(Class::Data, 1..60, 1)).expect("it fits");
    cache
        .commit(write(Class::Metadata, 60..90, 1))
        .expect("it fits");
    bytes(&cache, 100..110);
    assert_eq!(cache.status().reads_kept, 0, "not asked for");
    cache.keep_reads(true);
    cache.set_bypass(100 * BLOCK);
    bytes(&cache, 100..110);
    bytes(&cache, 200..300);
    let kept = cache.status();
    assert_eq!((kept.reads_kept, kept.cached), (10, 100));
    bytes(&cache, 100..110);
    assert_eq!(cache.status().hits, kept.hits + 10);
    // What is metadata then is changed in place, as it is there.
    let written = |status: &cache::Status| status.blocks_written.iter().sum::<u64>();
    let blocks = written(&cache.status());
    cache.commit(touch(100..110, 0, 7)).expect("it fits");
    let status = cache.status();
    assert_eq!((written(&status), status.units), (blocks, 10));
    assert_eq!(status.metadata, 30 + 10 + 1);
    // All of the disk, which is four times as large: what the disk lacks stays.
    cache.set_bypass(0);
    let dirty = cache.status().dirty;
    for first in (0..DISK_BLOCKS).step_by(50) {
        bytes(&cache, first..first + 50);
    }
    let status = cache.status();
    assert_eq!(status.dirty, dirty);
    assert!(
        status.evictions > 1000 && status.reads_kept > 1500,
        "{status:?}"
    );
    // The next life finds them: the disk was marked all the time.
    drop(cache);
    let disk = Disk::new(memory.clone());
    let cache = Cache::open(pool.clone(), disk, Arc::new(Bind)).expect("it is bound");
    assert_eq!(cache.status().cached, status.cached);
    bytes(&cache, 1900..1950);
    assert_eq!(cache.status().hits, 50);
    cache.flush().expect("written");
    drop(cache);
    // And forgets them if it was not: somebody else may have had the disk.
    let cache = Cache::open(pool, Disk::new(memory), Arc::new(Bind)).expect("it is bound");
    assert_eq!(cache.status().cached, 0);
}

/// Lets the next read of a disk wait when it has what it is for.
struct SlowDisk {
    memory: Arc<Memory>,
    waits: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Immediate for SlowDisk {
    fn info(&self) -> &Info {
        self.memory.info()
    }

    fn events(&self) -> &Events {
        self.memory.events()
    }

    fn run(&self, request: &mut Request) -> Result<(), Errno> {
        self.memory.run(request)?;
        if let Request::Read { .. } = request
            && let Some((here, go)) = self.waits.lock().expect("nobody panicked").take()
        {
            here.send(()).expect("somebody listens");
            go.recv().expect("somebody lets it go on");
        }
        Ok(())
    }
}

/// What was read from the disk before a transaction is neither returned behind it nor kept: not of
/// blocks that went past the cache, nor of those that did not.
#[test]
fn what_was_read_before_a_commit_is_not_kept_behind_it() {
    for is_past in [true, false] {
        let memory = memory();
        let (here, is_here) = mpsc::channel();
        let (go, may_go) = mpsc::channel();
        let device = Arc::new(SlowDisk {
            memory,
            waits: Mutex::default(),
        });
        let disk = Disk::new(device.clone());
        let made = Cache::create(pool(), disk, Arc::new(Bind), &options(Kind::Spindle, 64));
        let cache = Arc::new(made.expect("it fits"));
        cache.keep_reads(true);
        cache.commit(write(Class::Data, [1], 1)).expect("it fits");
        *device.waits.lock().expect("nobody panicked") = Some((here, may_go));
        let reader = {
            let cache = cache.clone();
            std::thread::spawn(move || bytes(&cache, 100..104))
        };
        is_here.recv_timeout(PATIENCE).expect("it reads");
        cache.set_bypass(u64::from(is_past) * BLOCK);
        cache.commit(new(100..104, 5)).expect("it fits");
        assert_eq!(cache.status().past, u64::from(is_past) * 4);
        go.send(()).expect("it waits");
        assert_eq!(reader.join().expect("it ends"), [5; 4]);
        assert_eq!(bytes(&cache, 100..104), [5; 4]);
    }
}

/// What is written through the device is what is read, whatever is replaced meanwhile, and whether
/// what is read is kept or not.
#[test]
fn the_device_is_the_disk() {
    [false, true]
        .into_iter()
        .for_each(the_device_is_the_disk_if);
}

fn the_device_is_the_disk_if(keeps_reads: bool) {
    let (_, memory, cache) = cache(Kind::Spindle, 64);
    cache.keep_reads(keeps_reads);
    let device = Disk::new(Arc::new(Cached::new(cache.clone())));
    let mut random = Random::new(1);
    let mut model = memory.contents();
    for _ in 0..400 {
        let at = 512 * (1 + random.below(DISK_BLOCKS * 8 - 40));
        let len = 512 * (1 + random.below(39)) as usize;
        let byte = random.number() as u8;
        if random.one_in(2) {
            let from = vec![block::Buffer::copy_of(&vec![byte; len])];
            device.write(at, from).expect("written");
            model[at as usize..][..len].fill(byte);
        } else {
            let read = device.read(at, vec![block::Buffer::zeroed(len)]);
            assert_eq!(read.expect("read")[0][..], model[at as usize..][..len]);
        }
    }
    cache.flush().expect("written");
    assert!(memory.contents() == model);
}

/// A disk that fails loses nothing that was committed: it stays in the cache, which refuses more
/// when it is full of that.
#[test]
fn what_a_failing_disk_lacks_stays_in_the_cache() {
    let (pool, memory, cache) = cache(Kind::Spindle, 64);
    cache
        .commit(write(Class::Data, 1..100, 1))
        .expect("it fits");
    drop(cache);
    let device = Arc::new(Faults::new(memory.clone()));
    let disk = Disk::new(device.clone());
    let cache = Cache::open(pool.clone(), disk, Arc::new(Bind)).expect("it is bound");
    device.plan(device.seen().len(), Fault::Fail(rustix::io::Errno::IO));
    assert!(matches!(cache.flush(), Err(CacheError::Disk(_))));
    let mut committed = 0;
    let refused = loop {
        match cache.commit(write(Class::Data, [200 + committed], 2)) {
            Ok(()) => committed += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, CacheError::Disk(_)), "{refused}");
    assert!(committed > 100, "{committed}");
    drop(cache);
    let disk = Disk::new(memory.clone());
    let cache = Cache::open(pool, disk, Arc::new(Bind)).expect("it is bound");
    cache.flush().expect("written");
    let contents = memory.contents();
    let byte = |block: u64| contents[(block * BLOCK) as usize];
    assert!((1..100).all(|block| byte(block) == 1));
    assert!((200..200 + committed).all(|block| byte(block) == 2));
}

/// Syncs of a memory that is a file, of which one fails.
struct FailsAt(Mutex<Option<u64>>);

impl Syncer for FailsAt {
    fn sync(&self, _: u64, _: u64, medium: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
        let mut left = self.0.lock().expect("nobody panicked");
        match &mut *left {
            Some(0) => return Err(io::Error::from_raw_os_error(5)),
            Some(left) => *left -= 1,
            None => {}
        }
        medium()
    }
}

/// Whichever sync of a commit fails, nobody is told that it is durable, readers have what was
/// committed before, and no later commit is good. The next life has that transaction or not, whole.
#[test]
fn a_memory_that_fails_takes_no_more() {
    for (kind, syncs) in [(Kind::Spindle, 3), (Kind::Tinca, 9)] {
        for fails_at in 0..syncs {
            let syncer = Arc::new(FailsAt(Mutex::default()));
            let options_of_pool = Options {
                domain: Some(Domain::Page),
                syncer: Some(syncer.clone()),
                ..Options::default()
            };
            let pool = Arc::new(Pool::anonymous(POOL_LEN, &options_of_pool).expect("memory"));
            let memory = memory();
            let disk = || Disk::new(memory.clone());
            let made = Cache::create(pool.clone(), disk(), Arc::new(Bind), &options(kind, 64));
            let cache = made.expect("it fits");
            let commit = |byte| {
                let mut transaction = touch(20..21, 1, byte);
                transaction.write(Class::Data, 10 * BLOCK, &[byte; BLOCK as usize]);
                cache.commit(transaction)
            };
            commit(1).expect("it fits");
            *syncer.0.lock().expect("nobody panicked") = Some(fails_at);
            for byte in [2, 3] {
                let refused = commit(byte);
                assert!(matches!(refused, Err(CacheError::Medium(_))), "{refused:?}");
            }
            let of = |cache: &Cache| {
                let mut line = [0; 1024];
                cache.read(20 * BLOCK + 512, &mut line).expect("read");
                [bytes(cache, 10..11)[0], line[140]]
            };
            assert_eq!(of(&cache), [1, 1], "{kind}, sync {fails_at}");
            assert!(cache.flush().is_err());
            let options = Options {
                domain: Some(Domain::Line),
                ..Options::default()
            };
            let pool = Arc::new(Pool::from_bytes(&pool.snapshot(), &options).expect("memory"));
            let cache = Cache::open(pool, disk(), Arc::new(Bind)).expect("it is bound");
            let found = of(&cache);
            assert!([[1, 1], [2, 2]].contains(&found), "{found:?}");
        }
    }
}

/// Threads commit blocks of their own in transactions of equal bytes, others read them: each is
/// seen whole, also while it is written out and replaced.
#[test]
fn threads_see_transactions_as_wholes() {
    let (_, _, cache) = cache(Kind::Spindle, 64);
    let writer = cache::Writer::start(cache.clone()).expect("a thread");
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let cache = cache.clone();
            scope.spawn(move || {
                let first = 10 + thread * 900;
                for round in 0..600 {
                    let at = first + round % 80 * 10;
                    let byte = (round / 80) as u8 + 1;
                    let class = [Class::Data, Class::Metadata][round as usize % 2];
                    cache
                        .commit(write(class, at..at + 10, byte))
                        .expect("it fits");
                    let mut read = vec![0; 10 * BLOCK as usize];
                    cache.read(at * BLOCK, &mut read).expect("read");
                    assert!(read.iter().all(|&found| found == byte), "block {at}");
                }
            });
        }
    });
    drop(writer);
    cache.flush().expect("written");
    assert!(cache.status().evictions > 0);
}

/// Lets the fences of a pool wait, if it is told to, and says when one does.
#[derive(Default)]
struct Gate {
    waits: Mutex<Option<(Sender<At>, Receiver<()>)>>,
}

/// Where who commits is.
#[derive(Debug, PartialEq, Eq)]
enum At {
    Fence,
    End,
}

impl Recorder for Gate {
    fn store(&self, _: u64, _: &[u8], _: StoreKind) {}
    fn flush(&self, _: u64, _: u64) {}
    fn mark(&self, _: &str) {}

    fn fence(&self) {
        let waits = self.waits.lock().expect("nobody panicked");
        if let Some((here, go)) = &*waits {
            here.send(At::Fence).expect("somebody listens");
            go.recv().expect("somebody lets it go on");
        }
    }
}

/// At each fence of a commit, readers find what was committed before: blocks that are replaced, and
/// changed in place, and freed, and made, and others, in the cache and on the disk.
#[test]
fn nobody_who_reads_waits_for_a_commit() {
    for kind in [Kind::Spindle, Kind::Tinca] {
        let gate = Arc::new(Gate::default());
        let options_of_pool = Options {
            domain: Some(Domain::Line),
            recorder: Some(gate.clone()),
            ..Options::default()
        };
        let pool = Arc::new(Pool::anonymous(POOL_LEN, &options_of_pool).expect("memory"));
        let disk = Disk::new(memory());
        let made = Cache::create(pool, disk, Arc::new(Bind), &options(kind, 64));
        let cache = Arc::new(made.expect("it fits"));
        cache
            .commit(write(Class::Data, 10..20, 1))
            .expect("it fits");
        cache
            .commit(write(Class::Metadata, 20..30, 1))
            .expect("it fits");
        let (here, is_here) = mpsc::channel();
        let (go, may_go) = mpsc::channel();
        *gate.waits.lock().expect("nobody panicked") = Some((here.clone(), may_go));
        let mut transaction = touch(20..30, 1, 2);
        transaction.write(Class::Data, 10 * BLOCK, &[2; 5 * BLOCK as usize]);
        transaction.write(Class::Data, 40 * BLOCK, &[2; 5 * BLOCK as usize]);
        transaction.free(19);
        let committing = {
            let cache = cache.clone();
            std::thread::spawn(move || {
                cache.commit(transaction).expect("it fits");
                let _ = here.send(At::End);
            })
        };
        let mut fences = 0;
        while is_here.recv_timeout(PATIENCE).expect("it goes on") == At::Fence {
            let (read, has_read) = mpsc::channel();
            let cache = cache.clone();
            let _reader = std::thread::spawn(move || {
                let mut found = vec![0; 60 * BLOCK as usize];
                cache.read(0, &mut found).expect("read");
                let _ = read.send(found);
            });
            let found = has_read
                .recv_timeout(PATIENCE)
                .expect("it waits for nobody");
            let byte = |block: u64, at: u64| found[(block * BLOCK + at) as usize];
            assert!((10..30).all(|block| byte(block, 0) == 1 && byte(block, 650) == 1));
            assert!((40..45).all(|block| byte(block, 0) == 0));
            fences += 1;
            go.send(()).expect("it waits");
        }
        assert!(fences >= 3, "{fences}");
        committing.join().expect("it ends");
    }
}

/// What the disk gets while a commit is under way is what was before. It does not make clean what
/// that changes, whether by a copy or in place.
#[test]
fn what_is_written_out_during_a_commit_stays_dirty() {
    for fence in 0..3 {
        let gate = Arc::new(Gate::default());
        let options_of_pool = Options {
            domain: Some(Domain::Line),
            recorder: Some(gate.clone()),
            ..Options::default()
        };
        let pool = Arc::new(Pool::anonymous(POOL_LEN, &options_of_pool).expect("memory"));
        let memory = memory();
        let disk = Disk::new(memory.clone());
        let made = Cache::create(pool, disk, Arc::new(Bind), &options(Kind::Spindle, 64));
        let cache = Arc::new(made.expect("it fits"));
        let commit = |transaction| cache.commit(transaction).expect("it fits");
        commit(write(Class::Data, 10..20, 1));
        commit(write(Class::Metadata, 20..30, 1));
        commit(write(Class::Data, 100..100 + cache.status().blocks / 2, 1));
        let (here, is_here) = mpsc::channel();
        let (go, may_go) = mpsc::channel();
        *gate.waits.lock().expect("nobody panicked") = Some((here.clone(), may_go));
        let mut transaction = touch(20..30, 1, 2);
        transaction.write(Class::Data, 10 * BLOCK, &[2; 10 * BLOCK as usize]);
        let committing = {
            let cache = cache.clone();
            std::thread::spawn(move || {
                cache.commit(transaction).expect("it fits");
                let _ = here.send(At::End);
            })
        };
        let mut writer = None;
        for at in 0.. {
            if is_here.recv_timeout(PATIENCE).expect("it goes on") == At::End {
                break;
            }
            if at == fence {
                let flushes = || cache.disk().stats().flushes;
                let before = flushes();
                writer = cache::Writer::start(cache.clone()).ok();
                let begin = std::time::Instant::now();
                while flushes() == before {
                    assert!(begin.elapsed() < PATIENCE, "it does not write");
                    std::thread::sleep(Duration::from_millis(1));
                }
                // So that it has most likely come to what is clean.
                std::thread::sleep(Duration::from_millis(20));
            }
            go.send(()).expect("it waits");
        }
        assert!(writer.is_some(), "fence {fence}");
        *gate.waits.lock().expect("nobody panicked") = None;
        committing.join().expect("it ends");
        drop(writer);
        cache.flush().expect("written");
        let contents = memory.contents();
        let byte = |block: u64, at: u64| contents[(block * BLOCK + at) as usize];
        assert!((10..20).all(|block| byte(block, 0) == 2), "fence {fence}");
        assert!((20..30).all(|block| byte(block, 650) == 2), "fence {fence}");
    }
}

/// Whatever the memory holds, it is opened or refused, and what is opened can be read and used.
#[test]
fn hostile_contents_are_refused_or_used() {
    let count = match std::env::var("TUREEN_SEEDS") {
        Ok(count) => count.parse().expect("TUREEN_SEEDS"),
        Err(_) => 300,
    };
    let (mut refused, mut opened) = (0, 0);
    for kind in [Kind::Spindle, Kind::Tinca] {
        let (pool, memory, cache) = cache(kind, 64);
        cache.commit(write(Class::Data, 1..60, 1)).expect("it fits");
        cache.commit(touch(60..100, 1, 2)).expect("it fits");
        drop(cache);
        let (image, disk) = (pool.snapshot(), memory.contents());
        for seed in 0..count {
            let mut random = Random::new(seed);
            let mut image = image.clone();
            // What is before the blocks: the first tenth.
            for _ in 0..1 + random.below(20) {
                let at = match random.below(3) {
                    0 => BLOCK + random.below(16),
                    1 => random.below(128),
                    _ => random.below(POOL_LEN / 10),
                };
                image[at as usize] ^= 1 << random.below(8);
            }
            let options = Options {
                domain: Some(Domain::Line),
                ..Options::default()
            };
            let pool = Arc::new(Pool::from_bytes(&image, &options).expect("memory"));
            let disk = Disk::new(Arc::new(Memory::from_bytes(disk.clone())));
            let Ok(cache) = Cache::open(pool, disk, Arc::new(Bind)) else {
                refused += 1;
                continue;
            };
            opened += 1;
            let mut read = vec![0; 200 * BLOCK as usize];
            cache.read(0, &mut read).expect("read");
            cache
                .commit(write(Class::Metadata, 1..90, 9))
                .expect("it fits");
            cache.flush().expect("written");
        }
    }
    assert!(refused > 0 && opened > 0, "{refused} {opened}");
}
