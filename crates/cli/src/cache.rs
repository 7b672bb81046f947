//! `tureen cache`: caches in persistent memory before the disk of an image.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cache::{Cache, CreateOptions, Kind, Status};
use clap::Subcommand;
use ffs::Ext2Binding;
use pmem::Pool;
use volume::Access;

use crate::engines::ext2;
use crate::failure::{Failure, Outcome};
use crate::units::{parse_size, size};
use crate::{exclusive, image, output, random, status};

/// Make, inspect and give back caches of persistent memory before a disk
///
/// A cache lies in a file of a file system in memory (DAX, or tmpfs to try it), or on a
/// persistent-memory device, before the disk of an ext2 image. What is synced is durable in the
/// cache, and the disk gets it later:
///
///     tureen cache create /mnt/pmem/cache --for disk.img --size 1G
///     tureen mount disk.img mnt -o cache=/mnt/pmem/cache
///     ... use mnt ...
///     tureen umount mnt
///     tureen cache detach /mnt/pmem/cache --for disk.img
///
/// Until it was flushed or detached, the disk alone is of no use, and says so to every system.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

/// A cache, and the image that it is for.
#[derive(clap::Args)]
struct Pair {
    /// The file or device with the cache
    cache: PathBuf,
    /// The ext2 image, or block device, that it is for
    #[arg(long = "for", value_name = "IMAGE")]
    image: PathBuf,
}

