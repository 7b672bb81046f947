//! Ranges: reserving, punching, zeroing, finding and copying.

use vfs::{At, Capabilities, Errno, Fallocate, FileSystem, NewKind, SeekFor};

use super::data::pattern;
use super::{Bed, Engine, Feature, NodeOf, fails};

const ALLOCATE: Fallocate = Fallocate::Allocate { keep_size: false };
const RESERVE: Fallocate = Fallocate::Allocate { keep_size: true };
const ZERO: Fallocate = Fallocate::Zero { keep_size: false };
const MODES: [Fallocate; 5] = [
    ALLOCATE,
    RESERVE,
    Fallocate::Punch,
    ZERO,
    Fallocate::Zero { keep_size: true },
];

/// Those that the engine has.
fn modes<E: Engine>(bed: &Bed<'_, E>) -> impl Iterator<Item = Fallocate> {
    let modes = MODES.into_iter();
    modes.filter(|mode| bed.can(Capabilities::of_fallocate(*mode)))
}

/// Ranges of a file of 20,000 bytes: within a block, across, whole blocks, and beyond the end.
const RANGES: [(usize, usize); 10] = [
    (0, 1),
    (10, 100),
    (0, 4096),
    (4096, 8192),
    (4095, 2),
    (100, 4096),
    (4000, 9000),
    (16_384, 3616),
    (19_000, 5000),
    (0, 20_000),
];

pub fn allocating_reads_zeros_and_extends<E: Engine>(bed: &Bed<'_, E>) {
    if !bed.can(Capabilities::ALLOCATE) {
        return;
    }
    let file = bed.file_with(&bed.root(), "file", b"abc");
    bed.fs
        .fallocate(&file, ALLOCATE, 10_000, 10_000)
        .expect("allocated");
    let mut expected = b"abc".to_vec();
    expected.resize(20_000, 0);
    assert!(bed.contents(&file) == expected);
    bed.fs
        .fallocate(&file, ALLOCATE, 0, 100)
        .expect("allocated");
    assert_eq!(bed.size(&file), 20_000);
}

pub fn allocating_can_keep_the_size<E: Engine>(bed: &Bed<'_, E>) {
    if !bed.can(Capabilities::ALLOCATE) {
        return;
    }
    let file = bed.file_with(&bed.root(), "file", b"abc");
    bed.fs
        .fallocate(&file, RESERVE, 0, 100_000)
        .expect("allocated");
    assert_eq!(bed.contents(&file), b"abc");
    bed.fs
        .fallocate(&file, RESERVE, 200_000, 5000)
        .expect("allocated");
    assert_eq!(bed.contents(&file), b"abc");
}

pub fn allocated_space_is_counted_and_given_back<E: Engine>(bed: &Bed<'_, E>) {
    if !bed.can(Capabilities::ALLOCATE) {
        return;
    }
    let file = bed.file(&bed.root(), "file");
    bed.fs
        .fallocate(&file, ALLOCATE, 0, 1 << 20)
        .expect("allocated");
    assert!(bed.attr(&file).blocks >= (1 << 20) / 512);
    bed.fs
        .fallocate(&file, Fallocate::Punch, 0, 1 << 20)
        .expect("punched");
    assert!(bed.attr(&file).blocks < (1 << 19) / 512);
    bed.fs
        .fallocate(&file, RESERVE, 1 << 20, 1 << 20)
        .expect("allocated");
    assert!(bed.attr(&file).blocks >= (1 << 20) / 512);
    bed.truncate(&file, 0);
    assert_eq!(bed.attr(&file).blocks, 0);
}

pub fn allocating_keeps_what_is_there<E: Engine>(bed: &Bed<'_, E>) {
    if !bed.can(Capabilities::ALLOCATE) {
        return;
    }
    let data = pattern(20_000, 1);
    let file = bed.file_with(&bed.root(), "file", &data);
    for (offset, len) in RANGES {
        bed.fs
            .fallocate(&file, RESERVE, offset as u64, len as u64)
            .expect("allocated");
    }
    assert!(bed.contents(&file) == data);
}

