//! Requests by `/dev/fuse`: read there, and answered there.
//!
//! Each thread has opened the connection anew, which gives it requests of its own to work on; the
//! requests that wait are common to all of them. With queues beside it ([`crate::ring`]) the device
//! still brings what has no answer (FORGET), what takes back a request (INTERRUPT), and what comes
//! before the queues are there.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::ioctl::{self, Setter, opcode};

use crate::handler::{Handler, dispatch};
use crate::handshake::IO_MAX;
use crate::reply::{To, Unanswered};
use crate::wire::Incoming;

/// Room for a request, without what it writes: headers and names.
const HEAD_MAX: usize = 4096;

/// `FUSE_DEV_IOC_CLONE`.
const CLONE: ioctl::Opcode = opcode::read::<u32>(229, 0);

/// Start so many threads more that serve what comes from the device. They end with the connection.
///
/// # Errors
/// When there cannot be so many.
pub fn start<H: Handler>(handler: &Arc<H>, device: &OwnedFd, threads: usize) -> io::Result<()> {
    let devices = (0..threads).map(|_| open_again(device));
    for device in devices.collect::<io::Result<Vec<_>>>()? {
        let handler = Arc::clone(handler);
        let thread = std::thread::Builder::new().name("fuse".to_owned());
        thread.spawn(move || serve(&*handler, &Arc::new(device)))?;
    }
    Ok(())
}

/// The same connection, with requests of its own.
fn open_again(device: &OwnedFd) -> io::Result<OwnedFd> {
    let again = OwnedFd::from(
        OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/fuse")?,
    );
    clone(&again, device.as_raw_fd())?;
    Ok(again)
}

#[allow(unsafe_code, reason = "no safe wrapper knows this ioctl")]
fn clone(again: &OwnedFd, device: RawFd) -> rustix::io::Result<()> {
    // SAFETY: the call reads a number of 32 bits, a file of this process.
    unsafe { ioctl::ioctl(again, Setter::<CLONE, u32>::new(device.cast_unsigned())) }
}

fn serve(handler: &impl Handler, device: &Arc<OwnedFd>) {
    let mut buf = vec![0; IO_MAX as usize + HEAD_MAX];
    loop {
        let len = match rustix::io::read(&**device, &mut buf) {
            Ok(len) => len,
            // NOENT: the request was taken back.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
            Err(Errno::NODEV) => return,
            Err(error) => return log::error!("cannot read requests: {error}"),
        };
        let request = Incoming::whole(&buf[..len]);
        let served = request.and_then(|request| {
            let to = || To::Device(Arc::clone(device));
            let unique = request.caller.unique();
            dispatch(handler, request, || Unanswered::new(unique, to()))
        });
        if served.is_err() {
            log::error!("a request of {len} bytes is too short");
        }
    }
}
