//! A mount as a target: a process of its own, as a user has it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::child::Task;
use crate::plan::Plan;
use crate::target::Result;

/// How long a mount may take to appear.
const APPEARS: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Options of each such mount: real flushes, as the engine in-process has them.
const OPTIONS: &str = "domain=line";

/// Processes that serve mounts now: whoever ends this program without unwinding has to end them
/// first.
static LIVE: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Tell all mounts to end: they unmount by themselves, soon after. For programs that are about to
/// exit.
pub fn end_all() {
    live().drain(..).for_each(end);
}

fn live() -> MutexGuard<'static, Vec<Pid>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn end(pid: Pid) {
    // It may have ended by itself.
    let _ = kill_process(pid, Signal::TERM);
}

/// A mount that ends when nobody wants it any more.
pub struct MountProcess {
    process: Child,
    pid: Option<Pid>,
    root: PathBuf,
    options: String,
}

impl MountProcess {
    /// Make an image of `len` bytes in `dir` and mount it there.
    pub fn new(plan: &Plan, options: &str, len: u64, dir: &Path) -> Result<MountProcess> {
        let options = match options {
            "" => OPTIONS.to_owned(),
            more => format!("{OPTIONS},{more}"),
        };
        MountProcess::start(plan, dir, &options, |command, root| {
            command
                .args(["mount", "--foreground", "--create", &len.to_string()])
                .args(["-o", &options])
                .args([&dir.join("image"), root]);
            Ok(())
        })
    }

    /// Mount a file system there that does nothing.
    pub fn null(plan: &Plan, dir: &Path) -> Result<MountProcess> {
        MountProcess::start(plan, dir, "", |command, root| {
            let task = Task::Null { dir: root.clone() };
            command.args(task.arguments()?);
            Ok(())
        })
    }

    fn start(
        plan: &Plan,
        dir: &Path,
        options: &str,
        arguments: impl FnOnce(&mut Command, &PathBuf) -> Result<()>,
    ) -> Result<MountProcess> {
        let mut command = Command::new(plan.program()?);
        let root = dir.join("root");
        std::fs::create_dir(&root)?;
        arguments(&mut command, &root)?;
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let pid = Pid::from_raw(process.id() as i32);
        live().extend(pid);
        let mut mounted = MountProcess {
            process,
            pid,
            root,
            options: options.into(),
        };
        mounted.wait()?;
        Ok(mounted)
    }

    /// Its directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// How it is mounted.
    pub fn options(&self) -> &str {
        &self.options
    }

    fn wait(&mut self) -> Result<()> {
        let outside = std::fs::metadata(self.root.parent().ok_or("a mount on no directory")?)?;
        let begin = Instant::now();
        while begin.elapsed() < APPEARS {
            use std::os::unix::fs::MetadataExt;
            if std::fs::metadata(&self.root)?.dev() != outside.dev() {
                return Ok(());
            }
            if self.process.try_wait()?.is_some() {
                return Err(self.message().into());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Err("the mount does not appear".into())
    }

    /// What a process that has ended said.
    fn message(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut stderr) = self.process.stderr.take() {
            // Nothing more can be said if even that fails.
            let _ = std::io::Read::read_to_string(&mut stderr, &mut text);
        }
        let text = text.trim();
        text.strip_prefix("tureen: ").unwrap_or(text).to_owned()
    }
}

impl Drop for MountProcess {
    fn drop(&mut self) {
        // It unmounts by itself; the directory could not be removed before.
        if let Some(pid) = self.pid {
            live().retain(|own| *own != pid);
            end(pid);
        }
        let _ = self.process.wait();
    }
}
