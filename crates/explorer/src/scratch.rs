//! An image in memory that is brought into one crash state after another, at the cost of what
//! differs.

use crate::disk::Disk;
use crate::image::{Image, Line, Overlay, Page, hash};
use crate::rules::{MEMORY_LEN, Rules, is_memory};
use crate::trace::{Event, Trace};
use parking_lot::Mutex;
use pmem::{Domain, LINE, Options, PAGE, Pool, Recorder, StoreKind};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

const PAGE_BYTES: usize = PAGE as usize;
/// A page of zeros.
static ZEROS: Page = [0; PAGE_BYTES];

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
    /// A memory, and a disk behind it.
    Both(Arc<Pool>, Arc<Disk>),
}

impl Device {
    /// One in memory that holds an image, recorded if there is a trace.
    ///
    /// # Panics
    /// If there is no memory for it.
    pub fn new(image: &Image, rules: Rules, trace: Option<Arc<Trace>>) -> Device {
        let recorder = trace.clone().map(|trace| trace as Arc<dyn Recorder>);
        Device::with(image, rules, recorder, trace)
    }

    /// The same with other recorders of the memory and of the disk.
    fn with(
        image: &Image,
        rules: Rules,
        recorder: Option<Arc<dyn Recorder>>,
        trace: Option<Arc<Trace>>,
    ) -> Device {
        match rules {
            Rules::Lines(domain) => Device::Memory(Arc::new(pool_of(image, domain, recorder))),
            Rules::Sectors => Device::Disk(Arc::new(Disk::new(image.clone(), trace))),
            Rules::Both(domain) => {
                let pool = pool_of_first(image, MEMORY_LEN, domain, recorder);
                let disk = Disk::behind(MEMORY_LEN, image.clone(), trace);
                Device::Both(Arc::new(pool), Arc::new(disk))
            }
        }
    }

    /// One that holds an image and that nobody records.
    ///
    /// # Panics
    /// If there is no memory for it.
    pub fn of(image: &Image, rules: Rules) -> Device {
        Device::new(image, idle(rules), None)
    }

    /// The memory.
    ///
    /// # Panics
    /// If it is a disk: the engine does not run on disks.
    pub fn pool(&self) -> &Arc<Pool> {
        match self {
            Device::Memory(pool) | Device::Both(pool, _) => pool,
            Device::Disk(_) => panic!("an engine for memory is run on a disk"),
        }
    }

    /// The disk.
    ///
    /// # Panics
    /// If it is memory: the engine does not run on memory.
    pub fn disk(&self) -> &Arc<Disk> {
        match self {
            Device::Disk(disk) | Device::Both(_, disk) => disk,
            Device::Memory(_) => panic!("an engine for disks is run on memory"),
        }
    }

    /// What it holds.
    pub fn image(&self) -> Image {
        let (pool, mut image) = match self {
            Device::Memory(pool) => (pool, Image::zeros(pool.len())),
            Device::Disk(disk) => return disk.image(),
            Device::Both(pool, disk) => (pool, disk.image()),
        };
        let mut bytes = [0; PAGE_BYTES];
        for page in pool.touched() {
            pool.read(page * PAGE, &mut bytes);
            if bytes != *image.page(page).unwrap_or(&ZEROS) {
                image.write(page * PAGE, &bytes);
            }
        }
        image
    }

    /// Whether it holds an image; if not, a page that differs, by number.
    ///
    /// # Errors
    /// That page.
    pub fn holds(&self, image: &Image) -> Result<(), u64> {
        let held = self.image();
        let page = |image: &'_ Image, number| *image.page(number).unwrap_or(&ZEROS);
        let mut unshared = image.unshared(&held);
        let differs = unshared.find(|&number| page(image, number) != page(&held, number));
        differs.map_or(Ok(()), Err)
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        match self {
            Device::Memory(pool) => pool.write(at, bytes),
            Device::Both(pool, _) if is_memory(at) => pool.write(at, bytes),
            Device::Disk(disk) | Device::Both(_, disk) => disk.put(at, bytes),
        }
    }

