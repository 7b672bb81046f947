//! What the kernel uses a block device for. It lets nobody else have it then, and does not say why.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::mounts;

/// What the kernel uses a block device for, or a partition of it, as the end of a sentence with
/// what to do; `None`: nothing, as far as it tells.
pub fn of(device: &Path) -> Option<String> {
    let metadata = fs::metadata(device).ok()?;
    if !metadata.file_type().is_block_device() {
        return None;
    }
    let rdev = metadata.rdev();
    let number = format!("{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let here = PathBuf::from(format!("/sys/dev/block/{number}"));
    of_number(&number, Some(device)).or_else(|| {
        let below = fs::read_dir(here).ok()?.flatten();
        let mut partitions = below.filter_map(|entry| {
            let path = entry.path();
            let number = fs::read_to_string(path.join("dev")).ok()?;
            path.join("partition").exists().then_some(number)
        });
        partitions.find_map(|number| of_number(number.trim(), None))
    })
}

/// What the device of this number, `major:minor`, is used for. Some file systems are not listed by
/// the number of their device, but by its path.
fn of_number(number: &str, path: Option<&Path>) -> Option<String> {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    if let Some(dir) = mounts::dir_of_device(&table, number, path) {
        let dir = dir.display();
        return Some(format!(
            "is mounted on {dir}; unmount it first: umount {dir}"
        ));
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let is_it = |line: &&str| {
        let swap = line.split_whitespace().next().map(Path::new);
        swap.is_some_and(|swap| {
            let rdev = fs::metadata(swap).map_or(0, |metadata| metadata.rdev());
            rdev != 0
                && format!("{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev)) == number
        })
    };
    if let Some(line) = swaps.lines().skip(1).find(is_it) {
        let name = line.split_whitespace().next().unwrap_or_default();
        return Some(format!(
            "is swap space in use; take it back first: swapoff {name}"
        ));
    }
    let holders = fs::read_dir(format!("/sys/dev/block/{number}/holders")).ok()?;
    let holder = holders.flatten().next()?;
    let name = holder.file_name().to_string_lossy().into_owned();
    Some(format!(
        "is part of the device {name}, which is in use: stop that first"
    ))
}
