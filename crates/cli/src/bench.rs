//! `tureen bench`: measure Tureen beside what else this machine has.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bench::TargetSpec;
use bench::child::Task;
use bench::machine::Machine;
use bench::plan::{Clock, Plan, Progress};
use bench::report::{self, Earlier, Report};
use bench::suite::{self, FAMILIES, Family, Size};
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::{FAILED, Failure, Outcome};
use crate::output;
use crate::units::{self, parse_duration};

/// What all images and directories of a family may take run_threads, at full size.
const ROOM: u64 = 8 << 30;
/// Said after a quick look.
const DETAILS: &str = "\
ns and ms: less is better; 1000/s: more is. In-process: function calls; all others: system calls.
Times as fast: the median over rounds and [where it lies with 95 %; with fewer than six rounds the
range]. --html FILE has all figures with plots, --report FILE as text; `tureen bench names` measures
one of the parts at full size, `tureen bench --help` lists them.";
/// The word for all families at full size.
const ALL: &str = "all";
/// What only measuring uses.
const MEASURES: [&str; 13] = [
    "what",
    "target",
    "peers",
    "against",
    "rounds",
    "divide",
    "window",
    "threads",
    "up_to",
    "scratch",
    "disk",
    "huge_pages",
    "cpu_time",
];

/// Held by the thread that ends the program after a signal.
static ENDING: Mutex<()> = Mutex::new(());

/// Measure Tureen beside what else this machine has
///
/// Without arguments: all that one wants to see first, in less than two minutes. With names of what
/// to measure: that, with the parameters of the papers, which takes minutes each; 'all' is all of
/// it, with fewer rounds and shorter phases, so that it takes half an hour with --peers (--window
/// sets their length).
///
/// All targets take turns, round by round. Images and directories are made below a directory on
/// tmpfs and removed at the end, also when interrupted.
#[derive(clap::Args)]
#[command(after_help = help())]
pub struct Args {
    /// What to measure (see below)
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(
        FAMILIES.iter().map(|family| family.name).chain([ALL])
    ), hide_possible_values = true)]
    what: Vec<String>,
    /// Who takes part, may be given several times (see below); soupfs and tmpfs by default, without
    /// arguments a mount too
    #[arg(long, value_name = "TARGET")]
    target: Vec<TargetSpec>,
    /// Let ext4, xfs and btrfs take part, on loop devices over the scratch directory; needs root
    /// and their mkfs programs, and says so
    #[arg(long)]
    peers: bool,
    /// The target that others are compared with, by its name in the tables (tmpfs, or the first)
    #[arg(long, value_name = "NAME")]
    against: Option<String>,
    /// Rounds that count, one more warms up; medians are over these (10)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Divide all sizes by this, for a quick look
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    divide: u64,
    /// How long each phase of a workload takes that could go on for ever (2s)
    #[arg(long, value_name = "TIME", value_parser = parse_window)]
    window: Option<Duration>,
    /// Counters of threads, like 1,2,4 (up to the number of processors)
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    threads: Vec<u16>,
    /// Names, files and bytes up to which growth is measured
    #[arg(long, value_name = "N", default_value = "1M", value_parser = units::parse_count)]
    up_to: u64,
    /// A directory on tmpfs for images and for the kernel's side
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    scratch: PathBuf,
    /// A directory on an ordinary disk for what is measured there: the mount beside ext4 and
    /// fuse2fs
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    disk: PathBuf,
    /// Ask for huge pages for images
    #[arg(long)]
    huge_pages: bool,
    /// Time single callers by their CPU time instead of the wall clock: for a machine that others
    /// use too
    #[arg(long)]
    cpu_time: bool,
    /// Print the result in JSON: every round of every figure
    #[arg(long)]
    json: bool,
    /// Make a page with plots of the result: one file that needs nothing else
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Make a document of the result, in Markdown: a page, and the long tables in a folder beside
    /// it, which has the name of FILE without its ending
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Measure nothing: compare results that --json made with those of --after. Of several files
    /// the rounds are joined; make them in turns, or the machine's moods are in the comparison
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "after",
        conflicts_with_all = MEASURES, conflicts_with_all = ["from", "html", "report"])]
    before: Vec<PathBuf>,
    /// See --before
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "before",
        conflicts_with_all = MEASURES, conflicts_with_all = ["from", "html", "report"])]
    after: Vec<PathBuf>,
    /// Measure nothing: take the result from files that --json made; of a family that is in several
    /// of them the last one counts
    #[arg(long, value_name = "FILE", conflicts_with_all = MEASURES)]
    from: Vec<PathBuf>,
    /// Do a part of a family that needs a process of its own
    #[arg(long, hide = true)]
    child: Option<String>,
}

