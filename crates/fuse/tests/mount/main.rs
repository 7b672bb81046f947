//! The adapter, mounted for real, with the reference file system behind it.

mod awkward;
mod common;
mod follow;
mod pages;
mod programs;
mod requests;
mod ring;
mod semantics;
mod shutdown;
