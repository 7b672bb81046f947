//! What restore(8) makes of dumps: the tree that was dumped, also of one that builds on another.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::{env, fs};

use dump::{Names, Options, Summary};
use model::Model;
use vfs::{FileSystem, Kind, ManualClock, NewKind, NewNode, Place, SetAttr, Time};

/// Where the clock begins: seconds since 1970.
const START: u32 = 1_700_000_000;

/// A file system to dump, whose clock stands still until it is told.
struct Source {
    fs: Model,
    seconds: Arc<AtomicI64>,
}

type Node = <Model as FileSystem>::Node;

impl Source {
    fn new() -> Source {
        let seconds = Arc::new(AtomicI64::new(START.into()));
        let clock = seconds.clone();
        let now = move || Time::new(clock.load(Ordering::Relaxed), 0);
        Source {
            fs: Model::new(Arc::new(now)),
            seconds,
        }
    }

    fn make(&self, dir: &Node, name: &str, kind: NewKind<'_>) -> Node {
        let is_link = matches!(kind, NewKind::Symlink(_));
        let new = NewNode {
            kind,
            perm: if is_link { 0o777 } else { 0o640 },
            uid: 0,
            gid: 0,
            xattrs: &[],
        };
        self.fs.create(dir, name.as_bytes(), &new).expect("made")
    }

    fn file(&self, dir: &Node, name: &str, contents: &[u8]) -> Node {
        let node = self.make(dir, name, NewKind::File);
        self.fs.write(&node, 0, contents).expect("written");
        node
    }

    fn dir(&self, dir: &Node, name: &str) -> Node {
        self.make(dir, name, NewKind::Dir)
    }

    fn dump(&self, level: u8, since: Option<u32>, to: &Path) -> Summary {
        let options = Options {
            level,
            date: self.seconds.fetch_add(10, Ordering::Relaxed) as u32,
            since,
            names: Names::default(),
        };
        let mut out = fs::File::create(to).expect("a file");
        let summary = dump::dump(&self.fs, &options, &mut out, &|_, _, _| ()).expect("dumped");
        assert_eq!(summary.bytes, out.metadata().expect("there").len());
        summary
    }

    /// What is there: a line for each path.
    fn listing(&self) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        self.list(&self.fs.root(), Path::new(""), &mut found);
        found
    }

    fn list(&self, dir: &Node, at: &Path, found: &mut BTreeMap<PathBuf, String>) {
        let mut names = Vec::new();
        let mut all = |entry: vfs::DirEntry<'_>| {
            names.push(entry.name.to_vec());
            true
        };
        self.fs.readdir(dir, 0, &mut all).expect("read");
        for name in names {
            let node = self.fs.lookup(dir, &name).expect("there");
            let path = at.join(OsStr::from_bytes(&name));
            found.insert(path.clone(), self.describe(&node));
            if self.fs.kind(&node) == Kind::Dir {
                self.list(&node, &path, found);
            }
        }
    }

    fn describe(&self, node: &Node) -> String {
        let attr = self.fs.attr(node);
        let contents = match attr.kind {
            Kind::File => {
                let mut bytes = vec![0; attr.size as usize];
                let read = self.fs.read(node, 0, &mut bytes).expect("read");
                assert_eq!(read, bytes.len());
                bytes
            }
            Kind::Symlink => self.fs.readlink(node).expect("a target"),
            _ => Vec::new(),
        };
        let mut xattrs = BTreeMap::new();
        for name in self.fs.listxattr(node).expect("names") {
            let value = self.fs.getxattr(node, &name).expect("a value");
            xattrs.insert(name, value);
        }
        line(
            attr.kind.mode_bits() | u32::from(attr.perm),
            (attr.uid, attr.gid, attr.rdev),
            attr.mtime.secs(),
            &contents,
            &xattrs,
        )
    }
}

fn line(
    mode: u32,
    ids: (u32, u32, u32),
    mtime: i64,
    contents: &[u8],
    xattrs: &BTreeMap<Vec<u8>, Vec<u8>>,
) -> String {
    let sum = contents.iter().fold(0_u64, |sum, &byte| {
        sum.wrapping_mul(31).wrapping_add(byte.into())
    });
    // restore makes symbolic links with other times and permissions.
    let (mode, mtime) = match mode & 0o170000 {
        0o120000 => (0o120777, 0),
        _ => (mode, mtime),
    };
    format!(
        "{mode:o} {ids:?} {mtime} {} {sum:x} {xattrs:?}",
        contents.len()
    )
}

