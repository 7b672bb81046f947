//! Mode `strong`: what callers see of requests, and what these leave when they fail. What a crash
//! leaves is explored in `explorer`.

mod common;

use common::{Soup, audit};
use model::Engine;
use soupfs::{Mode, Node, SoupFs};
use std::sync::Arc;
use vfs::{
    At, Change, Errno, Fallocate, FileSystem, Fsync, ManualClock, NewKind, NewNode, SetAttr, Time,
};

const LEN: u64 = 4 << 20;

fn mounted(len: u64) -> SoupFs {
    let engine = Soup {
        len,
        mode: Mode::Strong,
        manual: true,
        ..Soup::default()
    };
    engine.make(Arc::new(ManualClock::new(Time(5))))
}

fn file(fs: &SoupFs, name: &str) -> Node {
    let new = NewNode {
        kind: NewKind::File,
        perm: 0o600,
        uid: 0,
        gid: 0,
        xattrs: &[],
    };
    fs.create(&fs.root(), name.as_bytes(), &new).expect("made")
}

fn batches(fs: &SoupFs) -> u64 {
    fs.status().backlog.batches
}

/// What can be seen of a file, and of space.
fn account(fs: &SoupFs, node: &Node) -> (vfs::Attr, Vec<u8>, u64) {
    let attr = fs.attr(node);
    let mut bytes = vec![0; attr.size as usize];
    fs.read(node, 0, &mut bytes).expect("read");
    (attr, bytes, fs.statfs().free)
}

#[test]
fn a_request_that_finds_too_little_space_changes_nothing() {
    let fs = mounted(LEN);
    let (node, other) = (file(&fs, "file"), file(&fs, "other"));
    fs.write(&node, 0, &[1; 100_000]).expect("written");
    let half = fs.statfs().free * 4096 / 2;
    fs.write(&other, 0, &vec![3; half as usize])
        .expect("written");
    let much = vec![2; LEN as usize];
    let set = SetAttr {
        perm: Some(0o600),
        ..SetAttr::default()
    };
    let also = Change { set, xattrs: &[] };
    let zero = Fallocate::Zero { keep_size: false };
    let before = account(&fs, &node);
    for _ in 0..3 {
        let refused = [
            fs.write_with(&node, 50, &much, Some(&also)).map(drop),
            fs.append_with(&node, &much, Some(&also)).map(drop),
            fs.fallocate(&node, zero, 10, LEN),
        ];
        for refused in refused {
            assert_eq!(refused.map_err(|e| e.errno()), Err(Errno::NOSPC));
            assert_eq!(account(&fs, &node), before);
        }
    }
    // Each takes the pages of the one before: what a request replaced is free again in time.
    for round in 0..50 {
        let bytes = vec![round; half as usize];
        assert_eq!(fs.write(&other, 0, &bytes).expect("written"), bytes.len());
    }
    drop((node, other));
    fs.unmount().expect("unmounted");
    audit(fs.pool());
}

#[test]
fn times_of_access_that_wait_leave_room_for_a_request() {
    let fs = mounted(LEN);
    // More than the journal has words.
    let nodes: Vec<_> = (0..3000).map(|i| file(&fs, &i.to_string())).collect();
    for (i, node) in nodes.iter().enumerate() {
        fs.set_atime(node, Time(1000 + i as i64)).expect("set");
    }
    file(&fs, "last");
    for (i, node) in nodes.iter().enumerate() {
        assert_eq!(fs.attr(node).atime, Time(1000 + i as i64));
    }
    drop(nodes);
    fs.unmount().expect("unmounted");
    audit(fs.pool());
}

#[test]
fn a_write_of_any_length_is_one_batch() {
    let fs = mounted(128 << 20);
    let node = file(&fs, "file");
    let other = file(&fs, "other");
    for (i, bytes) in [vec![1; 40 << 20], vec![2; 39 << 20]].iter().enumerate() {
        let before = batches(&fs);
        assert_eq!(
            fs.write(&node, 77, bytes).expect("written"),
            bytes.len(),
            "{i}"
        );
        assert_eq!(batches(&fs), before + 1);
    }
    let before = batches(&fs);
    let place = |node| At::new(node, 5);
    let copied = fs.copy_range(place(&node), place(&other), 33 << 20);
    assert_eq!(
        (copied.expect("copied"), batches(&fs)),
        (33 << 20, before + 1)
    );
    fs.fsync(&node, Fsync::All).expect("nothing to do");
    assert_eq!(batches(&fs), before + 1);
}
