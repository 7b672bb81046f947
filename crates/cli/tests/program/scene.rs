//! A directory for one test, the program run in it, and the watch over those it started.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The program.
pub const TUREEN: &str = env!("CARGO_BIN_EXE_tureen");

/// How long anything here may take.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A directory for one test, with an image and a directory to mount on. Whatever is still mounted
/// there, or on `other`, goes with it, however the test ends.
pub struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    /// An empty one.
    pub fn new() -> Scene {
        Scene::below(&std::env::temp_dir())
    }

    /// An empty one on a file system of choice.
    pub fn below(dir: &Path) -> Scene {
        let dir = tempfile::tempdir_in(dir).expect("a directory");
        fs::create_dir(dir.path().join("mnt")).expect("a directory to mount on");
        Scene { dir }
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs the program here.
    pub fn run(&self, args: &[&str]) -> Output {
        self.run_as(TUREEN.as_ref(), args)
    }

    /// Runs a program here; one that does not end fails the test.
    pub fn run_as(&self, program: &Path, args: &[&str]) -> Output {
        let mut command = Command::new(program);
        command
            .args(args)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn().expect("the program runs");
        let pid = Pid::from_child(&child);
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(child.wait_with_output()));
        match told.recv_timeout(PATIENCE) {
            Ok(output) => output.expect("its output"),
            Err(RecvTimeoutError::Timeout) => {
                let _ = kill_process(pid, Signal::KILL);
                panic!("{args:?} does not end");
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Runs the program here, to unmount. It is tried again while the mount is in use: between its
    /// fork and its exec, a child of another test has this process's files open.
    pub fn unmount(&self, args: &[&str]) -> Output {
        let start = Instant::now();
        loop {
            let output = self.run(args);
            if !is_in_use(&output) || start.elapsed() > PATIENCE {
                return output;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs the program here; it must succeed.
    #[track_caller]
    pub fn must(&self, args: &[&str]) -> String {
        let output = match args.contains(&"umount") {
            true => self.unmount(args),
            false => self.run(args),
        };
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs the program here; it must end with this code and say something like this.
    #[track_caller]
    pub fn fails(&self, args: &[&str], code: i32, hint: &str) {
        let output = self.run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(hint), "{args:?}: {said}");
    }

    /// Runs the program here; it must succeed and say something like this.
    #[track_caller]
    pub fn tells(&self, args: &[&str], hint: &str) {
        let output = self.run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {output:?}");
        assert!(said.contains(hint), "{args:?}: {said}");
    }

    /// Starts the program here.
    pub fn spawn(&self, args: &[&str]) -> Child {
        let mut command = Command::new(TUREEN);
        command
            .args(args)
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command.spawn().expect("the program runs")
    }

    /// What the live mount says of itself.
    pub fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.must(&["stat", "--json", "mnt"])).expect("JSON")
    }

    /// The process that serves the mount.
    pub fn daemon(&self) -> Pid {
        let pid = self.status()["pid"].as_i64().expect("a number");
        Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid")
    }

    /// Whether anything is mounted on `mnt`.
    pub fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        let dir = self
            .path("mnt")
            .canonicalize()
            .unwrap_or_else(|_| self.path("mnt"));
        mounts.contains(&format!(" {} ", dir.display()))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for dir in ["other", "mnt"] {
            while fuse::unmount(&self.path(dir), true).is_ok() {}
        }
    }
}

/// Whether an `umount` failed as something in the mount is open.
fn is_in_use(output: &Output) -> bool {
    !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("is in use")
}

/// Waits until it is so.
#[track_caller]
pub fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
