//! Tests of the primitives; they also run under Miri, on the portable ones.

use std::sync::atomic::Ordering;

use super::*;

/// Miri is slow.
const LEN: usize = if cfg!(miri) { 640 } else { 12 << 10 };

fn region() -> Region {
    let mut region = Region::new(Mapping::anonymous(LEN, false).expect("memory"));
    region.set_access(true, true, true);
    region
}

fn contents(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    region.read(0, &mut bytes);
    bytes
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256 + 1) as u8).collect()
}

/// Lengths around every threshold of the copies.
fn lengths() -> impl Iterator<Item = usize> {
    let short = if cfg!(miri) { 11 } else { 70 };
    let long: &[usize] = if cfg!(miri) {
        &[65]
    } else {
        &[
            127, 128, 129, 255, 256, 257, 300, 1023, 1024, 4096, 4097, 9000,
        ]
    };
    (0..short).chain(long.iter().copied())
}

#[test]
fn writes_of_any_length_at_any_alignment_store_exactly_their_bytes() {
    let region = region();
    for len in lengths() {
        for off in [0, 1, 2, 3, 4, 5, 6, 7, 8, 61, 63, 64] {
            region.zero(0, LEN as u64);
            let data = pattern(len);
            region.write(off, &data);
            let mut expected = vec![0; LEN];
            expected[off as usize..off as usize + len].copy_from_slice(&data);
            assert!(contents(&region) == expected, "{len} bytes at {off}");
        }
    }
}

#[test]
fn reads_of_any_length_at_any_alignment_give_exactly_the_bytes() {
    let region = region();
    let data = pattern(LEN);
    region.write(0, &data);
    for len in lengths() {
        for off in 0..9usize {
            let mut buf = vec![0xee; len + 16];
            region.read(off as u64, &mut buf[8..8 + len]);
            assert!(
                buf[8..8 + len] == data[off..off + len],
                "{len} bytes at {off}"
            );
            assert_eq!(
                (&buf[..8], &buf[8 + len..]),
                (&[0xee; 8][..], &[0xee; 8][..])
            );
        }
    }
}

#[test]
fn zeroing_touches_nothing_beside_the_range() {
    let region = region();
    for len in lengths() {
        for off in [0usize, 1, 7, 8, 63] {
            let mut expected = pattern(LEN);
            region.write(0, &expected);
            region.zero(off as u64, len as u64);
            expected[off..off + len].fill(0);
            assert!(contents(&region) == expected, "{len} bytes at {off}");
        }
    }
}

#[test]
fn non_temporal_lines_arrive() {
    let region = region();
    for lines in [0usize, 1, 2, 7] {
        region.zero(0, LEN as u64);
        let data = pattern(lines * 64 + 1);
        region.write_lines_nt(128, &data[1..]);
        store_fence();
        let mut expected = vec![0; LEN];
        expected[128..128 + lines * 64].copy_from_slice(&data[1..]);
        assert!(contents(&region) == expected, "{lines} lines");
    }
}

#[test]
fn copies_downward_may_overlap() {
    let region = region();
    for (from, to, len) in [
        (64, 0, 300),
        (1, 0, LEN - 1),
        (9, 8, 40),
        (8, 8, 80),
        (256, 0, 256),
    ] {
        let mut expected = pattern(LEN);
        region.write(0, &expected);
        region.copy_down(from as u64, to as u64, len as u64);
        expected.copy_within(from..from + len, to);
        assert!(
            contents(&region) == expected,
            "{len} bytes from {from} to {to}"
        );
    }
}

#[test]
fn words_are_little_endian_and_the_fast_paths_check() {
    let region = region();
    assert!(region.try_store(8, 0x0102_0304_0506_0708));
    assert_eq!(contents(&region)[8..16], [8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(region.try_load(8), Some(0x0102_0304_0506_0708));
    assert_eq!(region.load(LEN as u64 - 8), 0);
    for bad in [
        1,
        4,
        7,
        9,
        LEN as u64,
        LEN as u64 - 4,
        u64::MAX,
        u64::MAX - 7,
    ] {
        assert_eq!(region.try_load(bad), None, "{bad}");
        assert!(!region.try_store(bad, 1), "{bad}");
    }
}

#[test]
fn a_read_only_region_serves_no_fast_store() {
    let mut region = region();
    region.set_access(false, true, true);
    assert!(!region.try_store(0, 1));
    assert_eq!(region.try_load(0), Some(0));
}

#[test]
fn bulk_accesses_that_race_give_a_mixture() {
    let region = region();
    std::thread::scope(|scope| {
        for byte in [0x11, 0x22] {
            let region = &region;
            scope.spawn(move || {
                for _ in 0..if cfg!(miri) { 3 } else { 1000 } {
                    region.write(5, &[byte; 90]);
                }
            });
        }
        let mut buf = [0; 90];
        region.read(5, &mut buf);
        assert!(buf.iter().all(|byte| [0, 0x11, 0x22].contains(byte)));
    });
}

#[test]
fn read_modify_writes_of_threads_add_up() {
    let region = region();
    std::thread::scope(|scope| {
        for bit in 0..4 {
            let region = &region;
            scope.spawn(move || {
                region
                    .word_mut(16)
                    .fetch_or(1u64.to_le() << bit, Ordering::AcqRel)
            });
        }
    });
    assert_eq!(
        u64::from_le(region.word_mut(16).load(Ordering::Acquire)),
        0b1111
    );
}

#[test]
fn lines_counts_the_lines_that_a_range_touches() {
    for (off, len, expected) in [
        (0, 0, 0),
        (0, 1, 1),
        (0, 64, 1),
        (0, 65, 2),
        (63, 1, 1),
        (63, 2, 2),
        (64, 64, 1),
        (1, 64, 2),
    ] {
        assert_eq!(lines(off, len), expected, "{len} bytes at {off}");
    }
}
