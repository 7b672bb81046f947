//! Planted damage of every kind: found, repaired, and then nothing is left.

mod build;
mod document;

use super::{CheckOptions, Outcome, Replayed, Report, check};
use crate::audit::{Problem, audit};
use crate::image::{Image, Source, Superblock};
use crate::layout::*;
use build::Build;
use pmem::{Options, Pool};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use vfs::Kind;

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

/// Plant damage: a check without repair finds all of `expect` and changes nothing, a repair leaves
/// nothing behind.
fn damaged(plant: impl FnOnce(&mut Sample), expect: &[Problem]) -> (Sample, Report) {
    let mut sample = sample();
    plant(&mut sample);
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
    s.b.pool.store(state::INODES, 3);
    s.b.pool.store(s.b.sb.geometry.summary_at(0), 3);
    assert_eq!(run(&s.b.pool, true).outcome, Outcome::Clean);
    exact(&s.b.pool);
}

#[test]
fn counts_that_are_wrong_are_set() {
    damaged(
        |s| s.b.set(s.sub, inode::SIZE, 9),
        &[Problem::DirectorySize],
    );
    damaged(|s| s.b.links(s.sub, 1), &[Problem::LinkCount]);
    damaged(|s| s.b.links(s.hard, 1), &[Problem::LinkCount]);
    damaged(
        |s| s.b.set(s.hard, inode::MODE_NLINK, 0o100644 | !0 << 32),
        &[Problem::LinkCount],
    );
    damaged(|s| s.b.links(s.file, 1), &[Problem::LinkCount]);
    damaged(
        |s| s.b.set(s.sparse, inode::PAGES, 0),
        &[Problem::PageCount],
    );
    damaged(
        |s| s.b.pool.store(state::FREE_LINES, 0),
        &[Problem::Counter],
    );
    damaged(|s| s.b.pool.store(state::INODES, 0), &[Problem::Counter]);
    damaged(
        |s| s.b.pool.store(s.b.sb.geometry.summary_at(0), 0),
        &[Problem::Summary],
    );
}

#[test]
fn parents_are_who_holds_the_directory() {
    damaged(
        |s| s.b.set(s.sub, inode::PARENT, s.big),
        &[Problem::WrongParent],
    );
    damaged(
        |s| s.b.set(s.root, inode::PARENT, s.sub),
        &[Problem::WrongParent],
    );
}

#[test]
fn an_entry_that_is_damaged_goes_and_its_neighbours_stay() {
    for plant in [
        |s: &mut Sample, e| s.b.set(e, dentry::TARGET, 0),
        |s: &mut Sample, e| s.b.pool.write(line_at(e) + dentry::NAME, b"/"),
        |s: &mut Sample, e| s.b.pool.write(line_at(e) + dentry::NAME, b"\0"),
    ] {
        let (s, _) = damaged(
            |s| {
                let e = s.followed();
                plant(s, e);
            },
            &[Problem::BadEntry],
        );
        assert_eq!(names(&s, s.big).len(), 2999);
    }
    let (s, report) = damaged(
        |s| {
            let e = s.followed();
            s.b.pool.write(line_at(e) + dentry::NAME, b"F");
        },
        &[Problem::Misplaced],
    );
    assert_eq!(names(&s, s.big).len(), 2999);
    assert!(
        report.to_string().contains("File "),
        "the name that is lost is told: {report}"
    );
}

#[test]
fn a_long_name_that_leads_nowhere_goes() {
    damaged(
        |s| {
            let line = names_line(s, s.sub, &[b'n'; 255]);
            s.b.set(line, dentry::MORE, u64::MAX);
        },
        &[Problem::BadEntry],
    );
}

/// The line of an entry in a directory of one table page.
fn names_line(s: &Sample, dir: u64, name: &[u8]) -> u64 {
    let at = s.b.bucket(dir, s.b.home(dir, s.b.hash.hash(name))).unwrap();
    s.b.pool.load(at)
}

#[test]
fn words_of_an_entry_that_follow_from_the_rest_are_set_right() {
    let (s, _) = damaged(
        |s| s.b.set(s.entry("file"), dentry::HASH, 1),
        &[Problem::WrongHash],
    );
    assert!(names(&s, s.root).contains(&b"file".to_vec()));
    let flip = |s: &mut Sample, bit: u64| {
        let e = s.entry("file");
        s.b.set(e, dentry::TARGET, s.b.get(e, dentry::TARGET) ^ bit);
    };
    damaged(|s| flip(s, dentry::FRESH), &[Problem::TargetBits]);
    damaged(|s| flip(s, 1 << 55), &[Problem::TargetBits]);
    // File (8) to directory (4).
    let (s, _) = damaged(|s| flip(s, 12 << dentry::KIND_SHIFT), &[Problem::WrongKind]);
    assert_eq!(names(&s, s.root).len(), 9);
}

