//! Paths: how they are walked, and what each call makes of them.

mod common;

use common::{OTHER, OWNER, fails, setup, user};
use model::Model;
use vfs::{
    Access, Context, Cred, Errno, Fd, FileSystem, Files, Kind, NewKind, OpenFlags, RenameMode,
    XattrMode,
};

const READ: OpenFlags = OpenFlags::READ;
const WRITE: OpenFlags = OpenFlags::WRITE;
const MAKE: OpenFlags = OpenFlags::WRITE.union(OpenFlags::CREATE);

/// A tree to walk: `d/e/f`, and links to its parts.
fn tree() -> (Files<Model>, Context<Model>) {
    let (files, ctx) = setup().files();
    for dir in ["d", "d/e"] {
        files.mkdir(&ctx, dir, 0o755).unwrap();
    }
    touch(&files, &ctx, "d/e/f");
    for (target, link) in [
        ("d", "to-dir"),
        ("d/e/f", "to-file"),
        ("e", "d/to-e"),
        ("/d/e", "d/absolute"),
        ("../../d/e/f", "d/e/up"),
        ("to-dir", "twice"),
        ("nowhere", "dangling"),
        ("loop", "loop"),
        ("d/e/f/", "file-slash"),
        ("d/", "dir-slash"),
        ("/", "to-root"),
    ] {
        files.symlink(&ctx, target.as_bytes(), link).unwrap();
    }
    (files, ctx)
}

fn touch(files: &Files<Model>, ctx: &Context<Model>, path: &str) {
    files
        .close(
            files
                .open(ctx, path, MAKE | OpenFlags::EXCL, 0o644)
                .unwrap(),
        )
        .unwrap();
}

fn ino(files: &Files<Model>, ctx: &Context<Model>, path: &str) -> u64 {
    files
        .stat(ctx, path)
        .unwrap_or_else(|error| panic!("{path}: {error}"))
        .ino
}

#[test]
fn many_paths_lead_to_the_same_file() {
    let (files, ctx) = tree();
    let file = ino(&files, &ctx, "d/e/f");
    for path in [
        "/d/e/f",
        "//d///e//f",
        "./d/./e/./f",
        "d/../d/e/../e/f",
        "/../../d/e/f",
        "to-dir/e/f",
        "to-file",
        "d/to-e/f",
        "d/absolute/f",
        "d/e/up",
        "twice/to-e/f",
        "to-root/d/e/f",
        "to-dir/../d/e/f",
        "dir-slash/e/f",
        "to-root/to-root/to-file",
    ] {
        assert_eq!(ino(&files, &ctx, path), file, "{path}");
    }
    let root = ino(&files, &ctx, "/");
    for path in [
        ".",
        "..",
        "/..",
        "d/..",
        "d/e/../..",
        "to-root",
        "to-root/",
        "//",
        "/.",
        "./",
    ] {
        assert_eq!(ino(&files, &ctx, path), root, "{path}");
    }
}

#[test]
fn walks_that_fail_say_why() {
    let (files, ctx) = tree();
    for (path, errno) in [
        ("", Errno::NOENT),
        ("none", Errno::NOENT),
        ("none/f", Errno::NOENT),
        ("d/none/..", Errno::NOENT),
        ("dangling", Errno::NOENT),
        ("dangling/", Errno::NOENT),
        ("d/e/f/", Errno::NOTDIR),
        ("d/e/f/x", Errno::NOTDIR),
        ("d/e/f/.", Errno::NOTDIR),
        ("d/e/f/..", Errno::NOTDIR),
        ("to-file/", Errno::NOTDIR),
        ("to-file/x", Errno::NOTDIR),
        ("file-slash", Errno::NOTDIR),
        ("loop", Errno::LOOP),
        ("loop/x", Errno::LOOP),
    ] {
        fails(files.stat(&ctx, path), errno);
        let nobody = ctx.for_cred(user(OTHER));
        fails(files.stat(&nobody, path), errno);
    }
}

