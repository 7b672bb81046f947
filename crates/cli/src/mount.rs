//! `tureen mount`: serve an image on a directory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use volume::Engine;

use crate::engines::ENGINES;
use crate::failure::{Failure, Outcome};
use crate::options::{self, MountOptions};
use crate::serve::{Place, serve};
use crate::units::parse_size;
use crate::{daemon, exclusive, image, mounts};

/// Mount an image on a directory
///
/// Returns when the directory can be used; the file system is then served in the background until
/// it is unmounted. SIGINT and SIGTERM unmount it too, from all directories that it was bound to
/// since; everything is durable before the process ends.
#[derive(clap::Args)]
#[command(after_help = options::help())]
pub struct Args {
    /// The file, block device or persistent-memory device with the file system
    image: PathBuf,
    /// The directory to mount on
    dir: PathBuf,
    /// If the image does not exist, make one of this size, like 512M or 4G; if the directory does
    /// not exist, make it too
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    create: Option<u64>,
    /// The type of the image, if it is to be made; one that exists says so itself
    #[arg(long = "type", short = 't', default_value = ENGINES.default_engine().name())]
    kind: String,
    /// Options, separated by commas (see below)
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in front until unmounted; messages go to standard error
    #[arg(long, short)]
    foreground: bool,
    /// This is the run in the background.
    #[arg(long, hide = true)]
    background_run: bool,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Outcome {
    let mut options = MountOptions::new(rustix::process::geteuid().is_root());
    for list in &args.options {
        options.apply(list, false).map_err(Failure::usage)?;
    }
    let new = ENGINES.named(&args.kind).map_err(Failure::usage)?;
    let what = What::find(
        &args.image,
        &args.dir,
        args.create.map(|size| New { size, engine: new }),
    )?;
    if args.background_run {
        daemon::detach()?;
        return serve(&what, &options, Place::Background);
    }
    let outcome = match args.foreground {
        true => serve(&what, &options, Place::Front),
        false => what.in_background(&args.options),
    };
    if what.is_new_dir && !matches!(outcome, Ok(0)) {
        // It holds nothing, or this does nothing.
        let _ = std::fs::remove_dir(&what.dir);
    }
    outcome
}

/// What to mount where.
pub struct What {
    /// The image, by its absolute path.
    pub image: PathBuf,
    /// The directory, by its absolute path.
    pub dir: PathBuf,
    /// What to make if there is no image.
    pub create: Option<New>,
    /// The directory was made for this mount.
    is_new_dir: bool,
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
