//! Many threads at once.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use vfs::{Errno, FileSystem, NewKind, RenameMode};

use super::data::pattern;
use super::{Bed, Engine, NodeOf, fails, new};

const THREADS: usize = 4;
const ROUNDS: usize = 300;

/// Run `work` in several threads that start together; each is told its number.
fn together(count: usize, work: impl Fn(usize) + Sync) {
    let barrier = Barrier::new(count);
    thread::scope(|scope| {
        for at in 0..count {
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move || {
                barrier.wait();
                work(at);
            });
        }
    });
}

/// Make, rename, link and remove names of thread `me` in `dir`; every third of them stays.
fn churn<E: Engine>(bed: &Bed<'_, E>, dir: &NodeOf<E>, me: usize) {
    for at in 0..ROUNDS {
        let (name, moved) = (format!("{me}-{at}"), format!("{me}-{at}-moved"));
        let data = pattern(100 + at, me as u8);
        bed.file_with(dir, &name, &data);
        bed.rename((dir, &name), (dir, &moved), RenameMode::NoReplace)
            .expect("moved");
        if at % 3 == 0 {
            assert!(bed.contents(&bed.get(dir, &moved)) == data);
        } else {
            bed.unlink(dir, &moved).expect("removed");
        }
        let sub = format!("{me}-sub{at}");
        bed.mkdir(dir, &sub);
        if at % 3 != 1 {
            bed.rmdir(dir, &sub).expect("removed");
        }
    }
}

/// What [`churn`] leaves, sorted.
fn left(threads: impl Iterator<Item = usize>) -> Vec<String> {
    let mut names: Vec<String> = threads
        .flat_map(|me| {
            let files = (0..ROUNDS)
                .step_by(3)
                .map(move |at| format!("{me}-{at}-moved"));
            files.chain(
                (1..ROUNDS)
                    .step_by(3)
                    .map(move |at| format!("{me}-sub{at}")),
            )
        })
        .collect();
    names.sort();
    names
}

pub fn separate_directories_do_not_disturb_each_other<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let dirs: Vec<_> = (0..THREADS)
        .map(|at| bed.mkdir(&root, &format!("dir{at}")))
        .collect();
    together(THREADS, |me| churn(bed, &dirs[me], me));
    for (me, dir) in dirs.iter().enumerate() {
        assert_eq!(bed.ls(dir), left(me..me + 1));
        assert_eq!(bed.nlink(dir) as usize, 2 + ROUNDS / 3);
    }
}

pub fn one_directory_takes_names_from_all<E: Engine>(bed: &Bed<'_, E>) {
    let dir = bed.mkdir(&bed.root(), "dir");
    together(THREADS, |me| churn(bed, &dir, me));
    assert_eq!(bed.ls(&dir), left(0..THREADS));
    assert_eq!(bed.nlink(&dir) as usize, 2 + THREADS * ROUNDS / 3);
}

pub fn only_one_creates_a_name<E: Engine>(bed: &Bed<'_, E>) {
    let dir = bed.mkdir(&bed.root(), "dir");
    let made = AtomicUsize::new(0);
    together(THREADS, |_| {
        for at in 0..ROUNDS {
            match bed
                .fs
                .create(&dir, format!("{at}").as_bytes(), &new(NewKind::File))
            {
                Ok(_) => drop(made.fetch_add(1, Ordering::Relaxed)),
                Err(error) => assert_eq!(error.errno(), Errno::EXIST),
            }
        }
    });
    assert_eq!((made.into_inner(), bed.ls(&dir).len()), (ROUNDS, ROUNDS));
}