#[test]
fn the_link_itself_is_meant_unless_a_slash_follows() {
    let (files, ctx) = tree();
    for link in ["to-dir", "to-file", "dangling", "loop", "file-slash"] {
        assert_eq!(
            files.lstat(&ctx, link).unwrap().kind,
            Kind::Symlink,
            "{link}"
        );
    }
    assert_eq!(files.lstat(&ctx, "to-dir/").unwrap().kind, Kind::Dir);
    assert_eq!(files.lstat(&ctx, "to-dir/.").unwrap().kind, Kind::Dir);
    fails(files.lstat(&ctx, "to-file/"), Errno::NOTDIR);
    assert_eq!(files.readlink(&ctx, "d/to-e").unwrap(), b"e");
    fails(files.readlink(&ctx, "d"), Errno::INVAL);
    fails(files.readlink(&ctx, "to-dir/"), Errno::INVAL);
}

#[test]
fn forty_links_are_followed_and_not_one_more() {
    let (files, ctx) = tree();
    touch(&files, &ctx, "l0");
    for at in 1..=41 {
        let target = format!("l{}", at - 1);
        files
            .symlink(&ctx, target.as_bytes(), format!("l{at}").as_str())
            .unwrap();
    }
    files.stat(&ctx, "l40").unwrap();
    fails(files.stat(&ctx, "l41"), Errno::LOOP);
    files.lstat(&ctx, "l41").unwrap();
    let dirs = |count| "to-dir/../".repeat(count) + "d/e/f";
    files.stat(&ctx, dirs(40).as_str()).unwrap();
    fails(files.stat(&ctx, dirs(41).as_str()), Errno::LOOP);
}

#[test]
fn components_and_paths_have_their_longest() {
    let (files, ctx) = tree();
    let name = |len| "n".repeat(len);
    files.mkdir(&ctx, name(255).as_str(), 0o755).unwrap();
    fails(
        files.mkdir(&ctx, name(256).as_str(), 0o755),
        Errno::NAMETOOLONG,
    );
    fails(files.stat(&ctx, name(256).as_str()), Errno::NAMETOOLONG);
    fails(
        files.stat(&ctx, format!("{}/x", name(256)).as_str()),
        Errno::NAMETOOLONG,
    );
    let path = |len: usize| "/".repeat(len - 1) + "d";
    files.stat(&ctx, path(4095).as_str()).unwrap();
    fails(files.stat(&ctx, path(4096).as_str()), Errno::NAMETOOLONG);
    files.symlink(&ctx, path(4095).as_bytes(), "long").unwrap();
    files.stat(&ctx, "long/e/f").unwrap();
    fails(
        files.symlink(&ctx, path(4096).as_bytes(), "longer"),
        Errno::NAMETOOLONG,
    );
    fails(files.symlink(&ctx, b"", "empty"), Errno::NOENT);
}

#[test]
fn a_tree_of_ten_thousand_levels_is_reached_by_relative_walks() {
    let (files, ctx) = tree();
    let mut here = ctx.clone();
    for _ in 0..10_000 {
        files.mkdir(&here, "x", 0o755).unwrap();
        files.chdir(&mut here, "x").unwrap();
    }
    touch(&files, &here, "bottom");
    let mut again = ctx.clone();
    let step = "x/".repeat(1000);
    for _ in 0..10 {
        files.chdir(&mut again, step.as_str()).unwrap();
    }
    assert_eq!(ino(&files, &again, "bottom"), ino(&files, &here, "bottom"));
    let up = "../".repeat(1000);
    for _ in 0..10 {
        files.chdir(&mut again, up.as_str()).unwrap();
    }
    assert_eq!(ino(&files, &again, "."), ino(&files, &ctx, "/"));
}

#[test]
fn a_changed_root_is_not_left() {
    let (files, ctx) = tree();
    let mut jail = ctx.clone();
    files.chdir(&mut jail, "d").unwrap();
    jail.root = jail.cwd.clone();
    let inside = ino(&files, &ctx, "d");
    for path in ["/", "..", "../..", "/../..", "e/../../.."] {
        assert_eq!(ino(&files, &jail, path), inside, "{path}");
    }
    ino(&files, &jail, "../e/f");
    fails(files.stat(&jail, "absolute"), Errno::NOENT);
}

