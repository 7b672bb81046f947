//! The files that a thread holds open.

use std::io;

/// The calling thread has no open files from now on but input, output and errors; those of other
/// threads stay open. For a thread that uses none of what the process has opened.
pub(crate) fn let_go() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    let flags = libc::CLOSE_RANGE_UNSHARE.cast_signed();
    // SAFETY: no pointers. Nothing is closed that others use: the thread has a table of its own.
    match unsafe { libc::close_range(FIRST, libc::c_uint::MAX, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
