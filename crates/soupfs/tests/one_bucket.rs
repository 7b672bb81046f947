//! Threads at names that all hash to one bucket: its chain is cached in DRAM, gets too long for
//! that, is split and gets short again, while lookups and listings that take no lock go through it.
//!
//! `TUREEN_STRESS_SECONDS` sets how long it goes on. A failure prints its seed; `TUREEN_REPLAY`
//! runs that one over and over, as threads meet anew each time.

mod common;

use block::Random;
use common::{Soup, audit, clock, image};
use pmem::{Domain, Pool};
use soupfs::layout::{LINE, dentry, line_at};
use soupfs::{MountOptions, Node, SoupFs};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use vfs::{Errno, FileSystem, Fsync, NewKind, NewNode, Place, RenameMode, Time};

const FILE: NewNode<'_> = NewNode {
    kind: NewKind::File,
    perm: 0o644,
    uid: 0,
    gid: 0,
    xattrs: &[],
};
/// Low bits of the hash that the names have in common: they share a bucket until the table has
/// more. It does not get there with [`GROWN`] other names: a stripe has some 35 then, and grows
/// beyond this at 160.
const COMMON: u64 = (1 << 10) - 1;
/// Names that make the table grow.
const GROWN: usize = 300;
/// Names that stay.
const ANCHORS: usize = 2;
/// Names that come and go.
const CHURNED: usize = 8;
/// Names that one file has in turn.
const MOVED: usize = 3;

/// The hashes of the names `x0` to `x9999` under the key of all images here, as entries have them.
fn hashes() -> BTreeMap<String, u64> {
    let pool = image(64 << 20, Domain::Line, Time(0));
    let fs = Soup::default().mount(pool.clone(), clock());
    let names: Vec<_> = (0..10_000).map(|i| format!("x{i}")).collect();
    for name in &names {
        fs.create(&fs.root(), name.as_bytes(), &FILE).expect("made");
    }
    fs.unmount().expect("unmounted");
    let mut found = BTreeMap::new();
    let mut buf = [0; dentry::INLINE];
    for at in (0..pool.len() / LINE).map(line_at) {
        let len = (pool.load(at + dentry::TARGET) >> dentry::LEN_SHIFT & 0xff) as usize;
        if !(2..=5).contains(&len) {
            continue;
        }
        pool.read(at + dentry::NAME, &mut buf[..len]);
        if let Ok(name) = std::str::from_utf8(&buf[..len])
            && name.starts_with('x')
        {
            found.insert(name.to_string(), pool.load(at + dentry::HASH));
        }
    }
    assert!(names.iter().all(|name| found.contains_key(name)));
    found
}

/// As many names as are needed, of one bucket: the same ones in each process, so that a seed
/// replays.
fn of_one_bucket() -> Vec<String> {
    let mut buckets: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for (name, hash) in hashes() {
        buckets.entry(hash & COMMON).or_default().push(name);
    }
    let want = ANCHORS + CHURNED + MOVED + 1;
    let bucket = buckets.into_values().max_by_key(Vec::len);
    let mut names = bucket.expect("names were hashed");
    assert!(names.len() >= want, "{} names", names.len());
    names.truncate(want);
    names
}

struct Scene<'a> {
    fs: &'a SoupFs,
    dir: Node,
    anchors: &'a [String],
    churned: &'a [String],
    moved: &'a [String],
    files: Vec<u64>,
    absent: &'a str,
    stop: AtomicBool,
    checks: AtomicU64,
}

