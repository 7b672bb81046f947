//! What `format` makes, judged by e2fsck, and compared with what mke2fs makes.

mod common;
mod formatted;

use common::{Image, UUID_TEXT, format_options};
use ffs::{FormatError, FormatOptions, format};
use vfs::{FileSystem, Kind};

const MIB: u64 = 1 << 20;

/// Lengths and options, each of which is a case.
fn cases() -> Vec<(u64, FormatOptions)> {
    let mut cases = Vec::new();
    let mut add = |len, block_size, inode_size, bytes_per_inode, journal| {
        let options = FormatOptions {
            block_size,
            inode_size,
            bytes_per_inode,
            journal,
            ..format_options()
        };
        cases.push((len, options));
    };
    add(MIB, 1024, 128, 8192, false);
    add(8 * MIB, 1024, 256, 4096, true);
    // A last group that is too small, one that is just large enough, and odd ends.
    add(8 * MIB + 100 * 1024, 1024, 256, 8192, false);
    add(24 * MIB + 900 * 1024, 1024, 256, 8192, false);
    add(200 * MIB + 1536, 1024, 128, 4096, true);
    add(100 * MIB, 2048, 256, 4096, true);
    add(2 * MIB, 4096, 256, 4096, false);
    add(64 * MIB, 4096, 256, 16384, true);
    add(1024 * MIB, 4096, 512, 4096, false);
    add(9 * 1024 * MIB + 4096 * 77, 4096, 256, 16384, true);
    cases
}

/// Lets mke2fs do the same.
fn by_mke2fs(len: u64, options: &FormatOptions) -> Image {
    let number = |number: u32| number.to_string();
    Image::mke2fs(
        len,
        &[
            "-t",
            if options.journal { "ext3" } else { "ext2" },
            "-O",
            "^dir_index,resize_inode",
            "-b",
            &number(options.block_size),
            "-I",
            &number(options.inode_size),
            "-i",
            &number(options.bytes_per_inode),
            "-L",
            &options.label,
            "-U",
            UUID_TEXT,
            "-E",
            &format!("hash_seed={UUID_TEXT},root_owner=0:0"),
        ],
    )
}

/// The lines of dumpe2fs that have to be the same. Where a journal lies is not among them, nor so
/// what is free; the sums are.
fn compared(image: &Image, with_journal: bool) -> Vec<String> {
    let mut lines = image.dump();
    if with_journal {
        lines.retain(|line| {
            let line = line.trim_start();
            !line.starts_with("Free blocks: ") || line.split(':').nth(1).is_none_or(is_sum)
        });
        lines.retain(|line| !line.contains(" free blocks, "));
    }
    lines
}

fn is_sum(text: &str) -> bool {
    text.trim().parse::<u64>().is_ok()
}

#[test]
fn a_new_file_system_is_clean_and_as_mke2fs_makes_it() {
    needs_e2fsprogs!();
    for (len, options) in cases() {
        let image = Image::new(len);
        format(&image.disk(), &options).expect("formatted");
        image.assert_clean();
        let reference = by_mke2fs(len, &options);
        let (ours, theirs) = (
            compared(&image, options.journal),
            compared(&reference, options.journal),
        );
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours, theirs, "{len} bytes, {options:?}");
        }
        assert_eq!(ours.len(), theirs.len());
    }
}

#[test]
fn what_was_on_the_disk_before_is_gone() {
    needs_e2fsprogs!();
    for journal in [false, true] {
        let len = 16 * MIB;
        let image = Image::new(len);
        std::fs::write(&image.path, vec![0xA5; len as usize]).expect("written");
        let options = FormatOptions {
            zeroed: false,
            journal,
            ..format_options()
        };
        format(&image.disk(), &options).expect("formatted");
        image.assert_clean();
    }
}

#[test]
fn a_new_file_system_can_be_mounted_and_has_lost_and_found() {
    for (len, options) in cases() {
        let image = Image::new(len);
        format(&image.disk(), &options).expect("formatted");
        let fs = image.mount();
        let mut names = Vec::new();
        fs.readdir(&fs.root(), 0, &mut |entry| {
            names.push((entry.name.to_vec(), entry.kind));
            true
        })
        .expect("listed");
        assert_eq!(names, [(b"lost+found".to_vec(), Kind::Dir)]);
        let lost = fs.lookup(&fs.root(), b"lost+found").expect("found");
        let attr = fs.attr(&lost);
        assert_eq!((attr.ino, attr.nlink, attr.perm), (11, 2, 0o700));
        assert_eq!(fs.ino(&fs.parent(&lost).expect("a parent")), 2);
    }
}

/// Numbers of blocks have 32 bits, so blocks of 4 KiB reach up to 16 TiB.
#[test]
fn a_disk_that_is_too_large_is_refused_with_the_limit() {
    let max = (16 << 40) - 4096;
    assert_eq!(ffs::check_len(max, &format_options()), Ok(()));
    let len = max + 4096;
    let refused = ffs::check_len(len, &format_options());
    assert_eq!(refused, Err(FormatError::Large { len, max }));
}

#[test]
fn a_disk_that_is_too_small_is_refused_and_the_smallest_is_clean() {
    needs_e2fsprogs!();
    let mut smallest = None;
    for kib in 1..200 {
        let image = Image::new(kib * 1024);
        let options = FormatOptions {
            block_size: 1024,
            ..format_options()
        };
        match format(&image.disk(), &options) {
            Ok(()) => {
                image.assert_clean();
                smallest = smallest.or(Some(kib));
            }
            Err(FormatError::Size(_, "small")) => assert_eq!(smallest, None, "{kib} KiB"),
            Err(error) => panic!("{kib} KiB: {error}"),
        }
    }
    assert!(smallest.is_some_and(|kib| kib < 100), "{smallest:?}");
}

#[test]
fn a_crash_while_formatting_leaves_the_old_one_or_nothing_or_the_new_one() {
    formatted::assert_each_crash_leaves_one();
}