#[test]
fn a_removed_working_directory_holds_nothing() {
    let (files, ctx) = tree();
    let mut here = ctx.clone();
    files.mkdir(&ctx, "gone", 0o755).unwrap();
    files.chdir(&mut here, "gone").unwrap();
    files.rmdir(&ctx, "gone").unwrap();
    fails(files.stat(&here, "x"), Errno::NOENT);
    fails(files.open(&here, "x", MAKE, 0o644), Errno::NOENT);
    fails(files.mkdir(&here, "x", 0o755), Errno::NOENT);
    fails(files.stat(&here, ".."), Errno::NOENT);
    fails(files.stat(&here, "../d"), Errno::NOENT);
    let open = files.open(&here, ".", READ, 0).unwrap();
    for up in ["..", "../", "./.."] {
        fails(files.open(&here, up, MAKE, 0o644), Errno::NOENT);
        fails(files.open(&ctx, (open, up), MAKE, 0o644), Errno::NOENT);
    }
    fails(files.readdir(open, |_| true), Errno::NOENT);
    assert_eq!(files.stat(&here, ".").unwrap().nlink, 0);
}

#[test]
fn paths_start_from_open_directories_too() {
    let (files, ctx) = tree();
    let dir = files
        .open(&ctx, "d", READ | OpenFlags::DIRECTORY, 0)
        .unwrap();
    let place = files.open(&ctx, "d/e", OpenFlags::PATH, 0).unwrap();
    let file = ino(&files, &ctx, "d/e/f");
    assert_eq!(files.stat(&ctx, (dir, "e/f")).unwrap().ino, file);
    assert_eq!(files.stat(&ctx, (place, "f")).unwrap().ino, file);
    assert_eq!(
        files.stat(&ctx, (place, "../../to-file")).unwrap().ino,
        file
    );
    assert_eq!(files.stat(&ctx, (Fd(9999), "/d/e/f")).unwrap().ino, file);
    fails(files.stat(&ctx, (Fd(9999), "f")), Errno::BADF);
    fails(files.stat(&ctx, (dir, "")), Errno::NOENT);
    let plain = files.open(&ctx, (dir, "e/f"), READ, 0).unwrap();
    fails(files.stat(&ctx, (plain, "f")), Errno::NOTDIR);
    fails(files.stat(&ctx, (plain, ".")), Errno::NOTDIR);
    assert_eq!(files.stat(&ctx, plain).unwrap().ino, file);
    files
        .rename(&ctx, (place, "f"), (dir, "g"), RenameMode::Replace)
        .unwrap();
    assert_eq!(ino(&files, &ctx, "d/g"), file);
    let mut inside = ctx.clone();
    files.chdir(&mut inside, dir).unwrap();
    assert_eq!(ino(&files, &inside, "g"), file);
    fails(files.chdir(&mut inside, plain), Errno::NOTDIR);
}

#[test]
fn each_directory_on_the_way_must_be_searchable() {
    let (files, root) = tree();
    let ctx = root.for_cred(user(OWNER));
    ino(&files, &ctx, "d/e/f");
    files.chmod(&root, "d", 0o644).unwrap();
    for path in [
        "d/e/f", "d/e", "d/.", "d/..", "d/none", "to-dir/e", "to-file", "d/./e",
    ] {
        fails(files.stat(&ctx, path), Errno::ACCESS);
    }
    ino(&files, &ctx, "d");
    fails(files.chdir(&mut ctx.clone(), "d"), Errno::ACCESS);
    files.chmod(&root, "d", 0o711).unwrap();
    ino(&files, &ctx, "d/e/f");
    files.chdir(&mut ctx.clone(), "d").unwrap();
}

