//! Workloads and figures: Tureen side by side with whatever else the machine has.
//!
//! A *target* ([`Target`]) is what a workload runs on: [`Engine`], which is SoupFS called through
//! the path layer of `vfs`, or [`Directory`], any directory through system calls. The same code
//! drives both, so a figure compares like with like. A [`field`] is who takes part in a run; the
//! [`runner`] lets all of them take turns; a *family* (a module of [`runs`], listed in [`suite`])
//! measures one subject and gives a [`report::Run`]: the one result from which tables, JSON and plots
//! are made. `docs/design/bench.md` says why.
//!
//! What holds for all families:
//! - targets that are compared take turns, round by round; figures are medians over rounds, with
//!   their range; ratios are taken within a round, with an interval;
//! - the first round warms up and is not counted, but where what grows begins anew in each (`growth`, `sizes`);
//! - what happens in the background (persisting) is not hidden: it is waited for between the phases of
//!   a single caller, where it would otherwise fall out of the figures, and shown.

mod counts;
pub mod field;
mod kernel;
pub mod machine;
mod mounted;
pub mod plan;
pub mod report;
pub mod runner;
pub mod runs;
mod series;
pub mod suite;
mod target;
pub mod workloads;

pub use mounted::end_all as end_mounts;
pub use series::{Interval, Series};
pub use target::{Descriptor, Directory, Engine, Failure, Result, Setup, Target};
