//! A disk that a cache can be bound to without a file system on it: for tests, of builds with the
//! feature `testing`.

use crate::Binding;

/// How such disks are known: by their first 16 bytes. The next 32 are the mark.
#[derive(Debug, Clone, Copy)]
pub struct Bind;

const UUID: [u8; 16] = [7; 16];
const MARK: [u8; 16] = [0xff; 16];

impl Bind {
    /// Lets contents begin as those of an unmarked disk.
    pub fn label(contents: &mut [u8]) {
        contents[..16].copy_from_slice(&UUID);
        contents[16..48].fill(0);
    }
}

impl Binding for Bind {
    fn uuid(&self, first: &[u8]) -> Option<[u8; 16]> {
        (first[..16] == UUID).then_some(UUID)
    }

    fn mark(&self, first: &mut [u8], cache: &[u8; 16]) {
        first[16..32].copy_from_slice(&MARK);
        first[32..48].copy_from_slice(cache);
    }

    fn marked(&self, first: &[u8]) -> Option<[u8; 16]> {
        (first[16..32] == MARK).then(|| first[32..48].try_into().expect("16 bytes"))
    }
}
