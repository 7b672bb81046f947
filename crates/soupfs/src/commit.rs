//! From the latest view to the consistent one: capture, build, commit (SoupFS §3.7).
//!
//! - [`batch`], [`member`]: what commits together, and the inodes in it.
//! - [`buckets`]: a directory's table in the consistent view.
//! - [`txn`]: the words that a batch changes at once, and what is durable before they do.
//! - [`deferred`]: what a batch withdrew, until it may be used again.
//! - [`persister`], [`pressure`]: when a batch runs, and how much may be pending.
//! - [`helpers`]: threads that share the flushing of a batch.

pub mod batch;
pub mod buckets;
pub mod deferred;
pub mod helpers;
pub mod member;
pub mod persister;
pub mod pressure;
pub mod txn;