/// `mode` makes every range of a full file read as zeros and keeps all else.
fn clears<E: Engine>(bed: &Bed<'_, E>, mode: Fallocate) {
    if !bed.can(Capabilities::of_fallocate(mode)) {
        return;
    }
    for (offset, len) in RANGES {
        let mut expected = pattern(20_000, 1);
        let file = bed.file_with(&bed.root(), "file", &expected);
        bed.fs
            .fallocate(&file, mode, offset as u64, len as u64)
            .expect("done");
        let end = expected.len().min(offset + len);
        expected[offset..end].fill(0);
        if mode == ZERO {
            expected.resize(expected.len().max(offset + len), 0);
        }
        assert!(
            bed.contents(&file) == expected,
            "{len} bytes at {offset}, {mode:?}"
        );
        let size = expected.len() + 10_000;
        expected.resize(size, 0);
        bed.truncate(&file, size as u64);
        assert!(
            bed.contents(&file) == expected,
            "extended after {len} bytes at {offset}"
        );
        bed.unlink(&bed.root(), "file").expect("removed");
    }
}

pub fn punching_reads_zeros_and_keeps_the_size<E: Engine>(bed: &Bed<'_, E>) {
    clears(bed, Fallocate::Punch);
}

pub fn punching_beyond_the_end_is_harmless<E: Engine>(bed: &Bed<'_, E>) {
    let data = pattern(5000, 1);
    let file = bed.file_with(&bed.root(), "file", &data);
    let far = bed.fs.limits().file_max.min(1 << 40);
    for (offset, len) in [(5000, 1), (4999 + 4096, 100), (100_000, far - 100_000)] {
        bed.fs
            .fallocate(&file, Fallocate::Punch, offset, len)
            .expect("nothing there");
    }
    assert!(bed.contents(&file) == data);
}

pub fn zeroing_reads_zeros<E: Engine>(bed: &Bed<'_, E>) {
    clears(bed, Fallocate::Zero { keep_size: true });
}

pub fn zeroing_can_extend<E: Engine>(bed: &Bed<'_, E>) {
    clears(bed, ZERO);
}

pub fn bad_ranges_are_refused<E: Engine>(bed: &Bed<'_, E>) {
    let file = bed.file_with(&bed.root(), "file", b"abc");
    bed.unchanged(|| {
        for mode in modes(bed) {
            assert_eq!(fails(bed.fs.fallocate(&file, mode, 0, 0)), Errno::INVAL);
            for (offset, len) in [(i64::MAX as u64, 1), (1, i64::MAX as u64)] {
                assert_eq!(
                    fails(bed.fs.fallocate(&file, mode, offset, len)),
                    Errno::FBIG
                );
            }
        }
    });
}

pub fn ranges_belong_to_regular_files_only<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let file = bed.file_with(&root, "file", b"abc");
    let refused = |node: &NodeOf<E>, errno| {
        bed.unchanged(|| {
            for mode in modes(bed) {
                assert_eq!(fails(bed.fs.fallocate(node, mode, 0, 1)), errno);
            }
            assert_eq!(fails(bed.fs.seek(node, 0, SeekFor::Data)), errno);
            assert_eq!(
                fails(bed.fs.copy_range(At::new(node, 0), At::new(&file, 0), 1)),
                errno
            );
            assert_eq!(
                fails(bed.fs.copy_range(At::new(&file, 0), At::new(node, 0), 1)),
                errno
            );
        });
    };
    refused(&root, Errno::ISDIR);
    refused(&bed.make(&root, "fifo", NewKind::Fifo), Errno::INVAL);
    refused(
        &bed.make(&root, "link", NewKind::Symlink(b"file")),
        Errno::INVAL,
    );
}

