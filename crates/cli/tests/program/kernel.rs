//! The kernel's ext4 driver as a judge of images of ext2: what was written here is there for it, as
//! a whole and after a kill, and what it writes is there for us.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, XattrFlags, lsetxattr, makedev, mknodat};
use rustix::process::{Signal, kill_process};

use crate::dump::copy;
use crate::ext2::{assert_clean, has_e2fsprogs, make_tree, tool};
use crate::scene::{Scene, wait_until};
use crate::tree::{Tree, assert_copied, assert_equal, tree};

/// Why a test that needs the kernel's driver cannot run here, if it cannot. What root can have is
/// something that it needs.
pub fn has_no_kernel() -> Option<&'static str> {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let is_there = |name: &str| tool_is_there(name);
    match () {
        () if !testing::is_root() => Some("needs root, to let the kernel mount images"),
        () if !has_e2fsprogs() => Some("needs e2fsprogs"),
        () if !is_there("losetup") || !is_there("mount") => Some("needs mount and losetup"),
        () if !known.lines().any(|line| line.trim() == "ext4") => Some("the kernel has no ext4"),
        () if !Path::new("/dev/loop-control").exists() => Some("the kernel has no loop devices"),
        () => None,
    }
}

fn tool_is_there(name: &str) -> bool {
    ["/sbin", "/usr/sbin", "/bin", "/usr/bin"]
        .iter()
        .any(|dir| Path::new(dir).join(name).exists())
}

/// An image that the kernel has mounted, on `kernel` in the scene; gone when dropped.
pub struct Kernel<'a>(&'a Scene);

impl Kernel<'_> {
    /// By ext4's driver, whatever the image has of its features.
    ///
    /// # Panics
    /// It refuses the image.
    #[track_caller]
    pub fn mount<'a>(scene: &'a Scene, image: &str, how: &str) -> Kernel<'a> {
        fs::create_dir_all(scene.path("kernel")).expect("a directory");
        let options = format!("loop,{how}");
        let args = ["-t", "ext4", "-o", &options, image, "kernel"];
        let mounted = tool(scene, "mount", &args);
        assert!(mounted.status.success(), "{args:?}: {mounted:?}");
        Kernel(scene)
    }

    /// Its root.
    pub fn root(&self) -> std::path::PathBuf {
        self.0.path("kernel")
    }

    /// What is in it.
    pub fn tree(&self) -> Tree {
        tree(&self.root())
    }

    /// Ends it, with all that was written.
    pub fn unmount(self) {
        // A program that another test starts holds our files between its fork and its exec.
        wait_until("the kernel has unmounted the image", || {
            tool(self.0, "umount", &["kernel"]).status.success()
        });
        std::mem::forget(self);
    }
}

impl Drop for Kernel<'_> {
    fn drop(&mut self) {
        let _ = fuse::unmount(&self.0.path("kernel"), true);
    }
}

/// What the kernel shows of an image that it may not change, which it does not.
pub fn tree_by_the_kernel(scene: &Scene, image: &str) -> Tree {
    let before = fs::read(scene.path(image)).expect("an image");
    let kernel = Kernel::mount(scene, image, "ro");
    let tree = kernel.tree();
    kernel.unmount();
    let after = fs::read(scene.path(image)).expect("an image");
    assert!(before == after, "a mount for reading has changed {image}");
    tree
}

/// What the kernel shows of an image whose journal it replays first.
pub fn tree_replayed_by_the_kernel(scene: &Scene, image: &str) -> Tree {
    // It replays where it is to be read alone, too, if the device can be written.
    Kernel::mount(scene, image, "rw").unmount();
    tree_by_the_kernel(scene, image)
}

/// What we show of an image that we may not change.
pub fn tree_by_us(scene: &Scene, image: &str) -> Tree {
    scene.must(&["mount", image, "mnt", "-o", "ro"]);
    let tree = tree(&scene.path("mnt"));
    unmount(scene);
    tree
}

fn unmount(scene: &Scene) {
    wait_until("the image is unmounted", || {
        scene.run(&["umount", "mnt"]).status.success()
    });
}

/// Both show the same, which is returned.
#[track_caller]
fn shown(scene: &Scene, context: &str) -> Tree {
    let ours = tree_by_us(scene, "disk.img");
    assert_equal(&ours, &tree_by_the_kernel(scene, "disk.img"), context);
    ours
}

/// A tree with one of everything that is not in [`make_tree`], too.
fn make_all(scene: &Scene) -> Tree {
    make_tree(scene);
    let root = scene.path("tree");
    more(&root);
    let (old, new) = (makedev(5, 7), makedev(300, 70_000));
    for (name, kind, number) in [
        ("character", FileType::CharacterDevice, old),
        ("block", FileType::BlockDevice, new),
        ("socket", FileType::Socket, 0),
    ] {
        let mode = Mode::from_raw_mode(0o604);
        mknodat(CWD, root.join(name), kind, mode, number).expect("made");
    }
    tree(&root)
}

