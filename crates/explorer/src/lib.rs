//! Crash states: runs workloads on an engine, takes apart what they did to the medium, and judges
//! what each crash may leave. The design is in `docs/design/explorer.md`, how to use it in
//! `docs/testing.md`.
//!
//! Layers, from the bottom. A module uses those above it in this list, and none below (a test):
//! 1. [`op`]: operations. `forms`: how parts of a run are kept in files. `parallel`: all cores.
//! 2. [`tree`]: the tree that is found. [`trace`]: what was done to a medium. [`image`]: what one
//!    may hold. [`rules`]: what a crash leaves of it, by `docs/crash-model.md`.
//! 3. [`disk`], [`scratch`], [`medium`], [`states`]: the images that a crash may leave.
//!    [`effort`]: how many of them are judged.
//! 4. [`engine`], [`engines`]: what workloads run on. What is SoupFS's own is in
//!    [`engines::soupfs`], and of its mutants in `mutants::soupfs`; what is ext2's in the two of
//!    `ffs`. `known`: states that were judged before.
//! 5. [`workload`], [`run`]: what is run, and what was true after each step.
//! 6. [`judge`]: the trees that history allows. [`examine`], [`nested`]: all that an image must be
//!    fit for; crashes in recovery, reclaim and fsck. [`lives`]: kills, and the lives after them,
//!    on a medium that keeps what was not durable. `damaged`: repairs that are cut short.
//! 7. [`families`]: what workloads there are. [`halfway`]: operations that meet half-way.
//! 8. [`explore`]: one workload.
//! 9. [`token`], [`kept`], [`minimise`], [`report`]: a failure that replays, made small, for
//!    people.
//! 10. [`campaign`]: many workloads. [`mutants`]: the judges can fail.

pub mod campaign;
mod damaged;
pub mod disk;
pub mod effort;
pub mod engine;
pub mod engines;
pub mod examine;
pub mod explore;
pub mod families;
mod forms;
pub mod halfway;
pub mod image;
pub mod judge;
pub mod kept;
mod known;
pub mod lives;
pub mod medium;
pub mod minimise;
pub mod mutants;
pub mod nested;
pub mod op;
mod parallel;
pub mod report;
pub mod rules;
pub mod run;
pub mod scratch;
pub mod states;
pub mod token;
pub mod trace;
pub mod tree;
pub mod workload;

#[cfg(test)]
#[test]
fn no_module_uses_one_further_down() {
    let uses = testing::layers::check(env!("CARGO_MANIFEST_DIR"));
    assert!(uses > 150, "sources were read");
}