pub fn seek_finds_data_and_holes<E: Engine>(bed: &Bed<'_, E>) {
    let file = bed.file(&bed.root(), "file");
    bed.write(&file, 8192, &pattern(4096, 1));
    // To the end of a block, whatever its size.
    bed.write(&file, 5 * 4096, &pattern(4090, 2));
    bed.truncate(&file, 100 * 4096);
    let seek = |offset, what| {
        bed.fs
            .seek(&file, offset, what)
            .map_err(|error| error.errno())
    };
    assert_eq!(seek(0, SeekFor::Data), Ok(8192));
    assert_eq!(seek(8192, SeekFor::Data), Ok(8192));
    assert_eq!(seek(9000, SeekFor::Data), Ok(9000));
    assert_eq!(seek(12_288, SeekFor::Data), Ok(5 * 4096));
    assert_eq!(seek(6 * 4096, SeekFor::Data), Err(Errno::NXIO));
    assert_eq!(seek(0, SeekFor::Hole), Ok(0));
    assert_eq!(seek(100, SeekFor::Hole), Ok(100));
    assert_eq!(seek(8192, SeekFor::Hole), Ok(12_288));
    assert_eq!(seek(5 * 4096 + 10, SeekFor::Hole), Ok(6 * 4096));
    bed.fs
        .fallocate(&file, Fallocate::Punch, 8192, 4096)
        .expect("punched");
    assert_eq!(seek(0, SeekFor::Data), Ok(5 * 4096));
    bed.truncate(&file, 5 * 4096 + 50);
    assert_eq!(seek(5 * 4096, SeekFor::Hole), Ok(5 * 4096 + 50));
}

pub fn seek_beyond_the_end_is_refused<E: Engine>(bed: &Bed<'_, E>) {
    let file = bed.file_with(&bed.root(), "file", &[1; 100]);
    for what in [SeekFor::Data, SeekFor::Hole] {
        for offset in [100, 101, 4096, 1 << 40] {
            assert_eq!(fails(bed.fs.seek(&file, offset, what)), Errno::NXIO);
        }
    }
    assert_eq!(bed.fs.seek(&file, 99, SeekFor::Data), Ok(99));
    assert_eq!(bed.fs.seek(&file, 99, SeekFor::Hole), Ok(100));
    bed.truncate(&file, 0);
    assert_eq!(fails(bed.fs.seek(&file, 0, SeekFor::Data)), Errno::NXIO);
    assert_eq!(fails(bed.fs.seek(&file, 0, SeekFor::Hole)), Errno::NXIO);
}

pub fn seek_never_skips_data<E: Engine>(bed: &Bed<'_, E>) {
    let file = bed.file(&bed.root(), "file");
    let blocks: Vec<u64> = (0..40).map(|at| at * at * 3 + at % 2).collect();
    for &block in &blocks {
        bed.write(&file, block * 4096 + 17, b"x");
    }
    let mut at = 0;
    for &block in &blocks {
        let found = bed
            .fs
            .seek(&file, at, SeekFor::Data)
            .expect("there is data");
        assert!(
            found <= block * 4096 + 17,
            "data at block {block} was skipped"
        );
        at = (block + 1) * 4096;
    }
}

pub fn what_was_reserved_beyond_the_end_reads_zeros_later<E: Engine>(bed: &Bed<'_, E>) {
    if !bed.can(Capabilities::ALLOCATE) {
        return;
    }
    let file = bed.file_with(&bed.root(), "file", &pattern(3 * 4096, 1));
    bed.truncate(&file, 100);
    bed.fs
        .fallocate(&file, RESERVE, 0, 8 * 4096)
        .expect("allocated");
    bed.truncate(&file, 5 * 4096);
    let mut expected = pattern(100, 1);
    expected.resize(5 * 4096, 0);
    assert!(bed.contents(&file) == expected);
    bed.write(&file, 7 * 4096, b"x");
    expected.resize(7 * 4096, 0);
    expected.push(b'x');
    assert!(bed.contents(&file) == expected);
}

pub fn copying_within_a_file<E: Engine>(bed: &Bed<'_, E>) {
    let mut expected = pattern(30_000, 1);
    let file = bed.file_with(&bed.root(), "file", &expected);
    for (from, to, len) in [
        (0, 10_000, 10_000),
        (20_000, 7, 5000),
        (5000, 29_000, 4096),
        (1, 0, 1),
    ] {
        let copied = bed
            .fs
            .copy_range(At::new(&file, from), At::new(&file, to), len);
        assert_eq!(copied, Ok(len));
        let (from, to, len) = (from as usize, to as usize, len as usize);
        expected.resize(expected.len().max(to + len), 0);
        expected.copy_within(from..from + len, to);
        assert!(
            bed.contents(&file) == expected,
            "{len} bytes from {from} to {to}"
        );
    }
}

