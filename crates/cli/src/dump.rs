//! `tureen dump`: a copy of a file system, or of what changed in it, that restore(8) reads.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use dump::{Names, Options, Summary};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use volume::Access;

use crate::engines::ENGINES;
use crate::failure::{Failure, Outcome};
use crate::mounts::{self, LiveMount};
use crate::snapshot::Temporary;
use crate::{dumpdates, exclusive, image, output, units};

/// Dump a file system, or what changed in it, for restore(8)
///
/// The dump is in the format of dump(8) and restore(8) (Debian: package dump). A dump of level 0
/// has everything. One of a higher level has what changed since the last dump of a lower level that
/// was recorded with -u, and what restore needs to know about what was removed or moved:
///
///     tureen dump disk.img -u -f full.dump
///     ... use it ...
///     tureen dump disk.img -u -l 1 -f changes.dump
///     cd empty && restore -rf ../full.dump && restore -rf ../changes.dump
///
/// An image that is not mounted is not changed. Of a directory that an ext2 image is mounted on,
/// what there is at some moment is dumped, through a temporary snapshot, and goes on in use
/// meanwhile.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The image to dump, or the directory that it is mounted on
    #[arg(value_name = "IMAGE|DIR")]
    image: PathBuf,
    /// Where to write the dump; - is standard output
    #[arg(short, long, default_value = "-")]
    file: PathBuf,
    /// 0: everything; 1 to 9: what changed since the last dump of a lower level
    #[arg(short, long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=9))]
    level: u8,
    /// Record the dump, so that others can build on it
    #[arg(short, long)]
    update: bool,
    /// Where dumps are recorded, as dump(8) does it
    #[arg(long, value_name = "FILE", default_value = "/etc/dumpdates")]
    dates: PathBuf,
    /// A label for the dump: up to 15 characters
    #[arg(short = 'L', long, default_value = "none")]
    label: String,
    /// The cache through which the image is read
    #[arg(long, value_name = "FILE")]
    cache: Option<PathBuf>,
    /// Report in JSON
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Outcome {
    if let Some(mount) = mounts::on(&mounts::resolve(&args.image)) {
        return run_live(args, mount);
    }
    let image = image::existing(&args.image)?;
    exclusive::check_unmounted(&image)?;
    dump_image(args, &image, &image)
}

/// Dumps what is mounted, by a snapshot.
fn run_live(args: &Args, mount: LiveMount) -> Outcome {
    mounts::check_uncovered(&mount)?;
    let image = mount.image.clone();
    if is_same_file(&args.file, &image) {
        return Err(is_the_image(&args.file));
    }
    // A signal before there is somebody who waits for it is not lost.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(Failure::new)?;
    let snapshot = Arc::new(Temporary::new(mount, "dump")?);
    let interrupted = Arc::new(AtomicBool::new(false));
    let (guard, file, told) = (snapshot.clone(), args.file.clone(), interrupted.clone());
    let ending = std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            told.store(true, SeqCst);
            guard.delete();
            if file.is_file() {
                let _ = std::fs::remove_file(&file);
            }
            std::process::exit(128 + signal);
        }
    });
    let done = dump_image(args, &snapshot.path, &image);
    if interrupted.load(SeqCst) {
        // What was read may have failed as the snapshot was deleted. The thread ends the process.
        let _ = ending.join();
    }
    // The thread above keeps it from being dropped.
    snapshot.delete();
    done
}

fn is_the_image(file: &Path) -> Failure {
    Failure::at(file, "is the image itself: write the dump elsewhere")
}