/// What restore made: a line for each path, as [`Source::listing`].
fn listing(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(root).expect("below it").to_owned();
            if name == Path::new("restoresymtable") {
                continue;
            }
            let meta = fs::symlink_metadata(&path).expect("there");
            let kind = meta.file_type();
            let contents = match () {
                () if kind.is_file() => fs::read(&path).expect("read"),
                () if kind.is_symlink() => {
                    let target = fs::read_link(&path).expect("a target");
                    target.into_os_string().as_bytes().to_vec()
                }
                () => Vec::new(),
            };
            let is_device = kind.is_block_device() || kind.is_char_device();
            let rdev = if is_device { meta.rdev() as u32 } else { 0 };
            found.insert(
                name,
                line(
                    meta.mode(),
                    (meta.uid(), meta.gid(), rdev),
                    meta.mtime(),
                    &contents,
                    &xattrs(&path),
                ),
            );
            if kind.is_dir() {
                dirs.push(path);
            }
        }
    }
    found
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 4096];
    let len = rustix::fs::llistxattr(path, &mut names).expect("names");
    let names = names[..len].split(|&byte| byte == 0);
    let names = names.filter(|name| !name.is_empty());
    let values = names.map(|name| {
        let mut value = vec![0; 65536];
        let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]);
        value.truncate(len.expect("a value"));
        (name.to_vec(), value)
    });
    values.collect()
}

fn has_restore() -> bool {
    let status = Command::new("restore")
        .arg("-V")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok()
}

/// Runs restore in a directory, without a question.
fn restore(dir: &Path, args: &[&OsStr]) {
    let output = Command::new("restore")
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {said}");
    assert!(
        !said.contains("resync") && !said.contains("not found"),
        "{said}"
    );
}

macro_rules! needs_restore {
    () => {
        testing::needs_root!();
        if !has_restore() {
            testing::skip!("needs restore (Debian: dump)");
        }
    };
}

fn acl() -> Vec<u8> {
    let mut list = 2_u32.to_le_bytes().to_vec();
    let entries = [
        (1, 6, !0),
        (2, 4, 1000),
        (4, 4, !0),
        (16, 4, !0),
        (32, 0, !0),
    ];
    for (tag, perm, id) in entries {
        let (tag, perm, id): (u16, u16, u32) = (tag, perm, id);
        list.extend_from_slice(&tag.to_le_bytes());
        list.extend_from_slice(&perm.to_le_bytes());
        list.extend_from_slice(&id.to_le_bytes());
    }
    list
}

#[test]
fn a_tree_of_everything_comes_back() {
    needs_restore!();
    let source = Source::new();
    let (fs, root) = (&source.fs, source.fs.root());
    let a = source.file(&root, "a", b"contents");
    let d = source.dir(&root, "d");
    fs.link(&a, &d, b"same").expect("linked");
    source.file(&root, "empty", b"");
    // More than one header describes, and holes of each kind.
    let large: Vec<u8> = (0..1_500_000_u32)
        .map(|i| (i.wrapping_mul(i) >> 7) as u8)
        .collect();
    let file = source.file(&d, "large", &large);
    fs.write(&file, 10_000_000, b"behind a hole")
        .expect("written");
    let hole = source.file(&d, "hole", b"");
    let longer = SetAttr {
        size: Some(3_000_001),
        ..SetAttr::default()
    };
    fs.setattr(&hole, &longer).expect("longer");
    source.make(&d, "link", NewKind::Symlink(b"to somewhere"));
    source.make(&d, "long link", NewKind::Symlink(&[b'x'; 2000]));
    source.make(&d, "fifo", NewKind::Fifo);
    source.make(&d, "null", NewKind::CharDev(0x103));
    source.make(&d, "disk", NewKind::BlockDev(0x811));
    let mut deep = d.clone();
    for i in 0..40 {
        deep = source.dir(&deep, &format!("level {i}"));
        source.file(&deep, "file", format!("at {i}").as_bytes());
    }
    let many = source.dir(&root, "many");
    for i in 0..300 {
        source.file(&many, &format!("{i}{}", "n".repeat(i % 250)), &[i as u8]);
    }
    for (node, name, value) in [
        (&a, "user.short", &b"value"[..]),
        (&a, "trusted.long", &[b'v'; 2000]),
        (&d, "user.of a directory", b""),
    ] {
        let value = (name.as_bytes(), value);
        let mode = vfs::XattrMode::Any;
        let set = fs.setxattr(node, value.0, value.1, mode, &SetAttr::default());
        set.expect("set");
    }
    let mode = vfs::XattrMode::Any;
    let set = fs.setxattr(
        &a,
        vfs::ACL_ACCESS,
        &acl(),
        mode,
        &SetAttr {
            perm: Some(0o640),
            ..SetAttr::default()
        },
    );
    set.expect("an access control list");

    let home = tempfile::tempdir_in(disk()).expect("a folder");
    let (at, to) = (home.path().join("dump"), home.path().join("to"));
    fs::create_dir(&to).expect("made");
    let summary = source.dump(0, None, &at);
    assert_eq!((summary.directories, summary.without_attributes), (43, 0));
    restore(&to, &["-rf".as_ref(), at.as_ref()]);
    assert_same(&source.listing(), &listing(&to));
    let sparse = fs::metadata(to.join("d/hole")).expect("there");
    assert_eq!(sparse.blocks(), 0, "holes are holes");
    let linked = fs::metadata(to.join("a")).expect("there").ino();
    let same = fs::metadata(to.join("d/same")).expect("there").ino();
    assert_eq!(linked, same, "links are links");
    assert_eq!(compared(&at, &to), Vec::<String>::new());

    let changed = fs::OpenOptions::new().write(true).open(to.join("d/large"));
    changed
        .expect("open")
        .write_all_at(b"!", 700_000)
        .expect("written");
    assert_eq!(compared(&at, &to).len(), 1, "the comparison can fail");
}

