//! Mode `strong`: what callers see of requests, and what these leave when they fail. What a crash
//! leaves is explored in `explorer`.

mod common;

use common::{Soup, audit, image};
use model::Engine;
use pmem::{Domain, Options, Pool, Syncer};
use soupfs::{Mode, Node, SoupFs};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use vfs::{
    At, Change, Errno, Fallocate, FileSystem, Fsync, ManualClock, NewKind, NewNode, Place,
    RenameMode, Result, SetAttr, Time, XattrChange,
};

const LEN: u64 = 4 << 20;

fn mounted(len: u64) -> SoupFs {
    mounted_at(len, Arc::new(ManualClock::new(Time(5))))
}

fn mounted_at(len: u64, clock: Arc<ManualClock>) -> SoupFs {
    let engine = Soup {
        len,
        mode: Mode::Strong,
        manual: true,
        ..Soup::default()
    };
    engine.make(clock)
}

fn file(fs: &SoupFs, name: &str) -> Node {
    let new = NewNode {
        kind: NewKind::File,
        perm: 0o600,
        uid: 0,
        gid: 0,
        xattrs: &[],
    };
    fs.create(&fs.root(), name.as_bytes(), &new).expect("made")
}

fn batches(fs: &SoupFs) -> u64 {
    fs.status().backlog.batches
}

/// What can be seen of a file, and of space.
fn account(fs: &SoupFs, node: &Node) -> (vfs::Attr, Vec<u8>, u64) {
    let attr = fs.attr(node);
    let mut bytes = vec![0; attr.size as usize];
    fs.read(node, 0, &mut bytes).expect("read");
    (attr, bytes, fs.statfs().free)
}

#[test]
fn a_request_that_finds_too_little_space_changes_nothing() {
    let fs = mounted(LEN);
    let (node, other) = (file(&fs, "file"), file(&fs, "other"));
    fs.write(&node, 0, &[1; 100_000]).expect("written");
    let half = fs.statfs().free * 4096 / 2;
    fs.write(&other, 0, &vec![3; half as usize])
        .expect("written");
    let much = vec![2; LEN as usize];
    let set = SetAttr {
        perm: Some(0o600),
        ..SetAttr::default()
    };
    let also = Change { set, xattrs: &[] };
    let zero = Fallocate::Zero { keep_size: false };
    let before = account(&fs, &node);
    for _ in 0..3 {
        let refused = [
            fs.write_with(&node, 50, &much, Some(&also)).map(drop),
            fs.append_with(&node, &much, Some(&also)).map(drop),
            fs.fallocate(&node, zero, 10, LEN),
        ];
        for refused in refused {
            assert_eq!(refused.map_err(|e| e.errno()), Err(Errno::NOSPC));
            assert_eq!(account(&fs, &node), before);
        }
    }
    // Each takes the pages of the one before: what a request replaced is free again in time.
    for round in 0..50 {
        let bytes = vec![round; half as usize];
        assert_eq!(fs.write(&other, 0, &bytes).expect("written"), bytes.len());
    }
    drop((node, other));
    fs.unmount().expect("unmounted");
    audit(fs.pool());
}

