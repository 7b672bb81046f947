//! A disk in memory: sectors that are written, and a barrier that makes them durable. It is to be
//! recorded, or to be brought from one crash state into another; it is no fast one.

use crate::image::Image;
use crate::trace::{Event, Trace};
use block::SECTOR;
use parking_lot::Mutex;
use pmem::PAGE;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A disk. Of two media at once it is what follows the memory in their image, and its trace has the
/// offsets of that.
pub struct Disk {
    /// Offset of its first sector in the image.
    first: u64,
    bytes: Mutex<Image>,
    trace: Option<Arc<Trace>>,
    /// Pages that were written to since it was asked.
    written: Mutex<BTreeSet<u64>>,
}

impl Disk {
    /// A disk that holds an image.
    pub fn new(image: Image, trace: Option<Arc<Trace>>) -> Disk {
        Disk::behind(0, image, trace)
    }

    /// A disk that holds what is in an image from an offset on, of whole sectors.
    pub fn behind(first: u64, image: Image, trace: Option<Arc<Trace>>) -> Disk {
        Disk {
            first,
            bytes: Mutex::new(image),
            trace,
            written: Mutex::default(),
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.bytes.lock().len() - self.first
    }

    /// Whether it has no sectors.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Read from a place on.
    ///
    /// # Panics
    /// If that is not on the disk.
    pub fn read(&self, at: u64, bytes: &mut [u8]) {
        self.bytes.lock().read(self.first + at, bytes);
    }

    /// Write whole sectors.
    ///
    /// # Panics
    /// If they are not whole, or not on the disk.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        let whole = |n: u64| n.is_multiple_of(SECTOR);
        assert!(whole(at) && whole(bytes.len() as u64), "parts of sectors");
        let at = self.first + at;
        self.put(at, bytes);
        if let Some(trace) = &self.trace {
            let bytes = bytes.to_vec();
            trace.mark(Event::Store {
                at,
                bytes,
                around: None,
            });
        }
    }

    /// All that was written before is durable when this returns (B3).
    pub fn barrier(&self) {
        if let Some(trace) = &self.trace {
            trace.barrier();
        }
    }

    /// Look at the image, and at which of its pages this begins.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Image, u64) -> T) -> T {
        look(&self.bytes.lock(), self.first / PAGE)
    }

    /// The image with what it holds.
    pub fn image(&self) -> Image {
        self.bytes.lock().clone()
    }

    /// Bring it into another state, at an offset of the image: neither whole sectors, nor recorded.
    pub(crate) fn put(&self, at: u64, bytes: &[u8]) {
        self.bytes.lock().write(at, bytes);
        let pages = at / PAGE..(at + bytes.len() as u64).div_ceil(PAGE);
        self.written.lock().extend(pages);
    }

    /// The pages of the image that were written to since the last call.
    pub(crate) fn take_written(&self) -> BTreeSet<u64> {
        std::mem::take(&mut *self.written.lock())
    }
}