/// Without a length nothing could be done in it.
fn parse_window(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("a phase of no length measures nothing".into()),
        window => Ok(window),
    }
}

fn help() -> String {
    let width = FAMILIES.iter().map(|family| family.name.len()).max();
    let width = width.unwrap_or(0);
    let mut text = "What can be measured:\n".to_owned();
    for family in FAMILIES {
        text += &format!("  {:width$}  {}\n", family.name, family.about);
    }
    text + "
Targets:
  soupfs[:OPTION,...]  the engine in-process; options: mode=, domain=, flush_ns=, fence_ns=,
                       read_ns=, bound_ms=, at=DIR (where its image is)
  ffs[:OPTION,...]     the engine of ext2 in-process, on an image file; options: mode=, and with a
                       persistent cache cache=spindle or tinca, cache_mib=, flush_ns=, fence_ns=,
                       read_ns=
  tmpfs                a directory below the scratch directory, by system calls
  mount[:OPTION,...]   tureen mount, in a process of its own; options as of its -o
  mount-ext2[:OPTION,...]
                       the same of an ext2 image; cache=spindle or tinca makes a cache, too, of
                       cache_mib=
  host                 a directory on the file system that the others' images lie on
  fuse2fs              ext4 in a file, served by fuse2fs
  nullfs               a FUSE file system that does nothing, served as the mount is
  ext4, ext3, ext2, xfs, btrfs
                       the kernel's, on a loop device over the scratch directory;
                       ext4:data=journal, which makes each write whole
  ./DIR                any directory"
}

impl Args {
    /// The result goes to a file.
    fn makes_files(&self) -> bool {
        self.html.is_some() || self.report.is_some()
    }
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Outcome {
    match work(args) {
        Ok(()) => Ok(0),
        Err(failure) => Err(Failure::new(failure).with_code(FAILED)),
    }
}

fn work(args: &Args) -> bench::Result<()> {
    if let Some(task) = &args.child {
        let task: Task = serde_json::from_str(task)?;
        return bench::runs::perform(&task);
    }
    if !args.before.is_empty() {
        return compare(args);
    }
    let at = |file: &PathBuf, why| format!("{}: {why}", file.display());
    // Not after minutes of measuring.
    for file in args.html.iter().chain(&args.report) {
        let mut options = std::fs::OpenOptions::new();
        let opened = options.create(true).append(true).open(file);
        opened.map_err(|why| at(file, why))?;
    }
    let mut report = Report {
        machine: Machine::here(),
        peers: Vec::new(),
        runs: Vec::new(),
    };
    let found = match args.from.as_slice() {
        [] => measured(args, &mut report),
        files => read(files).map(|read| report = read),
    };
    if found.is_err() && report.runs.is_empty() {
        return found;
    }
    // What took minutes is kept whatever else fails, and first where no reader can stop early.
    let html = args.html.iter().try_for_each(|file| {
        let written = std::fs::write(file, report::page(&report));
        Ok(written.map_err(|why| at(file, why))?)
    });
    let mut document = args.report.iter();
    let document = document.try_for_each(|file| write_document(file, &report));
    let written = [html, document, print(args, &report)];
    found.and(written.into_iter().collect())
}

/// What became faster or slower between two results.
fn compare(args: &Args) -> bench::Result<()> {
    let joined = |files: &[PathBuf]| {
        let mut all = files.iter().map(|file| read_one(file));
        let mut joined = all.next().ok_or("no file was given")??;
        all.try_for_each(|one| one.map(|one| joined.join(one)))?;
        bench::Result::Ok(joined)
    };
    let tables = report::compare(&joined(&args.before)?, &joined(&args.after)?);
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&tables)?),
        false => tables.iter().for_each(|table| println!("{table}")),
    }
    Ok(())
}

