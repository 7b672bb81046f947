//! Two lives: a process is killed, the next one recovers from what is visible, and a power cut
//! takes back what was not durable (M15).

mod crash;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crash::every_crash;
use explorer::medium::{Lines, Medium};
use explorer::scratch::Scratch;
use explorer::trace::{Event, Trace};
use pmem::{Domain, HEAD_LEN, Journal, LINE, Options, PAGE, Pool, PoolError, Recorder, Syncer};
use testing::raw::cached_pages;

/// What a killed process leaves.
struct Left {
    /// After how many events it was killed.
    killed: usize,
    medium: Lines,
    /// What everybody sees, and what is durable for sure.
    visible: Vec<u8>,
    durable: Vec<u8>,
}

/// What does nothing before a life's first store, where recovery makes durable what it has read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deaf {
    No,
    Flush,
    Fence,
}

impl Deaf {
    /// A life's events without those that do nothing.
    fn heard(self, events: Vec<Event>) -> Vec<Event> {
        let is_store = |event: &Event| matches!(event, Event::Store { .. });
        let first = events.iter().position(is_store).unwrap_or(events.len());
        let is_deaf = |event: &Event| match self {
            Deaf::No => false,
            Deaf::Flush => matches!(event, Event::Flush { .. }),
            Deaf::Fence => matches!(event, Event::Fence { .. }),
        };
        let heard = events.into_iter().enumerate();
        let heard = heard.filter(|(at, event)| *at >= first || !is_deaf(event));
        heard.map(|(_, event)| event).collect()
    }
}

/// What a kill after each event leaves, on a medium that starts with this image.
fn kills(start: &[u8], events: &[Event]) -> Vec<Left> {
    let left = |killed: usize| {
        let (mut medium, mut scratch) = (
            Lines::new(Domain::Line, killed as u64),
            Scratch::new(start.to_vec()),
        );
        for event in &events[..killed] {
            medium.apply(event, &mut scratch);
        }
        medium.kill(&mut scratch);
        Left {
            killed,
            visible: scratch.image(&medium.visible()).bytes(),
            durable: scratch.image(&Vec::new()).bytes(),
            medium,
        }
    };
    (0..=events.len()).map(left).collect()
}

impl Left {
    /// The pool that the next process finds.
    fn pool(&self, trace: &Arc<Trace>) -> Arc<Pool> {
        memory(&self.visible, Some(trace.clone()))
    }

    /// Judges the words that each power cut in the next life leaves, once recovered, beside how
    /// many steps of that life had ended, and whether one was under way.
    fn cut(
        &self,
        trace: &Trace,
        deaf: Deaf,
        judge: impl Fn(usize, bool, [u64; 4]) -> bool,
    ) -> Result<(), String> {
        let events = deaf.heard(trace.take().0);
        let medium = self.medium.clone();
        let cut = every_crash(
            Domain::Line,
            medium,
            &self.durable,
            &events,
            |when, image| {
                let words = after_power_cut(image);
                match judge(when.ended, when.begun > when.ended, words) {
                    true => Ok(()),
                    false => Err(format!("{when:?}: {words:?}")),
                }
            },
        );
        match cut {
            Ok(_) => Ok(()),
            Err(what) => Err(format!("killed after {} events, {what}", self.killed)),
        }
    }
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

/// What is left of a life that commits several transactions, some of one word, wherever it is
/// killed. They leave A and B, and C and D, alike.
fn first_life() -> Vec<Left> {
    let pool = Pool::anonymous(8192, &Options::default()).expect("memory");
    Journal::format(&pool, AREA, AREA_LEN);
    let start = pool.snapshot();
    let trace = Trace::new(&[]);
    let mut journal = recover(&memory(&start, Some(trace.clone())));
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
                journal
                    .commit(&words.iter().copied().collect())
                    .expect("commit");
            }
        }
    }
    kills(&start, &trace.take().0)
}

