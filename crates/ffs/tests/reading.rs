//! Images that mke2fs made of a tree are read as the tree is, and as debugfs reads them.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, symlink};
use std::path::Path;

use common::{Image, run};
use ffs::{Ffs, Node};
use rustix::fs::{FileType, Mode, XattrFlags, makedev, mknodat};
use vfs::{Acl, Errno, FileSystem, Kind, SeekFor};

const MIB: u64 = 1 << 20;
/// The largest file: beyond what two levels of indirect blocks of 1024 bytes reach.
const LARGE: u64 = 70 * MIB;

/// Bytes that tell where they are.
fn pattern(len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).map(|word| word.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(len);
    bytes
}

/// A tree with one of everything.
fn make_tree(root: &Path) {
    for len in [
        0,
        1,
        59,
        60,
        1023,
        1024,
        4096,
        12 * 1024,
        13 * 1024 + 5,
        300 * 1024,
        3 << 20,
    ] {
        fs::write(root.join(format!("file{len}")), pattern(len)).expect("written");
    }
    let sparse = fs::File::create(root.join("sparse")).expect("made");
    for (i, at) in [0, 9 << 10, 1 << 20, 40 << 20, LARGE - 10]
        .into_iter()
        .enumerate()
    {
        sparse.write_all_at(&pattern(10 + i), at).expect("written");
    }
    let deep = root.join("a/b/c");
    fs::create_dir_all(&deep).expect("made");
    fs::write(deep.join("n".repeat(255)), "long name").expect("written");
    fs::hard_link(root.join("file1"), deep.join("hard")).expect("linked");
    let many = root.join("many");
    fs::create_dir(&many).expect("made");
    for i in 0..700 {
        fs::write(many.join(format!("name-{i}-{}", "x".repeat(i % 60))), "").expect("written");
    }
    for len in [1, 59, 60, 61, 900] {
        symlink("t".repeat(len), root.join(format!("link{len}"))).expect("linked");
    }
    let place = rustix::fs::CWD;
    let mode = Mode::from_raw_mode(0o640);
    mknodat(place, root.join("pipe"), FileType::Fifo, mode, 0).expect("made");
    make_devices(root);
    set_xattrs(root);
}

fn make_devices(root: &Path) {
    testing::needs_root!();
    for (name, kind, number) in [
        ("device", FileType::CharacterDevice, makedev(5, 7)),
        ("disk", FileType::BlockDevice, makedev(300, 70_000)),
    ] {
        let mode = Mode::from_raw_mode(0o640);
        mknodat(rustix::fs::CWD, root.join(name), kind, mode, number).expect("made");
    }
}

/// Extended attributes: some that fit the inode, some that need a block, lists of access.
fn set_xattrs(root: &Path) {
    let set = |file: &str, name: &str, value: &[u8]| {
        let path = root.join(file);
        rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).expect("attributes");
    };
    set("file1", "user.small", b"value");
    set("file1", "user.empty", b"");
    set("file4096", "user.large", &pattern(500));
    set("file4096", "user.small", b"in the inode, or not");
    let mut acl = Acl::from_perm(0o640);
    acl.users.push((1000, acl.group));
    acl.mask = Some(acl.group);
    set("file1024", "system.posix_acl_access", &acl.to_xattr());
    set("a", "system.posix_acl_default", &acl.to_xattr());
}

/// What there is of a file, as far as images keep it.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    mode: u32,
    owner: (u32, u32),
    links: u64,
    size: u64,
    rdev: u64,
    mtime: i64,
    contents: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// All files below a folder, by their path.
type Tree = BTreeMap<Vec<u8>, Seen>;

fn tree_of_host(root: &Path, path: &Path, tree: &mut Tree) {
    for entry in fs::read_dir(path).expect("listed") {
        let path = entry.expect("an entry").path();
        let meta = fs::symlink_metadata(&path).expect("attributes");
        let kind = meta.file_type();
        let is_device = kind.is_char_device() || kind.is_block_device();
        let seen = Seen {
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            links: meta.nlink(),
            size: if kind.is_dir() { 0 } else { meta.size() },
            rdev: if is_device { meta.rdev() } else { 0 },
            mtime: meta.mtime(),
            contents: match kind {
                kind if kind.is_file() => common::read(&path),
                kind if kind.is_symlink() => {
                    let target = fs::read_link(&path).expect("a target");
                    target.as_os_str().as_bytes().to_vec()
                }
                _ => Vec::new(),
            },
            xattrs: xattrs_of_host(&path),
        };
        let name = path.strip_prefix(root).expect("below it").as_os_str();
        tree.insert(name.as_bytes().to_vec(), seen);
        if kind.is_dir() {
            tree_of_host(root, &path, tree);
        }
    }
}

fn xattrs_of_host(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut list = vec![0; 4096];
    let len = rustix::fs::llistxattr(path, &mut list[..]).expect("attributes");
    let names = list[..len]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 4096];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..]).expect("a value");
        value.truncate(len);
        value
    };
    names.map(|name| (name.to_vec(), value(name))).collect()
}

