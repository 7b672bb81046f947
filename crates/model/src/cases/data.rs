//! Contents: reading, writing, truncating.

use vfs::{Capabilities, Errno, FileSystem, NewKind, SetAttr};

use super::{Bed, Engine, Feature, NodeOf, fails};

const TIB: u64 = 1 << 40;

/// `len` bytes, none of them zero, that differ from one `seed` to the next.
pub(super) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| ((at * 7 + at / 251 + usize::from(seed) * 31) % 255) as u8 + 1)
        .collect()
}

pub fn what_is_written_is_read<E: Engine>(bed: &Bed<'_, E>) {
    let file = bed.file(&bed.root(), "file");
    for len in [1, 7, 8, 63, 64, 65, 4095, 4096, 4097, 100_000, 3_000_000] {
        let data = pattern(len, len as u8);
        bed.truncate(&file, 0);
        bed.write(&file, 0, &data);
        assert_eq!(bed.size(&file), len as u64);
        assert!(bed.contents(&file) == data, "{len} bytes");
        assert!(bed.attr(&file).blocks * 512 >= len as u64);
    }
}

pub fn reading_stops_at_the_end<E: Engine>(bed: &Bed<'_, E>) {
    let data = pattern(5000, 1);
    let file = bed.file_with(&bed.root(), "file", &data);
    assert_eq!(bed.read(&file, 0, 10_000), data);
    assert_eq!(bed.read(&file, 4990, 100), data[4990..]);
    for offset in [5000, 5001, 8192, 1 << 40, u64::MAX - 5, u64::MAX] {
        assert!(bed.read(&file, offset, 100).is_empty());
    }
    assert!(bed.read(&file, 0, 0).is_empty());
}

pub fn writing_beyond_the_end_leaves_zeros<E: Engine>(bed: &Bed<'_, E>) {
    for gap_at in [0u64, 1, 100, 4096, 5000] {
        for gap in [1u64, 100, 4095, 4096, 4097, 50_000] {
            let mut expected = pattern(gap_at as usize, 1);
            let file = bed.file_with(&bed.root(), "file", &expected);
            bed.write(&file, gap_at + gap, b"end");
            expected.resize((gap_at + gap) as usize, 0);
            expected.extend(b"end");
            assert!(bed.contents(&file) == expected, "{gap} zeros from {gap_at}");
            bed.unlink(&bed.root(), "file").expect("removed");
        }
    }
}

pub fn overwriting_keeps_the_rest<E: Engine>(bed: &Bed<'_, E>) {
    let mut expected = pattern(20_000, 1);
    let file = bed.file_with(&bed.root(), "file", &expected);
    for (offset, len) in [
        (0, 1),
        (1, 62),
        (63, 2),
        (4095, 2),
        (4096, 4096),
        (8191, 4098),
        (19_999, 1),
    ] {
        let data = pattern(len, (offset % 200) as u8 + 9);
        bed.write(&file, offset as u64, &data);
        expected[offset..offset + len].copy_from_slice(&data);
        assert!(bed.contents(&file) == expected, "{len} bytes at {offset}");
    }
    assert_eq!(bed.size(&file), 20_000);
}

pub fn writes_of_all_sizes_around_block_boundaries_are_read_back<E: Engine>(bed: &Bed<'_, E>) {
    let file = bed.file(&bed.root(), "file");
    let mut expected = Vec::new();
    let edges = [0usize, 1, 2, 4094, 4095, 4096, 4097, 4098, 8191, 8192, 8193];
    for (round, &offset) in edges.iter().enumerate() {
        for (turn, &len) in edges.iter().enumerate().skip(1) {
            let data = pattern(len, (round * 16 + turn) as u8);
            bed.write(&file, offset as u64, &data);
            expected.resize(expected.len().max(offset + len), 0);
            expected[offset..offset + len].copy_from_slice(&data);
            assert!(bed.contents(&file) == expected, "{len} bytes at {offset}");
        }
    }
}

