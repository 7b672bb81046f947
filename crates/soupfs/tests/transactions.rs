//! Mode `strong` in domain `cache`: threads that overwrite the same words by transactions of
//! memory, software ones and the processor's where it has any, beside requests that take locks.

mod common;

use common::{audit, image};
use pmem::transaction::{Aborts, Hardware, Software, Transactions};
use pmem::{Abort, Domain, Options, Pool};
use soupfs::{Mode, MountOptions, Node, SoupFs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use vfs::{FileSystem, NewKind, NewNode, SetAttr, SystemClock, Time};

const LEN: u64 = 16 << 20;
const THREADS: u64 = 3;
/// Requests of a thread.
const COUNT: u32 = 2000;
/// Places of a thread in the file: each a half of a word that it shares.
const PLACES: u64 = 8;

fn mount(pool: &Arc<Pool>, transactions: Option<Arc<dyn Transactions>>) -> SoupFs {
    let options = MountOptions {
        mode: Mode::Strong,
        transactions,
        ..MountOptions::new(Arc::new(SystemClock))
    };
    SoupFs::mount(pool.clone(), options).expect("mount")
}

/// Where a thread's place is.
fn place(thread: u64, n: u64) -> u64 {
    4 * thread + 1500 * n
}

fn number(fs: &SoupFs, file: &Node, at: u64) -> u32 {
    let mut bytes = [0; 4];
    assert_eq!(fs.read(file, at, &mut bytes), Ok(4));
    u32::from_le_bytes(bytes)
}

/// What one thread does: mostly overwrites of its places, and now and then what needs locks.
fn work(fs: &SoupFs, file: &Node, thread: u64) {
    let whole = |n: u32| {
        // A page and more, of bytes that nobody else has.
        let at = 20_000 + thread * 10_000;
        assert_eq!(fs.write(file, at, &[n as u8; 9000]), Ok(9000));
    };
    for n in 1..=COUNT {
        let at = place(thread, u64::from(n) % PLACES);
        assert_eq!(fs.write(file, at, &n.to_le_bytes()), Ok(4));
        assert_eq!(number(fs, file, at), n, "who has written reads it");
        match n % 50 {
            7 => whole(n),
            13 => drop(fs.append(file, &[1; 100]).expect("appended")),
            19 => {
                let set = SetAttr {
                    perm: Some(0o600 | (n as u16 & 7)),
                    ..SetAttr::default()
                };
                fs.setattr(file, &set).expect("set");
            }
            23 => fs.set_atime(file, Time(i64::from(n))).expect("set"),
            29 => fs.syncfs().expect("swept"),
            _ => {}
        }
    }
}

/// What one thread does to a log: appends of its records, whose places it is told, and times now
/// and then, by which others find it changed.
fn log(fs: &SoupFs, file: &Node, thread: u64) {
    for n in 0..u64::from(COUNT) {
        let record = thread << 32 | n;
        let (at, len) = fs.append(file, &record.to_le_bytes()).expect("appended");
        assert_eq!((at % 8, len), (0, 8));
        let mut found = [0; 8];
        assert_eq!(fs.read(file, at, &mut found), Ok(8));
        assert_eq!(u64::from_le_bytes(found), record, "its place is its own");
        if n % 16 == 3 {
            let set = SetAttr {
                mtime: Some(Time(n as i64)),
                uid: Some(thread as u32),
                ..SetAttr::default()
            };
            let attr = fs.setattr(file, &set).expect("set");
            assert_eq!((attr.mtime, attr.uid), (Time(n as i64), thread as u32));
            assert!(attr.size > at);
        }
    }
}

/// All records of a log are there, those of each thread in order.
fn check_log(fs: &SoupFs, file: &Node) {
    let mut bytes = vec![0; fs.attr(file).size as usize];
    assert_eq!(bytes.len() as u64, THREADS * u64::from(COUNT) * 8);
    fs.read(file, 0, &mut bytes).expect("read");
    let mut next = [0; THREADS as usize];
    for record in bytes.as_chunks::<8>().0 {
        let record = u64::from_le_bytes(*record);
        let next = &mut next[(record >> 32) as usize];
        assert_eq!(record & u64::from(u32::MAX), *next);
        *next += 1;
    }
}

/// Looks at all places while others work: none goes back.
fn watch(fs: &SoupFs, file: &Node, ended: &AtomicBool) {
    let mut seen = [[0; PLACES as usize]; THREADS as usize];
    while !ended.load(SeqCst) {
        for (thread, places) in (0..).zip(&mut seen) {
            for (n, seen) in (0..).zip(places) {
                let now = number(fs, file, place(thread, n));
                assert!(now >= *seen, "{now} after {seen}");
                *seen = now;
            }
        }
    }
}

fn overwrite_together(transactions: Arc<dyn Transactions>, without_lock: bool) {
    let name = transactions.name();
    let pool = image(LEN, Domain::Cache, Time(1));
    let fs = mount(&pool, Some(transactions));
    let new = NewNode {
        kind: NewKind::File,
        perm: 0o600,
        uid: 0,
        gid: 0,
        xattrs: &[],
    };
    let file = fs.create(&fs.root(), b"file", &new).expect("made");
    assert_eq!(fs.write(&file, 0, &[0; 60_000]), Ok(60_000));
    let records = fs.create(&fs.root(), b"log", &new).expect("made");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| watch(&fs, &file, &ended));
        let (fs, file, records) = (&fs, &file, &records);
        let logging = (0..THREADS).map(|thread| scope.spawn(move || log(fs, records, thread)));
        let logging: Vec<_> = logging.collect();
        let working = (0..THREADS).map(|thread| scope.spawn(move || work(fs, file, thread)));
        let working: Vec<_> = working.collect();
        let all = working.into_iter().chain(logging);
        let all = all.map(|thread| thread.join());
        let failed: Vec<_> = all.filter(Result::is_err).collect();
        ended.store(true, SeqCst);
        assert!(failed.is_empty(), "{name}");
    });
    let spent = pool.stats();
    assert!(
        (spent.commits_optimistic > 0) == without_lock,
        "{name}: {spent:?}"
    );
    // What is visible is durable: another mount finds what callers saw.
    let options = Options {
        domain: Some(Domain::Cache),
        ..Options::default()
    };
    let left = Arc::new(Pool::from_bytes(&pool.snapshot(), &options).expect("memory"));
    let again = mount(&left, None);
    let found = again.lookup(&again.root(), b"file").expect("there");
    for thread in 0..THREADS {
        for n in 0..PLACES {
            let last = (1..=COUNT).rev().find(|&i| u64::from(i) % PLACES == n);
            let at = place(thread, n);
            let both = (number(&fs, &file, at), number(&again, &found, at));
            assert_eq!(
                both,
                (last.expect("written"), last.expect("written")),
                "{name}"
            );
        }
    }
    let of = |attr: vfs::Attr| (attr.size, attr.perm, attr.mtime, attr.ctime, attr.blocks);
    let found_log = again.lookup(&again.root(), b"log").expect("there");
    check_log(&fs, &records);
    check_log(&again, &found_log);
    for (seen, found) in [(&file, &found), (&records, &found_log)] {
        let (seen, durable) = (fs.attr(seen), again.attr(found));
        assert_eq!((of(seen), seen.uid), (of(durable), durable.uid), "{name}");
    }
    drop((file, found, records, found_log));
    again.unmount().expect("unmounted");
    fs.unmount().expect("unmounted");
    audit(&pool);
}

