//! An image in memory that is brought into one crash state after another, at the cost of what
//! differs.

use crate::trace::Event;
use parking_lot::Mutex;
use pmem::{Domain, LINE, Options, PAGE, Pool, Recorder, StoreKind};
use std::collections::BTreeSet;
use std::sync::Arc;

const LINE_BYTES: usize = LINE as usize;
const PAGE_BYTES: usize = PAGE as usize;

/// Bytes of a line.
pub type Line = [u8; LINE_BYTES];
/// Lines, by number, that differ from the durable image in a crash state.
pub type Overlay = Vec<(u64, Line)>;

/// Notes which pages of a pool were stored to.
#[derive(Default)]
struct Dirty(Mutex<BTreeSet<u64>>);

impl Recorder for Dirty {
    fn store(&self, at: u64, bytes: &[u8], _kind: StoreKind) {
        self.0
            .lock()
            .extend(at / PAGE..(at + bytes.len() as u64).div_ceil(PAGE));
    }
    fn flush(&self, _at: u64, _len: u64) {}
    fn fence(&self) {}
    fn mark(&self, _text: &str) {}
}

/// The durable image, and a pool over a copy of it.
pub struct Scratch {
    image: Vec<u8>,
    pool: Arc<Pool>,
    dirty: Arc<Dirty>,
}

/// A pool of anonymous memory that holds an image.
///
/// # Panics
/// If there is no memory for it.
pub fn pool_of(image: &[u8], domain: Domain, recorder: Option<Arc<dyn Recorder>>) -> Arc<Pool> {
    let pool = Pool::from_bytes(image, &options(domain, recorder));
    Arc::new(pool.expect("anonymous memory"))
}

/// How such a pool is opened.
pub fn options(domain: Domain, recorder: Option<Arc<dyn Recorder>>) -> Options {
    Options {
        domain: Some(domain),
        recorder,
        ..Options::default()
    }
}

impl Scratch {
    /// Over an image.
    pub fn new(image: Vec<u8>) -> Scratch {
        let (pool, dirty) = Scratch::pool(&image);
        Scratch { image, pool, dirty }
    }

    /// A recovery stores the same in every domain; in this one flushes cost nothing.
    fn pool(image: &[u8]) -> (Arc<Pool>, Arc<Dirty>) {
        let dirty = Arc::new(Dirty::default());
        (pool_of(image, Domain::Cache, Some(dirty.clone())), dirty)
    }

    /// A line of the durable image.
    pub fn durable(&self, line: u64) -> Line {
        let mut bytes = [0; LINE_BYTES];
        bytes.copy_from_slice(&self.image[line as usize * LINE_BYTES..][..LINE_BYTES]);
        bytes
    }

    /// Lines become durable.
    pub fn make_durable(&mut self, lines: &[(u64, Line)]) {
        for (line, bytes) in lines {
            self.image[*line as usize * LINE_BYTES..][..LINE_BYTES].copy_from_slice(bytes);
            self.pool.write(line * LINE, bytes);
        }
        self.dirty.0.lock().clear();
    }

    /// What a trace stored becomes durable.
    pub fn apply(&mut self, events: &[Event]) {
        for event in events {
            if let Event::Store { at, bytes, .. } = event {
                self.image[*at as usize..][..bytes.len()].copy_from_slice(bytes);
                self.pool.write(*at, bytes);
            }
        }
        self.dirty.0.lock().clear();
    }

    /// The image of a crash state.
    pub fn image(&self, overlay: &Overlay) -> Vec<u8> {
        let mut image = self.image.clone();
        for (line, bytes) in overlay {
            image[*line as usize * LINE_BYTES..][..LINE_BYTES].copy_from_slice(bytes);
        }
        image
    }

    /// Let `judge` have the pool in a crash state; afterwards it is as durable again.
    pub fn with<T>(&mut self, overlay: &Overlay, judge: impl FnOnce(&Arc<Pool>) -> T) -> T {
        for (line, bytes) in overlay {
            self.pool.write(line * LINE, bytes);
        }
        let result = judge(&self.pool);
        if self.pool.poisoned().is_some() || Arc::strong_count(&self.pool) > 1 {
            (self.pool, self.dirty) = Scratch::pool(&self.image);
            return result;
        }
        let dirty = std::mem::take(&mut *self.dirty.0.lock());
        for page in dirty {
            self.pool.write(
                page * PAGE,
                &self.image[page as usize * PAGE_BYTES..][..PAGE_BYTES],
            );
        }
        self.dirty.0.lock().clear();
        result
    }
}
