//! The programs of e2fsprogs as judges of images of ext2, for the explorer and for tests: they know
//! the format, and nothing of the engine.
//!
//! ```text
//! is_there                    whether they are installed
//! problems, problems_in       what e2fsck finds: the codes of its log
//! problems_now                the same of what was made by the clock; or what it mends
//! is_harmless                 whether a crash in mode soft may leave that
//! ```
//!
//! Codes are those of `e2fsck/problem.h`, tried with 1.47.0. They do not tell a link count that is
//! too high from one that is too low, which is damage: for that there is the engine's own check.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What e2fsck takes for the time of day, in seconds since 1970: behind all that images are made
/// with here, as times in the future are errors.
pub const NOW: i64 = 1_500_000_000;

/// What e2fsck may say of the state behind a crash in mode soft, and why that is harmless.
pub const HARMLESS: &[(&str, u32)] = &[
    ("a file has blocks behind its end: it was growing", 0x01000c),
    ("the count is 0, and it is still there", 0x010004),
    ("the count of a file's blocks", 0x01000d),
    ("a directory of two names", 0x020006),
    ("a directory without a name", 0x030003),
    ("a directory without a name", 0x030005),
    ("a file without a name, and empty", 0x040001),
    ("a file without a name", 0x040002),
    ("a link count, too high", 0x040003),
];

/// Whether a crash in mode soft may leave what e2fsck has this code for.
pub fn is_harmless(code: u32) -> bool {
    // Bits that nothing uses, and counts of groups.
    code >> 8 == 0x0500 || HARMLESS.iter().any(|row| row.1 == code)
}

/// A tool: at [`NOW`], in English, also where users have no /usr/sbin in their path.
pub fn command(name: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(name);
    command
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .env("E2FSPROGS_FAKE_TIME", NOW.to_string())
        .env("LC_ALL", "C");
    command
}

/// Whether a tool can be run.
pub fn is_there(name: &str) -> bool {
    output(command(name).arg("-V")).is_ok()
}

/// Held while a process is started, and by who opens an image that no other process may have: a
/// child has all descriptors of its parent, locks included, until it runs its program.
pub fn starting() -> MutexGuard<'static, ()> {
    static STARTING: Mutex<()> = Mutex::new(());
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a command to its end.
///
/// # Errors
/// It cannot be started.
pub fn output(command: &mut Command) -> io::Result<Output> {
    let command = command.stdin(Stdio::null());
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = {
        let _starting = starting();
        command.spawn()?
    };
    child.wait_with_output()
}

/// The codes of what e2fsck finds in the image in a file, which it does not change. Its log is
/// written to the file `log`.
///
/// # Errors
/// e2fsck cannot be started, or did not end by itself, or did not write its log.
pub fn problems(image: &Path, log: &Path) -> io::Result<BTreeSet<u32>> {
    problems_by(&mut command("e2fsck"), "-fn", image, log)
}

/// The same, or with "-fp" what it mends, of an image that was made by the clock, and not at
/// [`NOW`].
///
/// # Errors
/// As there.
pub fn problems_now(how: &str, image: &Path, log: &Path) -> io::Result<BTreeSet<u32>> {
    let mut command = command("e2fsck");
    problems_by(command.env_remove("E2FSPROGS_FAKE_TIME"), how, image, log)
}

fn problems_by(
    command: &mut Command,
    how: &str,
    image: &Path,
    log: &Path,
) -> io::Result<BTreeSet<u32>> {
    let option = format!("problem_log={}", log.display());
    let args = [how.as_ref(), "-E".as_ref(), OsStr::new(&option)];
    let checked = output(command.args(args).arg(image))?;
    if checked.status.code().is_none() {
        let text = String::from_utf8_lossy(&checked.stdout);
        let how = checked.status;
        return Err(io::Error::other(format!("e2fsck ended by {how}: {text}")));
    }
    let text = std::fs::read_to_string(log)?;
    let codes = text.split("<problem code=\"0x").skip(1);
    let code = |rest: &str| {
        let digits = rest.get(..6).unwrap_or_default();
        u32::from_str_radix(digits, 16).map_err(io::Error::other)
    };
    codes.map(code).collect()
}

/// The same of an image in memory: it is written to a file of `/dev/shm`, where there is that,
/// which is removed again.
///
/// # Errors
/// As there; the file cannot be written.
pub fn problems_in(image: &[u8]) -> io::Result<BTreeSet<u32>> {
    let folder = Folder::new()?;
    let at = folder.0.join("image");
    std::fs::write(&at, image)?;
    problems(&at, &folder.0.join("log"))
}

/// A folder for an image and a log.
struct Folder(PathBuf);

impl Folder {
    fn new() -> io::Result<Folder> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let memory = Path::new("/dev/shm");
        let parent = match memory.is_dir() {
            true => memory.to_owned(),
            false => std::env::temp_dir(),
        };
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = Folder(parent.join(format!("tureen-e2fsck-{process}-{number}")));
        std::fs::create_dir(&folder.0)?;
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left of it is in nobody's way.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
