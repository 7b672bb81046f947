//! Failures as the user sees them: one message, one exit code.

use std::fmt::Display;
use std::path::Path;

/// Exit code when something failed.
pub const FAILED: u8 = 1;
/// Exit code for arguments that make no sense.
pub const USAGE: u8 = 2;

/// A subcommand's end: its exit code, or why it failed.
pub type Outcome = Result<u8, Failure>;

/// Why a subcommand failed: what happened, where, and what to do next.
#[derive(Debug)]
pub struct Failure {
    /// For the user; without the program's name.
    pub message: String,
    /// The exit code.
    pub code: u8,
}

impl Failure {
    /// A failure with the usual exit code.
    pub fn new(message: impl Display) -> Failure {
        Failure {
            message: message.to_string(),
            code: FAILED,
        }
    }

    /// Arguments that make no sense.
    pub fn usage(message: impl Display) -> Failure {
        Failure::new(message).with_code(USAGE)
    }

    /// A failure at a path.
    pub fn at(path: &Path, what: impl Display) -> Failure {
        Failure::new(format!("{}: {what}", path.display()))
    }

    /// The same failure with another exit code.
    pub fn with_code(self, code: u8) -> Failure {
        Failure { code, ..self }
    }
}

impl From<volume::Error> for Failure {
    fn from(error: volume::Error) -> Failure {
        Failure::new(error)
    }
}
