//! A cache by itself: what it costs, what it refuses, threads, a failing disk, hostile contents.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use block::{Disk, Fault, Faults, Memory, Random};
use cache::testing::Bind;
use cache::{BLOCK, Binding, Cache, CacheError, Cached, Class, CreateOptions, Kind, Transaction};
use pmem::{Domain, Options, Pool, Recorder, StoreKind};

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

/// What is written through the device is what is read, whatever is replaced meanwhile.
#[test]
fn the_device_is_the_disk() {
    let (_, memory, cache) = cache(Kind::Spindle, 64);
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
