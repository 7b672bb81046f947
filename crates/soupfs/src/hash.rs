//! Hashes: of names, SipHash-1-3 under the image's secret key; of numbers.
//!
//! That of names is keyed, so that nobody who chooses names can make a chain long without knowing
//! the key.

use siphasher::sip::SipHasher13;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// Hashes names under one image's key.
#[derive(Clone, Copy)]
pub struct NameHash(SipHasher13);

impl NameHash {
    /// The hash under `key`, which is in the superblock.
    pub fn new(key: [u8; 16]) -> NameHash {
        NameHash(SipHasher13::new_with_key(&key))
    }

    /// The hash of a name: of its bytes alone, without length or terminator.
    #[inline]
    pub fn hash(&self, name: &[u8]) -> u64 {
        self.0.hash(name)
    }

    /// A name with its hash.
    #[inline]
    pub fn name<'n>(&self, bytes: &'n [u8]) -> Name<'n> {
        let hash = self.hash(bytes);
        Name { bytes, hash }
    }
}

/// A name with its hash.
#[derive(Clone, Copy)]
pub struct Name<'n> {
    /// Its bytes.
    pub bytes: &'n [u8],
    /// Their hash.
    pub hash: u64,
}

/// Hashes numbers of lines and offsets, which differ in their middle bits: one multiplication
/// spreads these. Not for what others choose.
#[derive(Default, Clone, Copy)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(u64::from(b)));
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(26);
    }
}

/// By number.
pub type NumberMap<V> = HashMap<u64, V, BuildHasherDefault<NumberHasher>>;
/// Numbers.
pub type NumberSet = HashSet<u64, BuildHasherDefault<NumberHasher>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_siphash_1_3_of_the_bytes_alone() {
        let key: [u8; 16] = std::array::from_fn(|i| i as u8);
        let mut stream = SipHasher13::new_with_key(&key);
        stream.write(b"a ");
        stream.write(b"name");
        assert_eq!(NameHash::new(key).hash(b"a name"), stream.finish());
        // Fixed for good: images on disk depend on it.
        assert_eq!(NameHash::new(key).hash(b""), 0xabac_0158_050f_c4dc);
    }

    #[test]
    fn another_key_gives_another_hash() {
        assert_ne!(
            NameHash::new([0; 16]).hash(b"name"),
            NameHash::new([1; 16]).hash(b"name")
        );
    }
}
