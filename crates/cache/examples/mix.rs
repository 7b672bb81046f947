//! The paper's random mix of 4 KiB reads and writes (figures 5a and 5b), without a file system:
//! what it costs Spindle and Tinca, by the share of writes.
//!
//! ```sh
//! cargo run --release -p cache --example mix -- [SECONDS [LINE_NS [READ_NS]]]
//! ```
//!
//! The memory is anonymous, of domain `line`. Each line that is flushed, or written around the
//! cache, takes LINE_NS longer, and each that is read READ_NS: 180 and 50 as in the paper. The disk
//! is memory, too, and four times as large as the cache. An operation in eight is of metadata, of
//! which one line changes; a transaction has 16 writes.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{Buffer, Disk, Memory, Random};
use cache::testing::Bind;
use cache::{BLOCK, Cache, CacheError, Class, CreateOptions, Kind, Transaction, Writer};
use pmem::{Domain, Latency, Options, Pool};

const CACHE_LEN: u64 = 64 << 20;
const DISK_LEN: u64 = 256 << 20;
/// Blocks of metadata, which the cache can hold.
const METADATA: u64 = CACHE_LEN / BLOCK / 8;
/// Writes of a transaction.
const TOGETHER: usize = 16;

/// A cache and who uses it.
struct Run {
    cache: Arc<Cache>,
    random: Random,
    /// Of ten operations.
    writes: u64,
    block: Vec<u8>,
    next: Transaction,
    done: u64,
    written: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let seconds: f64 = arguments.next().map_or(Ok(2.0), |text| text.parse())?;
    let line_ns: u32 = arguments.next().map_or(Ok(180), |text| text.parse())?;
    let read_ns = arguments.next().map_or(Ok(50), |text| text.parse())?;
    let latency = Latency {
        flush_ns: line_ns,
        read_ns,
        ..Latency::default()
    };
    println!("| writes of 10 | kind | 1,000 operations/s | lines/write | fences/write |");
    println!("|---|---|---|---|---|");
    for writes in [10, 7, 5, 3] {
        for kind in [Kind::Spindle, Kind::Tinca] {
            measure(kind, writes, Duration::from_secs_f64(seconds), latency)?;
        }
    }
    Ok(())
}

/// Prints a row.
fn measure(
    kind: Kind,
    writes: u64,
    time: Duration,
    latency: Latency,
) -> Result<(), Box<dyn Error>> {
    let options = Options {
        domain: Some(Domain::Line),
        latency,
        ..Options::default()
    };
    let pool = Arc::new(Pool::anonymous(CACHE_LEN, &options)?);
    let disk = Disk::new(Arc::new(Memory::new(DISK_LEN)));
    let mut first = Buffer::zeroed(BLOCK as usize);
    Bind::label(&mut first);
    disk.write(0, vec![first])?;
    let how = CreateOptions {
        kind,
        uuid: [2; 16],
        unit: 64,
        metadata: METADATA * BLOCK,
    };
    let cache = Arc::new(Cache::create(pool.clone(), disk, Arc::new(Bind), &how)?);
    let _writer = Writer::start(cache.clone())?;
    let mut run = Run {
        cache,
        random: Random::new(1),
        writes,
        block: vec![0; BLOCK as usize],
        next: Transaction::default(),
        done: 0,
        written: 0,
    };
    for number in 1..=METADATA {
        run.write(Class::Metadata, number)?;
    }
    (run.done, run.written) = (0, 0);
    let (before, start) = (pool.stats(), Instant::now());
    while start.elapsed() < time {
        run.operation()?;
    }
    let (took, stats) = (start.elapsed().as_secs_f64(), pool.stats() - before);
    let rate = run.done as f64 / took / 1000.0;
    let each = |count: u64| count as f64 / run.written as f64;
    let lines = each(stats.flushed_lines + stats.bytes_non_temporal / 64);
    let fences = each(stats.fences);
    println!("| {writes} | {kind} | {rate:.0} | {lines:.1} | {fences:.2} |");
    Ok(())
}

impl Run {
    /// A read or a write of a block.
    fn operation(&mut self) -> Result<(), CacheError> {
        let is_metadata = self.random.one_in(8);
        let (class, number) = match is_metadata {
            true => (Class::Metadata, 1 + self.random.below(METADATA)),
            false => {
                let data = DISK_LEN / BLOCK - METADATA - 1;
                (Class::Data, 1 + METADATA + self.random.below(data))
            }
        };
        if self.random.below(10) < self.writes {
            return self.write(class, number);
        }
        self.done += 1;
        self.cache.read(number * BLOCK, &mut self.block)
    }

    fn write(&mut self, class: Class, number: u64) -> Result<(), CacheError> {
        if class == Class::Metadata {
            // As a file system has it in its own memory.
            self.cache.read(number * BLOCK, &mut self.block)?;
        }
        let at = 64 * self.random.below(64) as usize;
        self.block[at..at + 8].copy_from_slice(&(self.done + 1).to_le_bytes());
        (self.done, self.written) = (self.done + 1, self.written + 1);
        self.next.write(class, number * BLOCK, &self.block);
        match self.next.len() {
            TOGETHER.. => self.cache.commit(std::mem::take(&mut self.next)),
            _ => Ok(()),
        }
    }
}
