//! Many threads at the same few names, with little room for what is pending and for inodes in DRAM:
//! nothing is lost, nothing leaks, and directories show what is in them throughout exactly once.
//!
//! `TUREEN_STRESS_SECONDS` sets how long it goes on. A failure prints its seed; `TUREEN_REPLAY`
//! runs that one over and over, as threads meet anew each time.

#[allow(dead_code, reason = "it mounts in ways of its own")]
mod common;

use block::Random;
use common::{audit, clock, image};
use pmem::{Domain, Pool};
use soupfs::{Mode, MountOptions, Node, SoupFs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use vfs::{
    Errno, Fallocate, FileSystem, Fsync, NewKind, NewNode, Place, RenameMode, Result, SetAttr,
    Time, XattrMode,
};

/// Directories that the threads share.
const DIRS: u64 = 3;
/// Names in each that they fight for.
const NAMES: u64 = 14;
/// Names in each that nobody touches.
const ANCHORS: usize = 40;
const THREADS: u64 = 4;
/// Bytes of an image that has space for all that they make.
const ROOMY: u64 = 16 << 20;

fn mount(pool: &Arc<Pool>, mode: Mode, inodes_max: u64) -> SoupFs {
    let options = MountOptions {
        mode,
        bound: Duration::from_millis(2),
        backlog_max: 0, // as little as there can be
        inodes_max,
        ..MountOptions::new(clock())
    };
    SoupFs::mount(pool.clone(), options).expect("mount")
}

fn new(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode {
        kind,
        perm: 0o755,
        uid: 0,
        gid: 0,
        xattrs: &[],
    }
}

/// The name is not given, or has been taken away.
const ABSENT: &[Errno] = &[Errno::NOENT];
/// Somebody has given the name; or, of a link, the inode has lost its last one.
const GIVEN: &[Errno] = &[Errno::EXIST];
const LINKED: &[Errno] = &[Errno::EXIST, Errno::NOENT, Errno::PERM];
/// What has the name is of another kind, or, a directory, has an entry.
const NO_FILE: &[Errno] = &[Errno::NOENT, Errno::ISDIR];
const NO_DIR: &[Errno] = &[Errno::NOENT, Errno::NOTDIR];
const NO_EMPTY_DIR: &[Errno] = &[Errno::NOENT, Errno::NOTDIR, Errno::NOTEMPTY];
const OTHER_KIND: &[Errno] = &[
    Errno::NOENT,
    Errno::EXIST,
    Errno::ISDIR,
    Errno::NOTDIR,
    Errno::NOTEMPTY,
];
/// It holds no bytes.
const NO_BYTES: &[Errno] = &[Errno::ISDIR, Errno::INVAL];
/// Its last name and its last user are gone.
const FORGOTTEN: &[Errno] = &[Errno::STALE];

struct Worker<'a> {
    fs: &'a SoupFs,
    dirs: &'a [Node],
    random: Random,
    held: Vec<Node>,
    /// There may be no space for what is new.
    is_small: bool,
}

