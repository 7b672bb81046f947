//! Images that are not what they should be: each gets a clear error or is survived.
//!
//! `TUREEN_DAMAGE_SEEDS` sets the number of images with random damage, `TUREEN_SEED` the first one.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Instant;

use rustix::process::{Signal, kill_process};

use crate::scene::{PATIENCE, Scene, TUREEN, wait_until};
use crate::setting::setting;
use block::Random;

const SIZE: u64 = 8 << 20;

/// Changes bytes of the image.
fn patch(scene: &Scene, at: u64, bytes: &[u8]) {
    let image = OpenOptions::new().write(true).open(scene.path("disk.img"));
    image.expect("open").write_all_at(bytes, at).expect("patch");
}

fn new_image() -> Scene {
    let scene = Scene::new();
    scene.must(&["mkfs", "disk.img", "--size", "8M"]);
    scene
}

#[test]
fn an_image_that_is_too_small_is_refused() {
    let scene = Scene::new();
    scene.fails(&["mkfs", "disk.img", "--size", "64K"], 1, "1048576");
    assert!(!scene.path("disk.img").exists());
    fs::write(scene.path("empty.img"), b"").expect("create");
    fs::write(scene.path("tiny.img"), [0; 100]).expect("create");
    for image in ["empty.img", "tiny.img"] {
        let mount = scene.run(&["mount", image, "mnt"]);
        assert_eq!(mount.status.code(), Some(1), "{mount:?}");
        assert_eq!(scene.run(&["fsck", image]).status.code(), Some(8));
    }
}

#[test]
fn a_truncated_image_is_refused_and_whole_again_at_its_old_length() {
    let scene = new_image();
    let image = OpenOptions::new().write(true).open(scene.path("disk.img"));
    let image = image.expect("open");
    for len in [SIZE / 2, SIZE - 1, 4096] {
        image.set_len(len).expect("truncate");
        scene.fails(&["mount", "disk.img", "mnt"], 1, "disk.img");
        assert_eq!(scene.run(&["fsck", "disk.img"]).status.code(), Some(8));
        assert!(!scene.is_mounted());
    }
}

#[test]
fn an_image_of_another_version_is_refused_and_not_repaired() {
    let scene = new_image();
    let before = fs::read(scene.path("disk.img")).expect("read");
    // A version is only believed with its checksum: both superblocks get the same one.
    for at in [0, SIZE - 4096] {
        patch(&scene, at, &with_version(&before[..192], 99));
    }
    scene.fails(&["mount", "disk.img", "mnt"], 1, "version 99");
    scene.fails(&["fsck", "-y", "disk.img"], 8, "version 99");
    scene.fails(&["stat", "disk.img"], 1, "version 99");
    patch(&scene, 0, &before[..192]);
    patch(&scene, SIZE - 4096, &before[..192]);
    assert!(fs::read(scene.path("disk.img")).expect("read") == before);
    scene.must(&["fsck", "-n", "disk.img"]);
}

/// A superblock with another version and the right checksum (see `docs/format/soupfs.md`).
fn with_version(superblock: &[u8], version: u32) -> Vec<u8> {
    let mut bytes = superblock.to_vec();
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[..184]);
    bytes[184..192].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

#[test]
fn a_damaged_superblock_is_replaced_by_its_copy_and_the_user_told() {
    let scene = new_image();
    patch(&scene, 130, b"another label");
    let stat = scene.must(&["stat", "disk.img"]);
    assert!(stat.contains("damaged"), "{stat}");
    let mount = scene.run(&["mount", "disk.img", "mnt"]);
    assert!(mount.status.success(), "{mount:?}");
    let said = String::from_utf8_lossy(&mount.stderr);
    assert!(said.contains("superblock"), "{said}");
    fs::write(scene.path("mnt/file"), b"x").expect("write");
    scene.must(&["umount", "mnt"]);
    let repaired = scene.run(&["fsck", "disk.img"]);
    assert!(
        matches!(repaired.status.code(), Some(0 | 1)),
        "{repaired:?}"
    );
    scene.must(&["fsck", "-n", "disk.img"]);
    // Both gone: nothing to go by, and an error that says so.
    patch(&scene, 130, b"another label");
    patch(&scene, SIZE - 4096 + 130, b"another label");
    scene.fails(&["mount", "disk.img", "mnt"], 1, "checksum");
    scene.fails(&["fsck", "disk.img"], 8, "checksum");
}

/// A tree with everything in it that the format has.
fn populate(dir: &Path) {
    for i in 0..300 {
        fs::write(dir.join(format!("name-{i}")), format!("{i}").repeat(i)).expect("write");
    }
    let sub = dir.join("sub");
    for i in 0..20 {
        let deep = sub.join(format!("{i}/a/b"));
        fs::create_dir_all(&deep).expect("mkdir");
        fs::write(deep.join("x".repeat(200)), vec![7; 9000]).expect("write");
        symlink("/to/where", deep.join("short")).expect("symlink");
        symlink("t".repeat(3000), deep.join("long")).expect("symlink");
        fs::hard_link(dir.join("name-7"), deep.join("link")).expect("link");
        let deep = rustix::fs::open(
            &deep,
            rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
            0.into(),
        )
        .expect("open");
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::fsetxattr(&deep, "user.name", &[b'v'; 500], flags).expect("xattr");
    }
    let sparse = File::create(dir.join("sparse")).expect("create");
    sparse.write_all_at(b"end", 3 << 30).expect("write");
    sparse.write_all_at(&[1; 100_000], 1 << 20).expect("write");
}

