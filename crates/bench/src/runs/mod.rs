//! What is measured: one module, one subject, and one or two families.
//!
//! A family sets up who takes part, has the runner run its workload, and makes a `report::Run`:
//! charts, tables, notes, and `claims` of the papers beside its figures. `tasks` are what it has
//! done by a process of its own, `trace` is one of them; `commands` are programs of others.

pub mod backlog;
pub mod caches;
mod claims;
mod commands;
pub mod data;
pub mod databases;
pub mod disk;
pub mod endurance;
pub mod ext2;
pub mod filebench;
pub mod fsck;
pub mod fxmark;
pub mod growth;
pub mod large;
pub mod latency;
mod log_structured;
pub mod modes;
pub mod mounts;
pub mod names;
mod pinned;
pub mod postmark;
pub mod programs;
pub mod recovery;
pub mod requests;
pub mod scale;
pub mod scaling;
pub mod sharing;
pub mod soft_updates;
pub mod sqlite;
pub mod strong;
mod tasks;
pub mod threads;
mod trace;
mod transactions;
mod ways;

pub use tasks::perform;
