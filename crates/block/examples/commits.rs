//! What a commit costs on a disk, beside bare system calls on the same file:
//!
//! ```sh
//! cargo run --release -p block --example commits -- /directory/on/that/disk [ROUNDS]
//! ```
//!
//! Each way has a file of its own there, removed at the end. Every way has its turn in each round,
//! in random order, so that what else the disk does meanwhile meets all of them alike.

use std::error::Error;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use block::{Buffer, Disk, OpenOptions, Random, Wave};

const LEN: u64 = 64 << 20;
const PAGE: usize = 4096;
/// Scattered writes of a wave.
const WAVE: usize = 64;

/// Commits writes at these places.
type Run = Box<dyn Fn(&[u64]) -> Result<(), Box<dyn Error>>>;

/// Something that is measured, with what its rounds took in microseconds.
struct Way {
    name: String,
    run: Run,
    times_us: Vec<f64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("in which directory?")?;
    let rounds = arguments.next().map_or(Ok(200), |rounds| rounds.parse())?;
    let directory = tempfile::tempdir_in(directory)?;
    let mut ways = ways(directory.path())?;
    let mut random = Random::new(1);
    for _ in 0..rounds {
        let mut left: Vec<&mut Way> = ways.iter_mut().collect();
        while !left.is_empty() {
            let next = random.below(left.len() as u64) as usize;
            left.swap_remove(next).round(&mut random)?;
        }
    }
    println!("microseconds: least, 10th percentile, median");
    ways.iter_mut().for_each(Way::print);
    Ok(())
}

/// A file whose blocks were all written: to write a block for the first time costs the host more.
fn create(path: &Path) -> Result<(), Box<dyn Error>> {
    let file = std::fs::File::create(path)?;
    for at in (0..LEN).step_by(1 << 20) {
        file.write_all_at(&[1; 1 << 20], at)?;
    }
    Ok(file.sync_all()?)
}

fn ways(directory: &Path) -> Result<Vec<Way>, Box<dyn Error>> {
    let mut ways = Vec::new();
    let bare = directory.join("bare");
    create(&bare)?;
    for writes in [1, WAVE] {
        let file = std::fs::OpenOptions::new().write(true).open(&bare)?;
        ways.push(Way::new(
            format!("bare {writes} x pwrite 4 KiB, fdatasync"),
            move |at| {
                let write = |&at: &u64| file.write_all_at(&[2; PAGE], at);
                at[..writes].iter().try_for_each(write)?;
                Ok(file.sync_data()?)
            },
        ));
    }
    for (ring, direct) in [(true, true), (false, true), (true, false), (false, false)] {
        let options = OpenOptions {
            ring,
            direct,
            ..OpenOptions::default()
        };
        let path = directory.join(format!("{ring}-{direct}"));
        create(&path)?;
        let disk = Arc::new(options.open(&path)?);
        for writes in [1, WAVE] {
            let name = format!("commit of {writes} x 4 KiB: {}", disk.info().how);
            let disk = disk.clone();
            ways.push(Way::new(name, move |at| commit(&disk, &at[..writes])));
        }
    }
    Ok(ways)
}

fn commit(disk: &Disk, at: &[u64]) -> Result<(), Box<dyn Error>> {
    let mut wave = Wave::new();
    for &at in at {
        wave.write(at, Buffer::zeroed(PAGE));
    }
    disk.commit(wave)?;
    Ok(())
}

impl Way {
    fn new(
        name: impl Into<String>,
        run: impl Fn(&[u64]) -> Result<(), Box<dyn Error>> + 'static,
    ) -> Way {
        Way {
            name: name.into(),
            run: Box::new(run),
            times_us: Vec::new(),
        }
    }

    fn round(&mut self, random: &mut Random) -> Result<(), Box<dyn Error>> {
        // One in each part of the file, so that no two overlap.
        let part = LEN / WAVE as u64;
        let place = |i| i * part + random.below(part / PAGE as u64) * PAGE as u64;
        let at: Vec<u64> = (0..WAVE as u64).map(place).collect();
        let start = Instant::now();
        (self.run)(&at)?;
        self.times_us.push(start.elapsed().as_nanos() as f64 / 1e3);
        Ok(())
    }

    fn print(&mut self) {
        self.times_us.sort_by(f64::total_cmp);
        let at = |percent: usize| self.times_us[self.times_us.len() * percent / 100];
        let (least, low, median) = (at(0), at(10), at(50));
        println!("{least:>8.0} {low:>8.0} {median:>8.0}  {}", self.name);
    }
}
