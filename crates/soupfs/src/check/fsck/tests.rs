//! Checks of images made by hand: whole ones, and ones with injected damage, which must be found,
//! repaired, and then gone.

mod build;
mod damage;
mod document;
mod random;

use super::{CheckOptions, Outcome, Replayed, Report, check};
use crate::check::audit::{Problem, audit};
use crate::image::{Image, Source, Superblock};
use crate::layout::*;
use crate::mount::SoupFs;
use crate::options::MountOptions;
use crate::testing::{ends_clean, mount, mounted, new};
use build::Build;
use pmem::{Domain, Journal, Options, Pool, Syncer};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vfs::{FileSystem, Kind, NewKind, SystemClock};

/// A small file system with something of everything.
struct Sample {
    b: Build,
    root: u64,
    sub: u64,
    big: u64,
    file: u64,
    sparse: u64,
    link: u64,
    fifo: u64,
    device: u64,
    tagged: u64,
    hard: u64,
    /// Lines of entries in `root`, by name.
    entries: HashMap<&'static str, u64>,
}

fn sample() -> Sample {
    let mut b = Build::new(8 << 20, 3);
    let root = b.sb.root;
    let mut entries = HashMap::new();
    let (sub, big) = (b.directory(0), b.directory(6));
    let (file, sparse, link) = (b.file(3), b.file(600), b.symlink(b"../target"));
    let (fifo, device) = (b.inode(Kind::Fifo), b.inode(Kind::CharDev));
    b.set(device, inode::ROOT, 0x0103);
    let (tagged, hard) = (b.file(1), b.file(0));
    b.xattr(tagged, b"user.test");
    // A hole, and space reserved behind the end.
    b.set(sparse, inode::SIZE, 590 * 4096 + 5);
    for block in 591..600 {
        let at = b.pointer(sparse, block);
        b.pool.store(at, b.pool.load(at) | index::UNWRITTEN);
    }
    for (name, ino) in [
        ("sub", sub),
        ("big", big),
        ("file", file),
        ("sparse", sparse),
        ("link", link),
        ("fifo", fifo),
        ("device", device),
        ("tagged", tagged),
        ("hard", hard),
    ] {
        entries.insert(name, b.name(root, name.as_bytes(), ino));
    }
    b.name(sub, b"hard too", hard);
    let nested = b.directory(1);
    b.name(sub, &[b'n'; 255], nested);
    let inner = b.file(0);
    b.name(
        nested,
        "ein längerer Name, der nicht hineinpasst".as_bytes(),
        inner,
    );
    for i in 0..3000 {
        let ino = b.file(u64::from(i % 100 == 0));
        b.name(big, format!("file {i}").as_bytes(), ino);
    }
    b.finish(5);
    Sample {
        b,
        root,
        sub,
        big,
        file,
        sparse,
        link,
        fifo,
        device,
        tagged,
        hard,
        entries,
    }
}

fn run(pool: &Arc<Pool>, repair: bool) -> Report {
    let options = CheckOptions { repair, threads: 2 };
    check(pool, &options, &|_| {}).expect("the superblock is there")
}

impl Sample {
    fn entry(&self, name: &str) -> u64 {
        self.entries[name]
    }

    /// The word that leads to an entry of the root.
    fn link_to(&self, line: u64) -> u64 {
        let hash = self.b.get(line, dentry::HASH);
        let mut at = self
            .b
            .bucket(self.root, self.b.home(self.root, hash))
            .unwrap();
        while self.b.pool.load(at) != line {
            at = line_at(self.b.pool.load(at)) + dentry::NEXT;
        }
        at
    }

    /// An entry of `big` that another one follows.
    fn followed(&self) -> u64 {
        (0..bucket::BASE)
            .map(|b| self.b.pool.load(self.b.bucket(self.big, b).unwrap()) & !bucket::EMPTY)
            .find(|&line| line != 0 && self.b.get(line, dentry::NEXT) != 0)
            .expect("a chain of two")
    }

    fn set_bits(&self, page: u64, lines: u64) {
        let (at, bit) = self.b.sb.geometry.page_bit(page);
        self.b.pool.fetch_or(at, bit);
        self.b
            .pool
            .fetch_or(self.b.sb.geometry.line_word(page), lines);
    }

    fn unclean(&self) {
        self.b.pool.store(state::EPOCH, 6);
    }
}