/// The page, and beside it the documents that it links to.
fn write_document(file: &Path, report: &Report) -> bench::Result<()> {
    let folder = file.with_extension("");
    if folder == file {
        return Err(format!("{}: the name has no ending, like .md", file.display()).into());
    }
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let made = report::document(report, &name, &earlier(&folder)?);
    std::fs::create_dir_all(&folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    let page = std::iter::once((file.to_owned(), &made.page));
    let families = made.families.iter();
    let mut all = page.chain(families.map(|(name, text)| (folder.join(name), text)));
    all.try_for_each(|(file, text)| {
        let written = std::fs::write(&file, text);
        Ok(written.map_err(|why| format!("{}: {why}", file.display()))?)
    })
}

/// The documents of families that lie there from earlier runs.
fn earlier(folder: &Path) -> bench::Result<Vec<Earlier>> {
    let mut found = Vec::new();
    for family in FAMILIES {
        let file = folder.join(family.name).with_extension("md");
        match std::fs::read_to_string(&file) {
            Ok(text) => found.extend(Earlier::read(family.name, &text)),
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => {}
            Err(why) => return Err(format!("{}: {why}", file.display()).into()),
        }
    }
    Ok(found)
}

/// The result, for whoever reads standard output.
fn print(args: &Args, report: &Report) -> bench::Result<()> {
    if args.json {
        println!("{}", serde_json::to_string_pretty(report)?);
        return Ok(());
    }
    if !args.from.is_empty() {
        // It was read to be put there.
        if args.makes_files() {
            return Ok(());
        }
        println!("{}\n", report.machine);
        for run in &report.runs {
            println!("{run}");
        }
    }
    println!("{report}");
    if args.from.is_empty() && args.what.is_empty() {
        println!("{DETAILS}");
    }
    Ok(())
}

/// What files hold, the later over the earlier.
fn read(files: &[PathBuf]) -> bench::Result<Report> {
    let mut all: Option<Report> = None;
    for file in files {
        let one = read_one(file)?;
        match &mut all {
            Some(all) => all.merge(one),
            None => all = Some(one),
        }
    }
    let mut all = all.ok_or("no file was given")?;
    // Explanations are mended without measuring again.
    for run in &mut all.runs {
        if let Some(family) = Family::of(&run.name) {
            run.text = family.text_on(&all.machine);
        }
    }
    Ok(all)
}

fn read_one(file: &Path) -> bench::Result<Report> {
    let at = |why: &dyn std::fmt::Display| format!("{}: {why}", file.display());
    let text = std::fs::read_to_string(file).map_err(|why| at(&why))?;
    Ok(serde_json::from_str(&text).map_err(|why| at(&why))?)
}

fn size(args: &Args) -> Size {
    match args.what.as_slice() {
        [] => Size::Quick,
        // Who says how long phases are to take gets that.
        what if what.iter().any(|what| what == ALL) && args.window.is_none() => Size::All,
        _ => Size::Full,
    }
}

/// Measures what was asked for; if a part of it fails, the report has the others.
fn measured(args: &Args, report: &mut Report) -> bench::Result<()> {
    let size = size(args);
    // Here lies all that is made, but for what targets are told to have elsewhere.
    let scratch = tempfile::Builder::new()
        .prefix("tureen-bench-")
        .tempdir_in(&args.scratch)
        .map_err(|why| {
            format!(
                "{}: {why}; choose another with --scratch",
                args.scratch.display()
            )
        })?;
    remove_when_interrupted(scratch.path().to_owned())?;
    warn_of_little_room(scratch.path())?;
    let bar = Arc::new(Bar::new());
    let plan = plan(args, size, scratch.path().to_owned(), bar.clone())?;
    let found = measure(args, size, &plan, &bar, report);
    // After a signal this fails for want of what was taken away; that is no result, and not why it
    // ends.
    drop(ENDING.lock());
    found
}

/// Containers often have a small `/dev/shm`; better to hear of it before than in the middle.
fn warn_of_little_room(scratch: &Path) -> bench::Result<()> {
    let stat = rustix::fs::statvfs(scratch)?;
    let room = stat.f_bavail * stat.f_frsize;
    if room < ROOM {
        log::warn!(
            "only {} are free in {}, and images of several targets may need {}; choose another \
             place with \
             --scratch, or less with --divide",
            units::size(room),
            scratch.display(),
            units::size(ROOM)
        );
    }
    Ok(())
}

fn plan(args: &Args, size: Size, scratch: PathBuf, bar: Arc<Bar>) -> bench::Result<Plan> {
    let mut plan = size.plan();
    plan.scratch = scratch;
    plan.disk = args.disk.clone();
    plan.rounds = args.rounds.map_or(plan.rounds, |rounds| rounds as usize);
    plan.divide = args.divide;
    plan.window = args.window.unwrap_or(plan.window);
    if !args.threads.is_empty() {
        plan.threads = args.threads.iter().map(|&count| count.into()).collect();
    }
    plan.up_to = args.up_to;
    plan.huge_pages = args.huge_pages;
    if args.cpu_time {
        plan.clock = Clock::Cpu;
    }
    if !args.target.is_empty() {
        plan.targets = args.target.clone();
    } else if size == Size::Quick {
        plan.targets.push("mount".parse()?);
    }
    if args.peers {
        plan.targets.extend(suite::peers());
    }
    if let Some(name) = &args.against {
        if !plan.takes_part(name) {
            let names: Vec<String> = plan.targets.iter().map(TargetSpec::name).collect();
            return Err(format!(
                "'{name}' does not take part; there are {}",
                names.join(", ")
            )
            .into());
        }
        plan.baseline = name.clone();
    }
    plan.tureen = Some(std::env::current_exe()?);
    plan.progress = bar;
    Ok(plan)
}

fn measure(
    args: &Args,
    size: Size,
    plan: &Plan,
    bar: &Bar,
    report: &mut Report,
) -> bench::Result<()> {
    if !args.json {
        println!("{}\n", report.machine);
    }
    let families: Vec<&Family> = match args.what.as_slice() {
        [] => size.families().collect(),
        what if what.iter().any(|what| what == ALL) => FAMILIES.iter().collect(),
        what => what.iter().filter_map(|name| Family::of(name)).collect(),
    };
    let end = size.budget().map(|budget| Instant::now() + budget);
    let mut failed = Vec::new();
    for (i, family) in families.iter().enumerate() {
        bar.begin(family.name, i, families.len());
        let command = command(args, family, size, plan, given());
        let plan = Plan {
            until: end.map(|end| share(end, families.len() - i)),
            ..plan.clone()
        };
        let found = family.run(&plan, size, &command);
        bar.clear();
        let (run, peers) = match found {
            Ok(found) => found,
            Err(why) => {
                failed.push(format!("{}: {why}", family.name));
                continue;
            }
        };
        report.merge(Report {
            machine: report.machine.clone(),
            peers,
            runs: vec![run.clone()],
        });
        // A quick look is to be seen at once; its tables are in what --html and --report make.
        if !args.json && size != Size::Quick {
            println!("{run}");
        }
        if !output::is_read() && !args.makes_files() {
            break; // nobody will ever see the others
        }
    }
    match failed.as_slice() {
        [] => Ok(()),
        some => Err(some.join("; ").into()),
    }
}

/// Deadline when the next of so many families may go on: twice its share of what is left, as most
/// take less than theirs.
fn share(end: Instant, families: usize) -> Instant {
    let now = Instant::now();
    end.min(now + end.saturating_duration_since(now) * 2 / families as u32)
        .max(now)
}

/// How to measure a family as it was measured now: the command line with its name for all names,
/// without what says where the result goes. What `all` does otherwise than the family by itself is
/// said by options.
fn command(
    args: &Args,
    family: &Family,
    size: Size,
    plan: &Plan,
    given: impl Iterator<Item = String>,
) -> String {
    let narrowed = match size {
        Size::All => family.plan(plan, size),
        Size::Full | Size::Quick => plan.clone(),
    };
    let mut words = vec!["tureen".to_owned(), "bench".into()];
    if !args.what.is_empty() {
        words.push(family.name.into());
    }
    for (name, value) in options(given) {
        if is_repeated(&name, value.as_deref(), &narrowed) {
            words.push(name);
            words.extend(value);
        }
    }
    if size == Size::All && narrowed.window != Size::Full.plan().window {
        words.push(format!("--window {}ms", narrowed.window.as_millis()));
    }
    if size == Size::All && args.rounds.is_none() {
        words.push(format!("--rounds {}", narrowed.rounds));
    }
    words.join(" ")
}

/// The words after the subcommand. Names of files may be no text; those are not repeated, or as
/// they look.
fn given() -> impl Iterator<Item = String> {
    let words = std::env::args_os().skip(2);
    words.map(|word| word.to_string_lossy().into_owned())
}

/// The options of a command line, each with its value if it takes one.
fn options(
    mut given: impl Iterator<Item = String>,
) -> impl Iterator<Item = (String, Option<String>)> {
    let known = <Args as clap::Args>::augment_args(clap::Command::new("bench"));
    let takes_value = move |word: &str| {
        let name = word.trim_start_matches('-');
        let mut options = known.get_arguments();
        options.any(|own| own.get_long() == Some(name) && own.get_action().takes_values())
    };
    std::iter::from_fn(move || {
        let word = given.find(|word| word.starts_with("--"))?;
        Some(match word.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None if takes_value(&word) => (word, given.next()),
            None => (word, None),
        })
    })
}

