//! `tureen explore`: judge what crashes may leave.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use explorer::campaign::{Campaign, Progress, Summary, replay};
use explorer::effort::Level;
use explorer::engine::{Engine, Mode};
use explorer::engines;
use explorer::families::{Family, families, family};
use explorer::mutants;
use explorer::rules::Rules;
use explorer::token::Token;
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::{FAILED, Failure, Outcome};
use crate::units::parse_duration;

/// Exit code of shells for what SIGINT ended.
const INTERRUPTED: u8 = 128 + SIGINT as u8;

/// How often the progress is drawn.
const DRAW: Duration = Duration::from_millis(200);

/// Run workloads and judge every state that a crash may leave
///
/// Each workload runs on an image in memory, in each domain and mode. From the record of its
/// stores, flushes and fences come the images that a crash may leave; each must mount at once, have
/// no flaw but leaks, and hold a tree that the history allows. What is wrong is shown with a token
/// that replays it. Exit codes: 0 nothing wrong, 1 something is, 2 wrong arguments, 130 interrupted
/// with nothing wrong so far. SIGINT (Ctrl-C) and SIGTERM end it after the runs that are under way,
/// with a summary; the second one at once.
///
///     tureen explore                                  the usual families, for 60 seconds
///     tureen explore ace1 ace2 --complete             all of them, however long that takes
///     tureen explore ace3 --complete --shard 2/8      an eighth of a long one
///     tureen explore ace1 --engine ext2               an ext2 file system, by sectors of a disk
///     tureen explore ace1 --engine ext2 --e2fsck 100  and e2fsck judges one state in 100
///     tureen explore ace1 --engine ext2+cache         the same behind a persistent cache
///     tureen explore --replay ace1-7:line:sync:normal.0:p12.s3
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Families of workloads; see --list. The usual ones by default
    families: Vec<String>,
    /// List the families
    #[arg(long)]
    list: bool,
    /// What is explored: soupfs; ext2, by the sectors of its disk; or ext2+cache, by the lines of a
    /// persistent cache as well
    #[arg(long, default_value = "soupfs", value_parser = parse_engine)]
    engine: &'static dyn Engine,
    /// Domains to explore, all of the engine's by default: line, cache, page; sectors;
    /// line+sectors, cache+sectors
    #[arg(long, value_delimiter = ',')]
    domains: Vec<Rules>,
    /// Modes to explore, all that promise anything by default: delayed, sync, strong; of ext2 soft,
    /// async; of ext2+cache spindle, tinca
    #[arg(long, value_delimiter = ',')]
    modes: Vec<String>,
    /// How thorough each run is: quick, normal, thorough
    #[arg(long, default_value = "normal", value_parser = parse_level)]
    level: Level,
    /// Chooses samples, and the workloads of endless families
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// For how long, like 90 or 60m; 60 by default
    #[arg(long, value_parser = parse_time, conflicts_with = "complete")]
    seconds: Option<Duration>,
    /// Explore whole families, however long it takes
    #[arg(long)]
    complete: bool,
    /// At most so many workloads of each family
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Only each N-th workload, from the K-th on: K/N, K from 1
    #[arg(long, value_parser = parse_shard, default_value = "1/1")]
    shard: (u64, u64),
    /// Let e2fsck judge each N-th state of ext2, too, more or less: a sample
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    e2fsck: Option<u64>,
    /// Threads; one for each processor by default
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Give up after so many failures
    #[arg(long, default_value_t = 5)]
    failures: usize,
    /// Report in JSON
    #[arg(long, conflicts_with_all = ["list", "replay", "mutants"])]
    json: bool,
    /// Judge again what this token names
    #[arg(long, value_name = "TOKEN", conflicts_with = "families")]
    replay: Option<Token>,
    /// Where the runs of several threads that fail are kept, and tokens with an @ find them
    #[arg(long, value_name = "DIR", default_value = "target/traces")]
    traces: PathBuf,
    /// Prove the judges, and write the table of what they notice to this file: leave out each
    /// flush, fence, barrier and order of each engine in turn, and inject bugs into it if this is a
    /// build with --features faults
    #[arg(long, value_name = "FILE", conflicts_with_all = ["families", "replay"])]
    mutants: Option<PathBuf>,
}

fn parse_engine(text: &str) -> Result<&'static dyn Engine, String> {
    let mut all = engines::all().into_iter();
    let engine = all.find(|engine| engine.name() == text);
    engine.ok_or_else(|| "it is soupfs, ext2 or ext2+cache".into())
}

