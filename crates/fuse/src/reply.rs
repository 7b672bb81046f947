//! Answers to requests, on whichever way the request came.
//!
//! Each request has one [`Reply`], whose kind says what may be answered. It may go to another
//! thread. One that is dropped answers `EIO`. An answer to a request from `/dev/fuse` is written
//! there at once. One from a queue (`ring`) is left in the [`Slot`] of the thread that took the
//! request, which hands it over when no argument of the request is in use any more: both lie in the
//! same buffer.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io::IoSlice;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use fuser::{Errno, Generation, INodeNo};
use parking_lot::{Condvar, Mutex};
use vfs::{Kind, StatFs};

use crate::convert::{Answer, FileAttr};
use crate::crew;
use crate::wire::OUT_HEADER_SIZE;

/// Unit of `st_blksize`: what an engine reads and writes best.
pub const BLOCK_SIZE: u32 = 4096;

/// Bytes of the longest answer that has a fixed length: an entry and an open file.
const FIXED_MAX: usize = 144;

/// Bytes of a directory entry before its name.
const DIRENT_SIZE: usize = 24;

thread_local! {
    /// What a thread reads for answers to `/dev/fuse`, kept between requests.
    static READ_BUF: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Where an answer goes.
pub enum To {
    /// To the kernel, by the open device that the request was read from.
    Device(Arc<OwnedFd>),
    /// To the thread that took the request; and room for the answer, if the request takes none.
    Slot(Arc<Slot>, Option<Payload>),
}

/// Memory that the kernel knows: not freed where it is dropped, since the kernel may still use it.
pub struct Payload(ManuallyDrop<Box<[u8]>>);

impl Payload {
    /// Of zeros.
    pub fn new(len: usize) -> Payload {
        Payload(ManuallyDrop::new(vec![0; len].into()))
    }

    /// The memory; all of it.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// Frees it. The kernel does not use it any more.
    pub fn free(self) {
        drop(ManuallyDrop::into_inner(self.0));
    }
}

/// Where the thread of a queue finds the answer to the request that it took.
#[derive(Default)]
pub struct Slot {
    outcome: Mutex<Option<Outcome>>,
    answered: Condvar,
}

/// An answer.
pub struct Outcome {
    /// 0 or an error number, negative.
    pub error: i32,
    pub body: Body,
    /// What the reply had got.
    pub payload: Option<Payload>,
}

impl Outcome {
    /// No body.
    pub fn error(error: i32) -> Outcome {
        Outcome {
            error,
            body: Body::Short(Fixed::new()),
            payload: None,
        }
    }
}

/// The body of an answer.
pub enum Body {
    /// A short one.
    Short(Fixed),
    /// A long one.
    Long(Vec<u8>),
    /// So many bytes of the payload.
    InPlace(usize),
}

impl Slot {
    fn put(&self, outcome: Outcome) {
        *self.outcome.lock() = Some(outcome);
        self.answered.notify_one();
    }

    /// The answer, if there is one by now.
    pub fn take(&self) -> Option<Outcome> {
        self.outcome.lock().take()
    }

    /// The answer; waits for who gives it.
    pub fn wait(&self) -> Outcome {
        let mut outcome = self.outcome.lock();
        loop {
            match outcome.take() {
                Some(outcome) => return outcome,
                None => self.answered.wait(&mut outcome),
            }
        }
    }
}

/// A short answer in the making.
pub struct Fixed {
    bytes: [u8; FIXED_MAX],
    len: usize,
}

impl Fixed {
    fn new() -> Fixed {
        Fixed {
            bytes: [0; FIXED_MAX],
            len: 0,
        }
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn u32s<const N: usize>(mut self, numbers: [u32; N]) -> Fixed {
        for number in numbers {
            self.put(&number.to_ne_bytes());
        }
        self
    }

    fn u64s<const N: usize>(mut self, numbers: [u64; N]) -> Fixed {
        for number in numbers {
            self.put(&number.to_ne_bytes());
        }
        self
    }

    fn attr(self, attr: &FileAttr) -> Fixed {
        let times = [attr.atime, attr.mtime, attr.ctime];
        let mode = attr.kind.mode_bits() | u32::from(attr.perm);
        self.u64s([attr.ino.0, attr.size, attr.blocks])
            .u64s(times.map(|time| time.secs().cast_unsigned()))
            .u32s(times.map(|time| time.nanos()))
            .u32s([mode, attr.nlink, attr.uid, attr.gid, attr.rdev])
            .u32s([BLOCK_SIZE, 0])
    }

    fn entry(self, ttl: &Ttl, attr: &FileAttr, generation: Generation) -> Fixed {
        self.u64s([attr.ino.0, generation.0])
            .u64s([ttl.entry.as_secs(), ttl.attr.as_secs()])
            .u32s([ttl.entry.subsec_nanos(), ttl.attr.subsec_nanos()])
            .attr(attr)
    }
}

/// How long the kernel may believe a name and the attributes of what it leads to.
pub struct Ttl {
    pub entry: Duration,
    pub attr: Duration,
}

/// A request that is not answered yet.
pub struct Unanswered {
    unique: u64,
    to: Option<To>,
}

impl Unanswered {
    /// The request with this number.
    pub fn new(unique: u64, to: To) -> Unanswered {
        Unanswered {
            unique,
            to: Some(to),
        }
    }

    /// An answer that has these parts, one after the other.
    fn send(&mut self, parts: &[&[u8]]) {
        let len = parts.iter().map(|part| part.len()).sum();
        match self.to.take() {
            None => {}
            Some(To::Device(device)) => write(&device, self.unique, 0, parts),
            Some(To::Slot(slot, mut payload)) => {
                let room = payload.as_mut().map(Payload::bytes);
                let body = match room.filter(|room| len <= room.len()) {
                    Some(mut room) => {
                        for part in parts {
                            let (here, rest) = room.split_at_mut(part.len());
                            here.copy_from_slice(part);
                            room = rest;
                        }
                        Body::InPlace(len)
                    }
                    None if len <= FIXED_MAX => {
                        let mut short = Fixed::new();
                        parts.iter().for_each(|part| short.put(part));
                        Body::Short(short)
                    }
                    None => Body::Long(parts.concat()),
                };
                slot.put(Outcome {
                    error: 0,
                    body,
                    payload,
                });
            }
        }
    }

    fn error(&mut self, errno: Errno) {
        let error = -errno.code();
        match self.to.take() {
            None => {}
            Some(To::Device(device)) => write(&device, self.unique, error, &[]),
            Some(To::Slot(slot, payload)) => slot.put(Outcome {
                payload,
                ..Outcome::error(error)
            }),
        }
    }

    /// Answers with what is read into a buffer of `size` bytes.
    fn fill(&mut self, size: usize, read: impl FnOnce(&mut [u8]) -> Answer<usize>) {
        if let Some(To::Slot(slot, payload)) = &mut self.to
            && let Some(room) = payload
            && let Some(room) = room.bytes().get_mut(..size)
        {
            match read(room) {
                Err(errno) => self.error(errno),
                Ok(len) => {
                    slot.put(Outcome {
                        error: 0,
                        body: Body::InPlace(len),
                        payload: payload.take(),
                    });
                    self.to = None;
                }
            }
            return;
        }
        READ_BUF.with_borrow_mut(|buf| {
            if buf.len() < size {
                buf.resize(size, 0);
            }
            match read(&mut buf[..size]) {
                Err(errno) => self.error(errno),
                Ok(len) => self.send(&[&buf[..len]]),
            }
        });
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if self.to.is_some() {
            log::warn!("request {} was left without an answer", self.unique);
            self.error(Errno::EIO);
        }
    }
}

/// Writes an answer to the device, whole or not at all.
fn write(device: &OwnedFd, unique: u64, error: i32, parts: &[&[u8]]) {
    let len = OUT_HEADER_SIZE + parts.iter().map(|part| part.len()).sum::<usize>();
    let header = Fixed::new()
        .u32s([len as u32, error.cast_unsigned()])
        .u64s([unique]);
    let mut slices = [
        IoSlice::new(header.bytes()),
        IoSlice::new(&[]),
        IoSlice::new(&[]),
    ];
    for (slice, part) in slices[1..].iter_mut().zip(parts) {
        *slice = IoSlice::new(part);
    }
    let slices = &slices[..1 + parts.len()];
    if let Err(error) = crew::send(|| rustix::io::writev(device, slices)) {
        // ENOENT: who asked has been interrupted, and is gone.
        log::debug!("answer to request {unique}: {error}");
    }
}

/// An answer of one kind.
pub struct Reply<K> {
    request: Unanswered,
    kind: PhantomData<K>,
}

/// The kinds of answers.
pub mod kind {
    /// None but that it is done.
    pub struct Empty;
    /// A name, and what it leads to.
    pub struct Entry;
    /// Attributes.
    pub struct Attr;
    /// Bytes.
    pub struct Data;
    /// An open file.
    pub struct Open;
    /// A name, what it leads to, and that it is open.
    pub struct Create;
    /// How many bytes were written.
    pub struct Write;
    /// Statistics.
    pub struct StatFs;
    /// An extended attribute, or its size.
    pub struct Xattr;
    /// A place in a file.
    pub struct Lseek;
    /// What an ioctl returns.
    pub struct Ioctl;
}

pub type ReplyEmpty = Reply<kind::Empty>;
pub type ReplyEntry = Reply<kind::Entry>;
pub type ReplyAttr = Reply<kind::Attr>;
pub type ReplyData = Reply<kind::Data>;
pub type ReplyOpen = Reply<kind::Open>;
pub type ReplyCreate = Reply<kind::Create>;
pub type ReplyWrite = Reply<kind::Write>;
pub type ReplyStatfs = Reply<kind::StatFs>;
pub type ReplyXattr = Reply<kind::Xattr>;
pub type ReplyLseek = Reply<kind::Lseek>;
pub type ReplyIoctl = Reply<kind::Ioctl>;

impl<K> Reply<K> {
    /// The answer to this request.
    pub fn to(request: Unanswered) -> Reply<K> {
        Reply {
            request,
            kind: PhantomData,
        }
    }

    /// It failed.
    pub fn error(mut self, errno: Errno) {
        self.request.error(errno);
    }

    fn fixed(mut self, body: &Fixed) {
        self.request.send(&[body.bytes()]);
    }
}

impl ReplyEmpty {
    /// It is done.
    pub fn ok(mut self) {
        self.request.send(&[]);
    }
}

impl ReplyEntry {
    /// What the name leads to.
    pub fn entry(self, ttl: &Ttl, attr: &FileAttr, generation: Generation) {
        self.fixed(&Fixed::new().entry(ttl, attr, generation));
    }
}

impl ReplyCreate {
    /// The file was made, and is open with these flags (`FOPEN_…`).
    pub fn created(self, ttl: &Ttl, attr: &FileAttr, generation: Generation, open_flags: u32) {
        let entry = Fixed::new().entry(ttl, attr, generation);
        self.fixed(&entry.u64s([0]).u32s([open_flags, 0]));
    }
}

impl ReplyAttr {
    /// The attributes, and how long they may be believed.
    pub fn attr(self, ttl: Duration, attr: &FileAttr) {
        let validity = Fixed::new().u64s([ttl.as_secs()]);
        self.fixed(&validity.u32s([ttl.subsec_nanos(), 0]).attr(attr));
    }
}

impl ReplyData {
    /// These bytes.
    pub fn data(mut self, data: &[u8]) {
        self.request.send(&[data]);
    }

    /// What is read into a buffer of `size` bytes.
    pub fn read(mut self, size: u32, read: impl FnOnce(&mut [u8]) -> Answer<usize>) {
        self.request.fill(size as usize, read);
    }
}

impl ReplyOpen {
    /// It is open, with no flags.
    pub fn opened(self) {
        self.fixed(&Fixed::new().u64s([0, 0]));
    }
}

impl ReplyWrite {
    /// So many bytes.
    pub fn written(self, bytes: u32) {
        self.fixed(&Fixed::new().u32s([bytes, 0]));
    }
}

impl ReplyStatfs {
    /// The statistics; `name_max`: the longest name.
    pub fn statfs(self, s: &StatFs, name_max: u32) {
        let counts = [s.blocks, s.free, s.free, s.files, s.files_free];
        let sizes = [s.block_size, name_max, s.block_size, 0];
        self.fixed(&Fixed::new().u64s(counts).u32s(sizes).u32s([0; 6]));
    }
}

impl ReplyXattr {
    /// So many bytes, if they are asked for.
    pub fn size(self, bytes: u32) {
        self.fixed(&Fixed::new().u32s([bytes, 0]));
    }

    /// These bytes.
    pub fn data(mut self, data: &[u8]) {
        self.request.send(&[data]);
    }
}

impl ReplyLseek {
    /// This place.
    pub fn offset(self, offset: i64) {
        self.fixed(&Fixed::new().u64s([offset.cast_unsigned()]));
    }
}

impl ReplyIoctl {
    /// It returned 0 and no data.
    pub fn done(self) {
        self.fixed(&Fixed::new().u32s([0; 4]));
    }
}

/// A part of a listing.
pub struct ReplyDirectory {
    request: Unanswered,
    entries: Vec<u8>,
    room: usize,
}

impl ReplyDirectory {
    /// The answer to this request, which has room for so many bytes.
    pub fn to(request: Unanswered, room: u32) -> ReplyDirectory {
        ReplyDirectory {
            request,
            entries: Vec::new(),
            room: room as usize,
        }
    }

    /// Adds a name: the inode's number and kind, and where the listing goes on. True when it does
    /// not fit.
    pub fn add(&mut self, ino: INodeNo, cookie: u64, kind: Kind, name: &OsStr) -> bool {
        self.put(&Fixed::new(), ino, cookie, kind, name)
    }

    /// Adds a name with what it leads to, of which the kernel then holds a reference. True when it
    /// does not fit.
    pub fn add_entry(
        &mut self,
        cookie: u64,
        name: &OsStr,
        ttl: &Ttl,
        attr: &FileAttr,
        generation: Generation,
    ) -> bool {
        let entry = Fixed::new().entry(ttl, attr, generation);
        self.put(&entry, attr.ino, cookie, attr.kind, name)
    }

    fn put(&mut self, before: &Fixed, ino: INodeNo, cookie: u64, kind: Kind, name: &OsStr) -> bool {
        let name = name.as_bytes();
        let len = before.len + DIRENT_SIZE + name.len();
        let end = self.entries.len() + len.next_multiple_of(8);
        if end > self.room {
            return true;
        }
        let head = Fixed::new()
            .u64s([ino.0, cookie])
            .u32s([name.len() as u32, kind.mode_bits() >> 12]);
        for part in [before.bytes(), head.bytes(), name] {
            self.entries.extend_from_slice(part);
        }
        self.entries.resize(end, 0);
        false
    }

    /// All that were added.
    pub fn ok(mut self) {
        let entries = std::mem::take(&mut self.entries);
        self.request.send(&[&entries]);
    }

    /// It failed.
    pub fn error(mut self, errno: Errno) {
        self.request.error(errno);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::negative_entry;
    use vfs::Time;

    fn slot() -> (Arc<Slot>, Unanswered) {
        let slot = Arc::new(Slot::default());
        let to = To::Slot(Arc::clone(&slot), None);
        (slot, Unanswered::new(7, to))
    }

    fn body(outcome: Outcome) -> Vec<u8> {
        assert_eq!(outcome.error, 0);
        match outcome.body {
            Body::Short(short) => short.bytes().to_vec(),
            Body::Long(long) => long,
            Body::InPlace(len) => {
                let mut payload = outcome.payload.expect("it has some");
                let bytes = payload.bytes()[..len].to_vec();
                payload.free();
                bytes
            }
        }
    }

    #[test]
    fn what_is_dropped_without_an_answer_is_an_error() {
        let (slot, request) = slot();
        drop(ReplyEmpty::to(request));
        assert_eq!(slot.wait().error, -Errno::EIO.code());
        assert!(slot.take().is_none(), "there is one answer");
    }

    #[test]
    fn times_before_1970_have_nanoseconds_that_count_upwards() {
        let (slot, request) = slot();
        let attr = FileAttr {
            mtime: Time::new(-2, 250_000_000),
            ..negative_entry()
        };
        ReplyAttr::to(request).attr(Duration::from_secs(5), &attr);
        let bytes = body(slot.wait());
        assert_eq!(bytes.len(), 104);
        assert_eq!(bytes[..8], 5_u64.to_ne_bytes());
        assert_eq!(bytes[48..56], (-2_i64).to_ne_bytes());
        assert_eq!(bytes[68..72], 250_000_000_u32.to_ne_bytes());
    }

    #[test]
    fn the_lengths_are_those_of_the_abi() {
        let lengths = |answer: &dyn Fn(Unanswered)| {
            let (slot, request) = slot();
            answer(request);
            body(slot.wait()).len()
        };
        let (ttl, attr) = (
            Ttl {
                entry: Duration::ZERO,
                attr: Duration::ZERO,
            },
            negative_entry(),
        );
        let generation = Generation(0);
        assert_eq!(
            lengths(&|r| ReplyEntry::to(r).entry(&ttl, &attr, generation)),
            128
        );
        assert_eq!(
            lengths(&|r| ReplyCreate::to(r).created(&ttl, &attr, generation, 0)),
            144
        );
        assert_eq!(lengths(&|r| ReplyOpen::to(r).opened()), 16);
        assert_eq!(lengths(&|r| ReplyWrite::to(r).written(1)), 8);
        assert_eq!(lengths(&|r| ReplyXattr::to(r).size(1)), 8);
        assert_eq!(lengths(&|r| ReplyLseek::to(r).offset(1)), 8);
        assert_eq!(lengths(&|r| ReplyIoctl::to(r).done()), 16);
    }

    #[test]
    fn a_listing_takes_what_fits_in_whole_words() {
        let (slot, request) = slot();
        let mut listing = ReplyDirectory::to(request, 2 * 32);
        let name = OsStr::new("abc");
        assert!(!listing.add(INodeNo(2), 1, Kind::File, name));
        assert!(!listing.add(INodeNo(3), 2, Kind::Dir, name));
        assert!(listing.add(INodeNo(4), 3, Kind::Dir, name));
        listing.ok();
        let bytes = body(slot.wait());
        assert_eq!(bytes.len(), 2 * 32);
        assert_eq!(bytes[20..24], 8_u32.to_ne_bytes(), "a regular file");
        assert_eq!(bytes[24..32], *b"abc\0\0\0\0\0");
    }

    #[test]
    fn what_is_read_lies_where_the_kernel_looks_for_it() {
        let slot = Arc::new(Slot::default());
        let to = To::Slot(Arc::clone(&slot), Some(Payload::new(64)));
        ReplyData::to(Unanswered::new(7, to)).read(16, |room| {
            room[..3].copy_from_slice(b"abc");
            Ok(3)
        });
        let outcome = slot.wait();
        assert!(matches!(outcome.body, Body::InPlace(3)));
        assert_eq!(body(outcome), b"abc");
    }
}