pub fn only_one_removes_a_name<E: Engine>(bed: &Bed<'_, E>) {
    let (dir, other) = (
        bed.mkdir(&bed.root(), "dir"),
        bed.mkdir(&bed.root(), "other"),
    );
    let files: Vec<_> = (0..ROUNDS)
        .map(|at| bed.file(&dir, &format!("{at}")))
        .collect();
    let removed = AtomicUsize::new(0);
    together(THREADS, |me| {
        for at in 0..ROUNDS {
            let name = format!("{at}");
            let result = match me % 2 {
                0 => bed.unlink(&dir, &name),
                _ => bed.rename((&dir, &name), (&other, &name), RenameMode::Replace),
            };
            match result {
                Ok(()) => drop(removed.fetch_add(1, Ordering::Relaxed)),
                Err(error) => assert_eq!(error.errno(), Errno::NOENT),
            }
        }
    });
    assert_eq!(removed.into_inner(), ROUNDS);
    assert!(bed.ls(&dir).is_empty());
    for (at, file) in files.iter().enumerate() {
        assert_eq!(
            bed.nlink(file),
            u32::from(bed.exists(&other, &format!("{at}")))
        );
    }
}

pub fn readers_see_the_old_or_the_new<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let inos = [
        bed.fs.ino(&bed.file(&root, "name")),
        bed.fs.ino(&bed.file(&root, "other")),
    ];
    let done = AtomicBool::new(false);
    together(3, |me| {
        if me == 0 {
            for _ in 0..ROUNDS * 5 {
                bed.rename((&root, "name"), (&root, "other"), RenameMode::Exchange)
                    .expect("exchanged");
            }
            done.store(true, Ordering::SeqCst);
            return;
        }
        while !done.load(Ordering::SeqCst) {
            let node = bed.get(&root, "name");
            assert!(inos.contains(&bed.fs.ino(&node)));
            assert_eq!(bed.nlink(&node), 1);
            assert_eq!(bed.ls(&root), ["name", "other"]);
        }
    });
}

pub fn renames_over_one_name_leave_one<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    bed.file_with(&root, "target", b"0");
    let done = AtomicUsize::new(0);
    together(THREADS + 1, |me| {
        if me == THREADS {
            while done.load(Ordering::SeqCst) < THREADS {
                assert_eq!(
                    bed.contents(&bed.get(&root, "target")).len(),
                    1,
                    "never missing"
                );
            }
            return;
        }
        let name = format!("source{me}");
        for _ in 0..ROUNDS {
            bed.file_with(&root, &name, &[me as u8]);
            bed.rename((&root, &name), (&root, "target"), RenameMode::Replace)
                .expect("renamed");
        }
        done.fetch_add(1, Ordering::SeqCst);
    });
    assert_eq!(
        (bed.ls(&root), bed.nlink(&bed.get(&root, "target"))),
        (vec!["target".into()], 1)
    );
}

pub fn opposed_renames_never_make_a_cycle<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    for _ in 0..ROUNDS {
        let (a, b) = (bed.mkdir(&root, "a"), bed.mkdir(&root, "b"));
        let moved = AtomicUsize::new(0);
        together(2, |me| {
            let result = match me {
                0 => bed.rename((&root, "a"), (&b, "in"), RenameMode::Replace),
                _ => bed.rename((&root, "b"), (&a, "in"), RenameMode::Replace),
            };
            match result {
                Ok(()) => drop(moved.fetch_add(1, Ordering::Relaxed)),
                Err(error) => {
                    assert!(
                        [Errno::INVAL, Errno::NOENT].contains(&error.errno()),
                        "{error}"
                    );
                }
            }
        });
        assert_eq!(moved.into_inner(), 1);
        let outer = bed.ls(&root);
        assert_eq!(outer.len(), 1);
        bed.rmdir(&bed.get(&root, &outer[0]), "in")
            .expect("removed");
        bed.rmdir(&root, &outer[0]).expect("removed");
    }
}

pub fn directories_swap_back_and_forth<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let dirs: Vec<_> = (0..3)
        .map(|at| bed.mkdir(&root, &format!("dir{at}")))
        .collect();
    for (at, dir) in dirs.iter().enumerate() {
        bed.file(&bed.mkdir(dir, "sub"), &format!("mark{at}"));
    }
    together(3, |me| {
        for _ in 0..ROUNDS {
            let (from, to) = (&dirs[me], &dirs[(me + 1) % 3]);
            bed.rename((from, "sub"), (to, "sub"), RenameMode::Exchange)
                .expect("exchanged");
        }
    });
    let mut marks = Vec::new();
    for dir in &dirs {
        let sub = bed.get(dir, "sub");
        assert!(bed.same(&bed.fs.parent(&sub).expect("it has one"), dir));
        assert_eq!((bed.nlink(dir), bed.nlink(&sub)), (3, 2));
        marks.extend(bed.ls(&sub));
    }
    marks.sort();
    assert_eq!(marks, ["mark0", "mark1", "mark2"]);
}

