//! What the program prints.
//!
//! The macros of the standard library panic when nothing can be written, so that
//! `tureen fsck -n IMAGE | head -1` would end with a panic. These take their place in all modules:
//! the work goes on to its end and its exit code when nobody reads of it any more, and any other
//! trouble is told there, see [`check`].

use std::fmt::Arguments;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::OnceLock;

use indicatif::{ProgressBar, ProgressStyle};

use crate::failure::Failure;

/// Why something could not be printed, for the first time.
static TROUBLE: OnceLock<io::Error> = OnceLock::new();

macro_rules! print {
    ($($what:tt)+) => { $crate::output::print(format_args!($($what)+)) };
}

macro_rules! println {
    ($($what:tt)+) => { $crate::output::print(format_args!("{}\n", format_args!($($what)+))) };
}

macro_rules! eprintln {
    ($($what:tt)+) => { $crate::output::complain(format_args!($($what)+)) };
}

/// Prints to standard output.
pub fn print(what: Arguments) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_fmt(what).and_then(|()| out.flush()) {
        let _ = TROUBLE.set(error);
    }
}

/// Whether all so far could be printed: otherwise what else is printed will hardly be read.
pub fn is_read() -> bool {
    TROUBLE.get().is_none()
}

/// Prints a line to standard error; where that cannot be done there is nobody to tell.
pub fn complain(what: Arguments) {
    let _ = writeln!(io::stderr(), "{what}");
}

/// Where long work shows how far it is, if somebody looks.
pub fn progress_bar(json: bool) -> ProgressBar {
    if json || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg:6} {bar:40} {percent}% {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}

/// Whether all could be printed that somebody would read.
pub fn check() -> Result<(), Failure> {
    match TROUBLE.get() {
        None => Ok(()),
        Some(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Some(error) => Err(Failure::new(format!(
            "cannot print what came of it: {error}"
        ))),
    }
}

/// Messages of this level go to standard error, unless `RUST_LOG` asks for more or less.
pub fn start_log(level: &str) {
    let env = env_logger::Env::default().default_filter_or(level);
    env_logger::Builder::from_env(env)
        .format_target(false)
        .init();
}
