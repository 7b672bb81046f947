//! A mount as a target: a process of its own, as a user has it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::kernel;
use crate::child::Task;
use crate::plan::Plan;
use crate::target::{Failure, Result, Setup};

/// How long a mount may take to appear.
const APPEARS: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(5);

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

/// The directory to mount on, made in `dir`.
fn root_in(dir: &Path) -> Result<PathBuf> {
    let root = dir.join("root");
    std::fs::create_dir(&root)?;
    Ok(root)
}

/// A mount that ends when nobody wants it any more.
pub struct MountProcess {
    process: Child,
    pid: Option<Pid>,
    root: PathBuf,
    options: String,
}

impl MountProcess {
    /// Make an image in `dir` and mount it there, in the domain of `setup`, with more options.
    pub fn new(plan: &Plan, more: &str, setup: &Setup, dir: &Path) -> Result<MountProcess> {
        let mut options = format!("domain={}", setup.domain);
        if !more.is_empty() {
            options += &format!(",{more}");
        }
        let mut command = Command::new(plan.program()?);
        let root = root_in(dir)?;
        command
            .args(["mount", "--foreground", "--create", &setup.len.to_string()])
            .args(["-o", &options])
            .args([&dir.join("image"), &root]);
        MountProcess::start(command, root, &options)
    }

    /// Mount a file system there that does nothing.
    pub fn null(plan: &Plan, dir: &Path) -> Result<MountProcess> {
        let mut command = Command::new(plan.program()?);
        let root = root_in(dir)?;
        let task = Task::Null { dir: root.clone() };
        command.args(task.arguments()?);
        MountProcess::start(command, root, "")
    }

    /// Make an ext4 in a file of `len` bytes in `dir` and have fuse2fs serve it there.
    pub fn fuse2fs(len: u64, dir: &Path) -> Result<MountProcess> {
        let (image, root) = (dir.join("image"), root_in(dir)?);
        kernel::make_ext4(len, &image)?;
        let mut command = Command::new("fuse2fs");
        command.arg("-f").args([&image, &root]);
        MountProcess::start(command, root, "")
    }

    fn start(mut command: Command, root: PathBuf, options: &str) -> Result<MountProcess> {
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|why| match why.kind() {
                std::io::ErrorKind::NotFound => Failure::from("the program is not installed"),
                _ => why.into(),
            })?;
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