impl Scene<'_> {
    fn churn(&self, mut random: Random) {
        while !self.stop.load(Relaxed) {
            // Towards many of them, and towards few, in turn: through the length that is cached.
            let many = random.below(2) == 0;
            for _ in 0..20 {
                let name = &self.churned[random.below(CHURNED as u64) as usize];
                let other = &self.churned[random.below(CHURNED as u64) as usize];
                let add = random.below(4) > 0;
                let done = match random.below(5) {
                    0 => self.rename(name, other, RenameMode::Replace),
                    1 => self.rename(name, other, RenameMode::Exchange),
                    _ if many == add => self.fs.create(&self.dir, name.as_bytes(), &FILE).map(drop),
                    _ => self.fs.unlink(&self.dir, name.as_bytes(), &|_| Ok(())),
                };
                let allowed = [Errno::NOENT, Errno::EXIST];
                assert!(done.is_ok() || done.is_err_and(|e| allowed.contains(&e.errno())));
            }
        }
    }

    fn rename(&self, from: &str, to: &str, mode: RenameMode) -> vfs::Result<()> {
        let (from, to) = (from.as_bytes(), to.as_bytes());
        self.fs.rename(
            Place::new(&self.dir, from),
            Place::new(&self.dir, to),
            mode,
            &|_| Ok(()),
        )
    }

    /// One file goes from name to name, in the bucket. Others make the table grow.
    fn walk(&self) {
        let mut i = 0;
        while !self.stop.load(Relaxed) {
            let (from, to) = (&self.moved[i % MOVED], &self.moved[(i + 1) % MOVED]);
            self.rename(from, to, RenameMode::NoReplace).expect("moved");
            i += 1;
            if i.is_multiple_of(8) && i < 8 * GROWN {
                let name = format!("grows-{i}");
                self.fs
                    .create(&self.dir, name.as_bytes(), &FILE)
                    .expect("made");
            }
        }
    }

    fn look(&self) {
        while !self.stop.load(Relaxed) {
            for (name, ino) in self.anchors.iter().zip(&self.files) {
                let node = self
                    .fs
                    .lookup(&self.dir, name.as_bytes())
                    .expect("it stays");
                assert_eq!(self.fs.ino(&node), *ino);
            }
            let absent = self.fs.lookup(&self.dir, self.absent.as_bytes());
            assert_eq!(absent.err().map(|e| e.errno()), Some(Errno::NOENT));
            for name in self.churned.iter().chain(self.moved) {
                if let Err(e) = self.fs.lookup(&self.dir, name.as_bytes()) {
                    assert_eq!(e.errno(), Errno::NOENT, "{e}");
                }
            }
            self.checks.fetch_add(1, Relaxed);
        }
    }

    fn list(&self) {
        while !self.stop.load(Relaxed) {
            let mut names = Vec::new();
            self.fs
                .readdir(&self.dir, 0, &mut |entry| {
                    names.push(String::from_utf8_lossy(entry.name).into_owned());
                    true
                })
                .expect("listed");
            let count = |of: &[String]| names.iter().filter(|name| of.contains(name)).count();
            assert_eq!(count(self.anchors), ANCHORS, "{names:?}");
            // A bucket is listed as it is at one instant.
            assert_eq!(count(self.moved), 1, "{names:?}");
            let listed = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), listed, "distinct");
            self.checks.fetch_add(1, Relaxed);
        }
    }
}

fn round(seed: u64, names: &[String]) -> u64 {
    let pool: Arc<Pool> = image(16 << 20, Domain::Line, Time(0));
    let options = MountOptions {
        bound: Duration::from_millis(1),
        inodes_max: [4, 1 << 20][seed as usize % 2],
        ..MountOptions::new(clock())
    };
    let fs = SoupFs::mount(pool.clone(), options).expect("mounted");
    let dir = NewNode {
        kind: NewKind::Dir,
        ..FILE
    };
    let dir = fs.create(&fs.root(), b"dir", &dir).expect("made");
    let (anchors, rest) = names.split_at(ANCHORS);
    let (churned, rest) = rest.split_at(CHURNED);
    let (moved, absent) = rest.split_at(MOVED);
    let make = |name: &String| {
        let node = fs.create(&dir, name.as_bytes(), &FILE).expect("made");
        fs.ino(&node)
    };
    let files: Vec<_> = anchors.iter().map(make).collect();
    make(&moved[0]);
    let scene = Scene {
        fs: &fs,
        dir: dir.clone(),
        anchors,
        churned,
        moved,
        files,
        absent: &absent[0],
        stop: AtomicBool::new(false),
        checks: AtomicU64::new(0),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| scene.churn(Random::new(seed)));
        scope.spawn(|| scene.walk());
        scope.spawn(|| scene.look());
        scope.spawn(|| scene.list());
        let until = Instant::now() + Duration::from_millis(400);
        while Instant::now() < until && !scene.stop.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
        scene.stop.store(true, Relaxed);
    });
    let checks = scene.checks.load(Relaxed);
    drop(scene);
    drop(dir);
    fs.unmount().expect("unmounted");
    audit(&pool);
    checks
}

#[test]
fn names_of_one_bucket_that_stay_are_found_while_others_come_go_and_move() {
    let names = of_one_bucket();
    let mut checks = 0;
    testing::stress(|seed| checks += round(seed, &names));
    assert!(checks > 0);
}

#[test]
fn names_are_found_while_their_bucket_gets_one_too_many_and_loses_it() {
    let names = of_one_bucket();
    let fs = Soup::default().mount(image(16 << 20, Domain::Line, Time(0)), clock());
    let root = fs.root();
    let (stay, rest) = names.split_at(4); // as many as are cached
    for name in stay {
        fs.create(&root, name.as_bytes(), &FILE).expect("made");
    }
    let (stop, fifth) = (AtomicBool::new(false), rest[0].as_bytes());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let until = Instant::now() + testing::stress_time();
            while Instant::now() < until {
                for _ in 0..1000 {
                    fs.create(&root, fifth, &FILE).expect("made");
                    fs.unlink(&root, fifth, &|_| Ok(())).expect("unlinked");
                }
            }
            stop.store(true, Relaxed);
        });
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                for name in stay {
                    fs.lookup(&root, name.as_bytes()).expect("it stays");
                }
            }
        });
    });
    fs.unmount().expect("unmounted");
}

