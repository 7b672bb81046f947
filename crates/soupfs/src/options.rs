//! How to mount.

use pmem::Transactions;
use std::sync::Arc;
use std::time::Duration;
use vfs::Clock;

/// When operations become durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// In the background, within the bound (SoupFS).
    #[default]
    Delayed,
    /// Before the operation returns, by the same steps: changes of names and attributes, not bytes.
    Sync,
    /// Each request as a whole, its bytes with it, before it returns and before anybody sees it
    /// (HOP).
    Strong,
}

/// How to mount.
#[derive(Clone)]
pub struct MountOptions {
    /// When operations become durable.
    pub mode: Mode,
    /// How late the consistent view may be.
    pub bound: Duration,
    /// DRAM for operations that are not persisted: bytes.
    pub backlog_max: u64,
    /// Inodes kept in DRAM beyond those in use.
    pub inodes_max: u64,
    /// Change nothing, not even the journal, but for the memory of a private pool.
    pub read_only: bool,
    /// Threads that share the flushing of a batch, one of them whoever runs it: as many as there
    /// are nodes of memory is a good number. Only domain `line` has more than one.
    pub persisters: usize,
    /// Nothing happens in the background: the caller persists by `syncfs`, and further persisters
    /// take part in every batch. For tests of exact steps.
    pub manual: bool,
    /// What makes transactions of memory, in domain `cache`; in others nothing does. `None`: the
    /// processor, if it has any.
    pub transactions: Option<Arc<dyn Transactions>>,
    /// Thresholds, for tests and measurements: small ones lead to paths that small file systems do
    /// not reach.
    pub knobs: Knobs,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
}

/// Thresholds of the engine that tests may lower, and measurements compare.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Knobs {
    /// A sweep is split: a batch gathers at most so many words of the journal, besides what it
    /// pulls in.
    pub batch_words: Option<usize>,
    /// With so many words of the journal pending a caller persists them itself, or waits.
    pub pending_max: Option<u64>,
    /// Mode `strong`: if pointers to blocks would take more words of a record, the nodes of the
    /// index that have them are copied.
    pub record_words: Option<u64>,
    /// Mode `strong`: bytes of blocks with contents that a record has, at most. More get other
    /// pages.
    pub logged_bytes: Option<u64>,
}

impl MountOptions {
    /// The defaults, with a clock.
    pub fn new(clock: Arc<dyn Clock>) -> MountOptions {
        MountOptions {
            mode: Mode::Delayed,
            bound: Duration::from_secs(1),
            backlog_max: 256 << 20,
            inodes_max: 1 << 20,
            read_only: false,
            persisters: 1,
            manual: false,
            transactions: None,
            knobs: Knobs::default(),
            clock,
        }
    }
}
