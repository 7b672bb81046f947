//! A disk whose journal is in memory: JBD2 with its log on a device of its own, to be compared with
//! what takes the log's place.
//!
//! The log's blocks keep their numbers, and go to the memory instead. A commit then costs what it
//! costs there: whole blocks, and a fence for each flush. What is written home goes to the disk.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::device::{Done, Io, Request};
use block::{Buffer, Device, Disk, Info};
use pmem::{Domain, Latency, Options, Pool};
use rustix::io::Errno;

use super::Result;

/// How the memory of a log is set up.
#[derive(Debug, Clone)]
pub struct LogSetup {
    /// What the memory promises, hence what is flushed.
    pub domain: Domain,
    /// Extra latency to emulate.
    pub latency: Latency,
}

/// A disk, and the memory that has its journal.
pub struct LogInMemory {
    disk: Arc<dyn Device>,
    memory: Arc<Pool>,
    /// Bytes of the disk that are the journal's, which follow each other in the memory.
    places: Vec<Range<u64>>,
    /// Something was written to the disk that no flush has covered.
    is_dirty: Arc<AtomicBool>,
}

/// Where a request goes.
enum Side {
    Disk,
    /// From this byte of the memory on.
    Memory(u64),
    /// To both. Nobody does that: the blocks of a log are written in waves of their own.
    Both,
}

impl LogSetup {
    /// The disk on a device with an image on it, whose journal is empty and moves to memory of this
    /// process; and that memory.
    pub fn split(&self, device: Arc<dyn Device>) -> Result<(Disk, Arc<Pool>)> {
        let image = Disk::new(device.clone());
        let places = ffs::journal_places(&image)?;
        let len = places.iter().map(|range| range.end - range.start).sum();
        let options = Options {
            domain: Some(self.domain),
            latency: self.latency,
            exclusive: false,
            ..Options::default()
        };
        let memory = Arc::new(Pool::anonymous(len, &options)?);
        let mut to = 0;
        for range in &places {
            let len = (range.end - range.start) as usize;
            for bytes in image.read(range.start, vec![Buffer::zeroed(len)])? {
                memory.write_nt(to, &bytes);
                to += bytes.len() as u64;
            }
        }
        memory.fence()?;
        let both = LogInMemory {
            disk: device,
            memory: memory.clone(),
            places,
            is_dirty: Arc::default(),
        };
        Ok((Disk::new(Arc::new(both)), memory))
    }
}

impl LogInMemory {
    fn side(&self, at: u64, len: u64) -> Side {
        let mut before = 0;
        for range in &self.places {
            if range.start <= at && at + len <= range.end {
                return Side::Memory(before + at - range.start);
            }
            if at < range.end && range.start < at + len {
                return Side::Both;
            }
            before += range.end - range.start;
        }
        Side::Disk
    }

    /// Does a request of the log, but for a flush of the disk behind it.
    fn run(&self, mut at: u64, request: &mut Request) -> std::result::Result<(), Errno> {
        match request {
            Request::Read { into, .. } => {
                for buffer in into {
                    self.memory.read(at, buffer);
                    at += buffer.len() as u64;
                }
            }
            Request::Write { from, .. } => {
                for buffer in from {
                    self.memory.write_nt(at, buffer);
                    at += buffer.len() as u64;
                }
            }
            Request::Zero { len, .. } => self.memory.zero(at, *len),
            Request::Flush | Request::Discard { .. } | Request::Allocate { .. } => {}
        }
        match request.flushes() {
            true => self.memory.fence().map_err(|_| Errno::IO),
            false => Ok(()),
        }
    }

    /// Ends a request, behind a flush of the disk if it is one and the disk needs that.
    fn end(&self, io: Io, result: std::result::Result<(), Errno>) {
        let has_to = io.request.flushes() && self.is_dirty.swap(false, Ordering::SeqCst);
        if !has_to || result.is_err() {
            io.complete(result);
            self.disk.notify();
            return;
        }
        let done: Done = Box::new(move |flushed| io.complete(flushed.result));
        self.disk.submit(vec![Io {
            request: Request::Flush,
            done,
        }]);
    }

    /// A request of the disk. What was written is to be flushed from when it is complete.
    fn noted(&self, io: Io) -> Io {
        if matches!(io.request, Request::Read { .. }) {
            return io;
        }
        let (is_dirty, done) = (self.is_dirty.clone(), io.done);
        Io {
            request: io.request,
            done: Box::new(move |completion| {
                is_dirty.store(true, Ordering::SeqCst);
                done(completion);
            }),
        }
    }
}

impl Device for LogInMemory {
    fn info(&self) -> &Info {
        self.disk.info()
    }

    fn submit(&self, ios: Vec<Io>) {
        let mut passed = Vec::new();
        for mut io in ios {
            let action = io.request.action();
            let side = match io.request {
                Request::Flush => Side::Memory(0),
                _ => self.side(action.at, action.len),
            };
            match side {
                Side::Disk if io.request.flushes() && self.memory.fence().is_err() => {
                    io.complete(Err(Errno::IO));
                    self.disk.notify();
                }
                Side::Disk => passed.push(self.noted(io)),
                Side::Memory(at) => {
                    let result = self.run(at, &mut io.request);
                    self.end(io, result);
                }
                Side::Both => {
                    io.complete(Err(Errno::INVAL));
                    self.disk.notify();
                }
            }
        }
        if !passed.is_empty() {
            self.disk.submit(passed);
        }
    }

    fn delivered(&self) -> u64 {
        self.disk.delivered()
    }

    fn reap(&self) {
        self.disk.reap();
    }

    fn wait(&self, seen: u64) {
        self.disk.wait(seen);
    }

    fn notify(&self) {
        self.disk.notify();
    }
}