/// Fault damage: a check without repair finds all of `expect` and changes nothing, a repair leaves
/// nothing behind.
fn damaged(fault: impl FnOnce(&mut Sample), expect: &[Problem]) -> (Sample, Report) {
    let mut sample = sample();
    fault(&mut sample);
    let before = sample.b.pool.snapshot();
    let found = run(&sample.b.pool, false);
    let kinds: HashSet<Problem> = found.left.iter().map(|f| f.problem).collect();
    for problem in expect {
        assert!(kinds.contains(problem), "{problem:?} not found:\n{found}");
    }
    assert_eq!(found.outcome, Outcome::ErrorsLeft, "{found}");
    assert!(
        sample.b.pool.snapshot() == before,
        "a check without repair must not store"
    );
    let repaired = run(&sample.b.pool, true);
    assert_eq!(repaired.outcome, Outcome::Repaired, "{repaired}");
    exact(&sample.b.pool);
    (sample, repaired)
}

fn exact(pool: &Arc<Pool>) -> Report {
    let again = run(pool, false);
    assert_eq!(again.outcome, Outcome::Clean, "{again}");
    assert!(again.was_clean && again.left.is_empty(), "{again}");
    again
}

/// The names that a directory's chains hold.
fn names(s: &Sample, dir: u64) -> Vec<Vec<u8>> {
    let image = Image::new(&*s.b.pool, &s.b.sb.geometry);
    let mut names = Vec::new();
    for b in 0..bucket::BASE << s.b.get(dir, inode::LEVEL) {
        let at = s.b.bucket(dir, b).unwrap();
        let word = s.b.pool.load(at);
        let mut next = if word == 0 {
            None
        } else {
            image.bucket(at, word).unwrap()
        };
        while let Some(line) = next {
            let mut buf = [0; 255];
            names.push(
                image
                    .name(&image.dentry(line).unwrap(), &mut buf)
                    .unwrap()
                    .to_vec(),
            );
            next = image.next(line).unwrap();
        }
    }
    names.sort();
    names
}

#[test]
fn a_sound_image_is_clean_and_counted() {
    let s = sample();
    let before = s.b.pool.snapshot();
    let report = exact(&s.b.pool);
    assert_eq!(report.totals.inodes, 3012);
    assert_eq!(report.totals.directories, 4);
    assert_eq!(report.totals.names, 3012);
    assert_eq!(run(&s.b.pool, true).outcome, Outcome::Clean);
    assert!(
        s.b.pool.snapshot() == before,
        "a clean image is left as it is"
    );
}

#[test]
fn the_findings_do_not_depend_on_the_number_of_threads() {
    let s = sample();
    s.b.set(s.file, inode::SIZE, 5);
    s.b.pool.store(
        s.b.pointer(s.sparse, 3),
        s.b.pool.load(s.b.pointer(s.file, 0)),
    );
    s.b.set(s.entry("fifo"), dentry::HASH, 1);
    let image = Image::new(&*s.b.pool, &s.b.sb.geometry);
    let texts = |threads| -> Vec<String> {
        audit(&image, &s.b.sb, threads, &|_| {})
            .findings
            .iter()
            .map(|f| f.to_string())
            .collect()
    };
    let one = texts(1);
    assert!(one.len() > 3);
    for threads in [2, 3, 8] {
        assert_eq!(texts(threads), one);
    }
}

#[test]
fn what_a_crash_leaves_is_permitted_in_an_unclean_image_only_and_repaired() {
    let s = sample();
    s.unclean();
    let (line, page) = (s.b.sb.geometry.pages - 30, s.b.sb.geometry.pages - 20);
    s.set_bits(line, 0b101);
    s.set_bits(page, 0);
    s.b.set(s.file, inode::PAGES, 77);
    s.b.pool.store(state::FREE_LINES, 1);
    let pointer = s.b.pointer(s.sparse, 595);
    s.b.pool
        .store(pointer, s.b.pool.load(pointer) & !index::UNWRITTEN);
    let report = run(&s.b.pool, false);
    assert_eq!(report.outcome, Outcome::Clean, "{report}");
    assert!(!report.was_clean);
    let kinds: HashSet<Problem> = report.left.iter().map(|f| f.problem).collect();
    assert_eq!(
        kinds,
        HashSet::from([Problem::Leak, Problem::PageCount, Problem::BeyondEnd])
    );
    assert_eq!(
        (report.totals.leaked_pages, report.totals.leaked_lines),
        (2, 0)
    );
    assert_eq!(run(&s.b.pool, true).outcome, Outcome::Repaired);
    exact(&s.b.pool);
}