#[test]
fn open_finds_or_makes_and_says_what_is_in_the_way() {
    let (files, ctx) = tree();
    let open = |path, flags| {
        files.open(&ctx, path, flags, 0o666).map(|fd| {
            let attr = files.stat(&ctx, fd).unwrap();
            files.close(fd).unwrap();
            attr
        })
    };
    let excl = MAKE | OpenFlags::EXCL;
    let file = ino(&files, &ctx, "d/e/f");
    assert_eq!(open("to-file", MAKE).unwrap().ino, file);
    assert_eq!(open("new", MAKE).unwrap().perm, 0o644);
    assert_eq!(
        open("dangling", MAKE).unwrap().ino,
        ino(&files, &ctx, "nowhere")
    );
    assert_eq!(open("d/e/f", OpenFlags::PATH | MAKE).unwrap().ino, file);
    assert_eq!(
        open("loop", OpenFlags::PATH | OpenFlags::NOFOLLOW)
            .unwrap()
            .kind,
        Kind::Symlink
    );
    for (path, flags, errno) in [
        ("none", READ, Errno::NOENT),
        ("none/x", MAKE, Errno::NOENT),
        ("", MAKE, Errno::NOENT),
        ("d/e/f", excl, Errno::EXIST),
        ("d", excl, Errno::EXIST),
        ("loop", excl, Errno::EXIST),
        (".", excl, Errno::EXIST),
        ("to-file", MAKE | OpenFlags::NOFOLLOW, Errno::LOOP),
        ("to-file", READ | OpenFlags::NOFOLLOW, Errno::LOOP),
        (
            "to-dir",
            READ | OpenFlags::NOFOLLOW | OpenFlags::DIRECTORY,
            Errno::NOTDIR,
        ),
        ("loop", MAKE, Errno::LOOP),
        ("d", WRITE, Errno::ISDIR),
        ("d", READ | OpenFlags::TRUNC, Errno::ISDIR),
        ("d", READ | OpenFlags::CREATE, Errno::ISDIR),
        ("..", MAKE, Errno::ISDIR),
        ("/", MAKE, Errno::ISDIR),
        ("fresh/", MAKE, Errno::ISDIR),
        ("d/e/f/", READ, Errno::NOTDIR),
        ("d/e/f/x", MAKE, Errno::NOTDIR),
        ("d/e/f", READ | OpenFlags::DIRECTORY, Errno::NOTDIR),
        ("d", MAKE | OpenFlags::DIRECTORY, Errno::INVAL),
        ("d", OpenFlags::CREATE, Errno::INVAL),
    ] {
        fails(open(path, flags), errno);
    }
    for (kind, name) in [(NewKind::Fifo, "pipe"), (NewKind::Socket, "socket")] {
        files.mknod(&ctx, name, kind, 0o666).unwrap();
        fails(open(name, READ), Errno::NXIO);
        open(name, OpenFlags::PATH).unwrap();
    }
    fails(files.mknod(&ctx, "x", NewKind::Dir, 0o755), Errno::PERM);
}

#[test]
fn opening_needs_the_permissions_that_the_way_of_use_asks_for() {
    let (files, root) = tree();
    let ctx = root.for_cred(user(OWNER));
    let both = READ | WRITE;
    files.chmod(&root, "d/e", 0o777).unwrap();
    for (perm, flags, allowed) in [
        (0o644, READ, true),
        (0o644, WRITE, false),
        (0o644, READ | OpenFlags::TRUNC, false),
        (0o644, MAKE, false),
        (0o622, WRITE | OpenFlags::TRUNC, true),
        (0o622, both, false),
        (0o666, both, true),
        (0o600, OpenFlags::PATH, true),
    ] {
        files.chmod(&root, "d/e/f", perm).unwrap();
        match files.open(&ctx, "d/e/f", flags, 0) {
            Ok(_) => assert!(allowed, "{perm:o} {flags:?}"),
            Err(error) => {
                assert_eq!(error.errno(), Errno::ACCESS);
                assert!(!allowed, "{perm:o} {flags:?}");
            }
        }
    }
    fails(
        files.open(&ctx, "d/e/f", READ | OpenFlags::NOATIME, 0),
        Errno::ACCESS,
    );
    files.chmod(&root, "d/e/f", 0o644).unwrap();
    fails(
        files.open(&ctx, "d/e/f", READ | OpenFlags::NOATIME, 0),
        Errno::PERM,
    );
    fails(files.open(&ctx, "d/new", MAKE, 0), Errno::ACCESS);
    // Who makes a file may use it as they said, whatever its mode.
    let fd = files
        .open(&ctx, "d/e/mine", both | OpenFlags::CREATE, 0)
        .unwrap();
    files.write(&ctx, fd, b"x").unwrap();
    fails(files.open(&ctx, "d/e/mine", READ, 0), Errno::ACCESS);
}