pub fn appends_follow_each_other<E: Engine>(bed: &Bed<'_, E>) {
    let file = bed.file(&bed.root(), "file");
    let mut expected = Vec::new();
    for len in [1, 100, 4000, 4096, 5, 10_000, 1] {
        let data = pattern(len, len as u8);
        assert_eq!(
            bed.fs.append(&file, &data),
            Ok((expected.len() as u64, len))
        );
        expected.extend(data);
    }
    assert!(bed.contents(&file) == expected);
    bed.truncate(&file, 10);
    assert_eq!(bed.fs.append(&file, b"x"), Ok((10, 1)));
}

pub fn truncating_cuts_off<E: Engine>(bed: &Bed<'_, E>) {
    let data = pattern(40_000, 3);
    let file = bed.file_with(&bed.root(), "file", &data);
    for size in [39_999, 36_865, 36_864, 36_863, 8192, 4097, 4096, 4095, 1, 0] {
        bed.truncate(&file, size);
        assert!(bed.contents(&file) == data[..size as usize], "{size} bytes");
        assert!(bed.read(&file, size, 100).is_empty());
    }
    assert_eq!(bed.attr(&file).blocks, 0);
}

pub fn what_was_cut_off_never_shows_again<E: Engine>(bed: &Bed<'_, E>) {
    for cut in [0usize, 1, 100, 4095, 4096, 4097, 10_000] {
        for how in ["truncate", "write", "append", "allocate"] {
            let data = pattern(20_000, 5);
            let file = bed.file_with(&bed.root(), "file", &data);
            bed.truncate(&file, cut as u64);
            let mut expected = data[..cut].to_vec();
            expected.resize(20_000, 0);
            match how {
                "truncate" => bed.truncate(&file, 20_000),
                "write" => {
                    bed.write(&file, 19_999, b"e");
                    expected[19_999] = b'e';
                }
                "append" => {
                    bed.fs.append(&file, &[0; 1]).expect("appended");
                    bed.truncate(&file, 20_000);
                }
                _ if !bed.can(Capabilities::ALLOCATE) => bed.truncate(&file, 20_000),
                _ => {
                    let mode = vfs::Fallocate::Allocate { keep_size: false };
                    bed.fs.fallocate(&file, mode, 0, 20_000).expect("allocated");
                }
            }
            assert!(
                bed.contents(&file) == expected,
                "cut to {cut}, extended by {how}"
            );
            bed.unlink(&bed.root(), "file").expect("removed");
        }
    }
}

pub fn truncating_in_steps_within_a_block_and_across_reads_zeros<E: Engine>(bed: &Bed<'_, E>) {
    let file = bed.file(&bed.root(), "file");
    let mut expected: Vec<u8> = Vec::new();
    let sizes = [
        3000, 1000, 2000, 500, 4096, 100, 9000, 4100, 8192, 4096, 4095, 12_288, 7, 16_000,
    ];
    for (round, size) in sizes.into_iter().enumerate() {
        bed.truncate(&file, size as u64);
        expected.resize(size, 0);
        assert!(bed.contents(&file) == expected, "step {round}, to {size}");
        let data = pattern(50, round as u8);
        let offset = size.saturating_sub(25);
        bed.write(&file, offset as u64, &data);
        expected.resize(offset + 50, 0);
        expected[offset..].copy_from_slice(&data);
    }
}

pub fn extending_reads_zeros<E: Engine>(bed: &Bed<'_, E>) {
    let file = bed.file_with(&bed.root(), "file", b"x");
    for size in [2u64, 4096, 4097, 1_000_000] {
        bed.truncate(&file, size);
        let contents = bed.contents(&file);
        assert_eq!((contents.len() as u64, contents[0]), (size, b'x'));
        assert!(contents[1..].iter().all(|&byte| byte == 0));
    }
    assert!(bed.attr(&file).blocks <= 4 * 8, "a hole takes no space");
}

