//! `tureen fsck`: check an image, and repair what can be repaired.

use std::path::PathBuf;

use volume::{Access, Check};

use crate::engines::ENGINES;
use crate::failure::{Failure, Outcome};
use crate::{exclusive, image, output};

/// Exit code of fsck(8) when the check could not be done.
const OPERATIONAL: u8 = 8;
/// Exit code for arguments that make no sense.
pub const USAGE: u8 = 16;

/// Check an image, and repair what can be repaired
///
/// The image must not be mounted. Exit codes: 0 no errors, 1 errors repaired, 4 errors left (5:
/// others repaired), 8 the check could not be done, 16 wrong arguments.
#[derive(clap::Args)]
pub struct Args {
    /// The file, block device or persistent-memory device to check
    image: PathBuf,
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
    let image = image::existing(&args.image)?;
    exclusive::check_unmounted(&image)?;
    let engine = ENGINES.of(&image)?;
    let settings = exclusive::settings(engine, args.cache.as_deref())?;
    let access = match args.no {
        true => Access::Look,
        false => Access::Write,
    };
    let volume = exclusive::open(&image, engine, access, &settings)?;
    let bar = output::progress_bar(args.json);
    let check = Check {
        repair: !args.no,
        threads: args.threads.unwrap_or(0),
    };
    let report = volume.check(&check, &|stage, done, total| {
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
