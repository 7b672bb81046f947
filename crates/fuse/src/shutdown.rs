//! A shutdown for tests: `FS_IOC_SHUTDOWN`, as ext4 and xfs have it.
//!
//! The mount ends as if its process were killed, but that the process stays: nothing more becomes
//! durable, all requests are answered `EIO`, and what is left is a mount that umount(8) takes away.
//! So crash tests that were written for other file systems run on this one. Only root may.
//!
//! A call goes: the caller's flags are read, on a thread of its own, so that no thread that serves
//! requests waits here (to sync may need them); the medium is cut off, after a sync if the flags
//! ask for one; the gate is closed; those inside leave, with an error where they wait for the
//! medium.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::convert::{self, Answer};
use crate::gate::Gate;
use crate::monitor::Monitor;
use crate::reply::ReplyIoctl;
use crate::wire::Caller;

/// `_IOR('X', 125, __u32)`.
pub const FS_IOC_SHUTDOWN: u32 = 0x8004_587d;

/// How long to wait for the caller to fall asleep, and for requests to leave.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a shutdown does first. The values are those of ext4 and xfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Make everything durable, what the kernel holds included (`GOING_FLAGS_DEFAULT`, 0).
    SyncAll,
    /// Make durable what has reached the file system (`GOING_FLAGS_LOGFLUSH`, 1).
    Sync,
    /// Nothing (`GOING_FLAGS_NOLOGFLUSH`, 2).
    Cut,
}

impl How {
    fn of(flags: u32) -> Option<How> {
        match flags {
            0 => Some(How::SyncAll),
            1 => Some(How::Sync),
            2 => Some(How::Cut),
            _ => None,
        }
    }
}

/// Syncs as asked, and then sees to it that nothing becomes durable any more. If it fails, nothing
/// is shut down. May use the mount: its requests are still served.
pub type ShutdownFn = Arc<dyn Fn(How) -> vfs::Result<()> + Send + Sync>;

/// All that a shutdown takes.
#[derive(Clone)]
pub struct Shutdown {
    pub cut: ShutdownFn,
    pub gate: Arc<Gate>,
    pub monitor: Arc<Monitor>,
}

impl Shutdown {
    /// Shuts down and replies, from a thread of its own. `write_back` has the kernel hand over what
    /// it holds of files.
    pub fn answer(
        &self,
        caller: &Caller,
        write_back: impl FnOnce() + Send + 'static,
        reply: ReplyIoctl,
    ) {
        if caller.uid() != 0 {
            return reply.error(fuser::Errno::EPERM);
        }
        let (shutdown, caller) = (self.clone(), caller.pid());
        std::thread::spawn(move || {
            threads::as_usual();
            match shutdown.run(caller, write_back) {
                Ok(()) => reply.done(),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn run(&self, caller: u32, write_back: impl FnOnce()) -> Answer<()> {
        let flags = flags_of(caller).map_err(|error| {
            log::error!("the flags of FS_IOC_SHUTDOWN cannot be read: {error}");
            fuser::Errno::EFAULT
        })?;
        let how = How::of(flags).ok_or(fuser::Errno::EINVAL)?;
        if how == How::SyncAll {
            write_back();
        }
        (self.cut)(how).map_err(|error| convert::errno(error.errno()))?;
        self.gate.close();
        self.monitor
            .failed("shut down by FS_IOC_SHUTDOWN: unmount it, and mount again".to_owned());
        if !self.gate.wait_until_empty(PATIENCE) {
            log::warn!("requests from before the shutdown are still being served");
        }
        Ok(())
    }
}

/// The flags of the call that `caller` waits in.
///
/// The call's number says that it returns a word, while it takes one. The kernel goes by the number
/// and passes nothing on, so the word is read where the caller has it: the third argument of its
/// ioctl(2) leads there.
fn flags_of(caller: u32) -> io::Result<u32> {
    let start = Instant::now();
    let address = loop {
        match third_argument(&fs::read_to_string(format!("/proc/{caller}/syscall"))?) {
            Some(address) => break address,
            // It has sent the request, and is not asleep yet.
            None if start.elapsed() < PATIENCE => std::thread::yield_now(),
            None => return Err(io::ErrorKind::TimedOut.into()),
        }
    };
    let mut flags = [0; 4];
    File::open(format!("/proc/{caller}/mem"))?.read_exact_at(&mut flags, address)?;
    Ok(u32::from_ne_bytes(flags))
}

/// The third argument of a shutdown that a thread waits in, from `/proc/PID/syscall`:
/// `NUMBER ARGUMENT...`, or `running`.
fn third_argument(syscall: &str) -> Option<u64> {
    let mut arguments = syscall.split_ascii_whitespace().skip(1).map(|argument| {
        let digits = argument.strip_prefix("0x")?;
        u64::from_str_radix(digits, 16).ok()
    });
    let (_file, command, address) = (arguments.next()??, arguments.next()??, arguments.next()??);
    // The command has 32 bits; what a C library leaves in the upper ones counts for nothing.
    (command as u32 == FS_IOC_SHUTDOWN).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_argument_of_a_shutdown_is_found_and_of_nothing_else() {
        let line = "16 0x3 0x8004587d 0x7ffe10 0x0 0x0 0x0 0x7ffd 0x7f4b\n";
        assert_eq!(third_argument(line), Some(0x7f_fe10));
        let sign_extended = "16 0x3 0xffffffff8004587d 0x7ffe10 0x0 0x0 0x0 0x7ffd 0x7f4b\n";
        assert_eq!(third_argument(sign_extended), Some(0x7f_fe10));
        for other in [
            "running\n",
            "16 0x3 0x5401 0x7ffe10 0x0\n",
            "-1 0x7ffd 0x7f4b\n",
            "16 0x3",
            "",
        ] {
            assert_eq!(third_argument(other), None, "{other}");
        }
    }
}
