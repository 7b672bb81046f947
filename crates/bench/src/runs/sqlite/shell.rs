//! The program `sqlite3`, which is asked one thing after the other.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Stdio};

use super::super::commands::{MISSING, command};
use crate::target::{Failure, Result};

/// It says this behind an answer.
const END: &str = "end of the answer";

/// A `sqlite3` that is running. It ends with the value.
pub struct Shell {
    process: Child,
    /// It ends when this is closed.
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    errors: Option<ChildStderr>,
}

impl Shell {
    /// Started in a directory, where it has done what was `told` to it.
    ///
    /// # Errors
    /// If it is not there, or cannot do that.
    pub fn start(dir: &Path, told: &str) -> Result<Shell> {
        let mut process = command(&["sqlite3", "-batch", "-bail"])
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|why| match why.kind() {
                std::io::ErrorKind::NotFound => Failure::from(format!("sqlite3 {MISSING}")),
                _ => why.into(),
            })?;
        let (input, errors) = (process.stdin.take(), process.stderr.take());
        let output = process.stdout.take().ok_or("no pipe from sqlite3")?;
        let output = BufReader::new(output).lines();
        let mut shell = Shell {
            process,
            input,
            output,
            errors,
        };
        shell.ask(told)?;
        Ok(shell)
    }

    /// Tell it something, and wait until it has done that: returns what it said.
    ///
    /// # Errors
    /// If it cannot; then it has ended.
    pub fn ask(&mut self, text: &str) -> Result<Vec<String>> {
        let asked = format!("{text}\nSELECT '{END}';\n");
        let input = self.input.as_mut().ok_or("sqlite3 was ended")?;
        // If it has ended it has said why.
        let written = input.write_all(asked.as_bytes());
        let mut answer = Vec::new();
        for line in &mut self.output {
            match line? {
                line if line == END => return Ok(answer),
                line => answer.push(line),
            }
        }
        written?;
        let mut said = String::new();
        if let Some(mut errors) = self.errors.take() {
            errors.read_to_string(&mut said)?;
        }
        Err(format!("sqlite3 failed: {}", said.trim()).into())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.input = None;
        // Nobody is there to be told how it ended.
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_answers_until_it_fails_and_says_why() {
        let mut shell = match Shell::start(Path::new("/"), "CREATE TABLE t(v);") {
            Ok(shell) => shell,
            Err(why) => return assert_eq!(why.to_string(), "sqlite3 is not installed"),
        };
        let said = shell.ask("INSERT INTO t VALUES (1), (2);\nSELECT v FROM t;");
        assert_eq!(said.unwrap(), ["1", "2"]);
        assert_eq!(shell.ask("").unwrap(), [""; 0]);
        let why = shell.ask("SELECT v FROM missing;").unwrap_err().to_string();
        assert!(why.contains("no such table: missing"), "{why}");
        assert!(shell.ask("SELECT 1;").is_err());
    }
}
