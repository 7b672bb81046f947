//! Workloads and figures: Tureen side by side with whatever else the machine has.
//!
//! The way of a figure is `workloads -> targets -> runs -> series -> report`: a workload does its
//! work on a target, a run of a family has all targets take turns, the rounds of each figure are a
//! series, and the report shows it. The modules, each of which uses only those above it:
//!
//! - [`Series`]: the same figure from several rounds, with median and interval
//! - [`machine`], [`report`]: the one result, from which tables, JSON and plots are made
//! - [`Target`]: what a workload runs on: [`Engine`], SoupFS called through the path layer of
//!   `vfs`, or [`Directory`], any directory through system calls; [`TargetSpec`] names one in words
//! - [`plan`]: what all families are told: where, how much, by which clock, on which targets
//! - `counters`: what a target did to its medium
//! - [`sampler`]: what a [`Workload`](sampler::Workload) is, and the samples of a round
//! - [`workloads`]: the work itself, generic over its target, so that the same code drives all
//! - [`child`]: work in a process of its own
//! - [`participants`]: the targets of a run, set up and taken away again
//! - [`runner`]: all participants take turns, round by round, and samples become charts
//! - [`runs`]: the families; each measures one subject and gives a [`report::Run`]
//! - [`suite`]: the list of families, and how much they do
//!
//! `docs/design/bench.md` says why. What holds for all families:
//! - participants that are compared take turns, round by round; figures are medians over rounds,
//!   with their range; ratios are taken within a round, with an interval;
//! - the first round warms up and is not counted, but where what grows begins anew in each
//!   (`growth`, `sizes`);
//! - what happens in the background (persisting) is not hidden: it is waited for between the phases
//!   of a single caller, where it would otherwise fall out of the figures, and shown.

pub mod child;
mod counters;
pub mod machine;
pub mod participants;
pub mod plan;
pub mod report;
pub mod runner;
pub mod runs;
pub mod sampler;
mod series;
pub mod suite;
mod target;
pub mod workloads;

pub use participants::end_mounts;
pub use series::{Interval, Series};
pub use target::{
    BlockSetup, Blocks, CacheSetup, Descriptor, Directory, Engine, Failure, Front, Result, Setup,
    Target, TargetSpec,
};
