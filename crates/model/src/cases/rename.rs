//! Renames in all modes.

use std::cell::RefCell;

use vfs::{Errno, FileSystem, Kind, NewKind, Place, RenameMode};

use super::{Bed, Engine, Feature, allow, fails, new};
use crate::Model;
use crate::snapshot::{Snapshot, View};

const MODES: [RenameMode; 4] = [
    RenameMode::Replace,
    RenameMode::NoReplace,
    RenameMode::Exchange,
    RenameMode::Whiteout,
];

pub fn a_file_moves<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let dir = bed.mkdir(&root, "dir");
    for mode in [RenameMode::Replace, RenameMode::NoReplace] {
        let file = bed.file_with(&root, "a", b"contents");
        bed.rename((&root, "a"), (&root, "b"), mode).expect("moved");
        bed.rename((&root, "b"), (&dir, "c"), mode).expect("moved");
        assert_eq!(
            (bed.ls(&root), bed.ls(&dir)),
            (vec!["dir".into()], vec!["c".into()])
        );
        assert!(bed.same(&file, &bed.get(&dir, "c")));
        assert_eq!(
            (bed.nlink(&file), bed.contents(&file)),
            (1, b"contents".to_vec())
        );
        bed.unlink(&dir, "c").expect("removed");
    }
}

pub fn a_directory_moves_with_all_below_it<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let (from, to) = (bed.mkdir(&root, "from"), bed.mkdir(&root, "to"));
    let dir = bed.mkdir(&from, "dir");
    bed.file_with(&bed.mkdir(&dir, "sub"), "file", b"deep");
    bed.rename((&from, "dir"), (&to, "moved"), RenameMode::Replace)
        .expect("moved");
    assert!(bed.same(&bed.fs.parent(&dir).expect("it has one"), &to));
    let sub = bed.get(&bed.get(&to, "moved"), "sub");
    assert_eq!(bed.contents(&bed.get(&sub, "file")), b"deep");
    bed.rmdir(&root, "from").expect("it is empty now");
}

pub fn a_target_is_replaced_and_its_inode_lives_on_while_held<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let (moved, old) = (
        bed.file_with(&root, "a", b"new"),
        bed.file_with(&root, "b", b"old"),
    );
    bed.link(&old, &root, "c").expect("linked");
    bed.rename((&root, "a"), (&root, "b"), RenameMode::Replace)
        .expect("moved");
    assert_eq!(bed.ls(&root), ["b", "c"]);
    assert!(bed.same(&moved, &bed.get(&root, "b")));
    assert_eq!(bed.nlink(&old), 1);
    bed.rename((&root, "b"), (&root, "c"), RenameMode::Replace)
        .expect("moved");
    assert_eq!((bed.nlink(&old), bed.contents(&old)), (0, b"old".to_vec()));
    assert_eq!((bed.nlink(&moved), bed.ls(&root)), (1, vec!["c".into()]));
}

pub fn names_of_one_inode_are_left_alone<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let (dir, file) = (bed.mkdir(&root, "dir"), bed.file(&root, "a"));
    bed.link(&file, &root, "b").expect("linked");
    bed.link(&file, &dir, "c").expect("linked");
    bed.unchanged(|| {
        for mode in [
            RenameMode::Replace,
            RenameMode::Exchange,
            RenameMode::Whiteout,
        ] {
            bed.rename((&root, "a"), (&root, "b"), mode)
                .expect("nothing to do");
            bed.rename((&root, "a"), (&dir, "c"), mode)
                .expect("nothing to do");
            bed.rename((&root, "a"), (&root, "a"), mode)
                .expect("nothing to do");
            bed.rename((&root, "dir"), (&root, "dir"), mode)
                .expect("nothing to do");
        }
        let result = bed.rename((&root, "a"), (&root, "b"), RenameMode::NoReplace);
        assert_eq!(fails(result), Errno::EXIST);
    });
}

