//! `kill -9` of the serving process at random moments: what was promised is there afterwards.
//!
//! Each round mounts, lets the writers compare what they find with what they were promised, lets
//! them work, and kills the process; mostly the next round mounts at once what that left, and
//! sometimes it is checked before. Only what the writers know, and that is in this process,
//! survives the kill outside the image.
//!
//! All this for each domain of persistence that the machine offers: `page` on a disk, `cache` in
//! memory, and `line` forced there, so that the path with flushes runs; in all modes
//! of the engine.
//!
//! `TUREEN_KILL_ROUNDS` sets the number of rounds of each test, `TUREEN_SEED` replays a run (as far
//! as the moments of the kills can be replayed).

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use crate::scene::{Scene, wait_until};
use crate::setting::setting;
use crate::writers::{Promises, Writer, writers};
use block::Random;
use pmem::transaction::Hardware;

/// A mount after a kill takes milliseconds, however much is in the image, and one sync, which on a
/// busy disk may take seconds.
const AT_ONCE: Duration = Duration::from_secs(10);

/// Memory that outlives the process.
const MEMORY: &str = "/dev/shm";

/// What is mounted, and how.
struct Kills {
    mode: &'static str,
    domain: &'static str,
    seed: u64,
    random: Random,
    scene: Scene,
}

/// Makes the kills of one mode of the engine in one domain.
fn rounds(mode: &'static str, domain: &'static str, default_rounds: u64) {
    let scene = match domain {
        "page" => Scene::new(),
        _ if Path::new(MEMORY).is_dir() => Scene::below(Path::new(MEMORY)),
        _ => testing::skip!("needs /dev/shm: nothing else outlives the process in this domain"),
    };
    let seed = setting("TUREEN_SEED", u64::from(std::process::id()));
    scene.must(&["mkfs", "disk.img", "--size", "96M"]);
    let mut kills = Kills {
        mode,
        domain,
        seed,
        random: Random::new(seed),
        scene,
    };
    let mut writers = writers(Promises::of(mode), seed);
    for round in 0..setting("TUREEN_KILL_ROUNDS", default_rounds) {
        kills.round(round, &mut writers);
    }
    kills.end(&mut writers);
}

impl Kills {
    /// Mounts, in one of several ways.
    fn mount(&mut self, context: &str) {
        let bound = ["5ms", "100ms", "1s"][self.random.below(3) as usize];
        // At times hardly anything may be pending: then callers wait for the persister.
        let backlog = ["64K", "256M"][self.random.below(2) as usize];
        let options = format!(
            "mode={},domain={},bound={bound},backlog={backlog}",
            self.mode, self.domain
        );
        let start = Instant::now();
        self.scene
            .must(&["mount", "disk.img", "mnt", "-o", &options]);
        let took = start.elapsed();
        assert!(took < AT_ONCE, "{context}: the mount took {took:?}");
        assert_eq!(
            self.scene.status()["medium"]["domain"],
            self.domain,
            "{context}"
        );
    }

    fn round(&mut self, round: u64, writers: &mut [Writer]) {
        let (mode, domain, seed) = (self.mode, self.domain, self.seed);
        let context = format!("mode {mode}, domain {domain}, round {round}, TUREEN_SEED={seed}");
        self.mount(&context);
        for writer in &mut *writers {
            writer.verify(&self.scene.path("mnt"), &context);
        }
        // Some kills come while what the last one left behind is still searched for.
        let life = Duration::from_millis(2 + self.random.below(300) / (1 + self.random.below(4)));
        let transacts = self.transacts() && self.random.one_in(2);
        work_until_killed(&self.scene, writers, transacts, life, &context);
        if self.random.one_in(3) {
            let report = self.scene.run(&["fsck", "-n", "disk.img"]);
            assert!(report.status.success(), "{context}: {report:?}");
        }
    }

