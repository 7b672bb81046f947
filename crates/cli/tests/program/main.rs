//! The program as people and scripts call it, mounting for real.

mod bind;
mod commands;
mod damage;
mod kill;
mod limits;
mod random;
mod scene;
mod writers;