pub fn a_directory_never_goes_below_itself<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let a = bed.mkdir(&root, "a");
    let b = bed.mkdir(&a, "b");
    let c = bed.mkdir(&b, "c");
    bed.file(&c, "file");
    bed.unchanged(|| {
        for mode in [
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Whiteout,
        ] {
            for below in [&a, &b, &c] {
                let result = bed.rename((&root, "a"), (below, "new"), mode);
                assert_eq!(fails(result), Errno::INVAL);
            }
        }
        let exchange = RenameMode::Exchange;
        assert_eq!(
            fails(bed.rename((&root, "a"), (&b, "c"), exchange)),
            Errno::INVAL
        );
        assert_eq!(
            fails(bed.rename((&root, "a"), (&c, "file"), exchange)),
            Errno::INVAL
        );
        assert_eq!(
            fails(bed.rename((&c, "file"), (&root, "a"), exchange)),
            Errno::INVAL
        );
    });
}

pub fn an_ancestor_is_never_replaced<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let a = bed.mkdir(&root, "a");
    let b = bed.mkdir(&a, "b");
    bed.mkdir(&b, "c");
    bed.file(&b, "file");
    bed.unchanged(|| {
        for name in ["c", "file"] {
            let result = bed.rename((&b, name), (&root, "a"), RenameMode::Replace);
            assert_eq!(fails(result), Errno::NOTEMPTY);
        }
    });
}

pub fn kinds_must_match<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let dir = bed.mkdir(&root, "dir");
    bed.make(&root, "file", NewKind::File);
    bed.make(&root, "link", NewKind::Symlink(b"dir"));
    bed.make(&dir, "fifo", NewKind::Fifo);
    bed.mkdir(&dir, "sub");
    bed.unchanged(|| {
        for mode in [RenameMode::Replace, RenameMode::Whiteout] {
            for (parent, name) in [(&root, "file"), (&root, "link"), (&dir, "fifo")] {
                let result = bed.rename((parent, name), (&dir, "sub"), mode);
                assert_eq!(fails(result), Errno::ISDIR);
                let result = bed.rename((&dir, "sub"), (parent, name), mode);
                assert_eq!(fails(result), Errno::NOTDIR);
            }
        }
    });
}

pub fn a_directory_that_is_replaced_must_be_empty<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let (moved, full) = (bed.mkdir(&root, "moved"), bed.mkdir(&root, "full"));
    bed.file(&moved, "kept");
    bed.file(&full, "file");
    bed.unchanged(|| {
        let result = bed.rename((&root, "moved"), (&root, "full"), RenameMode::Replace);
        assert_eq!(fails(result), Errno::NOTEMPTY);
    });
    bed.unlink(&full, "file").expect("removed");
    bed.rename((&root, "moved"), (&root, "full"), RenameMode::Replace)
        .expect("it is empty");
    assert_eq!(
        (bed.ls(&root), bed.ls(&moved)),
        (vec!["full".into()], vec!["kept".into()])
    );
    assert_eq!((bed.nlink(&full), bed.nlink(&root)), (0, 3));
    assert_eq!(
        fails(bed.fs.create(&full, b"x", &new(NewKind::File))),
        Errno::NOENT
    );
}

pub fn noreplace_refuses_a_target<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    bed.file(&root, "file");
    bed.make(&root, "link", NewKind::Symlink(b"nowhere"));
    bed.mkdir(&root, "dir");
    bed.mkdir(&root, "empty");
    bed.unchanged(|| {
        for name in ["file", "link", "dir"] {
            for target in ["file", "link", "dir", "empty"] {
                let result = bed.rename((&root, name), (&root, target), RenameMode::NoReplace);
                assert_eq!(fails(result), Errno::EXIST);
            }
        }
    });
}