    /// Whether it can be put into another state: it works, and nobody else has it.
    fn is_reusable(&self) -> bool {
        let has_pool = |pool: &Arc<Pool>| Arc::strong_count(pool) == 1 && pool.poisoned().is_none();
        match self {
            Device::Memory(pool) => has_pool(pool),
            Device::Disk(disk) => Arc::strong_count(disk) == 1,
            Device::Both(pool, disk) => has_pool(pool) && Arc::strong_count(disk) == 1,
        }
    }
}

/// The rules of a medium on which crashes are not looked at: of a memory, those by which flushes
/// cost nothing. A recovery stores the same by all of them.
fn idle(rules: Rules) -> Rules {
    match rules {
        Rules::Lines(_) => Rules::Lines(Domain::Cache),
        Rules::Sectors => Rules::Sectors,
        Rules::Both(_) => Rules::Both(Domain::Cache),
    }
}

/// A pool of anonymous memory that holds an image.
///
/// # Panics
/// If there is no memory for it.
pub fn pool_of(image: &Image, domain: Domain, recorder: Option<Arc<dyn Recorder>>) -> Pool {
    pool_of_first(image, image.len(), domain, recorder)
}

/// The same of the first bytes of an image, of whole pages.
fn pool_of_first(
    image: &Image,
    len: u64,
    domain: Domain,
    recorder: Option<Arc<dyn Recorder>>,
) -> Pool {
    let options = Options {
        domain: Some(domain),
        recorder,
        ..Options::default()
    };
    let pages = image.pages().take_while(|(number, _)| number * PAGE < len);
    let parts = pages.map(|(number, page)| (number * PAGE, &page[..]));
    Pool::from_parts(len, parts, &options).expect("anonymous memory")
}

/// A device, and what tells which pages of it were stored to.
struct Watched {
    device: Device,
    rules: Rules,
    dirty: Arc<Dirty>,
}

thread_local! {
    /// Devices that nobody uses, each with the image that it holds: making one costs more than
    /// loading another image.
    static SPARE: RefCell<Vec<(Watched, Image)>> = const { RefCell::new(Vec::new()) };
}

/// Most spare devices of a thread.
const SPARE_MAX: usize = 6;

impl Watched {
    /// A spare one, or a new one. It holds an image.
    fn with(rules: Rules, image: &Image) -> Watched {
        let rules = idle(rules);
        let fits =
            |(spare, holds): &(Watched, Image)| spare.rules == rules && holds.len() == image.len();
        let spare = SPARE.with_borrow_mut(|spares| {
            let fitting = spares.iter().position(fits)?;
            Some(spares.remove(fitting))
        });
        let Some((spare, held)) = spare else {
            return Watched::new(rules, image);
        };
        spare.put_pages(image.unshared(&held), image);
        spare
    }

    fn new(rules: Rules, image: &Image) -> Watched {
        let dirty = Arc::new(Dirty::default());
        let device = Device::with(image, rules, Some(dirty.clone()), None);
        Watched {
            device,
            rules,
            dirty,
        }
    }

    fn put_pages(&self, pages: impl IntoIterator<Item = u64>, image: &Image) {
        for page in pages {
            let bytes = image.page(page).unwrap_or(&ZEROS);
            self.device.put(page * PAGE, bytes);
        }
        self.take_dirty();
    }

    /// The pages that were stored to since the last call.
    fn take_dirty(&self) -> BTreeSet<u64> {
        let mut pages = std::mem::take(&mut *self.dirty.0.lock());
        if let Device::Disk(disk) | Device::Both(_, disk) = &self.device {
            pages.append(&mut disk.take_written());
        }
        pages
    }

    /// Keep it for another use. It holds an image.
    fn spare(self, image: Image) {
        if !self.device.is_reusable() {
            return;
        }
        // When the thread ends, nothing is kept any more.
        let _ = SPARE.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            spares.truncate(SPARE_MAX - 1);
            spares.insert(0, (self, image));
        });
    }
}

