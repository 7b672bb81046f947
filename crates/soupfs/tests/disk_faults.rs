//! A disk of which one request fails, whichever it is, in the life of a volume: mkfs, mount, a
//! workload, unmount, fsck. Nobody panics, whoever fails says that the medium failed, and what was
//! synced before is there at the next mount. Each request fails in one of four ways, in turns;
//! with `TUREEN_DISK_FAULTS=1` in each of them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use block::{Disk, Fault, Faults, Memory, Op};
use pmem::{Options, PAGE, Pool, paged};
use soupfs::fsck::{CheckOptions, Outcome, Report, check};
use soupfs::{FormatOptions, Mode, MountOptions, SoupFs, format};
use vfs::{
    Errno, FileSystem, Fsync, NewKind, NewNode, Place, RenameMode, SetAttr, SystemClock, Time,
};

const LEN: u64 = 1 << 20;

type Node = <SoupFs as FileSystem>::Node;

/// How a run is made.
#[derive(Debug, Clone, Copy)]
struct Way {
    mode: Mode,
    /// The MMU finds absent pages.
    by_faults: bool,
}

fn pool(device: Arc<dyn block::Device>, by_faults: bool) -> Result<Arc<Pool>, String> {
    // So few that pages go, are written to make room, and are read again.
    let small = paged::Options::new(16 * PAGE);
    let options = Options {
        paged: Some(paged::Options {
            faults: by_faults,
            ..small
        }),
        ..Options::default()
    };
    let pool = Pool::on_disk(Disk::new(device), &options);
    pool.map(Arc::new).map_err(|error| error.to_string())
}

fn make(pool: &Arc<Pool>) -> Result<(), String> {
    let how = FormatOptions {
        uuid: [7; 16],
        label: String::new(),
        hash_key: [9; 16],
        time: Time(0),
        owner: (0, 0),
        zeroed: false,
    };
    format(pool, &how).map_err(|error| error.to_string())
}

fn mount(pool: Arc<Pool>, mode: Mode) -> Result<SoupFs, String> {
    let options = MountOptions {
        mode,
        manual: true,
        ..MountOptions::new(Arc::new(SystemClock))
    };
    SoupFs::mount(pool, options).map_err(|error| error.to_string())
}

fn checked(pool: &Arc<Pool>, repair: bool) -> Result<Report, String> {
    let options = CheckOptions { repair, threads: 1 };
    check(pool, &options, &|_| ()).map_err(|error| error.to_string())
}

/// What may be found under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Possible {
    absent: bool,
    present: bool,
    len: RangeInclusive<u64>,
    /// What its bytes are: zeros, or one of these.
    fills: Vec<u8>,
}

impl Possible {
    const NOTHING: Possible = Possible {
        absent: true,
        present: false,
        len: 0..=0,
        fills: Vec::new(),
    };

    /// What was possible before, and this.
    fn or(&mut self, other: &Possible) {
        self.absent |= other.absent;
        if other.present {
            self.len = match self.present {
                true => {
                    *self.len.start().min(other.len.start())..=*self.len.end().max(other.len.end())
                }
                false => other.len.clone(),
            };
            self.fills.extend(&other.fills);
            self.present = true;
        }
    }

    /// Whether this was found.
    fn admits(&self, found: Option<&[u8]>) -> bool {
        match found {
            None => self.absent,
            Some(bytes) => {
                let possible = |byte: &u8| *byte == 0 || self.fills.contains(byte);
                let len = bytes.len() as u64;
                self.present && self.len.contains(&len) && bytes.iter().all(possible)
            }
        }
    }
}

/// A run of the workload: what each name leads to now, and what may be found after a crash.
struct Run {
    fs: SoupFs,
    nodes: BTreeMap<&'static str, Node>,
    now: BTreeMap<&'static str, Possible>,
    after_crash: BTreeMap<&'static str, Possible>,
    /// What callers were told that failed.
    errors: Vec<String>,
}

impl Run {
    fn new(fs: SoupFs) -> Run {
        Run {
            fs,
            nodes: BTreeMap::new(),
            now: BTreeMap::new(),
            after_crash: BTreeMap::new(),
            errors: Vec::new(),
        }
    }

