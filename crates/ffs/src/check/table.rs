//! What a check keeps of blocks and inodes: a bit for each block, eight bytes for each inode of the
//! groups that have any, and more of directories only.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use vfs::Kind;

/// A bit for each block, or inode. Several threads may set them.
#[derive(Default)]
pub(super) struct Bits(Vec<AtomicU64>);

impl Bits {
    pub(super) fn new(len: u64) -> Bits {
        let words = len.div_ceil(64) as usize;
        Bits(
            std::iter::repeat_with(AtomicU64::default)
                .take(words)
                .collect(),
        )
    }

    /// Sets a bit; false: it was set.
    pub(super) fn set(&self, bit: u64) -> bool {
        let mask = 1 << (bit % 64);
        self.0[(bit / 64) as usize].fetch_or(mask, Relaxed) & mask == 0
    }

    pub(super) fn clear(&self, bit: u64) {
        self.0[(bit / 64) as usize].fetch_and(!(1 << (bit % 64)), Relaxed);
    }

    /// 64 bits from this one on.
    fn word(&self, first: u64) -> u64 {
        let (index, shift) = ((first / 64) as usize, first % 64);
        let at = |index: usize| self.0.get(index).map_or(0, |word| word.load(Relaxed));
        match shift {
            0 => at(index),
            _ => at(index) >> shift | at(index + 1) << (64 - shift),
        }
    }

    /// So many bits as a bitmap of a group has them, in so many bytes: behind them all are set.
    pub(super) fn bitmap(&self, first: u64, len: u32, bytes: u32) -> Vec<u8> {
        let mut bitmap = vec![0xFF_u8; bytes as usize];
        let words = (0..len).step_by(64);
        for (from, at) in words.zip(bitmap.chunks_exact_mut(8)) {
            let beyond = u64::MAX.checked_shl(len - from).unwrap_or(0);
            let word = self.word(first + u64::from(from)) | beyond;
            at.copy_from_slice(&word.to_le_bytes());
        }
        bitmap
    }
}

impl Clone for Bits {
    fn clone(&self) -> Bits {
        let words = self.0.iter().map(|word| word.load(Relaxed).into());
        Bits(words.collect())
    }
}

/// An inode.
#[derive(Default)]
pub(super) struct Slot {
    /// What it is, if it is in use.
    pub(super) kind: Option<Kind>,
    /// Whether it has blocks, or a target.
    pub(super) has_contents: bool,
    /// By what it says.
    pub(super) links: u16,
    /// Those that were found.
    names: AtomicU32,
}

const _: () = assert!(size_of::<Slot>() == 8, "there are many");

impl Slot {
    /// One in use, of which no names were found yet.
    pub(super) fn new(kind: Kind, has_contents: bool, links: u16) -> Slot {
        Slot {
            kind: Some(kind),
            has_contents,
            links,
            names: AtomicU32::new(0),
        }
    }

    /// Names that were found.
    pub(super) fn names(&self) -> u32 {
        self.names.load(Relaxed)
    }

    /// One more was found.
    pub(super) fn name(&self) {
        self.names.fetch_add(1, Relaxed);
    }

    /// One is no name after all.
    pub(super) fn unname(&self) {
        self.names.fetch_sub(1, Relaxed);
    }
}

/// The inodes in use, by number.
pub(super) struct Inodes {
    per_group: u32,
    groups: Vec<Vec<Slot>>,
}

impl Inodes {
    /// None, of so many groups.
    pub(super) fn new(groups: u32, per_group: u32) -> Inodes {
        let groups = std::iter::repeat_with(Vec::new).take(groups as usize);
        Inodes {
            per_group,
            groups: groups.collect(),
        }
    }

    /// Those of a group.
    pub(super) fn put(&mut self, group: u32, slots: Vec<Slot>) {
        self.groups[group as usize] = slots;
    }

    fn place(&self, ino: u32) -> (usize, usize) {
        let index = ino.wrapping_sub(1);
        let (group, index) = (index / self.per_group, index % self.per_group);
        (group as usize, index as usize)
    }

    /// One in use.
    pub(super) fn get(&self, ino: u32) -> Option<&Slot> {
        let (group, index) = self.place(ino);
        let slot = self.groups.get(group)?.get(index)?;
        slot.kind.is_some().then_some(slot)
    }

    /// It is going to be free.
    pub(super) fn remove(&mut self, ino: u32) {
        let (group, index) = self.place(ino);
        if let Some(slot) = self
            .groups
            .get_mut(group)
            .and_then(|all| all.get_mut(index))
        {
            *slot = Slot::default();
        }
    }

    /// Forgets all names that were found.
    pub(super) fn forget_names(&mut self) {
        for slot in self.groups.iter_mut().flatten() {
            *slot.names.get_mut() = 0;
        }
    }

    /// All in use, in the order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Slot)> {
        let firsts = (1..).step_by(self.per_group as usize);
        let groups = firsts.zip(&self.groups);
        let all = groups.flat_map(|(first, slots): (u32, _)| (first..).zip(slots));
        all.filter(|(_, slot)| slot.kind.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bitmap_has_the_bits_of_its_group_and_ones_behind_them() {
        let bits = Bits::new(300);
        for bit in [0, 5, 63, 64, 101, 102, 130, 299] {
            assert!(bits.set(bit) && !bits.set(bit), "{bit}");
        }
        bits.clear(64);
        for (first, len) in [(0, 300), (1, 100), (5, 64), (64, 128), (100, 3), (131, 169)] {
            let bitmap = bits.bitmap(first, len, 64);
            for bit in 0..512 {
                let is = bitmap[bit as usize / 8] & 1 << (bit % 8) != 0;
                let at = first + u64::from(bit);
                let right = bit >= len || [0, 5, 63, 101, 102, 130, 299].contains(&at);
                assert_eq!(is, right, "{first}, {len}: bit {bit}");
            }
        }
    }

    #[test]
    fn inodes_are_found_by_number() {
        let mut inodes = Inodes::new(3, 10);
        let slots = (0..7).map(|index| Slot {
            kind: (index % 2 == 0).then_some(Kind::File),
            ..Slot::default()
        });
        inodes.put(1, slots.collect());
        let all = |inodes: &Inodes| inodes.iter().map(|(ino, _)| ino).collect::<Vec<_>>();
        assert_eq!(all(&inodes), [11, 13, 15, 17]);
        assert!(
            [0, 1, 12, 18, 21, 31, u32::MAX]
                .iter()
                .all(|&ino| inodes.get(ino).is_none())
        );
        inodes.get(13).expect("in use").name();
        assert_eq!(inodes.get(13).map(Slot::names), Some(1));
        inodes.remove(15);
        inodes.forget_names();
        assert_eq!(all(&inodes), [11, 13, 17]);
        assert_eq!(inodes.get(13).map(Slot::names), Some(0));
    }
}
