//! Power cuts, of SoupFS in domain `page`, of ext3 and of soft updates: whatever a disk kept of the
//! daemon's real I/O, what was promised is there.
//!
//! The image is on a disk that records ([`disk`]). Each round mounts it, lets the writers compare
//! what they find with what they were promised, and lets them work until the power goes, at a
//! random write or flush: from then on the disk takes nothing, so nothing more is promised. Then
//! several images are made of what was flushed and of a choice of the sectors that were not. The
//! check finds nothing wrong in any, and each is mounted, with all that was promised. Of ext2 and
//! ext3 others judge it before: e2fsck, and of one image of each cut the kernel, which has to show
//! the tree that we show. The next round goes on from one of them.
//!
//! In one round of three the daemon is killed before, and another one goes on with what that
//! left in the disk's and in the page cache, which is visible and not durable.
//!
//! Rounds cut at random; other tests cut at each of the first writes and flushes, one after the
//! other, each time from the same new image.
//!
//! `TUREEN_POWER_ROUNDS` sets the number of rounds, `TUREEN_POWER_PREFIXES` that of the first
//! writes and flushes, `TUREEN_SEED` replays the random choices.

pub mod disk;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Signal, kill_process};

use crate::ext2::has_e2fsprogs;
use crate::kernel::{has_no_kernel, tree_by_the_kernel, tree_by_us, tree_replayed_by_the_kernel};
use crate::kind::Kind;
use crate::scene::{Scene, wait_until};
use crate::setting::setting;
use crate::tree::assert_equal;
use crate::writers::{Promises, Writer, writers};
use block::Random;
use disk::{Disk, Image, Loss, NAME};

/// What is lost in the images that a cut is judged by.
const LOSSES: [Loss; 4] = [Loss::All, Loss::Nothing, Loss::Tail, Loss::Sectors];
/// Of the image that has lost this the kernel shows what is in it.
const SHOWN: Loss = Loss::Sectors;
/// What e2fsck says behind the replay of a journal: it frees what was open and had no name.
const OF_A_REPLAY: u32 = 0x000020;
/// Writes and flushes up to a cut, at most.
const EVENTS_MAX: u64 = 600;

struct Cuts {
    kind: Kind,
    mode: &'static str,
    seed: u64,
    random: Random,
    scene: Scene,
    /// What the last cut left.
    image: Image,
    /// Writes that were not flushed, over all cuts.
    pending: usize,
    /// Files that the kernel has shown as we do, over all cuts.
    shown: usize,
    context: String,
}

/// Rounds that go on from each other.
fn rounds(kind: Kind, mode: &'static str) {
    let (mut cuts, mut writers) = Cuts::new(kind, mode);
    for round in 0..setting("TUREEN_POWER_ROUNDS", 6) {
        cuts.begin(format!("round {round}"));
        let events = 1 + cuts.random.below(EVENTS_MAX);
        let is_second_life = cuts.random.one_in(3);
        cuts.image = cuts.round(&mut writers, events, is_second_life);
    }
    cuts.assert_judged();
}

/// A cut at each of the first writes and flushes: what is written up to there is in one of the
/// images, so each prefix of the stream is.
fn prefixes(kind: Kind, mode: &'static str) {
    let (mut cuts, writers) = Cuts::new(kind, mode);
    for events in 1..=setting("TUREEN_POWER_PREFIXES", 16) {
        cuts.begin(format!("a cut at write or flush {events}"));
        let mut writers: Vec<Writer> = writers.iter().map(Writer::copy).collect();
        cuts.round(&mut writers, events, false);
    }
    cuts.assert_judged();
}

impl Cuts {
    /// A new image, and those who write there.
    fn new(kind: Kind, mode: &'static str) -> (Cuts, Vec<Writer>) {
        let seed = setting("TUREEN_SEED", u64::from(std::process::id()));
        // What this process stores survives no power cut anyway.
        let memory = Path::new("/dev/shm");
        let scene = match memory.is_dir() {
            true => Scene::below(memory),
            false => Scene::new(),
        };
        fs::create_dir(scene.path("disk")).expect("a directory for the disk");
        scene.must(&[&["mkfs", "new.img", "--size", "64M"], kind.mkfs()].concat());
        let cuts = Cuts {
            kind,
            mode,
            seed,
            random: Random::new(seed),
            image: Image::load(&scene.path("new.img")).expect("the image"),
            scene,
            pending: 0,
            shown: 0,
            context: String::new(),
        };
        let mut writers = writers(Promises::of(mode), seed);
        writers.retain(|writer| kind.suits(writer));
        (cuts, writers)
    }

    fn begin(&mut self, what: String) {
        let (mode, seed) = (self.mode, self.seed);
        self.context = format!("mode {mode}, {what}, TUREEN_SEED={seed}");
    }

