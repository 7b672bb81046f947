//! What was found, for people and for programs.
//!
//! From what a run gives to what a reader sees, each part on those before it:
//! - `chart`, `table`: figures of several targets, as they are measured and as they are shown
//! - `verdict`: what the rounds of a figure decide
//! - `result`: the one result, a `Report` of `Run`s; JSON is it
//! - `summary`, `aims`: tables that are made of all runs
//! - `compare`: two results, before and after a change
//! - `plot`: charts as SVG
//! - `terminal`, `document`, `html`: the output

mod aims;
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
pub use document::{Document, document};
pub use html::page;
pub use result::{Check, DELAYED, Found, HOST, MOUNT, ON_DISK, OURS, PERSIST, Peer, Report, Run};
pub use table::{Cell, Table, short};
pub use verdict::{Verdict, above, below, within};
