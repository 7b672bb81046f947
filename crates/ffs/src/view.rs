//! A snapshot as a disk: all blocks as they were, and zeros where nothing was.

use std::sync::Arc;

use block::device::{Immediate, Info, Request};
use block::{Buffer, Disk, Events};
use rustix::io::Errno;
use vfs::{Error, Result};

use crate::fault::{Fault, injected};
use crate::journal::Journal;
use crate::snapshot::{Snapshot, State};
use crate::volume::Volume;

/// Blocks that are read at once.
const BLOCKS_MAX: u64 = 256;

/// The device.
pub struct View {
    volume: Arc<Volume>,
    snapshot: Arc<Snapshot>,
    /// The image's, if it has one. What is in its log is of the mount that uses it.
    journal: Option<Arc<Journal>>,
    info: Info,
    events: Events,
}

impl View {
    /// Of a snapshot, in which the journal, if there is one, is empty.
    pub fn new(
        volume: Arc<Volume>,
        snapshot: Arc<Snapshot>,
        journal: Option<Arc<Journal>>,
    ) -> View {
        let geometry = &volume.medium.geometry;
        let info = Info {
            name: format!("snapshot {}", snapshot.name),
            how: "a snapshot".to_owned(),
            len: geometry.blocks * u64::from(geometry.block_size),
            identity: None,
            read_only: true,
        };
        View {
            volume,
            snapshot,
            journal: journal.filter(|_| !injected(Fault::LogShown)),
            info,
            events: Events::default(),
        }
    }

    /// Bytes from byte `at` on, which are there.
    ///
    /// # Errors
    /// The snapshot is damaged, or is none any more; the disk failed.
    pub fn read(&self, at: u64, to: &mut [u8]) -> Result<()> {
        let block_size = u64::from(self.volume.medium.geometry.block_size);
        let mut done = 0;
        while done < to.len() {
            let from = at + done as u64;
            let (block, skip) = (from / block_size, (from % block_size) as usize);
            let left = (to.len() - done + skip).div_ceil(block_size as usize) as u64;
            let bytes = self.blocks(block, left.min(BLOCKS_MAX))?;
            let part = (bytes.len() - skip).min(to.len() - done);
            to[done..done + part].copy_from_slice(&bytes[skip..skip + part]);
            done += part;
        }
        Ok(())
    }

    /// Some blocks, at least one of so many.
    fn blocks(&self, first: u64, count: u64) -> Result<Vec<u8>> {
        let medium = &self.volume.medium;
        let block_size = u64::from(medium.geometry.block_size);
        loop {
            let run = self.snapshot.run(medium, first)?;
            let len = run.len.min(count);
            let bytes = match run.block {
                Some(copy) if copy != first => {
                    let mut bytes = Vec::new();
                    for block in copy..copy + len {
                        bytes.extend_from_slice(&medium.cache.read(block)?.bytes());
                    }
                    bytes
                }
                // Memory may have what is to be on the disk next.
                _ => {
                    let into = vec![Buffer::zeroed((len * block_size) as usize)];
                    let read = medium.cache.disk().read(first * block_size, into);
                    let read = read.map_err(|error| Error::medium(error.to_string()))?;
                    let mut bytes = read[0].to_vec();
                    let after = self.snapshot.run(medium, first)?;
                    if (after.block, after.len.min(len)) != (run.block, len) {
                        // It was copied meanwhile, and may have been overwritten then.
                        continue;
                    }
                    if run.block.is_none() {
                        self.clear_unused(first, &mut bytes)?;
                    }
                    bytes
                }
            };
            return match self.snapshot.state() {
                State::Active => Ok(bytes),
                _ => Err(Error::medium("it is no snapshot any more")),
            };
        }
    }

    /// Lets blocks that were not in use be zeros, and the log be empty.
    fn clear_unused(&self, first: u64, bytes: &mut [u8]) -> Result<()> {
        let medium = &self.volume.medium;
        let block_size = medium.geometry.block_size as usize;
        for (block, bytes) in (first..).zip(bytes.chunks_exact_mut(block_size)) {
            if !self.snapshot.in_use(medium, block)? {
                bytes.fill(0);
            }
            if let Some(journal) = &self.journal {
                journal.empty(block, bytes);
            }
        }
        Ok(())
    }

    /// As a disk.
    pub fn into_disk(self) -> Disk {
        Disk::new(Arc::new(self))
    }
}

impl Immediate for View {
    fn info(&self) -> &Info {
        &self.info
    }

    fn events(&self) -> &Events {
        &self.events
    }

    fn run(&self, request: &mut Request) -> std::result::Result<(), Errno> {
        match request {
            Request::Read { at, into } => {
                let mut at = *at;
                for buffer in into {
                    self.read(at, buffer).map_err(|error| {
                        log::error!("{}: {error}", self.info.name);
                        Errno::IO
                    })?;
                    at += buffer.len() as u64;
                }
                Ok(())
            }
            Request::Flush => Ok(()),
            _ => Err(Errno::ROFS),
        }
    }
}
