//! What was found, for people and for programs.
//!
//! From what a run gives to what a reader sees, each part on those before it:
//! - `chart`, `table`: figures of several targets, as they are measured and as they are shown
//! - `verdict`: what the rounds of a figure decide
//! - `result`: the one result, a `Report` of `Run`s; JSON is it
//! - `summary`, `aims`, `aims_mounted`: tables that are made of all runs
//! - `compare`: two results, before and after a change
//! - `plot`: charts as SVG
//! - `terminal`, `document`, `html`: the output

mod aims;
mod aims_mounted;
mod chart;
mod compare;
mod document;
mod html;
mod plot;
mod result;
mod summary;
mod table;
mod terminal;
mod verdict;

pub use aims::{FIRST_MOUNT, THROUGH_FUSE};
pub use chart::{Better, Chart, Line, Point, Shape, X};
pub use compare::compare;
pub use document::{Document, Earlier, document};
pub use html::page;
pub use result::{
    BARE_WRITE, BESIDE_WRITER, CLIENTS, Check, DATABASES, DELAYED, DURABLE_CREATE, DURABLE_REQUEST,
    E2FSCK, EXT2_BLOCKS, EXT2_NAMES, FSCK, Found, HOST, IN_PROCESS_ON_DISK, IN_SYNC, LARGE,
    MEDIAN_REQUEST, MOUNT, MOUNT_EXT2, ON_DISK, ONE_CORE, OUR_EXT2, OURS, PERSIST, PROGRAMS,
    PROGRAMS_IN_MEMORY, Peer, QUIET, REQUEST, Report, Run, SLOW_REQUEST, SMALL_FSYNC, STRONG,
    THREADS_ON_DISK,
};
pub use table::{Cell, Table, short};
pub use verdict::{Verdict, above, below, within};
