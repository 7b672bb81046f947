//! `soupfs-bench`: figures about SoupFS on this machine.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use bench::machine::Machine;
use bench::runs::child::Task;
use bench::runs::{self, Clock, Plan};
use bench::{Report, Result, Run};

/// Inodes come and go by the million; this allocator is faster at that than the C library's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measure SoupFS in-process beside the kernel's tmpfs, in one run.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// What to measure; all of it without.
    #[arg(value_enum)]
    what: Vec<What>,
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

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// Files and directories made and removed.
    Names,
    /// 4 KiB appended, overwritten, read.
    Data,
    /// Creates on media with slow flushes.
    Latency,
    /// More creates than the medium takes.
    Overload,
    /// One directory that grows to 1,000,000 names.
    Growth,
    /// 5,000,000 files: mounts and DRAM.
    Scale,
    /// The offline check, and reclaim after a kill.
    Recovery,
    /// Delayed against sync.
    Modes,
    /// Two threads.
    Threads,
}

impl What {
    fn run(self, plan: &Plan) -> Result<Run> {
        match self {
            What::Names => runs::names::run(plan),
            What::Data => runs::data::run(plan),
            What::Latency => runs::latency::run(plan),
            What::Overload => runs::overload::run(plan),
            What::Growth => runs::growth::run(plan),
            What::Scale => runs::scale::run(plan),
            What::Recovery => runs::recovery::run(plan),
            What::Modes => runs::modes::run(plan),
            What::Threads => runs::threads::run(plan),
        }
    }
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
    };
    let machine = Machine::here();
    if !arguments.json {
        println!("{machine}\n");
    }
    let all = What::value_variants();
    let what = if arguments.what.is_empty() {
        all
    } else {
        &arguments.what
    };
    let mut runs = Vec::new();
    for what in what {
        let run = what.run(&plan)?;
        if !arguments.json {
            println!("{run}");
        }
        runs.push(run);
    }
    if arguments.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&Report { machine, runs })?
        );
    }
    Ok(())
}