fn tree_of_image(fs: &Ffs, dir: &Node, path: &[u8], tree: &mut Tree) {
    for name in names(fs, dir) {
        let node = fs.lookup(dir, &name).expect("it was listed");
        let path = [path, &name].concat();
        if path == b"lost+found" {
            continue;
        }
        let attr = fs.attr(&node);
        assert_eq!(fs.node(attr.ino).map(|node| fs.attr(&node)), Ok(attr));
        let xattrs = fs.listxattr(&node).expect("attributes").into_iter();
        let xattrs: BTreeMap<_, _> = xattrs
            .map(|name| (name.clone(), fs.getxattr(&node, &name).expect("a value")))
            .collect();
        assert_eq!(attr.has_xattrs, !xattrs.is_empty());
        // In the kernel's form.
        let rdev = u64::from(attr.rdev);
        let (major, minor) = (rdev >> 8 & 0xFFF, rdev & 0xFF | rdev >> 12 & 0xFFF00);
        let seen = Seen {
            mode: attr.kind.mode_bits() | u32::from(attr.perm),
            owner: (attr.uid, attr.gid),
            links: attr.nlink.into(),
            size: if attr.kind == Kind::Dir { 0 } else { attr.size },
            rdev: makedev(major as u32, minor as u32),
            mtime: attr.mtime.secs(),
            contents: match attr.kind {
                Kind::File => contents(fs, &node, attr.size),
                Kind::Symlink => fs.readlink(&node).expect("a target"),
                _ => Vec::new(),
            },
            xattrs,
        };
        tree.insert(path.clone(), seen);
        if attr.kind == Kind::Dir {
            assert_eq!(fs.ino(&fs.parent(&node).expect("a parent")), fs.ino(dir));
            tree_of_image(fs, &node, &[&path[..], b"/"].concat(), tree);
        }
    }
}

/// The names of a directory, asked for a few at a time.
fn names(fs: &Ffs, dir: &Node) -> Vec<Vec<u8>> {
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let mut more = 3;
        fs.readdir(dir, cookie, &mut |entry| {
            if more == 0 {
                return false;
            }
            more -= 1;
            names.push(entry.name.to_vec());
            cookie = entry.cookie;
            true
        })
        .expect("listed");
        if more > 0 {
            return names;
        }
    }
}

fn contents(fs: &Ffs, node: &Node, size: u64) -> Vec<u8> {
    let mut bytes = vec![0xEE; size as usize + 10];
    let len = fs.read(node, 0, &mut bytes).expect("contents");
    bytes.truncate(len);
    // The same, from an odd place on.
    let (start, mut part) = (len / 3, vec![0; 5000]);
    let len = fs.read(node, start as u64, &mut part).expect("contents");
    assert_eq!(part[..len], bytes[start..(start + 5000).min(bytes.len())]);
    bytes
}

fn assert_trees_are_equal(ours: Tree, theirs: Tree) {
    let of = |tree: &Tree| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(of(&ours), of(&theirs));
    for ((name, ours), theirs) in ours.iter().zip(theirs.values()) {
        let name = name.escape_ascii();
        assert!(ours.contents == theirs.contents, "contents of {name}");
        assert_eq!(
            (
                ours.mode, ours.owner, ours.links, ours.size, ours.rdev, ours.mtime
            ),
            (
                theirs.mode,
                theirs.owner,
                theirs.links,
                theirs.size,
                theirs.rdev,
                theirs.mtime
            ),
            "attributes of {name}"
        );
        assert_eq!(ours.xattrs, theirs.xattrs, "{name}");
    }
}

/// What mke2fs is asked for: each a case.
const KINDS: &[&[&str]] = &[
    &["-t", "ext2", "-b", "1024", "-I", "128"],
    &["-t", "ext2", "-b", "1024", "-I", "256"],
    &["-t", "ext2", "-b", "2048"],
    &["-t", "ext2", "-b", "4096", "-I", "512"],
    &["-t", "ext2", "-b", "1024", "-r", "1", "-O", "^filetype"],
    &["-t", "ext3", "-b", "1024"],
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-b", "4096", "-O", "^64bit,^metadata_csum"],
];

#[test]
fn an_image_is_read_as_the_tree_that_it_was_made_of() {
    needs_e2fsprogs!();
    let source = tempfile::tempdir().expect("a folder");
    make_tree(source.path());
    let mut theirs = Tree::new();
    tree_of_host(source.path(), source.path(), &mut theirs);
    assert!(theirs.len() > 700);
    for kind in KINDS {
        let from = source.path().to_str().expect("a path");
        let image = Image::mke2fs(64 * MIB, &[kind, &["-d", from][..]].concat());
        check_image(&image, from, kind);
        // With hash indexes in large directories.
        run_e2fsck_d(&image);
        check_image(&image, from, kind);
    }

    fn check_image(image: &Image, from: &str, kind: &[&str]) {
        eprintln!("{kind:?}");
        let fs = image.mount();
        let (mut ours, mut theirs) = (Tree::new(), Tree::new());
        tree_of_image(&fs, &fs.root(), b"", &mut ours);
        tree_of_host(Path::new(from), Path::new(from), &mut theirs);
        assert_trees_are_equal(ours, theirs);
        check_with_debugfs(image, &fs);
        check_space(image, &fs);
        check_holes(&fs);
    }
}