pub fn exchange_swaps_any_two<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let other = bed.mkdir(&root, "other");
    let kinds = [
        NewKind::File,
        NewKind::Dir,
        NewKind::Symlink(b"x"),
        NewKind::Fifo,
    ];
    for (at, left) in kinds.into_iter().enumerate() {
        for right in &kinds[at..] {
            for to in [&root, &other] {
                let (a, b) = (bed.make(&root, "a", left), bed.make(to, "b", *right));
                bed.rename((&root, "a"), (to, "b"), RenameMode::Exchange)
                    .expect("exchanged");
                assert!(bed.same(&a, &bed.get(to, "b")));
                assert!(bed.same(&b, &bed.get(&root, "a")));
                for (node, parent, name) in [(a, to, "b"), (b, &root, "a")] {
                    let is_dir = bed.kind(&node) == Kind::Dir;
                    assert_eq!(bed.nlink(&node), if is_dir { 2 } else { 1 });
                    let removed = if is_dir {
                        bed.rmdir(parent, name)
                    } else {
                        bed.unlink(parent, name)
                    };
                    removed.expect("removed");
                }
                assert_eq!((bed.nlink(&root), bed.nlink(&other)), (3, 2));
            }
        }
    }
}

pub fn exchange_needs_both<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    bed.file(&root, "a");
    bed.unchanged(|| {
        for (name, other) in [("a", "b"), ("b", "a"), ("b", "c")] {
            let result = bed.rename((&root, name), (&root, other), RenameMode::Exchange);
            assert_eq!(fails(result), Errno::NOENT);
        }
    });
}

pub fn exchanged_directories_know_their_new_parents<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let (left, right) = (bed.mkdir(&root, "left"), bed.mkdir(&root, "right"));
    let (a, b) = (bed.mkdir(&left, "a"), bed.mkdir(&right, "b"));
    bed.file(&a, "in a");
    bed.file(&b, "in b");
    bed.rename((&left, "a"), (&right, "b"), RenameMode::Exchange)
        .expect("exchanged");
    assert!(bed.same(&bed.fs.parent(&a).expect("it has one"), &right));
    assert!(bed.same(&bed.fs.parent(&b).expect("it has one"), &left));
    assert_eq!(bed.ls(&bed.get(&left, "a")), ["in b"]);
    assert_eq!(bed.ls(&bed.get(&right, "b")), ["in a"]);
}

pub fn whiteout_leaves_a_device<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let dir = bed.mkdir(&root, "dir");
    for (kind, target) in [
        (NewKind::File, None),
        (NewKind::File, Some(NewKind::Fifo)),
        (NewKind::Dir, None),
    ] {
        for to in [&root, &dir] {
            let moved = bed.make(&root, "a", kind);
            if let Some(target) = target {
                bed.make(to, "b", target);
            }
            bed.rename((&root, "a"), (to, "b"), RenameMode::Whiteout)
                .expect("moved");
            assert!(bed.same(&moved, &bed.get(to, "b")));
            let left = bed.attr(&bed.get(&root, "a"));
            assert_eq!((left.kind, left.rdev, left.nlink), (Kind::CharDev, 0, 1));
            assert_eq!((left.perm, left.size), (0, 0));
            bed.unlink(&root, "a").expect("removed");
            if kind == NewKind::Dir {
                bed.rmdir(to, "b")
            } else {
                bed.unlink(to, "b")
            }
            .expect("removed");
            assert_eq!((bed.nlink(&root), bed.nlink(&dir)), (3, 2));
        }
    }
}

pub fn a_missing_source_is_not_found<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let (dir, file) = (bed.mkdir(&root, "dir"), bed.file(&root, "file"));
    bed.unchanged(|| {
        for mode in MODES {
            for target in ["missing", "other", "file", "dir"] {
                let result = bed.rename((&dir, "missing"), (&root, target), mode);
                assert_eq!(fails(result), Errno::NOENT);
            }
            assert_eq!(
                fails(bed.rename((&file, "x"), (&root, "y"), mode)),
                Errno::NOTDIR
            );
            assert_eq!(
                fails(bed.rename((&root, "file"), (&file, "y"), mode)),
                Errno::NOTDIR
            );
        }
    });
}

pub fn a_removed_directory_takes_nothing<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let gone = bed.mkdir(&root, "gone");
    bed.file(&root, "file");
    bed.mkdir(&root, "dir");
    bed.rmdir(&root, "gone").expect("it is empty");
    bed.unchanged(|| {
        for mode in MODES {
            for name in ["file", "dir"] {
                assert_eq!(
                    fails(bed.rename((&root, name), (&gone, "x"), mode)),
                    Errno::NOENT
                );
                assert_eq!(
                    fails(bed.rename((&gone, "x"), (&root, name), mode)),
                    Errno::NOENT
                );
            }
        }
    });
}

