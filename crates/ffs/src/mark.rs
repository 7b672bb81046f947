//! The mark of a mount in mode soft: what a crash left may be mended without asking.
//!
//! It stands where the kernel keeps the path of its last mount, which e2fsck and the kernel do not
//! interpret, and names the time and the number of the mount. Any later mount for writing changes
//! these, whoever mounts it, and so does a check: then the mark is void. All of these fields are in
//! one sector (B1), with the flag that says that the image is clean.

use crate::layout::{STATE_ERROR, STATE_VALID, Superblock};

/// What a crash left may be mended.
const SOFT: &str = "soft";
/// It may not, but all that was written went through here: what snapshots have is whole.
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

/// Lets only what concerns snapshots stand of the mark.
pub fn keep(superblock: &mut Superblock) {
    superblock.last_mounted = text(superblock, KEPT);
}

/// Whether nobody else has mounted it for writing, or repaired it, since it was marked.
pub fn is_ours(superblock: &Superblock) -> bool {
    is_set(superblock) || superblock.last_mounted == text(superblock, KEPT)
}

/// Whether the last mount for writing bears the mark.
pub fn is_set(superblock: &Superblock) -> bool {
    superblock.last_mounted == text(superblock, SOFT)
}

/// Whether that mount crashed, and nobody has found errors since.
pub fn is_crashed(superblock: &Superblock) -> bool {
    superblock.state.get() & (STATE_VALID | STATE_ERROR) == 0 && is_set(superblock)
}
