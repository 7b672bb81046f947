//! A process that had the disk before was killed, perhaps as it took the mark from it: what it
//! wrote is visible, and a power cut may take it away (B9). Whoever makes or attaches a cache
//! relies on it.

use std::sync::{Arc, Mutex};

use block::record::State;
use block::{Buffer, Disk, Memory, Recorder as DiskRecorder};
use cache::testing::Bind;
use cache::{BLOCK, Binding, Cache, Class, CreateOptions, Kind, Transaction};
use pmem::{Domain, Options, Pool, Recorder, StoreKind};

const DISK_BLOCKS: u64 = 100;
const POOL_LEN: u64 = 80 * BLOCK;

fn options() -> CreateOptions {
    CreateOptions {
        kind: Kind::Spindle,
        uuid: [9; 16],
        unit: 64,
        metadata: 8 * BLOCK,
    }
}

fn disk() -> Arc<DiskRecorder> {
    let mut bytes = vec![0; (DISK_BLOCKS * BLOCK) as usize];
    Bind::label(&mut bytes);
    let memory = Arc::new(Memory::from_bytes(bytes));
    let trace = block::record::Trace::new(memory.contents());
    Arc::new(DiskRecorder::resume(memory, trace))
}

fn memory(bytes: &[u8], recorder: Option<Arc<dyn Recorder>>) -> Arc<Pool> {
    let options = Options {
        domain: Some(Domain::Line),
        recorder,
        ..Options::default()
    };
    Arc::new(Pool::from_bytes(bytes, &options).expect("memory"))
}

/// A disk as a killed process left it, of which the last flush has not been: a cache was before it,
/// and has given it all, and the memory of that.
fn unmarked() -> (Arc<DiskRecorder>, Vec<u8>) {
    let recorder = disk();
    let pool = memory(&vec![0; POOL_LEN as usize], None);
    let with = Disk::new(recorder.clone());
    let cache = Cache::create(pool.clone(), with, Arc::new(Bind), &options()).expect("it fits");
    let mut transaction = Transaction::default();
    transaction.write(Class::Data, 5 * BLOCK, &[0xaa; BLOCK as usize]);
    cache.commit(transaction).expect("it is committed");
    cache.flush().expect("the disk has all");
    drop(cache);
    let trace = recorder.trace();
    let flush = block::record::Event::Submitted(block::record::Change::Flush);
    let last = trace.events.iter().rposition(|event| *event == flush);
    let trace = trace.before(last.expect("there are some"));
    let visible = trace.crash(trace.events.len()).image(State::Newest);
    let visible = Memory::from_bytes(visible.expect("there is one"));
    let recorder = DiskRecorder::resume(Arc::new(visible), trace);
    (Arc::new(recorder), pool.snapshot())
}

/// Whether a power cut may leave a disk that says that it lacks what a cache has.
fn may_be_marked(disk: &DiskRecorder) -> bool {
    let trace = disk.trace();
    let crash = trace.crash(trace.events.len());
    let oldest = crash.image(State::Oldest).expect("there is one");
    Bind.marked(&oldest).is_some()
}

/// Notes of each store to a memory whether the disk may be marked then.
struct Watch {
    disk: Arc<DiskRecorder>,
    marked: Mutex<Vec<bool>>,
}

impl Recorder for Watch {
    fn store(&self, _: u64, _: &[u8], _: StoreKind) {
        let marked = may_be_marked(&self.disk);
        self.marked.lock().expect("nobody panicked").push(marked);
    }
    fn flush(&self, _: u64, _: u64) {}
    fn fence(&self) {}
    fn mark(&self, _: &str) {}
}

/// The cache was made over the old one first, and the disk flushed then: a power cut in between
/// left a disk that only the old one could have unmarked.
#[test]
fn a_disk_is_durably_unmarked_before_a_cache_is_made_over_the_one_that_it_had() {
    let (disk, bytes) = unmarked();
    assert!(may_be_marked(&disk), "nothing is to be seen without that");
    let watch = Arc::new(Watch {
        disk: disk.clone(),
        marked: Mutex::default(),
    });
    let pool = memory(&bytes, Some(watch.clone()));
    let with = Disk::new(disk);
    Cache::create(pool, with, Arc::new(Bind), &options()).expect("it fits");
    let marked = watch.marked.lock().expect("nobody panicked");
    assert!(!marked.is_empty() && !marked.contains(&true), "{marked:?}");
}

/// Likewise before one that is detached belongs to the disk.
#[test]
fn a_disk_is_durably_unmarked_before_a_cache_is_attached() {
    let (disk, _) = unmarked();
    assert!(may_be_marked(&disk), "nothing is to be seen without that");
    let pool = memory(&vec![0; POOL_LEN as usize], None);
    let other = Disk::new(self::disk());
    let detached = Cache::create(pool.clone(), other, Arc::new(Bind), &options());
    detached.and_then(Cache::detach).expect("it is detached");
    let watch = Arc::new(Watch {
        disk: disk.clone(),
        marked: Mutex::default(),
    });
    let pool = memory(&pool.snapshot(), Some(watch.clone()));
    Cache::attach(pool, Disk::new(disk), Arc::new(Bind)).expect("it is attached");
    let marked = watch.marked.lock().expect("nobody panicked");
    assert!(!marked.is_empty() && !marked.contains(&true), "{marked:?}");
}

/// What a process wrote to the disk alone, and had not flushed when it was killed, is durable
/// before a commit relies on it.
#[test]
fn what_was_written_to_the_disk_alone_is_durable_when_a_cache_is_made() {
    let recorder = disk();
    let alone = Disk::new(recorder.clone());
    let written = Buffer::copy_of(&[0xbb; BLOCK as usize]);
    alone
        .write(6 * BLOCK, vec![written])
        .expect("it is written");
    let oldest = |recorder: &DiskRecorder| {
        let trace = recorder.trace();
        let crash = trace.crash(trace.events.len());
        crash.image(State::Oldest).expect("there is one")[6 * BLOCK as usize]
    };
    assert_eq!(oldest(&recorder), 0, "nothing is to be seen without that");
    let pool = memory(&vec![0; POOL_LEN as usize], None);
    let with = Disk::new(recorder.clone());
    Cache::create(pool, with, Arc::new(Bind), &options()).expect("it fits");
    assert_eq!(oldest(&recorder), 0xbb);
}