pub fn a_vetoed_rename_changes_nothing<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let dir = bed.mkdir(&root, "dir");
    let (a, b) = (bed.file(&root, "a"), bed.file(&dir, "b"));
    for ino in [&a, &b].map(|node| bed.fs.ino(node)) {
        let veto = &|victim: &vfs::Rights| {
            if victim.ino == ino {
                Err(Errno::PERM.into())
            } else {
                Ok(())
            }
        };
        bed.unchanged(|| {
            for mode in [
                RenameMode::Replace,
                RenameMode::Exchange,
                RenameMode::Whiteout,
            ] {
                let result =
                    bed.fs
                        .rename(Place::new(&root, b"a"), Place::new(&dir, b"b"), mode, veto);
                assert_eq!(fails(result), Errno::PERM);
            }
        });
    }
    bed.fs
        .rename(
            Place::new(&root, b"a"),
            Place::new(&dir, b"b"),
            RenameMode::Replace,
            &allow,
        )
        .expect("nobody objects");
}

pub fn a_veto_is_asked_about_both<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let inos = [
        bed.fs.ino(&bed.file(&root, "a")),
        bed.fs.ino(&bed.file(&root, "b")),
    ];
    for mode in [RenameMode::Exchange, RenameMode::Replace] {
        let asked = RefCell::new(Vec::new());
        let veto = &|victim: &vfs::Rights| {
            asked.borrow_mut().push(victim.ino);
            Ok(())
        };
        bed.fs
            .rename(Place::new(&root, b"a"), Place::new(&root, b"b"), mode, veto)
            .expect("nobody objects");
        let mut asked = asked.into_inner();
        asked.sort_unstable();
        let mut both = inos;
        both.sort_unstable();
        assert_eq!(asked, both);
    }
}

pub fn link_counts_of_parents_follow<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let (left, right) = (bed.mkdir(&root, "left"), bed.mkdir(&root, "right"));
    let counts = || (bed.nlink(&left), bed.nlink(&right));
    bed.mkdir(&left, "dir");
    bed.file(&right, "file");
    bed.mkdir(&right, "empty");
    assert_eq!(counts(), (3, 3));
    bed.rename((&left, "dir"), (&right, "dir"), RenameMode::Replace)
        .expect("moved");
    assert_eq!(counts(), (2, 4));
    bed.rename((&right, "dir"), (&right, "empty"), RenameMode::Replace)
        .expect("replaced");
    assert_eq!(counts(), (2, 3));
    bed.mkdir(&left, "dir");
    bed.rename((&left, "dir"), (&right, "file"), RenameMode::Exchange)
        .expect("exchanged");
    assert_eq!(counts(), (2, 4));
    bed.rename((&right, "file"), (&right, "empty"), RenameMode::Exchange)
        .expect("exchanged");
    assert_eq!(counts(), (2, 4));
    bed.rename((&right, "file"), (&left, "back"), RenameMode::Whiteout)
        .expect("moved");
    assert_eq!(counts(), (3, 3));
}

pub fn renaming_touches_the_right_times<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let (from, to) = (bed.mkdir(&root, "from"), bed.mkdir(&root, "to"));
    for kind in [NewKind::File, NewKind::Dir] {
        for mode in [RenameMode::Replace, RenameMode::Exchange] {
            let (a, b) = (bed.make(&from, "a", kind), bed.make(&to, "b", kind));
            let expected = [
                (&root, ""),
                (&from, "mc"),
                (&to, "mc"),
                (&a, "c"),
                (&b, "c"),
            ];
            bed.touches(&expected, || {
                bed.rename((&from, "a"), (&to, "b"), mode).expect("renamed");
            });
            bed.touches(&[(&root, ""), (&from, ""), (&to, "mc"), (&a, "c")], || {
                bed.rename((&to, "b"), (&to, "c"), RenameMode::NoReplace)
                    .expect("renamed");
            });
            let remove = |dir, name| match kind {
                NewKind::Dir => bed.rmdir(dir, name),
                _ => bed.unlink(dir, name),
            };
            remove(&to, "c").expect("removed");
            if mode == RenameMode::Exchange {
                remove(&from, "a").expect("removed");
            }
        }
    }
}

