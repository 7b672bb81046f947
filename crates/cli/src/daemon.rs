//! Into the background: a second run of this program, which tells the first when it is ready.
//!
//! The first run starts the second with its standard output as a pipe and reads that to the end.
//! The second leads a session of its own, mounts, writes [`READY`] and lets go of the terminal. So
//! errors before that point reach the terminal, and the first run's exit code says whether there is
//! a mount.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::failure::{FAILED, Failure, Outcome};

/// What the second run writes once the mount can be used.
const READY: &str = "ready\n";

/// For how many ms the allocator keeps memory that is free: buffers of requests come and go all the
/// time, and each page that has gone back to the kernel is cleared before it comes again. Where it
/// never goes back, 13 % more fsyncs a second were seen on a disk than with the default of 10 ms.
const KEEP_FREE_MEMORY: (&str, &str) = ("MIMALLOC_PURGE_DELAY", "1000");

/// Runs this program again with these arguments, in the background, until it is ready.
pub fn start<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Outcome {
    let failed =
        |error: io::Error| Failure::new(format!("cannot start in the background: {error}"));
    let mut command = Command::new("/proc/self/exe");
    let (name, value) = KEEP_FREE_MEMORY;
    if std::env::var_os(name).is_none() {
        command.env(name, value);
    }
    let mut child = command
        .arg0("tureen")
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut said = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut said).map_err(failed)?;
    }
    if said == READY {
        return Ok(0);
    }
    // It has said why on standard error.
    let status = child.wait().map_err(failed)?;
    match status.code() {
        Some(code) => Ok(u8::try_from(code).unwrap_or(FAILED)),
        None => Err(Failure::new(format!(
            "the background process ended early: {status}"
        ))),
    }
}

/// In the second run: a session of its own, in a directory that keeps nothing busy, under the name
/// of the program: the kernel took that of the link by which it was started.
pub fn detach() -> Result<(), Failure> {
    rustix::thread::set_name(c"tureen")
        .and_then(|()| rustix::process::setsid())
        .and_then(|_| rustix::process::chdir("/"))
        .map_err(|errno| Failure::new(format!("cannot go into the background: {errno}")))
}

/// In the second run: lets the first one go, and the terminal. Messages go to `log` from now on.
pub fn ready(log: Option<&Path>) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::new(format!("cannot go into the background: {error}"));
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(failed)?;
    let messages = match log {
        Some(path) => open_log(path)?,
        None => null.try_clone().map_err(failed)?,
    };
    // The first run may have been interrupted; the mount is there all the same.
    let _ = io::stdout()
        .write_all(READY.as_bytes())
        .and_then(|()| io::stdout().flush());
    rustix::stdio::dup2_stdin(&null)
        .and_then(|()| rustix::stdio::dup2_stdout(&null))
        .and_then(|()| rustix::stdio::dup2_stderr(&messages))
        .map_err(|errno| failed(errno.into()))
}

/// Opens the log to append to.
pub fn open_log(path: &Path) -> Result<File, Failure> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .map_err(|error| Failure::at(path, format!("cannot write the log: {error}")))
}
