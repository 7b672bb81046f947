//! What requests of mode `strong` cost, counted: lines and fences where what is flushed is durable,
//! syncs on a disk. `counts.rs` has the six that are timed.
//!
//! The bounds are what the engine does today, with little room. Whoever makes it cheaper lowers
//! them.

use bench::{Engine, Setup};
use pmem::Domain;
use soupfs::{Mode, Node, SoupFs};
use vfs::{At, Fallocate, FileSystem, NewKind, NewNode, Place, RenameMode, SetAttr, XattrMode};

/// Requests of each kind, of which each has a file and a name of its own.
const COUNT: usize = 2000;

/// What the requests are done to: files that have these names, and names that nothing has.
struct Things {
    fs: Engine,
    files: Vec<Node>,
    names: Vec<Vec<u8>>,
    free: Vec<Vec<u8>>,
}

impl Things {
    fn new(domain: Domain) -> Things {
        let setup = Setup {
            len: 256 << 20,
            mode: Mode::Strong,
            domain,
            manual: true,
            ..Setup::default()
        };
        let fs = setup.mount("SoupFS", setup.anonymous().unwrap()).unwrap();
        let name = |of: char| (0..COUNT).map(move |i| format!("{of}{i:07}").into_bytes());
        let mut things = Things {
            fs,
            files: Vec::new(),
            names: name('f').collect(),
            free: name('g').collect(),
        };
        // The directory grows first.
        for name in &things.free {
            things.create(name, NewKind::File);
        }
        for name in &things.free {
            things.unlink(name);
        }
        let made = things
            .names
            .iter()
            .map(|name| things.create(name, NewKind::File));
        things.files = made.collect();
        things
    }

    fn fs(&self) -> &SoupFs {
        self.fs.fs()
    }

    fn create(&self, name: &[u8], kind: NewKind<'_>) -> Node {
        let new = NewNode {
            kind,
            perm: 0o700,
            uid: 0,
            gid: 0,
            xattrs: &[],
        };
        self.fs().create(&self.fs().root(), name, &new).unwrap()
    }

    fn unlink(&self, name: &[u8]) {
        let root = self.fs().root();
        self.fs().unlink(&root, name, &|_| Ok(())).unwrap();
    }

    fn rename(&self, from: &[u8], to: &[u8], mode: RenameMode) {
        let root = self.fs().root();
        let [from, to] = [from, to].map(|name| Place { dir: &root, name });
        self.fs().rename(from, to, mode, &|_| Ok(())).unwrap();
    }

    fn set(&self, i: usize, set: &SetAttr) {
        self.fs().setattr(&self.files[i], set).unwrap();
    }

    fn size(&self, i: usize, size: u64) {
        let size = Some(size);
        self.set(
            i,
            &SetAttr {
                size,
                ..SetAttr::default()
            },
        );
    }

    fn xattr(&self, i: usize, value: &[u8]) {
        let none = SetAttr::default();
        let (file, any) = (&self.files[i], XattrMode::Any);
        self.fs()
            .setxattr(file, b"user.a", value, any, &none)
            .unwrap();
    }

    fn write(&self, i: usize, at: u64, len: usize) {
        self.fs().write(&self.files[i], at, &vec![7; len]).unwrap();
    }

    fn fallocate(&self, i: usize, mode: Fallocate, at: u64, len: u64) {
        self.fs().fallocate(&self.files[i], mode, at, len).unwrap();
    }

    /// From a file to the next one.
    fn copy(&self, i: usize, len: u64) {
        let at = |i: usize| At {
            node: &self.files[i % COUNT],
            offset: 0,
        };
        assert_eq!(self.fs().copy_range(at(i), at(i + 1), len), Ok(len));
    }
}

/// A kind of request, and what one takes at most. A few take more: a table grows; and of pages
/// that are replaced or removed 64 come back at a time, with two fences.
struct Kind {
    name: &'static str,
    request: fn(&Things, usize),
    /// In domain `line`.
    lines: f64,
    fences: f64,
    /// In domain `page`.
    syncs: f64,
}

const fn kind(
    name: &'static str,
    (lines, fences, syncs): (f64, f64, f64),
    request: fn(&Things, usize),
) -> Kind {
    Kind {
        name,
        request,
        lines,
        fences,
        syncs,
    }
}