/// 12 GiB in an image of 40 are more blocks than the journal has words for, and in each leaf of the
/// index one has been mapped before.
#[test]
fn a_request_of_more_blocks_than_the_journal_has_words_for_is_one_batch() {
    let fs = mounted(40 << 30);
    let (node, len, leaf) = (file(&fs, "file"), 12_u64 << 30, 2_u64 << 20);
    let allocate = Fallocate::Allocate { keep_size: false };
    let free = fs.statfs().free;
    for at in (0..len).step_by(leaf as usize) {
        fs.fallocate(&node, allocate, at, 4096).expect("reserved");
    }
    fs.write(&node, 5 * leaf, &[7; 4096]).expect("written");
    let before = (batches(&fs), fs.pool().stats().commits_log);
    fs.fallocate(&node, allocate, 0, len).expect("reserved");
    let after = (batches(&fs), fs.pool().stats().commits_log);
    assert_eq!(after, (before.0 + 1, before.1 + 1));
    let attr = fs.attr(&node);
    assert_eq!((attr.size, attr.blocks), (len, len / 512));
    assert!(
        free - fs.statfs().free < len / 4096 + 2 * len / leaf,
        "no copy is lost"
    );
    let mut bytes = [0; 8192];
    fs.read(&node, 5 * leaf - 4096, &mut bytes).expect("read");
    assert!(bytes[..4096] == [0; 4096] && bytes[4096..] == [7; 4096]);
    let zero = Fallocate::Zero { keep_size: true };
    fs.fallocate(&node, zero, 0, len).expect("zeroed");
    fs.read(&node, 5 * leaf - 4096, &mut bytes).expect("read");
    assert!(bytes == [0; 8192]);
    let set = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    fs.setattr(&node, &set).expect("cut");
    while fs.statfs().free < free {
        fs.syncfs().expect("synced");
    }
}

#[test]
fn times_of_access_that_wait_leave_room_for_a_request() {
    let clock = Arc::new(ManualClock::new(Time(5)));
    let fs = mounted_at(LEN, clock.clone());
    // More than the journal has words.
    let nodes: Vec<_> = (0..3000).map(|i| file(&fs, &i.to_string())).collect();
    for (i, node) in nodes.iter().enumerate() {
        fs.set_atime(node, Time(1000 + i as i64)).expect("set");
    }
    clock.set(Time(5_000_000_000));
    assert_eq!(fs.status().late.as_nanos(), 0, "what is promised is there");
    file(&fs, "last");
    for (i, node) in nodes.iter().enumerate() {
        assert_eq!(fs.attr(node).atime, Time(1000 + i as i64));
    }
    drop(nodes);
    fs.unmount().expect("unmounted");
    audit(fs.pool());
}

#[test]
fn a_write_of_any_length_is_one_batch() {
    let fs = mounted(128 << 20);
    let node = file(&fs, "file");
    let other = file(&fs, "other");
    for (i, bytes) in [vec![1; 40 << 20], vec![2; 39 << 20]].iter().enumerate() {
        let before = batches(&fs);
        assert_eq!(
            fs.write(&node, 77, bytes).expect("written"),
            bytes.len(),
            "{i}"
        );
        assert_eq!(batches(&fs), before + 1);
    }
    let before = batches(&fs);
    let place = |node| At::new(node, 5);
    let copied = fs.copy_range(place(&node), place(&other), 33 << 20);
    assert_eq!(
        (copied.expect("copied"), batches(&fs)),
        (33 << 20, before + 1)
    );
    fs.fsync(&node, Fsync::All).expect("nothing to do");
    assert_eq!(batches(&fs), before + 1);
}

/// A block that is overwritten throughout takes a few pages in turn, not all of the image.
#[test]
fn pages_that_were_replaced_are_used_again_soon() {
    let fs = mounted(64 << 20);
    let node = file(&fs, "file");
    let bytes = [0x5a; 4096];
    for _ in 0..5000 {
        assert_eq!(fs.write(&node, 0, &bytes), Ok(bytes.len()));
    }
    let image = fs.pool().snapshot();
    let used = image
        .as_chunks::<4096>()
        .0
        .iter()
        .filter(|page| **page == bytes);
    let used = used.count();
    assert!((1..400).contains(&used), "{used}");
}