#[test]
fn calls_that_take_a_name_judge_dots_and_slashes_as_linux_does() {
    let (files, ctx) = tree();
    files.mkdir(&ctx, "new/", 0o755).unwrap();
    files.rmdir(&ctx, "new//").unwrap();
    for (path, errno) in [
        ("/", Errno::BUSY),
        (".", Errno::INVAL),
        ("d/..", Errno::NOTEMPTY),
        ("to-dir", Errno::NOTDIR),
        ("to-dir/", Errno::NOTDIR),
        ("d", Errno::NOTEMPTY),
        ("none", Errno::NOENT),
    ] {
        fails(files.rmdir(&ctx, path), errno);
    }
    for path in ["/", ".", "..", "d", "d/", "loop", "dangling"] {
        fails(files.mkdir(&ctx, path, 0o755), Errno::EXIST);
    }
    for (path, errno) in [
        ("/", Errno::ISDIR),
        ("d/.", Errno::ISDIR),
        ("d", Errno::ISDIR),
        ("d/", Errno::ISDIR),
        ("d/e/f/", Errno::NOTDIR),
        ("none/", Errno::NOENT),
    ] {
        fails(files.unlink(&ctx, path), errno);
    }
    for path in ["fresh/", "d/e/f/x"] {
        let errno = if path == "fresh/" {
            Errno::NOENT
        } else {
            Errno::NOTDIR
        };
        fails(files.symlink(&ctx, b"t", path), errno);
        fails(files.mknod(&ctx, path, NewKind::File, 0o644), errno);
        fails(files.link(&ctx, "d/e/f", path, false), errno);
    }
    fails(files.symlink(&ctx, b"t", "d/"), Errno::EXIST);
    files.unlink(&ctx, "loop").unwrap();
}

#[test]
fn rename_takes_slashes_as_a_claim_that_it_is_a_directory() {
    let (files, ctx) = tree();
    let rename = |a: &str, b: &str| files.rename(&ctx, a, b, RenameMode::Replace);
    rename("d/e/", "d/g/").unwrap();
    rename("d/g", "d/e").unwrap();
    touch(&files, &ctx, "file");
    for (a, b, errno) in [
        ("file/", "x", Errno::NOTDIR),
        ("file", "x/", Errno::NOTDIR),
        ("to-dir/", "x", Errno::NOTDIR),
        ("none/", "x", Errno::NOENT),
        ("d", "d/e/x", Errno::INVAL),
        ("/", "x", Errno::BUSY),
        ("d/.", "x", Errno::BUSY),
        ("file", "d/..", Errno::BUSY),
        ("file", "", Errno::NOENT),
    ] {
        fails(rename(a, b), errno);
    }
    rename("to-file", "moved").unwrap();
    assert_eq!(files.readlink(&ctx, "moved").unwrap(), b"d/e/f");
    fails(
        files.rename(&ctx, "file", "d", RenameMode::NoReplace),
        Errno::EXIST,
    );
    files
        .rename(&ctx, "file", "d", RenameMode::Exchange)
        .unwrap();
    assert_eq!(files.stat(&ctx, "d").unwrap().kind, Kind::File);
    fails(
        files.rename(&ctx, "file", "d/", RenameMode::Exchange),
        Errno::NOTDIR,
    );
}

