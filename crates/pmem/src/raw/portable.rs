//! The primitives elsewhere, and under Miri: loops of relaxed atomics.

use std::sync::atomic::{AtomicU8, Ordering, fence};

use super::FlushInstruction;

pub(super) fn detect_flush() -> FlushInstruction {
    if cfg!(all(target_arch = "aarch64", not(miri))) {
        FlushInstruction::DcCvac
    } else {
        FlushInstruction::None
    }
}

/// Copies into the pool from memory that nobody else writes.
///
/// # Safety
/// Both ranges must be valid.
pub(super) unsafe fn store_bytes(to: *mut u8, from: *const u8, len: usize) {
    for i in 0..len {
        // SAFETY: in range per the caller.
        unsafe { AtomicU8::from_ptr(to.add(i)).store(*from.add(i), Ordering::Relaxed) }
    }
}

/// Copies out of the pool to memory that nobody else uses.
///
/// # Safety
/// Both ranges must be valid.
pub(super) unsafe fn load_bytes(to: *mut u8, from: *mut u8, len: usize) {
    for i in 0..len {
        // SAFETY: in range per the caller.
        unsafe { *to.add(i) = AtomicU8::from_ptr(from.add(i)).load(Ordering::Relaxed) }
    }
}

/// Copies within the pool.
///
/// # Safety
/// Both ranges must be valid; they may overlap if `to <= from`.
pub(super) unsafe fn copy_bytes(to: *mut u8, from: *mut u8, len: usize) {
    for i in 0..len {
        // SAFETY: in range per the caller.
        unsafe {
            let byte = AtomicU8::from_ptr(from.add(i)).load(Ordering::Relaxed);
            AtomicU8::from_ptr(to.add(i)).store(byte, Ordering::Relaxed);
        }
    }
}

/// # Safety
/// The range must be valid.
pub(super) unsafe fn zero_bytes(to: *mut u8, len: usize) {
    for i in 0..len {
        // SAFETY: in range per the caller.
        unsafe { AtomicU8::from_ptr(to.add(i)).store(0, Ordering::Relaxed) }
    }
}

/// # Safety
/// Both ranges must be valid.
pub(super) unsafe fn store_lines_nt(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { store_bytes(to, from, len) }
}

pub(super) fn prefetch(_at: *const u8) {}

pub(super) fn prefetch_for_write(_at: *const u8) {}

/// # Safety
/// The lines must be mapped.
pub(super) unsafe fn write_back(_how: FlushInstruction, _first: *mut u8, _lines: u64) {
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    for i in 0.._lines as usize {
        // SAFETY: the caller's promise.
        unsafe {
            std::arch::asm!("dc cvac, {}", in(reg) _first.wrapping_add(i * 64));
        }
    }
}

pub(super) fn store_fence() {
    fence(Ordering::SeqCst);
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: touches nothing.
    unsafe {
        std::arch::asm!("dsb sy");
    }
}
