//! The status of a live mount: told by the process that serves it, read through an attribute of
//! what is mounted.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use fuse::Monitor;
use pmem::Pool;
use serde_json::{Map, Value, json};

use crate::engine::{self, Engine};
use crate::failure::Failure;
use crate::image;
use crate::options::{Mode, MountOptions};

/// Room for the longest status.
const LEN_MAX: usize = 64 << 10;

/// What the serving process knows of its mount.
pub struct Status {
    image: PathBuf,
    image_id: Option<String>,
    dir: PathBuf,
    since: Instant,
    options: MountOptions,
    pool: Arc<Pool>,
    fs: Engine,
    monitor: Arc<Monitor>,
    shut_down: Arc<AtomicBool>,
}

impl Status {
    /// The status of a mount that is about to begin, of an image that was just opened by this path.
    pub fn new(
        image: &Path,
        dir: &Path,
        options: &MountOptions,
        pool: &Arc<Pool>,
        fs: &Engine,
        monitor: &Arc<Monitor>,
        shut_down: &Arc<AtomicBool>,
    ) -> Status {
        Status {
            image: image.to_path_buf(),
            image_id: image::id(image),
            dir: dir.to_path_buf(),
            since: Instant::now(),
            options: options.clone(),
            pool: pool.clone(),
            fs: fs.clone(),
            monitor: monitor.clone(),
            shut_down: shut_down.clone(),
        }
    }

    /// All of it, as of now.
    pub fn to_json(&self) -> Value {
        let requests: Map<String, Value> = self
            .monitor
            .counts()
            .into_iter()
            .map(|(request, count)| (request.name().to_string(), count.into()))
            .collect();
        let mode = match self.options.mode {
            Mode::Delayed => "delayed",
            Mode::Sync => "sync",
        };
        json!({
            "image": self.image.to_string_lossy(),
            "image_id": self.image_id,
            "mounted_on": self.dir.to_string_lossy(),
            "pid": std::process::id(),
            "mounted_for_s": self.since.elapsed().as_secs(),
            "read_only": self.options.read_only,
            "shut_down": self.shut_down.load(Relaxed),
            "sync": self.options.sync,
            "mode": mode,
            "bound_ms": self.options.bound.as_millis() as u64,
            "options": self.options.to_string(),
            "log": self.options.log.as_ref().map(|log| log.to_string_lossy()),
            "medium": medium(&self.pool),
            "file_system": engine::status(&self.fs),
            "requests": requests,
            "last_error": self.monitor.last_error(),
        })
    }
}

/// What carries the file system, and what survives a crash there.
pub fn medium(pool: &Pool) -> Value {
    let info = pool.info();
    let stats = pool.stats();
    json!({
        "kind": info.kind.to_string(),
        "size_bytes": info.len,
        "domain": info.domain.to_string(),
        "domain_forced": info.forced,
        "survives": info.domain.survives(),
        "flush_instruction": info.flush.name(),
        "huge_pages_bytes": info.huge_pages.bytes,
        "flushed_lines": stats.flushed_lines,
        "fences": stats.fences,
        "syncs": stats.syncs,
        "stored_cached_bytes": stats.bytes_cached,
        "stored_non_temporal_bytes": stats.bytes_non_temporal,
    })
}

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

/// The options that the mount on this directory is served with.
pub fn options(dir: &Path) -> Result<MountOptions, Failure> {
    let status = ask(dir)?;
    let served = |list: &str| {
        let mut options = MountOptions::new(true);
        options.apply(list, true)?;
        options.log = status["log"].as_str().map(PathBuf::from);
        Ok(options)
    };
    let list = status["options"].as_str();
    list.ok_or_else(|| "it does not tell its options".to_owned())
        .and_then(served)
        .map_err(|why| Failure::at(dir, why))
}
