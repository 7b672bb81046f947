//! How much memory this process may use: that of the machine, or less by its control group.

use std::fs;
use std::path::{Path, PathBuf};

/// Where control groups are.
const GROUPS: &str = "/sys/fs/cgroup";

/// Bytes of memory that this process may use, as far as the system tells.
pub(super) fn usable() -> u64 {
    let machine = machine();
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = groups
        .lines()
        .filter_map(|line| limit(Path::new(GROUPS), line));
    limits.fold(machine, u64::min)
}

/// Bytes of memory of the machine.
#[cfg(not(miri))]
fn machine() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
}

#[cfg(miri)]
fn machine() -> u64 {
    1 << 30
}

/// The least limit of a control group and those above it, from a line of `/proc/self/cgroup`:
/// `0::/user.slice`, or of the older kind `7:memory:/user.slice`.
fn limit(groups: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let (root, file) = match controllers {
        "" => (groups.to_owned(), "memory.max"),
        list if list.split(',').any(|name| name == "memory") => {
            (groups.join("memory"), "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let group: PathBuf = root.join(path.trim_start_matches('/'));
    let above = group.ancestors().take_while(|dir| dir.starts_with(&root));
    let limits = above.filter_map(|dir| fs::read_to_string(dir.join(file)).ok());
    // `max`: there is none.
    limits.filter_map(|text| text.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_a_group_and_those_above_it_counts() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("below")).expect("a group");
            fs::write(path, text).expect("a limit");
        };
        write("a/memory.max", "4096\n");
        write("a/b/memory.max", "max\n");
        write("memory/c/memory.limit_in_bytes", "8192\n");
        for (line, expected) in [
            ("0::/a/b", Some(4096)),
            ("0::/", None),
            ("0::/elsewhere", None),
            ("5:cpu,memory:/c", Some(8192)),
            ("5:cpu:/c", None),
            ("nonsense", None),
        ] {
            assert_eq!(limit(dir.path(), line), expected, "{line}");
        }
        assert!(usable() > 0);
    }
}
