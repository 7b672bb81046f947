//! Inodes without names, and references to them.

mod common;

use common::{Soup, audit, clock, image};
use pmem::Domain;
use vfs::{Errno, FileSystem, NewKind, NewNode};

const FILE: NewNode<'_> = NewNode {
    kind: NewKind::File,
    perm: 0o644,
    uid: 0,
    gid: 0,
    xattrs: &[],
};

#[test]
fn asking_for_an_inode_that_lost_its_last_name_neither_brings_it_back_nor_leaks_it() {
    let soup = Soup {
        manual: true,
        ..Soup::default()
    };
    let pool = image(16 << 20, Domain::Line, vfs::Time(0));
    let fs = soup.mount(pool.clone(), clock());
    let used = || fs.statfs().blocks - fs.statfs().free;
    let before = used();
    let file = fs.create(&fs.root(), b"file", &FILE).expect("create");
    fs.write(&file, 0, &[1; 100_000]).expect("write");
    fs.syncfs().expect("syncfs");
    let ino = fs.ino(&file);
    drop(file);
    fs.unlink(&fs.root(), b"file", &|_| Ok(())).expect("unlink");
    // The inode waits for its removal to be persisted. Asking repeatedly must not count anything.
    for _ in 0..4 {
        assert_eq!(fs.node(ino).err().map(|e| e.errno()), Some(Errno::STALE));
    }
    fs.syncfs().expect("syncfs");
    fs.syncfs().expect("syncfs");
    assert!(used() <= before + 1, "{} pages, {before} before", used());
    fs.unmount().expect("unmount");
    audit(&pool);
}
