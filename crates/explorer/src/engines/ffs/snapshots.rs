//! Snapshots, and what each has.

use super::reading;
use crate::engine::LATER;
use crate::op::Op;
use crate::scratch::Device;
use crate::tree::{Flaw, Tree};
use block::Buffer;
use ffs::check::check;
use ffs::{Ffs, LiveCheckError, SnapshotError};
use std::collections::BTreeMap;
use vfs::{Errno, Error, Result};

/// An operation of them.
pub(super) fn run(fs: &Ffs, op: &Op) -> Result<()> {
    match op {
        Op::Snapshot { name, is_brief } => {
            let made = fs.create_snapshot(name, *is_brief);
            made.map(drop).map_err(why)
        }
        Op::DropSnapshot(name) => fs.delete_snapshot(name).map_err(why),
        Op::CheckLive => match fs.check_live(true, &|_, _, _| true) {
            Ok(report) if report.findings.is_empty() => Ok(()),
            Ok(report) => Err(Error::medium(format!("a live check finds:\n{report}"))),
            Err(LiveCheckError::Snapshot(error)) => Err(why(error)),
            Err(error) => Err(Error::medium(error.to_string())),
        },
        _ => Ok(()),
    }
}

fn why(error: SnapshotError) -> Error {
    match error {
        SnapshotError::Exists(_) => Errno::EXIST.into(),
        SnapshotError::Missing(_) => Errno::NOENT.into(),
        SnapshotError::NoSpace => Errno::NOSPC.into(),
        SnapshotError::Fs(error) => error,
        error => Error::medium(error.to_string()),
    }
}

/// What each has. It is an image that was unmounted, in which nothing is wrong.
pub(super) fn trees(fs: &Ffs) -> std::result::Result<BTreeMap<String, Tree>, Flaw> {
    let mut trees = BTreeMap::new();
    for one in fs.snapshots() {
        let name = one.name;
        let fail = |what: String| format!("snapshot {name}: {what}");
        trees.insert(name.clone(), tree(fs, &name).map_err(fail)?);
    }
    Ok(trees)
}

fn tree(fs: &Ffs, name: &str) -> std::result::Result<Tree, Flaw> {
    let disk = fs.snapshot_disk(name).map_err(|e| e.to_string())?;
    let report = check(&disk, false, LATER, &|_, _, _| ()).map_err(|e| e.to_string())?;
    if !report.findings.is_empty() || !report.was_clean {
        return Err(format!("it is not clean:\n{report}"));
    }
    Tree::of(&reading(disk)?, &[])
}

/// The bytes of each of a device.
pub(super) fn images(device: &Device) -> std::result::Result<Vec<(String, Vec<u8>)>, Flaw> {
    let fs = reading(super::disk(device))?;
    let image = |name: String| {
        let disk = fs.snapshot_disk(&name).map_err(|e| e.to_string())?;
        let into = vec![Buffer::zeroed(disk.len() as usize)];
        let bytes = disk.read(0, into).map_err(|e| e.to_string())?;
        Ok((name, bytes[0].to_vec()))
    };
    let all = fs.snapshots().into_iter();
    all.map(|one| image(one.name)).collect()
}
