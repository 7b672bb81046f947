//! Extended attributes.

use vfs::{Errno, FileSystem, NewKind, RenameMode, SetAttr, XATTR_NAME_MAX, XattrMode};

use super::data::pattern;
use super::{Bed, Engine, Feature, NodeOf, acl, fails};

/// The names, sorted.
fn names<E: Engine>(bed: &Bed<'_, E>, node: &NodeOf<E>) -> Vec<String> {
    let names = bed.fs.listxattr(node).expect("listed");
    let mut names: Vec<_> = names
        .iter()
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect();
    names.sort();
    names
}

pub fn attributes_are_set_replaced_and_removed<E: Engine>(bed: &Bed<'_, E>) {
    let file = bed.file(&bed.root(), "file");
    assert!(names(bed, &file).is_empty());
    assert_eq!(fails(bed.fs.getxattr(&file, b"user.a")), Errno::NODATA);
    assert_eq!(fails(bed.fs.removexattr(&file, b"user.a")), Errno::NODATA);
    bed.setxattr(&file, "user.a", b"one").expect("set");
    bed.setxattr(&file, "user.b", b"").expect("set");
    assert_eq!(names(bed, &file), ["user.a", "user.b"]);
    assert!(bed.attr(&file).has_xattrs);
    bed.setxattr(&file, "user.a", b"another, longer")
        .expect("set");
    assert_eq!(
        bed.fs.getxattr(&file, b"user.a"),
        Ok(b"another, longer".to_vec())
    );
    assert_eq!(bed.fs.getxattr(&file, b"user.b"), Ok(Vec::new()));
    bed.fs.removexattr(&file, b"user.a").expect("removed");
    assert_eq!(fails(bed.fs.getxattr(&file, b"user.a")), Errno::NODATA);
    bed.fs.removexattr(&file, b"user.b").expect("removed");
    assert!(names(bed, &file).is_empty() && !bed.attr(&file).has_xattrs);
}

pub fn create_and_replace_are_told_apart<E: Engine>(bed: &Bed<'_, E>) {
    let file = bed.file(&bed.root(), "file");
    let set = |value: &[u8], mode| {
        bed.fs
            .setxattr(&file, b"user.a", value, mode, &SetAttr::default())
    };
    assert_eq!(fails(set(b"1", XattrMode::Replace)), Errno::NODATA);
    set(b"2", XattrMode::Create).expect("set");
    bed.unchanged(|| assert_eq!(fails(set(b"3", XattrMode::Create)), Errno::EXIST));
    set(b"4", XattrMode::Replace).expect("set");
    assert_eq!(bed.fs.getxattr(&file, b"user.a"), Ok(b"4".to_vec()));
}

pub fn values_of_every_size_are_kept<E: Engine>(bed: &Bed<'_, E>) {
    let file = bed.file(&bed.root(), "file");
    let sizes = [
        0, 1, 31, 32, 40, 63, 64, 65, 255, 256, 1000, 4000, 4096, 4097, 20_000,
    ];
    let largest = bed.fs.limits().xattr_size_max;
    let sizes = sizes.into_iter().chain([largest, 3, 5000, 1, 0]);
    for size in sizes.filter(|&size| size <= largest) {
        let value = pattern(size, size as u8);
        bed.setxattr(&file, "user.value", &value).expect("set");
        assert!(
            bed.fs.getxattr(&file, b"user.value") == Ok(value),
            "{size} bytes"
        );
    }
    assert_eq!(names(bed, &file), ["user.value"]);
}

pub fn many_names_are_kept_apart<E: Engine>(bed: &Bed<'_, E>) {
    let file = bed.file(&bed.root(), "file");
    let name = |at: usize| format!("user.{}{at}", "n".repeat(at % 40));
    let limits = bed.fs.limits();
    let len = |at: usize| (at * 3).min(limits.xattr_size_max);
    let fit = |count: &usize| limits.have_room((0..*count).map(|at| (name(at).len(), len(at))));
    let count = (2..=200).rev().step_by(2).find(fit).expect("two have room");
    for at in 0..count {
        bed.setxattr(&file, &name(at), &pattern(len(at), at as u8))
            .expect("set");
    }
    for at in (0..count).step_by(2) {
        bed.fs
            .removexattr(&file, name(at).as_bytes())
            .expect("removed");
    }
    assert_eq!(names(bed, &file).len(), count / 2);
    for at in 0..count {
        let value = bed.fs.getxattr(&file, name(at).as_bytes());
        if at % 2 == 0 {
            assert_eq!(fails(value), Errno::NODATA);
        } else {
            assert_eq!(value, Ok(pattern(len(at), at as u8)));
        }
    }
}

