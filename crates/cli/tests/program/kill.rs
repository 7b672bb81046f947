//! `kill -9` of the serving process at random moments: what was promised is there afterwards.
//!
//! Each round mounts, lets five writers work, kills the process, checks the image as it was left, mounts
//! it again at once, and lets each writer compare what it finds with what it was promised. Only
//! what the writers know, and that is in this process, survives the kill outside the image.
//!
//! `TUREEN_KILL_ROUNDS` sets the number of rounds, `TUREEN_SEED` replays a run (as far as the
//! moments of the kills can be replayed).

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use crate::random::{Random, setting};
use crate::scene::{Scene, wait_until};
use crate::writers::{Writer, writers};

/// A mount after a kill takes milliseconds, however much is in the image, and one sync, which on a
/// busy disk may take seconds.
const AT_ONCE: Duration = Duration::from_secs(10);

/// Makes the kills of one mode of the engine.
fn rounds(mode: &str, default_rounds: u64) {
    let seed = setting("TUREEN_SEED", u64::from(std::process::id()));
    let mut random = Random::new(seed);
    let scene = Scene::new();
    scene.must(&["mkfs", "disk.img", "--size", "96M"]);
    let options = format!("mode={mode},bound=100ms");
    let mut writers = writers(mode == "sync", seed);
    for round in 0..setting("TUREEN_KILL_ROUNDS", default_rounds) {
        let start = Instant::now();
        scene.must(&["mount", "disk.img", "mnt", "-o", &options]);
        let took = start.elapsed();
        assert!(took < AT_ONCE, "round {round}: the mount took {took:?}");
        let life = Duration::from_millis(20 + random.below(500));
        let context = format!("mode {mode}, round {round}, TUREEN_SEED={seed}");
        for writer in &mut writers {
            writer.verify(&scene.path("mnt"), &context);
        }
        work_until_killed(&scene, &mut writers, life, &context);
        let report = scene.run(&["fsck", "-n", "disk.img"]);
        assert!(report.status.success(), "{context}: {report:?}");
    }
    scene.must(&["mount", "disk.img", "mnt", "-o", &options]);
    for writer in &mut writers {
        writer.verify(&scene.path("mnt"), &format!("TUREEN_SEED={seed}"));
    }
    wait_until("all that the kills left behind is found", || {
        scene.status()["file_system"]["reclaiming"] == false
    });
    scene.must(&["umount", "mnt"]);
    let report = scene.must(&["fsck", "-n", "--json", "disk.img"]);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["was_clean"], true, "{report}");
    assert_eq!(report["left"], serde_json::json!([]), "TUREEN_SEED={seed}");
}

/// Lets the writers work, and kills the process under them.
fn work_until_killed(scene: &Scene, writers: &mut [Writer], life: Duration, context: &str) {
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
        std::thread::sleep(life);
        killed.store(true, Ordering::SeqCst);
        kill_process(daemon, Signal::KILL).expect("kill");
    });
}

#[test]
fn what_was_fsynced_survives_kills_in_delayed_mode() {
    rounds("delayed", 12);
}

#[test]
fn what_returned_survives_kills_in_sync_mode() {
    rounds("sync", 8);
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
    // The bound, and time for a busy machine to do what is due then.
    std::thread::sleep(Duration::from_millis(1500));
    kill_process(scene.daemon(), Signal::KILL).expect("kill");
    scene.must(&["mount", "disk.img", "mnt"]);
    for i in 0..300 {
        let file = scene.path(&format!("mnt/{}/{i}", i % 7));
        let found = std::fs::read_to_string(&file).expect("it is there");
        assert!(found == format!("{i}").repeat(i), "{i}");
    }
    scene.must(&["umount", "mnt"]);
}
