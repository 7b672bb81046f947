//! The first request, INIT, in which a mount and the kernel agree on what they do.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuser::{InitFlags, KernelConfig};

/// Largest read or write in one request: what the kernel allows unless told otherwise.
pub const IO_MAX: u32 = 1 << 20;

/// Requests that the kernel may keep in flight in the background (read-ahead, write-back).
const BACKGROUND_MAX: u16 = 64;

/// What is asked for, and got.
pub struct Handshake {
    /// Let the kernel keep written data.
    pub writeback: bool,
    /// Ask for requests by io_uring.
    pub ring: bool,
    /// Whether the kernel has agreed to that.
    pub ring_agreed: Arc<AtomicBool>,
}

/// All that the library does for a session is to mount it and to shake hands.
impl fuser::Filesystem for Handshake {
    fn init(&mut self, _req: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        self.negotiate(config);
        Ok(())
    }
}

impl Handshake {
    /// Agree with the kernel on what a mount is: which caches it may keep, how large a request may
    /// be.
    ///
    /// Not asked for is `FUSE_ASYNC_DIO`: the kernel drops the cached pages of the range before a
    /// direct write and after it, but not after one that it completes in the background, so that
    /// what somebody read meanwhile would stay cached for good.
    fn negotiate(&self, config: &mut KernelConfig) {
        let mut wanted = InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_POSIX_ACL
            | InitFlags::FUSE_DONT_MASK
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_NO_OPEN_SUPPORT
            | InitFlags::FUSE_NO_OPENDIR_SUPPORT
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA;
        if self.writeback {
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        if let Err(missing) = config.add_capabilities(wanted) {
            log::info!("this kernel's FUSE lacks {missing:?}; doing without");
            let _ = config.add_capabilities(wanted.difference(missing));
        }
        if self.ring
            && config
                .add_capabilities(InitFlags::FUSE_OVER_IO_URING)
                .is_ok()
        {
            // Relaxed: the one thread reads it that mounts.
            self.ring_agreed.store(true, Ordering::Relaxed);
        }
        // Each of these is within the library's limits by construction.
        let _ = config.set_max_write(IO_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
    }
}
