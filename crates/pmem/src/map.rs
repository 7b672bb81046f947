//! Mappings: address space for a pool, and the system calls on it.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

#[cfg(not(miri))]
use rustix::mm::{self, Advice, MapFlags, MsyncFlags, ProtFlags};

#[cfg(not(miri))]
const HUGE_PAGE: usize = 2 << 20;

/// A mapped range of address space; unmapped when it and all that share it are dropped.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    /// The same range, owned.
    memory: Arc<Memory>,
}

/// Owns a range of address space.
struct Memory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the range belongs to this value, and those that share it, and no reference into it is
// handed out.
unsafe impl Send for Mapping {}
// SAFETY: as above; accesses go through `Region`, which makes them atomics or assembly.
unsafe impl Sync for Mapping {}
// SAFETY: a range without references into it; its addresses are used to unmap it, no more.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// How a file can be mapped shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shared {
    /// With MAP_SYNC: a flushed line is durable, metadata included.
    Sync,
    /// Through whatever cache the file system has.
    Plain,
}

/// What may be done with a mapped file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Load from it.
    Read,
    /// Load from it and store to it.
    Write,
    /// Load from it; what is stored is this mapping's alone.
    Private,
}

impl Use {
    /// The access that it takes.
    #[cfg(not(miri))]
    fn prot(self) -> ProtFlags {
        let mut prot = ProtFlags::READ;
        prot.set(ProtFlags::WRITE, self != Use::Read);
        prot
    }
}

impl Mapping {
    #[inline(always)]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn writable(&self) -> bool {
        self.writable
    }

    /// The same memory.
    pub(crate) fn share(&self) -> Mapping {
        Mapping {
            memory: self.memory.clone(),
            ..*self
        }
    }
}

