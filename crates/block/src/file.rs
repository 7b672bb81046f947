//! Image files and block devices of the host.

mod host;
mod pool;
#[allow(
    unsafe_code,
    reason = "the kernel reads and writes memory while a request is in flight"
)]
mod ring;

use std::path::Path;
use std::sync::Arc;

use crate::device::Device;
use crate::{Disk, OpenError};
use host::Host;
use pool::Pool;
use ring::Ring;

/// How to open an image file or a block device.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Writes are refused; several processes may read at once.
    pub read_only: bool,
    /// Lock it against others; off for a caller who has done so.
    pub lock: bool,
    /// Use O_DIRECT where the host takes it.
    pub direct: bool,
    /// Use io_uring where it is allowed.
    pub ring: bool,
    /// Threads that do I/O where io_uring is not used.
    pub threads: usize,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            read_only: false,
            lock: true,
            direct: true,
            ring: true,
            threads: 8,
        }
    }
}

impl OpenOptions {
    /// Opens, and locks, the image file or block device at `path`. Of an image only whole sectors
    /// are used.
    ///
    /// # Errors
    /// It cannot be opened or is in use, is neither of the two, or is empty.
    pub fn open(&self, path: &Path) -> Result<Disk, OpenError> {
        Ok(Disk::new(self.device(path)?))
    }

    /// As [`OpenOptions::open`], for layers to be put on.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn device(&self, path: &Path) -> Result<Arc<dyn Device>, OpenError> {
        let host = Host::open(path, self)?;
        let why = if !self.ring {
            "not asked for".to_owned()
        } else {
            match Ring::start() {
                Ok(ring) => return Ok(Arc::new(Ring::new(ring, host))),
                Err(why) => {
                    log::info!("{}: no io_uring ({why}); using threads", path.display());
                    why
                }
            }
        };
        Ok(Arc::new(Pool::new(host, self.threads.max(1), &why)))
    }
}
