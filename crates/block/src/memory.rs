//! A device in memory: contents for tests and for the modelled disk.

use parking_lot::RwLock;
use rustix::io::Errno;

use crate::device::{Immediate, Info, Request, SECTOR};
use crate::events::Events;

/// A device in memory, zeroed when made. Every request is complete when its submission returns.
pub struct Memory {
    info: Info,
    bytes: RwLock<Vec<u8>>,
    events: Events,
}

impl Memory {
    /// A zeroed device of `len` bytes.
    ///
    /// # Panics
    /// Unless `len` is a positive multiple of [`SECTOR`].
    pub fn new(len: u64) -> Memory {
        Memory::from_bytes(vec![0; len as usize])
    }

    /// A device that holds `bytes`.
    ///
    /// # Panics
    /// Unless they are a positive number of whole sectors.
    pub fn from_bytes(bytes: Vec<u8>) -> Memory {
        let len = bytes.len() as u64;
        assert!(
            len > 0 && len.is_multiple_of(SECTOR),
            "a device has whole sectors, not {len} bytes"
        );
        let info = Info {
            name: "memory".to_owned(),
            how: "memory".to_owned(),
            len,
            identity: None,
            read_only: false,
        };
        Memory {
            info,
            bytes: RwLock::new(bytes),
            events: Events::default(),
        }
    }

    /// A copy of the contents.
    pub fn contents(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }
}

impl Immediate for Memory {
    fn info(&self) -> &Info {
        &self.info
    }

    fn events(&self) -> &Events {
        &self.events
    }

    fn run(&self, request: &mut Request) -> Result<(), Errno> {
        match request {
            Request::Read { at, into } => {
                let bytes = self.bytes.read();
                let mut at = *at as usize;
                for buffer in into {
                    let end = at + buffer.len();
                    buffer.copy_from_slice(&bytes[at..end]);
                    at = end;
                }
            }
            Request::Write { at, from, .. } => {
                let mut bytes = self.bytes.write();
                let mut at = *at as usize;
                for buffer in from {
                    bytes[at..at + buffer.len()].copy_from_slice(buffer);
                    at += buffer.len();
                }
            }
            Request::Zero { at, len } | Request::Discard { at, len } => {
                self.bytes.write()[*at as usize..(*at + *len) as usize].fill(0);
            }
            Request::Flush | Request::Allocate { .. } => {}
        }
        Ok(())
    }
}
