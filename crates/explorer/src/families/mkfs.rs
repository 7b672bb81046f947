//! mkfs, on devices that hold something.

use super::short::base;
use crate::damaged::unmounted;
use crate::engine::POISON;
use crate::tree::Flaw;
use crate::workload::Workload;
use pmem::Domain;

/// What devices are full of.
const FULL_OF: [u8; 2] = [0, POISON];
/// Lengths of devices, in MiB.
const LENGTHS: [u64; 2] = [1, 3];
/// Number of the workload on a device that holds a file system.
const OVER: u64 = (FULL_OF.len() * LENGTHS.len()) as u64;

/// How many workloads [`mkfs`] has.
pub fn count() -> u64 {
    OVER + 1
}

/// mkfs on one of them.
///
/// # Errors
/// The file system that is there before cannot be made.
pub fn mkfs(number: u64) -> Result<Workload, Flaw> {
    let of = FULL_OF.len() as u64;
    let full = Workload {
        mkfs: Some(FULL_OF[(number % of) as usize]),
        len: LENGTHS[(number / of % LENGTHS.len() as u64) as usize] << 20,
        ..Workload::new(format!("mkfs-{number}"), Vec::new())
    };
    if number < OVER {
        return Ok(full);
    }
    let (image, _) = unmounted(&Workload::new("before mkfs", base()), Domain::Cache.into())?;
    Ok(Workload {
        start: Some(image),
        ..full
    })
}