/// What has blocks of all levels, holes, owners, long names, attributes of all kinds.
fn more(root: &Path) {
    let sparse = File::create(root.join("holes")).expect("made");
    for at in [0, 9 << 10, 48 << 10, 1 << 20, 40 << 20, (70 << 20) - 5] {
        sparse.write_all_at(b"between holes", at).expect("written");
    }
    fs::write(root.join("n".repeat(255)), "long name").expect("written");
    let many = root.join("many");
    fs::create_dir(&many).expect("made");
    for i in 0..250_usize {
        fs::write(many.join(format!("{i}-{}", "x".repeat(i % 60))), "").expect("written");
    }
    for (i, len) in [1, 59, 60, 61, 900].into_iter().enumerate() {
        symlink("t".repeat(len), root.join(format!("link{i}"))).expect("linked");
    }
    for (name, owner, mode) in [("owned", 70_000, 0o4755), ("grouped", 7, 0o2070)] {
        fs::write(root.join(name), name).expect("written");
        std::os::unix::fs::chown(root.join(name), Some(owner), Some(owner + 1)).expect("owned");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(root.join(name), mode).expect("set");
    }
    let old = std::time::UNIX_EPOCH - std::time::Duration::new(1_000_000, 7);
    let file = File::create(root.join("old")).expect("made");
    file.set_modified(old).expect("set");
    let set = |file: &str, name: &str, value: &[u8]| {
        lsetxattr(root.join(file), name, value, XattrFlags::empty()).expect("attributes");
    };
    set("owned", "user.small", b"value");
    set("owned", "user.empty", b"");
    set("grouped", "user.large", &[7; 700]);
    set("grouped", "user.small", b"in the inode, or not");
    set("link0", "trusted.link", b"of root alone");
    let acl = vfs::Acl {
        users: vec![(1000, vfs::Access::from_perm(5))],
        mask: Some(vfs::Access::from_perm(7)),
        ..vfs::Acl::from_perm(0o640)
    };
    set("old", "system.posix_acl_access", &acl.to_xattr());
    set("many", "system.posix_acl_default", &acl.to_xattr());
}

#[test]
fn a_clean_image_of_any_mode_is_for_the_kernel_what_it_is_for_us() {
    if let Some(why) = has_no_kernel() {
        testing::skip!(why);
    }
    for mode in ["soft", "sync", "async", "ordered", "journal"] {
        let scene = Scene::new();
        let source = make_all(&scene);
        let journal: &[&str] = match mode {
            "ordered" | "journal" => &["--journal"],
            _ => &[],
        };
        let args = ["mkfs", "--type", "ext2", "disk.img", "--size", "64M"];
        scene.must(&[&args, journal].concat());
        scene.must(&["mount", "disk.img", "mnt", "-o", &format!("mode={mode}")]);
        copy(&scene.path("tree"), &scene.path("mnt"));
        unmount(&scene);
        assert_copied(&source, &shown(&scene, mode), mode);
    }
}

/// An image with a tree in it that is durable, which is mounted.
fn mounted(scene: &Scene, mode: &str) -> Tree {
    let source = make_all(scene);
    scene.must(&["mkfs", "--type", "ext2", "disk.img", "--size", "64M"]);
    let mount = ["mount", "disk.img", "mnt", "-o", &format!("mode={mode}")];
    scene.must(&mount);
    let at = scene.path("mnt/tree");
    fs::create_dir(&at).expect("made");
    copy(&scene.path("tree"), &at);
    unmount(scene);
    scene.must(&mount);
    source
}

/// Changes all over the image, some of which are durable.
fn change(scene: &Scene) {
    let at = scene.path("mnt/changed");
    fs::create_dir(&at).expect("made");
    for i in 0..200_usize {
        let name = at.join(format!("f{i}"));
        fs::write(&name, vec![i as u8; i * 331]).expect("written");
        if i % 3 == 0 {
            fs::hard_link(&name, at.join(format!("g{i}"))).expect("linked");
        }
        if i % 5 == 0 {
            fs::remove_file(&name).expect("removed");
        }
        if i % 40 == 0 {
            fs::create_dir_all(at.join(format!("d{i}/below"))).expect("made");
            let synced = File::create(at.join(format!("d{i}/below/synced"))).expect("made");
            synced.write_all_at(b"durable", 100_000).expect("written");
            synced.sync_all().expect("synced");
        }
    }
    fs::rename(at.join("d0"), at.join("d40/moved")).expect("moved");
    let cut = File::options().write(true).open(at.join("f199"));
    cut.and_then(|file| file.set_len(5)).expect("cut");
}