/// What a small write changes is in a record, which a crash would replay: what is stored to these
/// blocks next must not come before it. (A build with debug assertions panics if it does.)
#[test]
fn bytes_that_a_record_has_are_changed_by_records_alone() {
    type Next = fn(&SoupFs, &Node) -> vfs::Result<()>;
    let resize = |fs: &SoupFs, node: &Node, size| {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        fs.setattr(node, &set).map(drop)
    };
    let next: [Next; 8] = [
        |fs, node| fs.append_with(node, &[4; 50], None).map(drop),
        |fs, node| fs.append_with(node, &[4; 5000], None).map(drop),
        |fs, node| fs.write(node, 4300, &[4; 50]).map(drop),
        |fs, node| fs.write(node, 9000, &[4; 5000]).map(drop),
        |fs, node| {
            let set = SetAttr {
                size: Some(9000),
                ..SetAttr::default()
            };
            fs.setattr(node, &set).map(drop)
        },
        |fs, node| fs.fallocate(node, Fallocate::Allocate { keep_size: false }, 0, 9000),
        |fs, node| {
            fs.fallocate(node, Fallocate::Zero { keep_size: false }, 0, 9000)?;
            fs.write(node, 100, &[4; 3000]).map(drop)
        },
        |fs, node| {
            fs.fallocate(node, Fallocate::Punch, 4000, 120)?;
            fs.write(node, 4000, &[4; 3000]).map(drop)
        },
    ];
    for (number, next) in next.iter().enumerate() {
        for domain in [pmem::Domain::Line, pmem::Domain::Cache, pmem::Domain::Page] {
            let engine = Soup {
                len: LEN,
                mode: Mode::Strong,
                domain,
                manual: true,
                ..Soup::default()
            };
            let fs = engine.make(Arc::new(ManualClock::new(Time(5))));
            let node = file(&fs, "file");
            fs.write(&node, 0, &[1; 10_000]).expect("written");
            // Across the end of a block, then cut within that.
            fs.write(&node, 4090, &[2; 100]).expect("written");
            resize(&fs, &node, 4150).expect("cut");
            next(&fs, &node).expect("done");
            let before = account(&fs, &node).1;
            assert_eq!(before[4089], before[4088], "{number} in {domain}");
            drop(node);
            let fs = engine.remount(fs);
            let node = fs.lookup(&fs.root(), b"file").expect("there");
            assert_eq!(account(&fs, &node).1, before, "{number} in {domain}");
        }
    }
}

/// The end of a block is zeroed by the record, and the file grows over void bytes of the same
/// block, which are zeroed in place: the record carries the line of both as it was before.
#[test]
fn zeros_across_the_end_of_a_file_are_there_after_a_crash() {
    for domain in [Domain::Line, Domain::Cache, Domain::Page] {
        let engine = Soup {
            len: LEN,
            mode: Mode::Strong,
            domain,
            manual: true,
            ..Soup::default()
        };
        let clock = Arc::new(ManualClock::new(Time(5)));
        let fs = engine.make(clock.clone());
        let node = file(&fs, "file");
        fs.write(&node, 0, &[1; 10_000]).expect("written");
        let zero = Fallocate::Zero { keep_size: false };
        fs.fallocate(&node, zero, 9990, 100).expect("zeroed");
        let mut want = vec![1; 9990];
        want.resize(10_090, 0);
        assert_eq!(account(&fs, &node).1, want, "{domain}");
        let options = Options {
            domain: Some(domain),
            ..Options::default()
        };
        let crashed = Pool::from_bytes(&fs.pool().snapshot(), &options).expect("memory");
        let fs = engine.mount(Arc::new(crashed), clock);
        let node = fs.lookup(&fs.root(), b"file").expect("there");
        assert_eq!(account(&fs, &node).1, want, "{domain}");
    }
}

/// Versions of a file: the newest that somebody has begun to write, and that is written.
#[derive(Default)]
struct Versions {
    begun: AtomicU8,
    written: AtomicU8,
}

/// A file whose bytes and size all say which version it is.
fn bytes_of(version: u8) -> Vec<u8> {
    vec![version; 6000 + usize::from(version)]
}

