//! Heuristics for damaged images: guesses that a sound image never calls for.
//!
//! - [`inodes`]: words of an inode that cannot be, and what they must have been.
//! - [`contested`]: space that more than one thing claims, and who is to keep it.
//!
//! What has lost its name altogether is named again by the repair (`fsck::rescue`).

pub(crate) mod contested;
pub(crate) mod inodes;