/// Make something of the given sort under `name`; `other` is the name whose inode "same" shares.
fn furnish<F: FileSystem>(fs: &F, dir: &F::Node, name: &[u8], what: &str, other: &F::Node) {
    let make = |kind| fs.create(dir, name, &new(kind)).expect("made");
    match what {
        "nothing" => {}
        "file" => drop(make(NewKind::File)),
        "symlink" => drop(make(NewKind::Symlink(b"to"))),
        "device" => drop(make(NewKind::CharDev(0x0103))),
        "empty directory" => drop(make(NewKind::Dir)),
        "full directory" => {
            let sub = make(NewKind::Dir);
            fs.create(&sub, b"sub", &new(NewKind::Dir)).expect("made");
        }
        "same" => drop(fs.link(other, dir, name)),
        _ => unreachable!("unknown sort {what:?}"),
    }
}

/// One row of the matrix on one file system, in its own directory; the outcome as text.
fn combine<F: FileSystem>(
    fs: &F,
    index: usize,
    (source, target): (&str, &str),
    mode: RenameMode,
    across: bool,
) -> String {
    let root = fs.root();
    let mkdir = |dir: &F::Node, name: &[u8]| fs.create(dir, name, &new(NewKind::Dir));
    let base = mkdir(&root, format!("{index:03}").as_bytes()).expect("made");
    let from = mkdir(&base, b"from").expect("made");
    let to = mkdir(&base, b"to").expect("made");
    let target_dir = if across { &to } else { &from };
    furnish(fs, &from, b"source", source, &from);
    let other = fs.lookup(&from, b"source").unwrap_or_else(|_| from.clone());
    furnish(fs, target_dir, b"target", target, &other);
    let result = fs.rename(
        Place::new(&from, b"source"),
        Place::new(target_dir, b"target"),
        mode,
        &allow,
    );
    format!("{result:?}")
}

pub fn every_combination_is_as_the_model_has_it<E: Engine>(bed: &Bed<'_, E>) {
    let clock = &bed.clock;
    let model = Model::on(clock.clone());
    let sources = [
        "nothing",
        "file",
        "symlink",
        "device",
        "empty directory",
        "full directory",
    ];
    let targets = [
        "nothing",
        "file",
        "symlink",
        "device",
        "empty directory",
        "full directory",
        "same",
    ];
    let mut index = 0;
    for source in sources {
        for target in targets {
            for mode in MODES {
                for across in [false, true] {
                    bed.engine.tick(clock);
                    let row = (source, target);
                    let is = combine(&bed.fs, index, row, mode, across);
                    let should = combine(&model, index, row, mode, across);
                    assert_eq!(
                        is, should,
                        "{source} onto {target}, {mode:?}, across: {across}"
                    );
                    index += 1;
                }
            }
        }
    }
    let exact = bed.has(Feature::Clock);
    let view = View {
        times: exact,
        atime: exact,
    };
    let is = Snapshot::of(&bed.fs, &bed.root(), view).expect("the tree can be read");
    let should = Snapshot::of(&model, &model.root(), view).expect("the tree can be read");
    if let Some(difference) = is.difference(&should) {
        panic!("{difference}");
    }
}

pub fn long_and_short_names_replace_each_other<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let names: Vec<String> = [1, 31, 32, 33, 64, 255].map(|len| "n".repeat(len)).to_vec();
    for from in &names {
        for to in names.iter().filter(|to| *to != from) {
            for occupied in [false, true] {
                let file = bed.file(&root, from);
                if occupied {
                    bed.file(&root, to);
                }
                bed.rename((&root, from), (&root, to), RenameMode::Replace)
                    .expect("renamed");
                assert_eq!(bed.ls(&root), [to.as_str()]);
                assert!(bed.same(&file, &bed.get(&root, to)));
                bed.unlink(&root, to).expect("removed");
            }
        }
    }
}
