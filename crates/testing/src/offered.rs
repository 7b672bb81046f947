//! What the kernel offers to FUSE mounts only if root has said so.

use std::fs::{self, File};

use rustix::fs::{FlockOperation, flock};

/// Whether the kernel offers requests by io_uring.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// While it lives the kernel offers requests by io_uring to new mounts, or does not, and no other
/// test changes that. It holds for the machine.
pub struct RingOffered {
    before: String,
    _locked: File,
}

impl RingOffered {
    /// For root. None: this kernel never offers it, or that cannot be set here.
    ///
    /// # Panics
    /// When the parameter cannot be locked or read.
    pub fn set(offered: bool) -> Option<RingOffered> {
        let locked = File::open(PARAMETER).ok()?;
        flock(&locked, FlockOperation::LockExclusive).expect("lock");
        let before = fs::read_to_string(PARAMETER).expect("read");
        fs::write(PARAMETER, if offered { "Y" } else { "N" }).ok()?;
        Some(RingOffered {
            before,
            _locked: locked,
        })
    }
}

impl Drop for RingOffered {
    fn drop(&mut self) {
        fs::write(PARAMETER, &self.before).expect("put back");
    }
}