/// Dumps an image, which is recorded under the name of another.
fn dump_image(args: &Args, image: &Path, recorded: &Path) -> Outcome {
    if is_same_file(&args.file, image) {
        return Err(is_the_image(&args.file));
    }
    let options = options(args, recorded)?;
    let engine = ENGINES.of(image)?;
    let settings = exclusive::settings(engine, args.cache.as_deref())?;
    let volume = exclusive::open(image, engine, Access::MountReadOnly, &settings)?;
    let mounted = volume.mount(&settings, true)?;
    let bar = output::progress_bar(args.json);
    let summary = write(&args.file, |out| {
        mounted.dump(&options, out, &|stage, done, total| {
            bar.set_message(stage);
            bar.set_length(total.max(done));
            bar.set_position(done);
        })
    });
    bar.finish_and_clear();
    let summary = summary?;
    mounted.unmount()?;
    if args.update {
        let name = name(recorded);
        let noted = dumpdates::note(&args.dates, &name, args.level, options.date.into());
        noted.map_err(|error| Failure::at(&args.dates, error))?;
    }
    tell(args, &options, &summary)?;
    Ok(0)
}

/// Whether two paths lead to one file, under whatever names.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| path.metadata().map(|meta| (meta.dev(), meta.ino()));
    matches!((id(one), id(other)), (Ok(one), Ok(other)) if one == other)
}

/// What dumps of an image are recorded under.
fn name(image: &Path) -> String {
    image.display().to_string()
}

fn options(args: &Args, image: &Path) -> Result<Options, Failure> {
    let name = name(image);
    if args.update && name.contains(char::is_whitespace) {
        let why = "a path with blanks cannot be recorded: leave out -u, or use another path";
        return Err(Failure::at(image, why));
    }
    let last = dumpdates::last_below(&args.dates, &name, args.level);
    let last = last.map_err(|error| Failure::at(&args.dates, error))?;
    if args.level > 0 && last.is_none() {
        let dates = args.dates.display();
        eprintln!("tureen: {dates} has no dump of a lower level: everything is dumped");
    }
    let seconds = |time: i64| u32::try_from(time).unwrap_or(0);
    Ok(Options {
        level: args.level,
        date: seconds(jiff::Timestamp::now().as_second()),
        since: last.map(|(_, date)| seconds(date)),
        names: Names {
            label: args.label.clone(),
            file_system: String::new(),
            device: name,
            host: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
        },
    })
}

/// Writes a file, or to standard output. A file that does not become whole is removed.
fn write(
    file: &Path,
    dump: impl FnOnce(&mut dyn Write) -> dump::Result<Summary>,
) -> Result<Summary, Failure> {
    if file == Path::new("-") {
        let out = io::stdout();
        if out.is_terminal() {
            return Err(Failure::usage(
                "a dump is not for a terminal: use -f FILE, or pipe it to restore",
            ));
        }
        return dump(&mut BufWriter::with_capacity(1 << 20, out.lock())).map_err(Failure::new);
    }
    let fail = |error: io::Error| Failure::at(file, error);
    let out = File::create(file).map_err(fail)?;
    let is_file = out.metadata().map_err(fail)?.is_file();
    let mut out = BufWriter::with_capacity(1 << 20, out);
    let summary = dump(&mut out).map_err(|error| Failure::at(file, error));
    let synced = summary.and_then(|summary| {
        // Pipes and tapes cannot be synced.
        if is_file {
            out.get_ref().sync_all().map_err(fail)?;
        }
        Ok(summary)
    });
    if synced.is_err() && is_file {
        let _ = std::fs::remove_file(file);
    }
    synced
}

fn tell(args: &Args, options: &Options, summary: &Summary) -> Result<(), Failure> {
    if summary.without_attributes > 0 {
        let count = summary.without_attributes;
        eprintln!(
            "tureen: the extended attributes of {count} inodes are not in the dump: it holds 64 \
             KiB for each"
        );
    }
    if args.file == Path::new("-") {
        return Ok(()); // standard output is taken
    }
    if args.json {
        println!(
            "{}",
            json!({
                "level": options.level,
                "date_at": options.date,
                "since_at": options.since,
                "directories": summary.directories,
                "files": summary.files,
                "bytes": summary.bytes,
                "without_attributes": summary.without_attributes,
            })
        );
    } else {
        let Summary {
            directories, files, ..
        } = summary;
        println!(
            "{}: level {}, {directories} directories and {files} other inodes, {}",
            args.file.display(),
            options.level,
            units::size(summary.bytes),
        );
    }
    output::check()
}
