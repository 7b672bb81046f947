//! The thread of an ext2 mount that finds what a crash lost, while the file system is in use.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use ffs::Ffs;

/// The thread, until it is ended.
pub struct Reclaimer {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Reclaimer {
    /// Starts it; `None`: nothing was lost.
    ///
    /// # Errors
    /// There are too many threads.
    pub fn start(fs: &Ffs) -> io::Result<Option<Reclaimer>> {
        if !fs.is_reclaiming() {
            return Ok(None);
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let (fs, over) = (fs.clone(), is_over.clone());
        let thread = std::thread::Builder::new().name("reclaim".to_owned());
        let thread = thread.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                match fs.reclaim_step() {
                    Ok(true) => {}
                    Ok(false) => {
                        let repairs = fs.status().reclaim.deltas;
                        log::info!("what a crash lost was found: {repairs} repairs");
                        return;
                    }
                    Err(error) => {
                        log::error!("nothing is changed any more: {error}");
                        return;
                    }
                }
            }
        })?;
        Ok(Some(Reclaimer { is_over, thread }))
    }

    /// Ends it, behind a step; what is left the next mount finds.
    pub fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        // A panic of its has poisoned the disk and was reported.
        let _ = self.thread.join();
    }
}