fn kill(scene: &Scene) {
    kill_process(scene.daemon(), Signal::KILL).expect("killed");
    scene.must(&["umount", "mnt", "--lazy"]);
}

/// The part of a tree that is below a directory.
fn below(tree: &Tree, dir: &str) -> Tree {
    let below = |name: &Path| Some(name.strip_prefix(dir).ok()?.to_owned());
    let all = tree.iter();
    all.filter_map(|(name, seen)| Some((below(name)?, seen.clone())))
        .filter(|(name, _)| !name.as_os_str().is_empty())
        .collect()
}

/// What was durable before the changes, or was synced in them, is there.
fn assert_synced(source: &Tree, found: &Tree, context: &str) {
    assert_copied(source, &below(found, "tree"), context);
    for i in (0..200).step_by(40) {
        let place = if i == 0 {
            "d40/moved"
        } else {
            &format!("d{i}")
        };
        let old = found.contains_key(Path::new(&format!("changed/d{i}/below/synced")));
        let new = found.contains_key(Path::new(&format!("changed/{place}/below/synced")));
        assert!(old || new, "{context}: {i}");
    }
}

#[test]
fn what_a_kill_left_is_for_the_kernel_what_it_is_for_us_before_and_behind_a_check() {
    if let Some(why) = has_no_kernel() {
        testing::skip!(why);
    }
    for mode in ["soft", "sync"] {
        let scene = Scene::new();
        let source = mounted(&scene, mode);
        change(&scene);
        kill(&scene);
        let left = shown(&scene, &format!("{mode}, killed"));
        assert_synced(&source, &left, mode);
        // Serving at once and the reclaim, cut short in its turn.
        scene.must(&["mount", "disk.img", "mnt"]);
        fs::remove_dir_all(scene.path("mnt/changed/d80")).expect("removed");
        fs::create_dir_all(scene.path("mnt/changed/d80/below")).expect("made");
        fs::write(scene.path("mnt/changed/d80/below/synced"), "again").expect("written");
        let dir = File::open(scene.path("mnt/changed/d80/below")).expect("opened");
        dir.sync_all().expect("synced");
        drop(dir);
        kill(&scene);
        let left = shown(&scene, &format!("{mode}, killed again"));
        assert_synced(&source, &left, mode);
        // What is there behind a check the kernel may write.
        let code = scene.run(&["fsck", "disk.img"]).status.code();
        assert!(matches!(code, Some(0 | 1)), "{code:?}");
        let checked = shown(&scene, &format!("{mode}, checked"));
        assert_synced(&source, &checked, mode);
        let kernel = Kernel::mount(&scene, "disk.img", "rw");
        fs::remove_dir_all(kernel.root().join("changed")).expect("removed");
        fs::write(kernel.root().join("new"), vec![1; 1 << 20]).expect("written");
        kernel.unmount();
        assert_clean(&scene);
        shown(&scene, &format!("{mode}, used by the kernel"));
    }
}

/// The names and lengths of snapshots, as files.
fn snapshots(root: &Path) -> Vec<(String, u64)> {
    let Ok(entries) = fs::read_dir(root.join(".snapshots")) else {
        return Vec::new();
    };
    let look = |entry: fs::DirEntry| {
        let len = entry.metadata().expect("attributes").len();
        (entry.file_name().into_string().expect("text"), len)
    };
    let mut all: Vec<_> = entries
        .map(|entry| look(entry.expect("an entry")))
        .collect();
    all.sort();
    all
}