    /// After the last kill: everything is there, and nothing is lost track of.
    fn end(&mut self, writers: &mut [Writer]) {
        let context = format!("TUREEN_SEED={}", self.seed);
        self.mount(&context);
        for writer in &mut *writers {
            writer.verify(&self.scene.path("mnt"), &context);
        }
        wait_until("all that the kills left behind is found", || {
            self.scene.status()["file_system"]["reclaiming"] == false
        });
        self.scene.must(&["umount", "mnt"]);
        let report = self.scene.must(&["fsck", "-n", "--json", "disk.img"]);
        let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
        assert_eq!(report["was_clean"], true, "{report}");
        assert_eq!(report["left"], serde_json::json!([]), "{context}");
    }

    /// Whether requests are committed by transactions of the processor: with and without locks.
    fn transacts(&self) -> bool {
        self.mode == "strong" && self.domain == "cache" && Hardware::detect().is_some()
    }
}

/// Lets the writers work, and kills the process under them; `transacts`: only when it has told that
/// transactions of both kinds were committed.
fn work_until_killed(
    scene: &Scene,
    writers: &mut [Writer],
    transacts: bool,
    life: Duration,
    context: &str,
) {
    let daemon = scene.daemon();
    let killed = AtomicBool::new(false);
    let dir = scene.path("mnt");
    std::thread::scope(|scope| {
        for writer in writers {
            let (dir, killed): (&Path, _) = (&dir, &killed);
            scope.spawn(move || {
                loop {
                    if let Err(error) = writer.step(dir) {
                        let expected = killed.load(Ordering::SeqCst);
                        assert!(expected, "{context}: {}: {error}", writer.name());
                        return;
                    }
                }
            });
        }
        if transacts {
            wait_until("transactions of both kinds are committed", || {
                let commits = &scene.status()["medium"]["counters"]["commits"];
                let kinds = ["transaction_without_lock", "transaction_with_locks"];
                kinds.iter().all(|kind| commits[kind].as_u64() > Some(0))
            });
        }
        std::thread::sleep(life);
        killed.store(true, Ordering::SeqCst);
        kill_process(daemon, Signal::KILL).expect("kill");
    });
}

#[test]
fn what_was_fsynced_survives_kills_on_a_disk() {
    rounds("delayed", "page", 16);
}

#[test]
fn what_was_fsynced_survives_kills_in_memory() {
    rounds("delayed", "cache", 24);
}

#[test]
fn what_was_fsynced_survives_kills_with_flushed_lines() {
    rounds("delayed", "line", 24);
}

#[test]
fn what_returned_survives_kills_on_a_disk_in_sync_mode() {
    rounds("sync", "page", 12);
}

#[test]
fn what_returned_survives_kills_in_memory_in_sync_mode() {
    rounds("sync", "cache", 20);
}

#[test]
fn what_returned_survives_kills_with_flushed_lines_in_sync_mode() {
    rounds("sync", "line", 20);
}

#[test]
fn all_that_returned_survives_kills_on_a_disk_in_strong_mode() {
    rounds("strong", "page", 12);
}

#[test]
fn all_that_returned_survives_kills_in_memory_in_strong_mode() {
    rounds("strong", "cache", 20);
}

#[test]
fn all_that_returned_survives_kills_with_flushed_lines_in_strong_mode() {
    rounds("strong", "line", 20);
}

#[test]
fn what_is_older_than_the_bound_survives_a_kill() {
    let scene = Scene::new();
    scene.must(&["mkfs", "disk.img", "--size", "64M"]);
    scene.must(&["mount", "disk.img", "mnt", "-o", "bound=200ms"]);
    for i in 0..300 {
        let dir = scene.path(&format!("mnt/{}", i % 7));
        std::fs::create_dir_all(&dir).expect("mkdir");
        std::fs::write(dir.join(i.to_string()), format!("{i}").repeat(i)).expect("write");
    }
    wait_until("the bound is over, with nobody asking", || {
        scene.status()["file_system"]["counters"]["pending_words"] == 0
    });
    kill_process(scene.daemon(), Signal::KILL).expect("kill");
    scene.must(&["mount", "disk.img", "mnt"]);
    for i in 0..300 {
        let file = scene.path(&format!("mnt/{}/{i}", i % 7));
        let found = std::fs::read_to_string(&file).expect("it is there");
        assert!(found == format!("{i}").repeat(i), "{i}");
    }
    scene.must(&["umount", "mnt"]);
}
