//! What a target has done to its medium so far, and what it was asked: counters beside the times.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pmem::Pool;

/// Counters by name, all of them growing. Two of the same target have the same names.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counters(Vec<(&'static str, u64)>);

impl Counters {
    /// What happened between `earlier` and this.
    pub fn since(&self, earlier: &Counters) -> Counters {
        let pairs = self.0.iter().zip(&earlier.0);
        Counters(
            pairs
                .map(|(&(name, now), &(_, then))| (name, now.saturating_sub(then)))
                .collect(),
        )
    }

    /// The counter of a name; nothing was counted under others.
    pub fn of(&self, name: &str) -> u64 {
        let found = self.0.iter().find(|(own, _)| *own == name);
        found.map_or(0, |(_, count)| *count)
    }

    /// Add a counter, or count further.
    pub fn add(&mut self, name: &'static str, count: u64) {
        match self.0.iter_mut().find(|(own, _)| *own == name) {
            Some((_, own)) => *own += count,
            None => self.0.push((name, count)),
        }
    }

    /// Add all of another one's.
    pub fn add_all(&mut self, other: &Counters) {
        other
            .0
            .iter()
            .for_each(|&(name, count)| self.add(name, count));
    }

    /// Each divided by a number of operations, with the name of a column.
    pub fn per_op(&self, ops: f64) -> impl Iterator<Item = (String, f64)> {
        let each =
            move |&(name, count): &(&str, u64)| (format!("{name}/op"), count as f64 / ops.max(1.0));
        self.0.iter().map(each)
    }
}

/// Where a target's counters are read.
pub enum CounterSource {
    /// There are none.
    None,
    /// In a pool of this process.
    Pool(std::sync::Arc<Pool>),
    /// In `/sys/block/NAME/stat`: what a kernel file system did to its device.
    Device(PathBuf),
    /// What a file system in blocks of this process asked of its disk.
    Requests(block::Disk),
    /// The same of the disk that everything lies on: what others write there counts, too.
    Disk(PathBuf),
    /// Those of several, which have different names.
    All(Vec<CounterSource>),
    /// In the status that a mount of ours tells through an attribute of its root.
    Mount(PathBuf),
}

impl CounterSource {
    /// As of now. Counters that cannot be read are left out.
    pub fn read(&self) -> Counters {
        match self {
            CounterSource::None => Counters::default(),
            CounterSource::Pool(pool) => of_pool(pool),
            CounterSource::Device(stat) => of_device(stat, DEVICE),
            CounterSource::Requests(disk) => of_disk(disk),
            CounterSource::Disk(stat) => {
                of_device(stat, ["disk writes", "disk bytes", "disk flushes"])
            }
            CounterSource::All(all) => {
                let mut sum = Counters::default();
                all.iter().for_each(|one| sum.add_all(&one.read()));
                sum
            }
            CounterSource::Mount(root) => of_mount(root).unwrap_or_default(),
        }
    }
}

/// Writes, bytes of them, and flushes, of the device that a file system is on.
const DEVICE: [&str; 3] = ["device writes", "device bytes", "device flushes"];

fn of_disk(disk: &block::Disk) -> Counters {
    let stats = disk.stats();
    let counts = [stats.writes, stats.bytes_written, stats.flushes];
    Counters(DEVICE.into_iter().zip(counts).collect())
}

fn of_pool(pool: &Pool) -> Counters {
    let all = pool.stats();
    Counters(vec![
        ("lines flushed", all.flushed_lines),
        ("fences", all.fences),
        ("syncs", all.syncs),
        ("bytes stored", all.bytes_cached + all.bytes_non_temporal),
    ])
}

/// What the calling thread has done to all pools.
pub fn of_caller() -> Counters {
    let own = pmem::thread_stats();
    Counters(vec![
        ("caller's lines", own.flushed_lines),
        ("caller's fences", own.fences),
    ])
}

/// Fields of `stat`, from 0: 4 writes, 6 sectors of 512 bytes written, 15 flushes (Linux 5.5).
fn of_device(stat: &Path, names: [&'static str; 3]) -> Counters {
    let text = fs::read_to_string(stat).unwrap_or_default();
    let fields: Vec<u64> = text
        .split_whitespace()
        .map(|field| field.parse().unwrap_or(0))
        .collect();
    let at = |i: usize| fields.get(i).copied().unwrap_or(0);
    let counts = [at(4), at(6) * 512, at(15)];
    Counters(names.into_iter().zip(counts).collect())
}

/// The counters of the disk that a directory lies on; none if that is no block device.
pub fn disk_of(dir: &Path) -> Option<CounterSource> {
    let device = fs::metadata(dir).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let stat = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
    stat.exists().then_some(CounterSource::Disk(stat))
}

/// The attribute of a mount's root, and room for it.
const STATUS: &str = "tureen.status";
const STATUS_MAX: usize = 64 << 10;

fn of_mount(root: &Path) -> Option<Counters> {
    let mut text = vec![0; STATUS_MAX];
    let len = rustix::fs::getxattr(root, STATUS, &mut text).ok()?;
    let status: serde_json::Value = serde_json::from_slice(&text[..len]).ok()?;
    let requests = status.get("requests")?.as_object()?;
    // Asking is a request itself, and not the workload's; forgetting needs no answer and comes in
    // batches.
    let counts = |(name, _): &(&String, _)| !["getxattr", "forget"].contains(&name.as_str());
    let requests = requests.iter().filter(counts);
    let mut counts = Counters(vec![(
        "requests",
        requests.filter_map(|(_, count)| count.as_u64()).sum(),
    )]);
    // A file system that does nothing has none.
    let medium = |name: &str| status.get("medium")?.get("counters")?.get(name)?.as_u64();
    for (name, field) in [
        ("lines flushed", "flushed_lines"),
        ("fences", "fences"),
        (DEVICE[0], "writes"),
        (DEVICE[1], "written_bytes"),
        (DEVICE[2], "flushes"),
    ] {
        medium(field)
            .into_iter()
            .for_each(|count| counts.add(name, count));
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_differences_divided_by_operations() {
        let at = |fences| Counters(vec![("fences", fences)]);
        let mut sum = at(7).since(&at(4));
        sum.add_all(&at(3));
        let each: Vec<_> = sum.per_op(12.0).collect();
        assert_eq!(each, [("fences/op".to_owned(), 0.5)]);
    }

    #[test]
    fn a_device_without_counters_counts_nothing() {
        let names = ["writes", "bytes", "flushes"];
        let none = of_device(Path::new("/sys/block/none/stat"), names);
        assert_eq!(none.since(&none), none);
    }
}
