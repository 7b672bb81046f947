//! Counters of a disk.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::device::{Op, Request};

/// What was asked of a device. A write with a flush behind it counts as both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Zeroed, discarded or allocated ranges.
    pub range_calls: u64,
    /// Bytes of the reads.
    pub bytes_read: u64,
    /// Bytes of the writes.
    pub bytes_written: u64,
    /// Requests in flight now.
    pub in_flight: u64,
    /// The most requests that were in flight at once.
    pub in_flight_max: u64,
}

impl Stats {
    /// Reads, writes and flushes together.
    pub fn ios(&self) -> u64 {
        self.reads + self.writes + self.flushes
    }

    /// What was added since `earlier`; the two figures of requests in flight stay as they are.
    pub fn since(&self, earlier: &Stats) -> Stats {
        Stats {
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            flushes: self.flushes - earlier.flushes,
            range_calls: self.range_calls - earlier.range_calls,
            bytes_read: self.bytes_read - earlier.bytes_read,
            bytes_written: self.bytes_written - earlier.bytes_written,
            ..*self
        }
    }
}

/// The live counters. All relaxed: each is exact, but they are no cut through one instant.
#[derive(Default)]
pub(crate) struct Counters {
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    range_calls: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    in_flight: AtomicU64,
    in_flight_max: AtomicU64,
}

impl Counters {
    /// A request is about to be submitted.
    pub(crate) fn start(&self, request: &Request) {
        let action = request.action();
        let calls = match action.op {
            Op::Read => {
                self.bytes_read.fetch_add(action.len, Relaxed);
                Some(&self.reads)
            }
            Op::Write => {
                self.bytes_written.fetch_add(action.len, Relaxed);
                Some(&self.writes)
            }
            Op::Flush => None,
            Op::Zero | Op::Discard | Op::Allocate => Some(&self.range_calls),
        };
        if let Some(calls) = calls {
            calls.fetch_add(1, Relaxed);
        }
        if request.flushes() {
            self.flushes.fetch_add(1, Relaxed);
        }
        let now = self.in_flight.fetch_add(1, Relaxed) + 1;
        self.in_flight_max.fetch_max(now, Relaxed);
    }

    /// A request and what followed directly from it are over.
    pub(crate) fn end(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
    }

    pub(crate) fn read(&self) -> Stats {
        Stats {
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            range_calls: self.range_calls.load(Relaxed),
            bytes_read: self.bytes_read.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
            in_flight: self.in_flight.load(Relaxed),
            in_flight_max: self.in_flight_max.load(Relaxed),
        }
    }
}