/// What `restore -C` finds different; but for flags, which are of the file system restored to.
fn compared(dump: &Path, to: &Path) -> Vec<String> {
    let output = Command::new("restore")
        .args(["-Cf".as_ref(), dump.as_os_str(), "-D".as_ref(), to.as_ref()])
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines = said
        .lines()
        .filter(|line| !line.contains(": flags changed from"));
    let lines = lines.filter(|line| !line.starts_with("Some files were modified"));
    lines.map(str::to_owned).collect()
}

/// A directory whose file system has all that is restored.
fn disk() -> PathBuf {
    env::var_os("CARGO_TARGET_TMPDIR").map_or_else(env::temp_dir, PathBuf::from)
}

fn assert_same(expected: &BTreeMap<PathBuf, String>, found: &BTreeMap<PathBuf, String>) {
    for (path, line) in expected {
        assert_eq!(Some(line), found.get(path), "{}", path.display());
    }
    let more: Vec<_> = found
        .keys()
        .filter(|path| !expected.contains_key(*path))
        .collect();
    assert!(more.is_empty(), "{more:?}");
}

/// restore(8) itself loses what is before a hole that begins near to the end of a file.
#[test]
fn what_is_before_a_hole_at_the_end_comes_back() {
    needs_restore!();
    let device = Arc::new(block::Memory::new(64 << 20));
    let options = ffs::FormatOptions {
        uuid: [7; 16],
        label: String::new(),
        hash_seed: [9; 16],
        time: Time::new(START.into(), 0),
        owner: (0, 0),
        zeroed: true,
        block_size: 1024,
        inode_size: 256,
        bytes_per_inode: 16384,
        journal: false,
    };
    ffs::format(&block::Disk::new(device.clone()), &options).expect("formatted");
    let options = ffs::MountOptions {
        read_only: false,
        hash_key: [7; 16],
        cache_bytes: 1 << 20,
        mode: ffs::Mode::Soft,
    };
    let clock = Arc::new(ManualClock::new(Time::new(START.into(), 0)));
    let fs = ffs::Ffs::mount(block::Disk::new(device), clock, options).expect("it mounts");
    // Where the hole begins, and how long it is: in a part of 512 records, and over its end.
    let begins = [1, 2, 3, 5, 63, 65, 511, 512, 513];
    let lens = [1, 50, 1024, 2000, 3072, 65_536, 70_000, 600 << 10];
    let files: Vec<_> = begins
        .iter()
        .flat_map(|&begin| lens.iter().map(move |&len| (begin, len)))
        .collect();
    for (begin, len) in &files {
        let new = NewNode {
            kind: NewKind::File,
            perm: 0o640,
            uid: 0,
            gid: 0,
            xattrs: &[],
        };
        let name = format!("{begin}-{len}");
        let file = fs.create(&fs.root(), name.as_bytes(), &new).expect("made");
        fs.write(&file, 0, &vec![b'x'; begin << 10])
            .expect("written");
        let size = SetAttr {
            size: Some(((begin << 10) + len) as u64),
            ..SetAttr::default()
        };
        fs.setattr(&file, &size).expect("longer");
    }
    let home = tempfile::tempdir_in(disk()).expect("a folder");
    let (at, to) = (home.path().join("dump"), home.path().join("to"));
    fs::create_dir(&to).expect("made");
    let mut out = fs::File::create(&at).expect("a file");
    let options = Options {
        date: START,
        ..Options::default()
    };
    dump::dump(&fs, &options, &mut out, &|_, _, _| ()).expect("dumped");
    restore(&to, &["-rf".as_ref(), at.as_ref()]);
    for (begin, len) in files {
        let name = format!("{begin}-{len}");
        let mut expected = vec![b'x'; begin << 10];
        expected.resize((begin << 10) + len, 0);
        let found = fs::read(to.join(&name)).expect("it is there");
        assert!(found == expected, "{name}: other contents");
    }
}

