//! A request that changes several things of an inode is one change: whenever the power fails, the
//! next mount finds all of it or nothing.

mod common;

use common::{Soup, clock, image};
use parking_lot::Mutex;
use pmem::{Domain, Options, Pool, Recorder, StoreKind};
use soupfs::{Mode, SoupFs};
use std::sync::Arc;
use vfs::{
    ACL_ACCESS, At, Caps, Cred, Fallocate, FileSystem, NewKind, NewNodeRequest, Result,
    SetAttrRequest, Time, Vfs, VfsOptions, XattrMode,
};

const CAPABILITY: &[u8] = b"security.capability";

/// All stores in their order: that in which they become durable in domain `cache`.
#[derive(Default)]
struct Stores(Mutex<Vec<(u64, Vec<u8>)>>);

impl Recorder for Stores {
    fn store(&self, off: u64, bytes: &[u8], _: StoreKind) {
        self.0.lock().push((off, bytes.to_vec()));
    }

    fn flush(&self, _: u64, _: u64) {}
    fn fence(&self) {}
    fn mark(&self, _: &str) {}
}

/// Where a request is durable when it returns.
const MEDIA: [(Mode, Domain); 3] = [
    (Mode::Sync, Domain::Cache),
    (Mode::Strong, Domain::Cache),
    (Mode::Strong, Domain::Line),
];

/// An ACL with a named user, so that it is kept.
fn acl() -> Vec<u8> {
    let mut list = 2_u32.to_le_bytes().to_vec();
    let none = u32::MAX;
    for (tag, perm, id) in [
        (1, 6, none),
        (2, 7, 2000),
        (4, 4, none),
        (16, 7, none),
        (32, 4, none),
    ] {
        list.extend(u16::to_le_bytes(tag));
        list.extend(u16::to_le_bytes(perm));
        list.extend(u32::to_le_bytes(id));
    }
    list
}

/// What a mount finds of the file: size, permissions, owner, extended attributes.
type State = (u64, u16, u32, Vec<(Vec<u8>, Vec<u8>)>);

fn state(fs: &SoupFs) -> State {
    let file = fs.lookup(&fs.root(), b"file").expect("it is there");
    let attr = fs.attr(&file);
    let names = fs.listxattr(&file).expect("listed");
    let value = |name: Vec<u8>| {
        let value = fs.getxattr(&file, &name).expect("listed, so there");
        (name, value)
    };
    let mut xattrs: Vec<_> = names.into_iter().map(value).collect();
    xattrs.sort();
    (attr.size, attr.perm, attr.uid, xattrs)
}

/// Makes a request of a file with rights that do not outlive its contents, and looks at what is
/// there after a crash behind each store: in domain `line` a crash may leave that, too.
#[track_caller]
fn is_whole(request: impl Fn(&Vfs<SoupFs>, &Cred) -> Result<()>) {
    for (mode, domain) in MEDIA {
        is_whole_on((mode, domain), &request);
    }
}

#[track_caller]
fn is_whole_on(
    (mode, domain): (Mode, Domain),
    request: &impl Fn(&Vfs<SoupFs>, &Cred) -> Result<()>,
) {
    let soup = || Soup {
        mode,
        domain,
        manual: true,
        ..Soup::default()
    };
    let options = |recorder| Options {
        domain: Some(domain),
        recorder,
        ..Options::default()
    };
    let stores = Arc::new(Stores::default());
    let bytes = image(2 << 20, domain, Time(1)).snapshot();
    let pool = Pool::from_bytes(&bytes, &options(Some(stores.clone()))).expect("memory");
    let vfs = Vfs::new(soup().mount(Arc::new(pool), clock()), VfsOptions::default());
    let (root, su) = (vfs.fs().root(), Cred::root());
    for name in [b"file", b"from"] {
        let request = NewNodeRequest::new(NewKind::File, 0o666, 0);
        let file = vfs.create(&su, &root, name, &request).expect("made");
        vfs.write(&su, &file, 0, &[7; 5000]).expect("written");
    }
    let file = vfs.lookup(&su, &root, b"file").expect("there");
    let set = |name, value: &[u8]| {
        let set = vfs.setxattr(&su, &file, name, value, XattrMode::Any);
        set.expect("set");
    };
    set(ACL_ACCESS, &acl());
    let perm = SetAttrRequest {
        perm: Some(0o6766),
        ..SetAttrRequest::default()
    };
    vfs.setattr(&su, &file, &perm).expect("set");
    set(CAPABILITY, b"c");
    vfs.syncfs().expect("synced");

    let mut crashed = vfs.fs().pool().snapshot();
    let before = state(vfs.fs());
    stores.0.lock().clear();
    let cred = Cred {
        caps: Caps::all().difference(Caps::FSETID),
        ..Cred::new(2000, 2000, &[])
    };
    request(&vfs, &cred).expect("it succeeds");
    let after = state(vfs.fs());
    assert_ne!(before, after);
    let stores = std::mem::take(&mut *stores.0.lock());
    let mut found = before.clone();
    for (off, bytes) in stores {
        crashed[off as usize..][..bytes.len()].copy_from_slice(&bytes);
        let pool = Pool::from_bytes(&crashed, &options(None)).expect("memory");
        found = state(&soup().mount(Arc::new(pool), clock()));
        assert!(
            found == before || found == after,
            "{mode:?}, {domain}: half of it: {found:?}"
        );
    }
    assert_eq!(
        found, after,
        "{mode:?}, {domain}: it is durable when it returns"
    );
}

fn file(vfs: &Vfs<SoupFs>) -> <SoupFs as FileSystem>::Node {
    let found = vfs.fs().lookup(&vfs.fs().root(), b"file");
    found.expect("it is there")
}

#[test]
fn contents_that_grow_are_durable_with_the_rights_that_they_take_away() {
    is_whole(|vfs, cred| vfs.append(cred, &file(vfs), &[1; 5000]).map(drop));
    is_whole(|vfs, cred| vfs.write(cred, &file(vfs), 9000, b"far").map(drop));
    is_whole(|vfs, cred| {
        let from = vfs.fs().lookup(&vfs.fs().root(), b"from")?;
        let to = file(vfs);
        let (from, to) = (At::new(&from, 0), At::new(&to, 5000));
        vfs.copy_range(cred, from, to, 5000).map(drop)
    });
    for mode in [
        Fallocate::Allocate { keep_size: false },
        Fallocate::Zero { keep_size: false },
    ] {
        is_whole(|vfs, cred| vfs.fallocate(cred, &file(vfs), mode, 8192, 8192));
    }
}

#[test]
fn attributes_are_durable_with_all_that_changes_with_them() {
    for size in [100, 20_000] {
        is_whole(|vfs, cred| vfs.truncate(cred, &file(vfs), size).map(drop));
    }
    let none = SetAttrRequest::default();
    let (uid, perm, size) = (Some(2000), Some(0o600), Some(100));
    for request in [
        SetAttrRequest { uid, ..none },
        SetAttrRequest { perm, ..none },
        SetAttrRequest {
            uid,
            perm,
            size,
            ..none
        },
    ] {
        is_whole(|vfs, cred| vfs.setattr(cred, &file(vfs), &request).map(drop));
    }
}

#[test]
fn an_acl_that_says_no_more_than_the_mode_goes_as_the_mode_comes() {
    let mut minimal = acl();
    // Without the named user and the mask.
    minimal.drain(28..36);
    minimal.drain(12..20);
    is_whole(|vfs, cred| vfs.setxattr(cred, &file(vfs), ACL_ACCESS, &minimal, XattrMode::Any));
}
