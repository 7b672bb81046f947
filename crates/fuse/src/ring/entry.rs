//! One entry of a queue, with an io_uring of its own.
//!
//! An entry is either with the kernel, which may lay a request into it at any time, or here. It is
//! handed over by registering it, and then with each answer; a completion brings it back.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};

use crate::handshake::IO_MAX;
use crate::reply::{Body, Outcome, Payload};
use crate::wire::{HEADER_SIZE, OUT_HEADER_SIZE};

/// The commands (`FUSE_IO_URING_CMD_…`).
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// What is not of variable length in a request (`struct fuse_uring_req_header`): the header of the
/// request or the answer, the fixed arguments, and what concerns the entry.
const HEADERS_SIZE: usize = FIXED_END + 32;
const FIXED_START: usize = 128;
const FIXED_END: usize = 256;
const COMMIT_ID: usize = FIXED_END + 8;
const PAYLOAD_SIZE: usize = FIXED_END + 16;

/// Where a submission has its length, and how long it is: `struct io_uring_sqe`.
const SQE_LEN: usize = 24;
const _: () = assert!(size_of::<Entry128>() == 128);

/// The entry's memory, as the kernel reads it when the entry is registered: two of `struct iovec`.
#[repr(C)]
struct Places([(usize, usize); 2]);

/// See the module.
pub struct Entry {
    ring: IoUring<Entry128, cqueue::Entry>,
    queue: u16,
    /// Not freed with the entry: see [`Payload`].
    headers: ManuallyDrop<Box<[u8; HEADERS_SIZE]>>,
    /// None while a reply has it.
    pub payload: Option<Payload>,
    /// It is not known whether the kernel still uses the memory.
    is_doubtful: bool,
}

/// An io_uring as an entry has it; for the calling thread alone.
pub struct Ring(IoUring<Entry128, cqueue::Entry>);

impl Ring {
    /// The kernel lays requests into an entry when its thread waits for completions, and only then:
    /// nobody is interrupted.
    ///
    /// # Errors
    /// When the kernel or a limit is against it.
    pub fn new() -> io::Result<Ring> {
        let ring = IoUring::<Entry128, cqueue::Entry>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(2)?;
        Ok(Ring(ring))
    }
}

impl Entry {
    /// A new entry of this queue, with the kernel.
    ///
    /// # Errors
    /// When the kernel does not take it, for which there may be many reasons.
    pub fn register(ring: Ring, device: &OwnedFd, queue: u16) -> io::Result<Entry> {
        let Ring(ring) = ring;
        ring.submitter().register_files(&[device.as_raw_fd()])?;
        let mut entry = Entry {
            ring,
            queue,
            headers: ManuallyDrop::new(Box::new([0; HEADERS_SIZE])),
            payload: None,
            is_doubtful: false,
        };
        let mut payload = Payload::new(IO_MAX as usize);
        let room = payload.bytes();
        let places = Places([
            (entry.headers.as_mut_ptr().addr(), HEADERS_SIZE),
            (room.as_mut_ptr().addr(), room.len()),
        ]);
        entry.payload = Some(payload);
        entry.push(REGISTER, 0, Some(&places));
        while let Err(error) = entry.ring.submit() {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        // What is wrong with it is told at once. A request comes when its thread waits for it.
        let told = entry.ring.completion().next();
        match told.map(|completion| completion.result()) {
            Some(result) if result < 0 => Err(io::Error::from_raw_os_error(-result)),
            _ => Ok(entry),
        }
    }

    /// Adds a submission. `places` must live until it is submitted.
    fn push(&mut self, command: u32, commit: u64, places: Option<&Places>) {
        let mut argument = [0; 80];
        argument[8..16].copy_from_slice(&commit.to_ne_bytes());
        argument[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        let place = places.map(|places| std::ptr::from_ref(places).addr() as u64);
        let mut submission = opcode::UringCmd80::new(types::Fixed(0), command)
            .cmd(argument)
            .addr(place)
            .build();
        if places.is_some() {
            let bytes = std::ptr::from_mut(&mut submission).cast::<u8>();
            // SAFETY: a submission is plain bytes, 128 of them, in the layout of the kernel; the
            // library has no name for this field of it.
            unsafe { bytes.add(SQE_LEN).cast::<u32>().write(2) };
        }
        // SAFETY: what it points to lives until it is submitted, and the memory that the kernel
        // knows from then on is never freed before the kernel has given the entry up.
        let pushed = unsafe { self.ring.submission().push(&submission) };
        pushed.expect("one at a time");
    }

    /// Hands over what is to be handed over, and waits for a request.
    ///
    /// # Errors
    /// When the kernel has given the entry up: `ENOTCONN` at the end of the connection.
    pub fn next(&mut self) -> io::Result<()> {
        loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.is_doubtful = true;
                    return Err(error);
                }
                Ok(_) => {}
            }
            match self.ring.completion().next().map(|one| one.result()) {
                None => {}
                Some(result) if result < 0 => {
                    return Err(io::Error::from_raw_os_error(-result));
                }
                Some(_) => return Ok(()),
            }
        }
    }

    /// The header of the request and its fixed arguments, and how long the rest of it is.
    pub fn request(&self) -> (&[u8], &[u8], usize) {
        let rest = self.number::<4>(PAYLOAD_SIZE);
        (
            &self.headers[..HEADER_SIZE],
            &self.headers[FIXED_START..FIXED_END],
            u32::from_ne_bytes(rest) as usize,
        )
    }

    fn number<const N: usize>(&self, at: usize) -> [u8; N] {
        *self.headers[at..].first_chunk().expect("it lies within")
    }

    /// The answer, which [`Entry::next`] hands over.
    pub fn answer(&mut self, unique: u64, outcome: Outcome) {
        if outcome.payload.is_some() {
            self.payload = outcome.payload;
        }
        let room = self
            .payload
            .as_mut()
            .map(Payload::bytes)
            .unwrap_or_default();
        let (mut error, mut len) = (outcome.error, 0);
        let body = match &outcome.body {
            Body::Short(short) => short.bytes(),
            Body::Long(long) => long,
            Body::InPlace(there) => {
                len = *there;
                &[]
            }
        };
        match room.get_mut(..body.len()) {
            Some(room) => {
                room.copy_from_slice(body);
                len += body.len();
            }
            None => error = -fuser::Errno::EIO.code(),
        }
        let commit = self.number::<8>(COMMIT_ID);
        let header = &mut self.headers;
        header[..4].copy_from_slice(&((OUT_HEADER_SIZE + len) as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&error.to_ne_bytes());
        header[8..16].copy_from_slice(&unique.to_ne_bytes());
        header[PAYLOAD_SIZE..][..4].copy_from_slice(&(len as u32).to_ne_bytes());
        self.push(COMMIT_AND_FETCH, u64::from_ne_bytes(commit), None);
    }

    /// The end: the kernel has given the entry up, or its memory is left to it.
    pub fn free(mut self) {
        drop(self.ring);
        if self.is_doubtful {
            return;
        }
        if let Some(payload) = self.payload.take() {
            payload.free();
        }
        drop(ManuallyDrop::into_inner(self.headers));
    }
}