    /// A name may lead to this from now on, if the call succeeds, or to what it did if not.
    fn call<T>(
        &mut self,
        changed: &[(&'static str, Possible)],
        call: impl FnOnce(&SoupFs) -> vfs::Result<T>,
    ) -> Option<T> {
        let result = call(&self.fs);
        for (name, to) in changed {
            let now = self.now.entry(name).or_insert(Possible::NOTHING);
            match &result {
                Ok(_) => *now = to.clone(),
                Err(_) => now.or(to),
            }
            let now = now.clone();
            let after = self.after_crash.entry(name).or_insert(Possible::NOTHING);
            after.or(&now);
        }
        let told = |error: vfs::Error| self.errors.push(error.to_string());
        result.map_err(told).ok()
    }

    /// A sync of what a name leads to; `None`: of everything.
    fn sync(&mut self, name: Option<&'static str>) {
        let result = match name {
            None => self.fs.syncfs(),
            Some(name) => match self.nodes.get(name) {
                Some(node) => self.fs.fsync(node, Fsync::All),
                None => return,
            },
        };
        match (result, name) {
            (Err(error), _) => self.errors.push(error.to_string()),
            (Ok(()), None) => self.after_crash.clone_from(&self.now),
            (Ok(()), Some(name)) => {
                self.after_crash.insert(name, self.now[name].clone());
            }
        }
    }

    fn create(&mut self, name: &'static str) {
        let new = NewNode {
            kind: NewKind::File,
            perm: 0o644,
            uid: 0,
            gid: 0,
            xattrs: &[],
        };
        let empty = Possible {
            absent: false,
            present: true,
            len: 0..=0,
            fills: vec![],
        };
        let node = self.call(&[(name, empty)], |fs| {
            fs.create(&fs.root(), name.as_bytes(), &new)
        });
        self.nodes.extend(node.map(|node| (name, node)));
    }

    /// Fills a file from its beginning on.
    fn fill(&mut self, name: &'static str, byte: u8, len: u64) {
        let Some(node) = self.nodes.get(name).cloned() else {
            return;
        };
        let mut to = self.now[name].clone();
        to.fills.push(byte);
        // A write that fails, or a batch between its pieces, may have done a part of it.
        to.len = *to.len.start()..=*to.len.end().max(&len);
        let all = self.call(&[(name, to)], |fs| {
            fs.write(&node, 0, &vec![byte; len as usize])
        });
        if all == Some(len as usize) {
            let now = self.now.get_mut(name).expect("it was just written");
            now.len = *now.len.start().max(&len)..=*now.len.end();
        }
    }

    fn truncate(&mut self, name: &'static str, len: u64) {
        let Some(node) = self.nodes.get(name).cloned() else {
            return;
        };
        let to = Possible {
            len: len..=len,
            ..self.now[name].clone()
        };
        let set = SetAttr {
            size: Some(len),
            ..SetAttr::default()
        };
        self.call(&[(name, to)], |fs| fs.setattr(&node, &set));
    }

    fn unlink(&mut self, name: &'static str) {
        if self.nodes.remove(name).is_some() {
            self.call(&[(name, Possible::NOTHING)], |fs| {
                fs.unlink(&fs.root(), name.as_bytes(), &|_| Ok(()))
            });
        }
    }

    fn rename(&mut self, from: &'static str, to: &'static str) {
        let Some(node) = self.nodes.remove(from) else {
            return;
        };
        let moved = self.now[from].clone();
        let renamed = self.call(&[(from, Possible::NOTHING), (to, moved)], |fs| {
            let root = fs.root();
            let (from, to) = (from.as_bytes(), to.as_bytes());
            let mode = RenameMode::Replace;
            fs.rename(
                Place::new(&root, from),
                Place::new(&root, to),
                mode,
                &|_| Ok(()),
            )
        });
        match renamed {
            Some(()) => drop(self.nodes.insert(to, node)),
            None => drop(self.nodes.remove(to)),
        }
    }

    /// Looks at all that there should be, as callers do.
    fn look(&mut self) {
        for (name, possible) in self.now.clone() {
            match contents(&self.fs, name) {
                Ok(found) => assert!(possible.admits(found.as_deref()), "{name}: {possible:?}"),
                Err(error) => self.errors.push(error.to_string()),
            }
        }
        let mut listed = Vec::new();
        let listing = self.fs.readdir(&self.fs.root(), 0, &mut |entry| {
            listed.push(entry.name.to_vec());
            true
        });
        match listing {
            Ok(()) => self.now.iter().for_each(|(name, possible)| {
                let there = listed.iter().any(|found| found == name.as_bytes());
                let admitted = if there {
                    possible.present
                } else {
                    possible.absent
                };
                assert!(admitted, "{name} in the directory: {there}");
            }),
            Err(error) => self.errors.push(error.to_string()),
        }
    }
}

/// What a name leads to; `None`: nothing.
fn contents(fs: &SoupFs, name: &str) -> vfs::Result<Option<Vec<u8>>> {
    let node = match fs.lookup(&fs.root(), name.as_bytes()) {
        Err(vfs::Error::Errno(vfs::Errno::NOENT)) => return Ok(None),
        node => node?,
    };
    let mut bytes = vec![0; fs.attr(&node).size as usize];
    let mut done = 0;
    while done < bytes.len() {
        match fs.read(&node, done as u64, &mut bytes[done..])? {
            0 => break,
            more => done += more,
        }
    }
    // In mode `strong` attributes are the latest ones, and contents of the consistent view, which
    // part when a commit fails.
    bytes.truncate(done);
    Ok(Some(bytes))
}

const OTHERS: [&str; 12] = [
    "a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9", "aa", "ab",
];

/// Creates, overwrites, cuts, renames, removes, and syncs this and that.
fn work(run: &mut Run) {
    for name in ["kept", "old", "cut", "gone"] {
        run.create(name);
        run.fill(name, b'k', 6000);
    }
    run.sync(Some("kept"));
    run.sync(None);
    for (i, name) in OTHERS.into_iter().enumerate() {
        run.create(name);
        run.fill(name, b'o', 4096 * (1 + i as u64 % 3));
        if i % 6 == 0 {
            run.sync(Some(name));
        }
    }
    run.fill("kept", b'l', 9000);
    run.sync(Some("kept"));
    run.create("new");
    run.fill("new", b'n', 5000);
    run.sync(Some("new"));
    run.rename("new", "old");
    run.truncate("cut", 100);
    run.sync(Some("cut"));
    run.truncate("cut", 20_000);
    run.unlink("gone");
    run.sync(None);
    for name in ["a1", "a7"] {
        run.unlink(name);
    }
    run.create("large");
    run.fill("large", b'g', 200_000);
    run.sync(Some("large"));
    run.look();
    run.fill("kept", b'm', 3000); // and nobody syncs it but the end
}

/// What a whole life of a volume left.
struct Life {
    seen: Vec<Op>,
    /// How many requests there were when the image was formatted, when it was mounted, and when
    /// that had ended; more than there ever are if that did not come.
    formatted: usize,
    mounted: usize,
    unmounted: usize,
    /// What callers were told that failed, and whether the end of the mount was fine.
    errors: Vec<String>,
    ended: bool,
    /// Whether the pool accepted no more when the mount had ended.
    poisoned: bool,
    after_crash: BTreeMap<&'static str, Possible>,
    image: Vec<u8>,
}

fn life(way: Way, fault: Option<(usize, Fault)>) -> Life {
    let memory = Arc::new(Memory::from_bytes(vec![0xa5; LEN as usize]));
    let device = Arc::new(Faults::new(memory.clone()));
    if let Some((at, fault)) = fault {
        device.plan(at, fault);
    }
    let mut life = Life {
        seen: Vec::new(),
        formatted: usize::MAX,
        mounted: usize::MAX,
        unmounted: usize::MAX,
        errors: Vec::new(),
        ended: false,
        poisoned: false,
        after_crash: BTreeMap::new(),
        image: Vec::new(),
    };
    live(&mut life, way, &device);
    life.seen = device.seen();
    life.image = memory.contents();
    life
}

fn live(life: &mut Life, way: Way, device: &Arc<Faults>) {
    let made = pool(device.clone(), way.by_faults).and_then(|pool| make(&pool));
    if let Err(error) = made {
        return life.errors.push(error);
    }
    life.formatted = device.seen().len();
    let mounted = pool(device.clone(), way.by_faults).and_then(|pool| mount(pool, way.mode));
    let fs = match mounted {
        Ok(fs) => fs,
        Err(error) => return life.errors.push(error),
    };
    life.mounted = device.seen().len();
    let pool = fs.pool().clone();
    let mut run = Run::new(fs);
    work(&mut run);
    let before = run.errors.len();
    let ended = run.fs.unmount();
    life.ended = ended.is_ok();
    run.errors
        .extend(ended.err().map(|error| error.to_string()));
    if run.errors.is_empty() {
        assert_eq!(before, 0);
        run.after_crash.clone_from(&run.now);
    }
    life.errors = run.errors;
    life.after_crash = run.after_crash;
    life.poisoned = pool.poisoned().is_some();
    life.unmounted = device.seen().len();
    drop((run.nodes, run.fs, pool));
    let checked = self::pool(device.clone(), way.by_faults).and_then(|pool| checked(&pool, false));
    match checked {
        Ok(report) if life.errors.is_empty() => {
            assert_eq!(report.outcome, Outcome::Clean, "{report}");
        }
        Ok(_) => {}
        Err(error) => life.errors.push(error),
    }
}

/// The image is sound, and each name leads to what it may.
fn examine(life: &Life, context: &str) {
    let device = Arc::new(Memory::from_bytes(life.image.clone()));
    let pool = pool(device, false).expect("no fault");
    let report = checked(&pool, false).expect("no fault");
    assert_eq!(report.outcome, Outcome::Clean, "{context}: {report}");
    assert!(report.was_clean || !life.ended, "{context}");
    let fs = mount(pool, Mode::Delayed).expect(context);
    for (name, possible) in &life.after_crash {
        let found = contents(&fs, name).expect(context);
        let what = found.as_ref().map(|found| (found.len(), found.first()));
        assert!(
            possible.admits(found.as_deref()),
            "{context}: {name} is {what:?}, not {possible:?}"
        );
    }
}

/// A request fails in one of these ways.
const FAULTS: [(Fault, Errno); 4] = [
    (Fault::Fail(Errno::IO), Errno::IO),
    (Fault::FailDone(Errno::IO), Errno::IO),
    (Fault::Short(Errno::NOSPC), Errno::NOSPC),
    (Fault::Vanish, Errno::NODEV),
];

/// A life in which one request fails.
fn fails(way: Way, at: usize, (fault, errno): (Fault, Errno)) {
    let context = format!("{way:?}, request {at}: {fault:?}");
    let life = life(way, Some((at, fault)));
    let Some(op) = life.seen.get(at).copied() else {
        return; // less was read than in the first run
    };
    let why = errno.to_string();
    for error in &life.errors {
        assert!(error.contains(&why), "{context}, {op:?}: {error}");
        assert!(!error.contains("panicked"), "{context}: {error}");
    }
    // Of reads those may fail that were ahead of need.
    let is_told = !life.errors.is_empty();
    assert!(is_told || op == Op::Read, "{context}: nobody is told");
    if life.formatted == usize::MAX {
        return; // nothing was promised
    }
    let while_mounted = life.mounted..life.unmounted;
    if op != Op::Read && while_mounted.contains(&at) {
        assert!(life.poisoned && !life.ended, "{context}: it goes on");
    }
    examine(&life, &context);
}

fn fails_everywhere(way: Way) {
    let whole = life(way, None);
    assert!(whole.errors.is_empty(), "{:?}", whole.errors);
    assert!(whole.ended && !whole.poisoned);
    examine(&whole, "no fault");
    for op in [Op::Read, Op::Write, Op::Flush] {
        let count = whole.seen.iter().filter(|seen| **seen == op).count();
        println!("{way:?}: {count} times {op:?}");
        assert!(count > 10);
    }
    for at in 0..whole.seen.len() {
        match in_all_ways() {
            true => FAULTS.into_iter().for_each(|fault| fails(way, at, fault)),
            false => fails(way, at, FAULTS[at % FAULTS.len()]),
        }
    }
}

/// Whether each request is to fail in each way, not in one of them.
fn in_all_ways() -> bool {
    std::env::var_os("TUREEN_DISK_FAULTS").is_some()
}

/// In `mode`; in a longer run also with the other way to find absent pages.
fn fails_everywhere_in(mode: Mode, by_faults: bool) {
    fails_everywhere(Way { mode, by_faults });
    if in_all_ways() {
        let by_faults = !by_faults;
        fails_everywhere(Way { mode, by_faults });
    }
}

#[test]
fn whichever_request_fails_it_is_told_and_what_was_synced_is_there() {
    fails_everywhere_in(Mode::Delayed, false);
}

#[test]
fn whichever_request_fails_in_mode_strong_it_is_told_and_what_was_done_is_there() {
    fails_everywhere_in(Mode::Strong, true);
}
