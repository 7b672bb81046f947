//! Where bytes are, and what can be waited for: in eight bytes each, as there are many.

use std::fmt;

/// The bits of an offset: no block has more bytes.
const OFFSET_BITS: u32 = 12;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;

/// Where bytes are: a block of the disk, and the offset in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(u64);

impl Place {
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

/// A guard or a task that waits, by its number. That of a guard which is gone leads nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waiter {
    /// Of a guard its number; of a task the lower half of that.
    id: u32,
    /// Of a guard the block of its place; of a task the upper half of its number.
    block: u32,
    /// Of a guard the offset of its place.
    offset: u16,
    kind: WaiterKind,
}

/// A byte with values that are none: they tell [`Few`] how many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaiterKind {
    Guard,
    Task,
}

/// Who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// The guard of a place, if it has this number still.
    Guard(u32, Place),
    /// A task.
    Task(u64),
}

impl From<Who> for Waiter {
    /// # Panics
    /// If the place is in a block of more than 32 bits: such images are only read.
    fn from(who: Who) -> Waiter {
        match who {
            Who::Guard(id, place) => Waiter {
                id,
                block: u32::try_from(place.block()).expect("blocks that change have 32 bits"),
                offset: place.offset() as u16,
                kind: WaiterKind::Guard,
            },
            Who::Task(id) => Waiter {
                id: id as u32,
                block: (id >> 32) as u32,
                offset: 0,
                kind: WaiterKind::Task,
            },
        }
    }
}

impl From<Waiter> for Who {
    fn from(waiter: Waiter) -> Who {
        match waiter.kind {
            WaiterKind::Guard => {
                let place = Place::new(waiter.block.into(), waiter.offset.into());
                Who::Guard(waiter.id, place)
            }
            WaiterKind::Task => Who::Task(u64::from(waiter.block) << 32 | u64::from(waiter.id)),
        }
    }
}

/// Of something of which there is mostly none, or one; and of more than that three, mostly.
#[derive(Default)]
pub(super) enum Few<T> {
    #[default]
    None,
    One(T),
    Two(Box<[T; 2]>),
    Three(Box<[T; 3]>),
    Many(Box<List<T>>),
}

/// Any number behind a pointer of one word.
pub(super) struct List<T>(Vec<T>);

impl<T: Copy> Few<T> {
    pub fn push(&mut self, one: T) {
        if let Few::Many(many) = self {
            return many.0.push(one);
        }
        *self = match std::mem::take(self) {
            Few::None => Few::One(one),
            Few::One(first) => Few::Two(Box::new([first, one])),
            Few::Two(two) => Few::Three(Box::new([two[0], two[1], one])),
            more => {
                let mut all = Vec::with_capacity(8);
                all.extend_from_slice(more.all());
                all.push(one);
                Few::Many(Box::new(List(all)))
            }
        };
    }

    /// Keeps those of which this says so, in order.
    pub fn retain(&mut self, keeps: impl Fn(T) -> bool) {
        if !self.all().iter().all(|&one| keeps(one)) {
            let before = std::mem::take(self);
            let kept = before.all().iter().copied().filter(|&one| keeps(one));
            kept.for_each(|one| self.push(one));
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
            Few::Two(two) => &**two,
            Few::Three(three) => &**three,
            Few::Many(many) => &many.0,
        }
    }

    pub fn all_mut(&mut self) -> &mut [T] {
        match self {
            Few::None => &mut [],
            Few::One(one) => std::slice::from_mut(one),
            Few::Two(two) => &mut **two,
            Few::Three(three) => &mut **three,
            Few::Many(many) => &mut many.0,
        }
    }

    /// Bytes of DRAM beside its own.
    pub fn boxed(&self) -> usize {
        match self {
            Few::None | Few::One(_) => 0,
            Few::Two(_) | Few::Three(_) => size_of_val(self.all()),
            Few::Many(many) => size_of::<List<T>>() + many.0.capacity() * size_of::<T>(),
        }
    }
}

const _: () = assert!(size_of::<Waiter>() == 12, "there are many");
const _: () = assert!(size_of::<Few<Waiter>>() == 16, "there are many");
const _: () = assert!(size_of::<Few<Kept>>() == 16, "there are many");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_comes_out_of_twelve_bytes_as_it_was() {
        let last = Place::new(u32::MAX.into(), 4095);
        for who in [
            Who::Guard(0, Place::new(0, 0)),
            Who::Guard(u32::MAX, last),
            Who::Task(0),
            Who::Task(7 << 32 | 9),
            Who::Task(u64::MAX),
        ] {
            assert_eq!(Who::from(Waiter::from(who)), who);
        }
    }

    #[test]
    fn few_are_in_order_however_many_there_are() {
        for count in 0..40 {
            let (mut one, mut other) = (Few::None, Few::None);
            (0..count).for_each(|i| one.push(Kept(i)));
            (count..2 * count).for_each(|i| other.push(Kept(i)));
            one.extend(other);
            let numbers = |few: &Few<Kept>| few.all().iter().map(|kept| kept.0).collect::<Vec<_>>();
            assert_eq!(numbers(&one), (0..2 * count).collect::<Vec<_>>());
            assert_eq!(one.is_empty(), count == 0);
            one.retain(|kept| kept.0 % 3 != 1);
            let kept = (0..2 * count).filter(|i| i % 3 != 1);
            assert_eq!(numbers(&one), kept.collect::<Vec<_>>());
            one.all_mut().iter_mut().for_each(|kept| kept.0 += 7);
            let kept = (0..2 * count).filter(|i| i % 3 != 1).map(|i| i + 7);
            assert_eq!(numbers(&one), kept.collect::<Vec<_>>());
        }
    }
}
