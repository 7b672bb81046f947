//! Workloads and figures: SoupFS in-process beside a directory of the kernel's.
//!
//! A *target* ([`Target`]) is what a workload runs on: [`Engine`], which is SoupFS called through
//! the path layer of `vfs`, or [`Directory`], any directory through system calls. The same code
//! drives both, so a figure compares like with like. A *run* (a module of [`runs`]) measures one
//! thing and gives a [`Run`]: tables, which print as Markdown and serialise as JSON.
//!
//! What holds for all runs:
//! - targets that are compared take turns, round by round, in one process; figures are medians over
//!   rounds, with their range; ratios are taken within a round;
//! - the first round warms up and is not counted;
//! - what happens in the background (persisting) is not hidden: it is waited for between phases,
//!   where it would otherwise fall out of the figures, and shown.

mod directory;
mod engine;
pub mod machine;
mod report;
pub mod runs;
mod series;
mod target;

pub use directory::{Descriptor, Directory};
pub use engine::{Engine, Setup};
pub use report::{Cell, Report, Run, Table};
pub use series::Series;
pub use target::{Failure, Result, Target};
