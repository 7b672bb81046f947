//! `tureen mount`: serve an image on a directory.

use std::path::PathBuf;

use crate::daemon;
use crate::engines::ENGINES;
use crate::failure::{Failure, Outcome};
use crate::options::{self, MountOptions};
use crate::serve::{Place, serve};
use crate::units::parse_size;
use crate::what::{New, What};

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
