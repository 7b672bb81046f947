//! Work in a process of its own: to be killed, or to have its memory measured.
//!
//! The task travels as JSON in an argument, `--child`, of `tureen bench`; there `runs::perform`
//! does it.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::target::Result;
use crate::workloads::tree::Tree;

/// What a process is started for.
#[derive(Debug, Serialize, Deserialize)]
pub enum Task {
    /// Mount a file system that does nothing, until told to end by SIGTERM.
    Null {
        /// Where.
        dir: PathBuf,
    },
    /// Do FxMark's steps, under valgrind; see `runs::trace`.
    Trace {
        /// For images.
        dir: PathBuf,
        /// How many take turns.
        threads: usize,
    },
    /// Make and remove files until killed; says "ready" after a while.
    Churn {
        /// Of the file system.
        image: PathBuf,
        /// On a disk, which is written to by requests.
        on_disk: bool,
    },
    /// Make and remove files of an ext2 image, and make them durable meanwhile, until killed; says
    /// "ready" after a while.
    ChurnExt2 {
        /// Of the file system.
        image: PathBuf,
    },
    /// Ask for the attributes of files, all in their directories; says how much memory that takes.
    Touch {
        /// Of the file system.
        image: PathBuf,
        /// Directories of a [`Tree`].
        tree: Tree,
        /// Inodes kept in DRAM beyond those in use.
        inodes_max: u64,
    },
    /// Open a persistent cache as after a crash; says how long that took, and its memory.
    Reopen {
        /// The file with the cache.
        cache: PathBuf,
        /// The image that it is for.
        disk: PathBuf,
    },
}

/// How a cache was opened again.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Reopened {
    /// How long that took: nanoseconds.
    pub ns: u64,
    /// Memory that it gained: bytes.
    pub dram: u64,
    /// Blocks in it.
    pub blocks: u64,
}

/// What the memory was.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Touched {
    /// Gained by the mount: bytes.
    pub mount: u64,
    /// Gained by touching the files: bytes.
    pub files: u64,
    /// Inodes in DRAM at the end.
    pub inodes: u64,
}

impl Task {
    /// The arguments that make `tureen` do it.
    pub fn arguments(&self) -> Result<[String; 3]> {
        let task = serde_json::to_string(self)?;
        Ok(["bench".into(), "--child".into(), task])
    }

    /// Start it in a process of its own; returns once it has said a line, with the line.
    pub fn start(&self, plan: &Plan) -> Result<(Process, String)> {
        let mut child = Command::new(plan.program()?)
            .args(self.arguments()?)
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().ok_or("no pipe from the child")?;
        let process = Process(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        if line.is_empty() {
            return Err("a child failed".into());
        }
        Ok((process, line))
    }
}

/// A process that is killed when nobody wants it any more.
pub struct Process(std::process::Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
