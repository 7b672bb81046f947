//! Commands that must not know which engine they serve.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use clap::Parser;

use crate::engines::ENGINES;
use crate::failure::{Outcome, USAGE};
use crate::{Cli, mounts, status};

/// A directory with an image to be made and a directory to mount it on.
struct Scene {
    _dir: tempfile::TempDir,
    image: PathBuf,
    mnt: PathBuf,
}

impl Scene {
    fn new() -> Scene {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().canonicalize().expect("it was just made");
        let (image, mnt) = (path.join("disk.img"), path.join("mnt"));
        std::fs::create_dir(&mnt).expect("a directory");
        let _dir = dir;
        Scene { _dir, image, mnt }
    }

    /// Runs the program; `IMAGE` and `DIR` stand for those of the scene.
    fn run(&self, line: &str) -> Outcome {
        let paths = [("IMAGE", &self.image), ("DIR", &self.mnt)];
        let word = |word: &str| match paths.iter().find(|(name, _)| *name == word) {
            Some((_, path)) => path.as_os_str().to_owned(),
            None => word.into(),
        };
        let line = format!("tureen {line}");
        let cli = Cli::try_parse_from(line.split(' ').map(word));
        crate::run(cli.expect("arguments").command)
    }

    #[track_caller]
    fn must(&self, line: &str) {
        assert!(matches!(self.run(line), Ok(0)), "{line}");
    }

    #[track_caller]
    fn fails(&self, line: &str, code: u8, hint: &str) {
        let failure = self.run(line).expect_err(line);
        assert!(failure.message.contains(hint), "{failure:?}");
        assert_eq!(failure.code, code, "{failure:?}");
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        while fuse::unmount(&self.mnt, true).is_ok() {}
    }
}

/// A mount in front, by a thread of its own, once it is there.
fn mount(scene: &std::sync::Arc<Scene>, options: &str) -> JoinHandle<Outcome> {
    let (other, line) = (scene.clone(), format!("mount -f IMAGE DIR -o {options}"));
    let front = std::thread::spawn(move || other.run(&line));
    while mounts::on(&scene.mnt).is_none() {
        assert!(!front.is_finished(), "{:?}", front.join());
        std::thread::sleep(Duration::from_millis(1));
    }
    front
}

#[test]
fn each_command_serves_an_image_by_what_it_holds() {
    let scene = std::sync::Arc::new(Scene::new());
    scene.must("mkfs IMAGE --size 4096 --type volatile");
    for line in ["fsck IMAGE", "fsck -n IMAGE", "stat IMAGE"] {
        scene.must(line);
    }
    let front = mount(&scene, "noatime,room=500");
    std::fs::write(scene.mnt.join("file"), "data").expect("write");
    let found = std::fs::read_to_string(scene.mnt.join("file"));
    assert_eq!(found.expect("read"), "data");
    let space = rustix::fs::statvfs(&scene.mnt).expect("statfs");
    assert_eq!(space.f_blocks, 500, "its own option");
    let status = status::ask(&scene.mnt).expect("status");
    assert_eq!(status["file_system"]["type"], "volatile");
    assert_eq!(status["settings"]["room"], "500");
    let (options, engine) = status::options(&scene.mnt).expect("options");
    let settings = options.settings(engine).expect("its own");
    assert_eq!(settings.get("room"), Some("500"));
    scene.must("stat DIR");
    scene.must("stat IMAGE");
    scene.fails("fsck IMAGE", 8, "is mounted on");
    scene.must("umount DIR");
    assert!(matches!(front.join(), Ok(Ok(0))));
    scene.must("fsck -n IMAGE");
    scene.fails(
        "mount -f IMAGE DIR -o bound=2s",
        USAGE,
        "no option of volatile",
    );
}

#[test]
fn what_is_made_has_the_type_that_was_asked_for() {
    let scene = Scene::new();
    scene.fails(
        "mkfs IMAGE --size 4096 --type zfs",
        USAGE,
        "soupfs, ext2, volatile",
    );
    scene.fails("mkfs IMAGE --size 4096", 1, "an image has 1048576");
    let name = || ENGINES.of(&scene.image).map(|engine| engine.name()).ok();
    scene.must("mkfs IMAGE --size 4M");
    assert_eq!(name(), Some("soupfs"));
    // The copy of the superblock of what was there before stays.
    scene.must("mkfs IMAGE --force --type volatile");
    assert_eq!(name(), Some("volatile"));
    scene.must("mkfs IMAGE --force --type soupfs");
    assert_eq!(name(), Some("soupfs"));
}

#[test]
fn an_image_of_nobody_is_described() {
    let scene = Scene::new();
    let hint = "not a Tureen image: it holds text";
    std::fs::write(&scene.image, "some text").expect("write");
    scene.fails("mount -f IMAGE DIR", 1, hint);
    scene.fails("stat IMAGE", 1, hint);
    scene.fails("fsck IMAGE", 8, hint);
}
