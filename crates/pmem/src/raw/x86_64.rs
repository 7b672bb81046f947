//! The primitives on x86-64, in assembly.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};

use super::FlushInstruction;

/// From here on the string instructions beat a loop of words.
const STRING_MIN: usize = 256;

pub(super) fn detect_flush() -> FlushInstruction {
    // SAFETY: every x86-64 processor has cpuid.
    #[allow(unused_unsafe, reason = "safe in newer compilers")]
    let (max, basic) = unsafe { (__cpuid(0).eax, __cpuid(1)) };
    if max >= 7 {
        // SAFETY: leaf 7 exists.
        #[allow(unused_unsafe, reason = "safe in newer compilers")]
        let extended = unsafe { __cpuid_count(7, 0) };
        if extended.ebx & (1 << 24) != 0 {
            return FlushInstruction::Clwb;
        }
        if extended.ebx & (1 << 23) != 0 {
            return FlushInstruction::Clflushopt;
        }
    }
    if basic.edx & (1 << 19) != 0 {
        return FlushInstruction::Clflush;
    }
    FlushInstruction::None
}

macro_rules! moves {
    ($($name:ident $reg:literal $class:ident;)*) => {$(
        /// Moves one unit; either side may be pool memory.
        #[inline(always)]
        unsafe fn $name(to: *mut u8, from: *const u8) {
            // SAFETY: both sides are valid for the unit, per the caller.
            unsafe {
                asm!(
                    concat!("mov {unit", $reg, "}, [{from}]"),
                    concat!("mov [{to}], {unit", $reg, "}"),
                    unit = out($class) _,
                    from = in(reg) from,
                    to = in(reg) to,
                    options(nostack, preserves_flags),
                );
            }
        }
    )*};
}

moves! {
    move1 "" reg_byte;
    move2 ":x" reg;
    move4 ":e" reg;
    move8 "" reg;
}

/// Copies with the target's aligned words stored whole, in ascending order; long ranges in an
/// order of the processor's choice.
///
/// # Safety
/// Both ranges must be valid; they may overlap if `to <= from`.
pub(super) unsafe fn store_bytes(mut to: *mut u8, mut from: *const u8, mut len: usize) {
    /// One step of an unrolled loop: moves a unit and advances.
    macro_rules! step {
        ($mover:ident, $size:literal) => {
            $mover(to, from);
            to = to.wrapping_add($size);
            from = from.wrapping_add($size);
            len -= $size;
        };
    }
    // SAFETY: each step stays within `len`.
    unsafe {
        if len >= STRING_MIN {
            return string_move(to, from, len);
        }
        if to.addr() & 1 != 0 && len >= 1 {
            step!(move1, 1);
        }
        if to.addr() & 2 != 0 && len >= 2 {
            step!(move2, 2);
        }
        if to.addr() & 4 != 0 && len >= 4 {
            step!(move4, 4);
        }
        while len >= 8 {
            step!(move8, 8);
        }
        if len >= 4 {
            step!(move4, 4);
        }
        if len >= 2 {
            step!(move2, 2);
        }
        if len >= 1 {
            move1(to, from);
        }
    }
}

/// Copies out of the pool.
///
/// # Safety
/// Both ranges must be valid.
pub(super) unsafe fn load_bytes(to: *mut u8, from: *mut u8, len: usize) {
    // SAFETY: the caller's promise. Which side is aligned makes no difference to loads.
    unsafe { store_bytes(to, from, len) }
}

/// Copies within the pool.
///
/// # Safety
/// Both ranges must be valid; they may overlap if `to <= from`.
pub(super) unsafe fn copy_bytes(to: *mut u8, from: *mut u8, len: usize) {
    // SAFETY: the caller's promise; all copies here ascend.
    unsafe { store_bytes(to, from, len) }
}

/// # Safety
/// Both ranges must be valid.
unsafe fn string_move(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise; the direction flag is clear by the ABI.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// The range must be valid.
pub(super) unsafe fn zero_bytes(to: *mut u8, len: usize) {
    static ZEROS: [u8; STRING_MIN] = [0; STRING_MIN];
    // SAFETY: the caller's promise; the direction flag is clear by the ABI.
    unsafe {
        if len < STRING_MIN {
            return store_bytes(to, ZEROS.as_ptr(), len);
        }
        asm!(
            "rep stosb",
            inout("rcx") len => _,
            inout("rdi") to => _,
            in("al") 0u8,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// Both ranges must be valid; `to` aligned to 64 and `len` a multiple of 64.
pub(super) unsafe fn store_lines_nt(to: *mut u8, from: *const u8, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY: the caller's promise; SSE2 is part of x86-64.
    unsafe {
        asm!(
            "2:",
            "movdqu {a}, [{from}]",
            "movdqu {b}, [{from} + 16]",
            "movdqu {c}, [{from} + 32]",
            "movdqu {d}, [{from} + 48]",
            "movntdq [{to}], {a}",
            "movntdq [{to} + 16], {b}",
            "movntdq [{to} + 32], {c}",
            "movntdq [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "sub {len}, 64",
            "jnz 2b",
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            len = inout(reg) len => _,
            options(nostack),
        );
    }
}

#[inline(always)]
pub(super) fn prefetch(at: *const u8) {
    // SAFETY: a hint; it cannot fault.
    unsafe {
        asm!("prefetcht0 [{}]", in(reg) at, options(nostack, readonly, preserves_flags));
    }
}

#[inline(always)]
pub(super) fn prefetch_for_write(at: *const u8) {
    // SAFETY: a hint; it cannot fault, and processors without it do nothing.
    unsafe {
        asm!("prefetchw [{}]", in(reg) at, options(nostack, readonly, preserves_flags));
    }
}

/// # Safety
/// The lines must be mapped and the processor must have the instruction.
#[inline]
pub(super) unsafe fn write_back(how: FlushInstruction, first: *mut u8, lines: u64) {
    macro_rules! each_line {
        ($instruction:literal) => {
            for i in 0..lines as usize {
                let line = first.wrapping_add(i * 64);
                // SAFETY: the caller's promise.
                unsafe {
                    asm!($instruction, in(reg) line, options(nostack, preserves_flags));
                }
            }
        };
    }
    match how {
        FlushInstruction::Clwb => each_line!("clwb [{}]"),
        FlushInstruction::Clflushopt => each_line!("clflushopt [{}]"),
        FlushInstruction::Clflush => each_line!("clflush [{}]"),
        FlushInstruction::DcCvac | FlushInstruction::None => {}
    }
}

#[inline(always)]
pub(super) fn store_fence() {
    // SAFETY: touches nothing; as assembly it also orders the compiler.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) }
}
