//! The number that tells of a directory's moves: see `rename::moving`.

use std::sync::atomic::{
    AtomicU32,
    Ordering::{Relaxed, SeqCst},
};

/// Odd while the directory gets another parent; goes up by two with each such move.
///
/// Who makes one number odd and then looks at another, and who does it the other way round: one of
/// them sees the other's odd number. So all of this is in one order (SeqCst).
#[derive(Default)]
pub struct MoveNumber(AtomicU32);

impl MoveNumber {
    /// What it is now.
    pub fn get(&self) -> u32 {
        self.0.load(SeqCst)
    }

    /// Whether a number says that the directory is being moved.
    pub fn is_odd(number: u32) -> bool {
        !number.is_multiple_of(2)
    }

    /// Begin a move; false: there is another one.
    pub fn begin(&self) -> bool {
        let number = self.0.load(Relaxed);
        let begin = || (self.0).compare_exchange(number, number + 1, SeqCst, Relaxed);
        !MoveNumber::is_odd(number) && begin().is_ok()
    }

    /// End the move that the caller has begun.
    pub fn end(&self) {
        self.0.fetch_add(1, SeqCst);
    }
}
