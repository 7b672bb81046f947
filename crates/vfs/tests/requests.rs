//! One request is one operation of the engine: otherwise a crash could leave half of it.

mod common;

use std::ops::Range;
use std::sync::Mutex;

use common::{OTHER, OWNER};
use model::{Model, Node};
use vfs::*;

/// The reference engine; notes which changes it was asked for.
struct Noting {
    inner: Model,
    changes: Mutex<Vec<&'static str>>,
}

macro_rules! as_the_model {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $result {
            self.inner.$name($($arg),*)
        })*
    };
}

macro_rules! noted {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $result {
            self.changes.lock().unwrap().push(stringify!($name));
            self.inner.$name($($arg),*)
        })*
    };
}

impl FileSystem for Noting {
    type Node = Node;

    as_the_model! {
        fn limits() -> Limits;
        fn root() -> Node;
        fn node(ino: Ino) -> Result<Node>;
        fn ino(node: &Node) -> Ino;
        fn attr(node: &Node) -> Attr;
        fn lookup(dir: &Node, name: &[u8]) -> Result<Node>;
        fn parent(dir: &Node) -> Result<Node>;
        fn readlink(node: &Node) -> Result<Vec<u8>>;
        fn readdir(
            dir: &Node, cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool
        ) -> Result<()>;
        fn read(node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize>;
        fn seek(node: &Node, offset: u64, what: SeekFor) -> Result<u64>;
        fn getxattr(node: &Node, name: &[u8]) -> Result<Vec<u8>>;
        fn listxattr(node: &Node) -> Result<Vec<Vec<u8>>>;
        fn fsync(node: &Node, what: Fsync) -> Result<()>;
        fn syncfs() -> Result<()>;
        fn statfs() -> StatFs;
    }

    noted! {
        fn create(dir: &Node, name: &[u8], new: &NewNode<'_>) -> Result<Node>;
        fn tmpfile(dir: &Node, new: &NewNode<'_>) -> Result<Node>;
        fn link(node: &Node, dir: &Node, name: &[u8]) -> Result<()>;
        fn unlink(dir: &Node, name: &[u8], veto: Veto<'_>) -> Result<()>;
        fn rmdir(dir: &Node, name: &[u8], veto: Veto<'_>) -> Result<()>;
        fn rename(
            from: Place<'_, Node>, to: Place<'_, Node>, mode: RenameMode, veto: Veto<'_>
        ) -> Result<()>;
        fn write_with(node: &Node, offset: u64, data: &[u8], also: Also<'_>) -> Result<usize>;
        fn append_with(node: &Node, data: &[u8], also: Also<'_>) -> Result<(u64, usize)>;
        fn apply(node: &Node, change: &Change<'_>) -> Result<Attr>;
        fn set_atime(node: &Node, atime: Time) -> Result<()>;
        fn fallocate_with(
            node: &Node, mode: Fallocate, range: Range<u64>, also: Also<'_>
        ) -> Result<()>;
        fn copy_range_with(
            from: At<'_, Node>, to: At<'_, Node>, len: u64, also: Also<'_>
        ) -> Result<u64>;
    }
}

/// A list with a named user, so that it is kept, or what only permission bits say.
fn acl(named: bool) -> Vec<u8> {
    let mut list = 2_u32.to_le_bytes().to_vec();
    let mut entry = |tag: u16, perm: u16, id: u32| {
        list.extend(tag.to_le_bytes());
        list.extend(perm.to_le_bytes());
        list.extend(id.to_le_bytes());
    };
    entry(0x01, 6, u32::MAX);
    if named {
        entry(0x02, 7, OTHER);
    }
    entry(0x04, 4, u32::MAX);
    if named {
        entry(0x10, 7, u32::MAX);
    }
    entry(0x20, 4, u32::MAX);
    list
}

/// A file whose rights a change of contents takes away, with an ACL, in a directory that hands one
/// down.
struct Scene {
    vfs: Vfs<Noting>,
    dir: Node,
    file: Node,
    source: Node,
}

impl Scene {
    fn new() -> Scene {
        let inner = Model::on(std::sync::Arc::new(SystemClock));
        let changes = Mutex::default();
        let vfs = Vfs::new(Noting { inner, changes }, VfsOptions::default());
        let (root, su) = (vfs.fs().root(), Cred::root());
        let make = |name: &[u8], kind| {
            let made = vfs.create(&su, &root, name, &NewNodeRequest::new(kind, 0o666, 0));
            made.expect("made")
        };
        let (dir, file) = (make(b"dir", NewKind::Dir), make(b"file", NewKind::File));
        let source = make(b"source", NewKind::File);
        vfs.write(&su, &source, 0, b"data").unwrap();
        vfs.write(&su, &file, 0, b"data").unwrap();
        let set = |node, name, value: &[u8]| {
            let set = vfs.setxattr(&su, node, name, value, XattrMode::Any);
            set.expect("set");
        };
        set(&dir, ACL_DEFAULT, &acl(true));
        set(&file, ACL_ACCESS, &acl(true));
        let request = SetAttrRequest {
            perm: Some(0o6766),
            uid: Some(OWNER),
            ..SetAttrRequest::default()
        };
        vfs.setattr(&su, &file, &request).unwrap();
        set(&file, b"security.capability", b"c");
        vfs.fs().changes.lock().unwrap().clear();
        Scene {
            vfs,
            dir,
            file,
            source,
        }
    }

    fn has_rights(&self) -> bool {
        let armed = self.vfs.fs().getxattr(&self.file, b"security.capability");
        armed.is_ok() || self.vfs.getattr(&self.file).perm & 0o6000 != 0
    }
}

/// Makes a request of a new scene; it must succeed and change the engine once, and the file's
/// rights must be gone if they are to be.
#[track_caller]
fn once(strips: bool, request: impl Fn(&Scene, &Cred) -> Result<()>) {
    let scene = Scene::new();
    let cred = Cred {
        caps: Caps::all().difference(Caps::FSETID),
        ..Cred::new(OTHER, OTHER, &[])
    };
    request(&scene, &cred).expect("it succeeds");
    let changes = std::mem::take(&mut *scene.vfs.fs().changes.lock().unwrap());
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert_eq!(scene.has_rights(), !strips, "{changes:?}");
}

#[test]
fn a_change_of_contents_is_one_operation_with_the_rights_that_it_takes_away() {
    once(true, |s, cred| {
        s.vfs.write(cred, &s.file, 0, b"x").map(drop)
    });
    once(true, |s, cred| s.vfs.append(cred, &s.file, b"x").map(drop));
    once(true, |s, cred| s.vfs.truncate(cred, &s.file, 1).map(drop));
    let punch = Fallocate::Punch;
    once(true, |s, cred| s.vfs.fallocate(cred, &s.file, punch, 0, 1));
    once(true, |s, cred| {
        let (from, to) = (At::new(&s.source, 0), At::new(&s.file, 0));
        s.vfs.copy_range_noatime(cred, from, to, 4).map(drop)
    });
}

#[test]
fn a_change_of_attributes_is_one_operation_whatever_it_takes_along() {
    let set = |request: SetAttrRequest| {
        move |s: &Scene, cred: &Cred| s.vfs.setattr(cred, &s.file, &request).map(drop)
    };
    let none = SetAttrRequest::default();
    let (uid, perm, size) = (Some(OTHER), Some(0o600), Some(1));
    once(true, set(SetAttrRequest { uid, ..none }));
    once(true, set(SetAttrRequest { size, ..none }));
    // The list changes with the mode.
    once(true, set(SetAttrRequest { perm, size, ..none }));
    once(true, set(SetAttrRequest { uid, perm, ..none }));
}

#[test]
fn a_change_of_an_acl_is_one_operation_with_the_mode() {
    for named in [true, false] {
        once(false, |s, cred| {
            let list = acl(named);
            s.vfs
                .setxattr(cred, &s.file, ACL_ACCESS, &list, XattrMode::Any)?;
            let kept = s.vfs.fs().getxattr(&s.file, ACL_ACCESS).is_ok();
            assert_eq!(kept, named);
            Ok(())
        });
    }
}

#[test]
fn what_is_made_has_what_it_inherits_from_birth() {
    for kind in [NewKind::File, NewKind::Dir] {
        once(false, |s, cred| {
            let request = NewNodeRequest::new(kind, 0o666, 0);
            let made = s.vfs.create(cred, &s.dir, b"new", &request)?;
            s.vfs.fs().getxattr(&made, ACL_ACCESS).map(drop)
        });
    }
}
