//! Workloads with names that clash: all of them hash to one bucket of their directory.
//!
//! A directory keeps what is pending by stripe, of which it has 16, and a batch takes the beginning
//! of a stripe. What goes wrong there between different names the other families hardly see: most
//! of their few names have a stripe for themselves.

use crate::run::HASH_KEY;
use crate::workload::Workload;
use siphasher::sip::SipHasher13;
use soupfs::layout::bucket;

/// The bucket. If it is split, all of its parts stay in its stripe.
const BUCKET: u64 = 0;

/// The same with other names, of one bucket. Not for what starts from an image, which has names
/// already.
pub fn clashing(workload: Workload) -> Workload {
    let mut ops = workload.ops;
    for path in ops.iter_mut().flat_map(|op| op.paths_mut()) {
        *path = clashing_path(path);
    }
    Workload {
        name: workload.name.replace('-', "-clash-"),
        ops,
        ..workload
    }
}

fn clashing_path(path: &str) -> String {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.map(clashing_name).collect::<Vec<_>>().join("/")
}

/// The first of `name~0`, `name~1` and so on that is in the bucket.
fn clashing_name(name: &str) -> String {
    let hasher = SipHasher13::new_with_key(&HASH_KEY);
    let mut names = (0..).map(|n| format!("{name}~{n}"));
    let found = names.find(|name| hasher.hash(name.as_bytes()) % bucket::BASE == BUCKET);
    found.expect("one in 32 is")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Op, Side};
    use crate::run::{empty, mount};
    use crate::scratch::pool_of;
    use pmem::Domain;
    use soupfs::Mode;
    use soupfs::layout::{PAGE, dentry, inode, line_at};
    use std::sync::Arc;
    use vfs::{FileSystem, ManualClock, Time};

    #[test]
    fn entries_of_clashing_names_are_in_one_bucket() {
        let names = ["foo", "bar", "A", "a"].map(clashing_name);
        let pool = pool_of(&empty(1 << 20), Domain::Cache, None);
        let clock = Arc::new(ManualClock::new(Time(1)));
        let mut side = Side::new(mount(pool.clone(), Mode::Delayed, 1, clock).expect("mounted"));
        for name in &names {
            side.run(&Op::Create(name.clone())).expect("made");
        }
        side.fs.unmount().expect("unmounted");
        let image = pool.snapshot();
        for name in &names {
            let mut windows = image.windows(name.len());
            let at = windows.position(|bytes| bytes == name.as_bytes());
            let entry = at.expect("the entry has the name") as u64 - dentry::NAME;
            let hash = pool.load(entry + dentry::HASH);
            assert_eq!(hash % bucket::BASE, BUCKET, "{name}");
        }
    }

    #[test]
    fn tables_of_several_pages_are_reached() {
        let workload = clashing(crate::families::long::growth(3));
        let pool = pool_of(&empty(workload.len), Domain::Cache, None);
        let clock = Arc::new(ManualClock::new(Time(1)));
        let mut side = Side::new(mount(pool.clone(), Mode::Delayed, 1, clock).expect("mounted"));
        for op in &workload.ops {
            side.run(op).expect("done");
        }
        let dir = side.find(&clashing_name("dir")).expect("there");
        let line = side.fs.attr(&dir).ino;
        side.fs.unmount().expect("unmounted");
        let level = pool.load(line_at(line) + inode::LEVEL);
        assert!(bucket::BASE << level > PAGE / 8, "level {level}");
    }

    #[test]
    fn different_paths_stay_different_and_the_root_stays_the_root() {
        assert_eq!(clashing_path(""), "");
        let (one, other) = (clashing_path("A/foo"), clashing_path("A/foo2"));
        assert!(one != other && one.starts_with(&format!("{}/foo~", clashing_path("A"))));
    }
}