/// The modes that are chosen.
fn modes(args: &Args) -> Result<Vec<Mode>, Failure> {
    let all = args.engine.modes().iter();
    if args.modes.is_empty() {
        return Ok(all.filter(|mode| mode.is_kept).copied().collect());
    }
    let named = |name: &String| {
        let mode = all.clone().find(|mode| mode.name == name);
        mode.copied().ok_or_else(|| {
            let names: Vec<_> = all.clone().map(|mode| mode.name).collect();
            let choices = match names.split_last() {
                Some((last, others)) if !others.is_empty() => {
                    format!("{} or {last}", others.join(", "))
                }
                _ => names.concat(),
            };
            Failure::usage(format!("no mode {name:?}: use {choices}"))
        })
    };
    args.modes.iter().map(named).collect()
}

/// The media that are chosen.
fn media(args: &Args) -> Result<Vec<Rules>, Failure> {
    let all = args.engine.media();
    if args.domains.is_empty() {
        return Ok(all.to_vec());
    }
    match args.domains.iter().find(|rules| !all.contains(rules)) {
        Some(rules) => Err(Failure::usage(format!(
            "{} does not run on {rules}",
            args.engine.name()
        ))),
        None => Ok(args.domains.clone()),
    }
}

/// One in how many states is shown to e2fsck; 0: none.
fn others(args: &Args) -> Result<u64, Failure> {
    let Some(one_in) = args.e2fsck else {
        return Ok(0);
    };
    match args.engine.others() {
        Some(others) if others.is_there() => Ok(one_in),
        Some(others) => Err(Failure::new(format!(
            "{} is missing: install e2fsprogs, or explore without --e2fsck",
            others.name()
        ))),
        None => Err(Failure::usage("--e2fsck goes with --engine ext2")),
    }
}

/// A time in which something can be explored.
fn parse_time(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("nothing is explored in no time".into()),
        time => Ok(time),
    }
}

fn parse_level(text: &str) -> Result<Level, String> {
    let level = Level::ALL.iter().find(|(name, _)| *name == text);
    level
        .map(|(_, level)| *level)
        .ok_or_else(|| "it is quick, normal or thorough".into())
}

/// Remainder and divisor of a shard.
fn parse_shard(text: &str) -> Result<(u64, u64), String> {
    let parts = text.split_once('/');
    let numbers: Option<(u64, u64)> =
        parts.and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    match numbers {
        Some((k, n)) if 0 < k && k <= n => Ok((k - 1, n)),
        _ => Err("it is K/N, with K from 1 to N".into()),
    }
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Outcome {
    if args.list {
        list();
        return Ok(0);
    }
    if let Some(token) = &args.replay {
        return match replay(token, &args.traces) {
            Ok(explored) => {
                println!("{} states, nothing wrong", explored.judged);
                Ok(0)
            }
            Err(account) => {
                println!("{account}");
                Ok(FAILED)
            }
        };
    }
    if let Some(path) = &args.mutants {
        return prove(path, jobs(args));
    }
    let campaign = campaign(args)?;
    let progress = Arc::new(Progress::default());
    stop_on_signals(&progress)?;
    let summary = watched(&campaign, &progress, args.json);
    show(args, &summary);
    Ok(match summary.failures.is_empty() {
        false => FAILED,
        true if progress.stop.load(Relaxed) => INTERRUPTED,
        true => 0,
    })
}

/// What hours have found is not to be lost: the first signal ends the campaign and not the program.
fn stop_on_signals(progress: &Arc<Progress>) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM])
        .map_err(|error| Failure::new(format!("cannot handle signals: {error}")))?;
    let progress = progress.clone();
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if progress.stop.swap(true, Relaxed) {
                std::process::exit(128 + signal);
            }
            eprintln!("tureen: interrupted; finishing the runs that are under way");
        }
    });
    Ok(())
}

fn jobs(args: &Args) -> usize {
    let all = || std::thread::available_parallelism().map_or(1, usize::from);
    args.jobs.map_or_else(all, usize::from)
}