#[test]
fn an_entry_without_an_inode_goes() {
    let broken = [
        (inode::MAGIC_GENERATION, 0),
        (inode::MODE_NLINK, 0),
        (inode::SIZE, u64::MAX),
        (inode::LEVEL, 99),
    ];
    for (field, value) in broken {
        let (s, report) = damaged(|s| s.b.set(s.file, field, value), &[Problem::Dangling]);
        assert_eq!(names(&s, s.root).len(), 8);
        assert!(report.to_string().contains("\"file\""), "{report}");
    }
    damaged(
        |s| {
            let word = s.b.get(s.entry("file"), dentry::TARGET);
            s.b.set(s.entry("file"), dentry::TARGET, word + 1);
        },
        &[Problem::Dangling],
    );
}

#[test]
fn a_subtree_that_lost_its_name_is_reclaimed() {
    let (s, report) = damaged(|s| s.b.set(s.big, inode::LEVEL, 99), &[Problem::Dangling]);
    assert_eq!(report.totals.inodes, 11, "{report}");
    assert_eq!(names(&s, s.root).len(), 8);
}

#[test]
fn links_that_lead_nowhere_end_the_chain() {
    for word in [u64::MAX, dentry::PENDING | 9, 1, 1 << 39] {
        damaged(
            |s| s.b.set(s.followed(), dentry::NEXT, word),
            &[Problem::BadLink],
        );
        damaged(
            |s| s.b.pool.store(s.link_to(s.entry("file")), word),
            &[Problem::BadLink, Problem::DirectorySize],
        );
    }
}

#[test]
fn a_cycle_in_a_chain_is_cut_and_nothing_else() {
    let (s, _) = damaged(
        |s| {
            let first = s.followed();
            let mut last = first;
            while s.b.get(last, dentry::NEXT) != 0 {
                last = s.b.get(last, dentry::NEXT);
            }
            s.b.set(last, dentry::NEXT, first);
        },
        &[Problem::SharedSpace],
    );
    assert_eq!(names(&s, s.big).len(), 3000);
}

#[test]
fn an_entry_that_follows_itself_is_cut_loose() {
    let (s, _) = damaged(
        |s| s.b.set(s.entry("file"), dentry::NEXT, s.entry("file")),
        &[Problem::SharedSpace],
    );
    assert!(names(&s, s.root).contains(&b"file".to_vec()));
}

#[test]
fn a_bucket_that_leads_to_another_chain_is_emptied_and_the_other_stays() {
    let (s, _) = damaged(
        |s| {
            let chain = |b| s.b.pool.load(s.b.bucket(s.big, b).unwrap());
            let (one, other) = (chain(96), chain(99));
            assert!(one != bucket::EMPTY && other != bucket::EMPTY);
            let mut last = one;
            while s.b.get(last, dentry::NEXT) != 0 {
                last = s.b.get(last, dentry::NEXT);
            }
            s.b.set(last, dentry::NEXT, other);
        },
        &[Problem::Misplaced],
    );
    assert_eq!(names(&s, s.big).len(), 3000);
}

#[test]
fn all_buckets_on_one_long_chain_end_in_linear_time() {
    let mut b = Build::new(8 << 20, 13);
    let root = b.sb.root;
    // Into one chain whatever the hash.
    let mut first = 0;
    for i in 0..10_000 {
        let ino = b.file(0);
        let line = b.name(root, format!("{i}").as_bytes(), ino);
        b.set(line, dentry::NEXT, first);
        first = line;
    }
    for bucket in 0..bucket::BASE << 13 {
        b.pool.store(b.bucket(root, bucket).unwrap(), first);
    }
    b.finish(1);
    assert_eq!(run(&b.pool, false).outcome, Outcome::ErrorsLeft);
    assert_eq!(run(&b.pool, true).outcome, Outcome::Repaired);
    exact(&b.pool);
}

#[test]
fn buckets_beyond_the_level_are_cleared() {
    damaged(
        |s| {
            s.b.pool
                .store(s.b.bucket(s.sub, 40).unwrap(), bucket::EMPTY)
        },
        &[Problem::StrayBucket],
    );
}

