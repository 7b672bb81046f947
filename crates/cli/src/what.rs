//! What is mounted where, by this process or by one in the background.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use volume::Engine;

use crate::failure::{Failure, Outcome};
use crate::{daemon, exclusive, image, mounts};

/// What to mount where.
pub struct What {
    /// The image, by its absolute path.
    pub image: PathBuf,
    /// The directory, by its absolute path.
    pub dir: PathBuf,
    /// What to make if there is no image.
    pub create: Option<New>,
    /// The directory was made for this mount.
    pub is_new_dir: bool,
}

/// An image that may have to be made.
#[derive(Clone, Copy)]
pub struct New {
    /// Its length in bytes.
    pub size: u64,
    /// Whose it will be.
    pub engine: &'static dyn Engine,
}

impl What {
    /// Finds image and directory, with absolute paths, and refuses what cannot work.
    pub fn find(image: &Path, dir: &Path, create: Option<New>) -> Result<What, Failure> {
        let image = match create {
            Some(_) => image::absolute(image)?,
            None => image::existing(image)?,
        };
        check_name(&image)?;
        exclusive::check_unmounted(&image)?;
        remove_dead_mounts(&image);
        // A dead mount is in the way of a directory, too: that is told below.
        let is_new_dir = create.is_some()
            && std::fs::symlink_metadata(dir)
                .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        if is_new_dir {
            std::fs::create_dir(dir)
                .map_err(|error| Failure::at(dir, format!("cannot be made: {error}")))?;
        }
        let found = dir.canonicalize().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                Failure::at(dir, "no such directory to mount on; make it with mkdir")
            }
            std::io::ErrorKind::NotConnected => Failure::at(
                dir,
                format!(
                    "a mount whose process has died is in the way: tureen umount {}",
                    dir.display()
                ),
            ),
            _ => Failure::at(dir, error),
        })?;
        if !found.is_dir() {
            return Err(Failure::at(dir, "is not a directory"));
        }
        if let Some(mount) = mounts::on(&found) {
            let message = format!("{} is mounted here already", mount.image.display());
            return Err(Failure::at(dir, message));
        }
        Ok(What {
            image,
            dir: found,
            create,
            is_new_dir,
        })
    }

    /// Mounts it by a run of this program in the background.
    pub fn in_background(&self, options: &[String]) -> Outcome {
        let mut args: Vec<OsString> = vec!["mount".into(), "--background-run".into()];
        if let Some(New { size, engine }) = self.create {
            args.extend(["--create".into(), size.to_string().into()]);
            args.extend(["--type".into(), engine.name().into()]);
        }
        for list in options {
            args.extend(["-o".into(), list.into()]);
        }
        args.extend([
            "--".into(),
            self.image.clone().into(),
            self.dir.clone().into(),
        ]);
        daemon::start(args)
    }
}

/// Refuses a path that would not be the same in the list of mounts, by which an image is known to
/// be mounted: the FUSE library takes nothing but text for that.
fn check_name(image: &Path) -> Result<(), Failure> {
    match image.to_str() {
        Some(_) => Ok(()),
        None => Err(Failure::at(
            image,
            "its path is not UTF-8, as that of a mounted image has to be: rename it",
        )),
    }
}

/// Takes away what a killed process left of an earlier mount of the image. One that lives may have
/// the image's name, too: of an image that was given another name since.
fn remove_dead_mounts(image: &Path) {
    for mount in mounts::live()
        .into_iter()
        .filter(|mount| mount.image == image && mounts::is_dead(&mount.dir))
    {
        if let Err(error) = fuse::unmount(&mount.dir, true) {
            log::warn!("a dead mount stays on {}: {error}", mount.dir.display());
        }
    }
}
