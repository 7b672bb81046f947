//! An image in memory that is brought into one crash state after another, at the cost of what
//! differs.

use crate::disk::Disk;
use crate::medium::Rules;
use crate::trace::{Event, Trace};
use parking_lot::Mutex;
use pmem::{Domain, LINE, Options, PAGE, Pool, Recorder, StoreKind};
use std::collections::BTreeSet;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of a line.
pub const LINE_BYTES: usize = LINE as usize;
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

/// What an engine runs on.
#[derive(Clone)]
pub enum Device {
    /// Memory.
    Memory(Arc<Pool>),
    /// A disk.
    Disk(Arc<Disk>),
}

impl Device {
    /// One in memory that holds an image, recorded if there is a trace.
    ///
    /// # Panics
    /// If there is no memory for it.
    pub fn new(image: &[u8], rules: Rules, trace: Option<Arc<Trace>>) -> Device {
        match rules {
            Rules::Lines(domain) => {
                let recorder = trace.map(|trace| trace as Arc<dyn Recorder>);
                Device::Memory(pool_of(image, domain, recorder))
            }
            Rules::Sectors => Device::Disk(Arc::new(Disk::new(image, trace))),
        }
    }

    /// One that holds an image and that nobody records.
    ///
    /// # Panics
    /// If there is no memory for it.
    pub fn of(image: &[u8], rules: Rules) -> Device {
        match rules {
            // Flushes cost nothing there.
            Rules::Lines(_) => Device::new(image, Rules::Lines(Domain::Cache), None),
            rules => Device::new(image, rules, None),
        }
    }

    /// The memory.
    ///
    /// # Panics
    /// If it is a disk: the engine does not run on disks.
    pub fn pool(&self) -> &Arc<Pool> {
        match self {
            Device::Memory(pool) => pool,
            Device::Disk(_) => panic!("an engine for memory is run on a disk"),
        }
    }

    /// The disk.
    ///
    /// # Panics
    /// If it is memory: the engine does not run on memory.
    pub fn disk(&self) -> &Arc<Disk> {
        match self {
            Device::Disk(disk) => disk,
            Device::Memory(_) => panic!("an engine for disks is run on memory"),
        }
    }

    /// What it holds.
    pub fn image(&self) -> Vec<u8> {
        match self {
            Device::Memory(pool) => pool.snapshot(),
            Device::Disk(disk) => disk.image(),
        }
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        match self {
            Device::Memory(pool) => pool.write(at, bytes),
            Device::Disk(disk) => disk.put(at, bytes),
        }
    }

    /// Whether it can be put into another state: it works, and nobody else has it.
    fn is_reusable(&self) -> bool {
        match self {
            Device::Memory(pool) => pool.poisoned().is_none() && Arc::strong_count(pool) == 1,
            Device::Disk(disk) => Arc::strong_count(disk) == 1,
        }
    }
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

/// The durable image, and a device with a copy of it.
pub struct Scratch {
    image: Vec<u8>,
    rules: Rules,
    device: Device,
    dirty: Arc<Dirty>,
    /// XOR of the hashes of the lines that were made durable, old and new: the base of a state's
    /// hash.
    hash: u64,
}

/// The hash of a line in an image; that of an image is the XOR of its lines'.
fn hash(line: u64, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, line)
}

impl Scratch {
    /// Over an image of a memory.
    pub fn new(image: Vec<u8>) -> Scratch {
        Scratch::on(Rules::Lines(Domain::Cache), image)
    }

    /// Over an image.
    pub fn on(rules: Rules, image: Vec<u8>) -> Scratch {
        let (device, dirty) = Scratch::device(rules, &image);
        Scratch {
            image,
            rules,
            device,
            dirty,
            hash: 0,
        }
    }

    fn device(rules: Rules, image: &[u8]) -> (Device, Arc<Dirty>) {
        let dirty = Arc::new(Dirty::default());
        let device = match rules {
            // A recovery stores the same in every domain; in this one flushes cost nothing.
            Rules::Lines(_) => Device::Memory(pool_of(image, Domain::Cache, Some(dirty.clone()))),
            rules => Device::of(image, rules),
        };
        (device, dirty)
    }

    /// The pages that were stored to since the last call.
    fn take_dirty(&self) -> BTreeSet<u64> {
        match &self.device {
            Device::Memory(_) => std::mem::take(&mut *self.dirty.0.lock()),
            Device::Disk(disk) => disk.take_written(),
        }
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
            self.hash ^= hash(*line, &self.durable(*line)) ^ hash(*line, bytes);
            self.image[*line as usize * LINE_BYTES..][..LINE_BYTES].copy_from_slice(bytes);
            self.device.put(line * LINE, bytes);
        }
        self.take_dirty();
    }

    /// What a trace stored becomes durable.
    pub fn apply(&mut self, events: &[Event]) {
        for event in events {
            if let Event::Store { at, bytes, .. } = event {
                self.image[*at as usize..][..bytes.len()].copy_from_slice(bytes);
                self.device.put(*at, bytes);
            }
        }
        self.take_dirty();
    }

    /// A number that two states of a trace have in common if, and almost certainly only if, their
    /// images are the same.
    pub fn hash(&self, overlay: &Overlay) -> u64 {
        overlay.iter().fold(self.hash, |n, (line, bytes)| {
            n ^ hash(*line, bytes) ^ hash(*line, &self.durable(*line))
        })
    }

    /// The image of a crash state.
    pub fn image(&self, overlay: &Overlay) -> Vec<u8> {
        let mut image = self.image.clone();
        for (line, bytes) in overlay {
            image[*line as usize * LINE_BYTES..][..LINE_BYTES].copy_from_slice(bytes);
        }
        image
    }

    /// Let `judge` have the device in a crash state; afterwards it is as durable again.
    pub fn with<T>(&mut self, overlay: &Overlay, judge: impl FnOnce(&Device) -> T) -> T {
        for (line, bytes) in overlay {
            self.device.put(line * LINE, bytes);
        }
        let result = judge(&self.device);
        if !self.device.is_reusable() {
            (self.device, self.dirty) = Scratch::device(self.rules, &self.image);
            return result;
        }
        for page in self.take_dirty() {
            let at = page as usize * PAGE_BYTES;
            let bytes = &self.image[at..(at + PAGE_BYTES).min(self.image.len())];
            self.device.put(page * PAGE, bytes);
        }
        self.take_dirty();
        result
    }
}