#[test]
fn snapshots_are_in_nobodys_way_until_the_kernel_writes() {
    if let Some(why) = has_no_kernel() {
        testing::skip!(why);
    }
    let scene = Scene::new();
    let source = mounted(&scene, "soft");
    scene.must(&["snapshot", "create", "mnt", "monday"]);
    let monday = tree(&scene.path("mnt"));
    change(&scene);
    scene.must(&["snapshot", "create", "mnt", "tuesday"]);
    fs::remove_dir_all(scene.path("mnt/changed")).expect("removed");
    unmount(&scene);
    assert_clean(&scene);
    let names = ["monday", "tuesday"].map(|name| (name.to_owned(), 64 << 20));
    let all_agree = |context: &str| {
        let found = shown(&scene, context);
        let kernel = Kernel::mount(&scene, "disk.img", "ro");
        assert_eq!(snapshots(&kernel.root()), names, "{context}");
        kernel.unmount();
        // A snapshot that is copied out is an image.
        scene.must(&["mount", "disk.img", "mnt", "-o", "ro"]);
        let out = scene.path("monday.img");
        fs::copy(scene.path("mnt/.snapshots/monday"), &out).expect("copied");
        unmount(&scene);
        let copied = tree_by_the_kernel(&scene, "monday.img");
        assert_copied(&monday, &copied, context);
        found
    };
    all_agree("clean");
    scene.must(&["mount", "disk.img", "mnt"]);
    change(&scene);
    kill(&scene);
    assert_synced(&source, &all_agree("killed"), "killed");

    // Behind the kernel's changes they are no snapshots any more, and go.
    assert_eq!(scene.run(&["fsck", "disk.img"]).status.code(), Some(1));
    let kernel = Kernel::mount(&scene, "disk.img", "rw");
    fs::remove_dir_all(kernel.root().join("tree")).expect("removed");
    fs::write(kernel.root().join("new"), vec![1; 5 << 20]).expect("written");
    kernel.unmount();
    let theirs = shown(&scene, "the kernel has written");
    scene.must(&["mount", "disk.img", "mnt"]);
    assert_eq!(
        scene.must(&["snapshot", "list", "mnt", "--json"]).trim(),
        "[]"
    );
    wait_until("they are removed", || {
        snapshots(&scene.path("mnt")).is_empty()
    });
    unmount(&scene);
    assert_clean(&scene);
    assert_equal(
        &theirs,
        &shown(&scene, "without snapshots"),
        "without snapshots",
    );
}

#[test]
fn the_kernel_and_we_write_in_turn_and_each_finds_what_the_other_wrote() {
    if let Some(why) = has_no_kernel() {
        testing::skip!(why);
    }
    let ours: &[&str] = &[];
    let kinds: [(&[&str], &str); 3] = [
        (ours, "soft"),
        (
            &["-t", "ext2", "-b", "1024", "-I", "256", "-O", "dir_index"],
            "sync",
        ),
        (&["-t", "ext3", "-b", "1024", "-I", "256"], "journal"),
    ];
    for (kind, mode) in kinds {
        let context = format!("{kind:?}, {mode}");
        let scene = Scene::new();
        let source = make_all(&scene);
        if kind.is_empty() {
            scene.must(&["mkfs", "--type", "ext2", "disk.img", "--size", "64M"]);
        } else {
            let args = [&["-q", "-F"], kind, &["disk.img", "64M"]].concat();
            let made = tool(&scene, "mke2fs", &args);
            assert!(made.status.success(), "{made:?}");
        }
        let is_there = |found: &Tree, who: &str| {
            assert_copied(&source, &below(found, who), &format!("{context}: by {who}"));
        };
        for turn in 0..2 {
            let kernel = Kernel::mount(&scene, "disk.img", "rw");
            write_below(&scene, &kernel.root(), "kernel");
            kernel.unmount();
            assert_clean(&scene);
            let found = shown(
                &scene,
                &format!("{context}: the kernel has written, {turn}"),
            );
            is_there(&found, "kernel");

            scene.must(&["mount", "disk.img", "mnt", "-o", &format!("mode={mode}")]);
            write_below(&scene, &scene.path("mnt"), "us");
            unmount(&scene);
            assert_clean(&scene);
            let found = shown(&scene, &format!("{context}: we have written, {turn}"));
            is_there(&found, "us");
        }
    }
}

/// The tree anew, beside what both change: a directory of many names, and a file.
fn write_below(scene: &Scene, root: &Path, who: &str) {
    let at = root.join(who);
    if at.exists() {
        fs::remove_dir_all(&at).expect("removed");
    }
    fs::create_dir(&at).expect("made");
    copy(&scene.path("tree"), &at);
    let both = root.join("both");
    fs::create_dir_all(&both).expect("made");
    for (i, entry) in fs::read_dir(&both).expect("listed").enumerate() {
        let path = entry.expect("an entry").path();
        match i % 3 {
            0 => fs::remove_file(&path).expect("removed"),
            1 => {
                let name = path.file_name().expect("a name").to_str().expect("text");
                let new = format!("{}{who}-{}", "m".repeat(i % 90), &name[name.len() - 2..]);
                fs::rename(&path, both.join(new)).expect("renamed");
            }
            _ => {}
        }
    }
    for i in 0..400_usize {
        let name = format!("{}{who}-{i:03}", "f".repeat(i % 50));
        fs::write(both.join(name), who).expect("written");
    }
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(root.join("file"))
        .expect("opened");
    let end = file.metadata().expect("attributes").len();
    file.write_all_at(&vec![end as u8; 300_000], end / 2)
        .expect("written");
    file.write_all_at(who.as_bytes(), end + (2 << 20))
        .expect("written");
    file.set_len(end + (1 << 20) + 777).expect("cut");
}
