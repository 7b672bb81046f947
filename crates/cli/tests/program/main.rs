//! The program as people and scripts call it, mounting for real.

mod bench;
mod bind;
mod cache;
mod commands;
mod damage;
mod devices;
mod dump;
mod ends;
mod ext2;
mod kernel;
mod kill;
mod kind;
mod larger;
mod limits;
mod live_check;
mod mapped;
mod moved;
mod power_cut;
mod scene;
mod setting;
mod snapshot;
mod transport;
mod tree;
mod vanish;
mod writers;