#[test]
fn of_equal_names_the_one_that_look_ups_find_stays() {
    let (s, _) = damaged(
        |s| {
            let ino = s.b.file(0);
            s.b.name(s.root, b"file", ino);
            let ino = s.b.file(0);
            s.b.name(s.root, b"file", ino);
            s.b.finish(5);
        },
        &[Problem::DuplicateName],
    );
    assert_eq!(names(&s, s.root).len(), 9);
}

#[test]
fn a_directory_keeps_one_name_and_never_holds_itself() {
    let (s, _) = damaged(
        |s| {
            s.b.name(s.big, b"again", s.sub);
            s.b.set(s.sub, inode::PARENT, s.root);
        },
        &[Problem::SecondName],
    );
    assert_eq!(names(&s, s.big).len() + names(&s, s.root).len(), 3009);
    let (s, _) = damaged(
        |s| {
            s.b.name(s.sub, b"up", s.root);
        },
        &[Problem::SecondName, Problem::WrongParent],
    );
    assert_eq!(names(&s, s.sub).len(), 2);
}

#[test]
fn pointers_that_lead_nowhere_are_cleared() {
    for word in [1 << 12, u64::MAX, 1 << 60, 0xfff] {
        damaged(
            |s| s.b.pool.store(s.b.pointer(s.file, 1), word),
            &[Problem::BadPointer],
        );
        damaged(
            |s| s.b.set(s.sparse, inode::ROOT, word),
            &[Problem::BadPointer],
        );
        damaged(
            |s| s.b.set(s.big, inode::ROOT, word),
            &[Problem::BadPointer],
        );
        damaged(
            |s| {
                let node = s.b.get(s.sparse, inode::ROOT) >> 12;
                s.b.pool.store(page_at(node), word);
            },
            &[Problem::BadPointer],
        );
    }
    let void = |s: &mut Sample, at| s.b.pool.store(at, s.b.pool.load(at) | index::UNWRITTEN);
    damaged(|s| void(s, s.b.pointer(s.big, 1)), &[Problem::BadPointer]);
    damaged(
        |s| {
            s.b.set(s.sub, inode::ROOT, s.b.get(s.sub, inode::ROOT) | 1 << 11)
        },
        &[Problem::BadPointer],
    );
}

#[test]
fn written_blocks_behind_the_end_are_debris() {
    let (s, _) = damaged(
        |s| s.b.set(s.file, inode::SIZE, 4096),
        &[Problem::BeyondEnd],
    );
    assert_eq!(s.b.get(s.file, inode::PAGES), 2);
    let (s, _) = damaged(|s| s.b.set(s.tagged, inode::SIZE, 0), &[Problem::BeyondEnd]);
    assert_eq!(s.b.get(s.tagged, inode::ROOT), 0);
}

#[test]
fn a_page_in_two_files_stays_with_the_lower_inode() {
    let (s, _) = damaged(
        |s| {
            let shared = s.b.pool.load(s.b.pointer(s.file, 1));
            s.b.pool.store(s.b.pointer(s.sparse, 7), shared);
        },
        &[Problem::SharedSpace],
    );
    assert!(s.file < s.sparse);
    assert_ne!(s.b.pool.load(s.b.pointer(s.file, 1)), 0);
    assert_eq!(s.b.pool.load(s.b.pointer(s.sparse, 7)), 0);
}

#[test]
fn a_page_of_lines_is_never_taken_for_data() {
    let (s, _) = damaged(
        |s| {
            let lines = s.root / LINES_PER_PAGE;
            s.b.pool
                .store(s.b.pointer(s.file, 1), lines << index::SHIFT);
        },
        &[Problem::SharedSpace],
    );
    assert_eq!(names(&s, s.root).len(), 9);
    // What looks like an inode in a page of data is none.
    let (s, _) = damaged(
        |s| {
            let data = s.b.pool.load(s.b.pointer(s.file, 1)) >> index::SHIFT;
            let mut copy = [0; 128];
            s.b.pool.read(line_at(s.hard), &mut copy);
            s.b.pool.write(page_at(data), &copy);
            let entry = s.entry("fifo");
            let target = s.b.get(entry, dentry::TARGET) & !LINE_MASK;
            let target = target | (data * LINES_PER_PAGE);
            s.b.set(entry, dentry::TARGET, target);
        },
        &[Problem::SharedSpace],
    );
    assert_ne!(s.b.pool.load(s.b.pointer(s.file, 1)), 0);
    assert_eq!(names(&s, s.root).len(), 8);
}

#[test]
fn an_index_that_contains_itself_is_cut() {
    damaged(
        |s| {
            let root = s.b.get(s.sparse, inode::ROOT) & !0xfff;
            s.b.pool.store(page_at(root >> 12), root);
        },
        &[Problem::SharedSpace],
    );
}

