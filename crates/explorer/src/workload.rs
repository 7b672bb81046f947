//! What is run: a sequence of operations, and how the file system is mounted for it.

use crate::engine::{Engine, Mode, Shortage, Thresholds};
use crate::engines;
use crate::image::Image;
use crate::op::{Op, TO_THE_END};
use pmem::transaction::Aborts;

/// Something to run.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Tells it from all others: the head of a token.
    pub name: String,
    /// What is done.
    pub ops: Vec<Op>,
    /// On which engine.
    pub engine: &'static dyn Engine,
    /// How it is mounted.
    pub mode: Mode,
    /// What persists something runs on a thread of its own, each time: what syncs or searches for
    /// leaks, in mode `sync` everything. So it is in all lives.
    pub threads: bool,
    /// Threads that share the flushing of each batch.
    pub persisters: usize,
    /// Thresholds of the engine.
    pub thresholds: Thresholds,
    /// It commits by transactions of memory, where these will do; which attempts end in an abort.
    /// For domain `cache`.
    pub transactions: Option<Aborts>,
    /// Length of the image, in bytes.
    pub len: u64,
    /// Instead of an empty file system. Operations that fail are no steps then: nobody knows
    /// beforehand which do.
    pub start: Option<Image>,
    /// On that there is so little space that writes wait for what is pending: what has found its
    /// space may be durable without the rest.
    pub is_full: bool,
    /// No operations, but mkfs on a device that is full of this byte.
    pub mkfs: Option<u8>,
    /// Of the syncs behind what prepares, the one of this number fails (M13). For domain `page`.
    pub fails: Option<u64>,
    /// Which allocations fail behind what prepares, if there are so many.
    pub shortage: Option<Shortage>,
    /// What the life behind a kill does, which comes before each fence then; if nothing, any lives
    /// follow, and some kills.
    pub next: Vec<Op>,
    /// The mode of the lives behind a kill, if it is another one. What a crash of these leaves is
    /// judged by what the first promises, as they begin with what that left.
    pub next_mode: Option<Mode>,
    /// The image that it leaves is damaged in this way, and crashes are tried in its repair alone.
    pub damage: Option<u64>,
    /// So many operations at the beginning only prepare: no crash is tried in them.
    pub setup: usize,
}

impl Workload {
    /// On an empty file system of 1 MiB, mode `delayed`.
    pub fn new(name: impl Into<String>, ops: Vec<Op>) -> Workload {
        Workload {
            name: name.into(),
            ops,
            engine: engines::usual(),
            mode: Mode::DELAYED,
            threads: false,
            persisters: 1,
            thresholds: Thresholds::Usual,
            transactions: None,
            len: 1 << 20,
            start: None,
            is_full: false,
            mkfs: None,
            fails: None,
            shortage: None,
            next: Vec::new(),
            next_mode: None,
            damage: None,
            setup: 0,
        }
    }

    /// Whether it leads somewhere on the engine alone that it was made for: it starts from an image
    /// of that, or has to do with what others lack.
    pub fn needs_its_engine(&self) -> bool {
        let lacks = [
            self.start.is_some(),
            self.shortage.is_some(),
            self.damage.is_some(),
            self.fails.is_some(),
            self.ops.iter().any(|op| matches!(op, Op::Cache(_))),
        ];
        lacks.contains(&true)
    }

    /// Whether the search for leaks runs beside what it does.
    pub fn searches(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::Search(_)))
    }

    /// Whether nothing is lost track of when it is unmounted: nothing ever was, or the search for
    /// it has come to its end.
    pub fn ends_clean(&self) -> bool {
        self.start.is_none() || self.ops.contains(&TO_THE_END)
    }

    /// Whether threads run at once in it, so that another run may interleave them otherwise.
    pub fn is_concurrent(&self) -> bool {
        let both = |op: &Op| matches!(op, Op::Both(..));
        self.threads || self.persisters > 1 || self.ops.iter().any(both)
    }
}
