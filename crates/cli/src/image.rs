//! Images by path: found, told apart, free or not.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde_json::Value;

use crate::failure::Failure;

/// The absolute path of an existing image.
pub fn existing(image: &Path) -> Result<PathBuf, Failure> {
    match image.canonicalize() {
        Ok(path) if path.is_dir() => Err(Failure::at(image, "is a directory, not an image")),
        Ok(path) => Ok(path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Failure::at(
            image,
            "no such image; make one with 'tureen mkfs IMAGE --size 1G', or mount with --create 1G",
        )),
        Err(error) => Err(Failure::at(image, error)),
    }
}

/// The absolute path of an image that may not exist yet; its directory must.
pub fn absolute(image: &Path) -> Result<PathBuf, Failure> {
    if image.exists() {
        return existing(image);
    }
    let name = image
        .file_name()
        .ok_or_else(|| Failure::at(image, "is not a file's name"))?;
    let parent = image
        .parent()
        .filter(|parent| *parent != Path::new(""))
        .unwrap_or(Path::new("."));
    let parent = parent
        .canonicalize()
        .map_err(|error| Failure::at(parent, error))?;
    Ok(parent.join(name))
}

/// Whether nobody holds the image, not even for reading; `None` when we may not look.
pub fn is_free(image: &Path) -> Option<bool> {
    is_unlocked(&File::open(image).ok()?)
}

/// The same of an image that is open.
pub fn is_unlocked(image: &File) -> Option<bool> {
    match rustix::fs::flock(image, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            let _ = rustix::fs::flock(image, FlockOperation::Unlock);
            Some(true)
        }
        Err(Errno::WOULDBLOCK) => Some(false),
        Err(_) => None,
    }
}

/// Which file this path leads to, as no other file is called while this one is in use.
pub fn id(image: &Path) -> Option<String> {
    let found = std::fs::metadata(image).ok()?;
    Some(format!("{}:{}", found.dev(), found.ino()))
}

/// Opens the image of a live mount, by its path if that still leads to it, else as its process has
/// it open: by another name, or by none. `None` when we may not look.
pub fn of_mount(path: &Path, status: &Value) -> Option<File> {
    let Some(served) = status["image_id"].as_str() else {
        return File::open(path).ok(); // it could not be asked
    };
    // Looked at before it is opened, which is not harmless for everything that a process has open.
    let open = |path: &Path| {
        let is_served = id(path).is_some_and(|found| found == served);
        is_served.then(|| File::open(path).ok())?
    };
    open(path).or_else(|| {
        let opened = std::fs::read_dir(format!("/proc/{}/fd", status["pid"])).ok()?;
        opened.flatten().find_map(|entry| open(&entry.path()))
    })
}

/// The path of an open file that leads to it whatever its name is, or becomes.
pub fn path_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}