pub fn limits_are_kept<E: Engine>(bed: &Bed<'_, E>) {
    let file = bed.file(&bed.root(), "file");
    let long = |len: usize| format!("user.{}", "n".repeat(len - 5));
    bed.setxattr(&file, &long(XATTR_NAME_MAX), b"x")
        .expect("set");
    assert_eq!(
        bed.fs.getxattr(&file, long(XATTR_NAME_MAX).as_bytes()),
        Ok(b"x".to_vec())
    );
    bed.unchanged(|| {
        let result = bed.setxattr(&file, &long(XATTR_NAME_MAX + 1), b"x");
        assert_eq!(fails(result), Errno::RANGE);
        let result = bed.setxattr(
            &file,
            "user.big",
            &vec![0; bed.fs.limits().xattr_size_max + 1],
        );
        assert_eq!(fails(result), Errno::TOOBIG);
    });
    if !bed.has(Feature::XattrLimits) {
        return;
    }
    let limits = bed.fs.limits();
    // Names of full length, until the list of them is full, or there is no room for more.
    for count in 2.. {
        let name = format!("user.{count:04}{}", "n".repeat(XATTR_NAME_MAX - 9));
        let result = bed.setxattr(&file, &name, b"");
        let fits_list = count * (XATTR_NAME_MAX + 1) <= limits.xattr_list_max;
        if let Err(error) = result {
            assert_eq!(error.errno(), Errno::NOSPC);
            let has_room = limits.have_room((0..count).map(|_| (XATTR_NAME_MAX, 1)));
            assert!(!(fits_list && has_room), "{count} of them have room");
            assert_eq!(names(bed, &file).len(), count - 1);
            break;
        }
        assert!(fits_list, "the list is full");
    }
}

pub fn every_kind_has_attributes<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let mut nodes = vec![bed.file(&root, "file"), bed.mkdir(&root, "dir"), bed.root()];
    nodes.push(bed.make(&root, "link", NewKind::Symlink(b"file")));
    nodes.push(bed.make(&root, "fifo", NewKind::Fifo));
    for (at, node) in nodes.iter().enumerate() {
        bed.setxattr(node, "user.at", &[at as u8]).expect("set");
    }
    for (at, node) in nodes.iter().enumerate() {
        assert_eq!(bed.fs.getxattr(node, b"user.at"), Ok(vec![at as u8]));
    }
}

pub fn attributes_follow_the_inode<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let file = bed.file(&root, "a");
    bed.setxattr(&file, "user.a", b"kept").expect("set");
    bed.link(&file, &root, "b").expect("linked");
    bed.rename((&root, "a"), (&root, "c"), RenameMode::Replace)
        .expect("moved");
    for name in ["b", "c"] {
        assert_eq!(
            bed.fs.getxattr(&bed.get(&root, name), b"user.a"),
            Ok(b"kept".to_vec())
        );
        bed.unlink(&root, name).expect("removed");
    }
    assert_eq!(bed.fs.getxattr(&file, b"user.a"), Ok(b"kept".to_vec()));
    assert!(names(bed, &bed.file(&root, "a")).is_empty());
}

pub fn attributes_are_set_together<E: Engine>(bed: &Bed<'_, E>) {
    if !bed.has(Feature::AtomicSetattr) {
        return;
    }
    let dir = bed.mkdir(&bed.root(), "dir");
    let also = SetAttr {
        perm: Some(0o571),
        ..SetAttr::default()
    };
    let set = |mode| {
        bed.fs
            .setxattr(&dir, b"system.posix_acl_access", &acl(5), mode, &also)
    };
    bed.unchanged(|| assert_eq!(fails(set(XattrMode::Replace)), Errno::NODATA));
    bed.touches(&[(&dir, "c")], || set(XattrMode::Any).expect("set"));
    assert_eq!(bed.attr(&dir).perm, 0o571);
    assert_eq!(
        bed.fs.getxattr(&dir, b"system.posix_acl_access"),
        Ok(acl(5))
    );
}

pub fn setting_touches_the_right_times<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    for node in [bed.file(&root, "file"), bed.mkdir(&root, "dir")] {
        let long = vec![3; bed.fs.limits().xattr_size_max.min(5000)];
        for value in [b"1".as_slice(), b"2", &long] {
            bed.touches(&[(&node, "c"), (&root, "")], || {
                bed.setxattr(&node, "user.a", value).expect("set");
            });
        }
        bed.touches(&[(&node, ""), (&root, "")], || {
            drop(bed.fs.getxattr(&node, b"user.a"))
        });
        bed.touches(&[(&node, "c"), (&root, "")], || {
            bed.fs.removexattr(&node, b"user.a").expect("removed");
        });
    }
}