#[test]
fn leaks_in_a_clean_image_are_errors() {
    damaged(
        |s| s.set_bits(s.b.sb.geometry.pages - 20, 0),
        &[Problem::Leak, Problem::Counter],
    );
    damaged(
        |s| {
            let line = s.b.line(1);
            s.set_bits(line / LINES_PER_PAGE, 1 << (line % LINES_PER_PAGE));
        },
        &[Problem::Leak, Problem::Summary],
    );
}

#[test]
fn an_unclean_image_without_findings_becomes_clean() {
    let s = sample();
    s.unclean();
    s.b.pool.store(s.b.sb.geometry.summary_at(0), 3);
    let report = run(&s.b.pool, true);
    assert_eq!(
        (report.outcome, report.marked_clean),
        (Outcome::Clean, true)
    );
    exact(&s.b.pool);
}

#[test]
fn a_damaged_superblock_is_restored_from_the_other() {
    let (s, _) = damaged(|s| s.b.pool.write(9, b"x"), &[Problem::Superblock]);
    assert_eq!(Superblock::read(&s.b.pool, 0).unwrap(), s.b.sb);
    let (s, _) = damaged(
        |s| {
            s.b.pool
                .zero(page_at(s.b.sb.geometry.superblock_copy()), PAGE)
        },
        &[Problem::SuperblockCopy],
    );
    assert_eq!(
        Superblock::read(&s.b.pool, s.b.sb.geometry.superblock_copy()).unwrap(),
        s.b.sb
    );
}

#[test]
fn without_a_superblock_nothing_is_checked() {
    let pool = Arc::new(Pool::anonymous(1 << 20, &Options::default()).unwrap());
    let options = CheckOptions {
        repair: true,
        threads: 1,
    };
    assert!(check(&pool, &options, &|_| {}).is_err());
}

#[test]
fn a_check_that_repairs_some_and_leaves_some_says_both() {
    let s = sample();
    s.b.set(s.root, inode::PARENT, 0);
    let mut report = run(&s.b.pool, true);
    assert_eq!(report.exit_code(), 1);
    report.outcome = Outcome::ErrorsLeft;
    assert_eq!(report.exit_code(), 5);
    report.repaired.clear();
    assert_eq!(report.exit_code(), 4);
}

#[test]
fn a_root_that_is_none_is_left_after_a_crash_and_so_are_the_maps() {
    let faults: [fn(&Sample); 2] = [
        |s| s.b.set(s.root, inode::MAGIC_GENERATION, 0),
        |s| s.b.pool.zero(line_at(s.root), inode::LEN),
    ];
    for fault in faults {
        let s = sample();
        s.unclean();
        fault(&s);
        let word = s.b.sb.geometry.page_bit(s.root / 64).0;
        let bits = s.b.pool.load(word);
        let report = run(&s.b.pool, true);
        assert_eq!(report.outcome, Outcome::ErrorsLeft, "{report}");
        assert!(report.left.iter().any(|f| f.problem == Problem::Root));
        assert_eq!(s.b.pool.load(word), bits);
        assert_eq!(s.b.pool.load(state::EPOCH), 6);
        assert_eq!(s.b.pool.load(state::CLEAN_EPOCH), 5);
    }
}

#[test]
fn a_mark_of_a_repair_that_never_was_is_found() {
    let s = sample();
    s.unclean();
    s.b.pool.store(state::CLEAN_EPOCH, 5 | state::REPAIRING);
    let report = run(&s.b.pool, false);
    assert_eq!(report.outcome, Outcome::ErrorsLeft, "{report}");
    assert_eq!(run(&s.b.pool, true).outcome, Outcome::Repaired);
    exact(&s.b.pool);
}

