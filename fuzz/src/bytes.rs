//! An input, read from its start; behind its end there are zeros.

/// What is left of an input.
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// All of it.
    pub fn new(input: &'a [u8]) -> Bytes<'a> {
        Bytes(input)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        byte
    }

    /// A number below `end`, at most 256, from the next byte.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    /// A number of 16 bits, from the next two bytes.
    pub fn short(&mut self) -> u64 {
        u64::from(self.byte()) | u64::from(self.byte()) << 8
    }
}
