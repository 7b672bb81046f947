//! `soupfs-bench`: figures about SoupFS on this machine.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use bench::Result;
use bench::machine::Machine;
use bench::plan::{Clock, Plan};
use bench::report::Report;
use bench::runs::child::Task;
use bench::suite::{FAMILIES, Family, Size};

/// Inodes come and go by the million; this allocator is faster at that than the C library's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measure SoupFS in-process beside the kernel's tmpfs, in one run.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// What to measure; all of it without.
    what: Vec<String>,
    /// A directory on tmpfs for images and for the kernel's side.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    scratch: PathBuf,
    /// Rounds that count; medians are over these.
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Divide all sizes by this, for a quick look.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    divide: u64,
    /// Ask for huge pages for the images.
    #[arg(long)]
    huge_pages: bool,
    /// Time single callers by their CPU time instead of the wall clock: for a machine that others
    /// use, too.
    #[arg(long)]
    cpu_time: bool,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Do a part of a run that needs a process of its own.
    #[arg(long, hide = true)]
    child: Option<String>,
}

fn main() -> ExitCode {
    match work(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("soupfs-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn work(arguments: &Arguments) -> Result<()> {
    if let Some(task) = &arguments.child {
        let task: Task = serde_json::from_str(task)?;
        return task.run();
    }
    let plan = Plan {
        scratch: arguments.scratch.clone(),
        rounds: arguments.rounds,
        divide: arguments.divide,
        huge_pages: arguments.huge_pages,
        clock: if arguments.cpu_time {
            Clock::Cpu
        } else {
            Clock::Wall
        },
        child: vec!["--child".into()],
        ..Size::Full.plan()
    };
    let mut report = Report {
        machine: Machine::here(),
        peers: Vec::new(),
        runs: Vec::new(),
    };
    if !arguments.json {
        println!("{}\n", report.machine);
    }
    let all: Vec<String> = FAMILIES.iter().map(|family| family.name.into()).collect();
    let what = match arguments.what.as_slice() {
        [] => &all,
        some => some,
    };
    for name in what {
        let family = Family::of(name).ok_or_else(|| format!("{name}: there is no such family"))?;
        let (run, peers) = family.run(&plan, Size::Full, &format!("soupfs-bench {name}"))?;
        if !arguments.json {
            println!("{run}");
        }
        report.merge(Report {
            machine: report.machine.clone(),
            peers,
            runs: vec![run],
        });
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    }
    Ok(())
}
