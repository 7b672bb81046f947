//! Whether what was done is what a recorder was told.

use std::ops::Range;

use super::Event;
use crate::{Domain, FlushInstruction, LINE, PAGE, StoreKind};

const SYNCHRONOUS: u64 = nix::libc::MS_SYNC as u64;

/// What a recorder was told, by offsets in the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    Store { off: u64, len: u64, kind: StoreKind },
    Flush { off: u64, len: u64 },
    Fence,
}

/// The pool whose accesses are compared.
#[derive(Debug, Clone)]
pub(super) struct Watched {
    pub(super) addresses: Range<usize>,
    pub(super) domain: Domain,
    /// What flushes its lines, in domain `line`.
    pub(super) how: FlushInstruction,
}

/// Compares; an error says what differs first. To be equal,
/// - each store must have stored each byte of its range once, and nothing else;
/// - a store that was told as non-temporal must have gone around the cache. One told as cached may
///   have, if the buffers were drained before whatever came next;
/// - in domain `line` each flush must have written back each line of its range once, by the right
///   instruction, and each fence must have executed `sfence` once. So it comes after the flushes;
/// - in domain `page` each fence must have synced, synchronously and with success, the pages of
///   the hull of all ranges flushed since the last one, if there are any;
/// - nothing else may have been written back, fenced or synced.
pub(super) fn compare(told: &[Told], done: &[Event], watched: &Watched) -> Result<(), String> {
    let mut comparison = Comparison {
        done,
        watched,
        at: 0,
        undrained: false,
        gathered: None,
    };
    for (i, told) in told.iter().enumerate() {
        let result = comparison.take(told);
        result.map_err(|why| format!("event {i}, {told:?}: {why}"))?;
    }
    comparison.end()
}

struct Comparison<'a> {
    done: &'a [Event],
    watched: &'a Watched,
    /// The next of `done`.
    at: usize,
    /// There are stores around the cache that were told as cached, and nothing drained them yet.
    undrained: bool,
    /// The hull of what was flushed and not synced, in domain `page`.
    gathered: Option<Range<u64>>,
}

impl Comparison<'_> {
    /// The next event that is not a drain; `None` at the end.
    fn next(&mut self) -> Option<Event> {
        while let Some(event) = self.done.get(self.at) {
            self.at += 1;
            if *event != Event::Drain {
                return Some(*event);
            }
            self.undrained = false;
        }
        None
    }

    fn drained(&mut self) -> Result<(), String> {
        while self.done.get(self.at) == Some(&Event::Drain) {
            self.at += 1;
            self.undrained = false;
        }
        match self.undrained {
            false => Ok(()),
            true => Err("stores around the cache were not drained before it".to_owned()),
        }
    }

    fn take(&mut self, told: &Told) -> Result<(), String> {
        self.drained()?;
        match *told {
            Told::Store { off, len, kind } => self.store(off, len, kind),
            Told::Flush { off, len } => match self.watched.domain {
                Domain::Line => self.flush(off, len),
                Domain::Cache => Ok(()),
                Domain::Page => {
                    let old = self.gathered.take().unwrap_or(off..off);
                    self.gathered = Some(old.start.min(off)..old.end.max(off + len));
                    Ok(())
                }
            },
            Told::Fence => self.fence(),
        }
    }

    fn store(&mut self, off: u64, len: u64, kind: StoreKind) -> Result<(), String> {
        let mut missing = vec![true; len as usize];
        let start = self.watched.addresses.start + off as usize;
        let mut left = len as usize;
        while left > 0 {
            let event = self.next();
            let Some(Event::Store {
                at,
                len,
                non_temporal,
            }) = event
            else {
                return Err(format!("{left} bytes were not stored, before {event:?}"));
            };
            for byte in at..at + len {
                let byte = byte.checked_sub(start).and_then(|i| missing.get_mut(i));
                if !byte.is_some_and(std::mem::take) {
                    return Err(format!(
                        "{event:?} is not of it, or twice (it is at {start})"
                    ));
                }
            }
            if kind == StoreKind::NonTemporal && !non_temporal {
                return Err(format!("{event:?} went through the cache"));
            }
            self.undrained |= kind == StoreKind::Cached && non_temporal;
            left -= len;
        }
        Ok(())
    }

    fn flush(&mut self, off: u64, len: u64) -> Result<(), String> {
        let lines = off / LINE..(off + len).div_ceil(LINE);
        let first = self.watched.addresses.start as u64 + lines.start * LINE;
        let mut missing = vec![true; (lines.end - lines.start) as usize];
        for _ in 0..missing.len() {
            let event = self.next();
            let Some(Event::WriteBack { at, how }) = event else {
                return Err(format!("lines were not written back, before {event:?}"));
            };
            if how != self.watched.how {
                return Err(format!("{event:?} is not {}", self.watched.how.name()));
            }
            let line = (at as u64).checked_sub(first).map(|past| past / LINE);
            let line = line.and_then(|line| missing.get_mut(line as usize));
            if !line.is_some_and(std::mem::take) {
                return Err(format!(
                    "{event:?} is not of it, or twice (it is at {first})"
                ));
            }
        }
        Ok(())
    }

    fn fence(&mut self) -> Result<(), String> {
        let event = self.next();
        if event != Some(Event::StoreFence) {
            return Err(format!("no sfence, but {event:?}"));
        }
        let Some(hull) = self.gathered.take() else {
            return Ok(());
        };
        let start = self.watched.addresses.start as u64 + hull.start / PAGE * PAGE;
        let end = self.watched.addresses.start as u64 + hull.end.next_multiple_of(PAGE);
        let expected = Event::Sync {
            at: start as usize,
            len: (end - start) as usize,
            flags: SYNCHRONOUS,
            result: 0,
        };
        let event = self.next();
        if event != Some(expected) {
            return Err(format!("not {expected:?}, but {event:?}"));
        }
        Ok(())
    }

    fn end(mut self) -> Result<(), String> {
        self.drained()?;
        match self.next() {
            None => Ok(()),
            Some(event) => Err(format!("nobody was told of {event:?}")),
        }
    }
}
