//! What misses of paged memory cost: `cargo run --release -p pmem --example misses -- DIRECTORY`.
//!
//! Threads load from pages of an image in random order, by page faults and by tests at each load.
//! Then the page tables of an image of 100 GiB, of which one page in each 2 MiB was loaded.

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use block::{OpenOptions, Random};
use pmem::PAGE;
use pmem::paged::{Options, Paged};

const IMAGE: u64 = 512 << 20;
const CACHE: u64 = 64 << 20;
const LOADS: u64 = 16_000;

fn paged(path: &Path, faults: bool) -> Result<Paged, Box<dyn Error>> {
    let options = Options {
        faults,
        ..Options::new(CACHE)
    };
    let paged = Paged::new(OpenOptions::default().open(path)?, &options)?;
    if paged.by_faults() != faults {
        println!("page faults cannot be served here");
    }
    Ok(paged)
}

/// Microseconds of a load that misses, and how many thousand there were in a second.
fn misses(path: &Path, faults: bool, threads: u64) -> Result<(f64, f64), Box<dyn Error>> {
    let paged = paged(path, faults)?;
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let paged = &paged;
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for _ in 0..LOADS / threads {
                    paged.load(random.below(IMAGE / PAGE) * PAGE);
                }
            });
        }
    });
    let elapsed = start.elapsed().as_secs_f64();
    let missed = paged.stats().misses as f64;
    Ok((
        elapsed * 1e6 * threads as f64 / missed,
        missed / elapsed / 1e3,
    ))
}

/// The resident page tables of this process, in KiB.
fn page_tables() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.ok_or("no VmPTE")?.parse()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).ok_or("a directory is needed")?;
    let path = Path::new(&directory).join("misses.img");
    let file = File::create_new(&path)?;
    for at in (0..IMAGE).step_by(1 << 20) {
        file.write_all_at(&[1; 1 << 20], at)?;
    }
    file.sync_all()?;
    println!("{}", OpenOptions::default().open(&path)?.info().how);
    for threads in [1, 2, 4, 8, 16] {
        for faults in [true, false] {
            let (us, rate) = misses(&path, faults, threads)?;
            println!("{threads:2} threads, faults {faults}: {us:.0} us a miss, {rate:.1} k/s");
        }
    }
    file.set_len(100 << 30)?;
    for faults in [true, false] {
        let paged = paged(&path, faults)?;
        let before = page_tables()?;
        let start = Instant::now();
        for at in (0..paged.len()).step_by(2 << 20) {
            paged.load(at);
        }
        let (after, elapsed) = (page_tables()?, start.elapsed());
        println!(
            "100 GiB, faults {faults}: {} MiB, {elapsed:?}",
            (after - before) >> 10
        );
    }
    std::fs::remove_file(&path)?;
    Ok(())
}
