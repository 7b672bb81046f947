//! Two lives: a process is killed, the next one recovers from what is visible, and a power cut
//! takes back what was not durable (M15).

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;
use pmem::{Domain, Journal, LINE, Options, Pool, PoolError, Recorder, StoreKind, Syncer};

const L: usize = LINE as usize;

/// What everybody sees, and what a power cut leaves at least.
#[derive(Clone, Default)]
struct State {
    visible: Vec<u8>,
    durable: Vec<u8>,
    /// Lines as they were when they were flushed, until the next fence.
    flushed: HashMap<usize, Vec<u8>>,
    /// Lines stored to since the last fence: a power cut may leave them as they are visible.
    ahead: BTreeSet<usize>,
}

/// A medium of domain `line`, with its state after each event.
struct Medium {
    state: Mutex<(State, Vec<(String, State)>)>,
    deaf: Deaf,
}

/// What does nothing before a life's first store, where recovery makes durable what it has read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deaf {
    No,
    Flush,
    Fence,
}

impl Medium {
    /// What a process leaves for the next one.
    fn after(state: &State, deaf: Deaf) -> Arc<Medium> {
        let state = State {
            flushed: HashMap::new(),
            ahead: BTreeSet::new(),
            ..state.clone()
        };
        let state = Mutex::new((state, Vec::new()));
        Arc::new(Medium { state, deaf })
    }

    fn pool(self: &Arc<Medium>) -> Arc<Pool> {
        let visible = self.state.lock().0.visible.clone();
        memory(&visible, Some(self.clone()))
    }

    fn event(&self, what: String, change: impl FnOnce(&mut State)) {
        let (state, history) = &mut *self.state.lock();
        change(state);
        history.push((what, state.clone()));
    }

    fn is_deaf(&self, to: Deaf) -> bool {
        let is_store = |event: &(String, State)| event.0.starts_with("store");
        self.deaf == to && !self.state.lock().1.iter().any(is_store)
    }

    fn history(&self) -> Vec<(String, State)> {
        self.state.lock().1.clone()
    }
}

impl Recorder for Medium {
    fn store(&self, off: u64, bytes: &[u8], _: StoreKind) {
        let (off, end) = (off as usize, off as usize + bytes.len());
        self.event(format!("store {off}"), |state| {
            state.visible[off..end].copy_from_slice(bytes);
            state.ahead.extend(off / L..end.div_ceil(L));
        });
    }

    fn flush(&self, off: u64, len: u64) {
        let lines = off as usize / L..(off + len).div_ceil(LINE) as usize;
        let deaf = self.is_deaf(Deaf::Flush);
        self.event(format!("flush {off}"), |state| {
            for line in lines.filter(|_| !deaf) {
                let bytes = state.visible[line * L..][..L].to_vec();
                state.flushed.insert(line, bytes);
            }
        });
    }

    fn fence(&self) {
        let deaf = self.is_deaf(Deaf::Fence);
        self.event("fence".to_owned(), |state| {
            if deaf {
                return;
            }
            for (line, bytes) in std::mem::take(&mut state.flushed) {
                state.durable[line * L..][..L].copy_from_slice(&bytes);
            }
            state.ahead.clear();
        });
    }

    fn mark(&self, _: &str) {}
}

fn memory(bytes: &[u8], recorder: Option<Arc<dyn Recorder>>) -> Arc<Pool> {
    let options = Options {
        domain: Some(Domain::Line),
        recorder,
        ..Options::default()
    };
    Arc::new(Pool::from_bytes(bytes, &options).expect("memory"))
}

const AREA: u64 = 128;
const AREA_LEN: u64 = 18 * LINE;
const A: u64 = 4096;
const B: u64 = 4096 + 64;
const C: u64 = 4096 + 128;
const D: u64 = 4096 + 192;

fn recover(pool: &Arc<Pool>) -> Journal {
    Journal::recover(pool, AREA, AREA_LEN, |_| true)
        .expect("journal")
        .0
}

/// The words that a power cut leaves, once recovered.
fn after_power_cut(image: &[u8]) -> [u64; 4] {
    let pool = memory(image, None);
    recover(&pool);
    [A, B, C, D].map(|word| pool.load(word))
}

/// What is there after each event of a life that commits several transactions, some of one word.
/// They leave A and B, and C and D, alike.
fn first_life() -> Vec<(String, State)> {
    let pool = Pool::anonymous(8192, &Options::default()).expect("memory");
    Journal::format(&pool, AREA, AREA_LEN);
    let start = pool.snapshot();
    let start = State {
        visible: start.clone(),
        durable: start,
        ..State::default()
    };
    let medium = Medium::after(&start, Deaf::No);
    let mut journal = recover(&medium.pool());
    for words in [
        &[(A, 1), (B, 1)][..],
        &[],
        &[(C, 2), (D, 2)],
        &[(A, 3)],
        &[(B, 3)],
        &[(C, 4), (D, 4)],
    ] {
        match words {
            [] => journal.checkpoint().expect("checkpoint"),
            words => {
                journal.commit(words).expect("commit");
            }
        }
    }
    medium.history()
}

