//! Memory for I/O: zeroed when made, aligned as direct I/O wants it, and reusable.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::SECTOR;

/// Alignment of every buffer in memory: a page, which every device takes.
const ALIGN: usize = 4096;

/// A run of whole sectors in memory, aligned to a page. A request owns its buffers while it is in
/// flight, and hands them back when it completes.
pub struct Buffer {
    /// Points at `len` initialised bytes that belong to this value.
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to this value alone, as that of a `Box<[u8]>` would.
unsafe impl Send for Buffer {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A zeroed buffer of `len` bytes.
    ///
    /// # Panics
    /// Unless `len` is a positive multiple of [`SECTOR`] that fits the address space.
    pub fn zeroed(len: usize) -> Buffer {
        let layout = layout(len);
        // SAFETY: the layout is not of size zero.
        let base = unsafe { alloc_zeroed(layout) };
        match NonNull::new(base) {
            Some(base) => Buffer { base, len },
            None => handle_alloc_error(layout),
        }
    }

    /// A buffer with a copy of `bytes`, zeros behind them up to the end of a sector.
    ///
    /// # Panics
    /// If `bytes` is empty.
    pub fn copy_of(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::zeroed(bytes.len().next_multiple_of(SECTOR as usize));
        buffer[..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    /// Where the bytes lie, for the kernel.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

fn layout(len: usize) -> Layout {
    assert!(
        len > 0 && len.is_multiple_of(SECTOR as usize),
        "a buffer holds whole sectors, not {len} bytes"
    );
    Layout::from_size_align(len, ALIGN).expect("a buffer fits the address space")
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and never given away.
        unsafe { dealloc(self.base.as_ptr(), layout(self.len)) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes that are ours.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` says that nobody else looks.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        Buffer::copy_of(self)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_zeroed_and_padded_to_a_sector() {
        let buffer = Buffer::zeroed(3 * 512);
        assert!(buffer.base().addr().is_multiple_of(ALIGN));
        assert!(buffer.iter().all(|&byte| byte == 0));
        let copy = Buffer::copy_of(b"abc");
        assert_eq!((copy.len(), &copy[..4]), (512, &b"abc\0"[..]));
        assert_eq!(&copy.clone()[..], &copy[..]);
    }

    #[test]
    #[should_panic(expected = "whole sectors")]
    fn a_buffer_of_a_part_of_a_sector_is_a_mistake() {
        Buffer::zeroed(100);
    }
}
