//! Block devices for tests that run as root, and commands.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A loop device on a file; detached when dropped.
pub struct Loop {
    device: PathBuf,
}

impl Loop {
    /// A free one, on this file.
    ///
    /// # Panics
    /// There is none, or the caller is not root.
    pub fn attach(file: &Path) -> Loop {
        let device = run(Command::new("losetup").args(["--find", "--show"]).arg(file));
        Loop {
            device: device.into(),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.device
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run(Command::new("losetup").arg("--detach").arg(&self.device));
    }
}

/// What a command says.
///
/// # Panics
/// It cannot be run, or fails.
pub fn run(command: &mut Command) -> String {
    let output = command.output().expect("it is installed");
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
