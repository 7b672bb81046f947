//! The explorer's disk, as the engine knows disks.

use crate::disk::Disk;
use block::device::{Io, Request};
use block::{Buffer, Device, Info};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// A disk of the explorer. Every request is complete when its submission returns.
struct Sectors {
    info: Info,
    disk: Arc<Disk>,
    delivered: AtomicU64,
}

/// What an engine on blocks is handed.
pub(super) fn disk(disk: &Arc<Disk>) -> block::Disk {
    let info = Info {
        name: "explored".to_owned(),
        how: "memory".to_owned(),
        len: disk.len(),
        identity: None,
        read_only: false,
    };
    block::Disk::new(Arc::new(Sectors {
        info,
        disk: disk.clone(),
        delivered: AtomicU64::new(0),
    }))
}

impl Sectors {
    fn run(&self, request: &mut Request) -> Result<(), Errno> {
        match request {
            Request::Read { at, into } => {
                for buffer in into {
                    self.disk.read(*at, buffer);
                    *at += buffer.len() as u64;
                }
            }
            Request::Write { at, from, flush } => {
                self.write(*at, from);
                if *flush {
                    self.disk.barrier();
                }
            }
            Request::Flush => self.disk.barrier(),
            Request::Zero { at, len } => self.disk.write(*at, &vec![0; *len as usize]),
            // Each of these sectors may stay as it is (B7).
            Request::Discard { .. } | Request::Allocate { .. } => {}
        }
        Ok(())
    }

    fn write(&self, mut at: u64, from: &[Buffer]) {
        for buffer in from {
            self.disk.write(at, buffer);
            at += buffer.len() as u64;
        }
    }
}

impl Device for Sectors {
    fn info(&self) -> &Info {
        &self.info
    }

    fn submit(&self, ios: Vec<Io>) {
        for mut io in ios {
            let result = self.run(&mut io.request);
            io.complete(result);
            self.notify();
        }
    }

    fn delivered(&self) -> u64 {
        self.delivered.load(SeqCst)
    }

    /// What was submitted was delivered.
    fn wait(&self, _seen: u64) {}

    fn notify(&self) {
        self.delivered.fetch_add(1, SeqCst);
    }
}
