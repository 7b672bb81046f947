//! How much a step of the search for leaks looks at.

/// Looked at in any case, so that the search ends although others wait all the time. Each may be
/// a page that is read from a disk.
const LEAST: u64 = 32;

/// So much may be looked at; less if somebody begins to wait for the end of the step.
pub struct Allowance<'a> {
    left: u64,
    used: u64,
    is_waited_for: &'a dyn Fn() -> bool,
}

impl<'a> Allowance<'a> {
    /// Entries, inodes, pointers, pages and bits; and who is to ask whether somebody waits.
    pub fn new(all: u64, is_waited_for: &'a dyn Fn() -> bool) -> Allowance<'a> {
        Allowance {
            left: all,
            used: 0,
            is_waited_for,
        }
    }

    /// So much was looked at.
    pub fn spend(&mut self, work: u64) {
        self.left = self.left.saturating_sub(work);
        self.used += work;
    }

    /// The step is to end.
    pub fn is_spent(&self) -> bool {
        self.left == 0 || self.used >= LEAST && (self.is_waited_for)()
    }

    /// What was looked at.
    #[cfg(test)]
    pub fn used(&self) -> u64 {
        self.used
    }
}
