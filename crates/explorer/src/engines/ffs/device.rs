//! The explorer's disk, as the engine knows disks.

use crate::disk::Disk;
use block::device::{Immediate, Info, Request};
use block::{Buffer, Events};
use rustix::io::Errno;
use std::sync::Arc;

/// A disk of the explorer. Every request is complete when its submission returns.
struct Sectors {
    info: Info,
    disk: Arc<Disk>,
    events: Events,
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
        events: Events::default(),
    }))
}

impl Sectors {
    fn write(&self, mut at: u64, from: &[Buffer]) {
        for buffer in from {
            self.disk.write(at, buffer);
            at += buffer.len() as u64;
        }
    }
}

impl Immediate for Sectors {
    fn info(&self) -> &Info {
        &self.info
    }

    fn events(&self) -> &Events {
        &self.events
    }

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
}