impl Worker<'_> {
    /// What came of a call, or nothing if it failed because others were in the way, as they may be.
    fn may<T>(&self, result: Result<T>, others: &[Errno]) -> Option<T> {
        result
            .inspect_err(|error| {
                let errno = error.errno();
                let full = self.is_small && errno == Errno::NOSPC;
                assert!(full || others.contains(&errno), "{error}");
            })
            .ok()
    }

    fn dir(&mut self) -> Node {
        let at = self.random.below(DIRS) as usize;
        self.dirs[at].clone()
    }

    fn name(&mut self) -> Vec<u8> {
        let id = self.random.below(NAMES);
        let len = [1, 1, 30, 40, 250][id as usize % 5];
        let mut name = format!("n{id}-").into_bytes();
        name.extend(vec![b'x'; len]);
        name
    }

    fn found(&mut self) -> Option<Node> {
        if !self.held.is_empty() && self.random.below(3) == 0 {
            let at = self.random.below(self.held.len() as u64) as usize;
            return Some(self.held[at].clone());
        }
        let (dir, name) = (self.dir(), self.name());
        self.may(self.fs.lookup(&dir, &name), ABSENT)
    }

    fn hold(&mut self, node: Node) {
        if self.held.len() > 5 {
            let at = self.random.below(self.held.len() as u64) as usize;
            self.held.swap_remove(at);
        }
        if self.random.below(3) == 0 {
            self.held.push(node);
        }
    }

    /// `None`: others were in the way.
    fn step(&mut self) -> Option<()> {
        let fs = self.fs;
        let (dir, name) = (self.dir(), self.name());
        let offset = self.random.below(60_000);
        match self.random.below(24) {
            0..4 => {
                let kinds = [
                    NewKind::File,
                    NewKind::File,
                    NewKind::Symlink(b"to"),
                    NewKind::Fifo,
                ];
                let kind = kinds[self.random.below(4) as usize];
                let node = self.may(fs.create(&dir, &name, &new(kind)), GIVEN)?;
                self.hold(node);
            }
            4 => {
                let node = self.may(fs.create(&dir, &name, &new(NewKind::Dir)), GIVEN)?;
                // A directory of its own: entries in it come and go with it.
                self.may(fs.create(&node, b"inner", &new(NewKind::File)), ABSENT)?;
                if self.random.below(2) == 0 {
                    self.may(fs.unlink(&node, b"inner", &|_| Ok(())), ABSENT)?;
                }
            }
            5..8 => self.may(fs.unlink(&dir, &name, &|_| Ok(())), NO_FILE)?,
            8 => {
                let node = self.may(fs.lookup(&dir, &name), ABSENT)?;
                self.may(fs.unlink(&node, b"inner", &|_| Ok(())), NO_DIR);
                self.may(fs.rmdir(&dir, &name, &|_| Ok(())), NO_EMPTY_DIR)?;
            }
            9..13 => {
                let (to, new_name) = (self.dir(), self.name());
                let modes = [
                    RenameMode::Replace,
                    RenameMode::Exchange,
                    RenameMode::NoReplace,
                    RenameMode::Whiteout,
                ];
                let mode = modes[self.random.below(4) as usize];
                let (from, to) = (Place::new(&dir, &name), Place::new(&to, &new_name));
                self.may(fs.rename(from, to, mode, &|_| Ok(())), OTHER_KIND)?;
            }
            13 => {
                let node = self.found()?;
                self.may(fs.link(&node, &dir, &name), LINKED)?;
            }
            14..17 => {
                let node = self.found()?;
                let len = 1 + self.random.below(30_000) as usize;
                self.may(fs.write(&node, offset, &vec![7; len]), NO_BYTES)?;
                self.hold(node);
            }
            17 => {
                let node = self.found()?;
                let set = SetAttr {
                    size: Some(offset),
                    ..SetAttr::default()
                };
                self.may(fs.setattr(&node, &set), NO_BYTES)?;
            }
            18 => {
                let node = self.found()?;
                let modes = [
                    Fallocate::Punch,
                    Fallocate::Allocate { keep_size: true },
                    Fallocate::Zero { keep_size: false },
                ];
                let mode = modes[self.random.below(3) as usize];
                self.may(fs.fallocate(&node, mode, offset, 20_000), NO_BYTES)?;
            }
            19 => {
                let node = self.found()?;
                let len = self.random.below(9000) as usize;
                let (value, also) = (vec![1; len], SetAttr::default());
                let set = fs.setxattr(&node, b"user.x", &value, XattrMode::Any, &also);
                self.may(set, &[])?;
            }
            20 => {
                let node = self.may(fs.tmpfile(&dir, &new(NewKind::File)), &[])?;
                self.may(fs.write(&node, 0, &[1; 5000]), &[])?;
                if self.random.below(2) == 0 {
                    self.may(fs.link(&node, &dir, &name), GIVEN)?;
                }
                self.hold(node);
            }
            21 => {
                let node = self.found()?;
                self.may(fs.fsync(&node, Fsync::All), &[])?;
            }
            22 => {
                let node = self.found()?;
                let ino = fs.ino(&node);
                drop(node);
                let again = self.may(fs.node(ino), FORGOTTEN)?;
                fs.attr(&again);
                let mut buf = [0; 100];
                self.may(fs.read(&again, 0, &mut buf), NO_BYTES)?;
            }
            _ => self.list(&dir),
        }
        Some(())
    }

    /// Lists a directory in pieces while it changes.
    fn list(&mut self, dir: &Node) {
        let mut anchors = Vec::new();
        let mut cookie = 0;
        loop {
            let mut left = 1 + self.random.below(9);
            let mut more = false;
            self.fs
                .readdir(dir, cookie, &mut |entry| {
                    if left == 0 {
                        more = true;
                        return false;
                    }
                    left -= 1;
                    cookie = entry.cookie;
                    if entry.name.starts_with(b"anchor") {
                        anchors.push(entry.name.to_vec());
                    }
                    true
                })
                .expect("readdir");
            if !more {
                break;
            }
        }
        anchors.sort();
        let count = anchors.len();
        anchors.dedup();
        assert_eq!(
            (count, anchors.len()),
            (ANCHORS, ANCHORS),
            "listed, distinct"
        );
    }
}

