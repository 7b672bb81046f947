//! The explorer's disk, as the engine knows disks.

use crate::disk::Disk;
use block::device::{Immediate, Info, Request};
use block::{Buffer, Events};
use ffs::layout::{SUPERBLOCK_AT, Superblock};
use rustix::io::Errno;
use std::mem::{offset_of, size_of};
use std::sync::Arc;

/// A disk of the explorer. Every request is complete when its submission returns.
struct Sectors {
    info: Info,
    disk: Arc<Disk>,
    events: Events,
    /// The superblock does not say who mounted it last.
    is_unmarked: bool,
}

/// What an engine on blocks is handed.
pub(super) fn disk(disk: &Arc<Disk>) -> block::Disk {
    of(disk, false)
}

/// The same, whose superblock does not say who mounted it last.
pub(super) fn unmarked(disk: &Arc<Disk>) -> block::Disk {
    of(disk, true)
}

fn of(disk: &Arc<Disk>, is_unmarked: bool) -> block::Disk {
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
        is_unmarked,
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

/// Lets bytes of a disk not say who mounted it last.
fn unmark(at: u64, bytes: &mut [u8]) {
    let mark = SUPERBLOCK_AT + offset_of!(Superblock, last_mounted) as u64;
    let len = size_of::<[u8; 64]>() as u64;
    for byte in mark.max(at)..(mark + len).min(at + bytes.len() as u64) {
        bytes[(byte - at) as usize] = 0;
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
                    if self.is_unmarked {
                        unmark(*at, buffer);
                    }
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
