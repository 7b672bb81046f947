//! Batches beside callers that change the same objects meanwhile.

use crate::commit::capture::{Captured, Pull};
use crate::dir::PendingName;
use crate::inode::Node;
use crate::mount::SoupFs;
use crate::testing::{ends_clean, mount, mounted, new};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use vfs::{Errno, Fallocate, FileSystem, Fsync, NewKind, NewNode, Result, SetAttr, XattrMode};

type Change = fn(&SoupFs, &Node) -> Result<()>;

fn attribute(fs: &SoupFs, file: &Node, fill: u8) -> Result<()> {
    let also = SetAttr {
        perm: Some(0o640),
        ..SetAttr::default()
    };
    let value = vec![fill; 5000];
    fs.setxattr(file, b"user.a", &value, XattrMode::Any, &also)
}

fn resize(fs: &SoupFs, file: &Node, size: u64) -> Result<()> {
    let size = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(file, &size).map(drop)
}

/// Changes of the contents and attributes of a file of 9,000 bytes.
const CHANGES: [Change; 8] = [
    |_, _| Ok(()),
    |fs, file| attribute(fs, file, 1),
    |fs, file| attribute(fs, file, 2),
    |fs, file| fs.removexattr(file, b"user.b").or(Ok(())), // it may be gone
    |fs, file| fs.append(file, &[3; 9000]).map(drop),
    |fs, file| resize(fs, file, 1),
    |fs, file| fs.write(file, 5 << 20, &[4; 5000]).map(drop),
    |fs, file| fs.fallocate(file, Fallocate::Punch, 0, 8192),
];

/// An inode that a batch takes up before a change and again after it: all of the change is in
/// the batch.
#[test]
fn what_is_captured_twice_is_captured_whole() {
    for first in CHANGES {
        for second in CHANGES {
            captured_twice(first, second).expect("captured twice");
        }
    }
}

fn captured_twice(first: Change, second: Change) -> Result<()> {
    let (pool, fs) = mounted();
    let root = fs.root();
    let file = fs.create(
        &root,
        b"file",
        &NewNode {
            xattrs: &[(b"user.b", b"born with")],
            ..new(NewKind::File)
        },
    )?;
    fs.append(&file, &[5; 9000])?;
    fs.syncfs()?;
    first(&fs, &file)?;
    fs.link(&file, &root, b"other")?;

    let (volume, persister) = (&fs.shared.volume, &fs.shared.persister);
    let mut lane = persister.lane.lock();
    let mut batch = Captured::new(volume, &persister.moves);
    batch.pull(Pull::Inode(file.inode().clone()))?;
    second(&fs, &file)?;
    batch.pull(Pull::Dir(root.inode().clone()))?;
    persister.publish(volume, &mut lane, batch)?;
    drop(lane);

    let (is, latest) = (volume.image().inode(file.inode().ino)?, fs.attr(&file));
    assert_eq!((is.ctime, is.mtime), (latest.ctime, latest.mtime));
    assert_eq!((is.perm, is.size), (latest.perm, latest.size));
    assert_eq!((is.nlink, is.pages * 8), (2, latest.blocks));
    assert_eq!(is.xattr != 0, latest.has_xattrs);
    drop((root, file));
    ends_clean(&pool, fs);
    Ok(())
}

/// The tree that a batch under way makes tall is cut off again before that batch ends, and a
/// block comes in front of it: it takes nodes down from a top that the tree does not have yet.
#[test]
fn nodes_are_set_aside_for_a_tree_that_a_batch_is_about_to_make_tall() -> Result<()> {
    let (pool, fs) = mounted();
    let (root, volume, persister) = (fs.root(), &fs.shared.volume, &fs.shared.persister);
    let file = fs.create(&root, b"file", &new(NewKind::File))?;
    fs.syncfs()?;
    fs.write(&file, 1 << 40, b"far")?;
    let mut lane = persister.lane.lock();
    let mut batch = Captured::new(volume, &persister.moves);
    batch.pull(Pull::Inode(file.inode().clone()))?;
    resize(&fs, &file, 0)?;
    fs.write(&file, 0, b"near")?;
    let mut all = Vec::new();
    while let Ok(run) = volume.alloc.pages(512) {
        all.push(run);
    }
    persister.publish(volume, &mut lane, batch)?;
    drop(lane);
    fs.syncfs()?;
    all.into_iter().for_each(|run| volume.alloc.free_pages(run));
    drop((root, file));
    ends_clean(&pool, fs);
    Ok(())
}