/// Write the table of mutants of all engines.
fn prove(path: &Path, jobs: usize) -> Outcome {
    let cannot = |why| Failure::at(path, why);
    // Not after all of them were tried.
    let mut options = std::fs::OpenOptions::new();
    let opened = options.create(true).append(true).open(path);
    opened.map_err(cannot)?;
    let watch = |name: &str, open: usize| eprintln!("{name}: {open} to try");
    let (mut all, mut missed, mut count) = (Vec::new(), Vec::new(), 0);
    for engine in engines::all() {
        let Some(table) = mutants::of(engine) else {
            continue;
        };
        let mut take = |of: String, fates: mutants::Fates| {
            missed.extend(mutants::survivors(&fates));
            count += fates.len();
            all.push((of, fates));
        };
        for tour in table.tours {
            let mut fates = mutants::Fates::new();
            for &domain in table.domains {
                let which: (bool, &dyn Fn(&mutants::Mutant) -> bool) = (false, &|_| true);
                let left_out = mutants::leave_out(&(tour.made)(), domain, jobs, which, &watch);
                fates.extend(left_out.map_err(Failure::new)?);
            }
            take(format!("{}, mode {}", engine.name(), tour.name), fates);
        }
        let bugs = mutants::inject_each(engine, None, jobs, &|name| eprintln!("{name}"));
        if bugs.is_empty() {
            eprintln!(
                "this build has no bugs to inject into {}: build it with --features faults",
                engine.name()
            );
        }
        take(engine.name().to_owned(), bugs);
    }
    for mutant in &missed {
        println!("nobody notices: {mutant}");
    }
    println!("{count} mutants, {} not noticed", missed.len());
    std::fs::write(path, mutants::document(&all)).map_err(cannot)?;
    Ok(if missed.is_empty() { 0 } else { FAILED })
}

fn list() {
    for family in families() {
        let size = family.size.map_or("endless".into(), |n| n.to_string());
        let unusual = if family.usual { "" } else { " (only if named)" };
        println!("{:12} {size:>8}  {}{unusual}", family.name, family.about);
    }
}

fn campaign(args: &Args) -> Result<Campaign, Failure> {
    let runs =
        |family: &Family| family.only_on.is_empty() || family.only_on.contains(&args.engine.name());
    let chosen: Vec<Family> = if args.families.is_empty() {
        families()
            .into_iter()
            .filter(|family| family.usual && runs(family))
            .collect()
    } else {
        let named = |name: &String| {
            family(name).ok_or_else(|| {
                Failure::usage(format!(
                    "no family {name:?}; 'tureen explore --list' lists them"
                ))
            })
        };
        args.families.iter().map(named).collect::<Result<_, _>>()?
    };
    if let Some(other) = chosen.iter().find(|family| !runs(family)) {
        let own = other.only_on.join(" and ");
        return Err(Failure::usage(format!("{} is for {own} alone", other.name)));
    }
    if args.complete
        && args.count.is_none()
        && let Some(endless) = chosen.iter().find(|family| family.size.is_none())
    {
        let message = format!(
            "{} is endless: give it a --count, or --seconds",
            endless.name
        );
        return Err(Failure::usage(message));
    }
    let unlimited = args.complete || args.count.is_some();
    let usual = (!unlimited).then_some(Duration::from_secs(60));
    Ok(Campaign {
        families: chosen
            .into_iter()
            .map(|family| (family, args.count))
            .collect(),
        rules: media(args)?,
        modes: modes(args)?,
        level: args.level,
        seed: args.seed,
        time: args.seconds.or(usual),
        jobs: jobs(args),
        shard: args.shard,
        spread: true,
        others: others(args)?,
        failures_max: args.failures.max(1),
        traces: args.traces.clone(),
    })
}

/// Run the campaign, and show how far it is.
fn watched(campaign: &Campaign, progress: &Progress, json: bool) -> Summary {
    let bar = progress_bar(campaign, json);
    std::thread::scope(|s| {
        let running = s.spawn(|| campaign.run(progress));
        while !running.is_finished() {
            let (judged, failures) = (
                progress.judged.load(Relaxed),
                progress.failures.load(Relaxed),
            );
            bar.set_position(progress.runs.load(Relaxed));
            let message = format!("runs, {judged} states, {failures} failures");
            log::debug!("{message}");
            bar.set_message(message);
            std::thread::park_timeout(DRAW);
        }
        bar.finish_and_clear();
        match running.join() {
            Ok(summary) => summary,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn progress_bar(campaign: &Campaign, json: bool) -> ProgressBar {
    if json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match campaign.runs() {
        Some(runs) => (ProgressBar::new(runs), "{bar:30} {pos}/{len} {msg} {eta}"),
        None => (
            ProgressBar::new_spinner(),
            "{spinner} {pos} {msg} {elapsed}",
        ),
    };
    let style = ProgressStyle::with_template(template);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn show(args: &Args, summary: &Summary) {
    if args.json {
        // A summary has nothing in it that JSON lacks.
        println!("{}", serde_json::to_string(summary).unwrap_or_default());
        return;
    }
    for failure in &summary.failures {
        println!("{}\n  found as {}\n", failure.account, failure.token);
    }
    print!("{}", summary.text());
    if let Some(failure) = summary.failures.first() {
        println!("replay with: tureen explore --replay '{}'", failure.minimal);
    }
}