/// Whether the family would be measured as by this plan only with the option.
fn is_repeated(name: &str, value: Option<&str>, plan: &Plan) -> bool {
    let kernel = |target: &TargetSpec| matches!(target, TargetSpec::Kernel(_));
    match (name, value) {
        ("--" | "--json" | "--html" | "--report", _) => false,
        ("--peers", _) => plan.targets.iter().any(kernel),
        ("--target", Some(target)) => target.parse().is_ok_and(|it| plan.targets.contains(&it)),
        ("--against", Some(name)) => plan.takes_part(name),
        _ => true,
    }
}

/// Signals end the program without unwinding, and what lies on tmpfs takes memory.
fn remove_when_interrupted(scratch: PathBuf) -> bench::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let _ending = ENDING.lock();
            bench::end_mounts();
            // Held to the end, so that no target makes another one.
            let outside = bench::participants::outside_dirs();
            remove(&scratch);
            outside.iter().for_each(|dir| remove(dir));
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

/// Removes the directory, though others still make files in it and a mount there needs a moment to
/// end.
fn remove(scratch: &Path) {
    const TRIES: u32 = 50;
    for _ in 0..TRIES {
        if std::fs::remove_dir_all(scratch).is_ok() || !scratch.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    eprintln!("tureen: {} could not be removed", scratch.display());
}

/// Shows how far the run is: a bar on a terminal, else a line for each family.
struct Bar {
    bar: ProgressBar,
    begin: Instant,
}

impl Bar {
    fn new() -> Bar {
        let style = ProgressStyle::with_template("{prefix} {bar:30} {elapsed} {wide_msg}");
        let bar = ProgressBar::new(0);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Bar {
            bar,
            begin: Instant::now(),
        }
    }

    fn begin(&self, family: &str, i: usize, count: usize) {
        let at = format!("{}/{count} {family}", i + 1);
        if std::io::stderr().is_terminal() {
            self.bar.reset();
            self.bar.set_prefix(at);
        } else {
            eprintln!("{at} ({} s)", self.begin.elapsed().as_secs());
        }
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for Bar {
    fn step(&self, what: &str, done: usize, steps: usize) {
        self.bar.set_length(steps as u64);
        self.bar.set_position(done as u64);
        self.bar.set_message(what.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// The command of a family that was asked for with these words.
    fn command_of(family: &str, given: &str) -> String {
        let words = given.split_whitespace();
        let args = Line::parse_from(["bench"].into_iter().chain(words.clone())).args;
        let size = size(&args);
        let plan = plan(&args, size, PathBuf::new(), Arc::new(Bar::new())).unwrap();
        let family = Family::of(family).unwrap();
        command(&args, family, size, &plan, words.map(str::to_owned))
    }

    #[test]
    fn the_command_of_a_family_is_what_was_given_without_other_families_and_files() {
        let options = "--rounds 3 --html page.html --json --report=doc.md --scratch data --peers";
        assert_eq!(
            command_of("data", &format!("names data {options}")),
            "tureen bench data --rounds 3 --scratch data --peers"
        );
        assert_eq!(
            command_of("data", options),
            "tureen bench --rounds 3 --scratch data --peers"
        );
    }

    #[test]
    fn the_command_of_a_family_says_what_all_makes_of_it() {
        let given = "all --peers --target soupfs --target=tmpfs --target ext4 --against ext4";
        assert_eq!(
            command_of("names", given),
            "tureen bench names --peers --target soupfs --target tmpfs --target ext4 \
             --against ext4 --rounds 6"
        );
        assert_eq!(
            command_of("postmark", "all --peers"),
            "tureen bench postmark --peers --window 1000ms --rounds 6"
        );
        assert_eq!(
            command_of("fxmark", given),
            "tureen bench fxmark --target soupfs --target tmpfs --window 300ms --rounds 6"
        );
        assert_eq!(
            command_of("fxmark", "all --peers --window 1s"),
            "tureen bench fxmark --peers --window 1s"
        );
    }

    #[test]
    fn time_is_shared_by_the_families_that_are_left() {
        let begin = Instant::now();
        let end = begin + Duration::from_secs(100);
        let first = share(end, 4).duration_since(begin);
        assert!((50.0..51.0).contains(&first.as_secs_f64()), "{first:?}");
        assert!(share(end, 1) <= end);
        assert!(share(begin, 3) >= begin);
    }
}