    /// That there was anything to judge.
    fn assert_judged(&self) {
        let is_shown = self.kind != Kind::Soup && has_no_kernel().is_none();
        assert!(self.pending > 0, "never was anything waiting for a flush");
        assert!(self.shown > 0 || !is_shown, "the kernel showed nothing");
    }

    /// A cut after so many writes and flushes; in the life behind one that was killed, or in the
    /// first one. Gives one of the images that it may have left.
    fn round(&mut self, writers: &mut Vec<Writer>, events: u64, is_second_life: bool) -> Image {
        let dir = self.scene.path("disk");
        let disk = Disk::new(&self.image, &dir, events).expect("a disk");
        if is_second_life && self.mount(&disk, writers) {
            let life = Duration::from_millis(2 + self.random.below(60));
            self.work(writers, &disk, || std::thread::sleep(life));
            self.context += ", killed before";
        }
        if self.mount(&disk, writers) {
            self.work(writers, &disk, || disk.wait_until_off());
        }
        // A mount that the cut hit, or a daemon that was killed, may have left its mount behind.
        while fuse::unmount(&self.scene.path("mnt"), true).is_ok() {}
        self.pending += disk.pending();
        let images = LOSSES.map(|loss| (loss, disk.after(loss, &mut self.random)));
        let flushes = disk.flushes();
        drop(disk);
        for (loss, image) in &images {
            let context = format!("{}, {flushes} flushes, lost: {loss:?}", self.context);
            let mut copies: Vec<Writer> = writers.iter().map(Writer::copy).collect();
            self.judge(image, &mut copies, &context);
            if *loss == SHOWN && self.kind != Kind::Soup {
                self.show(image, &context);
            }
        }
        let [.., (_, last)] = images;
        last
    }

    /// Mounts the disk and verifies; whether the power was still there then.
    fn mount(&mut self, disk: &Disk, writers: &mut Vec<Writer>) -> bool {
        let bound = ["5ms", "100ms", "1s"][self.random.below(3) as usize];
        let options = match self.kind {
            Kind::Soup => format!("mode={},bound={bound}", self.mode),
            _ => format!("mode={}", self.mode),
        };
        let image = format!("disk/{NAME}");
        let mounted = self.scene.run(&["mount", &image, "mnt", "-o", &options]);
        if !mounted.status.success() {
            assert!(disk.is_off(), "{}: {mounted:?}", self.context);
            return false;
        }
        if self.kind == Kind::Soup {
            assert_eq!(self.scene.status()["medium"]["domain"], "page");
        }
        // Until then links are counted that are none.
        while self.kind == Kind::Soft && !disk.is_off() && self.is_reclaiming() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut verified: Vec<Writer> = writers.iter().map(Writer::copy).collect();
        let differs = (verified.iter_mut())
            .find_map(|writer| writer.try_verify(&self.scene.path("mnt")).err());
        if disk.is_off() {
            // What was found may have been in memory only: it does not count.
            kill_process(self.scene.daemon(), Signal::KILL).expect("kill");
            return false;
        }
        assert_eq!(differs, None, "{}", self.context);
        *writers = verified;
        true
    }

    fn is_reclaiming(&self) -> bool {
        let status = self.scene.run(&["stat", "--json", "mnt"]);
        let status: Option<serde_json::Value> = serde_json::from_slice(&status.stdout).ok();
        status.is_some_and(|status| status["file_system"]["reclaiming"] == true)
    }

    /// Lets the writers work until something has happened, and kills the daemon then.
    fn work(&self, writers: &mut [Writer], disk: &Disk, until: impl FnOnce()) {
        let daemon = self.scene.daemon();
        let killed = AtomicBool::new(false);
        let dir = self.scene.path("mnt");
        std::thread::scope(|scope| {
            for writer in writers {
                let (dir, killed, context) = (&dir, &killed, &self.context);
                scope.spawn(move || {
                    loop {
                        if let Err(error) = writer.step(dir) {
                            let expected = killed.load(Ordering::SeqCst) || disk.is_off();
                            assert!(expected, "{context}: {}: {error}", writer.name());
                            return;
                        }
                    }
                });
            }
            until();
            killed.store(true, Ordering::SeqCst);
            kill_process(daemon, Signal::KILL).expect("kill");
        });
    }

