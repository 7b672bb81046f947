//! Places for counted references, each a single word with its own lock; and memory for what they
//! refer to.
//!
//! Who looks an inode up misses the cache on its place, then on the inode. Both can be prefetched
//! in advance: [`Slot::prefetch`], [`Blank::new`].

use schedule::Retry;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{
    AtomicPtr,
    Ordering::{Acquire, Relaxed, Release},
};
use triomphe::{Arc, UniqueArc};

/// The bit of a slot's word that says that it is locked.
const LOCKED: usize = 1;

/// A place for a counted reference, and its spin lock, in one word.
pub struct Slot<T>(AtomicPtr<T>, std::marker::PhantomData<Option<Arc<T>>>);

/// A locked [`Slot`]: its contents.
pub struct Guard<'a, T> {
    slot: &'a Slot<T>,
    held: ManuallyDrop<Option<Arc<T>>>,
}

impl<T> Default for Slot<T> {
    /// An empty one.
    fn default() -> Slot<T> {
        const { assert!(align_of::<T>() > LOCKED) };
        Slot(AtomicPtr::default(), std::marker::PhantomData)
    }
}

impl<T> Slot<T> {
    /// Lock it. Whoever waits yields.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        let mut retry = Retry::default();
        loop {
            let word = self.0.load(Relaxed);
            let locked = word.map_addr(|at| at | LOCKED);
            if word != locked
                // What the exchange found, not what was loaded: that may have been freed, and
                // another have come to the same address.
                && let Ok(word) = (self.0).compare_exchange_weak(word, locked, Acquire, Relaxed)
            {
                // SAFETY: this is the locked slot's word.
                let held = ManuallyDrop::new(unsafe { reference(word) });
                return Guard { slot: self, held };
            }
            retry.again();
        }
    }

    /// Hint that the slot will be locked, and what it refers to looked at: its beginning, and the
    /// byte at `also`.
    #[inline]
    pub fn prefetch(&self, also: usize) {
        let at = self.0.load(Relaxed).cast_const();
        pmem::prefetch(at);
        pmem::prefetch(at.wrapping_byte_add(also));
    }

    /// Hint that the slot will be filled.
    #[inline]
    pub fn prefetch_for_write(&self) {
        pmem::prefetch_for_write(&self.0);
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        // SAFETY: nobody else has the slot any more.
        drop(unsafe { reference(*self.0.get_mut()) });
    }
}

/// The counted reference that a slot's word is.
///
/// # Safety
/// It comes from [`Arc::into_raw`], and its count is the slot's: the caller alone has the slot, and
/// puts the reference or another word back.
unsafe fn reference<T>(word: *mut T) -> Option<Arc<T>> {
    // SAFETY: the caller's promise.
    (!word.is_null()).then(|| unsafe { Arc::from_raw(word) })
}

impl<T> Deref for Guard<'_, T> {
    type Target = Option<Arc<T>>;

    #[inline]
    fn deref(&self) -> &Option<Arc<T>> {
        &self.held
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Option<Arc<T>> {
        &mut self.held
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        let held = unsafe { ManuallyDrop::take(&mut self.held) };
        let word = held.map_or(std::ptr::null(), Arc::into_raw);
        self.slot.0.store(word.cast_mut(), Release);
    }
}

/// Memory for a counted value, on its way to the cache.
pub struct Blank<T>(UniqueArc<MaybeUninit<T>>);

impl<T> Blank<T> {
    /// Take memory.
    #[inline]
    pub fn new() -> Blank<T> {
        let mut memory = UniqueArc::new_uninit();
        pmem::prefetch_for_write(memory.as_mut_ptr());
        Blank(memory)
    }

    /// Put the value there.
    #[inline]
    pub fn fill(mut self, value: T) -> Arc<T> {
        self.0.write(value);
        // SAFETY: it was initialised just now.
        unsafe { UniqueArc::assume_init(self.0) }.shareable()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_counts_its_reference() {
        let value = Blank::new().fill(7u64);
        let slot = Slot::default();
        assert!(slot.lock().is_none());
        *slot.lock() = Some(value.clone());
        slot.prefetch(0);
        assert_eq!(slot.lock().as_deref(), Some(&7));
        assert_eq!(Arc::strong_count(&value), 2);
        assert!(slot.lock().take_if(|value| **value == 8).is_none());
        drop(slot);
        assert_eq!(Arc::strong_count(&value), 1);
        drop(Blank::<u64>::new());
    }

    #[test]
    fn a_slot_is_locked_by_one_thread_at_a_time() {
        const ROUNDS: u64 = if cfg!(miri) { 50 } else { 10_000 };
        let slot = Slot::default();
        *slot.lock() = Some(Arc::new(0u64));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let mut locked = slot.lock();
                        let next = locked.as_deref().map_or(0, |count| count + 1);
                        *locked = Some(Arc::new(next));
                    }
                });
            }
        });
        assert_eq!(slot.lock().as_deref(), Some(&(3 * ROUNDS)));
    }
}
