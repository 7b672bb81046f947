//! Changes, judged by the cases that every engine must pass, by the reference file system, and by
//! e2fsck after each unmount.

mod common;

use std::sync::Arc;

use block::{Buffer, Disk, Memory};
use common::{Image, format_options, memory, mount_at};
use ffs::{Ffs, FormatOptions, format};
use model::Engine;
use model::cases::Bed;
use model::differential::check_shared;
use vfs::{Clock, FileSystem, ManualClock, NewKind, NewNode, SetAttr};

/// ext2 in memory, as the judges mount it.
#[derive(Clone)]
struct Ext2 {
    len: u64,
    options: FormatOptions,
}

impl Default for Ext2 {
    fn default() -> Ext2 {
        Ext2 {
            len: 16 << 20,
            options: FormatOptions {
                block_size: 1024,
                bytes_per_inode: 1024,
                ..format_options()
            },
        }
    }
}

const LOST: &[u8] = b"lost+found";

impl Engine for Ext2 {
    type Fs = Ffs;

    fn make(&self, clock: Arc<dyn Clock>) -> Ffs {
        let device = Arc::new(Memory::new(self.len));
        let options = FormatOptions {
            time: clock.now(),
            ..self.options.clone()
        };
        format(&Disk::new(device.clone()), &options).expect("formatted");
        let fs = mount_at(Disk::new(device), false, clock).expect("it mounts");
        // The reference has no such directory.
        fs.rmdir(&fs.root(), LOST, &|_| Ok(()))
            .expect("it is empty");
        fs
    }

    fn remount(&self, fs: Ffs) -> Ffs {
        let root = fs.attr(&fs.root());
        let lost = NewNode {
            kind: NewKind::Dir,
            perm: 0o700,
            uid: 0,
            gid: 0,
            xattrs: &[],
        };
        // e2fsck wants it.
        let is_there = fs.create(&fs.root(), LOST, &lost).is_ok();
        fs.unmount().expect("unmounted");
        let (bytes, clock) = (contents(fs.disk()), fs.clock());
        drop(fs);
        if is_there && common::has_e2fsprogs() {
            let image = Image::new(bytes.len() as u64);
            std::fs::write(&image.path, &bytes).expect("written");
            image.assert_clean();
        }
        let fs = mount_at(memory(bytes), false, clock).expect("it is clean");
        if is_there {
            fs.rmdir(&fs.root(), LOST, &|_| Ok(()))
                .expect("it is empty");
            let times = SetAttr {
                mtime: Some(root.mtime),
                ctime: Some(root.ctime),
                ..SetAttr::default()
            };
            fs.setattr(&fs.root(), &times).expect("times");
        }
        fs
    }
}

fn contents(disk: &Disk) -> Vec<u8> {
    let into = vec![Buffer::zeroed(disk.len() as usize)];
    disk.read(0, into).expect("read")[0].to_vec()
}

/// Cases that ext2 cannot pass, and why.
const EXCEPTIONS: &[(&str, &[&str])] = &[
    (
        "a file ends before 2 TiB or earlier",
        &[
            "offsets_of_16_tib_work",
            "punching_beyond_the_end_is_harmless",
        ],
    ),
    (
        "the format has no blocks that are reserved and read as zeros",
        &[
            "allocating_can_keep_the_size",
            "allocating_keeps_what_is_there",
            "what_was_reserved_beyond_the_end_reads_zeros_later",
            "seek_finds_data_and_holes",
            "what_was_cut_off_never_shows_again",
            "allocating_reads_zeros_and_extends",
            "allocated_space_is_counted_and_given_back",
            "zeroing_reads_zeros",
            "zeroing_can_extend",
            "bad_ranges_are_refused",
            "range_operations_touch_the_right_times",
        ],
    ),
    (
        "all extended attributes have to fit a block, and names have one of four prefixes",
        &[
            "a_new_inode_is_born_with_extended_attributes",
            "attributes_are_set_together",
            "limits_are_kept",
            "many_names_are_kept_apart",
            "setting_touches_the_right_times",
            "space_comes_back_after_removal",
        ],
    ),
];

type Case = for<'e> fn(&Bed<'e, Ext2>);

macro_rules! listed {
    ($engine:expr; $($module:ident { $($case:ident)* })*) => {
        vec![$($((stringify!($case), model::cases::$module::$case as Case)),*),*]
    };
}

#[test]
fn the_cases_pass_that_ext2_can_pass() {
    let cases: Vec<(&str, Case)> = model::with_cases!([listed], ());
    let excepted = |name: &str| EXCEPTIONS.iter().any(|row| row.1.contains(&name));
    let (mut run, mut failed) = (0, Vec::new());
    for (name, case) in cases {
        if excepted(name) {
            continue;
        }
        run += 1;
        let passed = std::panic::catch_unwind(|| model::cases::run(&Ext2::default(), case));
        if passed.is_err() {
            failed.push(name);
        }
    }
    assert!(run > 100 && failed.is_empty(), "{failed:?}");
}

#[test]
fn what_threads_do_at_once_is_what_some_order_of_it_does() {
    check_shared(0..100, &Ext2::default());
}

#[test]
fn what_is_full_says_so_and_comes_back() {
    let engine = Ext2 {
        len: 2 << 20,
        ..Ext2::default()
    };
    let fs = engine.make(Arc::new(ManualClock::new(common::TIME)));
    let free = fs.statfs().free;
    let new = NewNode {
        kind: NewKind::File,
        perm: 0o644,
        uid: 0,
        gid: 0,
        xattrs: &[],
    };
    for round in 0..3 {
        let file = fs.create(&fs.root(), b"file", &new).expect("made");
        let mut at = 0;
        let error = loop {
            match fs.write(&file, at, &[round; 5000]) {
                Ok(written) => at += written as u64,
                Err(error) => break error,
            }
        };
        assert_eq!(error, vfs::Errno::NOSPC.into());
        assert_eq!(fs.statfs().free, 0);
        fs.unlink(&fs.root(), b"file", &|_| Ok(()))
            .expect("removed");
        assert_eq!(fs.statfs().free, 0, "it is still open");
        drop(file);
        assert_eq!(fs.statfs().free, free);
    }
    drop(engine.remount(fs));
}
