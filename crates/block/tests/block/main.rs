#![allow(missing_docs, reason = "a test program")]
//! Tests of the crate, in one program.

mod against_model;
mod common;
mod counts;
mod files;
mod threads;
