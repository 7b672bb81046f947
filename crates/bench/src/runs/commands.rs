//! Programs that others wrote, run where a target is.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::participants::Participant;
use crate::sampler::{FigureId, Sampler};
use crate::target::Result;

/// Said of a program that is not there.
pub const MISSING: &str = "is not installed";

/// How long a server may take to be told of a close.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// Runs programs, and remembers which were missing or failed: that is a note, and no figure.
#[derive(Default)]
pub struct Commands {
    failed: Mutex<BTreeSet<String>>,
}

impl Commands {
    /// Time a program in the directory of a participant, with what the participant did meanwhile:
    /// ns for each of `ops`.
    pub fn time(
        &self,
        (one, sampler): (&Participant, &mut Sampler<'_>),
        id: FigureId,
        ops: usize,
        mut command: Command,
    ) -> Result<()> {
        command.current_dir(one.place()?);
        let done = sampler.counted(id, ops, || output(&mut command).map(drop));
        self.note(one, done);
        Ok(())
    }

    /// Remember a failure.
    pub fn note(&self, one: &Participant, done: Result<()>) {
        if let Err(why) = done {
            let why = why.to_string();
            // A program that is missing is missing for all.
            let whose = match why.ends_with(MISSING) {
                true => String::new(),
                false => format!("{}: ", one.peer.name),
            };
            self.failed().insert(format!("no figure: {whose}{why}"));
        }
    }

    /// What was missing or failed, for the notes of a run.
    pub fn notes(&self) -> Vec<String> {
        self.failed().iter().cloned().collect()
    }

    fn failed(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A program that says nothing unless it fails; returns what it printed.
///
/// # Errors
/// If it is not there, or fails, with the last line that it said.
pub fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|why| match why.kind() {
            ErrorKind::NotFound => format!("{program} {MISSING}"),
            _ => format!("{program}: {why}"),
        })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or_default();
    Err(format!("{program} failed ({}): {last}", output.status).into())
}

/// A program with arguments.
pub fn command(words: &[&str]) -> Command {
    let (program, arguments) = words.split_first().expect("a program has a name");
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// Remove what programs left in a directory.
pub fn remove_all(dir: &Path, names: &[&str]) -> Result<()> {
    for name in names {
        let path = dir.join(name);
        match path.symlink_metadata() {
            Ok(found) if found.is_dir() => remove_tree(&path)?,
            Ok(_) => std::fs::remove_file(path)?,
            Err(_) => {}
        }
    }
    Ok(())
}

/// Removes a directory and all in it. A server of FUSE may keep what was open when it lost its name
/// under another one in its directory, until it is told of the close, which nobody waits for.
fn remove_tree(path: &Path) -> Result<()> {
    let begun = Instant::now();
    loop {
        match std::fs::remove_dir_all(path) {
            Err(why)
                if why.kind() == ErrorKind::DirectoryNotEmpty && begun.elapsed() < CLOSE_MAX =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            done => return Ok(done?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_missing_or_fails_is_named_with_what_it_said() {
        let why = |words: &[&str]| output(&mut command(words)).unwrap_err().to_string();
        let missing = why(&["no-such-program"]);
        assert_eq!(missing, "no-such-program is not installed");
        let failed = why(&["sh", "-c", "echo first >&2; echo last >&2; exit 3"]);
        assert!(
            failed.contains("exit status: 3") && failed.ends_with(": last"),
            "{failed}"
        );
        assert_eq!(output(&mut command(&["echo", "said"])).unwrap(), "said\n");
    }
}
