//! Absent pages found by the MMU: `userfaultfd`. A thread that loads from an absent page stands
//! still, in the kernel, until the page has been filled.
//!
//! User-mode faults alone are served (`UFFD_USER_MODE_ONLY`), so no privilege is needed.

use std::io;

#[cfg(miri)]
pub(super) use stub::Faults;
#[cfg(not(miri))]
pub(super) use user::Faults;

#[cfg(not(miri))]
mod user {
    use std::ops::Range;
    use std::os::fd::OwnedFd;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
    use rustix::io::Errno;
    use rustix::ioctl::{Updater, ioctl, opcode};
    use rustix::mm::{UserfaultfdFlags, userfaultfd};

    use super::io;
    use crate::PAGE;

    // Of linux/userfaultfd.h.
    const UFFD_USER_MODE_ONLY: u32 = 1;
    const UFFD_API: u64 = 0xaa;
    const GROUP: u8 = 0xaa;
    const EVENT_PAGEFAULT: u64 = 0x12;
    const REGISTER_MODE_MISSING: u64 = 1;
    /// Bytes of a message: its kind, flags, an address, and one more word.
    const MESSAGE: usize = 32;

    #[repr(C)]
    struct Api {
        api: u64,
        features: u64,
        ioctls: u64,
    }

    #[repr(C)]
    struct Register {
        start: u64,
        len: u64,
        mode: u64,
        ioctls: u64,
    }

    #[repr(C)]
    struct Copy {
        to: u64,
        from: u64,
        len: u64,
        mode: u64,
        copied: i64,
    }

    #[repr(C)]
    struct Wake {
        start: u64,
        len: u64,
    }

    /// Serves the faults of a range of address space.
    pub(in super::super) struct Faults {
        /// Closing it ends the service.
        uffd: OwnedFd,
        stop: OwnedFd,
        range: Range<usize>,
    }

    impl Faults {
        /// Faults on absent pages of a range wait from now on until they are filled.
        ///
        /// # Errors
        /// The kernel has no `userfaultfd`, or this process may not use it.
        pub(in super::super) fn start(range: Range<usize>) -> io::Result<Faults> {
            let flags = UserfaultfdFlags::from_bits_retain(UFFD_USER_MODE_ONLY);
            let flags = flags | UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
            // SAFETY: nothing is registered yet.
            let uffd = unsafe { userfaultfd(flags)? };
            let faults = Faults {
                uffd,
                stop: eventfd(0, EventfdFlags::CLOEXEC)?,
                range,
            };
            let mut api = Api {
                api: UFFD_API,
                features: 0,
                ioctls: 0,
            };
            // SAFETY: the call of this number, and the structure that it takes and fills.
            unsafe {
                let update =
                    Updater::<{ opcode::read_write::<Api>(GROUP, 0x3f) }, _>::new(&mut api);
                ioctl(&faults.uffd, update)?;
            }
            let mut register = Register {
                start: faults.range.start as u64,
                len: faults.range.len() as u64,
                mode: REGISTER_MODE_MISSING,
                ioctls: 0,
            };
            // SAFETY: as above. The range is a mapping of the caller's, which has no contents yet.
            unsafe {
                let update =
                    Updater::<{ opcode::read_write::<Register>(GROUP, 0) }, _>::new(&mut register);
                ioctl(&faults.uffd, update)?;
            }
            Ok(faults)
        }

        /// Waits for a fault, and returns where its page begins; `None`: it is over.
        pub(in super::super) fn next(&self) -> Option<u64> {
            loop {
                let mut ready = [
                    PollFd::new(&self.uffd, PollFlags::IN),
                    PollFd::new(&self.stop, PollFlags::IN),
                ];
                match poll(&mut ready, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => fatal(error.into()),
                }
                if !ready[1].revents().is_empty() {
                    return None;
                }
                let mut message = [0; MESSAGE];
                match rustix::io::read(&self.uffd, &mut message) {
                    Ok(MESSAGE) => {}
                    // Another thread has taken it.
                    Err(Errno::AGAIN | Errno::INTR) => continue,
                    Ok(_) => fatal(io::ErrorKind::UnexpectedEof.into()),
                    Err(error) => fatal(error.into()),
                }
                let word = |i: usize| {
                    let bytes = message[8 * i..][..8].try_into().expect("8 bytes");
                    u64::from_ne_bytes(bytes)
                };
                if message[0] as u64 == EVENT_PAGEFAULT {
                    return Some((word(2) - self.range.start as u64) / PAGE * PAGE);
                }
            }
        }

        /// Puts contents into absent pages, at once, and lets those go on who wait for them.
        pub(in super::super) fn fill(&self, off: u64, contents: &[u8]) {
            assert!(off as usize <= self.range.len() - contents.len());
            let mut done = 0;
            while done < contents.len() {
                let rest = &contents[done..];
                let mut copy = Copy {
                    to: self.range.start as u64 + off + done as u64,
                    from: rest.as_ptr().addr() as u64,
                    len: rest.len() as u64,
                    mode: 0,
                    copied: 0,
                };
                // SAFETY: the call of this number and its structure. It reads `rest` and fills
                // pages of the range, to which nobody has references.
                let copied = unsafe {
                    let update =
                        Updater::<{ opcode::read_write::<Copy>(GROUP, 3) }, _>::new(&mut copy);
                    ioctl(&self.uffd, update)
                };
                match copied {
                    Ok(()) => done = contents.len(),
                    // Short of memory, or a part is done: the rest is done again.
                    Err(Errno::AGAIN | Errno::NOMEM | Errno::INTR) => {
                        done += usize::try_from(copy.copied).unwrap_or(0);
                        std::thread::yield_now();
                    }
                    Err(error) => fatal(error.into()),
                }
            }
        }

        /// Lets those go on who wait for a page that is there.
        pub(in super::super) fn wake(&self, off: u64) {
            let mut wake = Wake {
                start: self.range.start as u64 + off,
                len: PAGE,
            };
            // SAFETY: the call of this number, and its structure, which it only reads.
            let woken = unsafe {
                ioctl(
                    &self.uffd,
                    Updater::<{ opcode::read::<Wake>(GROUP, 2) }, _>::new(&mut wake),
                )
            };
            if let Err(error) = woken {
                fatal(error.into());
            }
        }

        /// Ends [`Faults::next`] of all threads.
        pub(in super::super) fn stop(&self) {
            if let Err(error) = rustix::io::write(&self.stop, &1_u64.to_ne_bytes()) {
                fatal(error.into());
            }
        }
    }

    /// A thread stands still for ever, as its fault cannot be served.
    fn fatal(error: io::Error) -> ! {
        log::error!("page faults cannot be served: {error}");
        std::process::abort()
    }
}

/// Under Miri, which has no such call.
#[cfg(miri)]
mod stub {
    pub(in super::super) struct Faults;

    impl Faults {
        pub(in super::super) fn start(_range: std::ops::Range<usize>) -> super::io::Result<Faults> {
            Err(super::io::ErrorKind::Unsupported.into())
        }

        pub(in super::super) fn next(&self) -> Option<u64> {
            None
        }

        pub(in super::super) fn fill(&self, _off: u64, _contents: &[u8]) {}

        pub(in super::super) fn wake(&self, _off: u64) {}

        pub(in super::super) fn stop(&self) {}
    }
}
