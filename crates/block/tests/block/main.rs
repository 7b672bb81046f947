#![allow(missing_docs, reason = "a test program")]
//! Tests of the crate, in one program.

mod against_model;
mod common;
mod counts;
mod crash;
mod faults;
mod files;
mod modelled;
mod publish;
mod threads;