/// Makes hash indexes: e2fsck has changed the image, so it exits with 1.
fn run_e2fsck_d(image: &Image) {
    let path = image.path.to_str().expect("a path");
    run("sh", ["-c", &format!("e2fsck -fyD '{path}' || [ $? = 1 ]")]);
}

/// debugfs lists the same numbers, modes and sizes.
fn check_with_debugfs(image: &Image, fs: &Ffs) {
    for path in ["/", "/a/b/c", "/many"] {
        let mut dir = fs.root();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            dir = fs.lookup(&dir, name.as_bytes()).expect("found");
        }
        let list = run(
            "debugfs",
            [
                "-R",
                &format!("ls -p {path}"),
                image.path.to_str().expect("a path"),
            ],
        );
        let mut seen = 0;
        for line in list.lines().filter(|line| !line.is_empty()) {
            // /INO/MODE/UID/GID/NAME/SIZE/
            let fields: Vec<&str> = line.split('/').collect();
            let (ino, mode, name) = (fields[1], fields[2], fields[5]);
            if matches!(name, "." | ".." | "") {
                continue;
            }
            let node = fs.lookup(&dir, name.as_bytes()).expect("found");
            let attr = fs.attr(&node);
            let ours = attr.kind.mode_bits() | u32::from(attr.perm);
            assert_eq!(
                (attr.ino.to_string(), format!("{ours:06o}")),
                (ino.into(), mode.into())
            );
            seen += 1;
        }
        assert_eq!(seen, names(fs, &dir).len(), "{path}");
    }
}

fn check_space(image: &Image, fs: &Ffs) {
    let number = |field: &str| {
        let line = image
            .dump()
            .into_iter()
            .find(|line| line.starts_with(field));
        let line = line.expect("it is told");
        line[field.len()..].trim().parse::<u64>().expect("a number")
    };
    let stat = fs.statfs();
    assert_eq!(stat.free, number("Free blocks:"));
    assert_eq!(stat.files_free, number("Free inodes:"));
    assert_eq!(stat.files, number("Inode count:"));
    assert_eq!(u64::from(stat.block_size), number("Block size:"));
}

fn check_holes(fs: &Ffs) {
    let sparse = fs.lookup(&fs.root(), b"sparse").expect("found");
    let block = u64::from(fs.statfs().block_size);
    let data = [0, 9 << 10, MIB, 40 * MIB, LARGE - 10].map(|at| at / block * block);
    let mut at = 0;
    for start in data {
        let found = fs.seek(&sparse, at, SeekFor::Data).expect("data");
        assert!(found <= start, "data at {found}, not only at {start}");
        assert_eq!(fs.seek(&sparse, start, SeekFor::Data), Ok(start));
        at = fs.seek(&sparse, start, SeekFor::Hole).expect("a hole");
        assert!(at > start);
    }
    let end = fs.attr(&sparse).size;
    assert_eq!(
        fs.seek(&sparse, end, SeekFor::Data),
        Err(Errno::NXIO.into())
    );
}

#[test]
fn nanoseconds_and_birth_times_are_read() {
    needs_e2fsprogs!();
    let image = Image::mke2fs(MIB, &["-t", "ext2", "-b", "1024", "-I", "256"]);
    let path = image.path.to_str().expect("a path");
    for (field, value) in [
        ("mtime", "@5000000000"),
        ("mtime_extra", "0x1DCD6501"),
        ("crtime", "@1400000000"),
    ] {
        let request = format!("sif /lost+found {field} {value}");
        run("debugfs", ["-w", "-R", &request, path]);
    }
    let fs = image.mount();
    let attr = fs.attr(&fs.lookup(&fs.root(), b"lost+found").expect("found"));
    assert_eq!(
        (attr.mtime.secs(), attr.mtime.nanos()),
        (5_000_000_000, 0x1DCD_6501 >> 2)
    );
    assert_eq!(attr.btime.secs(), 1_400_000_000);
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    needs_e2fsprogs!();
    for (feature, args) in [
        ("inline_data", &["-t", "ext4", "-O", "inline_data"][..]),
        ("meta_bg", &["-t", "ext4", "-O", "meta_bg,^resize_inode"]),
        ("bigalloc", &["-t", "ext4", "-O", "bigalloc"]),
        ("casefold", &["-t", "ext4", "-O", "casefold"]),
    ] {
        let image = Image::mke2fs(16 * MIB, args);
        match common::mount(image.disk(), true) {
            Ok(_) => panic!("{feature}"),
            Err(error) => assert!(error.to_string().contains(feature), "{error}"),
        }
    }
}