/// Kill, recover, power cut in the recovery: whether a half of a transaction is left.
fn recover_and_cut(deaf: Deaf) -> Result<(), String> {
    for (killed, left) in first_life() {
        let medium = Medium::after(&left, deaf);
        let pool = medium.pool();
        recover(&pool);
        for (cut, state) in medium.history() {
            // What is durable, and any one of the other lines as it is visible.
            for ahead in state.ahead.iter().map(Some).chain([None]) {
                let mut image = state.durable.clone();
                if let Some(&line) = ahead {
                    image[line * L..][..L].copy_from_slice(&state.visible[line * L..][..L]);
                }
                let [_, _, c, d] = after_power_cut(&image);
                if c != d {
                    return Err(format!(
                        "killed after {killed}, power cut after {cut}: {c} {d}"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Kill, recover, commit, power cut: whether anything that the second life saw or committed is
/// undone.
fn commit_and_cut(deaf: Deaf) -> Result<(), String> {
    for (killed, left) in first_life() {
        let medium = Medium::after(&left, deaf);
        let pool = medium.pool();
        let mut journal = recover(&pool);
        let mut expected = [A, B, C, D].map(|word| pool.load(word));
        for (i, word) in [A, B, C, D].into_iter().enumerate() {
            expected[i] = 9;
            journal.commit(&[(word, 9)]).expect("commit");
            let found = after_power_cut(&medium.state.lock().0.durable);
            if found != expected {
                return Err(format!(
                    "killed after {killed}: {found:?}, not {expected:?}"
                ));
            }
        }
    }
    Ok(())
}

/// Kill, recover, use a word for something else, power cut: whether an old record is replayed over
/// it.
fn reuse_and_cut(deaf: Deaf) -> Result<(), String> {
    for (killed, left) in first_life() {
        let medium = Medium::after(&left, deaf);
        let pool = medium.pool();
        recover(&pool);
        for word in [A, B, C, D] {
            pool.store(word, 7);
            pool.flush(word, 8);
        }
        pool.fence().expect("fence");
        let found = after_power_cut(&medium.state.lock().0.durable);
        if found != [7; 4] {
            return Err(format!("killed after {killed}: {found:?}"));
        }
    }
    Ok(())
}

#[test]
fn what_was_recovered_is_not_replayed_over_what_is_used_for_something_else() {
    assert_eq!(reuse_and_cut(Deaf::No), Ok(()));
}

#[test]
fn a_power_cut_in_the_recovery_after_a_kill_leaves_no_half_of_a_transaction() {
    assert_eq!(recover_and_cut(Deaf::No), Ok(()));
}

#[test]
fn what_the_second_life_saw_or_committed_is_not_undone_by_a_power_cut() {
    assert_eq!(commit_and_cut(Deaf::No), Ok(()));
}

#[test]
fn a_recovery_that_does_not_flush_what_it_has_read_is_caught() {
    for deaf in [Deaf::Flush, Deaf::Fence] {
        assert!(recover_and_cut(deaf).is_err());
    }
    assert!(reuse_and_cut(Deaf::Flush).is_err());
}

/// Counts syncs, and fails if told to.
#[derive(Default)]
struct Disk {
    syncs: AtomicU64,
    bytes: AtomicU64,
    fails: bool,
}

impl Syncer for Disk {
    fn sync(&self, _: u64, len: u64, medium: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
        self.syncs.fetch_add(1, SeqCst);
        self.bytes.fetch_add(len, SeqCst);
        match self.fails {
            true => Err(io::Error::from_raw_os_error(5)),
            false => medium(),
        }
    }
}

/// A file of two pages, removed at the end.
struct Image(PathBuf);

impl Image {
    fn new(name: &str) -> Image {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{name}-{}", std::process::id()));
        std::fs::write(&path, [0; 8192]).expect("a file");
        Image(path)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).expect("it was there");
    }
}

fn file(domain: Domain, read_only: bool, disk: &Arc<Disk>) -> Options {
    Options {
        domain: Some(domain),
        read_only,
        syncer: Some(disk.clone()),
        ..Options::default()
    }
}

#[test]
fn opening_a_file_of_domain_page_syncs_all_of_it_once_also_for_reading() {
    let image = Image::new("synced-at-opening");
    for read_only in [false, true] {
        for (domain, syncs) in [(Domain::Page, 1), (Domain::Line, 0), (Domain::Cache, 0)] {
            let disk = Arc::new(Disk::default());
            let pool = Pool::open(&image.0, &file(domain, read_only, &disk)).expect("opens");
            assert_eq!(disk.syncs.load(SeqCst), syncs, "{domain}");
            assert_eq!(disk.bytes.load(SeqCst), syncs * pool.len(), "{domain}");
        }
    }
}

#[test]
fn an_image_that_cannot_be_synced_is_not_opened() {
    let image = Image::new("not-synced");
    let disk = Arc::new(Disk {
        fails: true,
        ..Disk::default()
    });
    let opened = Pool::open(&image.0, &file(Domain::Page, false, &disk));
    assert!(matches!(opened, Err(PoolError::Io { action, .. }) if action.starts_with("syncing")));
}
