//! What a file system is, whatever holds it: the trait, its vocabulary, and all that POSIX decides
//! above an engine.

mod error;
mod fs;
mod types;

pub use error::*;
pub use fs::*;
pub use types::*;