/// A cache and its image, or where that is mounted.
#[derive(clap::Args)]
struct LivePair {
    /// The file or device with the cache, or the directory where its image is mounted
    #[arg(value_name = "CACHE|DIR")]
    cache: PathBuf,
    /// The ext2 image, or block device, that it is for; not with DIR
    #[arg(long = "for", value_name = "IMAGE")]
    image: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Make a cache for an image
    Create {
        #[command(flatten)]
        pair: Pair,
        /// Its size, like 512M or 4G; a device is filled
        #[arg(long, value_parser = parse_size)]
        size: Option<u64>,
        /// spindle: metadata is changed in place, little by little; tinca: by whole blocks
        #[arg(long, default_value_t = Kind::Spindle)]
        kind: Kind,
        /// Metadata that replacement leaves in peace; an eighth of the cache by default
        #[arg(long, value_parser = parse_size)]
        metadata: Option<u64>,
        /// Bytes of metadata that are logged and changed together: a power of two of 64 to 4096
        #[arg(long, default_value_t = 64)]
        unit: u64,
        /// Overwrite what the file or device holds
        #[arg(long)]
        force: bool,
    },
    /// Say what a cache holds
    Stat {
        /// The file or device with the cache, if it is not in use; or where its image is mounted
        #[arg(value_name = "CACHE|DIR")]
        cache: PathBuf,
        /// Report in JSON
        #[arg(long)]
        json: bool,
    },
    /// Check that a cache holds nothing that cannot be; it is not changed
    Check {
        /// The file or device with the cache; it must not be in use
        cache: PathBuf,
    },
    /// Let the disk have everything: it can be used alone then, if it is not mounted
    Flush {
        #[command(flatten)]
        live: LivePair,
    },
    /// Flush, and give the cache back: the image is as if there had never been one
    Detach {
        #[command(flatten)]
        pair: Pair,
    },
    /// Bind a cache that was detached to an image
    Attach {
        #[command(flatten)]
        pair: Pair,
    },
    /// Flush, and make the cache anew with another size
    Resize {
        #[command(flatten)]
        pair: Pair,
        /// Its new size
        #[arg(long, value_parser = parse_size)]
        size: u64,
    },
    /// Let commits wait for the disk (write-through), or not (write-back)
    Mode {
        #[command(flatten)]
        live: LivePair,
        /// write-back or write-through
        mode: Mode,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    WriteBack,
    WriteThrough,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Outcome {
    match &args.command {
        Command::Create {
            pair,
            size,
            kind,
            metadata,
            unit,
            force,
        } => {
            let how = How {
                kind: *kind,
                metadata: *metadata,
                unit: *unit,
                force: *force,
            };
            create(pair, *size, &how)
        }
        Command::Stat { cache, json } => stat(cache, *json),
        Command::Check { cache } => check(cache),
        Command::Flush { live } => live.run("cache.flush", |cache| cache.flush()),
        Command::Detach { pair } => with(pair, Cache::detach),
        Command::Attach { pair } => attach(pair),
        Command::Resize { pair, size } => resize(pair, *size),
        Command::Mode { live, mode } => {
            let (command, is_through) = match mode {
                Mode::WriteBack => ("cache.write-back", false),
                Mode::WriteThrough => ("cache.write-through", true),
            };
            live.run(command, |cache| cache.set_through(is_through))
        }
    }
}

impl LivePair {
    /// Lets the process that serves the mount do it, or does it here.
    fn run(
        &self,
        command: &str,
        act: impl FnOnce(Cache) -> Result<(), cache::CacheError>,
    ) -> Outcome {
        match (self.cache.is_dir(), &self.image) {
            (true, None) => status::command(&self.cache, command).map(|_| 0),
            (true, Some(_)) => {
                let what = "is a directory: leave out --for, or name the cache's file";
                Err(Failure::at(&self.cache, what))
            }
            (false, None) => {
                let what = "say which image it is for with --for, or name where that is mounted";
                Err(Failure::at(&self.cache, what))
            }
            (false, Some(image)) => {
                let pair = Pair {
                    cache: self.cache.clone(),
                    image: image.clone(),
                };
                with(&pair, act)
            }
        }
    }
}

/// What a cache is to be like.
struct How {
    kind: Kind,
    metadata: Option<u64>,
    unit: u64,
    force: bool,
}

/// Bytes at the start of a file that are zeros if it holds nothing.
const BLANK_LEN: u64 = 1 << 20;

impl Pair {
    fn disk(&self) -> Result<block::Disk, Failure> {
        let image = image::existing(&self.image)?;
        exclusive::check_unmounted(&image)?;
        Ok(ext2::open_disk(&image, false)?)
    }

    fn failed(&self, error: impl std::fmt::Display) -> Failure {
        Failure::at(&self.cache, error)
    }
}

fn create(pair: &Pair, size: Option<u64>, how: &How) -> Outcome {
    let disk = pair.disk()?;
    let pool = match (pair.cache.exists(), size) {
        (false, Some(size)) => Pool::create(&pair.cache, size, &pmem::Options::default()),
        (false, None) => {
            let what = "does not exist: say how large the cache is to be with --size";
            return Err(pair.failed(what));
        }
        (true, Some(_)) => {
            let what = "exists, and has the size that it has: leave out --size";
            return Err(pair.failed(what));
        }
        (true, None) => {
            let pool = ext2::open_cache(&pair.cache, Access::Write)?;
            return fill(pair, pool, disk, how);
        }
    };
    let pool = pool.map_err(Failure::new)?;
    fill(pair, Arc::new(pool), disk, how).inspect_err(|_| {
        let _ = std::fs::remove_file(&pair.cache);
    })
}

/// Makes a cache in a pool that has none in use.
fn fill(pair: &Pair, pool: Arc<Pool>, disk: block::Disk, how: &How) -> Outcome {
    let mut start = vec![0; pool.len().min(BLANK_LEN) as usize];
    pool.read(0, &mut start);
    if start.iter().any(|&byte| byte != 0) {
        let obstacle = match cache::examine(pool.clone()) {
            Ok(old) if old.dirty > 0 => {
                Some("has a cache with blocks that its disk lacks: flush it, or wipe it first")
            }
            _ if how.force => None,
            Ok(_) => Some("has a cache already; --force makes another one in its place"),
            Err(_) => Some("holds something already; --force overwrites all of it"),
        };
        if let Some(what) = obstacle {
            return Err(pair.failed(what));
        }
    }
    let options = CreateOptions {
        kind: how.kind,
        uuid: random::bytes()?,
        unit: how.unit,
        metadata: how.metadata.unwrap_or(pool.len() / 8),
    };
    let made = Cache::create(pool, disk, Arc::new(Ext2Binding), &options);
    made.map_err(|error| pair.failed(error))?;
    Ok(0)
}

/// Does something with a cache and its disk.
fn with(pair: &Pair, act: impl FnOnce(Cache) -> Result<(), cache::CacheError>) -> Outcome {
    let disk = pair.disk()?;
    let pool = ext2::open_cache(&pair.cache, Access::Write)?;
    let opened = Cache::open(pool, disk, Arc::new(Ext2Binding));
    opened.and_then(act).map_err(|error| pair.failed(error))?;
    Ok(0)
}

fn attach(pair: &Pair) -> Outcome {
    let disk = pair.disk()?;
    let pool = ext2::open_cache(&pair.cache, Access::Write)?;
    let attached = Cache::attach(pool, disk, Arc::new(Ext2Binding));
    attached.map_err(|error| pair.failed(error))?;
    Ok(0)
}

/// A crash on the way leaves the disk consistent, and no cache.
fn resize(pair: &Pair, size: u64) -> Outcome {
    let is_file = pair.cache.metadata().is_ok_and(|meta| meta.is_file());
    if !is_file {
        // A device keeps its size; the cache takes a part of it.
        return with(pair, |cache| cache.resize(size).map(drop));
    }
    let old = examine(&pair.cache)?;
    let kept = CreateOptions {
        kind: old.kind,
        uuid: old.uuid,
        unit: old.unit,
        metadata: old.metadata_min * cache::BLOCK,
    };
    // Before the old one is gone.
    kept.check(size).map_err(|error| pair.failed(error))?;
    with(pair, Cache::detach)?;
    std::fs::remove_file(&pair.cache).map_err(|error| pair.failed(error))?;
    let how = How {
        kind: kept.kind,
        metadata: Some(kept.metadata),
        unit: kept.unit,
        force: false,
    };
    create(pair, Some(size), &how)?;
    match old.is_through {
        true => with(pair, |cache| cache.set_through(true)),
        false => Ok(0),
    }
}

fn examine(path: &Path) -> Result<Status, Failure> {
    let pool = ext2::open_cache(path, Access::Look)?;
    cache::examine(pool).map_err(|error| Failure::at(path, error))
}

fn stat(path: &Path, json: bool) -> Outcome {
    if path.is_dir() {
        return stat_live(path, json);
    }
    let status = examine(path)?;
    if json {
        println!("{}", ext2::cache_status(&status));
    } else {
        let uuid = |bytes| uuid::Uuid::from_bytes(bytes);
        let blocks = |count: u64| size(count * cache::BLOCK);
        println!(
            "kind      {}, in units of {} bytes",
            status.kind, status.unit
        );
        println!("uuid      {}", uuid(status.uuid));
        match status.disk_uuid {
            disk if disk == [0; 16] => println!("disk      none: it is detached"),
            disk => println!("disk      {}", uuid(disk)),
        }
        println!("size      {}", blocks(status.blocks));
        println!(
            "cached    {}, of it metadata {}",
            blocks(status.cached),
            blocks(status.metadata)
        );
        println!("dirty     {}", blocks(status.dirty));
        let through = if status.is_through {
            "write-through"
        } else {
            "write-back"
        };
        println!("mode      {through}");
    }
    output::check()?;
    Ok(0)
}

/// What the process that serves a mount says of its cache.
fn stat_live(dir: &Path, json: bool) -> Outcome {
    let asked = status::ask(dir)?;
    let Some(facts) = asked["file_system"]["cache"].as_object() else {
        let what = "no cache: it is mounted without one";
        return Err(Failure::at(dir, what));
    };
    match json {
        true => println!("{}", serde_json::Value::Object(facts.clone())),
        false => facts.iter().for_each(|(name, value)| match value {
            serde_json::Value::String(text) => println!("{name:<16} {text}"),
            value => println!("{name:<16} {value}"),
        }),
    }
    output::check()?;
    Ok(0)
}

fn check(path: &Path) -> Outcome {
    let status = examine(path)?;
    println!(
        "{}: clean, {} of {} blocks in use, {} that the disk lacks",
        path.display(),
        status.cached,
        status.blocks,
        status.dirty
    );
    output::check()?;
    Ok(0)
}