    /// An image that a cut may have left: the check finds nothing wrong, and what was promised is
    /// there; after an unmount nothing at all is left to find.
    fn judge(&self, image: &Image, writers: &mut [Writer], context: &str) {
        let scene = &self.scene;
        image.store(&scene.path("cut.img")).expect("an image");
        if self.kind != Kind::Soup {
            self.judge_by_others(image, context);
        }
        // Mounting replays a journal, and nothing is left to be found.
        if self.kind == Kind::Soup {
            let report = scene.run(&["fsck", "-n", "cut.img"]);
            assert!(report.status.success(), "{context}: {report:?}");
        }
        let options = match self.kind {
            Kind::Soup => format!("domain=page,mode={}", self.mode),
            _ => format!("mode={}", self.mode),
        };
        scene.must(&["mount", "cut.img", "mnt", "-o", &options]);
        if self.kind == Kind::Soft {
            wait_until("all that the cut left behind is found", || {
                !self.is_reclaiming()
            });
        }
        for writer in writers {
            writer.verify(&scene.path("mnt"), context);
        }
        // A program that another test starts holds our files between its fork and its exec.
        wait_until("the image is unmounted", || {
            scene.run(&["umount", "mnt"]).status.success()
        });
        let report = scene.run(&["fsck", "-n", "cut.img"]);
        assert!(report.status.success(), "{context}: {report:?}");
        fs::remove_file(scene.path("cut.img")).expect("remove");
    }
}

fn hex(codes: &BTreeSet<u32>) -> String {
    let codes = codes.iter().map(|code| format!("{code:#08x}"));
    codes.collect::<Vec<_>>().join(", ")
}

impl Cuts {
    /// What e2fsck finds is what a crash in mode soft may leave; or, behind the replay
    /// of the journal, nothing but files without names that were open.
    fn judge_by_others(&self, image: &Image, context: &str) {
        if !has_e2fsprogs() {
            testing::skip!("needs e2fsprogs");
        }
        let (log, copy) = (self.scene.path("problems"), self.scene.path("copy.img"));
        image.store(&copy).expect("an image");
        let problems = |how: &str| {
            e2fsprogs::problems_now(how, &copy, &log).expect("e2fsck says what it found")
        };
        let (mut found, allowed): (_, fn(u32) -> bool) = match self.kind {
            Kind::Soft => (problems("-fn"), e2fsprogs::is_harmless),
            _ => (problems("-fp"), |code| code == OF_A_REPLAY),
        };
        found.retain(|&code| !allowed(code));
        assert!(found.is_empty(), "{context}: e2fsck: {}", hex(&found));
        if self.kind == Kind::Journaled {
            let found = problems("-fn");
            assert!(found.is_empty(), "{context}: e2fsck again: {}", hex(&found));
        }
        fs::remove_file(copy).expect("remove");
    }

    /// The kernel shows what we show of an image that a cut may have left, before anything is
    /// mended.
    fn show(&mut self, image: &Image, context: &str) {
        if let Some(why) = has_no_kernel() {
            testing::skip!(why);
        }
        let scene = &self.scene;
        image.store(&scene.path("cut.img")).expect("an image");
        let ours = tree_by_us(scene, "cut.img");
        let theirs = match self.kind {
            Kind::Journaled => tree_replayed_by_the_kernel(scene, "cut.img"),
            _ => tree_by_the_kernel(scene, "cut.img"),
        };
        self.shown += ours.len();
        assert_equal(&ours, &theirs, context);
        fs::remove_file(scene.path("cut.img")).expect("remove");
    }
}

#[test]
fn what_was_fsynced_survives_power_cuts() {
    rounds(Kind::Soup, "delayed");
}

#[test]
fn what_returned_survives_power_cuts_in_sync_mode() {
    rounds(Kind::Soup, "sync");
}

#[test]
fn all_that_returned_survives_power_cuts_in_strong_mode() {
    rounds(Kind::Soup, "strong");
}

#[test]
fn what_was_fsynced_survives_power_cuts_with_soft_updates() {
    rounds(Kind::Soft, "soft");
}

#[test]
fn what_was_fsynced_survives_power_cuts_on_ext3() {
    rounds(Kind::Journaled, "ordered");
}

#[test]
fn what_was_fsynced_survives_power_cuts_on_ext3_with_contents_in_the_journal() {
    rounds(Kind::Journaled, "journal");
}

#[test]
fn what_was_fsynced_survives_a_power_cut_at_each_of_the_first_requests() {
    prefixes(Kind::Soup, "delayed");
}

#[test]
fn all_that_returned_survives_a_power_cut_at_each_of_the_first_requests_in_strong_mode() {
    prefixes(Kind::Soup, "strong");
}

#[test]
fn what_was_fsynced_survives_a_power_cut_at_each_of_the_first_requests_with_soft_updates() {
    prefixes(Kind::Soft, "soft");
}

#[test]
fn what_was_fsynced_survives_a_power_cut_at_each_of_the_first_requests_on_ext3() {
    prefixes(Kind::Journaled, "ordered");
}
