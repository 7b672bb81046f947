//! The links of entries, as the latest view follows them.

use crate::layout::{dentry, line_at};
use crate::medium::Medium;
use vfs::Result;

/// No chain is this long unless the medium is corrupt or the reader is on a stale line.
pub(crate) const CHAIN_MAX: usize = 1 << 20;
/// The entry behind `line` in the latest view.
#[inline]
pub(crate) fn latest_next(medium: &Medium, line: u64) -> Result<Option<u64>> {
    let at = line_at(line) + dentry::LATEST_NEXT;
    match medium.untagged(medium.pool.load(at)) {
        // A reader may be on a line that is something else by now, and an image may be damaged.
        Some(next) => medium.image().link(at, next),
        None => medium.image().next(line),
    }
}
