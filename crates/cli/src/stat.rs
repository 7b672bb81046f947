//! `tureen stat`: what an image holds, or how a live mount is doing.

mod render;
mod verdict;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use volume::Access;

use crate::engines::ENGINES;
use crate::failure::{Failure, Outcome};
use crate::mounts::LiveMount;
use crate::{exclusive, image, mounts, status};

/// Show what an image holds, or how a live mount is doing
///
/// The first line says whether all is well. Then, of an image: its size, label, identifier, and
/// whether it was unmounted cleanly. Of a mounted directory: space, persistence domain and what
/// survives there, options, how late the durable state is, and the last error.
#[derive(clap::Args)]
pub struct Args {
    /// An image, or a directory that one is mounted on
    #[arg(value_name = "IMAGE|DIR")]
    path: PathBuf,
    /// Show what is counted, too: requests by kind, flushes, batches, what is pending
    #[arg(long)]
    counters: bool,
    /// Report in JSON, with all counters
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Outcome {
    let report = report(&args.path)?;
    if args.json {
        println!("{report}");
    } else {
        println!("{}\n", verdict::verdict(&report));
        print!("{}", render::render(&report, args.counters));
    }
    Ok(0)
}

fn report(path: &Path) -> Result<Value, Failure> {
    let absolute = mounts::resolve(path);
    if let Some(mount) = mounts::on(&absolute) {
        return ask(&mount);
    }
    if path.is_dir() {
        return Err(Failure::at(path, "no Tureen file system is mounted here"));
    }
    let image = image::existing(path)?;
    if let Some(mount) = mounts::of(&image) {
        return ask(&mount);
    }
    let engine = ENGINES.of(&image)?;
    let volume = exclusive::open(&image, engine, Access::Look, &engine.settings())?;
    Ok(json!({
        "image": image.to_string_lossy(),
        "medium": volume.medium(),
        "file_system": volume.inspect()?,
    }))
}

fn ask(mount: &LiveMount) -> Result<Value, Failure> {
    mounts::check_uncovered(mount)?;
    status::ask(&mount.dir)
}