/// Kill, recover, power cut in the recovery: whether a half of a transaction is left.
fn recover_and_cut(deaf: Deaf) -> Result<(), String> {
    for left in first_life() {
        let trace = Trace::new(&[]);
        recover(&left.pool(&trace));
        left.cut(&trace, deaf, |_, _, [_, _, c, d]| c == d)?;
    }
    Ok(())
}

/// Kill, recover, commit, power cut: whether anything that the second life saw or committed is
/// undone.
fn commit_and_cut(deaf: Deaf) -> Result<(), String> {
    for left in first_life() {
        let trace = Trace::new(&[]);
        let pool = left.pool(&trace);
        let mut journal = recover(&pool);
        // What is there after so many commits.
        let mut expected = vec![[A, B, C, D].map(|word| pool.load(word))];
        for (i, word) in [A, B, C, D].into_iter().enumerate() {
            trace.mark(Event::Begin(i + 1));
            journal
                .commit(&[(word, 9)].into_iter().collect())
                .expect("commit");
            trace.mark(Event::End(i + 1));
            let mut next = expected[i];
            next[i] = 9;
            expected.push(next);
        }
        left.cut(&trace, deaf, |ended, under_way, found| {
            let recovering = ended == 0 && !under_way;
            let may_be = &expected[ended..=ended + usize::from(under_way)];
            recovering || may_be.contains(&found)
        })?;
    }
    Ok(())
}

/// Kill, recover, use a word for something else, power cut: whether an old record is replayed over
/// it.
fn reuse_and_cut(deaf: Deaf) -> Result<(), String> {
    for left in first_life() {
        let trace = Trace::new(&[]);
        let pool = left.pool(&trace);
        recover(&pool);
        let recovered = [A, B, C, D].map(|word| pool.load(word));
        trace.mark(Event::Begin(1));
        for word in [A, B, C, D] {
            pool.store(word, 7);
            pool.flush(word, 8);
        }
        pool.fence().expect("fence");
        trace.mark(Event::End(1));
        left.cut(&trace, deaf, |ended, under_way, found| {
            let old_or_new = || {
                found
                    .iter()
                    .zip(recovered)
                    .all(|(&f, old)| f == old || f == 7)
            };
            match (ended, under_way) {
                (0, false) => true,
                (0, true) => old_or_new(),
                _ => found == [7; 4],
            }
        })?;
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
fn what_the_host_caches_of_a_file_is_dropped_at_opening_unless_its_last_user_ended_well() {
    let image = Image::new("dropped-at-opening");
    const PAGES: usize = 1024;
    let bytes: Vec<u8> = (0..PAGES as u64 * PAGE)
        .map(|at| (at / PAGE) as u8)
        .collect();
    std::fs::write(&image.0, &bytes).expect("a file");
    let cached = || cached_pages(&std::fs::File::open(&image.0).expect("a file")).expect("mincore");
    let opened = |domain, ended_well| {
        std::fs::read(&image.0).expect("a file"); // all of it is cached
        let options = Options {
            ended_well,
            ..file(domain, false, &Arc::default())
        };
        let pool = Pool::open(&image.0, &options).expect("opens");
        let kept = cached();
        assert_eq!(pool.snapshot(), bytes);
        kept
    };
    if opened(Domain::Page, |_| false) == PAGES {
        testing::skip!("needs a target directory that does not lie in memory");
    }
    let by_the_head: fn(&[u8]) -> bool = |head| {
        assert_eq!(head.len(), HEAD_LEN);
        head[0] == 0 && head[HEAD_LEN - 1] == 1
    };
    assert_eq!(opened(Domain::Page, |_| false), 0);
    // The head is read anew, and with it what is in one unit of the host's cache.
    let kept = opened(Domain::Page, by_the_head);
    assert!((PAGES / 2..PAGES).contains(&kept), "{kept}");
    for ended_well in [by_the_head, |_| false] {
        assert_eq!(opened(Domain::Line, ended_well), PAGES);
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
