//! Hints of what an operation will touch next, so that it is on its way to the cache meanwhile.
//!
//! An operation on a name waits for memory up to three times, one after the other, so each wait is
//! begun as early as its address is known. A hint changes nothing but time: leaving any out is
//! right. So they stand apart from what is done, in methods named `expect_...` of what knows the
//! addresses:
//! - a directory's bucket, and its parent (`dir::cache`), while time and memory are got;
//! - the inode that a cached bucket says an entry names (`inode_table`), before the entry is read;
//! - what leads to an entry that is to be removed (`dir::cache`), before it is compared;
//! - the slot of the next inode to be made (`inode_table`), an operation ahead.

use std::collections::VecDeque;

/// Something will be pushed.
#[inline]
pub fn next_place<T>(queue: &VecDeque<T>) {
    if let Some(last) = queue.back() {
        pmem::prefetch_for_write((&raw const *last).wrapping_add(1));
    }
}
