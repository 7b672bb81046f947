//! Images for one user alone: opened, and waited for.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use volume::{Access, Engine, Error, Settings, Volume};

use crate::failure::Failure;
use crate::{image, kernel_use, mounts};

/// How long a mount waits for the last one of the same image to finish: after `umount` its process
/// may still be making things durable.
const FINISH_MAX: Duration = Duration::from_secs(30);

/// When to tell the user what is being waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often to look whether an image has become free.
const POLL: Duration = Duration::from_millis(5);

/// Opens an image with the engine that it is for.
///
/// While another process holds it, the error says where it is mounted; when it is mounted nowhere
/// any more, or only by a process that was killed, that process is about to finish, and is waited
/// for.
pub fn open(
    image: &Path,
    engine: &dyn Engine,
    access: Access,
    settings: &Settings,
) -> Result<Arc<dyn Volume>, Failure> {
    let start = Instant::now();
    let mut told = false;
    loop {
        let error = match engine.open(image, access, settings) {
            Err(error @ Error::InUse(_)) => error,
            opened => return Ok(opened?),
        };
        check_unmounted(image)?;
        check_unused(image)?;
        if start.elapsed() > FINISH_MAX {
            return Err(error.into());
        }
        if !told && start.elapsed() > PATIENCE {
            let longest = FINISH_MAX.as_secs();
            eprintln!("tureen: {error}; waiting for it, {longest} s at most");
            told = true;
        }
        std::thread::sleep(POLL);
    }
}

/// How an engine opens an image that is read through a cache, if there is one.
pub fn settings(engine: &dyn Engine, cache: Option<&Path>) -> Result<Settings, Failure> {
    let mut settings = engine.settings();
    let Some(cache) = cache else {
        return Ok(settings);
    };
    let path = cache.to_str();
    match path.map(|path| engine.set(&mut settings, "cache", Some(path))) {
        Some(Ok(true)) => Ok(settings),
        Some(Err(why)) => Err(Failure::at(cache, why)),
        Some(Ok(false)) => {
            let what = format!("{} images have no caches", engine.name());
            Err(Failure::usage(what))
        }
        None => Err(Failure::at(cache, "the path is not UTF-8")),
    }
}

/// Refuses an image that is mounted, and says where. A mount whose process has died does not count:
/// it holds nothing.
pub fn check_unmounted(image: &Path) -> Result<(), Failure> {
    match mounts::of(image) {
        None => Ok(()),
        Some(_) if image::is_free(image) == Some(true) => Ok(()),
        // A killed process can be seen holding the image for a moment longer than its mount.
        Some(mount) if mounts::is_dead(&mount.dir) => Ok(()),
        Some(mount) => Err(Failure::at(
            image,
            format!(
                "is mounted on {dir}; unmount it first: tureen umount {dir}",
                dir = mount.dir.display()
            ),
        )),
    }
}

/// Refuses a block device that the kernel uses, and says what for.
fn check_unused(image: &Path) -> Result<(), Failure> {
    match kernel_use::of(image) {
        None => Ok(()),
        Some(used) => Err(Failure::at(image, used)),
    }
}