/// One thread writes versions of a file and others read it: each read shows one version as a whole,
/// not older than what was written before it began or than the last that the reader saw, and not
/// newer than what was begun by its end. With one writer that is linearizability.
#[test]
fn a_read_shows_a_file_as_it_was_at_one_time() {
    const LAST: u8 = 200;
    for manual in [true, false] {
        let engine = Soup {
            mode: Mode::Strong,
            manual,
            ..Soup::default()
        };
        let fs = engine.make(Arc::new(ManualClock::new(Time(5))));
        let files: Vec<_> = ["a", "b"].map(|name| file(&fs, name)).into();
        let versions = [(); 2].map(|()| Versions::default());
        let write = |i: usize| {
            for version in 1..=LAST {
                versions[i].begun.store(version, SeqCst);
                let written = fs.write(&files[i], 0, &bytes_of(version));
                assert_eq!(written.expect("written"), bytes_of(version).len());
                versions[i].written.store(version, SeqCst);
            }
        };
        let read = |i: usize| {
            let (mut last, mut buf) = (0, vec![0; 7000]);
            while last < LAST {
                let oldest = versions[i].written.load(SeqCst).max(last);
                let len = fs.read(&files[i], 0, &mut buf).expect("read");
                last = buf[..len].first().copied().unwrap_or(0);
                assert!(last == 0 && len == 0 || buf[..len] == bytes_of(last));
                assert!((oldest..=versions[i].begun.load(SeqCst)).contains(&last));
            }
        };
        std::thread::scope(|scope| {
            for i in 0..2 {
                scope.spawn(move || write(i));
                scope.spawn(move || read(i));
                scope.spawn(move || read(i));
            }
        });
        drop(files);
        fs.unmount().expect("unmounted");
        audit(fs.pool());
    }
}

/// A medium that fails once it is told so.
#[derive(Default)]
struct Failing(AtomicBool);

impl Syncer for Failing {
    fn sync(&self, _: u64, _: u64, medium: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
        match self.0.load(SeqCst) {
            true => Err(io::Error::from_raw_os_error(5)),
            false => medium(),
        }
    }
}

const NAMES: [&str; 4] = ["file", "other", "dir", "new"];

/// All that callers see of a file, of its directory, and of names.
fn seen(fs: &SoupFs, node: &Node) -> impl PartialEq + std::fmt::Debug + use<> {
    let root = fs.root();
    let attr = fs.attr(node);
    let mut bytes = vec![0; 1 << 16];
    let len = fs.read(node, 0, &mut bytes).expect("read");
    let runs = bytes[..len].chunk_by(|a, b| a == b);
    let bytes: Vec<(u8, usize)> = runs.map(|run| (run[0], run.len())).collect();
    let mut listed = Vec::new();
    let emit = &mut |entry: vfs::DirEntry<'_>| {
        listed.push((entry.name.to_vec(), entry.ino));
        true
    };
    fs.readdir(&root, 0, emit).expect("listed");
    let looked_up = NAMES.map(|name| {
        let found = fs.lookup(&root, name.as_bytes());
        found.map(|node| fs.attr(&node)).map_err(|e| e.errno())
    });
    let xattrs = fs.listxattr(node).expect("listed");
    let values: Vec<_> = xattrs.iter().map(|name| fs.getxattr(node, name)).collect();
    let handle = fs.node(fs.ino(node)).map(drop);
    let removed = fs.is_removed(node);
    let parent = fs.parent(node).map(drop).map_err(|e| e.errno());
    let names = (listed, looked_up, handle, removed, parent);
    (
        attr,
        fs.rights(node),
        bytes,
        xattrs,
        values,
        fs.attr(&root),
        names,
    )
}

const NO_VETO: vfs::Veto<'static> = &|_| Ok(());

type Request = fn(&SoupFs, &Node) -> Result<()>;

