//! Trees of files as programs see them, whoever serves them, compared file by file.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{SeekFrom, lgetxattr, llistxattr, seek};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_128;

/// Names in the root that belong to a file system, and not to who uses it.
const NOT_USERS: [&str; 2] = ["lost+found", ".snapshots"];

/// All files below a directory, by their path in it.
pub type Tree = BTreeMap<PathBuf, Seen>;

/// What there is of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What a copy has as well.
    kept: Kept,
    /// What the image has of it beside.
    own: Own,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    mode: u32,
    owner: (u32, u32),
    links: u64,
    /// Of what is no directory.
    size: u64,
    rdev: u64,
    mtime: (i64, i64),
    /// A hash of them, or of a symbolic link its target.
    contents: u128,
    xattrs: BTreeMap<OsString, Vec<u8>>,
}

/// The time of birth is not among it: FUSE does not ask for that.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Own {
    ino: u64,
    size: u64,
    blocks: u64,
    atime: (i64, i64),
    ctime: (i64, i64),
    /// Where there are data, and no holes: beginnings and ends.
    data: Vec<(u64, u64)>,
}

/// What is below a directory. Reading it may set times of access, where a mount does that.
pub fn tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    add(root, root, &mut tree);
    tree
}

fn add(root: &Path, dir: &Path, tree: &mut Tree) {
    for entry in fs::read_dir(dir).expect("listed") {
        let path = entry.expect("an entry").path();
        let name = path.strip_prefix(root).expect("below it").to_owned();
        if NOT_USERS.iter().any(|other| name == Path::new(other)) {
            continue;
        }
        let seen = look(&path);
        if path.is_dir() && !path.is_symlink() {
            add(root, &path, tree);
        }
        tree.insert(name, seen);
    }
}

fn look(path: &Path) -> Seen {
    // Attributes before contents, as reading may set a time.
    let meta = fs::symlink_metadata(path).expect("attributes");
    let kind = meta.file_type();
    let is_device = kind.is_char_device() || kind.is_block_device();
    let bytes = match kind {
        kind if kind.is_file() => contents(path),
        kind if kind.is_symlink() => {
            let target = fs::read_link(path).expect("a target");
            target.into_os_string().into_vec()
        }
        _ => Vec::new(),
    };
    Seen {
        kept: Kept {
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            links: meta.nlink(),
            size: if kind.is_dir() { 0 } else { meta.len() },
            rdev: if is_device { meta.rdev() } else { 0 },
            mtime: (meta.mtime(), meta.mtime_nsec()),
            contents: xxh3_128(&bytes),
            xattrs: xattrs(path),
        },
        own: Own {
            ino: meta.ino(),
            size: meta.len(),
            blocks: meta.blocks(),
            atime: (meta.atime(), meta.atime_nsec()),
            ctime: (meta.ctime(), meta.ctime_nsec()),
            data: if kind.is_file() {
                data(path)
            } else {
                Vec::new()
            },
        },
    }
}

fn xattrs(path: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let mut list = vec![0; 8192];
    let len = llistxattr(path, &mut list[..]).expect("extended attributes");
    let names = list[..len].split(|&byte| byte == 0);
    let value = |name: &[u8]| {
        let mut value = vec![0; 8192];
        let len = lgetxattr(path, name, &mut value[..]).expect("a value");
        value.truncate(len);
        (OsString::from_vec(name.to_vec()), value)
    };
    names.filter(|name| !name.is_empty()).map(value).collect()
}

/// The bytes of a file; of one that is long, what is not zeros, and where.
fn contents(path: &Path) -> Vec<u8> {
    const LONG: u64 = 8 << 20;
    const CHUNK: usize = 1024;
    let file = File::open(path).expect("opened");
    if file.metadata().expect("attributes").len() < LONG {
        return fs::read(path).expect("contents");
    }
    let mut found = Vec::new();
    for (start, end) in data(path) {
        let mut bytes = vec![0; (end - start) as usize];
        file.read_exact_at(&mut bytes, start).expect("contents");
        for (at, chunk) in (start..).step_by(CHUNK).zip(bytes.chunks(CHUNK)) {
            if chunk.iter().any(|&byte| byte != 0) {
                found.extend(at.to_le_bytes());
                found.extend(chunk);
            }
        }
    }
    found
}

fn data(path: &Path) -> Vec<(u64, u64)> {
    let file = File::open(path).expect("opened");
    let (mut all, mut end) = (Vec::new(), 0);
    loop {
        let start = match seek(&file, SeekFrom::Data(end)) {
            Err(Errno::NXIO) => return all,
            start => start.expect("data"),
        };
        end = seek(&file, SeekFrom::Hole(start)).expect("a hole, or the end");
        all.push((start, end));
    }
}

/// Demands that two mounts of one image show the same, numbers of inodes and times, too.
#[track_caller]
pub fn assert_equal(ours: &Tree, theirs: &Tree, context: &str) {
    compare(ours, theirs, context, |seen| seen);
}

/// Demands that one tree is a copy of the other one, as `cp -a` makes them.
#[track_caller]
pub fn assert_copied(source: &Tree, copy: &Tree, context: &str) {
    compare(source, copy, context, |seen| &seen.kept);
}

#[track_caller]
fn compare<'a, T: PartialEq + std::fmt::Debug>(
    one: &'a Tree,
    other: &'a Tree,
    context: &str,
    part: impl Fn(&'a Seen) -> T,
) {
    let names = |tree: &'a Tree| tree.keys().collect::<BTreeSet<_>>();
    let (names, others) = (names(one), names(other));
    let lacks: Vec<_> = names.difference(&others).collect();
    let more: Vec<_> = others.difference(&names).collect();
    assert!(
        lacks.is_empty() && more.is_empty(),
        "{context}: the second lacks {lacks:?}, and the first {more:?}"
    );
    for ((name, one), other) in one.iter().zip(other.values()) {
        let name = name.as_os_str().as_bytes().escape_ascii();
        assert_eq!(part(one), part(other), "{context}: {name}");
    }
}