pub fn offsets_far_away_work<E: Engine>(bed: &Bed<'_, E>) {
    let far = bed.fs.limits().file_max.min(16 * TIB);
    let file = bed.file_with(&bed.root(), "file", b"start");
    let before = bed.attr(&file).blocks;
    for offset in [far / 4, far - 4098, far - 3] {
        let data = pattern(6000.min((far - offset) as usize), offset as u8);
        bed.write(&file, offset, &data);
        assert!(bed.read(&file, offset, data.len()) == data);
        assert!(
            bed.read(&file, offset - 5000, 800)
                .iter()
                .all(|&byte| byte == 0)
        );
    }
    assert_eq!(
        (bed.size(&file), bed.read(&file, 0, 5)),
        (far, b"start".to_vec())
    );
    assert!(
        bed.attr(&file).blocks - before < 64 * 8 * 3,
        "a hole takes no space"
    );
    bed.truncate(&file, far / 3);
    bed.truncate(&file, far);
    assert!(
        bed.read(&file, far - 5000, 5000)
            .iter()
            .all(|&byte| byte == 0)
    );
    bed.truncate(&file, 5);
    assert_eq!(bed.contents(&file), b"start");
}

pub fn too_large_is_refused<E: Engine>(bed: &Bed<'_, E>) {
    let file = bed.file_with(&bed.root(), "file", b"x");
    bed.unchanged(|| {
        for offset in [
            i64::MAX as u64,
            i64::MAX as u64 + 1,
            u64::MAX - 4096,
            u64::MAX,
        ] {
            assert_eq!(fails(bed.fs.write(&file, offset, b"yz")), Errno::FBIG);
        }
        for size in [i64::MAX as u64 + 1, u64::MAX] {
            let set = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            assert_eq!(fails(bed.fs.setattr(&file, &set)), Errno::FBIG);
        }
    });
}

pub fn contents_belong_to_regular_files_only<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let refused = |node: &NodeOf<E>, errno| {
        bed.unchanged(|| {
            assert_eq!(fails(bed.fs.read(node, 0, &mut [0; 8])), errno);
            assert_eq!(fails(bed.fs.write(node, 0, b"x")), errno);
            assert_eq!(fails(bed.fs.append(node, b"x")), errno);
        });
    };
    refused(&root, Errno::ISDIR);
    refused(
        &bed.make(&root, "link", NewKind::Symlink(b"x")),
        Errno::INVAL,
    );
    refused(&bed.make(&root, "fifo", NewKind::Fifo), Errno::INVAL);
}

pub fn an_empty_write_does_nothing<E: Engine>(bed: &Bed<'_, E>) {
    let file = bed.file_with(&bed.root(), "file", b"abc");
    bed.unchanged(|| {
        assert_eq!(bed.fs.write(&file, 100, b""), Ok(0));
        assert_eq!(bed.fs.append(&file, b""), Ok((3, 0)));
    });
}

pub fn contents_survive_many_blocks<E: Engine>(bed: &Bed<'_, E>) {
    let (root, count) = (bed.root(), 1200u64);
    let (forward, backward) = (bed.file(&root, "forward"), bed.file(&root, "backward"));
    for block in 0..count {
        bed.write(&forward, block * 4096, &block.to_le_bytes());
        let block = count - 1 - block;
        bed.write(&backward, block * 4096, &block.to_le_bytes());
    }
    for block in 0..count {
        assert_eq!(bed.read(&forward, block * 4096, 8), block.to_le_bytes());
        assert_eq!(bed.read(&backward, block * 4096, 8), block.to_le_bytes());
    }
}

pub fn writing_touches_the_right_times<E: Engine>(bed: &Bed<'_, E>) {
    let root = bed.root();
    let file = bed.file_with(&root, "file", b"abc");
    bed.touches(&[(&file, "mc"), (&root, "")], || bed.write(&file, 1, b"x"));
    bed.touches(&[(&file, "mc"), (&root, "")], || {
        drop(bed.fs.append(&file, b"x"))
    });
    for size in [2, 2, 4096, 0, 0] {
        bed.touches(&[(&file, "mc"), (&root, "")], || bed.truncate(&file, size));
    }
    if bed.has(Feature::Clock) {
        bed.touches(&[(&file, "")], || drop(bed.read(&file, 0, 10)));
        assert_eq!(bed.attr(&file).mtime, bed.attr(&file).ctime);
    }
}