#[test]
fn links_are_made_to_links_or_past_them_and_to_files_without_a_name() {
    let (files, ctx) = tree();
    files.link(&ctx, "to-file", "same-link", false).unwrap();
    assert_eq!(files.lstat(&ctx, "same-link").unwrap().kind, Kind::Symlink);
    files.link(&ctx, "to-file", "same-file", true).unwrap();
    assert_eq!(files.lstat(&ctx, "same-file").unwrap().nlink, 2);
    fails(files.link(&ctx, "d", "x", false), Errno::PERM);

    let flags = WRITE | OpenFlags::TMPFILE;
    let fd = files.open(&ctx, "d", flags, 0o600).unwrap();
    files.write(&ctx, fd, b"draft").unwrap();
    files.link(&ctx, fd, "final", false).unwrap();
    assert_eq!(files.stat(&ctx, "final").unwrap().size, 5);
    let never = files
        .open(&ctx, "d", flags | OpenFlags::EXCL, 0o600)
        .unwrap();
    fails(files.link(&ctx, never, "x", false), Errno::NOENT);
    fails(files.open(&ctx, "d/e/f", flags, 0o600), Errno::NOTDIR);
    fails(
        files.open(&ctx, "d", READ | OpenFlags::TMPFILE, 0o600),
        Errno::INVAL,
    );
}

#[test]
fn attributes_are_reached_by_path_by_descriptor_and_on_links_themselves() {
    let (files, ctx) = tree();
    let fd = files.open(&ctx, "to-file", READ, 0).unwrap();
    files.chmod(&ctx, "to-file", 0o600).unwrap();
    files.chown(&ctx, fd, Some(OWNER), None).unwrap();
    files
        .lchown(&ctx, "to-file", Some(OTHER), Some(OTHER))
        .unwrap();
    let attr = files.stat(&ctx, "d/e/f").unwrap();
    assert_eq!((attr.perm, attr.uid, attr.gid), (0o600, OWNER, 0));
    assert_eq!(files.lstat(&ctx, "to-file").unwrap().uid, OTHER);
    files.truncate(&ctx, "to-file", 7).unwrap();
    assert_eq!(files.stat(&ctx, fd).unwrap().size, 7);
    files
        .setxattr(&ctx, "to-file", b"user.k", b"v", XattrMode::Any)
        .unwrap();
    assert_eq!(files.getxattr(&ctx, fd, b"user.k").unwrap(), b"v");
    assert_eq!(files.listxattr(&ctx, "d/e/f").unwrap(), [b"user.k"]);
    files.removexattr(&ctx, fd, b"user.k").unwrap();
    let me = ctx.for_cred(user(OWNER));
    files.access(&me, "to-file", Access::R | Access::W).unwrap();
    fails(files.access(&me, "to-file", Access::X), Errno::ACCESS);
    fails(files.access(&me, "dangling", Access::empty()), Errno::NOENT);
    assert!(files.statfs().free > 0);
}

#[test]
fn the_umask_takes_bits_away_and_the_creator_owns() {
    let (files, root) = tree();
    files.chmod(&root, "d", 0o777).unwrap();
    let mut ctx = root.for_cred(Cred::new(OWNER, 7, &[]));
    ctx.umask = 0o027;
    files.mkdir(&ctx, "d/sub", 0o777).unwrap();
    files.mknod(&ctx, "d/pipe", NewKind::Fifo, 0o666).unwrap();
    for (path, perm) in [("d/sub", 0o750), ("d/pipe", 0o640)] {
        let attr = files.stat(&ctx, path).unwrap();
        assert_eq!((attr.uid, attr.gid, attr.perm), (OWNER, 7, perm));
    }
}

#[test]
fn threads_that_race_to_make_a_file_all_open_the_same_one() {
    let (files, ctx) = tree();
    for round in 0..200 {
        let name = format!("race{round}");
        let other_ctx = ctx.clone();
        let open = |ctx: &Context<Model>| {
            let fd = files.open(ctx, name.as_str(), MAKE, 0o644).unwrap();
            files.stat(ctx, fd).unwrap().ino
        };
        let (a, b) = std::thread::scope(|scope| {
            let other = scope.spawn(|| open(&{ other_ctx }));
            (open(&ctx), other.join().unwrap())
        });
        assert_eq!(a, b);
    }
    assert_eq!(files.vfs().fs().kind(&ctx.root), Kind::Dir);
}

