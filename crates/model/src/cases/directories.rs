//! Reading directories, small and large, at rest and while they change.

use std::collections::{BTreeMap, BTreeSet};

use vfs::{COOKIE_FIRST, Errno, FileSystem, Ino, Kind, NewKind, RenameMode};

use super::{Bed, Engine, NodeOf, fails};

/// One entry as handed out: name, cookie, inode and kind.
type Entry = (String, u64, Ino, Kind);

/// Up to `count` entries after `cookie`.
fn some<E: Engine>(bed: &Bed<'_, E>, dir: &NodeOf<E>, cookie: u64, count: usize) -> Vec<Entry> {
    let mut entries = Vec::new();
    bed.fs
        .readdir(dir, cookie, &mut |entry| {
            if entries.len() == count {
                return false;
            }
            let name = String::from_utf8_lossy(entry.name).into_owned();
            entries.push((name, entry.cookie, entry.ino, entry.kind));
            true
        })
        .expect("read");
    entries
}

/// Read the directory `count` entries at a time, running `between` before each part but the
/// first; returns how often each name was met.
fn met<E: Engine>(
    bed: &Bed<'_, E>,
    dir: &NodeOf<E>,
    count: usize,
    mut between: impl FnMut(usize),
) -> BTreeMap<String, usize> {
    let mut times = BTreeMap::new();
    let mut cookie = 0;
    for part in 0.. {
        if part > 0 {
            between(part);
        }
        let entries = some(bed, dir, cookie, count);
        let Some(last) = entries.last() else { break };
        cookie = last.1;
        for (name, ..) in entries {
            *times.entry(name).or_insert(0) += 1;
        }
        assert!(part < 100_000, "reading the directory does not end");
    }
    times
}

pub fn each_entry_is_handed_out_once<E: Engine>(bed: &Bed<'_, E>) {
    let dir = bed.mkdir(&bed.root(), "dir");
    assert!(some(bed, &dir, 0, 10).is_empty());
    let kinds = [
        NewKind::File,
        NewKind::Dir,
        NewKind::Symlink(b"x"),
        NewKind::Fifo,
        NewKind::Socket,
        NewKind::CharDev(3),
        NewKind::BlockDev(4),
    ];
    for at in 0..100 {
        bed.make(&dir, &format!("name{at}"), kinds[at % kinds.len()]);
    }
    let entries = some(bed, &dir, 0, usize::MAX);
    assert_eq!(entries.len(), 100);
    for (name, cookie, ino, kind) in &entries {
        let attr = bed.attr(&bed.get(&dir, name));
        assert_eq!((attr.ino, attr.kind), (*ino, *kind), "{name}");
        assert!(*cookie >= COOKIE_FIRST);
    }
    let cookies: BTreeSet<u64> = entries.iter().map(|entry| entry.1).collect();
    let names: BTreeSet<&String> = entries.iter().map(|entry| &entry.0).collect();
    assert_eq!((cookies.len(), names.len()), (100, 100));
}

pub fn a_refused_entry_is_not_consumed<E: Engine>(bed: &Bed<'_, E>) {
    let dir = bed.mkdir(&bed.root(), "dir");
    for at in 0..30 {
        bed.file(&dir, &format!("name{at}"));
    }
    let all = some(bed, &dir, 0, usize::MAX);
    for count in 1..30 {
        let first = some(bed, &dir, 0, count);
        assert_eq!(first, all[..count]);
        assert_eq!(
            some(bed, &dir, first[count - 1].1, usize::MAX),
            all[count..]
        );
    }
    assert!(some(bed, &dir, 0, 0).is_empty());
}

pub fn cookies_resume_where_they_left<E: Engine>(bed: &Bed<'_, E>) {
    let dir = bed.mkdir(&bed.root(), "dir");
    for at in 0..500 {
        bed.file(&dir, &format!("name{at}"));
    }
    for count in [1, 2, 7, 64, 499, 500, 501] {
        let times = met(bed, &dir, count, |_| {});
        assert_eq!(times.len(), 500);
        assert!(times.values().all(|&times| times == 1), "{count} at a time");
    }
    let all = some(bed, &dir, 0, usize::MAX);
    assert!(
        some(bed, &dir, all[499].1, 10).is_empty(),
        "nothing comes after the last"
    );
}

pub fn entries_that_stay_are_met_once_while_others_come_and_go<E: Engine>(bed: &Bed<'_, E>) {
    let dir = bed.mkdir(&bed.root(), "dir");
    for at in 0..400 {
        bed.file(&dir, &format!("stays{at}"));
        bed.file(&dir, &format!("goes{at}"));
    }
    let times = met(bed, &dir, 10, |part| {
        // Enough new names that a table of buckets grows on the way.
        for at in 0..40 {
            bed.file(&dir, &format!("comes{part}-{at}"));
        }
        for at in (part * 8 - 8)..(part * 8).min(400) {
            bed.unlink(&dir, &format!("goes{at}")).expect("removed");
        }
        if part > 40 {
            for at in 0..40 {
                bed.unlink(&dir, &format!("comes{part}-{at}"))
                    .expect("removed");
            }
        }
    });
    for at in 0..400 {
        assert_eq!(times.get(&format!("stays{at}")), Some(&1), "stays{at}");
    }
    assert!(times.values().all(|&times| times == 1));
}

