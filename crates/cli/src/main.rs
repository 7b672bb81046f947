//! `tureen`: make, mount, check, inspect and measure file systems.
//!
//! Each subcommand has a module with its arguments, their help and what it does. Called under the
//! name of a mount helper (`mount.fuse.tureen`, `umount.fuse.tureen`), the same program follows the
//! conventions of mount(8) and umount(8), see [`helper`].
//!
//! Layers, from the bottom. A module uses those above it in this list, and none below (a test):
//! 1. `failure`: what is said when it does not work. `output`: what is said when it does. `units`:
//!    sizes and times as people write them. `random`.
//! 2. `engines`: what images may hold. Nothing else here, but for the research commands `bench` and
//!    `explore`, knows an engine. `options`: those of a mount.
//! 3. `image`: an image by its path. `status`: asks a live mount. `mounts`: the kernel's list of
//!    them. `kernel_use`, `exclusive`: opened for one user.
//! 4. `daemon`, `utab`, `end`: a process that serves. `what`: what it mounts where.
//! 5. `live_check`, `report`: what a serving process does and tells when it is asked.
//! 6. `mkfs`, `snapshot`: subcommands that others use.
//! 7. `serve`: a mount, from opening the image to leaving it clean.
//! 8. `mount`, `umount`, `fsck`, `stat`, `dumpdates`, `dump`, `cache`, `explore`, `bench`: the
//!    other subcommands.
//! 9. `helper`: the conventions of mount(8) and umount(8). `install`: makes them find it.

// Before the others: its macros are for all of them.
#[macro_use]
mod output;

mod bench;
mod cache;
mod daemon;
mod dump;
mod dumpdates;
mod end;
mod engines;
mod exclusive;
mod explore;
mod failure;
mod fsck;
mod helper;
mod image;
mod install;
mod kernel_use;
mod live_check;
mod mkfs;
mod mount;
mod mounts;
mod options;
mod random;
mod report;
mod serve;
mod snapshot;
mod stat;
mod status;
mod umount;
mod units;
mod utab;
mod what;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::failure::{Failure, Outcome};

/// Inodes come and go by the million; this allocator is faster at that than the C library's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Crash-consistent file systems in user space.
///
/// An image is a file, a disk, or a persistent-memory device that holds a file system. The shortest
/// way to one in use:
///
///     tureen mount disk.img mnt --create 1G
///     ... use mnt ...
///     tureen umount mnt
///
/// That is SoupFS; with -o mode=strong each request is there as a whole or not at all, and durable
/// when it returns. For files that others read and write, too: mkfs --type ext2, or any
/// image or partition of ext2 or ext3, which has snapshots; with some persistent memory before a
/// slow disk: cache create. Which one an image holds is found out.
#[derive(Parser)]
#[command(name = "tureen", version, verbatim_doc_comment)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Mkfs(mkfs::Args),
    Mount(mount::Args),
    Umount(umount::Args),
    Fsck(fsck::Args),
    Stat(stat::Args),
    Dump(dump::Args),
    Snapshot(snapshot::Args),
    Cache(cache::Args),
    Explore(Box<explore::Args>),
    Install(install::Args),
    Bench(Box<bench::Args>),
}

fn main() -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().collect();
    if let Some(outcome) = helper::called_as_helper(&mut args) {
        return report(outcome);
    }
    match Cli::try_parse_from(&args) {
        Ok(cli) => {
            output::start_log(match cli.command {
                // The engines in it meet crashes and failing syncs on purpose.
                Command::Explore(_) => "off",
                _ => "warn",
            });
            report(run(cli.command))
        }
        Err(error) => {
            let _ = error.print();
            ExitCode::from(usage_code(&error, &args))
        }
    }
}

fn run(command: Command) -> Outcome {
    match command {
        Command::Mkfs(args) => mkfs::run(&args),
        Command::Mount(args) => mount::run(&args),
        Command::Umount(args) => umount::run(&args),
        Command::Fsck(args) => fsck::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Snapshot(args) => snapshot::run(&args),
        Command::Cache(args) => cache::run(&args),
        Command::Explore(args) => explore::run(&args),
        Command::Install(args) => install::run(&args),
        Command::Bench(args) => bench::run(&args),
    }
}

/// The exit code of arguments that do not parse: fsck(8) has its own.
fn usage_code(error: &clap::Error, args: &[OsString]) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => 0,
        _ if args.get(1).is_some_and(|arg| arg == "fsck") => fsck::USAGE,
        _ => failure::USAGE,
    }
}

fn report(outcome: Outcome) -> ExitCode {
    match outcome.and_then(|code| output::check().map(|()| code)) {
        Ok(code) => ExitCode::from(code),
        Err(Failure { message, code }) => {
            eprintln!("tureen: {message}");
            ExitCode::from(code)
        }
    }
}

#[cfg(test)]
#[test]
fn no_module_uses_one_further_down() {
    let uses = testing::layers::check(env!("CARGO_MANIFEST_DIR"));
    assert!(uses > 90, "sources were read");
}