pub fn copying_between_files<E: Engine>(bed: &Bed<'_, E>) {
    let data = pattern(30_000, 1);
    let from = bed.file_with(&bed.root(), "from", &data);
    for (at, offset, len) in [
        (0, 0, 30_000),
        (100, 5000, 9000),
        (4096, 4096, 8192),
        (1, 2, 3),
    ] {
        let to = bed.file_with(&bed.root(), "to", &pattern(1000, 2));
        assert_eq!(
            bed.fs
                .copy_range(At::new(&from, at), At::new(&to, offset), len),
            Ok(len.min(30_000 - at))
        );
        let mut expected = pattern(1000, 2);
        let (at, offset, len) = (at as usize, offset as usize, len as usize);
        expected.resize(1000.max(offset + len), 0);
        expected[offset..offset + len].copy_from_slice(&data[at..at + len]);
        assert!(
            bed.contents(&to) == expected,
            "{len} bytes from {at} to {offset}"
        );
        bed.unlink(&bed.root(), "to").expect("removed");
    }
    assert!(bed.contents(&from) == data);
}

pub fn copying_overlapping_ranges_is_refused<E: Engine>(bed: &Bed<'_, E>) {
    let file = bed.file_with(&bed.root(), "file", &pattern(10_000, 1));
    bed.unchanged(|| {
        for (from, to, len) in [(0, 0, 1), (0, 5, 10), (5, 0, 10), (0, 4096, 5000)] {
            assert_eq!(
                fails(
                    bed.fs
                        .copy_range(At::new(&file, from), At::new(&file, to), len)
                ),
                Errno::INVAL
            );
        }
    });
    assert_eq!(
        bed.fs.copy_range(At::new(&file, 0), At::new(&file, 10), 10),
        Ok(10)
    );
    assert_eq!(
        bed.fs.copy_range(At::new(&file, 10), At::new(&file, 0), 10),
        Ok(10)
    );
}

pub fn copying_stops_at_the_end<E: Engine>(bed: &Bed<'_, E>) {
    let from = bed.file_with(&bed.root(), "from", &pattern(5000, 1));
    let to = bed.file(&bed.root(), "to");
    assert_eq!(
        bed.fs
            .copy_range(At::new(&from, 4000), At::new(&to, 0), 1 << 30),
        Ok(1000)
    );
    assert_eq!(bed.size(&to), 1000);
    bed.unchanged(|| {
        for offset in [5000, 5001, 1 << 40] {
            assert_eq!(
                bed.fs
                    .copy_range(At::new(&from, offset), At::new(&to, 0), 10),
                Ok(0)
            );
        }
        assert_eq!(
            bed.fs.copy_range(At::new(&from, 0), At::new(&to, 0), 0),
            Ok(0)
        );
    });
}

pub fn copying_holes_overwrites_what_was_there<E: Engine>(bed: &Bed<'_, E>) {
    let from = bed.file_with(&bed.root(), "from", b"start");
    bed.write(&from, 50_000, b"end");
    let to = bed.file_with(&bed.root(), "to", &pattern(60_000, 2));
    assert_eq!(
        bed.fs
            .copy_range(At::new(&from, 0), At::new(&to, 100), 50_003),
        Ok(50_003)
    );
    let mut expected = pattern(60_000, 2);
    expected[100..50_103].fill(0);
    expected[100..105].copy_from_slice(b"start");
    expected[50_100..50_103].copy_from_slice(b"end");
    assert!(bed.contents(&to) == expected);
}

pub fn range_operations_touch_the_right_times<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let (file, to) = (
        bed.file_with(&root, "file", &[1; 9000]),
        bed.file(&root, "to"),
    );
    if !bed.has(Feature::Clock) {
        return;
    }
    for mode in modes(bed) {
        bed.touches(&[(&file, "mc"), (&root, "")], || {
            bed.fs.fallocate(&file, mode, 5000, 10_000).expect("done");
        });
    }
    bed.touches(&[(&file, ""), (&to, "mc"), (&root, "")], || {
        assert_eq!(
            bed.fs.copy_range(At::new(&file, 0), At::new(&to, 0), 10),
            Ok(10)
        );
    });
    bed.touches(&[(&file, "")], || {
        assert_eq!(bed.fs.seek(&file, 0, SeekFor::Data), Ok(0));
    });
}
