//! The same calls on the same names, here and in the kernel: every errno must agree, and so must
//! what is there afterwards.

mod common;

use std::os::fd::OwnedFd;

use common::setup;
use model::Model;
use proptest::prelude::*;
use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use vfs::{Context, Errno, Files, Kind, NewKind, OpenFlags, PathAt, RenameMode};

/// The play takes place so deep down that no walk of a case gets above it.
const DEPTH: usize = 32;

struct Both {
    files: Files<Model>,
    ctx: Context<Model>,
    dir: OwnedFd,
    // Removed when dropped.
    _temp: tempfile::TempDir,
}

impl Both {
    fn new() -> Both {
        let (files, mut ctx) = setup().files();
        // In memory where that can be had: it is faster, and tmpfs is as standard as any.
        let temp = tempfile::tempdir_in("/dev/shm")
            .or_else(|_| tempfile::tempdir())
            .unwrap();
        let deep = temp.path().join("x/".repeat(DEPTH));
        std::fs::create_dir_all(&deep).unwrap();
        for _ in 0..DEPTH {
            files.mkdir(&ctx, "x", 0o755).unwrap();
            files.chdir(&mut ctx, "x").unwrap();
        }
        let dir = fs::openat(CWD, &deep, OFlags::DIRECTORY, Mode::empty()).unwrap();
        Both {
            files,
            ctx,
            dir,
            _temp: temp,
        }
    }
}

#[derive(Debug, Clone)]
enum Op {
    Open(String, OpenFlags),
    Mkdir(String),
    Mknod(String),
    Symlink(String, String),
    Link(String, String, bool),
    Unlink(String),
    Rmdir(String),
    Rename(String, String, RenameMode),
}

fn path() -> impl Strategy<Value = String> {
    let part = || prop::sample::select(vec!["a", "b", "c", "a", "b", ".", ".."]);
    let tail = prop::sample::select(vec!["", "", "", "", "/", "//", "/."]);
    prop_oneof![
        40 => (prop::collection::vec(part(), 1..4), tail)
            .prop_map(|(parts, tail)| parts.join("/") + tail),
        1 => Just(String::new()),
        1 => Just("n".repeat(256)),
    ]
}

fn flags() -> impl Strategy<Value = OpenFlags> {
    let way = prop::sample::select(vec![
        OpenFlags::READ,
        OpenFlags::WRITE,
        OpenFlags::READ | OpenFlags::WRITE,
        OpenFlags::PATH,
    ]);
    let more = OpenFlags::CREATE
        | OpenFlags::EXCL
        | OpenFlags::TRUNC
        | OpenFlags::DIRECTORY
        | OpenFlags::NOFOLLOW;
    (way, any::<u32>()).prop_map(move |(way, bits)| {
        let mut flags = way | (OpenFlags::from_bits_truncate(bits) & more);
        // Without CREATE, what EXCL means is not defined. What CREATE and DIRECTORY mean together
        // depends on the kernel's version.
        if !flags.contains(OpenFlags::CREATE) {
            flags.remove(OpenFlags::EXCL);
        } else {
            flags.remove(OpenFlags::DIRECTORY);
        }
        flags
    })
}

fn op() -> impl Strategy<Value = Op> {
    let mode = || {
        prop::sample::select(vec![
            RenameMode::Replace,
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
        ])
    };
    prop_oneof![
        3 => (path(), flags()).prop_map(|(p, f)| Op::Open(p, f)),
        3 => path().prop_map(Op::Mkdir),
        1 => path().prop_map(Op::Mknod),
        3 => (path(), path()).prop_map(|(t, p)| Op::Symlink(t, p)),
        2 => (path(), path(), any::<bool>()).prop_map(|(a, b, f)| Op::Link(a, b, f)),
        1 => path().prop_map(Op::Unlink),
        1 => path().prop_map(Op::Rmdir),
        3 => (path(), path(), mode()).prop_map(|(a, b, m)| Op::Rename(a, b, m)),
    ]
}

fn here(both: &Both, op: &Op) -> Result<(), Errno> {
    let Both { files, ctx, .. } = both;
    match op {
        Op::Open(path, flags) => files
            .open(ctx, path.as_str(), *flags, 0o644)
            .and_then(|fd| files.close(fd)),
        Op::Mkdir(path) => files.mkdir(ctx, path.as_str(), 0o755),
        Op::Mknod(path) => files.mknod(ctx, path.as_str(), NewKind::File, 0o644),
        Op::Symlink(target, path) => files.symlink(ctx, target.as_bytes(), path.as_str()),
        Op::Link(old, new, follow) => files.link(ctx, old.as_str(), new.as_str(), *follow),
        Op::Unlink(path) => files.unlink(ctx, path.as_str()),
        Op::Rmdir(path) => files.rmdir(ctx, path.as_str()),
        Op::Rename(old, new, mode) => files.rename(ctx, old.as_str(), new.as_str(), *mode),
    }
    .map_err(|error| error.errno())
}