#[test]
fn contents_that_no_kind_has_are_repaired() {
    damaged(|s| s.b.set(s.fifo, inode::ROOT, 9), &[Problem::BadWord]);
    damaged(
        |s| s.b.set(s.device, inode::ROOT, 9 << 40),
        &[Problem::BadWord],
    );
    damaged(
        |s| s.b.set(s.hard, inode::RESERVED[1], 1),
        &[Problem::BadWord],
    );
    for (field, value) in [(inode::SIZE, 0), (inode::SIZE, 4096), (inode::ROOT, 0)] {
        let (s, _) = damaged(|s| s.b.set(s.link, field, value), &[Problem::BadSymlink]);
        assert_eq!(names(&s, s.root).len(), 8);
    }
    damaged(
        |s| {
            s.b.pool
                .write(page_at(s.b.get(s.link, inode::ROOT) >> 12) + 2, b"\0")
        },
        &[Problem::BadSymlink],
    );
}

#[test]
fn extended_attributes_that_cannot_be_read_are_dropped() {
    let first = |s: &Sample| page_at(s.b.get(s.tagged, inode::XATTR));
    damaged(|s| s.b.set(s.tagged, inode::XATTR, 1), &[Problem::BadXattr]);
    damaged(
        |s| s.b.pool.store(first(s) + xattr::USED, 9999),
        &[Problem::BadXattr],
    );
    damaged(
        |s| s.b.pool.store(first(s) + xattr::NEXT, 0),
        &[Problem::BadXattr],
    );
    damaged(
        |s| s.b.pool.store(first(s) + xattr::DATA, 0),
        &[Problem::BadXattr],
    );
    let (s, _) = damaged(
        |s| s.b.pool.store(first(s) + xattr::NEXT, first(s) / PAGE),
        &[Problem::BadXattr],
    );
    assert_eq!(s.b.get(s.tagged, inode::XATTR), 0);
}

#[test]
fn maps_that_are_wrong_are_written_anew() {
    let clear = |s: &mut Sample, page| {
        let (at, bit) = s.b.sb.geometry.page_bit(page);
        s.b.pool.fetch_and(at, !bit);
    };
    damaged(
        |s| clear(s, s.b.get(s.link, inode::ROOT) >> 12),
        &[Problem::Unmarked],
    );
    damaged(|s| clear(s, s.root / 64), &[Problem::Unmarked]);
    damaged(
        |s| s.b.pool.store(s.b.sb.geometry.line_word(s.root / 64), 0),
        &[Problem::Unmarked],
    );
    damaged(
        |s| s.set_bits(s.b.get(s.link, inode::ROOT) >> 12, 4),
        &[Problem::LinesInPage],
    );
    damaged(|s| s.set_bits(3, 0), &[Problem::StrayBits]);
    damaged(
        |s| s.set_bits(s.b.sb.geometry.pages - 1, 5),
        &[Problem::StrayBits],
    );
    let (_, report) = damaged(
        |s| s.set_bits(s.b.sb.geometry.pages - 9, 5),
        &[Problem::Leak],
    );
    assert_eq!(report.totals.leaked_pages, 0);
}

#[test]
fn stale_lines_of_a_free_page_are_cleared() {
    damaged(
        |s| {
            s.b.pool
                .store(s.b.sb.geometry.line_word(s.b.sb.geometry.pages - 9), 5)
        },
        &[Problem::Leak],
    );
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
fn a_root_that_is_none_is_left_and_so_are_the_maps() {
    let s = sample();
    s.b.set(s.root, inode::MAGIC_GENERATION, 0);
    let bits = s.b.pool.load(s.b.sb.geometry.page_bit(s.root / 64).0);
    let report = run(&s.b.pool, true);
    assert_eq!(report.outcome, Outcome::ErrorsLeft);
    assert!(
        report.left.iter().any(|f| f.problem == Problem::Root),
        "{report}"
    );
    assert_eq!(s.b.pool.load(s.b.sb.geometry.page_bit(s.root / 64).0), bits);
    assert_ne!(
        s.b.pool.load(state::EPOCH),
        s.b.pool.load(state::CLEAN_EPOCH)
    );
}

/// Commit the removal of "fifo", with enough other words that a record is written; then undo its
/// first half in place, as if the crash had come before those words were durable.
fn half_removed() -> Sample {
    let s = sample();
    s.unclean();
    let g = &s.b.sb.geometry;
    let (at, len) = (page_at(g.journal), page_at(g.journal_pages));
    let (mut journal, _) = pmem::Journal::recover(&s.b.pool, at, len, |_| true).unwrap();
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
    journal.commit(&words).unwrap();
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
}

#[test]
fn the_last_epoch_starts_over_without_latest_pointers() {
    let (s, _) = damaged(|s| s.b.finish(EPOCH_MAX), &[Problem::EpochsUsedUp]);
    assert_eq!(s.b.pool.load(state::EPOCH), 1);
    for line in s.entries.values() {
        assert_eq!(s.b.get(*line, dentry::LATEST_NEXT), 0);
    }
}

/// A generator whose whole state is the seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % n
    }
}

