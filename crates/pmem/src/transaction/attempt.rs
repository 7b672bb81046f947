//! What a software transaction does to what is decided upon, and the orders in which it does so.
//! The rest of it is in `transaction.rs`.
//!
//! Nothing here is of this crate but `sync`, its atomics: the model of the gate in `soupfs` has
//! those of a tester of memory orders in their place, and runs this code.

use super::sync::{
    AtomicU64,
    Ordering::{Relaxed, Release, SeqCst},
    fence,
};

/// Make the `versions` odd, look at what is `expected`, `store`, and make the versions even:
/// whether all was as it was seen. Else nothing has happened.
pub fn attempt(
    versions: &[(&AtomicU64, u64)],
    expected: &[(&AtomicU64, u64)],
    store: impl FnOnce(),
) -> bool {
    let odd = |&&(number, seen): &&(&AtomicU64, u64)| {
        let exchanged = number.compare_exchange(seen, seen + 1, SeqCst, Relaxed);
        exchanged.is_ok()
    };
    let mine = versions.iter().take_while(odd).count();
    fence(SeqCst); // odd before anything changes
    let is = |&(word, value): &(&AtomicU64, u64)| word.load(SeqCst) == value;
    let done = mine == versions.len() && expected.iter().all(is);
    if done {
        store(); // Commit point.
    }
    // The last one first: who waits for the first one to be even changes the others then.
    for &(number, seen) in versions[..mine].iter().rev() {
        number.store(if done { seen + 2 } else { seen }, Release);
    }
    done
}