/// Requests of each kind that changes something, by name.
const REQUESTS: &[(&str, Request)] = &[
    ("append", |fs, node| fs.append(node, &[2; 5000]).map(drop)),
    ("overwrite", |fs, node| {
        fs.write(node, 50, &[3; 9000]).map(drop)
    }),
    ("a few bytes", |fs, node| {
        fs.write(node, 50, &[3; 9]).map(drop)
    }),
    ("shorter", |fs, node| {
        let size = Some(10);
        fs.setattr(
            node,
            &SetAttr {
                size,
                ..SetAttr::default()
            },
        )
        .map(drop)
    }),
    ("mode", |fs, node| {
        let perm = Some(0o711);
        fs.setattr(
            node,
            &SetAttr {
                perm,
                ..SetAttr::default()
            },
        )
        .map(drop)
    }),
    ("reserve", |fs, node| {
        fs.fallocate(node, Fallocate::Allocate { keep_size: false }, 0, 40_000)
    }),
    ("punch", |fs, node| {
        fs.fallocate(node, Fallocate::Punch, 0, 8000)
    }),
    ("xattrs", |fs, node| {
        let xattrs = &[
            XattrChange::remove(b"user.a"),
            XattrChange::set(b"user.b", b"2"),
        ];
        fs.apply(
            node,
            &Change {
                set: SetAttr::default(),
                xattrs,
            },
        )
        .map(drop)
    }),
    ("create", |fs, _| {
        let root = fs.root();
        let kind = NewKind::File;
        let (perm, uid, gid, xattrs) = (0o600, 0, 0, &[][..]);
        fs.create(
            &root,
            b"new",
            &NewNode {
                kind,
                perm,
                uid,
                gid,
                xattrs,
            },
        )
        .map(drop)
    }),
    ("link", |fs, node| fs.link(node, &fs.root(), b"new")),
    ("unlink", |fs, _| fs.unlink(&fs.root(), b"file", NO_VETO)),
    ("rmdir", |fs, _| fs.rmdir(&fs.root(), b"dir", NO_VETO)),
    ("rename", |fs, _| {
        let root = fs.root();
        let (from, to) = (Place::new(&root, b"file"), Place::new(&root, b"new"));
        fs.rename(from, to, RenameMode::Replace, NO_VETO)
    }),
    ("replace", |fs, _| {
        let root = fs.root();
        let (from, to) = (Place::new(&root, b"other"), Place::new(&root, b"file"));
        fs.rename(from, to, RenameMode::Replace, NO_VETO)
    }),
];

/// Whether a request whose commit has failed is durable is not known. Until the next mount tells,
/// all that callers see is the state before: attributes, names and bytes alike.
#[test]
fn after_a_failed_commit_all_that_is_seen_is_the_consistent_view() {
    let options = Options {
        domain: Some(Domain::Page),
        ..Options::default()
    };
    let bytes = image(LEN, Domain::Page, Time(1)).snapshot();
    for &(name, request) in REQUESTS {
        let medium = Arc::new(Failing::default());
        let pool = Pool::from_bytes(&bytes, &options).expect("memory");
        let pool = Arc::new(pool.with_syncer(medium.clone()));
        let clock = Arc::new(ManualClock::new(Time(5)));
        let engine = Soup {
            mode: Mode::Strong,
            manual: true,
            ..Soup::default()
        };
        let fs = engine.mount(pool, clock.clone());
        let (node, _other) = (file(&fs, "file"), file(&fs, "other"));
        let dir = NewNode {
            kind: NewKind::Dir,
            perm: 0o700,
            uid: 0,
            gid: 0,
            xattrs: &[],
        };
        fs.create(&fs.root(), b"dir", &dir).expect("made");
        fs.write(&node, 0, &[1; 10_000]).expect("written");
        let change = Change {
            set: SetAttr::default(),
            xattrs: &[XattrChange::set(b"user.a", b"1")],
        };
        fs.apply(&node, &change).expect("set");
        clock.set(Time(6));
        let before = seen(&fs, &node);
        medium.0.store(true, SeqCst);
        let failed = request(&fs, &node).map_err(|e| e.errno());
        assert_eq!(failed, Err(Errno::IO), "{name}");
        assert_eq!(seen(&fs, &node), before, "{name}");
        // Nothing further is accepted, and nothing of it seen.
        for (_, another) in REQUESTS {
            assert!(another(&fs, &node).is_err(), "{name}");
        }
        assert_eq!(seen(&fs, &node), before, "{name}, and others");
    }
}