#[test]
fn what_a_bucket_on_the_medium_holds_is_known_however_much_it_is() {
    let names = of_one_bucket();
    for len in 0..names.len() {
        let pool = image(16 << 20, Domain::Line, Time(0));
        let make = |fs: &SoupFs, name: &String| {
            let made = fs.create(&fs.root(), name.as_bytes(), &FILE);
            made.map(drop).map_err(|e| e.errno())
        };
        let (there, absent) = names.split_at(len);
        let fs = Soup::default().mount(pool.clone(), clock());
        for name in there {
            assert_eq!(make(&fs, name), Ok(()));
        }
        fs.unmount().expect("unmounted");

        let fs = Soup::default().mount(pool.clone(), clock());
        for name in there {
            assert_eq!(make(&fs, name), Err(Errno::EXIST), "{name} of {len}");
        }
        assert_eq!(make(&fs, &absent[0]), Ok(()));
        for name in there {
            let unlinked = fs.unlink(&fs.root(), name.as_bytes(), &|_| Ok(()));
            assert_eq!(unlinked.map_err(|e| e.errno()), Ok(()), "{name} of {len}");
        }
        assert!(fs.lookup(&fs.root(), absent[0].as_bytes()).is_ok());
        fs.unmount().expect("unmounted");
        audit(&pool);
    }
}

#[test]
fn a_table_that_grew_in_several_mounts_has_all_its_names() {
    let pool = image(64 << 20, Domain::Line, Time(0));
    let mut made = 0;
    // The first mount's table is large already when the second one changes it, and the second one's
    // grows on.
    for up_to in [400, 401, 3000, 3001] {
        let fs = Soup::default().mount(pool.clone(), clock());
        let root = fs.root();
        let name = |i: usize| format!("x{i}").into_bytes();
        for i in made..up_to {
            fs.create(&root, &name(i), &FILE).expect("made");
        }
        for i in 0..up_to {
            assert!(fs.lookup(&root, &name(i)).is_ok(), "{i} of {up_to}");
            let again = fs.create(&root, &name(i), &FILE);
            assert!(
                again.is_err_and(|e| e.errno() == Errno::EXIST),
                "{i} of {up_to}"
            );
        }
        made = up_to;
        fs.unmount().expect("unmounted");
        audit(&pool);
    }
}

/// What a crash now would leave, mounted.
fn after_crash(pool: &Pool) -> SoupFs {
    let mut all = vec![0; pool.len() as usize];
    pool.read(0, &mut all);
    let copy = image(pool.len(), Domain::Line, Time(0));
    copy.write(0, &all);
    Soup::default().mount(copy, clock())
}

#[test]
fn a_name_that_was_only_ever_replaced_is_there_after_a_crash() {
    let names = of_one_bucket();
    let [t, x, tmp] = [0, 1, 2].map(|i| names[i].clone().into_bytes());
    let manual = Soup {
        manual: true,
        ..Soup::default()
    };
    let pool = image(16 << 20, Domain::Line, Time(0));
    let fs = manual.mount(pool.clone(), clock());
    let root = fs.root();
    let make = |name: &[u8]| fs.create(&root, name, &FILE).expect("made");
    let rename = |from: &[u8], to: &[u8], mode| {
        let renamed = fs.rename(
            Place::new(&root, from),
            Place::new(&root, to),
            mode,
            &|_| Ok(()),
        );
        renamed.expect("renamed");
    };
    let is_there = |name: &[u8]| {
        let fs = after_crash(&pool);
        fs.lookup(&fs.root(), name).is_ok()
    };
    // Replaced twice, with another name made in between.
    make(&t);
    fs.syncfs().expect("synced");
    make(b"a");
    rename(b"a", &t, RenameMode::Replace);
    let between = make(&x);
    make(b"b");
    rename(b"b", &t, RenameMode::Replace);
    fs.fsync(&between, Fsync::All).expect("synced");
    assert!(is_there(&x) && is_there(&t));
    // Exchanged with a new name beside it.
    fs.syncfs().expect("synced");
    let old = fs.lookup(&root, &t).expect("it is there");
    make(&tmp);
    rename(&tmp, &t, RenameMode::Exchange);
    fs.fsync(&old, Fsync::All).expect("synced");
    assert!(is_there(&tmp) && is_there(&t));
    // A whiteout comes to its old name.
    fs.syncfs().expect("synced");
    fs.unlink(&root, &tmp, &|_| Ok(())).expect("unlinked");
    fs.syncfs().expect("synced");
    make(&tmp);
    rename(&tmp, &t, RenameMode::Whiteout);
    let whiteout = fs.lookup(&root, &tmp).expect("it is there");
    fs.fsync(&whiteout, Fsync::All).expect("synced");
    assert!(is_there(&tmp) && is_there(&t));
}
