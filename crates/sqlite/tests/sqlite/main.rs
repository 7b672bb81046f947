//! Databases in images, by a SQLite that is compiled for it and by the one of this machine.

mod abi;
mod common;
mod crash;
mod databases;
mod program;
