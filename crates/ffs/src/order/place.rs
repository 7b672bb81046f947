//! Where bytes are, and what can be waited for: in eight bytes each, as there are many.

use std::fmt;

/// The bits of an offset: no block has more bytes.
const OFFSET_BITS: u32 = 12;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;

/// Where bytes are: a block of the disk, and the offset in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(u64);

impl Place {
    /// None is before this one.
    pub const MIN: Place = Place(0);
    /// None is behind this one.
    pub const MAX: Place = Place(u64::MAX);

    /// So many bytes from the beginning of a block.
    ///
    /// # Panics
    /// If no block is so long.
    pub fn new(block: u64, offset: usize) -> Place {
        let offset = offset as u64;
        assert!(offset <= OFFSET_MASK, "byte {offset} of a block");
        Place(block << OFFSET_BITS | offset)
    }

    /// The block.
    pub fn block(self) -> u64 {
        self.0 >> OFFSET_BITS
    }

    /// Bytes from its beginning.
    pub fn offset(self) -> usize {
        (self.0 & OFFSET_MASK) as usize
    }

    /// The last one of a block.
    pub fn last(block: u64) -> Place {
        Place::new(block, OFFSET_MASK as usize)
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}, byte {}", self.block(), self.offset())
    }
}

/// A condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// The block is durable, as it is now.
    Block(u64),
    /// What this place holds now is durable.
    Place(Place),
}

/// A condition that is kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Kept(u64);

impl From<On> for Kept {
    fn from(on: On) -> Kept {
        match on {
            On::Block(block) => Kept(block << 1),
            On::Place(place) => Kept(place.0 << 1 | 1),
        }
    }
}

impl From<Kept> for On {
    fn from(Kept(bits): Kept) -> On {
        match bits & 1 {
            0 => On::Block(bits >> 1),
            _ => On::Place(Place(bits >> 1)),
        }
    }
}

/// Of something of which there is mostly none, or one.
#[derive(Default)]
pub(super) enum Few<T> {
    #[default]
    None,
    One(T),
    Many(Vec<T>),
}

impl<T: Copy> Few<T> {
    pub fn push(&mut self, one: T) {
        match self {
            Few::None => *self = Few::One(one),
            Few::One(first) => *self = Few::Many(vec![*first, one]),
            Few::Many(all) => {
                // Most that are more than two are three.
                if all.len() < 4 {
                    all.reserve_exact(1);
                }
                all.push(one);
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, Few::None)
    }

    pub fn extend(&mut self, more: Few<T>) {
        match self {
            Few::None => *self = more,
            _ => more.all().iter().for_each(|&one| self.push(one)),
        }
    }

    pub fn all(&self) -> &[T] {
        match self {
            Few::None => &[],
            Few::One(one) => std::slice::from_ref(one),
            Few::Many(many) => many,
        }
    }

    /// Bytes of DRAM beside its own.
    pub fn boxed(&self) -> usize {
        match self {
            Few::None | Few::One(_) => 0,
            Few::Many(many) => many.capacity() * size_of::<T>(),
        }
    }
}

const _: () = assert!(size_of::<Few<[u64; 2]>>() == 24, "there are many");