/// Each change here makes a path that was just walked lead elsewhere, or nowhere; made by the
/// caller itself and by another.
#[test]
fn a_path_walked_before_leads_where_it_leads_now() {
    type Change = fn(&Files<Model>, &Context<Model>) -> vfs::Result<()>;
    let changes: [(Change, Result<&str, Errno>); 9] = [
        (
            |f, c| f.rename(c, "d", "moved", RenameMode::Replace),
            Err(Errno::NOENT),
        ),
        (
            |f, c| f.rename(c, "d", "o", RenameMode::Exchange),
            Ok("o/e/f"),
        ),
        (
            |f, c| f.rename(c, "d/e", "o/away", RenameMode::Replace),
            Err(Errno::NOENT),
        ),
        (
            |f, c| f.rename(c, "o/e", "d/e", RenameMode::Exchange),
            Ok("o/e/f"),
        ),
        (|f, c| f.chmod(c, "d", 0o600), Err(Errno::ACCESS)),
        (|f, c| f.chmod(c, "d/e", 0o600), Err(Errno::ACCESS)),
        (
            |f, c| {
                f.chown(c, "d", Some(OTHER), None)
                    .and_then(|()| f.chmod(c, "d", 0o700))
            },
            Err(Errno::ACCESS),
        ),
        (
            |f, c| {
                f.unlink(c, "d/e/f")?;
                f.unlink(c, "d/e/up")?;
                f.rmdir(c, "d/e")
            },
            Err(Errno::NOENT),
        ),
        (
            |f, c| {
                f.unlink(c, "d/e/f")?;
                f.unlink(c, "d/e/up")?;
                f.rmdir(c, "d/e")?;
                f.mkdir(c, "d/e", 0o755)?;
                f.link(c, "o/e/f", "d/e/f", false)
            },
            Ok("o/e/f"),
        ),
    ];
    for (index, (change, expected)) in changes.into_iter().enumerate() {
        for own in [false, true] {
            let (files, root) = tree();
            for dir in ["o", "o/e"] {
                files.mkdir(&root, dir, 0o755).unwrap();
            }
            touch(&files, &root, "o/e/f");
            let caller = if own {
                root.clone()
            } else {
                root.for_cred(user(OWNER))
            };
            let there = ["o/e/f", "d/e/f"].map(|path| ino(&files, &root, path));
            assert_eq!(ino(&files, &caller, "d/e/f"), there[1]);
            let changer = if own { &caller } else { &root };
            change(&files, changer).unwrap();
            let seen = files.stat(&caller, "d/e/f").map(|attr| attr.ino);
            match expected {
                Ok(_) => assert_eq!(seen, Ok(there[0]), "change {index}, own: {own}"),
                Err(Errno::ACCESS) if own => assert_eq!(seen, Ok(there[1]), "change {index}"),
                Err(errno) => fails(seen, errno),
            }
        }
    }
}

#[test]
fn a_path_through_links_and_dots_walked_before_leads_where_it_leads_now() {
    let (files, ctx) = tree();
    for dir in ["o", "o/e"] {
        files.mkdir(&ctx, dir, 0o755).unwrap();
    }
    touch(&files, &ctx, "o/e/f");
    let other = ino(&files, &ctx, "o/e/f");
    assert_ne!(ino(&files, &ctx, "to-dir/e/f"), other);
    files.unlink(&ctx, "to-dir").unwrap();
    files.symlink(&ctx, b"o", "to-dir").unwrap();
    assert_eq!(ino(&files, &ctx, "to-dir/e/f"), other);

    files.mkdir(&ctx, "o/x", 0o755).unwrap();
    assert_eq!(ino(&files, &ctx, "o/x/../e/f"), other);
    files.rmdir(&ctx, "o/x").unwrap();
    fails(files.stat(&ctx, "o/x/../e/f"), Errno::NOENT);

    let mut jailed = ctx.clone();
    files.chdir(&mut jailed, "o").unwrap();
    assert_eq!(ino(&files, &jailed, "e/f"), other);
    files.chdir(&mut jailed, "/d").unwrap();
    assert_ne!(ino(&files, &jailed, "e/f"), other);
    jailed.root = ctx.root.clone();
    assert_ne!(ino(&files, &jailed, "/d/e/f"), other);
    files.chdir(&mut jailed, "/o").unwrap();
    jailed.root = jailed.cwd.clone();
    assert_eq!(ino(&files, &jailed, "/e/f"), other);
}