#[cfg(not(miri))]
impl Mapping {
    /// Zeroed private memory.
    pub(crate) fn anonymous(len: usize, huge_pages: bool) -> io::Result<Mapping> {
        let mut mapping = Mapping::reserve(len)?;
        // SAFETY: replaces our own reservation.
        unsafe {
            mm::mmap_anonymous(
                mapping.base().cast(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
            )?;
        }
        mapping.writable = true;
        if huge_pages {
            mapping.ask_huge_pages();
        }
        Ok(mapping)
    }

    /// How the first `len` bytes of a file can be mapped for this use.
    ///
    /// MAP_SYNC is tried elsewhere than where the mapping will be: a fixed mapping that the file
    /// refuses may take the reservation away, and what another thread maps there meanwhile would be
    /// replaced by the next one.
    pub(crate) fn sharing(fd: BorrowedFd<'_>, len: usize, to: Use) -> io::Result<Shared> {
        if to == Use::Private {
            return Ok(Shared::Plain);
        }
        let synchronous = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
        // SAFETY: a new mapping at an address that the kernel chooses.
        match unsafe { mm::mmap(std::ptr::null_mut(), len, to.prot(), synchronous, fd, 0) } {
            Ok(tried) => {
                // SAFETY: made just now, and used by nobody.
                unsafe { mm::munmap(tried, len)? };
                Ok(Shared::Sync)
            }
            Err(_) => Ok(Shared::Plain),
        }
    }

    /// The first `len` bytes of a file.
    pub(crate) fn file(
        fd: BorrowedFd<'_>,
        len: usize,
        to: Use,
        shared: Shared,
    ) -> io::Result<Mapping> {
        let mut mapping = Mapping::reserve(len)?;
        let base = mapping.base();
        let flags = match (to, shared) {
            // Without a reserve, as only what is stored to takes memory.
            (Use::Private, _) => MapFlags::PRIVATE | MapFlags::NORESERVE,
            (_, Shared::Sync) => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
            (_, Shared::Plain) => MapFlags::SHARED,
        };
        let flags = flags | MapFlags::FIXED;
        // SAFETY: replaces our own reservation. That the file may change or shrink under us
        // is why all accesses are atomics or assembly.
        if let Err(error) = unsafe { mm::mmap(base.cast(), len, to.prot(), flags, fd, 0) } {
            std::mem::forget(mapping); // it may be somebody else's by now
            return Err(error.into());
        }
        mapping.writable = to != Use::Read;
        Ok(mapping)
    }

    /// Address space at a multiple of the huge page size, so that huge pages fit.
    fn reserve(len: usize) -> io::Result<Mapping> {
        let total = len
            .checked_add(HUGE_PAGE)
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe {
            mm::mmap_anonymous(
                std::ptr::null_mut(),
                total,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        }
        .cast::<u8>();
        let head = start.addr().next_multiple_of(HUGE_PAGE) - start.addr();
        let kept = len.next_multiple_of(crate::PAGE as usize);
        let tail = total - head - kept;
        let base = start.wrapping_add(head);
        // SAFETY: both pieces are parts of the reservation that nothing uses.
        unsafe {
            if head > 0 {
                mm::munmap(start.cast(), head)?;
            }
            if tail > 0 {
                mm::munmap(base.wrapping_add(kept).cast(), tail)?;
            }
        }
        let base = NonNull::new(base).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Mapping {
            base,
            len,
            writable: false,
            memory: Arc::new(Memory { base, len }),
        })
    }

    /// Zeroed private memory in pages that are given back one by one. It is in no core dump, as
    /// that would be of the pool's length, and a forked process does not have it: that one has none
    /// of the threads that look after it.
    pub(crate) fn in_pages(len: usize) -> io::Result<Mapping> {
        let mapping = Mapping::anonymous(len, false)?;
        let apart = [Advice::LinuxDontFork, Advice::LinuxDontDump];
        for advice in apart {
            // SAFETY: advice about our own mapping.
            unsafe { mm::madvise(mapping.base().cast(), len, advice)? };
        }
        // A huge page would take the memory of pages that are absent. Refused by kernels that have
        // none.
        // SAFETY: as above.
        let small = unsafe { mm::madvise(mapping.base().cast(), len, Advice::LinuxNoHugepage) };
        if let Err(error) = small {
            log::debug!("huge pages cannot be switched off: {error}");
        }
        // It is refused for memory that the process has locked, as pages cannot be given back then.
        mapping.discard(0, len)?;
        Ok(mapping)
    }

    /// Gives the memory behind whole pages back.
    pub(crate) fn discard(&self, off: usize, len: usize) -> io::Result<()> {
        assert!(
            off <= self.len && len <= self.len - off,
            "discard outside the mapping"
        );
        let start = self.base().wrapping_add(off);
        // SAFETY: the range is ours, and all accesses are atomics or assembly: what they find
        // changes, to zeros.
        unsafe { mm::madvise(start.cast(), len, Advice::LinuxDontNeed)? };
        Ok(())
    }

    /// Best effort: whether any were given is seen in `huge_bytes`.
    pub(crate) fn ask_huge_pages(&self) {
        // SAFETY: advice about our own mapping.
        let asked = unsafe { mm::madvise(self.base().cast(), self.len, Advice::LinuxHugepage) };
        if let Err(error) = asked {
            log::debug!("no huge pages: {error}");
        }
    }

    /// Writes dirty pages of the range to the file and waits until the device has them.
    /// `off` is a multiple of the page size.
    pub(crate) fn sync(&self, off: usize, len: usize) -> io::Result<()> {
        assert!(
            off <= self.len && len <= self.len - off,
            "sync outside the mapping"
        );
        let start = self.base().wrapping_add(off);
        // SAFETY: the range is ours.
        unsafe { mm::msync(start.cast(), len, MsyncFlags::SYNC)? };
        Ok(())
    }
}

#[cfg(not(miri))]
impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nothing refers into the mapping once its owner is gone.
        if let Err(error) = unsafe { mm::munmap(self.base.as_ptr().cast(), self.len) } {
            log::error!("cannot unmap a pool: {error}");
        }
    }
}

/// Under Miri, which knows no mmap through rustix: plain memory.
#[cfg(miri)]
impl Mapping {
    fn layout(len: usize) -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(len.max(1), crate::PAGE as usize).expect("pool size")
    }

    pub(crate) fn anonymous(len: usize, _huge_pages: bool) -> io::Result<Mapping> {
        // SAFETY: the layout is not empty.
        let base = unsafe { std::alloc::alloc_zeroed(Self::layout(len)) };
        let base = NonNull::new(base).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Mapping {
            base,
            len,
            writable: true,
            memory: Arc::new(Memory { base, len }),
        })
    }

    pub(crate) fn in_pages(len: usize) -> io::Result<Mapping> {
        Mapping::anonymous(len, false)
    }

    pub(crate) fn discard(&self, off: usize, len: usize) -> io::Result<()> {
        for at in off..off + len {
            // SAFETY: in the mapping, as the callers check; all accesses are atomics.
            let byte = unsafe { std::sync::atomic::AtomicU8::from_ptr(self.base().add(at)) };
            byte.store(0, std::sync::atomic::Ordering::Relaxed);
        }
        Ok(())
    }

    pub(crate) fn sharing(_fd: BorrowedFd<'_>, _len: usize, _to: Use) -> io::Result<Shared> {
        Ok(Shared::Plain)
    }

    pub(crate) fn file(
        _fd: BorrowedFd<'_>,
        _len: usize,
        _to: Use,
        _shared: Shared,
    ) -> io::Result<Mapping> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    pub(crate) fn ask_huge_pages(&self) {}

    pub(crate) fn sync(&self, _off: usize, _len: usize) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(miri)]
impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), Mapping::layout(self.len)) }
    }
}
