//! Large files on a disk: written and fsynced, read back cold; and what others' writing does to an
//! fsync.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::disk;
use crate::participants::{Participant, Participants};
use crate::plan::Plan;
use crate::report::{BESIDE_WRITER, Better, Found, LARGE, QUIET, Run, SMALL_FSYNC, Shape};
use crate::runner::run_each;
use crate::sampler::{Sampler, figure};
use crate::target::{Directory, Result, Target};
use crate::workloads::scattered;

/// fuse2fs gives space back late: twice what lies there at once is not enough.
const LEN: u64 = 4 << 30;
const FILE: u64 = 512 << 20;
const WRITER: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Of 4 KiB, with nobody beside; and no fewer beside a writer, however fast it is.
const FSYNCS: u64 = 200;
const FSYNCS_MIN: usize = 20;
/// A slow disk has fewer rounds.
const TIME: Duration = Duration::from_secs(120);

const STREAM: &str = "stream";
const FSYNC: &str = "fsync";
/// What of a file is measured.
const OPS: [&str; 2] = ["write and fsync, a MiB", "read back cold, a MiB"];

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let plan = &plan.part(TIME);
    let participants = Participants::on_disk(plan, &disk::specs(), &disk::setup(plan, LEN))?;
    let measured = run_each(plan, &participants, "large", |one, sampler| {
        stream(plan, one, sampler)?;
        fsyncs(plan, one, sampler)
    })?;
    let (file, writer) = (plan.scaled(FILE) >> 20, plan.scaled(WRITER) >> 20);
    let about = format!("a file of {file} MiB; an fsync beside a writer of {writer} MiB");
    let mut run = Run::new("large", about);
    let x = "operation";
    run.charts = vec![
        measured.chart(STREAM, (LARGE, x), Shape::Bars, Better::Less),
        measured.chart(FSYNC, (SMALL_FSYNC, x), Shape::Bars, Better::Less),
    ];
    run.baseline = disk::baseline(plan, &participants);
    run.notes = vec![
        "written in pieces of 1 MiB with one fsync behind".into(),
        "cold: the file system's and the host's page cache forget file and image, and a server in \
         user space is ended and started again"
            .into(),
        "beside a writer: another thread of the same process writes a file of its own, in pieces \
         of 1 MiB, and never calls fsync"
            .into(),
    ];
    Ok((run, disk::peers(&participants)))
}

/// A large file, written and read back.
fn stream(plan: &Plan, one: &Participant, sampler: &mut Sampler<'_>) -> Result<()> {
    let pieces = (plan.scaled(FILE) / MIB).max(1);
    let mut piece = vec![0x75; MIB as usize];
    let target = one.directory()?;
    let file = target.create(c"large")?;
    sampler.counted(figure(STREAM, OPS[0]), pieces as usize, || {
        (0..pieces).try_for_each(|i| target.write_at(file, &piece, i * MIB))?;
        target.fsync(file)
    })?;
    target.uncached(file)?;
    target.close(file)?;
    drop(target);
    one.chill()?;
    let target = one.directory()?;
    let file = target.open(c"large", false)?;
    // Its server was started anew, and counts from zero.
    sampler.phase(figure(STREAM, OPS[1]), pieces as usize, || {
        (0..pieces).try_for_each(|i| target.read_at(file, &mut piece, i * MIB))
    })?;
    target.close(file)?;
    target.unlink(c"large")
}

/// Fsyncs of 4 KiB, alone and beside a writer.
fn fsyncs(plan: &Plan, one: &Participant, sampler: &mut Sampler<'_>) -> Result<()> {
    let target = &one.directory()?;
    let count = plan.scaled(FSYNCS).max(FSYNCS_MIN as u64);
    target.create_close(c"small")?;
    let file = target.open(c"small", false)?;
    let block = [0x76; BLOCK as usize];
    (0..count).try_for_each(|i| target.write_at(file, &block, i * BLOCK))?;
    target.fsync(file)?;
    let once = |i: u64| -> Result<f64> {
        let start = Instant::now();
        target.write_at(file, &block, scattered(i % count, count) * BLOCK)?;
        target.fsync(file)?;
        Ok(start.elapsed().as_nanos() as f64)
    };
    let quiet = (0..count).map(once).collect::<Result<Vec<f64>>>()?;
    let done = AtomicBool::new(false);
    let beside = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let written = write(target, c"other", plan.scaled(WRITER) / MIB);
            done.store(true, Ordering::Release);
            written
        });
        let mut beside = Vec::new();
        while beside.len() < FSYNCS_MIN || !done.load(Ordering::Acquire) {
            beside.push(once(beside.len() as u64)?);
        }
        writer.join().map_err(|_| "a thread panicked")??;
        Result::Ok(beside)
    })?;
    for (mut ns, names) in [(quiet, QUIET), (beside, BESIDE_WRITER)] {
        ns.sort_by(f64::total_cmp);
        for (part, name) in [0.5, 0.99].into_iter().zip(names) {
            sampler.value(figure(FSYNC, name), quantile(&ns, part));
        }
    }
    target.close(file)?;
    target.unlink(c"small")?;
    target.unlink(c"other")
}

fn write(target: &Directory, name: &CStr, pieces: u64) -> Result<()> {
    let file = target.create(name)?;
    let piece = vec![0x77; MIB as usize];
    (0..pieces.max(1)).try_for_each(|i| target.write_at(file, &piece, i * MIB))?;
    target.close(file)
}

/// So large a part of them is at most this; of sorted values, of which there are some.
pub fn quantile(sorted: &[f64], part: f64) -> f64 {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_least_value_that_covers_its_part() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&hundred, 0.5), 50.0);
        assert_eq!(quantile(&hundred, 0.99), 99.0);
        assert_eq!(quantile(&[7.0], 0.99), 7.0);
        assert_eq!(quantile(&[7.0, 8.0], 0.0), 7.0);
    }
}
