//! The mark of a mount in mode soft: what a crash left may be mended without asking.
//!
//! It stands where the kernel keeps the path of its last mount, which e2fsck and the kernel do not
//! interpret, and names the time and the number of the mount. Any later mount for writing changes
//! these, whoever mounts it, and so does a check: then the mark is void. All of these fields are in
//! one sector (B1), with the flag that says that the image is clean.

use crate::layout::{STATE_ERROR, STATE_VALID, Superblock};

/// What a crash left may be mended.
const SOFT: &str = "soft";
/// It may, and names have changed places: it is mended before it is used.
const EXCHANGED: &str = "swap";
/// It may not, but all that was written went through here: what snapshots have is whole. A check
/// leaves this, and a mount that uses the image's journal.
const KEPT: &str = "kept";

fn text(superblock: &Superblock, kind: &str) -> [u8; 64] {
    let (time, mounts) = (superblock.mtime.get(), superblock.mnt_count.get());
    let mut bytes = [0; 64];
    let text = format!("tureen {kind} {time} {mounts}");
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

/// Marks the mount that the superblock counts, or (`is_soft` is false) voids the mark.
pub fn set(superblock: &mut Superblock, is_soft: bool) {
    superblock.last_mounted = match is_soft {
        true => text(superblock, SOFT),
        false => [0; 64],
    };
}

/// From here on names change places.
pub fn note_exchange(superblock: &mut Superblock) {
    superblock.last_mounted = text(superblock, EXCHANGED);
}

/// Lets only what concerns snapshots stand of the mark.
pub fn keep(superblock: &mut Superblock) {
    superblock.last_mounted = text(superblock, KEPT);
}

/// Whether nobody else has mounted it for writing, or repaired it, since it was marked.
pub fn is_ours(superblock: &Superblock) -> bool {
    is_mendable(superblock) || superblock.last_mounted == text(superblock, KEPT)
}

/// Whether the last mount for writing bears the mark, and no names have changed places in it.
pub fn is_set(superblock: &Superblock) -> bool {
    superblock.last_mounted == text(superblock, SOFT)
}

/// Whether it bears the mark.
pub fn is_mendable(superblock: &Superblock) -> bool {
    is_set(superblock) || superblock.last_mounted == text(superblock, EXCHANGED)
}

/// Whether the last mount crashed that bears the mark, and nobody has found errors since: what it
/// left is mended.
pub fn is_crashed(superblock: &Superblock) -> bool {
    is_dirty(superblock) && is_mendable(superblock)
}

/// Whether what it left may be used while it is mended.
pub fn is_usable(superblock: &Superblock) -> bool {
    is_dirty(superblock) && is_set(superblock)
}

fn is_dirty(superblock: &Superblock) -> bool {
    superblock.state.get() & (STATE_VALID | STATE_ERROR) == 0
}