/// Free lines, once everything is settled.
fn settled(fs: &SoupFs) -> u64 {
    for _ in 0..3 {
        fs.syncfs().expect("syncfs");
    }
    fs.status().bytes_free / 64
}

fn round(seed: u64, mode: Mode, len: u64) {
    let pool = image(len, Domain::Line, Time(0));
    // DRAM forgets inodes at every opportunity, or never.
    let inodes_max = [4, 1 << 20][seed as usize / 2 % 2];
    let fs = mount(&pool, mode, inodes_max);
    let dirs: Vec<Node> = (0..DIRS)
        .map(|i| {
            fs.create(&fs.root(), format!("d{i}").as_bytes(), &new(NewKind::Dir))
                .expect("mkdir")
        })
        .collect();
    for dir in &dirs {
        for i in 0..ANCHORS {
            fs.create(dir, format!("anchor-{i}").as_bytes(), &new(NewKind::File))
                .expect("create");
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (fs, dirs, stop) = (&fs, &dirs, &stop);
            scope.spawn(move || {
                let random = Random::new(seed * 16 + thread);
                let mut worker = Worker {
                    fs,
                    dirs,
                    random,
                    held: Vec::new(),
                    is_small: len < ROOMY,
                };
                while !stop.load(Relaxed) {
                    worker.step();
                }
            });
        }
        std::thread::sleep(Duration::from_millis(250));
        stop.store(true, Relaxed);
    });
    // Emptied, or as the threads left it.
    if seed.is_multiple_of(2) {
        for dir in &dirs {
            clear(&fs, dir);
        }
    }
    let before = settled(&fs);
    drop(dirs);
    fs.unmount().expect("unmount");
    drop(fs);
    audit(&pool);
    let fs = mount(&pool, mode, inodes_max);
    let after = settled(&fs);
    // A mount keeps pages for the tables of directories that it has in use.
    let kept = after.saturating_sub(before) / 64;
    assert!(
        before <= after && kept <= DIRS * (NAMES + 1) + 1,
        "{before} lines were free, {after} after a remount"
    );
    fs.unmount().expect("unmount");
}

fn clear(fs: &SoupFs, dir: &Node) {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        names.push((entry.name.to_vec(), entry.kind));
        true
    })
    .expect("readdir");
    for (name, kind) in names {
        if name.starts_with(b"anchor") {
            continue;
        }
        if kind == vfs::Kind::Dir {
            let inner = fs.lookup(dir, &name).expect("lookup");
            clear(fs, &inner);
            drop(inner);
            fs.rmdir(dir, &name, &|_| Ok(())).expect("rmdir");
        } else {
            fs.unlink(dir, &name, &|_| Ok(())).expect("unlink");
        }
    }
}

fn rounds(mode: Mode, len: u64) {
    testing::stress(|seed| round(seed, mode, len));
}

#[test]
fn threads_at_the_same_names_lose_nothing() {
    rounds(Mode::Delayed, ROOMY);
}

#[test]
fn threads_at_the_same_names_lose_nothing_in_mode_sync() {
    rounds(Mode::Sync, ROOMY);
}

#[test]
fn threads_at_the_same_names_lose_nothing_in_mode_strong() {
    rounds(Mode::Strong, ROOMY);
}

#[test]
fn threads_at_the_same_names_lose_nothing_on_a_full_image() {
    rounds(Mode::Delayed, 3 << 20);
    rounds(Mode::Strong, 3 << 20);
}