#[test]
fn a_repair_that_was_cut_short_is_known_and_loses_no_more() {
    let mut told = HashSet::new();
    // The medium fails at the next sync, again and again.
    for syncs in 0.. {
        let s = sample();
        s.b.set(s.entry("big"), dentry::TARGET, 0);
        s.b.set(s.entry("file"), dentry::TARGET, 0);
        let pool = failing(&s.b.pool.snapshot(), syncs);
        let options = CheckOptions {
            repair: true,
            threads: 1,
        };
        let ended = check(&pool, &options, &|_| {});
        let pool = Arc::new(Pool::from_bytes(&pool.snapshot(), &Options::default()).unwrap());
        let seen = run(&pool, false);
        told.extend(seen.left.iter().map(|f| f.detail.clone()));
        let report = run(&pool, true);
        assert_ne!(report.outcome, Outcome::ErrorsLeft, "{report}");
        assert_eq!(report.totals.inodes, 3012 + 1, "after {syncs}: {report}");
        if ended.is_ok() {
            break;
        }
    }
    assert!(told.contains("a repair was cut short; run it again"));
}

/// Commit words, of which there are enough for a record to be written.
fn commit(s: &Sample, words: &[(u64, u64)]) {
    let g = &s.b.sb.geometry;
    let (at, len) = (page_at(g.journal), page_at(g.journal_pages));
    let (mut journal, _) = Journal::recover(&s.b.pool, at, len, |_| true).unwrap();
    journal.commit(&words.iter().copied().collect()).unwrap();
}

/// Commit the removal of "fifo", with enough other words that a record is written; then undo its
/// first half in place, as if the crash had come before those words were durable.
fn half_removed() -> Sample {
    let s = sample();
    s.unclean();
    let entry = s.entry("fifo");
    let link = s.link_to(entry);
    let next = s.b.get(entry, dentry::NEXT);
    let mut words = vec![(link, if next == 0 { bucket::EMPTY } else { next })];
    words.push((line_at(s.root) + inode::SIZE, 8));
    for ino in [
        s.root, s.sub, s.file, s.big, s.hard, s.tagged, s.link, s.sparse,
    ] {
        let times = [inode::MTIME, inode::ATIME, inode::CTIME];
        words.extend(times.map(|field| (line_at(ino) + field, 9)));
    }
    commit(&s, &words);
    s.b.pool.store(link, entry);
    s
}

#[test]
fn the_journal_is_replayed_or_read_as_if_it_were() {
    let s = half_removed();
    let before = s.b.pool.snapshot();
    let report = run(&s.b.pool, false);
    assert_eq!(report.outcome, Outcome::Clean, "{report}");
    assert_eq!((report.replayed, report.totals.names), (26, 3011));
    assert!(s.b.pool.snapshot() == before);
    let report = run(&s.b.pool, true);
    assert_eq!(
        (report.replayed, report.outcome),
        (26, Outcome::Repaired),
        "{report}"
    );
    assert_eq!(exact(&s.b.pool).replayed, 0);
    assert_eq!(names(&s, s.root).len(), 8);
}

#[test]
fn an_image_with_a_journal_of_the_first_format_is_refused_with_what_to_do_and_that_helps() {
    let (pool, fs) = mounted();
    let kept = new(NewKind::File);
    drop(fs.create(&fs.root(), b"kept", &kept).unwrap());
    ends_clean(&pool, fs);
    // The second word of its header.
    pool.store(page_at(Geometry::for_len(pool.len()).journal) + 8, 1);
    let options = MountOptions::new(Arc::new(SystemClock));
    let refused = SoupFs::mount(pool.clone(), options).map(drop);
    let what = refused.expect_err("of another format").to_string();
    assert!(what.contains("run `tureen fsck`"), "{what}");
    assert_eq!(run(&pool, true).outcome, Outcome::Repaired);
    let fs = mount(&pool);
    drop(fs.lookup(&fs.root(), b"kept").unwrap());
    ends_clean(&pool, fs);
}

#[test]
fn a_journal_that_cannot_be_read_is_emptied() {
    let s = half_removed();
    s.b.pool.zero(page_at(s.b.sb.geometry.journal), 64);
    let report = run(&s.b.pool, false);
    assert!(
        report.left.iter().any(|f| f.problem == Problem::Journal),
        "{report}"
    );
    assert_eq!(run(&s.b.pool, true).outcome, Outcome::Repaired);
    exact(&s.b.pool);
    assert_eq!(names(&s, s.root).len(), 9);
}

/// A medium whose syncs fail, but for the first few.
struct Failing(AtomicU64);