/// What a panic in the middle of an operation leaves.
#[test]
fn a_name_that_is_announced_and_never_given_ends_persisting() {
    let (pool, fs) = mounted();
    let file = fs
        .create(&fs.root(), b"file", &new(NewKind::File))
        .expect("create");
    fs.syncfs().expect("syncfs");
    let name = PendingName::new(fs.root().inode().ino, 0, 1000);
    file.inode().meta.lock().adds.push(name);
    fs.unlink(&fs.root(), b"file", &|_| Ok(())).expect("unlink");
    fs.syncfs().expect_err("there is no such operation");
    assert!(pool.poisoned().is_some());
}

/// The image may be mounted again: its journal is another one's by then.
#[test]
fn a_handle_of_a_mount_that_ended_persists_nothing() -> Result<()> {
    let (pool, ended) = mounted();
    let old = ended.create(&ended.root(), b"file", &new(NewKind::File))?;
    ended.unmount()?;
    let fs = mount(&pool);
    let file = fs.lookup(&fs.root(), b"file")?;
    fs.append(&file, &[1; 5000])?;
    fs.fsync(&file, Fsync::All)?;
    let refused = |result: Result<()>| assert_eq!(result.map_err(|e| e.errno()), Err(Errno::ROFS));
    refused(ended.fsync(&old, Fsync::All));
    refused(ended.syncfs());
    let size = fs.shared.volume.image().inode(file.inode().ino)?.size;
    assert_eq!((size, pool.poisoned()), (5000, None));
    drop((file, old, ended));
    ends_clean(&pool, fs);
    Ok(())
}

/// Between two batches the consistent view may have no name for an inode although the latest
/// still counts one: whoever takes it away has withdrawn its addition and not counted it down
/// yet.
#[test]
fn an_inode_without_consistent_names_is_not_lost_track_of() -> Result<()> {
    let (pool, fs) = mounted();
    let root = fs.root();
    let file = fs.create(&root, b"file", &new(NewKind::File))?;
    fs.append(&file, &[5; 9000])?;
    fs.syncfs()?;
    let (volume, persister) = (&fs.shared.volume, &fs.shared.persister);
    let in_use = || -> Result<Vec<u64>> {
        let all = |orphans: &[u64]| Ok(orphans.to_vec());
        Ok(persister
            .with_nothing_deferred(volume, all)?
            .expect("little is deferred"))
    };
    assert_eq!(in_use()?, []);

    let inode = file.inode();
    inode.gain_name(); // as if it had another, which is about to go
    fs.unlink(&root, b"file", &|_| Ok(()))?;
    fs.syncfs()?;
    assert_eq!(volume.image().inode(inode.ino)?.nlink, 0);
    for _ in 0..2 {
        assert_eq!(in_use()?, [inode.ino]);
    }
    inode.lose_names(1, false);
    assert_eq!(in_use()?, [inode.ino]);
    drop(file);
    assert_eq!(in_use()?, []);
    drop(root);
    ends_clean(&pool, fs);
    Ok(())
}

/// Callers of fsync who wait while the lane is taken are served by one batch; and then all return,
/// though somebody has the lane again.
#[test]
fn who_is_served_does_not_wait_for_the_lane() -> Result<()> {
    const CALLERS: usize = 8;
    let (pool, fs) = mounted();
    let files: Result<Vec<Node>> = (0..CALLERS)
        .map(|i| fs.create(&fs.root(), format!("f{i}").as_bytes(), &new(NewKind::File)))
        .collect();
    let (files, persister) = (files?, &fs.shared.persister);
    let batches = persister.backlog().batches;
    let returned = AtomicUsize::new(0);
    let all_within = |count: &dyn Fn() -> usize, all: usize| {
        let until = Instant::now() + Duration::from_secs(60);
        while count() < all && Instant::now() < until {
            std::thread::yield_now();
        }
        assert_eq!(count(), all);
    };
    std::thread::scope(|scope| {
        let caller = |file| {
            let result = fs.fsync(file, Fsync::All);
            if returned.fetch_add(1, SeqCst) == 0 {
                persister.undisturbed(|| all_within(&|| returned.load(SeqCst), CALLERS));
            }
            result
        };
        let callers: Vec<_> = persister.undisturbed(|| {
            let begin = |file| scope.spawn(move || caller(file));
            let callers = files.iter().map(begin).collect();
            // Each asks for an inode and its names.
            all_within(&|| persister.requests.len(), 2 * CALLERS);
            callers
        });
        callers
            .into_iter()
            .try_for_each(|caller| caller.join().expect("it asserts nothing that fails"))
    })?;
    assert_eq!(persister.backlog().batches, batches + 1);
    drop(files);
    ends_clean(&pool, fs);
    Ok(())
}
