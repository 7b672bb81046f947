//! A directory for one test, the program run in it, and the watch over those it started.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const TUREEN: &str = env!("CARGO_BIN_EXE_tureen");

/// How long anything here may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A directory for one test, with an image and a directory to mount on. Whatever is still mounted
/// goes with it, however the test ends.
struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("mnt")).expect("a directory to mount on");
        Scene { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs the program here.
    fn run(&self, args: &[&str]) -> Output {
        self.run_as(TUREEN.as_ref(), args)
    }

    fn run_as(&self, program: &Path, args: &[&str]) -> Output {
        let mut command = Command::new(program);
        command
            .args(args)
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command.output().expect("the program runs")
    }

    /// Runs the program here; it must succeed.
    #[track_caller]
    fn must(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs the program here; it must end with this code and say something like this.
    #[track_caller]
    fn fails(&self, args: &[&str], code: i32, hint: &str) {
        let output = self.run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(hint), "{args:?}: {said}");
    }

    fn spawn(&self, args: &[&str]) -> Child {
        let mut command = Command::new(TUREEN);
        command
            .args(args)
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command.spawn().expect("the program runs")
    }

    fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.must(&["stat", "--json", "mnt"])).expect("JSON")
    }

    fn is_mounted(&self) -> bool {
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
        while fuse::unmount(&self.path("mnt"), true).is_ok() {}
    }
}

/// Waits until it is so.
#[track_caller]
fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
