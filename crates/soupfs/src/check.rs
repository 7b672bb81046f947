//! Is an image what it should be?
//!
//! What a sound image goes through comes first: [`audit`] walks it, by its tables (`dir_table`) and
//! contents (`contents`), notes who has what (`claims`), and compares that with the maps. It stores
//! nothing; what is wrong is a `finding`. [`fsck`] replays the journal, audits and repairs. What
//! has to be guessed of damaged images is apart, in `damage` and `fsck::rescue`.

pub mod audit;
mod claims;
mod contents;
mod damage;
mod dir_table;
mod finding;
pub mod fsck;
