//! Blocks go to the disk: in its order, neighbours together, in waves with one flush behind each.
//! Each wave begins where the one before has ended. The less room there is, the shorter they are:
//! who needs room waits for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use block::{Buffer, Wave};

use crate::fault::{Fault, injected};
use crate::layout::FIRST;
use crate::map::Look;
use crate::store::count;
use crate::{BLOCK, Cache, CacheError};

/// Blocks of a wave, at most.
const WAVE_MAX: usize = 1024;
/// Blocks of a wave that somebody waits for, if he needs no more.
const WAVE_MIN: usize = 64;
/// A wave of the writer has one block of so many that are not dirty.
const PART: usize = 8;
/// How long the writer sleeps if nobody wakes it.
const NAP: Duration = Duration::from_secs(1);

/// A block on its way to the disk.
struct Copy {
    entry: u32,
    version: u32,
    disk: u64,
    is_metadata: bool,
    bytes: Buffer,
}

impl Cache {
    /// Lets the disk have at most `max` blocks that it lacks, and a wave of them at most. The first
    /// block is not among them. Says how many they were.
    ///
    /// # Errors
    /// The disk failed: what it lacks stays dirty.
    pub(crate) fn write_out(&self, max: usize) -> Result<usize, CacheError> {
        let mut next = self.writing.lock();
        self.write_wave(&mut next, max)
    }

    /// The same for who needs room for so many, and found none when so many waves had been written:
    /// if there has been another one since, that has made some.
    pub(crate) fn write_out_for(&self, lacking: usize, waves: u64) -> Result<(), CacheError> {
        let mut next = self.writing.lock();
        if self.waves() == waves {
            self.write_wave(&mut next, lacking.max(WAVE_MIN))?;
        }
        Ok(())
    }

    /// Waves that were written. Changes with the index locked, when their blocks are clean.
    pub(crate) fn waves(&self) -> u64 {
        self.waves.load(Ordering::Relaxed)
    }

    /// Writes a wave from one block of the disk on, and then those before it.
    fn write_wave(&self, next: &mut u64, max: usize) -> Result<usize, CacheError> {
        self.medium.check()?;
        let copies = self.copies(*next, max.min(WAVE_MAX));
        let Some(last) = copies.last().map(|copy| copy.disk) else {
            return Ok(0);
        };
        let mut wave = Wave::new();
        for copy in &copies {
            wave.write(copy.disk * BLOCK, copy.bytes.clone());
        }
        if injected(Fault::CleanEarly) {
            for copy in &copies {
                self.disk
                    .write(copy.disk * BLOCK, vec![copy.bytes.clone()])?;
            }
        } else {
            self.disk.commit(wave)?;
        }
        // If this is lost they are written again, as they are.
        let mut index = self.index.lock();
        for copy in &copies {
            if let Some(state) = index.clean(copy.entry, copy.version) {
                self.medium.set_state(copy.entry, state);
            }
        }
        self.waves.fetch_add(1, Ordering::Relaxed);
        *next = last + 1;
        let metadata = copies.iter().filter(|copy| copy.is_metadata).count();
        count(
            &self.counters.written_out[0],
            (copies.len() - metadata) as u64,
        );
        count(&self.counters.written_out[1], metadata as u64);
        Ok(copies.len())
    }

    /// Blocks that the disk lacks, from one on and then those before it, of transactions that are
    /// committed: readers see no others. One that a commit changes meanwhile is copied before or
    /// behind that, and stays dirty.
    fn copies(&self, next: u64, max: usize) -> Vec<Copy> {
        let dirty: Vec<_> = {
            let index = self.index.lock();
            let (first, next) = (FIRST + 1, next.max(FIRST + 1));
            let before = index.dirty_from(first).take_while(|&disk| disk < next);
            let dirty = index.dirty_from(next).chain(before).take(max);
            let known = dirty.map(|disk| {
                let (entry, known) = index.find(disk).expect("what is dirty is cached");
                (disk, entry, known)
            });
            known.collect()
        };
        let copies = dirty.into_iter().filter_map(|(disk, entry, known)| {
            let mut bytes = Buffer::zeroed(self.block_len(disk));
            match self.map.copy(&self.medium, disk, 0, &mut bytes) {
                Look::Hit => {}
                // Freed meanwhile.
                Look::Miss(_) => return None,
            }
            Some(Copy {
                entry,
                version: known.version,
                disk,
                is_metadata: known.state.is_metadata(),
                bytes,
            })
        });
        copies.collect()
    }

    /// Blocks that may be dirty before the writer begins, and that it leaves.
    pub(crate) fn watermarks(&self) -> (usize, usize) {
        let blocks = self.medium.geometry.blocks as usize;
        (blocks / 2, blocks / 4)
    }

    /// Blocks of the writer's next wave: who finds no room waits for that.
    fn wave_len(&self, dirty: usize) -> usize {
        let blocks = self.medium.geometry.blocks as usize;
        ((blocks - dirty) / PART).clamp(WAVE_MIN, WAVE_MAX)
    }
}

/// A thread that writes to the disk while more than half of a cache is dirty, until a quarter is.
/// It ends when this is dropped.
pub struct Writer {
    cache: Arc<Cache>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts it.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn start(cache: Arc<Cache>) -> std::io::Result<Writer> {
        let is_over = Arc::new(AtomicBool::new(false));
        let thread = {
            let (cache, is_over) = (cache.clone(), is_over.clone());
            let builder = std::thread::Builder::new().name("cache-writer".to_owned());
            builder.spawn(move || work(&cache, &is_over))?
        };
        Ok(Writer {
            cache,
            is_over,
            thread: Some(thread),
        })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        {
            let _index = self.cache.index.lock();
            self.is_over.store(true, Ordering::SeqCst);
        }
        self.cache.is_full.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("cache: the writer panicked; commits write to the disk when they must");
        }
    }
}

fn work(cache: &Cache, is_over: &AtomicBool) {
    let (high, low) = cache.watermarks();
    loop {
        {
            let mut index = cache.index.lock();
            while index.dirty_len() <= high {
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                cache.is_full.wait_for(&mut index, NAP);
            }
        }
        loop {
            let dirty = cache.index.lock().dirty_len();
            if dirty <= low {
                break;
            }
            if is_over.load(Ordering::SeqCst) {
                return;
            }
            if let Err(error) = cache.write_out(cache.wave_len(dirty)) {
                log::error!("cache: {error}");
                return;
            }
        }
    }
}
