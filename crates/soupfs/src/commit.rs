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
//! - [`persister`]: when a batch runs, and who waits. [`pressure`]: how much may be pending.
//! - [`capture`]: what has to be together (R1 to R8). [`batch`], [`member`]: operations and inodes.
//! - [`build`], [`contents`]: what is new, and what leads to it. [`buckets`], [`index`]: a
//!   directory's table and an index tree as a transaction changes them.
//! - [`settle`], [`deferred`]: what becomes of DRAM, and of space.
//! - [`txn`]: the words that change at once, and what is durable before they do. [`private`]: where
//!   one may store directly. [`withdrawn`]: what is no longer reachable.
//! - [`helpers`]: threads that share the flushing of a batch.

mod batch;
mod buckets;
mod build;
pub mod capture;
mod contents;
mod deferred;
pub mod helpers;
mod index;
mod member;
pub mod persister;
mod pressure;
mod private;
mod settle;
pub mod txn;
mod withdrawn;
