//! A mount as a target: a process of its own, as a user has it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::kernel;
use crate::child::Task;
use crate::plan::Plan;
use crate::target::{Ext2Mount, Failure, Result, Setup};

/// How long a mount may take to appear.
const APPEARS: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_micros(500);

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
    process: Server,
    /// What serves the image again, once it is there.
    again: Command,
    image: PathBuf,
    root: PathBuf,
    options: String,
    /// Where its cache is; goes after the process.
    _memory: Option<TempDir>,
}

/// A process that is told to end when nobody wants it any more, and unmounts by itself.
struct Server {
    process: Child,
    pid: Option<Pid>,
}

impl MountProcess {
    /// Make an image in `dir` and mount it there, in the domain of `setup`, with more options.
    pub fn new(plan: &Plan, more: &str, setup: &Setup, dir: &Path) -> Result<MountProcess> {
        let mut options = format!("domain={}", setup.domain);
        if !more.is_empty() {
            options += &format!(",{more}");
        }
        let (image, root) = (dir.join("image"), root_in(dir)?);
        let command = |create: &[&str]| -> Result<Command> {
            let mut command = Command::new(plan.program()?);
            command.args(["mount", "--foreground"]).args(create);
            command.args(["-o", &options]).args([&image, &root]);
            Ok(command)
        };
        let created = command(&["--create", &setup.len.to_string()])?;
        MountProcess::start((created, command(&[])?), image, root, &options)
    }

    /// Make an ext2 image of `len` bytes in `dir`, with a cache before it if one is asked for, and
    /// mount it there.
    pub fn ext2(plan: &Plan, spec: &Ext2Mount, len: u64, dir: &Path) -> Result<MountProcess> {
        let (image, root, len_text) = (dir.join("image"), root_in(dir)?, len.to_string());
        let program = || -> Result<Command> { Ok(Command::new(plan.program()?)) };
        let mut mkfs = program()?;
        mkfs.args(["mkfs", "--type", "ext2", "--size", &len_text]);
        if spec.has_journal() {
            mkfs.arg("--journal");
        }
        kernel::run(mkfs.arg(&image))?;
        let mut options = spec.options.clone();
        let mut memory = None;
        if let Some(kind) = spec.cache {
            let temp = plan.temp()?;
            let cache = temp.path().join("cache");
            let mut create = program()?;
            create.args(["cache", "create"]).arg(&cache);
            create.arg("--for").arg(&image);
            let size = spec.cache_len(len).to_string();
            kernel::run(create.args(["--size", &size, "--kind", &kind.to_string()]))?;
            let comma = if options.is_empty() { "" } else { "," };
            options += &format!("{comma}cache={}", cache.display());
            memory = Some(temp);
        }
        let command = || -> Result<Command> {
            let mut command = program()?;
            command.args(["mount", "--foreground"]);
            if !options.is_empty() {
                command.args(["-o", &options]);
            }
            command.args([&image, &root]);
            Ok(command)
        };
        let shown = match options.as_str() {
            "" => format!("mode={}", spec.mode_name()),
            _ => spec.shown_options(),
        };
        let (first, again) = (command()?, command()?);
        let mounted = MountProcess::start((first, again), image, root, &shown)?;
        Ok(MountProcess {
            _memory: memory,
            ..mounted
        })
    }

    /// Mount an image that is there on a directory in `dir`.
    pub fn of_image(plan: &Plan, image: &Path, dir: &Path) -> Result<MountProcess> {
        let root = root_in(dir)?;
        let command = || -> Result<Command> {
            let mut command = Command::new(plan.program()?);
            command.args(["mount", "--foreground"]).args([image, &root]);
            Ok(command)
        };
        let commands = (command()?, command()?);
        MountProcess::start(commands, image.to_owned(), root, "")
    }

    /// Mount a file system there that does nothing.
    pub fn null(plan: &Plan, dir: &Path) -> Result<MountProcess> {
        let mut command = Command::new(plan.program()?);
        let root = root_in(dir)?;
        let task = Task::Null { dir: root.clone() };
        let arguments = task.arguments()?;
        command.args(&arguments);
        let mut again = Command::new(plan.program()?);
        again.args(arguments);
        MountProcess::start((command, again), dir.join("image"), root, "")
    }

    /// Make an ext4 in a file of `len` bytes in `dir` and have fuse2fs serve it there.
    pub fn fuse2fs(len: u64, dir: &Path) -> Result<MountProcess> {
        let (image, root) = (dir.join("image"), root_in(dir)?);
        kernel::make_ext4(len, &image)?;
        let [command, again] = [(); 2].map(|()| {
            let mut command = Command::new("fuse2fs");
            command.arg("-f").args([&image, &root]);
            command
        });
        MountProcess::start((command, again), image, root, "")
    }

    fn start(
        (mut command, again): (Command, Command),
        image: PathBuf,
        root: PathBuf,
        options: &str,
    ) -> Result<MountProcess> {
        let mut mounted = MountProcess {
            process: Server::start(&mut command)?,
            again,
            image,
            root,
            options: options.into(),
            _memory: None,
        };
        mounted.wait()?;
        Ok(mounted)
    }

    /// Unmount and mount again, with nothing of the image left in memory.
    pub fn restart(&mut self) -> Result<()> {
        self.process.end();
        kernel::forget(&std::fs::File::open(&self.image)?)?;
        self.process = Server::start(&mut self.again)?;
        self.wait()
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
            if self.process.process.try_wait()?.is_some() {
                return Err(self.process.message().into());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Err("the mount does not appear".into())
    }
}

impl Server {
    fn start(command: &mut Command) -> Result<Server> {
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
        Ok(Server { process, pid })
    }

    /// It unmounts by itself; the directory could not be removed before.
    fn end(&mut self) {
        if let Some(pid) = self.pid.take() {
            live().retain(|own| *own != pid);
            end(pid);
        }
        // Nobody is there to be told how it ended.
        let _ = self.process.wait();
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

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}
