//! The file system's own interface: all of it that the command line uses.

use std::path::Path;
use std::sync::Arc;

use pmem::Pool;
use serde_json::{Value, json};
use soupfs::SoupFs;
use soupfs::audit::{Finding, Progress, Stage};
use soupfs::fsck::{CheckOptions, Outcome};
use uuid::Uuid;
use vfs::{Clock, SystemClock};

use crate::failure::Failure;
use crate::options::{Mode, MountOptions};

/// A mounted file system; a handle that can be cloned.
pub type Engine = SoupFs;

/// Random bytes from the system.
pub fn random() -> Result<[u8; 16], Failure> {
    let mut bytes = [0; 16];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Failure::new(format!("no random numbers from the system: {errno}")))?;
    assert_eq!(got, bytes.len(), "the system gives up to 256 bytes at once");
    Ok(bytes)
}

/// Refuses a size that no image at this path may have: before a file is made.
pub fn check_len(image: &Path, len: u64) -> Result<(), Failure> {
    soupfs::check_len(len).map_err(|error| Failure::at(image, error))
}

/// Makes an empty file system in the pool; its root directory belongs to the caller. `zeroed`: the
/// pool is known to hold nothing but zeros.
pub fn format(pool: &Arc<Pool>, label: &str, uuid: Uuid, zeroed: bool) -> Result<(), Failure> {
    let options = soupfs::FormatOptions {
        uuid: uuid.into_bytes(),
        label: label.to_string(),
        hash_key: random()?,
        time: SystemClock.now(),
        owner: (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        ),
        zeroed,
    };
    soupfs::format(pool, &options).map_err(|error| in_pool(pool, error))
}

/// Mounts the file system in the pool. What the user should know about how that went is logged.
pub fn mount(pool: &Arc<Pool>, options: &MountOptions) -> Result<Engine, Failure> {
    let options = soupfs::MountOptions {
        mode: match options.mode {
            Mode::Delayed => soupfs::Mode::Delayed,
            Mode::Sync => soupfs::Mode::Sync,
        },
        bound: options.bound,
        backlog_max: options.backlog,
        persisters: options.persisters.unwrap_or_else(memory_nodes),
        read_only: options.read_only,
        ..soupfs::MountOptions::new(Arc::new(SystemClock))
    };
    let fs = SoupFs::mount(pool.clone(), options).map_err(|error| in_pool(pool, error))?;
    if let Some(notice) = fs.status().notice {
        log::warn!("{notice}");
    }
    Ok(fs)
}

/// Nodes of memory in this machine: 1 if the kernel does not tell.
fn memory_nodes() -> usize {
    let Ok(entries) = std::fs::read_dir("/sys/devices/system/node") else {
        return 1;
    };
    let is_node = |name: &str| {
        let number = name.strip_prefix("node");
        number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let nodes = entries.flatten();
    let count = nodes.filter(|e| e.file_name().to_str().is_some_and(is_node));
    count.count().max(1)
}

/// What a live file system says of itself.
pub fn status(fs: &Engine) -> Value {
    let status = fs.status();
    json!({
        "uuid": Uuid::from_bytes(status.uuid).to_string(),
        "label": status.label,
        "size_bytes": status.bytes,
        "free_bytes": status.bytes_free,
        "inodes_cached": status.inodes_cached,
        "mounts": mounts(status.epoch),
        "persisters": status.persisters,
        "pending_words": status.backlog.words,
        "pending_words_max": status.backlog.words_max,
        "late_ms": status.late.as_millis() as u64,
        "batches_published": status.backlog.batches,
        "operations_published": status.backlog.captured,
        "reclaiming": status.reclaimed_lines.is_none(),
        "reclaimed_lines": status.reclaimed_lines,
        "failed": status.failed,
        "host_full": status.host_full,
        "notice": status.notice,
    })
}

/// Mounts for writing so far: a new image begins with epoch 1, and each of them raises it.
fn mounts(epoch: u64) -> u64 {
    epoch.saturating_sub(1)
}

/// Makes everything durable and marks the image clean.
pub fn unmount(fs: &Engine) -> Result<(), Failure> {
    fs.unmount().map_err(|error| {
        Failure::new(format!(
            "the end of the mount was not made durable: {error}; run tureen fsck"
        ))
    })
}

/// Makes everything durable that was done before.
pub fn sync(fs: &Engine) -> vfs::Result<()> {
    vfs::FileSystem::syncfs(fs)
}

/// Whether a mount of this image would have to put something right first.
pub fn is_unclean(pool: &Pool) -> bool {
    soupfs::inspect(pool).is_ok_and(|info| !info.clean)
}

/// What an image says of itself.
pub fn inspect(pool: &Pool) -> Result<Value, Failure> {
    let info = soupfs::inspect(pool).map_err(|error| in_pool(pool, error))?;
    Ok(json!({
        "uuid": Uuid::from_bytes(info.superblock.uuid).to_string(),
        "label": info.superblock.label,
        "created": info.superblock.created.to_string(),
        "mounts": mounts(info.epoch),
        "clean": info.clean,
        "free_bytes": info.bytes_free,
        "damaged": info.damaged.map(|why| format!("{why}; its copy is good: run tureen fsck")),
    }))
}

/// Whether an image was unmounted cleanly; `None` when that cannot be found out.
pub fn is_clean(image: &Path) -> Option<bool> {
    let options = pmem::Options {
        read_only: true,
        ..pmem::Options::default()
    };
    let pool = Pool::open(image, &options).ok()?;
    soupfs::inspect(&pool).ok().map(|info| info.clean)
}

fn in_pool(pool: &Pool, error: impl std::fmt::Display) -> Failure {
    match pool.info().path {
        Some(path) => Failure::at(&path, error),
        None => Failure::new(error),
    }
}

/// What a check found and did.
pub struct Report {
    /// For people.
    pub text: String,
    /// For scripts.
    pub json: Value,
    /// The exit code that fsck(8) has for it.
    pub code: u8,
}

/// Checks the file system in the pool. `progress` gets a word for what is being done, how much of
/// it is done, and how much there is, as far as that is known.
pub fn check(
    pool: &Arc<Pool>,
    repair: bool,
    threads: usize,
    progress: &(dyn Fn(&'static str, u64, u64) + Sync),
) -> Result<Report, Failure> {
    let options = CheckOptions { repair, threads };
    let watch = |now: Progress| {
        let stage = match now.stage {
            Stage::Names => "names",
            Stage::Maps => "maps",
            Stage::Repair => "repair",
        };
        progress(stage, now.done, now.total);
    };
    let report =
        soupfs::fsck::check(pool, &options, &watch).map_err(|error| in_pool(pool, error))?;
    Ok(Report {
        text: report.to_string(),
        code: report.exit_code(),
        json: json!({
            "outcome": match report.outcome {
                Outcome::Clean => "clean",
                Outcome::Repaired => "repaired",
                Outcome::ErrorsLeft => "errors left",
            },
            "was_clean": report.was_clean,
            "journal_words_replayed": report.replayed,
            "repaired": report.repaired.iter().map(finding).collect::<Vec<_>>(),
            "left": report.left.iter().map(finding).collect::<Vec<_>>(),
            "left_more": report.more,
            "inodes": report.totals.inodes,
            "directories": report.totals.directories,
            "names": report.totals.names,
            "pages": report.totals.pages,
            "free_lines": report.totals.free_lines,
        }),
    })
}

fn finding(finding: &Finding) -> Value {
    json!({
        "problem": finding.problem.name(),
        "inode": finding.ino,
        "at": finding.at,
        "detail": finding.detail,
    })
}