/// One damaged image on its way through every command.
struct Patient {
    scene: Scene,
    seed: u64,
}

impl Patient {
    fn fsck(&self, flag: &str) -> Option<i32> {
        let output = self.scene.run(&["fsck", flag, "disk.img"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !said.contains("panicked"),
            "TUREEN_SEED={}: {said}",
            self.seed
        );
        let code = output.status.code();
        assert!(
            matches!(code, Some(0 | 1 | 4 | 8)),
            "TUREEN_SEED={}: fsck {flag}: {output:?}",
            self.seed
        );
        code
    }

    /// Mounts it in front, uses it, and ends it. Errors are expected; a panic, a process that died
    /// or one that does not answer are not.
    fn use_it(&self) {
        let log = self.scene.path("log");
        let mut daemon = self.mount(&log);
        wait_until("mounted or refused", || {
            self.scene.is_mounted() || daemon.try_wait().expect("wait").is_some()
        });
        if self.scene.is_mounted() {
            let pid = rustix::process::Pid::from_child(&daemon);
            let dir = self.scene.path("mnt");
            let (done, is_done) = std::sync::mpsc::channel();
            let user = std::thread::spawn(move || {
                walk(&dir, 0);
                scribble(&dir);
                walk(&dir, 0);
                let _ = done.send(());
            });
            let answered = is_done.recv_timeout(PATIENCE).is_ok();
            if !answered {
                let _ = kill_process(pid, Signal::ABORT);
            }
            assert!(
                answered,
                "TUREEN_SEED={}: the mount does not answer",
                self.seed
            );
            user.join().expect("the user of the mount");
            let _ = self.scene.unmount(&["umount", "mnt"]);
        }
        let start = Instant::now();
        let status = loop {
            if let Some(status) = daemon.try_wait().expect("wait") {
                break status;
            }
            if start.elapsed() > PATIENCE {
                let _ = daemon.kill();
                panic!("TUREEN_SEED={}: the process does not end", self.seed);
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        let said = fs::read_to_string(&log).expect("its messages");
        assert!(
            !said.contains("panicked") && matches!(status.code(), Some(0 | 1)),
            "TUREEN_SEED={}: {status}: {said}",
            self.seed
        );
    }

    fn mount(&self, log: &Path) -> Child {
        let log = File::create(log).expect("log");
        std::process::Command::new(TUREEN)
            .args(["mount", "-f", "disk.img", "mnt"])
            .current_dir(self.scene.path(""))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the program runs")
    }
}

/// Looks at everything; whatever fails is left alone. Damage may have made the tree endless.
fn walk(dir: &Path, depth: usize) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    // An error does not end the iteration by itself.
    for entry in entries.take(2000).map_while(Result::ok) {
        let path = entry.path();
        let Ok(found) = fs::symlink_metadata(&path) else {
            continue;
        };
        if found.is_dir() && depth < 20 {
            walk(&path, depth + 1);
        } else if found.is_symlink() {
            let _ = fs::read_link(&path);
        } else if found.is_file() {
            let mut start = Vec::new();
            let _ = File::open(&path).and_then(|file| file.take(2 << 20).read_to_end(&mut start));
        }
    }
}

/// Changes what can be changed.
fn scribble(dir: &Path) {
    for i in 0..300 {
        let path = dir.join(format!("name-{i}"));
        let _ = match i % 4 {
            0 => fs::remove_file(&path),
            1 => fs::write(&path, vec![3; 20_000]),
            2 => fs::rename(&path, dir.join(format!("new-{i}"))),
            _ => OpenOptions::new()
                .write(true)
                .open(&path)
                .and_then(|file| file.set_len(10).and_then(|()| file.sync_all())),
        };
    }
    for i in 0..10 {
        let _ = fs::remove_dir_all(dir.join(format!("sub/{i}")));
        let _ = fs::create_dir_all(dir.join(format!("more/{i}")));
    }
    let _ = fs::remove_file(dir.join("sparse"));
}

#[test]
fn random_damage_is_survived_by_every_command() {
    let scene = new_image();
    scene.must(&["mount", "disk.img", "mnt"]);
    populate(&scene.path("mnt"));
    scene.must(&["umount", "mnt"]);
    let good = fs::read(scene.path("disk.img")).expect("read");
    let used: Vec<usize> = (0..good.len()).filter(|&at| good[at] != 0).collect();
    let first = setting("TUREEN_SEED", u64::from(std::process::id()) * 1000);
    for seed in first..first + setting("TUREEN_DAMAGE_SEEDS", 20) {
        let mut random = Random::new(seed);
        let mut bad = good.clone();
        for _ in 0..1 + random.below(40) {
            // Mostly where something is.
            let at = match random.one_in(8) {
                true => random.below(SIZE) as usize,
                false => used[random.below(used.len() as u64) as usize],
            };
            match random.below(3) {
                0 => bad[at] ^= 1 << random.below(8),
                1 => bad[at] = random.number() as u8,
                _ => bad[at & !7..][..8].copy_from_slice(&good[used[0] & !7..][..8]),
            }
        }
        let patient = Patient {
            scene: Scene::new(),
            seed,
        };
        fs::write(patient.scene.path("disk.img"), &bad).expect("write");
        patient.fsck("-n");
        patient.use_it();
        let repaired = patient.fsck("-y");
        if matches!(repaired, Some(0 | 1)) {
            assert_eq!(patient.fsck("-n"), Some(0), "TUREEN_SEED={seed}: repaired");
        }
        patient.use_it();
    }
}