/// All, in an order in which each finds what it needs.
const KINDS: [Kind; 20] = [
    kind("mkdir", (11.0, 1.01, 1.01), |all, i| {
        all.create(&all.free[i], NewKind::Dir);
    }),
    kind("rmdir", (3.5, 1.01, 1.01), |all, i| {
        let root = all.fs().root();
        all.fs().rmdir(&root, &all.free[i], &|_| Ok(())).unwrap();
    }),
    kind("symlink", (11.0, 1.01, 1.01), |all, i| {
        all.create(&all.free[i], NewKind::Symlink(b"../target"));
    }),
    kind("unlink of a symlink", (10.5, 1.04, 1.01), |all, i| {
        all.unlink(&all.free[i]);
    }),
    kind("link", (4.6, 1.01, 1.01), |all, i| {
        let root = all.fs().root();
        all.fs().link(&all.files[i], &root, &all.free[i]).unwrap();
    }),
    kind("unlink of one of two names", (2.6, 1.01, 1.01), |all, i| {
        all.unlink(&all.free[i]);
    }),
    kind("chmod", (1.6, 1.01, 1.01), |all, i| {
        let perm = Some(0o640);
        all.set(
            i,
            &SetAttr {
                perm,
                ..SetAttr::default()
            },
        );
    }),
    kind("setxattr", (5.2, 1.01, 1.01), |all, i| {
        all.xattr(i, &[1; 20])
    }),
    kind("setxattr of another value", (13.0, 1.04, 1.01), |all, i| {
        all.xattr(i, &[2; 20])
    }),
    kind("removexattr", (4.6, 1.04, 1.01), |all, i| {
        all.fs().removexattr(&all.files[i], b"user.a").unwrap();
    }),
    kind("fallocate of 8 KiB", (69.0, 2.01, 1.01), |all, i| {
        all.fallocate(i, Fallocate::Allocate { keep_size: false }, 0, 8192);
    }),
    kind(
        "4 KiB into what is reserved",
        (66.6, 2.01, 1.01),
        |all, i| all.write(i, 0, 4096),
    ),
    kind("copy of 4 KiB", (73.1, 2.04, 1.01), |all, i| {
        all.copy(i, 4096)
    }),
    kind("copy of 64 bytes", (3.6, 1.01, 1.01), |all, i| {
        all.copy(i, 64)
    }),
    kind("punch of a block", (6.7, 1.07, 1.01), |all, i| {
        all.fallocate(i, Fallocate::Punch, 4096, 4096);
    }),
    kind("zeroing of 64 bytes", (3.6, 1.01, 1.01), |all, i| {
        all.fallocate(i, Fallocate::Zero { keep_size: true }, 100, 64);
    }),
    kind("truncate", (2.6, 1.01, 1.01), |all, i| all.size(i, 100)),
    kind("truncate to more", (9.3, 2.01, 1.01), |all, i| {
        all.size(i, 200)
    }),
    kind("exchange", (5.6, 1.01, 1.01), |all, i| {
        all.rename(
            &all.names[i],
            &all.names[(i + 1) % COUNT],
            RenameMode::Exchange,
        );
    }),
    kind("rename over a file", (7.2, 1.01, 1.01), |all, i| {
        all.rename(
            &all.names[i],
            &all.names[(i + 1) % COUNT],
            RenameMode::Replace,
        );
    }),
];

/// Lines, fences and syncs that each request of a kind takes.
fn spent(things: &Things, kind: &Kind) -> [f64; 3] {
    let before = things.fs.pool().stats();
    // The last one would find no file behind it.
    (0..COUNT - 1).for_each(|i| (kind.request)(things, i));
    let spent = things.fs.pool().stats() - before;
    let part = |count: u64| count as f64 / (COUNT - 1) as f64;
    [spent.flushed_lines, spent.fences, spent.syncs].map(part)
}

/// What each kind of request takes, and those that take more than they may.
fn check(domain: Domain, exceeds: fn(&Kind, [f64; 3]) -> bool) {
    let things = Things::new(domain);
    let all: Vec<_> = KINDS
        .iter()
        .map(|kind| (kind, spent(&things, kind)))
        .collect();
    for (kind, [lines, fences, syncs]) in &all {
        println!("{}: {lines:.2} {fences:.3} {syncs:.3}", kind.name);
    }
    let more = all.iter().filter(|(kind, spent)| exceeds(kind, *spent));
    let more: Vec<_> = more.map(|(kind, spent)| (kind.name, spent)).collect();
    assert!(more.is_empty(), "lines, fences, syncs: {more:?}");
}

#[test]
fn a_request_flushes_few_lines_and_has_one_fence_or_two() {
    check(Domain::Line, |kind, [lines, fences, _]| {
        lines > kind.lines || fences > kind.fences
    });
}

#[test]
fn a_request_has_one_sync_of_a_disk_or_two() {
    check(Domain::Page, |kind, [_, fences, syncs]| {
        fences.max(syncs) > kind.syncs
    });
}
