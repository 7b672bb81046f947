//! Damage to an image, as an input says.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use soupfs::layout::{Geometry, LINE, PAGE, page_at, superblock};

use crate::base::{Base, LEN, word};
use crate::bytes::Bytes;

/// Most edits of one input.
const EDITS_MAX: usize = 24;

/// The image with the edits that come next in the input: a count, then six bytes for each.
pub fn damaged(base: &Base, input: &mut Bytes<'_>) -> Vec<u8> {
    let mut bytes = base.bytes.clone();
    for _ in 0..input.below(EDITS_MAX + 1) {
        edit(base, &mut bytes, input);
    }
    bytes
}

fn store(bytes: &mut [u8], at: u64, value: u64) {
    bytes[at as usize..][..8].copy_from_slice(&value.to_le_bytes());
}

fn edit(base: &Base, bytes: &mut [u8], input: &mut Bytes<'_>) {
    let used = |n: u64| base.used[n as usize % base.used.len()];
    let (kind, detail) = (input.below(13), u64::from(input.byte()));
    let (place, value) = (input.short(), input.short());
    let at = used(place);
    let pages = LEN / PAGE;
    match kind {
        0 => store(bytes, at, word(bytes, at) ^ 1 << (value % 64)),
        1 => store(bytes, at, value),
        2 => store(bytes, at, ((value % (pages + 1)) << 12) | (detail % 8)),
        3 => store(bytes, at, (value % (LEN / LINE + 1)) | (detail << 56)),
        4 => store(bytes, at, word(bytes, used(value))),
        5 => copy(bytes, used(value), at, LINE),
        6 => copy(bytes, used(value), at, PAGE),
        7 => bytes[(place << 8 | detail) as usize % LEN as usize] = value as u8,
        8 => insert(bytes, at, value, detail % 9),
        9 => store(bytes, at, extreme(detail, value)),
        // A word next to what is used, which is mostly zero.
        10 => store(bytes, (at + detail % 16 * 8) % (LEN - 8), value),
        11 => superblock_field(bytes, detail, extreme(place, value)),
        _ => journal_record(
            bytes,
            at + detail / 8 * 8,
            word(bytes, used(value)),
            detail % 8,
        ),
    }
}

/// Values at the ends of ranges.
fn extreme(which: u64, value: u64) -> u64 {
    match which % 8 {
        0 => u64::MAX - value % 4,
        1 => i64::MAX as u64 - value % 4,
        2 => 1 << (value % 64),
        3 => (1 << (value % 64)) - 1,
        4 => value,
        5 => value << 32,
        6 => value << 48,
        _ => 0,
    }
}

/// One aligned block over another.
fn copy(bytes: &mut [u8], from: u64, to: u64, unit: u64) {
    let from = (from / unit * unit) as usize;
    bytes.copy_within(from..from + unit as usize, (to / unit * unit) as usize);
}

/// Bytes are inserted; the rest of the page moves on.
fn insert(bytes: &mut [u8], at: u64, value: u64, count: u64) {
    let end = (at / PAGE + 1) * PAGE;
    let count = count.min(end - at) as usize;
    let (start, end) = (at as usize, end as usize);
    bytes.copy_within(start..end - count, start + count);
    bytes[start..start + count].fill(value as u8);
}

/// A field of the superblock and of its copy, with the checksum that belongs to it: not random
/// damage but somebody's doing.
fn superblock_field(bytes: &mut [u8], which: u64, value: u64) {
    let fields = superblock::AT_CHECKSUM / 8;
    for at in [0, LEN - PAGE] {
        store(bytes, at + which % fields as u64 * 8, value);
        let covered = &bytes[at as usize..][..superblock::AT_CHECKSUM];
        let checksum = xxh3_64(covered);
        store(bytes, at + superblock::AT_CHECKSUM as u64, checksum);
    }
}

/// A record that recovery takes for committed: of a word, of bits and of bytes, at offsets or of a
/// length that `odd` makes improper. The format is `pmem`'s own; an input that this does not fit
/// writes words like others.
fn journal_record(bytes: &mut [u8], at: u64, value: u64, odd: u64) {
    let geometry = Geometry::for_len(LEN);
    let area = page_at(geometry.journal);
    let ring_lines = geometry.journal_pages * PAGE / LINE - 2;
    let (nonce, head) = (word(bytes, area + 16), word(bytes, area + LINE) >> 12);
    let ring_at = area + (2 + head % ring_lines) * LINE;
    let other = at + [8, 4, LEN, 0, 8, 16, 24, 8][odd as usize];
    let len = if odd == 7 { value } else { 9 };
    let mut rest = [0; 15];
    let (header, pairs) = ([head, 1 | 1 << 32, 32], [at, value, other, 1 << odd]);
    rest[..3].copy_from_slice(&header);
    rest[3..7].copy_from_slice(&pairs);
    rest[7..11].copy_from_slice(&[other + 3, len, value, value]);
    let rest = rest.map(u64::to_le_bytes);
    let rest = rest.as_flattened();
    let start = ring_at as usize;
    bytes[start + 8..][..rest.len()].copy_from_slice(rest);
    store(bytes, ring_at, xxh3_64_with_seed(rest, nonce));
}
