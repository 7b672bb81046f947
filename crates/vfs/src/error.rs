//! Errors of every file system, with one mapping to `errno`.

use std::fmt;

pub use rustix::io::Errno;

/// What a file-system operation may fail with.
///
/// Conditions that POSIX names are [`Error::Errno`]; a medium that failed or holds nonsense is
/// told apart, because its message says what is wrong and where. Two words, so that results of most
/// operations come back in registers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A condition that POSIX names.
    #[error("{0}")]
    Errno(Errno),
    /// The medium holds something that cannot be: what, and at which byte offset.
    #[error("corrupt image: {0}")]
    Corrupt(Box<Corruption>),
    /// The medium failed; no further writes are accepted.
    #[error("medium failed: {0}")]
    Medium(Box<MediumFailure>),
}

/// Why the medium failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediumFailure(String);

impl fmt::Display for MediumFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A place on the medium that holds something that cannot be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corruption {
    /// What was expected and what was found.
    pub what: String,
    /// Byte offset in the image.
    pub at: u64,
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {:#x}", self.what, self.at)
    }
}

/// The result of a file-system operation.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A corruption at byte offset `at`.
    #[cold]
    pub fn corrupt(at: u64, what: impl Into<String>) -> Error {
        Error::Corrupt(Box::new(Corruption {
            what: what.into(),
            at,
        }))
    }

    /// A failure of the medium, and why.
    #[cold]
    pub fn medium(why: impl Into<String>) -> Error {
        Error::Medium(Box::new(MediumFailure(why.into())))
    }

    /// The one mapping to an error number. Corruption is `EUCLEAN`, as kernel file systems have
    /// it; a failed medium is `EIO`.
    pub fn errno(&self) -> Errno {
        match self {
            Error::Errno(errno) => *errno,
            Error::Corrupt(_) => Errno::UCLEAN,
            Error::Medium(_) => Errno::IO,
        }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        Error::Errno(errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_takes_two_words() {
        assert_eq!(size_of::<Result<u64>>(), 2 * size_of::<usize>());
    }
}
