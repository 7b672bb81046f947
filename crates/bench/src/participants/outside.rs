//! Directories of targets that lie outside of the scratch directory.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::target::Result;

/// Directories of targets that lie outside of the scratch directory now.
static OUTSIDE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Directories that whoever ends this program without unwinding has to remove, beside the scratch
/// directory. As long as they are held, no target makes or removes one.
pub fn outside_dirs() -> MutexGuard<'static, Vec<PathBuf>> {
    OUTSIDE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory of its own in one that somebody named. It goes away with the value.
pub struct OutsideDir(PathBuf);

impl OutsideDir {
    /// A new one in `at`.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new(at: &Path) -> Result<OutsideDir> {
        let mut all = outside_dirs();
        let made = tempfile::Builder::new()
            .prefix("tureen-bench")
            .tempdir_in(at)?
            .keep();
        all.push(made.clone());
        Ok(OutsideDir(made))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for OutsideDir {
    fn drop(&mut self) {
        let mut all = outside_dirs();
        // As with all that is temporary, nobody is there to be told.
        let _ = std::fs::remove_dir_all(&self.0);
        all.retain(|own| *own != self.0);
    }
}
