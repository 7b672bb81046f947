//! Bits that are clear in a group's bitmap, and whose blocks are not free yet: the transaction that
//! frees them is not committed, so a crash may give them back to who had them.

/// The blocks of a group that are held back: bits, or nothing if there are none.
#[derive(Default)]
pub struct Held {
    /// Freed since the last transaction was copied.
    running: Vec<u8>,
    /// Freed by the transaction that is being committed.
    committing: Vec<u8>,
}

impl Held {
    /// Holds a bit back; true: it is the first one since the last transaction was copied.
    pub fn hold(&mut self, bit: u32, bytes: usize) -> bool {
        let is_first = self.running.is_empty();
        self.running.resize(bytes, 0);
        self.running[bit as usize / 8] |= 1 << (bit % 8);
        is_first
    }

    /// Those of eight bits that are held back, beginning with bit `8 * byte`.
    pub fn byte(&self, byte: usize) -> u8 {
        let of = |bits: &Vec<u8>| bits.get(byte).copied().unwrap_or(0);
        of(&self.running) | of(&self.committing)
    }

    /// The transaction that frees them is copied: their bits.
    pub fn copied(&mut self) -> Vec<u32> {
        let running = std::mem::take(&mut self.running);
        let is_set = |bit: &u32| running[*bit as usize / 8] & (1 << (bit % 8)) != 0;
        let bits = (0..8 * running.len() as u32).filter(is_set).collect();
        self.committing = running;
        bits
    }

    /// That transaction is committed, or (false) it failed, and they are part of the next one. Says
    /// whether they are the first of that.
    pub fn ended(&mut self, is_durable: bool) -> bool {
        let committing = std::mem::take(&mut self.committing);
        if is_durable {
            return false;
        }
        let is_first = self.running.is_empty();
        self.running.resize(committing.len(), 0);
        for (bits, more) in self.running.iter_mut().zip(committing) {
            *bits |= more;
        }
        is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_is_held_until_the_transaction_that_freed_it_is_committed() {
        let mut held = Held::default();
        assert!(held.hold(9, 4));
        assert!(!held.hold(10, 4));
        assert_eq!(held.copied(), [9, 10]);
        assert!(held.hold(31, 4));
        assert_eq!((held.byte(1), held.byte(3)), (0b110, 0x80));
        assert!(!held.ended(true));
        assert_eq!((held.byte(1), held.byte(3)), (0, 0x80));
        assert_eq!(held.copied(), [31]);
        assert!(held.hold(8, 4));
        assert!(!held.ended(false));
        assert_eq!((held.byte(1), held.byte(3)), (1, 0x80));
        assert_eq!(held.copied(), [8, 31]);
    }
}