pub fn a_cookie_of_a_removed_entry_still_resumes<E: Engine>(bed: &Bed<'_, E>) {
    let dir = bed.mkdir(&bed.root(), "dir");
    for at in 0..100 {
        bed.file(&dir, &format!("name{at}"));
    }
    let all = some(bed, &dir, 0, usize::MAX);
    for entry in &all[..50] {
        bed.unlink(&dir, &entry.0).expect("removed");
    }
    assert_eq!(some(bed, &dir, all[49].1, usize::MAX), all[50..]);
    assert_eq!(some(bed, &dir, all[20].1, usize::MAX), all[50..]);
    // As `rm -r` does it: read some, remove them, go on.
    let mut cookie = 0;
    loop {
        let entries = some(bed, &dir, cookie, 7);
        let Some(last) = entries.last() else { break };
        cookie = last.1;
        for entry in &entries {
            bed.unlink(&dir, &entry.0).expect("removed");
        }
    }
    assert!(bed.ls(&dir).is_empty());
}

pub fn replaced_and_exchanged_names_are_met_once<E: Engine>(bed: &Bed<'_, E>) {
    let (dir, other) = (
        bed.mkdir(&bed.root(), "dir"),
        bed.mkdir(&bed.root(), "other"),
    );
    for at in 0..60 {
        bed.file(&dir, &format!("name{at}"));
        bed.file(&other, &format!("other{at}"));
    }
    let times = met(bed, &dir, 5, |part| {
        for at in 0..60 {
            let (name, other_name) = (format!("name{at}"), format!("other{at}"));
            if part % 2 == 0 {
                bed.file(&other, "new");
                bed.rename((&other, "new"), (&dir, &name), RenameMode::Replace)
                    .expect("renamed");
            } else {
                bed.rename((&other, &other_name), (&dir, &name), RenameMode::Exchange)
                    .expect("exchanged");
            }
        }
    });
    assert_eq!(times.len(), 60);
    assert!(times.values().all(|&times| times == 1), "{times:?}");
}

/// Make `names`, check that all are there and can be read, remove them in another order.
fn grow_and_shrink<E: Engine>(bed: &Bed<'_, E>, names: &[String]) {
    let dir = bed.mkdir(&bed.root(), "dir");
    let inos: Vec<Ino> = names
        .iter()
        .map(|name| bed.fs.ino(&bed.file(&dir, name)))
        .collect();
    for (name, ino) in names.iter().zip(&inos) {
        assert_eq!(bed.fs.ino(&bed.get(&dir, name)), *ino, "{name}");
    }
    let mut sorted = names.to_vec();
    sorted.sort();
    assert_eq!(bed.ls(&dir), sorted);
    let (gone, kept): (Vec<_>, Vec<_>) = (0..names.len()).partition(|at| at % 10 != 3);
    for &at in gone.iter().rev() {
        bed.unlink(&dir, &names[at]).expect("removed");
    }
    let mut left: Vec<String> = kept.iter().map(|&at| names[at].clone()).collect();
    left.sort();
    assert_eq!(bed.ls(&dir), left);
    assert!(gone.iter().all(|&at| !bed.exists(&dir, &names[at])));
    for name in &left {
        bed.unlink(&dir, name).expect("removed");
    }
    bed.rmdir(&bed.root(), "dir").expect("it is empty");
}

pub fn five_thousand_names_grow_and_shrink<E: Engine>(bed: &Bed<'_, E>) {
    let names: Vec<String> = (0..5000).map(|at| format!("{at}")).collect();
    grow_and_shrink(bed, &names);
}

pub fn colliding_prefixes_are_told_apart<E: Engine>(bed: &Bed<'_, E>) {
    let prefix = "a-prefix-that-is-longer-than-what-fits-inline-in-an-entry-";
    let names: Vec<String> = (0..5000)
        .map(|at| match at % 3 {
            0 => format!("{prefix}{at:05}"),
            1 => format!("{prefix}{at:05}{}", "x".repeat(100)),
            _ => format!("{}{}", &prefix[..27], at),
        })
        .collect();
    grow_and_shrink(bed, &names);
}

pub fn a_directory_emptied_can_be_removed<E: Engine>(bed: &Bed<'_, E>) {
    for round in 0..5 {
        let dir = bed.mkdir(&bed.root(), "dir");
        for at in 0..300 {
            bed.file(&dir, &format!("{round}-{at}"));
        }
        assert_eq!(fails(bed.rmdir(&bed.root(), "dir")), Errno::NOTEMPTY);
        for at in 0..300 {
            bed.unlink(&dir, &format!("{round}-{at}")).expect("removed");
        }
        bed.rmdir(&bed.root(), "dir").expect("it is empty");
    }
}

pub fn emit_may_call_back<E: Engine>(bed: &Bed<'_, E>) {
    let dir = bed.mkdir(&bed.root(), "dir");
    for at in 0..50 {
        bed.file(&dir, &format!("name{at}"));
    }
    let mut count = 0;
    bed.fs
        .readdir(&dir, 0, &mut |entry| {
            let node = bed.fs.lookup(&dir, entry.name).expect("it is there");
            assert_eq!(bed.attr(&node).ino, entry.ino);
            count += 1;
            true
        })
        .expect("read");
    assert_eq!(count, 50);
}

pub fn readdir_belongs_to_directories_only<E: Engine>(bed: &Bed<'_, E>) {
    for (name, kind) in [
        ("file", NewKind::File),
        ("link", NewKind::Symlink(b"/")),
        ("fifo", NewKind::Fifo),
    ] {
        let node = bed.make(&bed.root(), name, kind);
        assert_eq!(
            fails(bed.fs.readdir(&node, 0, &mut |_| true)),
            Errno::NOTDIR
        );
    }
}
