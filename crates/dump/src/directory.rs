//! Directories as dumps have them: chunks of 512 bytes, which no entry crosses.

use vfs::Kind;

const CHUNK: usize = 512;
/// Bytes of an entry before its name.
const HEADER: usize = 8;

/// The contents of a directory.
#[derive(Default)]
pub struct Directory {
    bytes: Vec<u8>,
    /// Where the last entry begins.
    last: usize,
}

impl Directory {
    /// With the entries that each has.
    pub fn new(ino: u32, parent: u32) -> Directory {
        let mut directory = Directory::default();
        directory.add(ino, Kind::Dir, b".");
        directory.add(parent, Kind::Dir, b"..");
        directory
    }

    /// One more entry, with a name of at most 255 bytes.
    pub fn add(&mut self, ino: u32, kind: Kind, name: &[u8]) {
        // With a zero behind the name.
        let len = (HEADER + name.len() + 1).next_multiple_of(4);
        if self.bytes.len() % CHUNK + len > CHUNK || self.bytes.len().is_multiple_of(CHUNK) {
            self.fill_chunk();
        }
        self.last = self.bytes.len();
        self.bytes.extend_from_slice(&ino.to_le_bytes());
        self.bytes.extend_from_slice(&(len as u16).to_le_bytes());
        self.bytes.push((kind.mode_bits() >> 12) as u8);
        self.bytes.push(name.len() as u8);
        self.bytes.extend_from_slice(name);
        self.bytes.resize(self.last + len, 0);
    }

    /// The last entry takes what is left of its chunk.
    fn fill_chunk(&mut self) {
        let end = self.bytes.len().next_multiple_of(CHUNK);
        if let Some(len) = self.bytes.get_mut(self.last + 4..self.last + 6) {
            len.copy_from_slice(&((end - self.last) as u16).to_le_bytes());
        }
        self.bytes.resize(end, 0);
    }

    /// Its bytes.
    pub fn bytes(mut self) -> Vec<u8> {
        self.fill_chunk();
        self.bytes
    }
}
