//! A disk that takes no more writes, or vanishes, at any write or flush of a mount's life: all who
//! fail are told why, whoever unmounts is not told that all is well unless it is, and what was
//! synced is there at the next mount.
//!
//! The disk is that of the power cuts ([`Disk`]), which answers `EIO` from the chosen request on.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use block::Random;

use crate::kind::Kind;
use crate::power_cut::disk::{Disk, Image, Loss, NAME};
use crate::scene::{Scene, wait_until};

/// What the system says of such a disk.
const WHY: &str = "Input/output error";

/// Lives that are led at once: most of each is to wait, for programs and for disks. The buffers of
/// a disk take some 200 MB.
const AT_ONCE: u64 = 2;

/// Creates a file, and syncs it; whether that went well.
fn keep(path: &Path) -> bool {
    let keep = || {
        let mut file = File::create(path)?;
        file.write_all(&[7; 5000])?;
        file.sync_all()
    };
    is_told(keep())
}

/// Whether a call went well; if it did not, it was for the disk.
fn is_told(result: io::Result<()>) -> bool {
    if let Err(error) = &result {
        assert!(error.to_string().contains(WHY), "{error}");
    }
    result.is_ok()
}

/// One life, in which the disk is off behind so many writes and flushes. Whether it was.
fn life((kind, mode): (Kind, &str), image: &Image, events: u64, vanishes: bool) -> bool {
    let scene = Scene::new();
    let dir = scene.path("disk");
    fs::create_dir(&dir).expect("a directory for the disk");
    let disk = Disk::new(image, &dir, events).expect("a disk");
    if vanishes {
        disk.vanishes();
    }
    let context =
        format!("mode {mode}: {events} writes and flushes, then off, vanishes: {vanishes}");
    let path = format!("disk/{NAME}");
    let said = |output: &std::process::Output| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !said.contains("corrupt") && !said.contains("panick"),
            "{context}: {said}"
        );
        said
    };
    let options = match kind {
        Kind::Soup => format!("mode={mode},bound=60m"),
        _ => format!("mode={mode}"),
    };
    let mounted = scene.run(&["mount", &path, "mnt", "-o", &options]);
    let (mut kept, mut all) = (Vec::new(), false);
    if mounted.status.success() {
        let file = |name: &str| scene.path("mnt").join(name);
        kept.extend(["a", "b"].into_iter().filter(|name| keep(&file(name))));
        // What could not be made is not there to be moved.
        let is_there = file("a").exists();
        let moved = is_there && is_told(fs::rename(file("a"), file("c")));
        let written = is_told(fs::write(file("d"), [8; 9000]));
        let unmounted = scene.unmount(&["umount", "mnt"]);
        let said = said(&unmounted);
        all = unmounted.status.success();
        assert!(
            all || said.contains("not durable") || said.contains("may not be durable"),
            "{context}: {said}"
        );
        assert!(all || disk.is_off(), "{context}: {said}");
        if all {
            assert!(moved && written && kept == ["a", "b"], "{context}");
        }
        // Only what came behind the last change may have failed.
        assert!(
            !(all && vanishes && disk.is_off()),
            "{context}: it cannot be known"
        );
    } else {
        let said = said(&mounted);
        assert!(disk.is_off() && said.contains(WHY), "{context}: {said}");
    }
    let off = disk.is_off();
    let left = disk.after(Loss::All, &mut Random::new(events));
    drop(disk);
    left.store(&scene.path("left.img")).expect("an image");
    // A mount replays a journal, and finds what soft updates have lost.
    if kind == Kind::Soup {
        scene.must(&["fsck", "-n", "left.img"]);
    }
    scene.must(&["mount", "left.img", "mnt"]);
    wait_until("what was lost is found", || {
        scene.status()["file_system"]["reclaiming"] == false
    });
    let found = |name: &str| fs::read(scene.path("mnt").join(name)).ok();
    for name in kept {
        let there = found(name).or_else(|| found("c").filter(|_| name == "a"));
        assert_eq!(there.as_deref(), Some(&[7; 5000][..]), "{context}: {name}");
    }
    if all {
        assert_eq!(
            found("d").as_deref(),
            Some(&[8; 9000][..]),
            "{context}: the last change"
        );
        assert!(
            found("c").is_some() && found("a").is_none(),
            "{context}: the rename"
        );
    }
    wait_until("the image is unmounted", || {
        scene.unmount(&["umount", "mnt"]).status.success()
    });
    let report = scene.run(&["fsck", "-n", "left.img"]);
    assert!(report.status.success(), "{context}: {report:?}");
    off
}

fn at_any_request(kind: Kind, mode: &str, vanishes: bool) {
    let scene = Scene::new();
    scene.must(&[&["mkfs", "new.img", "--size", kind.least()], kind.mkfs()].concat());
    let image = &Image::load(&scene.path("new.img")).expect("the image");
    let mut events = 1;
    loop {
        let some = events..events + AT_ONCE;
        let off = std::thread::scope(|scope| {
            let one = |events| scope.spawn(move || life((kind, mode), image, events, vanishes));
            let lives: Vec<_> = some.map(one).collect();
            let off = lives.into_iter().map(|life| life.join().expect("a life"));
            off.collect::<Vec<bool>>()
        });
        let until_one_is_not = off.iter().take_while(|off| **off).count() as u64;
        events += until_one_is_not;
        if until_one_is_not < AT_ONCE {
            break;
        }
    }
    assert!(events > 8, "only {events} writes and flushes");
    println!("{events} writes and flushes");
}

#[test]
fn a_disk_that_takes_no_more_writes_is_told_and_what_was_synced_is_there() {
    at_any_request(Kind::Soup, "delayed", false);
}

#[test]
fn a_disk_that_vanishes_is_told_and_what_was_synced_is_there() {
    at_any_request(Kind::Soup, "delayed", true);
}

#[test]
fn a_disk_with_ext2_that_takes_no_more_writes_is_told_and_what_was_synced_is_there() {
    at_any_request(Kind::Soft, "soft", false);
}

#[test]
fn a_disk_with_ext2_that_vanishes_is_told_and_what_was_synced_is_there() {
    at_any_request(Kind::Soft, "soft", true);
}

#[test]
fn a_disk_with_ext3_that_takes_no_more_writes_is_told_and_what_was_synced_is_there() {
    at_any_request(Kind::Journaled, "ordered", false);
}

#[test]
fn a_disk_with_ext3_that_vanishes_is_told_and_what_was_synced_is_there() {
    at_any_request(Kind::Journaled, "ordered", true);
}
