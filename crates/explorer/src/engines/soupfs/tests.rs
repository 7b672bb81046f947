//! That what is said of SoupFS holds.

use super::{BUCKET, ENGINE};
use crate::engine::{Engine, LATER, Mode};
use crate::families::by_name;
use crate::op::Op;
use crate::rules::Rules;
use crate::run::Run;
use crate::scratch::Device;
use crate::trace::Event;
use crate::workload::Workload;
use pmem::{Domain, PAGE};
use soupfs::layout::{Geometry, bucket, dentry, inode, line_at};

fn empty(len: u64) -> Device {
    let empty = ENGINE.empty(len, Mode::DELAYED);
    Device::of(&empty, Rules::Lines(Domain::Cache))
}

fn clashing(name: &str) -> String {
    ENGINE.clashing(name).expect("one in 32 does")
}

#[test]
fn entries_of_clashing_names_are_in_one_bucket() {
    let names = ["foo", "bar", "A", "a"].map(clashing);
    let device = empty(1 << 20);
    let mut fs = (&ENGINE as &dyn Engine)
        .mount_at(&device, LATER)
        .expect("mounted");
    for name in &names {
        fs.run(&Op::Create(name.clone())).expect("made");
    }
    fs.unmount().expect("unmounted");
    let image = device.image().bytes();
    for name in &names {
        let mut windows = image.windows(name.len());
        let at = windows.position(|bytes| bytes == name.as_bytes());
        let entry = at.expect("the entry has the name") as u64 - dentry::NAME;
        let hash = device.pool().load(entry + dentry::HASH);
        assert_eq!(hash % bucket::BASE, BUCKET, "{name}");
    }
}

#[test]
fn tables_of_several_pages_are_reached() {
    let workload = by_name("growth-clash-3").expect("a workload of this name");
    let device = empty(workload.len);
    let mut fs = (&ENGINE as &dyn Engine)
        .mount_at(&device, LATER)
        .expect("mounted");
    for op in &workload.ops {
        fs.run(op).expect("done");
    }
    let (line, _) = fs.id(&clashing("dir")).expect("there");
    fs.unmount().expect("unmounted");
    let level = device.pool().load(line_at(line) + inode::LEVEL);
    assert!(bucket::BASE << level > PAGE / 8, "level {level}");
}

#[test]
fn the_journal_wraps_where_crashes_are_tried() {
    for mode in [Mode::DELAYED, Mode::SYNC] {
        let workload = Workload {
            mode,
            ..by_name("wrap-0").expect("known")
        };
        let run = Run::record(workload, Domain::Line, false).expect("it runs");
        // A record that begins before the one before it, or that is stored in two pieces.
        let geometry = Geometry::for_len(run.start.len());
        let journal = geometry.journal * PAGE..(geometry.journal + geometry.journal_pages) * PAGE;
        let (mut last, mut step, mut wrapped) = (0, 0, Vec::new());
        for event in &run.events {
            match event {
                Event::Begin(now) => step = *now,
                Event::Store { at, bytes, .. } if journal.contains(at) && bytes.len() > 8 => {
                    if *at < last {
                        wrapped.push(step);
                    }
                    last = *at;
                }
                _ => {}
            }
        }
        let steps = run.steps.len();
        assert!(
            wrapped.len() == 1 && wrapped[0] > 1 && wrapped[0] + 2 < steps,
            "{mode:?}: in {wrapped:?} of {steps} steps"
        );
    }
}