/// An image small enough to damage thousands of times, in the pages that are in use.
fn little() -> (Vec<u8>, u64, Superblock) {
    let mut b = Build::new(1 << 20, 1);
    let root = b.sb.root;
    let sub = b.directory(5);
    b.name(root, b"sub", sub);
    let hard = b.file(2);
    b.xattr(hard, b"user.x");
    for i in 0..12 {
        b.name(root, format!("hard {i}").as_bytes(), hard);
        let ino = if i % 3 == 0 {
            b.symlink(b"to")
        } else {
            b.file(i)
        };
        b.name(sub, &vec![b'a' + i as u8; 20 * i as usize + 1], ino);
        let dir = b.directory(0);
        b.name(sub, format!("dir {i}").as_bytes(), dir);
    }
    let end = b.page();
    let (at, bit) = b.sb.geometry.page_bit(end);
    b.pool.fetch_and(at, !bit);
    b.finish(3);
    let sb = b.sb.clone();
    (b.pool.snapshot(), page_at(end), sb)
}

/// Damage the image as `seed` says, and check and repair it.
fn fuzz(image: &[u8], used: u64, sb: &Superblock, seed: u64) {
    let pool = Arc::new(Pool::from_bytes(image, &Options::default()).unwrap());
    let mut random = Random(seed);
    let from = if seed.is_multiple_of(2) {
        PAGE
    } else {
        page_at(sb.geometry.allocatable(0).start)
    };
    for _ in 0..1 + random.below(8) {
        let at = from + random.below((used - from) / 8) * 8;
        let word = pool.load(at);
        pool.store(
            at,
            match random.below(4) {
                0 => word ^ 1 << random.below(64),
                1 => random.below(used / 64),
                2 => random.below(used / PAGE) << 12 | random.below(5),
                _ => pool.load(from + random.below((used - from) / 8) * 8),
            },
        );
    }
    let dry = run(&pool, false);
    let report = run(&pool, true);
    let again = run(&pool, false);
    match report.outcome {
        Outcome::ErrorsLeft => {
            assert_eq!(
                again.outcome,
                Outcome::ErrorsLeft,
                "seed {seed}: {report}\n{again}"
            );
            let root = report.left.iter().any(|f| f.problem == Problem::Root);
            assert!(root, "seed {seed}: given up without need: {report}");
        }
        _ => assert!(
            again.was_clean && again.left.is_empty(),
            "seed {seed}: {dry}\n{report}\n{again}"
        ),
    }
}

#[test]
fn random_damage_neither_hangs_nor_panics_and_is_repaired() {
    let (image, used, sb) = little();
    for seed in 0..4000 {
        fuzz(&image, used, &sb, seed);
    }
}

#[test]
fn a_repair_that_was_cut_short_is_completed_by_the_next() {
    // Whatever subset of a repair's stores reached the medium.
    let (image, used, _) = little();
    for seed in 0..300 {
        let mut random = Random(seed);
        let broken = Pool::from_bytes(&image, &Options::default()).unwrap();
        for _ in 0..6 {
            let at = 4096 + random.below(used / 8 - 512) * 8;
            broken.store(at, broken.load(at) ^ 1 << random.below(64));
        }
        let mut torn = broken.snapshot();
        let broken = Arc::new(broken);
        let report = run(&broken, true);
        if report.outcome == Outcome::ErrorsLeft {
            continue;
        }
        let repaired = broken.snapshot();
        for at in (0..torn.len()).step_by(8) {
            let clean = at as u64 == state::CLEAN_EPOCH;
            if !clean && random.below(2) == 0 {
                torn[at..at + 8].copy_from_slice(&repaired[at..at + 8]);
            }
        }
        let torn = Arc::new(Pool::from_bytes(&torn, &Options::default()).unwrap());
        let report = run(&torn, true);
        assert_ne!(report.outcome, Outcome::ErrorsLeft, "seed {seed}: {report}");
        exact(&torn);
    }
}
