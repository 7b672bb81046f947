//! Mounts whose requests come by io_uring, and mounts that ask for that in vain.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

use testing::RingOffered;

use crate::ends::kill;
use crate::scene::Scene;

/// Clients at the same time, and files of each.
const CLIENTS: usize = 4;
const FILES: usize = 100;

fn contents(client: usize, file: usize) -> Vec<u8> {
    format!("{client} {file} ")
        .repeat(1 + file * 10)
        .into_bytes()
}

/// Each client makes files, names them anew, makes them durable and removes some.
fn work(dir: &Path) {
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let dir = dir.join(client.to_string());
                fs::create_dir(&dir).expect("made");
                for file in 0..FILES {
                    let (new, named) = (dir.join("new"), dir.join(file.to_string()));
                    let mut made = File::create(&new).expect("made");
                    made.write_all(&contents(client, file)).expect("written");
                    made.sync_all().expect("synced");
                    fs::rename(&new, &named).expect("renamed");
                    if file % 3 == 1 {
                        fs::remove_file(&named).expect("removed");
                    }
                }
                let dir = File::open(&dir).expect("opened");
                dir.sync_all().expect("synced");
            });
        }
    });
}

fn assert_done(dir: &Path) {
    for client in 0..CLIENTS {
        for file in 0..FILES {
            let found = fs::read(dir.join(client.to_string()).join(file.to_string()));
            match file % 3 {
                1 => assert!(found.is_err(), "{client}/{file} is there"),
                _ => assert_eq!(found.expect("there"), contents(client, file)),
            }
        }
    }
}

#[test]
fn a_mount_by_io_uring_keeps_what_it_promises() {
    testing::needs_root!();
    let Some(_offered) = RingOffered::set(true) else {
        testing::skip!("this kernel has no FUSE over io_uring");
    };
    for kind in ["soupfs", "ext2"] {
        let scene = Scene::new();
        let (mnt, ring) = (scene.path("mnt"), ["-o", "transport=ring"]);
        scene.must(&["mkfs", "--type", kind, "disk.img", "--size", "64M"]);
        let mount = || scene.must(&[&["mount", "disk.img", "mnt"][..], &ring].concat());
        mount();
        assert_eq!(scene.status()["transport"], "ring", "{kind}");
        work(&mnt);
        assert_done(&mnt);
        // What was synced outlives a kill, and who waits for an answer gets one.
        kill(&scene);
        mount();
        assert_done(&mnt);
        // Nothing keeps it from being unmounted.
        let open = OpenOptions::new().append(true).open(mnt.join("0/0"));
        drop(open.expect("opened"));
        scene.must(&["umount", "mnt"]);
        scene.must(&["fsck", "-n", "disk.img"]);
    }
}

#[test]
fn a_mount_that_asks_for_io_uring_in_vain_is_served_by_the_device() {
    testing::needs_root!();
    let _not_offered = RingOffered::set(false);
    let scene = Scene::new();
    scene.must(&["mkfs", "disk.img", "--size", "64M"]);
    scene.must(&["mount", "disk.img", "mnt", "-o", "transport=ring"]);
    assert_eq!(scene.status()["transport"], "device");
    work(&scene.path("mnt"));
    scene.must(&["umount", "mnt"]);
    scene.must(&["fsck", "-n", "disk.img"]);
}
