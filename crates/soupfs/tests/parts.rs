//! Several parts of a file written by one call.

mod common;

use block::Random;
use common::{Soup, audit};
use model::Engine;
use pmem::Domain;
use soupfs::{Mode, Node, SoupFs};
use std::sync::Arc;
use vfs::{Errno, Fallocate, FileSystem, ManualClock, NewKind, NewNode, SetAttr, Time};

/// Bytes of a file, at most.
const SPAN: u64 = 60_000;

fn mounted(mode: Mode, domain: Domain, len: u64) -> SoupFs {
    let engine = Soup {
        len,
        mode,
        domain,
        manual: true,
        ..Soup::default()
    };
    engine.make(Arc::new(ManualClock::new(Time(5))))
}

fn file(fs: &SoupFs) -> Node {
    let new = NewNode {
        kind: NewKind::File,
        perm: 0o600,
        uid: 0,
        gid: 0,
        xattrs: &[],
    };
    fs.create(&fs.root(), b"file", &new).expect("made")
}

fn contents(fs: &SoupFs, node: &Node) -> Vec<u8> {
    let mut bytes = vec![0; fs.attr(node).size as usize];
    fs.read(node, 0, &mut bytes).expect("read");
    bytes
}

/// Parts in ascending order, many of them within the same blocks, filled with a number.
fn parts(random: &mut Random, fill: u8) -> Vec<(u64, Vec<u8>)> {
    let mut at = random.below(SPAN / 2);
    let mut parts = Vec::new();
    for _ in 0..=random.below(7) {
        let len = match random.below(4) {
            0 => random.below(9000) + 1,
            _ => random.below(600) + 1,
        };
        if at + len > SPAN {
            break;
        }
        parts.push((at, vec![fill; len as usize]));
        at += len;
        at +=
            [0, random.below(50), random.below(3000), random.below(9000)][random.below(4) as usize];
    }
    parts
}

/// A sequence beside an array of bytes.
fn beside_an_array(seed: u64, mode: Mode, domain: Domain) {
    let (fs, mut random) = (mounted(mode, domain, 4 << 20), Random::new(seed));
    let (node, mut expected) = (file(&fs), Vec::new());
    for step in 1..40_u8 {
        let what = format!("seed {seed}, {mode:?}, {domain}, step {step}");
        match random.below(6) {
            0 => {
                let size = random.below(SPAN);
                let set = SetAttr {
                    size: Some(size),
                    ..SetAttr::default()
                };
                fs.setattr(&node, &set).expect("cut");
                expected.resize(size as usize, 0);
            }
            1 => {
                let (at, len) = (random.below(SPAN), random.below(10_000) + 1);
                fs.fallocate(&node, Fallocate::Punch, at, len)
                    .expect("punched");
                let end = expected.len().min((at + len) as usize);
                expected[end.min(at as usize)..end].fill(0);
            }
            2 => fs.syncfs().expect("synced"),
            _ => {
                let parts = parts(&mut random, step);
                let slices: Vec<_> = parts.iter().map(|(at, data)| (*at, &data[..])).collect();
                let before = fs.status().backlog.batches;
                fs.write_parts(&node, &slices).expect("written");
                let batches = fs.status().backlog.batches - before;
                let few = parts.len().min(1) as u64;
                assert!(
                    mode != Mode::Strong || batches == few,
                    "{what}: {batches} batches"
                );
                for (at, data) in &parts {
                    let (at, end) = (*at as usize, *at as usize + data.len());
                    expected.resize(expected.len().max(end), 0);
                    expected[at..end].copy_from_slice(data);
                }
            }
        }
        assert!(contents(&fs, &node) == expected, "{what}");
    }
    fs.unmount().expect("unmounted");
    audit(fs.pool());
}

#[test]
fn parts_are_written_as_by_one_write_each() {
    for seed in 0..60 {
        for domain in [Domain::Line, Domain::Page] {
            beside_an_array(seed, Mode::Strong, domain);
        }
        beside_an_array(seed, Mode::Delayed, Domain::Line);
    }
}

#[test]
fn parts_for_which_there_is_too_little_space_change_nothing() {
    let fs = mounted(Mode::Strong, Domain::Line, 4 << 20);
    let node = file(&fs);
    fs.write(&node, 0, &[1; 50_000]).expect("written");
    let much = vec![2; 4 << 20];
    let before = (contents(&fs, &node), fs.attr(&node), fs.statfs().free);
    let refused = fs.write_parts(
        &node,
        &[(10, &[2; 100]), (20_000, &[2; 5000]), (30_000, &much)],
    );
    assert_eq!(refused.map_err(|e| e.errno()), Err(Errno::NOSPC));
    assert_eq!(
        (contents(&fs, &node), fs.attr(&node), fs.statfs().free),
        before
    );
}
