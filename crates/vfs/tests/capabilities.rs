//! What an engine cannot hold or do is refused before it is asked, with the errors of Linux.

mod common;

use std::sync::Arc;

use common::{fails, setup};
use model::{LIMITS, Model, Options};
use vfs::{
    Capabilities, Cred, Errno, Fallocate, FileSystem, Limits, ManualClock, NewKind, NewNodeRequest,
    Place, RenameMode, Vfs, VfsOptions, XattrMode,
};

/// A file system whose engine has these limits, with a file `a` in its root.
fn with_limits(limits: Limits) -> Vfs<Model> {
    let options = Options {
        limits,
        ..Options::default()
    };
    let model = Model::with_options(Arc::new(ManualClock::new(common::START)), options);
    let vfs = Vfs::new(model, VfsOptions::default());
    let root = vfs.fs().root();
    vfs.create(
        &Cred::root(),
        &root,
        b"a",
        &NewNodeRequest::new(NewKind::File, 0o644, 0),
    )
    .expect("made");
    vfs
}

#[test]
fn what_the_engine_cannot_do_is_refused() {
    let vfs = with_limits(Limits {
        capabilities: Capabilities::empty(),
        ..LIMITS
    });
    let (su, root) = (Cred::root(), vfs.fs().root());
    let file = vfs.fs().lookup(&root, b"a").expect("made");
    fails(vfs.tmpfile(&su, &root, 0o644, 0), Errno::OPNOTSUPP);
    for mode in [RenameMode::Exchange, RenameMode::Whiteout] {
        fails(
            vfs.rename(&su, Place::new(&root, b"a"), Place::new(&root, b"b"), mode),
            Errno::INVAL,
        );
    }
    let keep_size = false;
    for mode in [
        Fallocate::Allocate { keep_size },
        Fallocate::Punch,
        Fallocate::Zero { keep_size },
    ] {
        fails(vfs.fallocate(&su, &file, mode, 0, 1), Errno::OPNOTSUPP);
    }
    let set = vfs.setxattr(&su, &file, b"user.a", b"1", XattrMode::Any);
    fails(set, Errno::OPNOTSUPP);
    vfs.rename(
        &su,
        Place::new(&root, b"a"),
        Place::new(&root, b"b"),
        RenameMode::NoReplace,
    )
    .expect("any engine can do that");
}

#[test]
fn lower_limits_than_those_of_linux_are_kept() {
    let vfs = with_limits(Limits {
        name_max: 10,
        symlink_max: 20,
        xattr_size_max: 30,
        ..LIMITS
    });
    let (su, root) = (Cred::root(), vfs.fs().root());
    let file = vfs.fs().lookup(&root, b"a").expect("made");
    for (name, fits) in [(&[b'n'; 10][..], true), (&[b'n'; 11], false)] {
        let made = vfs.create(
            &su,
            &root,
            name,
            &NewNodeRequest::new(NewKind::File, 0o644, 0),
        );
        assert_eq!(made.is_ok(), fits);
        if !fits {
            fails(made, Errno::NAMETOOLONG);
        }
    }
    for (len, fits) in [(20, true), (21, false)] {
        let target = vec![b't'; len];
        let name = format!("link{len}");
        let kind = NewKind::Symlink(&target);
        let made = vfs.create(
            &su,
            &root,
            name.as_bytes(),
            &NewNodeRequest::new(kind, 0o777, 0),
        );
        assert_eq!(made.is_ok(), fits);
        if !fits {
            fails(made, Errno::NAMETOOLONG);
        }
    }
    let set = |len| vfs.setxattr(&su, &file, b"user.a", &vec![0; len], XattrMode::Any);
    set(30).expect("it fits");
    fails(set(31), Errno::TOOBIG);
}

#[test]
fn the_reference_can_do_everything() {
    let s = setup();
    assert_eq!(s.vfs.fs().limits(), LIMITS);
}
