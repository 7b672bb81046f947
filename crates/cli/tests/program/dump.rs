//! Dumps of images, restored by restore(8).

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::ext2::{assert_same, make_tree};
use crate::scene::Scene;

/// Restores a dump into `to`.
pub fn restore(scene: &Scene, dump: &str) {
    let output = Command::new("restore")
        .args(["-rf".as_ref(), scene.path(dump).as_os_str()])
        .current_dir(scene.path("to"))
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

pub fn has_restore() -> bool {
    Path::new("/usr/sbin/restore").exists() || Path::new("/sbin/restore").exists()
}

#[test]
fn what_an_image_holds_is_dumped_and_then_what_changed() {
    testing::needs_root!();
    if !has_restore() {
        testing::skip!("needs restore (Debian: dump)");
    }
    for kind in ["ext2", "soupfs"] {
        let scene = Scene::new();
        make_tree(&scene);
        let tree = scene.path("tree");
        scene.must(&["mkfs", "--type", kind, "disk.img", "--size", "64M"]);
        scene.must(&["mount", "disk.img", "mnt"]);
        copy(&tree, &scene.path("mnt"));
        scene.fails(&["dump", "disk.img", "-f", "no"], 1, "mounted");
        if kind == "soupfs" {
            let live = ["dump", "mnt", "-f", "no"];
            scene.fails(&live, 1, "has no snapshots");
        }
        scene.must(&["umount", "mnt"]);
        let dump = |level: &str, file: &str| {
            let args = [
                "dump", "disk.img", "--json", "-ul", level, "-f", file, "--dates", "dates",
            ];
            serde_json::from_str::<serde_json::Value>(&scene.must(&args)).expect("JSON")
        };
        let zero = dump("0", "zero");
        fs::create_dir(scene.path("to")).expect("mkdir");
        restore(&scene, "zero");
        same(&scene);

        scene.must(&["mount", "disk.img", "mnt"]);
        for root in [tree.clone(), scene.path("mnt")] {
            fs::rename(root.join("dir"), root.join("moved")).expect("rename");
            fs::remove_file(root.join("sparse")).expect("remove");
            fs::write(root.join("moved/new"), "new").expect("write");
            fs::hard_link(root.join("large"), root.join("moved/linked")).expect("link");
        }
        scene.must(&["umount", "mnt"]);
        let one = dump("1", "one");
        restore(&scene, "one");
        same(&scene);
        assert_eq!(one["since_at"], zero["date_at"]);
        let list = fs::read_to_string(scene.path("dates")).expect("a list");
        assert_eq!(list.lines().count(), 2, "{list}");
    }
}

fn len(scene: &Scene, name: &str) -> u64 {
    fs::metadata(scene.path(name)).expect("there").len()
}

/// What was restored is the tree.
#[track_caller]
pub fn same(scene: &Scene) {
    let table = scene.path("to/restoresymtable");
    let aside = scene.path("table");
    fs::rename(&table, &aside).expect("rename");
    assert_same(&scene.path("tree"), &scene.path("to"), false);
    fs::rename(&aside, &table).expect("rename");
}

pub fn copy(from: &Path, to: &Path) {
    let source = from.join(".");
    let status = Command::new("cp")
        .arg("-a")
        .args([source.as_path(), to])
        .status();
    assert!(status.expect("cp").success());
}

#[test]
fn a_dump_that_cannot_be_is_refused() {
    let scene = Scene::new();
    scene.must(&["mkfs", "disk.img", "--size", "16M"]);
    scene.fails(&["dump", "missing.img"], 1, "no such image");
    scene.fails(&["dump", "disk.img", "-f", "no/where"], 1, "No such file");
    scene.fails(
        &["dump", "disk.img", "-f", "disk.img"],
        1,
        "the image itself",
    );
    fs::hard_link(scene.path("disk.img"), scene.path("other")).expect("link");
    scene.fails(&["dump", "disk.img", "-f", "other"], 1, "the image itself");
    scene.fails(&["dump", "disk.img", "-l", "10"], 2, "10");
    scene.tells(
        &[
            "dump", "disk.img", "-l", "3", "-f", "out", "--dates", "none",
        ],
        "no dump of a lower level",
    );
    assert!(len(&scene, "out") > 0);
    scene.fails(&["dump", "disk.img", "-f", "/dev/full"], 1, "No space left");
}
