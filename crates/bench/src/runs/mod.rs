//! What is measured: one module, one family.

pub mod child;
pub mod data;
pub mod filebench;
pub mod fxmark;
pub mod growth;
pub mod latency;
pub mod modes;
pub mod mounts;
pub mod names;
pub mod overload;
pub mod persister;
pub mod postmark;
mod reading;
pub mod recovery;
pub mod scale;
pub mod scaling;
pub mod sharing;
pub mod sizes;
pub mod threads;
mod trace;