pub fn appends_do_not_overlap<E: Engine>(bed: &Bed<'_, E>) {
    let file = bed.file(&bed.root(), "file");
    together(THREADS, |me| {
        for at in 0..ROUNDS {
            let record = [me as u8 + 1; 37];
            let (offset, written) = bed.fs.append(&file, &record).expect("appended");
            assert_eq!((offset % 37, written), (0, 37), "round {at}");
        }
    });
    let contents = bed.contents(&file);
    assert_eq!(contents.len(), THREADS * ROUNDS * 37);
    let mut counts = [0; THREADS];
    for record in contents.chunks(37) {
        assert!(record.iter().all(|&byte| byte == record[0]));
        counts[usize::from(record[0]) - 1] += 1;
    }
    assert_eq!(counts, [ROUNDS; THREADS]);
}

pub fn removing_and_making_in_a_directory_exclude_each_other<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    for _ in 0..ROUNDS {
        let dir = bed.mkdir(&root, "dir");
        let made = AtomicBool::new(false);
        let removed = AtomicBool::new(false);
        together(2, |me| {
            if me == 0 {
                match bed.fs.create(&dir, b"file", &new(NewKind::File)) {
                    Ok(_) => made.store(true, Ordering::SeqCst),
                    Err(error) => assert_eq!(error.errno(), Errno::NOENT),
                }
            } else {
                match bed.rmdir(&root, "dir") {
                    Ok(()) => removed.store(true, Ordering::SeqCst),
                    Err(error) => assert_eq!(error.errno(), Errno::NOTEMPTY),
                }
            }
        });
        assert_ne!(made.into_inner(), removed.load(Ordering::SeqCst));
        if !removed.into_inner() {
            bed.unlink(&dir, "file").expect("removed");
            bed.rmdir(&root, "dir").expect("removed");
        }
        assert_eq!(
            fails(bed.fs.create(&dir, b"late", &new(NewKind::File))),
            Errno::NOENT
        );
    }
}

pub fn entries_that_stay_are_met_while_others_change<E: Engine>(bed: &Bed<'_, E>) {
    let dir = bed.mkdir(&bed.root(), "dir");
    for at in 0..100 {
        bed.file(&dir, &format!("stays{at}"));
    }
    let writers = AtomicUsize::new(2);
    together(3, |me| {
        if me < 2 {
            churn(bed, &dir, me);
            writers.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        while writers.load(Ordering::SeqCst) > 0 {
            let mut stayed = 0;
            let mut cookie = 0;
            loop {
                let from = cookie;
                let mut count = 0;
                let emit = &mut |entry: vfs::DirEntry<'_>| {
                    if count == 16 {
                        return false;
                    }
                    count += 1;
                    cookie = entry.cookie;
                    stayed += usize::from(entry.name.starts_with(b"stays"));
                    true
                };
                bed.fs.readdir(&dir, from, emit).expect("read");
                if count == 0 {
                    break;
                }
            }
            assert_eq!(stayed, 100);
        }
    });
}

pub fn links_are_counted<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let file = bed.file(&root, "file");
    let dirs: Vec<_> = (0..THREADS)
        .map(|at| bed.mkdir(&root, &format!("dir{at}")))
        .collect();
    together(THREADS, |me| {
        for at in 0..ROUNDS {
            bed.link(&file, &dirs[me], &format!("{at}"))
                .expect("linked");
            if at % 2 == 0 {
                bed.unlink(&dirs[me], &format!("{at}")).expect("removed");
            }
        }
    });
    assert_eq!(bed.nlink(&file) as usize, 1 + THREADS * ROUNDS / 2);
}
