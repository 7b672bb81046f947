//! Damage of each kind.

use super::build::Build;
use super::{Sample, damaged, exact, names, run, sample};
use crate::check::audit::Problem;
use crate::check::fsck::Outcome;
use crate::layout::*;
use vfs::Kind;

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
    for fault in [
        |s: &mut Sample, e| s.b.set(e, dentry::TARGET, 0),
        |s: &mut Sample, e| s.b.pool.write(line_at(e) + dentry::NAME, b"/"),
        |s: &mut Sample, e| s.b.pool.write(line_at(e) + dentry::NAME, b"\0"),
    ] {
        let (s, _) = damaged(
            |s| {
                let e = s.followed();
                fault(s, e);
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
    let (s, report) = damaged(
        |s| s.b.set(s.file, inode::MAGIC_GENERATION, 0),
        &[Problem::Dangling],
    );
    assert_eq!(names(&s, s.root).len(), 8);
    assert!(report.to_string().contains("\"file\""), "{report}");
    // It leads elsewhere: what it led to is there still.
    let (s, _) = damaged(
        |s| {
            let word = s.b.get(s.entry("file"), dentry::TARGET);
            s.b.set(s.entry("file"), dentry::TARGET, word + 1);
        },
        &[Problem::Dangling],
    );
    assert_eq!(rescued(&s), [format!("#{}", s.file)]);
}

#[test]
fn words_of_an_inode_that_cannot_be_follow_from_the_rest() {
    let kept = |fault: fn(&mut Sample), problem| {
        let (s, report) = damaged(fault, &[problem]);
        assert_eq!(names(&s, s.root).len(), 9, "{report}");
        assert_eq!(names(&s, s.big).len(), 3000, "{report}");
        assert_eq!(s.b.get(s.file, inode::SIZE), 3 * PAGE, "{report}");
        assert_eq!(s.b.get(s.file, inode::PAGES), 3, "{report}");
        let kinds = [s.file, s.big, s.fifo].map(|ino| s.b.kind(ino));
        assert_eq!(kinds, [Kind::File, Kind::Dir, Kind::Fifo], "{report}");
        s
    };
    let magic = |s: &Sample, ino, flip| {
        let word = s.b.get(ino, inode::MAGIC_GENERATION);
        s.b.set(ino, inode::MAGIC_GENERATION, word ^ flip);
    };
    for bit in [0, 9, 18, 31] {
        for ino in [|s: &Sample| s.file, |s: &Sample| s.big, |s: &Sample| s.root] {
            let (s, _) = damaged(|s| magic(s, ino(s), 1 << bit), &[Problem::BadWord]);
            assert_eq!(names(&s, s.root).len(), 9);
            assert_eq!(names(&s, s.big).len(), 3000);
        }
    }
    let mode = |s: &Sample, ino, flip| {
        let word = s.b.get(ino, inode::MODE_NLINK);
        s.b.set(ino, inode::MODE_NLINK, word ^ flip);
    };
    kept(
        |s| s.b.set(s.file, inode::MODE_NLINK, 0),
        Problem::WrongKind,
    );
    kept(
        |s| s.b.set(s.file, inode::SIZE, u64::MAX),
        Problem::WrongSize,
    );
    kept(|s| s.b.set(s.file, inode::LEVEL, 99), Problem::BadWord);
    kept(
        |s| s.b.set(s.big, inode::SIZE, u64::MAX),
        Problem::DirectorySize,
    );
    kept(|s| s.b.set(s.big, inode::LEVEL, u64::MAX), Problem::BadWord);
    kept(|s| s.b.set(s.big, inode::LEVEL, 27), Problem::BadWord);
    kept(|s| s.b.set(s.root, inode::LEVEL, 99), Problem::BadWord);
    let s = kept(|s| s.b.set(s.big, inode::LEVEL, 0), Problem::StrayBucket);
    assert_eq!(s.b.get(s.big, inode::LEVEL), 6);
    // File to socket, directory to device, and nothing that the superblock says is the root.
    let injected = damaged(|s| mode(s, s.file, 0x4000), &[Problem::WrongKind]);
    assert_eq!(injected.0.b.kind(s.file), Kind::File);
    let injected = damaged(|s| mode(s, s.big, 0x2000), &[Problem::WrongKind]);
    assert_eq!(names(&injected.0, s.big).len(), 3000);
    let injected = damaged(|s| mode(s, s.root, 0x4000), &[Problem::WrongKind]);
    assert_eq!(names(&injected.0, s.root).len(), 9);
}

/// What is in `lost+found`; there is none if nothing is.
fn rescued(s: &Sample) -> Vec<String> {
    let dir = lost_and_found(s);
    let names = names(s, dir).into_iter();
    names.map(|name| String::from_utf8(name).unwrap()).collect()
}

fn lost_and_found(s: &Sample) -> u64 {
    let line = names_line(s, s.root, b"lost+found");
    s.b.get(line, dentry::TARGET) & LINE_MASK
}

#[test]
fn what_lost_its_name_gets_another_with_all_below_it() {
    // A directory, with what is in it.
    let (s, report) = damaged(
        |s| s.b.set(s.entry("big"), dentry::TARGET, 0),
        &[Problem::BadEntry],
    );
    assert_eq!(rescued(&s), [format!("#{}", s.big)]);
    assert_eq!(names(&s, s.big).len(), 3000);
    let told = format!("is /lost+found/#{} now", s.big);
    assert!(report.to_string().contains(&told), "{report}");
    // All that is in it, and more than its table has buckets.
    let (s, _) = damaged(
        |s| s.b.set(s.big, inode::ROOT, 1 << 60),
        &[Problem::BadPointer],
    );
    assert_eq!(rescued(&s).len(), 3000);
    // All there is: directories whole, other things one by one.
    let faults: [fn(&mut Sample); 2] = [
        |s| s.b.set(s.root, inode::ROOT, 0),
        |s| s.b.pool.zero(line_at(s.root), inode::LEN),
    ];
    for fault in faults {
        let mut s = sample();
        fault(&mut s);
        let report = run(&s.b.pool, true);
        assert_eq!(report.outcome, Outcome::Repaired, "{report}");
        assert_eq!(exact(&s.b.pool).totals.inodes, 3012 + 1, "{report}");
        let mut expected: Vec<String> = [
            s.sub, s.big, s.file, s.sparse, s.link, s.fifo, s.device, s.tagged,
        ]
        .map(|ino| format!("#{ino}"))
        .into();
        expected.sort();
        assert_eq!(rescued(&s), expected, "{report}");
    }
}

#[test]
fn what_is_lost_again_goes_where_the_rest_is() {
    let (s, _) = damaged(
        |s| s.b.set(s.entry("file"), dentry::TARGET, 0),
        &[Problem::BadEntry],
    );
    let dir = lost_and_found(&s);
    s.b.set(s.entry("fifo"), dentry::TARGET, 0);
    assert_eq!(run(&s.b.pool, true).outcome, Outcome::Repaired);
    exact(&s.b.pool);
    assert_eq!(lost_and_found(&s), dir);
    let mut expected = [s.file, s.fifo].map(|ino| format!("#{ino}"));
    expected.sort();
    assert_eq!(rescued(&s), expected);
}

#[test]
fn what_a_crash_may_have_left_is_not_brought_back() {
    let (s, report) = damaged(
        |s| {
            s.unclean();
            s.b.set(s.entry("big"), dentry::TARGET, 0);
        },
        &[Problem::BadEntry],
    );
    assert_eq!(report.totals.inodes, 3012 - 3001, "{report}");
    assert_eq!(names(&s, s.root).len(), 8);
}

/// Mark all that is free, but so many pages.
fn fill(s: &Sample, but: usize) {
    let mut left = but;
    for page in s.b.sb.geometry.allocatable(0) {
        let (at, bit) = s.b.sb.geometry.page_bit(page);
        let lines = s.b.pool.load(s.b.sb.geometry.line_word(page));
        if s.b.pool.load(at) & bit == 0 && left > 0 {
            left -= 1;
        } else if s.b.pool.load(at) & bit == 0 || lines != 0 {
            s.set_bits(page, u64::MAX);
        }
    }
    s.b.finish(5);
}

#[test]
fn what_cannot_be_named_in_a_full_image_stays() {
    for (pages, named) in [(0, 0), (2, 64 - 3)] {
        let s = sample();
        fill(&s, pages);
        s.b.set(s.big, inode::ROOT, 0);
        let before = s.b.pool.snapshot();
        for _ in 0..2 {
            let report = run(&s.b.pool, true);
            assert_eq!(report.outcome, Outcome::ErrorsLeft, "{report}");
            assert!(report.to_string().contains("the image is full"), "{report}");
        }
        // All that was there still is.
        let maps = s.b.sb.geometry.map_start(0)..s.b.sb.geometry.map_end(0);
        let maps = page_at(maps.start) as usize..page_at(maps.end) as usize;
        assert_eq!(s.b.pool.snapshot()[maps.clone()], before[maps]);
        if named > 0 {
            assert_eq!(rescued(&s).len(), named);
        }
    }
}

#[test]
fn without_a_page_for_a_directory_the_root_takes_what_is_lost() {
    let s = sample();
    let page = s.b.sb.geometry.pages - 9;
    s.set_bits(page, u64::MAX >> 2);
    fill(&s, 0);
    s.b.pool
        .store(s.b.sb.geometry.line_word(page), u64::MAX >> 2);
    s.b.finish(5);
    for name in ["file", "big"] {
        s.b.set(s.entry(name), dentry::TARGET, 0);
    }
    let report = run(&s.b.pool, true);
    assert_eq!(report.outcome, Outcome::Repaired, "{report}");
    exact(&s.b.pool);
    for ino in [s.file, s.big] {
        let line = names_line(&s, s.root, format!("#{ino}").as_bytes());
        assert_eq!(s.b.get(line, dentry::TARGET) & LINE_MASK, ino, "{report}");
    }
}

#[test]
fn where_maps_contradict_themselves_the_bits_of_pages_decide() {
    let s = sample();
    fill(&s, usize::MAX);
    for page in s.b.sb.geometry.allocatable(0) {
        let (at, bit) = s.b.sb.geometry.page_bit(page);
        if s.b.pool.load(at) & bit == 0 {
            s.b.pool.store(s.b.sb.geometry.line_word(page), 0x74);
        }
    }
    s.b.set(s.big, inode::ROOT, 0);
    let report = run(&s.b.pool, true);
    assert_eq!(report.outcome, Outcome::Repaired, "{report}");
    exact(&s.b.pool);
    assert_eq!(names(&s, s.root).len(), 9 + 3000, "{report}");
}

#[test]
fn a_level_that_hides_a_hundred_thousand_names_is_put_right_first() {
    for clean in [true, false] {
        let mut b = Build::new(96 << 20, 0);
        let big = b.directory(13);
        b.name(b.sb.root, b"big", big);
        let split = bucket::BASE << 13;
        for i in 0..split {
            b.pool.store(b.bucket(big, i).unwrap(), bucket::EMPTY);
        }
        for i in 0..3000 {
            let ino = b.file(0);
            b.name(big, format!("{i}").as_bytes(), ino);
        }
        b.finish(5);
        if !clean {
            b.pool.store(state::EPOCH, 6);
        }
        b.set(big, inode::LEVEL, 5);
        let report = run(&b.pool, true);
        assert_eq!(report.outcome, Outcome::Repaired);
        assert_eq!(b.get(big, inode::LEVEL), 13);
        assert_eq!(exact(&b.pool).totals.inodes, 3002);
    }
}

#[test]
fn what_the_walk_refuses_is_not_named_and_its_names_are() {
    let s = sample();
    s.b.set(s.big, inode::LEVEL, 99);
    s.b.set(s.big, inode::RESERVED[0], 1);
    let report = run(&s.b.pool, true);
    assert_eq!(report.outcome, Outcome::Repaired, "{report}");
    assert_eq!(rescued(&s).len(), 3000);
    assert_eq!(exact(&s.b.pool).totals.inodes, 3012);
}

#[test]
fn what_is_lost_is_not_written_over_contents() {
    let s = sample();
    let data = s.b.pool.load(s.b.pointer(s.file, 0)) >> index::SHIFT;
    s.b.pool.store(s.b.sb.geometry.line_word(data), 1);
    s.b.pool.write(page_at(data), &[7; PAGE as usize]);
    s.b.set(s.entry("fifo"), dentry::TARGET, 0);
    assert_eq!(run(&s.b.pool, true).outcome, Outcome::Repaired);
    exact(&s.b.pool);
    assert_eq!(s.b.pool.load(s.b.pointer(s.file, 0)) >> index::SHIFT, data);
    let mut found = [0; PAGE as usize];
    s.b.pool.read(page_at(data), &mut found);
    assert_eq!(found, [7; PAGE as usize]);
}

#[test]
fn one_of_two_names_does_not_make_a_symbolic_link() {
    for other in ["1st", "2nd", "3rd", "4th"] {
        let (s, _) = damaged(
            |s| {
                let page = s.b.pool.load(s.b.pointer(s.tagged, 0)) >> index::SHIFT;
                s.b.pool.write(page_at(page), &[b'x'; 100]);
                s.b.set(s.tagged, inode::SIZE, 100);
                let mode = s.b.get(s.tagged, inode::MODE_NLINK);
                s.b.set(s.tagged, inode::MODE_NLINK, mode | 0o777);
                s.b.name(s.root, other.as_bytes(), s.tagged);
                s.b.finish(5);
                let word = s.b.get(s.entry("tagged"), dentry::TARGET);
                s.b.set(
                    s.entry("tagged"),
                    dentry::TARGET,
                    word ^ 2 << dentry::KIND_SHIFT,
                );
            },
            &[Problem::WrongKind],
        );
        assert_eq!(s.b.kind(s.tagged), Kind::File);
    }
}

#[test]
fn bits_of_an_inode_that_have_to_be_zero_are_cleared() {
    for ino in [|s: &Sample| s.file, |s: &Sample| s.device] {
        damaged(|s| s.b.set(ino(s), inode::PARENT, 9), &[Problem::BadWord]);
        let flip = |s: &mut Sample| {
            let word = s.b.get(ino(s), inode::MODE_NLINK);
            s.b.set(ino(s), inode::MODE_NLINK, word | 1 << 20);
        };
        damaged(flip, &[Problem::BadWord]);
    }
}

#[test]
fn directories_that_all_lost_their_tables_are_named_each() {
    let mut s = sample();
    let mut dirs = vec![s.sub];
    for i in 0..300 {
        let dir = s.b.directory(0);
        s.b.name(dirs[i], b"below", dir);
        dirs.push(dir);
    }
    s.b.finish(5);
    let before = run(&s.b.pool, false).totals.inodes;
    for dir in dirs {
        s.b.set(dir, inode::ROOT, 0);
    }
    let report = run(&s.b.pool, true);
    assert_eq!(report.outcome, Outcome::Repaired, "{report}");
    assert_eq!(exact(&s.b.pool).totals.inodes, before + 1);
}

#[test]
fn a_name_that_leads_to_what_was_removed_harms_nobody() {
    // Its pages are another file's by now.
    let (s, removed) = {
        let mut s = sample();
        let removed = s.b.inode(Kind::File);
        let file = s.b.file(3);
        s.b.name(s.sub, b"sound", file);
        s.b.set(removed, inode::ROOT, s.b.get(file, inode::ROOT));
        s.b.set(removed, inode::SIZE, 3 * PAGE);
        let lines = s.b.sb.geometry.line_word(removed / LINES_PER_PAGE);
        s.b.pool
            .fetch_and(lines, !(3 << (removed % LINES_PER_PAGE)));
        s.b.finish(5);
        s.file = file;
        (s, removed)
    };
    lead(&s, "hard", removed);
    assert_eq!(run(&s.b.pool, true).outcome, Outcome::Repaired);
    exact(&s.b.pool);
    assert_eq!(s.b.get(s.file, inode::PAGES), 3);
    assert_eq!(names(&s, s.root).len(), 8, "the file has another name");
    // Its lines are an entry's by now.
    let (mut s, lines) = {
        let mut s = sample();
        let lines = s.b.line(2);
        s.sub = s.b.directory(0);
        s.b.name(s.root, b"later", s.sub);
        (s, lines)
    };
    let file = s.b.file(0);
    let entry = s.b.name(s.sub, b"sound", file);
    let mut copy = [0; LINE as usize];
    s.b.pool.read(line_at(entry), &mut copy);
    s.b.pool.write(line_at(lines), &copy);
    let at = s.b.bucket(s.sub, s.b.home(s.sub, s.b.hash.hash(b"sound")));
    s.b.pool.store(at.unwrap(), lines);
    let word = s.b.sb.geometry.line_word(entry / LINES_PER_PAGE);
    s.b.pool.fetch_and(word, !(1 << (entry % LINES_PER_PAGE)));
    s.b.set(lines, inode::MAGIC_GENERATION, inode::MAGIC.into());
    s.b.finish(5);
    assert!(lines < s.sub);
    lead(&s, "hard", lines);
    assert_eq!(run(&s.b.pool, true).outcome, Outcome::Repaired);
    exact(&s.b.pool);
    assert_eq!(names(&s, s.sub), [b"sound"]);
}

/// Let a name of the root lead to another inode.
fn lead(s: &Sample, name: &str, ino: u64) {
    let word = s.b.get(s.entry(name), dentry::TARGET);
    s.b.set(s.entry(name), dentry::TARGET, word & !LINE_MASK | ino);
}

#[test]
fn a_name_that_leads_to_another_kind_elsewhere_goes() {
    let (s, _) = damaged(
        |s| {
            let nested = s.b.get(names_line(s, s.sub, &[b'n'; 255]), dentry::TARGET) & LINE_MASK;
            lead(s, "file", nested);
        },
        &[Problem::Dangling],
    );
    assert_eq!(rescued(&s), [format!("#{}", s.file)]);
    assert_eq!(names(&s, s.sub).len(), 2);
}

#[test]
fn a_text_does_not_become_a_symbolic_link() {
    let text = |s: &Sample| {
        let page = s.b.pool.load(s.b.pointer(s.tagged, 0)) >> index::SHIFT;
        s.b.pool.write(page_at(page), &[b'x'; 100]);
        s.b.set(s.tagged, inode::SIZE, 100);
    };
    let flip = |s: &Sample, ino| {
        let word = s.b.get(ino, inode::MODE_NLINK);
        s.b.set(ino, inode::MODE_NLINK, word ^ 0x2000);
    };
    let (s, _) = damaged(
        |s| {
            text(s);
            flip(s, s.tagged)
        },
        &[Problem::WrongKind],
    );
    assert_eq!(s.b.kind(s.tagged), Kind::File);
    let (s, _) = damaged(|s| flip(s, s.link), &[Problem::WrongKind]);
    assert_eq!(s.b.kind(s.link), Kind::Symlink);
}

#[test]
fn a_bucket_that_is_used_by_mistake_takes_no_chain() {
    let (s, _) = damaged(
        |s| {
            let foreign = (0..3000).find_map(|i| {
                let hash = s.b.hash.hash(format!("file {i}").as_bytes());
                let at = s.b.bucket(s.big, s.b.home(s.big, hash)).unwrap();
                let line = s.b.pool.load(at);
                let home = s.b.get(line, dentry::HASH) % 512;
                (home >= bucket::BASE).then_some((home, line))
            });
            let (home, line) = foreign.expect("one of them");
            s.b.pool.store(s.b.bucket(s.sub, home).unwrap(), line);
        },
        &[Problem::StrayBucket],
    );
    assert_eq!(names(&s, s.big).len(), 3000);
    assert_eq!(names(&s, s.sub).len(), 2);
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
    assert_eq!(names(&s, s.root).len(), 9 + 1);
    assert_eq!(rescued(&s).len(), 2, "the others");
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
fn the_level_of_a_table_is_that_of_its_blocks() {
    for level in [7, 9, 12] {
        let (s, _) = damaged(|s| s.b.set(s.big, inode::LEVEL, level), &[Problem::BadWord]);
        assert_eq!(s.b.get(s.big, inode::LEVEL), 6);
    }
    let (s, _) = damaged(|s| s.b.set(s.sub, inode::LEVEL, 5), &[Problem::BadWord]);
    assert_eq!(s.b.get(s.sub, inode::LEVEL), 4, "a block has room for it");
}

#[test]
fn blocks_behind_a_table_go() {
    for empty in [false, true] {
        let (s, _) = damaged(
            |s| {
                let dir = s.b.directory(6);
                s.b.name(s.root, b"shrunk", dir);
                for b in (0..bucket::BASE << 6).filter(|_| empty) {
                    s.b.pool.store(s.b.bucket(dir, b).unwrap(), 0);
                }
                s.b.finish(5);
                s.b.set(dir, inode::LEVEL, 4);
            },
            &[Problem::StrayBucket],
        );
        let dir = s.b.get(names_line(&s, s.root, b"shrunk"), dentry::TARGET) & LINE_MASK;
        assert_eq!(s.b.get(dir, inode::PAGES), 1);
    }
}

#[test]
fn maps_of_a_region_without_anything_are_looked_at() {
    let mut b = Build::new(300 << 20, 0);
    let file = b.file(2);
    b.name(b.sb.root, b"file", file);
    b.finish(5);
    let page = b.sb.geometry.region_start(1) + 1000;
    b.pool.store(b.sb.geometry.line_word(page), 0xf0);
    assert_eq!(run(&b.pool, false).left[0].problem, Problem::Leak);
    assert_eq!(run(&b.pool, true).outcome, Outcome::Repaired);
    exact(&b.pool);
    assert_eq!(b.pool.load(b.sb.geometry.line_word(page)), 0);
}

#[test]
fn of_several_names_of_a_directory_the_one_that_it_knows_stays() {
    let nested =
        |s: &Sample| s.b.get(names_line(s, s.sub, &[b'n'; 255]), dentry::TARGET) & LINE_MASK;
    let lead = |s: &Sample, name, ino: u64| {
        let line = s.entry(name);
        let word = s.b.get(line, dentry::TARGET);
        s.b.set(line, dentry::TARGET, word & !LINE_MASK | ino);
    };
    // Read before the other.
    let (s, _) = damaged(|s| lead(s, "big", nested(s)), &[Problem::SecondName]);
    assert_eq!(s.b.get(nested(&s), inode::PARENT), s.sub);
    assert_eq!(names(&s, s.sub).len(), 2);
    assert_eq!(rescued(&s).len(), 1, "the directory that lost its name");
    assert_eq!(names(&s, s.big).len(), 3000);
    // The right name is below the directory that lost its own: the other one keeps it for now.
    let (s, _) = damaged(
        |s| {
            lead(s, "sub", nested(s));
            s.b.name(s.big, b"second", nested(s));
            s.b.set(nested(s), inode::PARENT, s.sub);
        },
        &[Problem::SecondName, Problem::WrongParent],
    );
    assert_eq!(rescued(&s).len(), 1);
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
fn written_blocks_behind_the_end_are_debris_after_a_crash() {
    let cut = |fault: fn(&Sample)| {
        let fault = |s: &mut Sample| {
            s.unclean();
            fault(s);
        };
        damaged_by_a_crash(fault, Problem::BeyondEnd)
    };
    let s = cut(|s| s.b.set(s.file, inode::SIZE, 4096));
    assert_eq!(s.b.get(s.file, inode::PAGES), 1);
    let s = cut(|s| s.b.set(s.tagged, inode::SIZE, 0));
    assert_eq!(s.b.get(s.tagged, inode::ROOT), 0);
}

/// What a crash may leave is no damage, and is repaired.
fn damaged_by_a_crash(fault: impl FnOnce(&mut Sample), problem: Problem) -> Sample {
    let mut s = sample();
    fault(&mut s);
    assert_eq!(run(&s.b.pool, false).outcome, Outcome::Clean);
    let report = run(&s.b.pool, true);
    assert_eq!(report.outcome, Outcome::Repaired);
    assert!(
        report.repaired.iter().any(|f| f.problem == problem),
        "{report}"
    );
    exact(&s.b.pool);
    s
}

#[test]
fn a_size_that_leaves_out_blocks_of_a_clean_image_is_wrong() {
    let (s, _) = damaged(
        |s| s.b.set(s.file, inode::SIZE, 4096),
        &[Problem::WrongSize],
    );
    assert_eq!(s.b.get(s.file, inode::SIZE), 3 * PAGE);
    // One of those that are reserved has lost its flag: what it holds is void.
    let (s, _) = damaged(
        |s| {
            let at = s.b.pointer(s.sparse, 595);
            s.b.pool.fetch_and(at, !index::UNWRITTEN);
        },
        &[Problem::BeyondEnd],
    );
    assert_eq!(s.b.get(s.sparse, inode::SIZE), 590 * PAGE + 5);
    assert_eq!(
        s.b.pool.load(s.b.pointer(s.sparse, 595)) & 1,
        index::UNWRITTEN
    );
    // A block that the maps do not know is not the file's.
    let (s, _) = damaged(
        |s| {
            let free = s.b.sb.geometry.pages - 9;
            s.b.pool
                .store(s.b.pointer(s.sparse, 595), free << index::SHIFT);
        },
        &[Problem::BeyondEnd],
    );
    assert_eq!(s.b.get(s.sparse, inode::SIZE), 590 * PAGE + 5);
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
    assert_eq!(rescued(&s), [format!("#{}", s.fifo)]);
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
    for size in [1, u64::MAX] {
        damaged(|s| s.b.set(s.fifo, inode::SIZE, size), &[Problem::BadWord]);
        damaged(
            |s| s.b.set(s.device, inode::SIZE, size),
            &[Problem::BadWord],
        );
    }
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
fn the_root_stays_where_its_own_table_is_said_to_be() {
    for says_lines in [true, false] {
        damaged(
            |s| {
                let page = s.root / LINES_PER_PAGE;
                s.b.set(s.root, inode::ROOT, page << index::SHIFT);
                if !says_lines {
                    s.b.pool.store(s.b.sb.geometry.line_word(page), 0);
                }
            },
            &[Problem::SharedSpace],
        );
    }
}
