//! System calls that have no safe wrapper: kernel AIO, mapped files, ioctls, filters.

#![expect(
    unsafe_code,
    reason = "nothing safe starts AIO, maps memory, shuts a file system down or filters calls"
)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

/// Alignment of direct I/O.
const PAGE: usize = 4096;

/// Code of a write in an `iocb`: the kernel's ABI.
const IOCB_CMD_PWRITE: u16 = 1;

/// What `io_getevents` fills in.
#[repr(C)]
#[derive(Default)]
struct IoEvent {
    data: u64,
    obj: u64,
    res: i64,
    res2: i64,
}

/// Writes `byte`, `len` times, at the start of a file opened with `O_DIRECT`, by io_submit(2), and
/// waits for the completion. `len` is a multiple of the page size.
///
/// # Errors
/// Of the system calls.
///
/// # Panics
/// When the write ends with an error, or not whole.
pub fn write_by_aio(file: &File, byte: u8, len: usize) -> io::Result<()> {
    let mut memory = vec![byte; len + PAGE];
    let aligned = memory.as_ptr().addr().next_multiple_of(PAGE) - memory.as_ptr().addr();
    let data = &mut memory[aligned..aligned + len];
    // SAFETY: all zeros is a valid `iocb`.
    let mut write: libc::iocb = unsafe { std::mem::zeroed() };
    write.aio_lio_opcode = IOCB_CMD_PWRITE;
    write.aio_fildes = file.as_raw_fd().cast_unsigned();
    write.aio_buf = data.as_mut_ptr().expose_provenance() as u64;
    write.aio_nbytes = len as u64;
    let mut context: libc::c_ulong = 0;
    let mut writes = [&raw mut write];
    let mut event = IoEvent::default();
    let result = |code: libc::c_long| match code {
        -1 => Err(io::Error::last_os_error()),
        code => Ok(code),
    };
    // SAFETY: the pointers lead to live values of the types that these calls take. The memory that
    // the write reads outlives it: io_destroy waits for what is not complete.
    unsafe {
        result(libc::syscall(libc::SYS_io_setup, 1, &raw mut context))?;
        let submitted = result(libc::syscall(
            libc::SYS_io_submit,
            context,
            1,
            writes.as_mut_ptr(),
        ));
        let no_limit = std::ptr::null_mut::<libc::timespec>();
        let complete = submitted.and_then(|_| {
            let (least, most) = (1, 1);
            let number = libc::SYS_io_getevents;
            result(libc::syscall(
                number,
                context,
                least,
                most,
                &raw mut event,
                no_limit,
            ))
        });
        result(libc::syscall(libc::SYS_io_destroy, context))?;
        complete?;
    }
    assert_eq!(event.res, len as i64, "a write is whole or fails");
    Ok(())
}

/// A page of a file, mapped shared.
pub struct MappedPage(*mut u8);

impl MappedPage {
    /// Maps the page at `offset`, a multiple of the page size.
    ///
    /// # Errors
    /// Of mmap(2).
    pub fn of(file: &File, offset: u64) -> io::Result<MappedPage> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                PAGE,
                prot,
                MapFlags::SHARED,
                file,
                offset,
            )?
        };
        Ok(MappedPage(base.cast()))
    }

    /// Stores a byte at the beginning of the page: the kernel has it, and the file system not yet.
    pub fn store(&mut self, byte: u8) {
        // SAFETY: within the mapping, and nobody else refers to it.
        unsafe { self.0.write_volatile(byte) };
    }
}

impl Drop for MappedPage {
    fn drop(&mut self) {
        // Written back before it is unmapped: to do so in munmap(2), the kernel holds a lock of
        // this process, for which the file system would wait if it is served by this process as
        // well. SAFETY: the mapping is ours, and gone afterwards.
        let gone = unsafe {
            msync(self.0.cast(), PAGE, MsyncFlags::SYNC).and_then(|()| munmap(self.0.cast(), PAGE))
        };
        if let Err(errno) = gone {
            eprintln!("a page of a file stays mapped: {errno}");
        }
    }
}

/// How many pages of a file the host has in its page cache.
///
/// # Errors
/// Of mmap(2) and mincore(2).
pub fn cached_pages(file: &File) -> io::Result<usize> {
    let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut pages = vec![0_u8; len.div_ceil(PAGE)];
    // SAFETY: a new mapping at an address that the kernel chooses, and no access to it; the call
    // fills in a byte for each of its pages.
    unsafe {
        let (any, prot) = (std::ptr::null_mut(), ProtFlags::empty());
        let base = mmap(any, len, prot, MapFlags::SHARED, file, 0)?;
        let told = match libc::mincore(base, len, pages.as_mut_ptr()) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        munmap(base, len)?;
        told?;
    }
    Ok(pages.iter().filter(|page| *page & 1 != 0).count())
}

/// Asks for no extents of an open file: `FS_IOC_FIEMAP` with no room for any.
///
/// # Errors
/// Of ioctl(2).
pub fn fiemap(file: &File) -> io::Result<()> {
    // _IOWR('f', 11, struct fiemap): start, length, flags, mapped, room, reserved.
    const FS_IOC_FIEMAP: libc::Ioctl = 0xc020_660b;
    let mut request: [u64; 4] = [0, u64::MAX, 0, 0];
    // SAFETY: the call reads and stores the 32 bytes of the request, and has no room for more.
    match unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, request.as_mut_ptr()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Shuts down the file system of an open file: `FS_IOC_SHUTDOWN` with these flags.
///
/// # Errors
/// Of ioctl(2).
pub fn shut_down(file: &File, flags: u32) -> io::Result<()> {
    // _IOR('X', 125, __u32)
    const FS_IOC_SHUTDOWN: libc::Ioctl = 0x8004_587d;
    // SAFETY: the call reads the word that the pointer leads to, and may store to it.
    match unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_SHUTDOWN, &mut { flags }) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Makes a system call fail with `EPERM` for the calling thread and those that it starts, as a
/// container's filter would. Nothing takes it back.
///
/// # Errors
/// Of prctl(2).
pub fn forbid_system_call(number: u32) -> io::Result<()> {
    // seccomp(2): load the number of the call, compare, and answer.
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const ANSWER: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let line = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let mut lines = [
        line(LOAD, 0, 0),
        line(IF_EQUAL, 1, number),
        line(ANSWER, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        line(ANSWER, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog {
        len: lines.len() as u16,
        filter: lines.as_mut_ptr(),
    };
    // SAFETY: a call without pointers.
    let alone = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if alone != 0 {
        return Err(io::Error::last_os_error());
    }
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the filter and its lines live until the call returns, which copies them.
    match unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
