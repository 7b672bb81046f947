//! From the latest view to the consistent one: capture, build, commit, settle (SoupFS §3.7).
//!
//! ```text
//! Captured    operations and attributes, taken under the callers' locks, one object at a time
//!    | build        store what is private; put together the words to change
//!    v
//! Built       nothing of it is reachable: a crash leaves the old state, and leaks
//!    | commit       flush and fence what is private; commit all words at once
//!    v                                               (the commit point)
//! Committed   a crash leaves the new state
//!    | settle       tell DRAM; defer the free of what was withdrawn
//!    v
//! ```
//!
//! Each phase is a value that the next step consumes, so none can be left out or come early. Files,
//! in the order of the protocol; each uses those further down, and what they need of the crate:
//! - [`timing`], [`sweep`]: when sweeps run and who waits; all that is pending, in batches.
//! - [`persister`], [`requests`], [`alarm`]: what is pending, what callers of fsync wait for
//!   together, and what wakes the background thread.
//! - [`gate`], [`request`]: mode `strong`, in which each request is a batch of its own.
//! - [`lane`]: one batch at a time. [`budget`], [`notes`]: how much is pending, and how much may
//!   be.
//! - [`capture`]: what has to be together (R1 to R8). [`batch`], [`member`]: operations and inodes.
//! - [`build`], [`contents`]: what is new, and what leads to it. [`buckets`], [`index`]: a
//!   directory's table and an index tree as a transaction changes them.
//! - [`settle`], [`deferred`]: what becomes of DRAM, and of space.
//! - [`txn`]: the words that change at once, and what is durable before they do. [`claims`]: what
//!   comes into use. [`private`]: where one may store directly. [`withdrawn`]: what is no longer
//!   reachable.
//! - [`helpers`]: threads that share the flushing of a batch.

mod alarm;
mod batch;
pub mod buckets;
pub mod budget;
mod build;
pub mod capture;
mod changed;
mod claims;
mod contents;
mod copies;
mod deferred;
pub mod gate;
pub mod helpers;
mod index;
pub mod lane;
mod member;
mod notes;
pub mod persister;
mod private;
mod request;
mod requests;
mod settle;
mod sweep;
#[cfg(test)]
mod tests;
mod timing;
pub mod txn;
mod withdrawn;

/// Locks of [`requests`], which a test replaces.
mod sync {
    pub use schedule::{Mutex, RwLock, RwLockWriteGuard, point};
    pub use triomphe::Arc;
}