#[test]
fn only_what_changed_and_what_leads_there_is_dumped() {
    let source = Source::new();
    let root = source.fs.root();
    let (a, b) = (source.dir(&root, "a"), source.dir(&root, "b"));
    let deep = source.dir(&a, "deep");
    let file = source.file(&deep, "file", b"old");
    for i in 0..10 {
        source.file(&b, &format!("{i}"), b"contents");
    }
    let home = tempfile::tempdir().expect("a folder");
    let at = home.path().join("dump");
    let all = source.dump(0, None, &at);
    assert_eq!((all.directories, all.files), (4, 11));
    let date = source.seconds.load(Ordering::Relaxed) as u32;
    source.fs.write(&file, 0, b"new").expect("written");
    let changed = source.dump(1, Some(date), &at);
    assert_eq!((changed.directories, changed.files), (3, 1));
}

/// The levels of a dump with changes between them, restored one on the other.
#[test]
fn levels_build_on_each_other() {
    needs_restore!();
    testing::for_seeds(20, |seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let source = Source::new();
        let home = tempfile::tempdir_in(disk()).expect("a folder");
        let to = home.path().join("to");
        fs::create_dir(&to).expect("made");
        let mut since = None;
        for level in 0..random.u8(2..5) {
            for _ in 0..random.u32(1..60) {
                source.change(&mut random);
            }
            let at = home.path().join(format!("dump {level}"));
            source.seconds.fetch_add(10, Ordering::Relaxed);
            let date = source.seconds.load(Ordering::Relaxed) as u32;
            source.dump(level, since, &at);
            since = Some(date);
            restore(&to, &["-rf".as_ref(), at.as_ref()]);
            assert_same(&source.listing(), &listing(&to));
        }
    });
}

impl Source {
    /// Something at random happens to the tree.
    fn change(&self, random: &mut fastrand::Rng) {
        let (mut dirs, mut names) = (vec![self.fs.root()], Vec::new());
        let mut next = 0;
        while let Some(dir) = dirs.get(next).cloned() {
            next += 1;
            let mut all = |entry: vfs::DirEntry<'_>| {
                names.push((dir.clone(), entry.name.to_vec(), entry.kind));
                true
            };
            self.fs.readdir(&dir, 0, &mut all).expect("read");
            for (_, name, _) in names
                .iter()
                .filter(|(at, _, kind)| *kind == Kind::Dir && self.fs.ino(at) == self.fs.ino(&dir))
            {
                dirs.push(self.fs.lookup(&dir, name).expect("there"));
            }
        }
        let dir = &dirs[random.usize(..dirs.len())];
        let new = format!("n{}", random.u32(..30));
        let old = (!names.is_empty()).then(|| &names[random.usize(..names.len())]);
        // What cannot be done is not done.
        let _ = match (random.u8(..8), old) {
            (0 | 1, _) => self.create(dir, &new, NewKind::File),
            (2, _) => self.create(dir, &new, NewKind::Dir),
            (3, _) => self.create(dir, &new, NewKind::Symlink(b"somewhere")),
            (4, Some((at, name, Kind::Dir))) => self.fs.rmdir(at, name, &|_| Ok(())),
            (4, Some((at, name, _))) => self.fs.unlink(at, name, &|_| Ok(())),
            (5, Some((at, name, _))) => {
                let mode = vfs::RenameMode::Replace;
                let from = Place { dir: at, name };
                let to = Place {
                    dir,
                    name: new.as_bytes(),
                };
                self.fs.rename(from, to, mode, &|_| Ok(()))
            }
            (6, Some((at, name, Kind::File))) => {
                let node = self.fs.lookup(at, name).expect("there");
                let bytes = vec![random.u8(..); random.usize(..5000)];
                self.fs.write(&node, random.u64(..20_000), &bytes).map(drop)
            }
            (7, Some((at, name, Kind::File))) => {
                let node = self.fs.lookup(at, name).expect("there");
                self.fs.link(&node, dir, new.as_bytes())
            }
            _ => Ok(()),
        };
    }

    fn create(&self, dir: &Node, name: &str, kind: NewKind<'_>) -> vfs::Result<()> {
        let new = NewNode {
            kind,
            perm: 0o755,
            uid: 0,
            gid: 0,
            xattrs: &[],
        };
        self.fs.create(dir, name.as_bytes(), &new).map(drop)
    }
}
