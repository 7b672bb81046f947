//! `kill -9` of the serving process at random moments: what was promised is there afterwards.
//!
//! Each round mounts, lets the writers compare what they find with what they were promised, lets
//! them work, and kills the process; mostly the next round mounts at once what that left, and
//! sometimes it is checked before. Only what the writers know, and that is in this process,
//! survives the kill outside the image.
//!
//! All this for each domain of persistence that the machine offers: `page` on a disk, `cache` in
//! memory, and `line` forced there, so that the path with flushes runs; in all modes
//! of the engine. And on images of ext2 and ext3, which need no domain: e2fsck judges what is left
//! in the end.
//!
//! `TUREEN_KILL_ROUNDS` sets the number of rounds of each test, `TUREEN_SEED` replays a run (as far
//! as the moments of the kills can be replayed).

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use crate::ext2::{assert_clean, has_e2fsprogs};
use crate::kind::Kind;
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

/// The domain of what is in blocks: none.
const NONE: &str = "none";

/// What is mounted, and how.
struct Kills {
    kind: Kind,
    mode: &'static str,
    domain: &'static str,
    seed: u64,
    random: Random,
    scene: Scene,
}

/// Makes the kills of one mode of SoupFS in one domain.
fn rounds(mode: &'static str, domain: &'static str, default_rounds: u64) {
    rounds_on(Kind::Soup, mode, domain, default_rounds);
}

/// The same of any file system.
fn rounds_on(kind: Kind, mode: &'static str, domain: &'static str, default_rounds: u64) {
    let scene = match domain {
        "page" | NONE => Scene::new(),
        _ if Path::new(MEMORY).is_dir() => Scene::below(Path::new(MEMORY)),
        _ => testing::skip!("needs /dev/shm: nothing else outlives the process in this domain"),
    };
    let seed = setting("TUREEN_SEED", u64::from(std::process::id()));
    scene.must(&[&["mkfs", "disk.img", "--size", "96M"], kind.mkfs()].concat());
    let mut kills = Kills {
        kind,
        mode,
        domain,
        seed,
        random: Random::new(seed),
        scene,
    };
    let mut writers = writers(Promises::of(mode), seed);
    writers.retain(|writer| kind.suits(writer));
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
        let mode = self.mode;
        let options = match self.kind {
            Kind::Soup => {
                let domain = self.domain;
                format!("mode={mode},domain={domain},bound={bound},backlog={backlog}")
            }
            _ => format!("mode={mode}"),
        };
        let start = Instant::now();
        self.scene
            .must(&["mount", "disk.img", "mnt", "-o", &options]);
        let took = start.elapsed();
        assert!(took < AT_ONCE, "{context}: the mount took {took:?}");
        let status = self.scene.status();
        match self.kind {
            Kind::Soup => assert_eq!(status["medium"]["domain"], self.domain, "{context}"),
            _ => assert_eq!(status["settings"]["mode"], mode, "{context}"),
        }
        if self.kind != Kind::Soft {
            return;
        }
        // At times the search for what was lost is killed, too.
        if self.random.one_in(3) {
            std::thread::sleep(Duration::from_millis(self.random.below(8)));
            kill_process(self.scene.daemon(), Signal::KILL).expect("kill");
            return self.mount(context);
        }
        // Until then links are counted that are none.
        self.wait_for_reclaim();
    }

    fn wait_for_reclaim(&self) {
        wait_until("all that the kills left behind is found", || {
            self.scene.status()["file_system"]["reclaiming"] == false
        });
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
            self.check(&context);
        }
    }

    /// Between two lives a check finds nothing wrong; of ext2 with soft updates what it finds is
    /// repaired at times.
    fn check(&mut self, context: &str) {
        let (args, allowed): (&[&str], i32) = match self.kind {
            Kind::Soup => (&["fsck", "-n", "disk.img"], 0),
            Kind::Soft if self.random.one_in(2) => (&["fsck", "-n", "disk.img"], 4),
            Kind::Soft => (&["fsck", "disk.img"], 1),
            // Mounting replays the journal, and nothing is left to be found.
            Kind::Journaled => return,
        };
        let report = self.scene.run(args);
        let code = report.status.code();
        let is_allowed = code == Some(0) || code == Some(allowed);
        assert!(is_allowed, "{context}: {report:?}");
    }

    /// After the last kill: everything is there, and nothing is lost track of.
    fn end(&mut self, writers: &mut [Writer]) {
        let context = format!("TUREEN_SEED={}", self.seed);
        self.mount(&context);
        for writer in &mut *writers {
            writer.verify(&self.scene.path("mnt"), &context);
        }
        self.wait_for_reclaim();
        self.scene.must(&["umount", "mnt"]);
        if self.kind != Kind::Soup {
            if !has_e2fsprogs() {
                testing::skip!("needs e2fsprogs");
            }
            assert_clean(&self.scene);
            return;
        }
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
fn what_was_fsynced_survives_kills_with_soft_updates() {
    rounds_on(Kind::Soft, "soft", NONE, 12);
}

#[test]
fn what_was_fsynced_survives_kills_on_ext3() {
    rounds_on(Kind::Journaled, "ordered", NONE, 8);
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
