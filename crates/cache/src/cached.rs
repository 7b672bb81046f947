//! The disk through the cache: a device for whoever knows nothing of it.

use std::sync::Arc;

use block::device::{Immediate, Info, Request};
use block::{Buffer, Events};
use rustix::io::Errno;

use crate::{Cache, CacheError, Class, Transaction};

/// The disk as it is through a cache. Each write is a transaction, durable when it is complete.
pub struct Cached {
    cache: Arc<Cache>,
    info: Info,
    events: Events,
}

impl Cached {
    /// Over a cache.
    pub fn new(cache: Arc<Cache>) -> Cached {
        let mut info = cache.disk().info().clone();
        info.how = format!("{}, through a cache", info.how);
        Cached {
            cache,
            info,
            events: Events::default(),
        }
    }

    fn read(&self, at: u64, into: &mut [Buffer]) -> Result<(), Errno> {
        self.cache.read_buffers(at, into).map_err(errno)
    }

    /// A write that is larger than a transaction may be is several.
    fn write(&self, mut at: u64, from: &[Buffer]) -> Result<(), Errno> {
        // A block more than the bytes have, as these need not begin with one.
        let bytes_max = (self.cache.transaction_max() - 1) * crate::BLOCK as usize;
        for buffer in from {
            for part in buffer.chunks(bytes_max) {
                let mut transaction = Transaction::default();
                transaction.write(Class::Metadata, at, part);
                self.cache.commit(transaction).map_err(errno)?;
                at += part.len() as u64;
            }
        }
        Ok(())
    }
}

fn errno(error: CacheError) -> Errno {
    log::error!("{error}");
    match error {
        CacheError::Disk(error) => error.errno,
        _ => Errno::IO,
    }
}

impl Immediate for Cached {
    fn info(&self) -> &Info {
        &self.info
    }

    fn events(&self) -> &Events {
        &self.events
    }

    fn run(&self, request: &mut Request) -> Result<(), Errno> {
        match request {
            Request::Read { at, into } => self.read(*at, into),
            Request::Write { at, from, .. } => self.write(*at, from),
            Request::Flush => Ok(()),
            // Who zeroes then writes zeros.
            Request::Zero { .. } | Request::Discard { .. } => Err(Errno::OPNOTSUPP),
            Request::Allocate { at, len } => {
                let allocated = self.cache.disk().allocate(*at, *len);
                allocated.map_err(|error| error.errno)
            }
        }
    }
}