fn in_kernel(dir: &OwnedFd, op: &Op) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(0o755);
    match op {
        Op::Open(path, flags) => fs::openat(dir, path, kernel_flags(*flags), mode).map(drop),
        Op::Mkdir(path) => fs::mkdirat(dir, path, mode),
        Op::Mknod(path) => fs::mknodat(dir, path, FileType::RegularFile, mode, 0),
        Op::Symlink(target, path) => fs::symlinkat(target, dir, path),
        Op::Link(old, new, follow) => {
            let flags = if *follow {
                AtFlags::SYMLINK_FOLLOW
            } else {
                AtFlags::empty()
            };
            fs::linkat(dir, old, dir, new, flags)
        }
        Op::Unlink(path) => fs::unlinkat(dir, path, AtFlags::empty()),
        Op::Rmdir(path) => fs::unlinkat(dir, path, AtFlags::REMOVEDIR),
        Op::Rename(old, new, mode) => {
            let flags = match mode {
                RenameMode::Replace => RenameFlags::empty(),
                RenameMode::NoReplace => RenameFlags::NOREPLACE,
                RenameMode::Exchange => RenameFlags::EXCHANGE,
                RenameMode::Whiteout => RenameFlags::WHITEOUT,
            };
            fs::renameat_with(dir, old, dir, new, flags)
        }
    }
}

fn kernel_flags(flags: OpenFlags) -> OFlags {
    let mut out = if flags.contains(OpenFlags::READ | OpenFlags::WRITE) {
        OFlags::RDWR
    } else if flags.contains(OpenFlags::WRITE) {
        OFlags::WRONLY
    } else {
        OFlags::RDONLY
    };
    for (ours, theirs) in [
        (OpenFlags::CREATE, OFlags::CREATE),
        (OpenFlags::EXCL, OFlags::EXCL),
        (OpenFlags::TRUNC, OFlags::TRUNC),
        (OpenFlags::DIRECTORY, OFlags::DIRECTORY),
        (OpenFlags::NOFOLLOW, OFlags::NOFOLLOW),
        (OpenFlags::PATH, OFlags::PATH),
    ] {
        out.set(theirs, flags.contains(ours));
    }
    out
}

/// What is seen of a name: kind, names of it (of a directory, file systems count differently),
/// target.
type Seen = Result<(FileType, Option<u64>, Option<Vec<u8>>), Errno>;

fn seen_here(both: &Both, path: &str, follow: bool) -> Seen {
    let at = PathAt::from(path);
    let at = if follow { at } else { at.nofollow() };
    let attr = both
        .files
        .stat(&both.ctx, at)
        .map_err(|error| error.errno())?;
    let target = both
        .files
        .readlink(&both.ctx, path)
        .ok()
        .filter(|_| !follow);
    let nlink = (attr.kind != Kind::Dir).then_some(u64::from(attr.nlink));
    Ok((
        FileType::from_raw_mode(attr.kind.mode_bits()),
        nlink,
        target,
    ))
}

fn seen_in_kernel(dir: &OwnedFd, path: &str, follow: bool) -> Seen {
    let flags = if follow {
        AtFlags::empty()
    } else {
        AtFlags::SYMLINK_NOFOLLOW
    };
    let stat = fs::statat(dir, path, flags)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    let target = fs::readlinkat(dir, path, Vec::new())
        .ok()
        .filter(|_| !follow);
    let nlink = (kind != FileType::Directory).then_some(stat.st_nlink as u64);
    Ok((kind, nlink, target.map(|target| target.into_bytes())))
}

fn paths_to_look_at() -> Vec<String> {
    let names = ["a", "b", "c"];
    let mut paths: Vec<String> = names.iter().map(|name| name.to_string()).collect();
    for depth in 0..2 {
        let deeper: Vec<String> = paths
            .iter()
            .filter(|path| path.split('/').count() == depth + 1)
            .flat_map(|path| names.iter().map(move |name| format!("{path}/{name}")))
            .collect();
        paths.extend(deeper);
    }
    let slashed: Vec<String> = paths.iter().map(|path| format!("{path}/")).collect();
    paths.extend(slashed);
    paths
}

proptest! {
    #[test]
    fn every_call_ends_as_in_the_kernel(ops in prop::collection::vec(op(), 1..60)) {
        let both = Both::new();
        for op in &ops {
            prop_assert_eq!(here(&both, op), in_kernel(&both.dir, op), "{:?}", op);
        }
        for path in paths_to_look_at() {
            for follow in [false, true] {
                let (ours, theirs) =
                    (seen_here(&both, &path, follow), seen_in_kernel(&both.dir, &path, follow));
                prop_assert_eq!(ours, theirs, "{} follow {}", path, follow);
            }
        }
    }
}
