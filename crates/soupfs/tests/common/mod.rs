//! An engine for the judges of `model`: SoupFS on an anonymous pool.

use pmem::transaction::{Aborts, Software, Transactions};
use pmem::{Domain, Options, Pool};
use soupfs::fsck::{CheckOptions, Outcome, check};
use soupfs::{FormatOptions, Mode, MountOptions, SoupFs, format};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vfs::{Clock, FileSystem, SystemClock, Time};

/// Longer than anything takes that ends at all.
const PATIENCE: Duration = Duration::from_secs(120);

/// SoupFS, as the judges mount it.
#[allow(dead_code, reason = "not every test file needs it")]
#[derive(Debug, Clone, Copy)]
pub struct Soup {
    /// Length of the image.
    pub len: u64,
    /// When operations become durable.
    pub mode: Mode,
    /// What the medium promises.
    pub domain: Domain,
    /// Without background threads.
    pub manual: bool,
    /// Threads that share the flushing of a batch.
    pub persisters: usize,
    /// It commits by software transactions, of which these abort: for domain `cache`.
    pub transactions: Option<Aborts>,
}

impl Default for Soup {
    fn default() -> Soup {
        Soup {
            len: 256 << 20,
            mode: Mode::Delayed,
            domain: Domain::Line,
            manual: false,
            persisters: 1,
            transactions: None,
        }
    }
}

/// An empty image, formatted at `time`.
pub fn image(len: u64, domain: Domain, time: Time) -> Arc<Pool> {
    let options = Options {
        domain: Some(domain),
        ..Options::default()
    };
    let pool = Arc::new(Pool::anonymous(len, &options).expect("anonymous memory"));
    let options = FormatOptions {
        uuid: [7; 16],
        label: "test".into(),
        hash_key: [9; 16],
        time,
        owner: (0, 0),
        zeroed: true,
    };
    format(&pool, &options).expect("format");
    pool
}

/// Returns when it is so, which threads of the file system bring about.
///
/// # Panics
/// When it takes longer than it ever may.
#[allow(dead_code, reason = "not every test file needs it")]
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "in vain waited until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the search for lost space has ended; returns the lines that it found.
#[allow(dead_code, reason = "not every test file needs it")]
#[track_caller]
pub fn reclaimed(fs: &SoupFs) -> u64 {
    let mut found = None;
    wait_until("the search for lost space ends", || {
        found = fs.status().reclaimed_lines;
        found.is_some()
    });
    found.expect("it ended")
}

/// A cleanly unmounted image has no flaw, not even a leak.
pub fn audit(pool: &Arc<Pool>) {
    let options = CheckOptions {
        repair: false,
        threads: 1,
    };
    let report = check(pool, &options, &|_| ()).expect("check");
    assert_eq!(
        (report.outcome, report.was_clean),
        (Outcome::Clean, true),
        "{report}"
    );
}

impl Soup {
    /// Mount an image this way.
    #[allow(dead_code, reason = "not every test file needs it")]
    pub fn mount(&self, pool: Arc<Pool>, clock: Arc<dyn Clock>) -> SoupFs {
        let bound = Duration::from_millis(5);
        let software = |aborts| {
            let software = Software::new(Software::LINES_MAX, aborts);
            Arc::new(software) as Arc<dyn Transactions>
        };
        let options = MountOptions {
            mode: self.mode,
            manual: self.manual,
            persisters: self.persisters,
            transactions: self.transactions.map(software),
            bound,
            ..MountOptions::new(clock)
        };
        SoupFs::mount(pool, options).expect("mount")
    }
}

impl model::Engine for Soup {
    type Fs = SoupFs;

    fn make(&self, clock: Arc<dyn Clock>) -> SoupFs {
        self.mount(image(self.len, self.domain, clock.now()), clock)
    }

    fn remount(&self, fs: SoupFs) -> SoupFs {
        let pool = fs.pool().clone();
        let clock = fs.clock().clone();
        fs.unmount().expect("unmount");
        drop(fs);
        audit(&pool);
        self.mount(pool, clock)
    }

    fn settle(&self, fs: &SoupFs) {
        fs.syncfs().expect("syncfs");
    }
}

/// A clock for tests that do not look at times.
#[allow(dead_code, reason = "not every test file needs it")]
pub fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock)
}
