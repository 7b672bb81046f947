//! Images that are much larger than the memory for them.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

use rustix::process::Pid;

use crate::scene::Scene;
use block::Random;

const MIB: u64 = 1 << 20;
/// Memory for contents.
const CACHE: u64 = 64 * MIB;
/// Two bytes for each page of the image, of which a search for unclean pages comes by one half.
const PAGES: u64 = (100 << 30) / 4096 * 2;
/// All else: the program, its threads, requests, copies that are being written. Each of 16 serving
/// threads has a heap and a buffer for requests, in huge pages where the kernel gives them.
const REST: u64 = 192 * MIB;
/// Page tables: of what is mapped, and of that much more.
const TABLES: u64 = 4 * MIB;

/// A figure of a process, in bytes.
fn figure(pid: Pid, name: &str) -> u64 {
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    let status = fs::read_to_string(path).expect("it lives");
    let line = status.lines().find(|line| line.starts_with(name));
    let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    number.expect("a number of KiB") * 1024
}

fn contents(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut block = vec![0; MIB as usize];
    for word in block.chunks_mut(8) {
        word.copy_from_slice(&random.below(u64::MAX).to_le_bytes());
    }
    block
}

/// An image of 100 GiB with 64 MiB of memory: three times as much is written, synced, and read
/// back, by this mount and by the next.
#[test]
fn an_image_of_100_gib_is_served_with_64_mib_of_memory() {
    // On a disk; in memory an image is mapped.
    let scene = Scene::below(Path::new(env!("CARGO_TARGET_TMPDIR")));
    scene.must(&["mkfs", "large.img", "--size", "100G", "--sparse"]);
    let options = format!("cache={CACHE}");
    let mount = || {
        scene.must(&["mount", "large.img", "mnt", "-o", &options]);
        assert_eq!(scene.status()["medium"]["cache"]["cache_bytes"], CACHE);
    };
    let check_memory = |when: &str| {
        let daemon = scene.daemon();
        let (most, tables) = (figure(daemon, "VmHWM"), figure(daemon, "VmPTE"));
        println!(
            "{when}: {} MiB, page tables {} KiB",
            most / MIB,
            tables >> 10
        );
        assert!(most <= CACHE + PAGES + REST, "{when}: {most} bytes");
        assert!(tables <= TABLES, "{when}: {tables} bytes of page tables");
    };
    let names = |i: u64| scene.path("mnt").join(format!("file{i}"));
    let read_back = || {
        for i in 0..3 {
            let mut file = File::open(names(i)).expect("open");
            let mut block = vec![0; MIB as usize];
            for j in 0..CACHE / MIB {
                file.read_exact(&mut block).expect("read");
                assert!(block == contents(i * 1000 + j), "MiB {j} of file {i}");
            }
        }
    };

    mount();
    for i in 0..3 {
        let mut file = File::create(names(i)).expect("create");
        for j in 0..CACHE / MIB {
            file.write_all(&contents(i * 1000 + j)).expect("write");
        }
        file.sync_all().expect("fsync");
    }
    check_memory("written");
    read_back();
    check_memory("read");
    scene.must(&["umount", "mnt"]);
    mount();
    read_back();
    check_memory("read by the next mount");
    let status = scene.status();
    let dropped = status["medium"]["cache"]["counters"]["dropped_pages"].as_u64();
    assert!(dropped > Some(2 * CACHE / 4096), "{status}");
    scene.must(&["umount", "mnt"]);
    let report = scene.must(&["fsck", "-n", "large.img"]);
    assert!(report.contains("clean"), "{report}");
}