impl Syncer for Failing {
    fn sync(&self, _: u64, _: u64, _: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
        let left = self
            .0
            .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        match left {
            Ok(_) => Ok(()),
            Err(_) => Err(io::Error::from_raw_os_error(5)),
        }
    }
}

/// A pool in domain page, of which only the first syncs succeed.
fn failing(image: &[u8], syncs: u64) -> Arc<Pool> {
    let options = Options {
        domain: Some(Domain::Page),
        ..Options::default()
    };
    let pool = Pool::from_bytes(image, &options).unwrap();
    Arc::new(pool.with_syncer(Arc::new(Failing(AtomicU64::new(syncs)))))
}

#[test]
fn until_it_is_repaired_an_image_whose_journal_is_lost_cannot_be_mounted() {
    let s = half_removed();
    s.b.pool.zero(page_at(s.b.sb.geometry.journal), 64);
    let image = s.b.pool.snapshot();
    for syncs in 0.. {
        let pool = failing(&image, syncs);
        let repair = CheckOptions {
            repair: true,
            threads: 1,
        };
        let done = check(&pool, &repair, &|_| {});
        let left = Arc::new(Pool::from_bytes(&pool.snapshot(), &Options::default()).unwrap());
        let report = run(&left, false);
        let lost = report.left.iter().any(|f| f.problem == Problem::Journal);
        assert!(
            lost || report.outcome == Outcome::Clean,
            "after {syncs} syncs: {report}"
        );
        if done.is_ok() {
            assert!(syncs > 2 && !lost, "{syncs} syncs: {report}");
            break;
        }
    }
}

#[test]
fn a_journal_is_read_as_a_mount_reads_it() {
    // A transaction that is whole, and sets words of the summaries, which none does.
    let s = sample();
    s.unclean();
    let summaries = page_at(s.b.sb.geometry.summaries);
    let words: Vec<_> = (0..20).map(|i| (summaries + 8 * i, 0)).collect();
    commit(&s, &words);
    let report = run(&s.b.pool, false);
    assert!(
        report.left.iter().any(|f| f.problem == Problem::Journal),
        "{report}"
    );
    assert_eq!(run(&s.b.pool, true).outcome, Outcome::Repaired);
    exact(&s.b.pool);
}

#[test]
fn bytes_across_words_are_read_as_replayed() {
    let pool = Pool::anonymous(4096, &Options::default()).unwrap();
    let words = [(8, u64::from_le_bytes(*b"abcdefgh")), (24, !0)].into();
    let mut buf = [0; 9];
    Source::read(&Replayed { pool: &pool, words }, 14, &mut buf);
    assert_eq!(&buf, b"gh\0\0\0\0\0\0\0");
}

#[test]
fn epochs_that_contradict_each_other_are_made_to_agree() {
    damaged(|s| s.b.pool.store(state::CLEAN_EPOCH, 9), &[Problem::Epoch]);
    damaged(
        |s| s.b.pool.store(state::EPOCH, u64::MAX),
        &[Problem::Epoch],
    );
    damaged(|s| s.b.finish(0), &[Problem::Epoch]);
}

#[test]
fn a_repair_leaves_mounts_enough() {
    for epoch in [EPOCH_MAX / 2, EPOCH_MAX - 1] {
        let (s, _) = damaged(
            |s| {
                s.b.finish(epoch);
                s.b.set(s.fifo, inode::SIZE, 1);
            },
            &[Problem::BadWord],
        );
        assert_eq!(s.b.pool.load(state::EPOCH), 1);
    }
}

#[test]
fn a_latest_pointer_of_a_mount_to_come_is_wiped() {
    for epoch in [6, 7, EPOCH_MAX] {
        let tag = |s: &mut Sample| {
            s.b.set(s.entry("file"), dentry::LATEST_NEXT, epoch << 40 | 77)
        };
        let (s, _) = damaged(tag, &[Problem::EarlyTag]);
        assert_eq!(s.b.get(s.entry("file"), dentry::LATEST_NEXT), 0);
    }
}

#[test]
fn the_last_epoch_starts_over_without_latest_pointers() {
    let (s, _) = damaged(|s| s.b.finish(EPOCH_MAX), &[Problem::EpochsUsedUp]);
    assert_eq!(s.b.pool.load(state::EPOCH), 1);
    for line in s.entries.values() {
        assert_eq!(s.b.get(*line, dentry::LATEST_NEXT), 0);
    }
}