fn software(aborts: Aborts) -> Arc<dyn Transactions> {
    Arc::new(Software::new(Software::LINES_MAX, aborts))
}

#[test]
fn threads_overwrite_halves_of_words_by_software_transactions() {
    overwrite_together(software(Aborts::Never), true);
    overwrite_together(software(Aborts::Optimistic(Abort::Conflict)), false);
    overwrite_together(software(Aborts::Always(Abort::Other)), false);
}

#[test]
fn threads_overwrite_halves_of_words_by_transactions_of_the_processor() {
    match Hardware::detect() {
        Some(hardware) => overwrite_together(Arc::new(hardware), true),
        None => testing::skip!("this processor commits no transactions"),
    }
}

/// Requests that a word in each view says all of take no lock; the rest does.
#[test]
fn few_bytes_behind_the_end_and_what_is_a_word_of_an_inode_take_no_lock() {
    let pool = image(LEN, Domain::Cache, Time(1));
    let fs = mount(&pool, Some(software(Aborts::Never)));
    let new = NewNode {
        kind: NewKind::File,
        perm: 0o600,
        uid: 0,
        gid: 0,
        xattrs: &[],
    };
    let file = fs.create(&fs.root(), b"file", &new).expect("made");
    let spent = |what: &str, request: &dyn Fn()| {
        let before = pool.stats();
        request();
        let spent = pool.stats() - before;
        let locks = spent.commits_transaction + spent.commits_log + spent.commits_word;
        assert_eq!(spent.commits_optimistic + locks, 1, "{what}");
        spent.commits_optimistic == 1
    };
    let append = |len: usize| {
        let appended = fs.append(&file, &vec![7; len]).expect("appended");
        assert_eq!(appended.1, len);
    };
    let set = |set: SetAttr| {
        let attr = fs.setattr(&file, &set).expect("set");
        assert_eq!(attr, fs.attr(&file));
    };
    let none = SetAttr::default();
    for (what, without_lock, request) in [
        ("the first block", false, &|| append(100)),
        ("behind the end", true, &|| append(3000)),
        ("up to the end of the block", true, &|| append(996)),
        ("the next block", false, &|| append(10)),
        ("over the end of the block", false, &|| append(4090)),
        ("over the end of the file", true, &|| {
            let at = fs.attr(&file).size - 4;
            assert_eq!(fs.write(&file, at, &[8; 9]), Ok(9));
        }),
        ("behind a gap", false, &|| {
            let at = fs.attr(&file).size + 1;
            assert_eq!(fs.write(&file, at, &[9; 9]), Ok(9));
        }),
        ("a time", true, &|| {
            set(SetAttr {
                mtime: Some(Time(9)),
                ..none
            })
        }),
        ("access", true, &|| {
            set(SetAttr {
                atime: Some(Time(8)),
                ..none
            })
        }),
        ("an owner", true, &|| {
            set(SetAttr {
                gid: Some(3),
                ..none
            })
        }),
        ("the mode", true, &|| {
            set(SetAttr {
                perm: Some(0o711),
                ..none
            })
        }),
        ("a time and the mode", true, &|| {
            set(SetAttr {
                perm: Some(0o700),
                mtime: Some(Time(7)),
                ..none
            })
        }),
        ("the size", false, &|| {
            set(SetAttr {
                size: Some(50),
                ..none
            })
        }),
        ("behind the new end", true, &|| append(10)),
    ] as [(&str, bool, &dyn Fn()); 14]
    {
        assert_eq!(spent(what, request), without_lock, "{what}");
    }
    let mut bytes = [0; 100];
    assert_eq!(fs.read(&file, 0, &mut bytes), Ok(60));
    assert_eq!(bytes[..60], [7; 60]);
    let attr = fs.attr(&file);
    assert_eq!((attr.gid, attr.atime, attr.perm), (3, Time(8), 0o700));
    drop(file);
    fs.unmount().expect("unmounted");
    audit(&pool);
}
