//! Work in a process of its own: to be killed, or to have its memory measured.
//!
//! The task travels as JSON in an argument, `--child`, of `tureen bench`.

use std::ffi::CString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use vfs::SystemClock;

use crate::machine::dram;
use crate::plan::Plan;
use crate::target::{Engine, Setup};
use crate::target::{Result, Target};

/// What a process is started for.
#[derive(Debug, Serialize, Deserialize)]
pub enum Task {
    /// Mount a file system that does nothing, until told to end by SIGTERM.
    Null {
        /// Where.
        dir: PathBuf,
    },
    /// Do FxMark's steps, under valgrind; see `trace.rs`.
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
}

/// Directories with files in them.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Tree {
    /// Directories in the root.
    pub dirs: u64,
    /// Files in each.
    pub files: u64,
    /// One file in so many has a block of contents; 0: none has.
    pub data_every: u64,
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

/// Files that a churning process makes before it says that it is ready, and before it removes
/// them.
const CHURN: u64 = 100_000;

/// How long users of a mount may finish after it was told to end.
const GRACE: Duration = Duration::from_secs(1);

/// Files of a churning process that are open without a name, with a block of contents each.
const ORPHANS: u64 = 1_000;

impl Task {
    /// Start it in a process of its own; returns once it has said a line, with the line.
    pub fn start(&self, plan: &Plan) -> Result<(Process, String)> {
        let program = plan.tureen.as_ref();
        let program = program.ok_or("only `tureen bench` can start processes")?;
        let mut child = Command::new(program)
            .args(["bench", "--child"])
            .arg(serde_json::to_string(self)?)
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

    /// Do it, in the process that was started for it.
    pub fn run(&self) -> Result<()> {
        match self {
            Task::Null { dir } => null(dir),
            Task::Trace { dir, threads } => super::trace::perform(dir, *threads),
            Task::Churn { image } => {
                let setup = Setup::default();
                let engine = setup.mount("SoupFS", setup.open(image)?)?;
                orphans(&engine)?;
                churn(&engine, || println!("ready"), || false)
            }
            Task::Touch {
                image,
                tree,
                inodes_max,
            } => {
                let touched = touch(image, *tree, *inodes_max)?;
                println!("{}", serde_json::to_string(&touched)?);
                Ok(())
            }
        }
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

/// Make files and remove them, in turns, until `stop`; `ready` is called once, early in the second
/// turn: some changes are persisted then, some are not.
pub fn churn(engine: &Engine, ready: impl FnOnce(), stop: impl Fn() -> bool) -> Result<()> {
    let dir = format!("churn{}-{}", std::process::id(), engine.status().epoch);
    engine.mkdir(&CString::new(dir.as_str())?)?;
    let mut ready = Some(ready);
    for turn in 0u64.. {
        let name = |i| CString::new(format!("{dir}/{turn}-{i}"));
        for i in 0..CHURN {
            engine.create_close(&name(i)?)?;
            if turn == 1 && i == CHURN / 2 {
                ready.take().into_iter().for_each(|ready| ready());
            }
            if stop() {
                return Ok(());
            }
        }
        for i in 0..CHURN / 2 {
            engine.unlink(&name(i)?)?;
            if stop() {
                return Ok(());
            }
        }
        for i in CHURN / 2..CHURN {
            engine.unlink(&name(i)?)?;
        }
    }
    Ok(())
}

/// Files that are open and have no name left, durably: what a kill is sure to lose track of.
fn orphans(engine: &Engine) -> Result<()> {
    for i in 0..ORPHANS {
        let name = CString::new(format!("orphan{i}"))?;
        let file = engine.create(&name)?;
        engine.write(file, &[7; 4096])?;
        engine.fsync(file)?;
        engine.unlink(&name)?;
    }
    engine.sync()
}

impl Tree {
    /// Files in all.
    pub fn count(&self) -> u64 {
        self.dirs * self.files
    }

    /// Make it in the root.
    pub fn build(&self, engine: &Engine) -> Result<()> {
        self.build_at(engine, "")
    }

    /// Make it in a directory, which is made, too.
    pub fn build_in(&self, engine: &Engine, parent: &str) -> Result<()> {
        engine.mkdir(&CString::new(parent)?)?;
        self.build_at(engine, &format!("{parent}/"))
    }

    fn build_at(&self, engine: &Engine, prefix: &str) -> Result<()> {
        let data = vec![1; 4096];
        for dir in 0..self.dirs {
            engine.mkdir(&CString::new(format!("{prefix}{dir}"))?)?;
            for file in 0..self.files {
                let path = CString::new(format!("{prefix}{dir}/{file}"))?;
                let handle = engine.create(&path)?;
                if self.data_every > 0 && file % self.data_every == 0 {
                    engine.write(handle, &data)?;
                }
                engine.close(handle)?;
            }
        }
        engine.sync()
    }
}

/// Serves a file system that does nothing; its status counts requests, as that of a `tureen mount` does.
fn null(dir: &Path) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let options = fuse::Options::new("null", Arc::new(SystemClock));
    let monitor = options.monitor.clone();
    let status = move || {
        let counts = monitor.counts().into_iter();
        let requests: serde_json::Map<_, _> = counts
            .map(|(request, count)| (request.name().to_owned(), count.into()))
            .collect();
        serde_json::json!({ "requests": requests })
            .to_string()
            .into_bytes()
    };
    let mount = fuse::mount_nothing(dir, &options, Arc::new(status))?;
    let unmounter = mount.unmounter();
    std::thread::spawn(move || {
        for _ in signals.forever() {
            unmounter.stop(GRACE);
        }
    });
    Ok(mount.wait()?)
}

fn path(dir: u64, file: u64) -> Result<CString> {
    Ok(CString::new(format!("{dir}/{file}"))?)
}

fn touch(image: &Path, tree: Tree, inodes_max: u64) -> Result<Touched> {
    let setup = Setup {
        inodes_max,
        // Evict often: what was freed meanwhile stays with the process.
        bound: Duration::from_millis(5),
        ..Setup::default()
    };
    let before = dram();
    let engine = setup.mount("SoupFS", setup.open(image)?)?;
    let mounted = dram();
    for dir in 0..tree.dirs {
        for file in 0..tree.files {
            engine.stat(&path(dir, file)?)?;
        }
    }
    // Idle for a while, so that inodes beyond the limit are dropped.
    std::thread::sleep(Duration::from_secs(1));
    Ok(Touched {
        mount: mounted.saturating_sub(before),
        files: dram().saturating_sub(mounted),
        inodes: engine.status().inodes_cached,
    })
}
