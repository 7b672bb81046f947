//! What the tests share: a device of every kind, and seeds.

use std::path::Path;
use std::sync::Arc;

use block::{Buffer, Device, Memory, OpenOptions};
use tempfile::NamedTempFile;
pub use testing::for_seeds;

/// A device, and the file under it, if any.
pub struct Backend {
    pub device: Arc<dyn Device>,
    pub file: Option<NamedTempFile>,
}

/// A zeroed file of `len` bytes on the disk, where direct I/O is possible.
pub fn image(len: u64) -> NamedTempFile {
    let file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a file");
    file.as_file().set_len(len).expect("its length");
    file
}

/// The ways to open a file.
pub fn ways() -> impl Iterator<Item = OpenOptions> {
    let both = [false, true];
    let ways = both
        .into_iter()
        .flat_map(move |ring| both.map(|direct| (ring, direct)));
    ways.map(|(ring, direct)| OpenOptions {
        ring,
        direct,
        threads: 3,
        ..OpenOptions::default()
    })
}

/// A device of each kind.
pub fn backends(len: u64) -> Vec<Backend> {
    let mut backends = vec![Backend {
        device: Arc::new(Memory::new(len)),
        file: None,
    }];
    for way in ways() {
        let file = image(len);
        let device = open(&way, file.path());
        let file = Some(file);
        backends.push(Backend { device, file });
    }
    backends
}

pub fn open(way: &OpenOptions, path: &Path) -> Arc<dyn Device> {
    way.device(path).expect("the file can be opened")
}

/// A buffer of sectors, each filled with its own byte.
pub fn sectors(bytes: &[u8]) -> Buffer {
    let mut buffer = Buffer::zeroed(512 * bytes.len());
    for (sector, &byte) in buffer.chunks_mut(512).zip(bytes) {
        sector.fill(byte);
    }
    buffer
}

/// The bytes of all buffers.
pub fn joined(buffers: &[Buffer]) -> Vec<u8> {
    buffers
        .iter()
        .flat_map(|buffer| buffer.iter().copied())
        .collect()
}
