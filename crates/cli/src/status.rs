//! The status of a live mount, read through an attribute of what is mounted. What is in it, the
//! process that serves says: see [`mod@crate::report`].

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use volume::Engine;

use crate::engines::ENGINES;
use crate::failure::Failure;
use crate::options::MountOptions;

/// Room for the longest status.
const LEN_MAX: usize = 64 << 10;

/// Asks the process that serves the mount on this directory.
pub fn ask(dir: &Path) -> Result<Value, Failure> {
    let mut text = vec![0; LEN_MAX];
    let len = rustix::fs::getxattr(dir, fuse::STATUS_XATTR, &mut text).map_err(|errno| {
        let why = match errno {
            rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED => {
                "the process that served this mount has died; 'tureen umount' removes the mount, \
                 and mounting again recovers what was durable"
                    .to_string()
            }
            rustix::io::Errno::ACCESS => {
                "only the user who mounted it may ask for its status".to_string()
            }
            errno => format!("no status: {errno}"),
        };
        Failure::at(dir, why)
    })?;
    serde_json::from_slice(&text[..len])
        .map_err(|error| Failure::at(dir, format!("its status makes no sense: {error}")))
}

/// Has the process that serves the mount on this directory run a command: what came of it.
pub fn command(dir: &Path, command: &str) -> Result<Value, Failure> {
    let mut text = vec![0; LEN_MAX];
    let name = format!("{}{command}", fuse::CONTROL_XATTR);
    let len = rustix::fs::getxattr(dir, name, &mut text).map_err(|errno| {
        let why = match errno {
            rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED => {
                "the process that served this mount has died; 'tureen umount' removes the mount"
            }
            rustix::io::Errno::ACCESS => "only the user who mounted it, and root, may do that",
            rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP => {
                "it is not a mount of tureen, or one of an older version"
            }
            rustix::io::Errno::RANGE => "the name is too long",
            errno => return Failure::at(dir, errno),
        };
        Failure::at(dir, why)
    })?;
    let mut answer: Value = serde_json::from_slice(&text[..len])
        .map_err(|error| Failure::at(dir, format!("its answer makes no sense: {error}")))?;
    match answer["error"].as_str() {
        Some(why) => Err(Failure::at(dir, why)),
        None => Ok(answer["done"].take()),
    }
}

/// The answer to a command, for who waits for it in [`command`].
pub fn answer(done: Result<Value, String>) -> Vec<u8> {
    let answer = match done {
        Ok(done) => json!({ "done": done }),
        Err(why) => json!({ "error": why }),
    };
    answer.to_string().into_bytes()
}

/// The options that the mount on this directory is served with, and the engine.
pub fn options(dir: &Path) -> Result<(MountOptions, &'static dyn Engine), Failure> {
    let status = ask(dir)?;
    let served = |list: &str| {
        let mut options = MountOptions::new(true);
        options.apply(list, true)?;
        options.log = status["log"].as_str().map(PathBuf::from);
        Ok(options)
    };
    let list = status["options"].as_str();
    let options = list
        .ok_or_else(|| "it does not tell its options".to_owned())
        .and_then(served)
        .map_err(|why| Failure::at(dir, why))?;
    let engine = status["file_system"]["type"].as_str().unwrap_or_default();
    Ok((options, ENGINES.named(engine)?))
}
