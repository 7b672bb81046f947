//! What is measured: one module, one family.

pub mod child;
pub mod data;
pub mod growth;
pub mod latency;
pub mod modes;
pub mod names;
pub mod overload;
mod reading;
pub mod recovery;
pub mod scale;
pub mod threads;