/// The durable image, and a device that is brought into states of it.
pub struct Scratch {
    image: Image,
    rules: Rules,
    /// From when it is first needed.
    watched: Option<Watched>,
    /// Where the image was stored to since the device was brought up to it: offsets and lengths.
    behind: Vec<(u64, usize)>,
    /// The hash of the image, unless it is to be found anew.
    hash: Option<u128>,
}

impl Scratch {
    /// Over an image of a memory.
    pub fn new(image: impl Into<Image>) -> Scratch {
        Scratch::on(Rules::Lines(Domain::Cache), image.into())
    }

    /// Over an image.
    pub fn on(rules: Rules, image: Image) -> Scratch {
        Scratch {
            hash: image.known_hash(),
            image,
            rules,
            watched: None,
            behind: Vec::new(),
        }
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        self.image.write(at, bytes);
        if self.watched.is_some() {
            self.behind.push((at, bytes.len()));
        }
    }

    /// A line of the durable image.
    pub fn durable(&self, line: u64) -> Line {
        self.image.line(line)
    }

    /// Lines become durable.
    pub fn make_durable(&mut self, lines: &[(u64, Line)]) {
        for (line, bytes) in lines {
            if let Some(all) = &mut self.hash {
                *all ^= hash(*line, &self.image.line(*line)) ^ hash(*line, bytes);
            }
            self.write(line * LINE, bytes);
        }
    }

    /// What a trace stored becomes durable.
    pub fn apply(&mut self, events: &[Event]) {
        self.hash = None;
        for event in events {
            match event {
                Event::Store { at, bytes, .. } => self.write(*at, bytes),
                Event::Together(words) => {
                    for (at, word) in words {
                        self.write(*at, &word.to_le_bytes());
                    }
                }
                _ => {}
            }
        }
    }

    /// A number that two states have in common if, and almost certainly only if, their images are
    /// the same.
    pub fn hash(&mut self, overlay: &Overlay) -> u128 {
        let durable = *self.hash.get_or_insert_with(|| self.image.hash());
        self.with_overlay(durable, overlay)
    }

    /// The hash of a state, from that of the durable image.
    fn with_overlay(&self, durable: u128, overlay: &Overlay) -> u128 {
        overlay.iter().fold(durable, |n, (line, bytes)| {
            n ^ hash(*line, bytes) ^ hash(*line, &self.durable(*line))
        })
    }

    /// The image of a crash state.
    pub fn image(&self, overlay: &Overlay) -> Image {
        let image = self.image.with(overlay);
        match self.hash {
            Some(durable) => image.hashed(self.with_overlay(durable, overlay)),
            None => image,
        }
    }

    /// Bytes of the image, and the rules of the devices that are brought into states of it.
    pub(crate) fn kind(&self) -> (u64, Rules) {
        (self.image.len(), idle(self.rules))
    }

    /// A device that holds the durable image.
    fn device(&mut self) -> Watched {
        let Some(watched) = self.watched.take() else {
            return Watched::with(self.rules, &self.image);
        };
        let mut bytes = Vec::new();
        for (at, len) in self.behind.drain(..) {
            bytes.resize(len, 0);
            self.image.read(at, &mut bytes);
            watched.device.put(at, &bytes);
        }
        watched.take_dirty();
        watched
    }

    /// Let `judge` have the device in a crash state.
    pub fn with<T>(&mut self, overlay: &Overlay, judge: impl FnOnce(&Device) -> T) -> T {
        let watched = self.device();
        for (line, bytes) in overlay {
            watched.device.put(line * LINE, bytes);
        }
        let result = judge(&watched.device);
        if watched.device.is_reusable() {
            watched.put_pages(watched.take_dirty(), &self.image);
            self.watched = Some(watched);
        }
        result
    }

    /// Let `judge` have the device with the durable image.
    pub fn look<T>(&mut self, judge: impl FnOnce(&Device) -> T) -> T {
        self.with(&Overlay::new(), judge)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.watched.is_some() {
            self.device()
                .spare(std::mem::replace(&mut self.image, Image::zeros(0)));
        }
    }
}
