//! `tureen fsck`: check an image, and repair what can be repaired.

use std::path::PathBuf;

use volume::{Access, Check, Report};

use crate::engines::ENGINES;
use crate::failure::{Failure, Outcome};
use crate::{exclusive, image, live_check, mounts, output};

/// Exit code of fsck(8) when the check could not be done.
const OPERATIONAL: u8 = 8;
/// Exit code for arguments that make no sense.
pub const USAGE: u8 = 16;

/// Check an image, and repair what can be repaired
///
/// The image must not be mounted, or `--live` given: then the process that serves it checks a
/// snapshot, and repairs what can be repaired while it is in use. Exit codes: 0 no errors, 1 errors
/// repaired, 4 errors left (5: others repaired), 8 the check could not be done, 16 wrong arguments.
#[derive(clap::Args)]
pub struct Args {
    /// The file, block device or persistent-memory device to check
    image: PathBuf,
    /// Check what is mounted, named by its directory or image, while it is in use
    #[arg(long, conflicts_with_all = ["threads", "cache"])]
    live: bool,
    /// Only report: change nothing
    #[arg(short, overrides_with = "no")]
    no: bool,
    /// Accepted for fsck(8), as are -p and -a: repairs never ask
    #[arg(short, short_aliases = ['p', 'a'], overrides_with = "yes")]
    yes: bool,
    /// Accepted for fsck(8): an image that is marked clean is checked all the same
    #[arg(short, overrides_with = "force")]
    force: bool,
    /// Threads to check with; one for each processor by default
    #[arg(long)]
    threads: Option<usize>,
    /// The cache through which the image is read
    #[arg(long, value_name = "FILE")]
    cache: Option<PathBuf>,
    /// Report in JSON
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Outcome {
    if args.no && args.yes {
        let message = "-n changes nothing and -y repairs: use one of them";
        return Err(Failure::new(message).with_code(USAGE));
    }
    check(args).map_err(|failure| failure.with_code(OPERATIONAL))
}

fn check(args: &Args) -> Outcome {
    let bar = output::progress_bar(args.json);
    let report = examine(args, &|stage, done, total| {
        bar.set_message(stage);
        bar.set_length(total.max(done));
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let report = report?;
    if args.json {
        println!("{}", report.json);
    } else {
        // Findings first, a line each; the verdict last.
        let (findings, verdict) = report.text.rsplit_once('\n').unwrap_or(("", &report.text));
        if !findings.is_empty() {
            println!("{findings}");
        }
        println!("{}: {verdict}", args.image.display());
    }
    output::check()?;
    Ok(report.code)
}

fn examine(args: &Args, progress: volume::Progress<'_>) -> Result<Report, Failure> {
    if args.live {
        let mount = mounts::named(&args.image)?
            .ok_or_else(|| Failure::at(&args.image, "it is not mounted: leave out --live"))?;
        return live_check::run(&mount, !args.no, progress);
    }
    let image = image::existing(&args.image)?;
    exclusive::check_unmounted(&image)?;
    let engine = ENGINES.of(&image)?;
    let settings = exclusive::settings(engine, args.cache.as_deref())?;
    let access = match args.no {
        true => Access::Look,
        false => Access::Write,
    };
    let volume = exclusive::open(&image, engine, access, &settings)?;
    let check = Check {
        repair: !args.no,
        threads: args.threads.unwrap_or(0),
    };
    Ok(volume.check(&check, progress)?)
}
