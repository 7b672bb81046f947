//! States that were judged before.
//!
//! Once a cache is open, whatever reads it reads this: its superblock, the entries that lead to a
//! block, those blocks, and the disk. The rest of the memory (the ring, the log, blocks that nobody
//! leads to) is read by recovery alone. So each state is opened, and recovered, by itself; and
//! then:
//!
//! 1. *It holds the same* as one that was judged: that verdict is its own.
//! 2. *It shows the same*, in other places or with other blocks clean: what the auditor and a mount
//!    find follows from what is shown. Whether this is what is read, and what the disk gets, does
//!    not: both are tried. An image with orphans is judged anew, as a mount commits then.
//! 3. Else it is judged in full.
//!
//! A bug that is put into the cache makes all of this void ([`forget`]).

use super::{Device, is_bound, open};
use crate::image::{Image, Page};
use crate::tree::{Flaw, Tree};
use cache::layout::{SUPERBLOCK_LEN, State, Superblock};
use ffs::CacheStore;
use pmem::{PAGE, Pool};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Verdicts of each kind that a thread keeps; with more, it begins anew.
const VERDICTS_MAX: usize = 2000;
/// Hashes of pages that a thread keeps: 16 MiB of pages stay with them.
const PAGES_MAX: usize = 4096;

/// How often the cache became another one.
static CHANGES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static KNOWN: RefCell<Known> = RefCell::default();
}

/// The cache has another bug now, or none: no verdict holds any more.
pub fn forget() {
    CHANGES.fetch_add(1, Ordering::SeqCst);
}

/// What a thread has judged. All of it was sound.
#[derive(Default)]
struct Known {
    changes: u64,
    /// What was found, by the hash of what is held.
    held: HashMap<u128, Arc<Tree>>,
    /// The same by the hash of what is shown, if there are no orphans.
    shown: HashMap<u128, Arc<Tree>>,
    /// Hashes of pages by their address. While a page is here nobody changes it: it is shared.
    pages: HashMap<usize, (Arc<Page>, u128)>,
}

/// What an open cache and its disk hold.
struct Held {
    /// The hash of all of it.
    all: u128,
    /// Of each block of the disk, as it is through the cache.
    shown: Vec<u128>,
}

/// What is found in a state, if it is sound. `judge` judges it in full.
///
/// # Errors
/// What is wrong with it.
pub fn sound(
    device: &Device,
    judge: impl FnOnce() -> Result<Arc<Tree>, Flaw>,
) -> Result<Arc<Tree>, Flaw> {
    if !matches!(is_bound(device), Ok(true)) {
        return judge();
    }
    let cache = open(device).map_err(|e| format!("opening the cache: {e}"))?;
    let Some(held) = KNOWN.with_borrow_mut(|known| known.look(device)) else {
        return judge();
    };
    let mut shown = Xxh3::new();
    update(&mut shown, &held.shown);
    let shown = shown.digest128();
    let (all_known, shown_known) = KNOWN.with_borrow(|known| {
        let all = known.held.get(&held.all).cloned();
        (all, known.shown.get(&shown).cloned())
    });
    if let Some(tree) = all_known {
        return Ok(tree);
    }
    if let Some(tree) = shown_known {
        let mut read = vec![0; held.shown.len() * PAGE as usize];
        let failed = |e| format!("reading through the cache: {e}");
        cache.read(0, &mut read).map_err(failed)?;
        let read: Vec<u128> = read.chunks(PAGE as usize).map(xxh3_128).collect();
        same(&read, &held.shown, "read through the cache")?;
        let failed = |e| format!("flushing the cache: {e}");
        cache.flush().map_err(failed)?;
        let alone = KNOWN.with_borrow_mut(|known| known.disk(device));
        same(&alone, &held.shown, "once flushed")?;
        KNOWN.with_borrow_mut(|known| known.held.insert(held.all, tree.clone()));
        return Ok(tree);
    }
    let superblock = ffs::superblock(&CacheStore::disk(&Arc::new(cache)));
    let has_orphans = superblock.map_or(true, |superblock| superblock.last_orphan.get() != 0);
    let tree = judge()?;
    KNOWN.with_borrow_mut(|known| {
        known.held.insert(held.all, tree.clone());
        if !has_orphans {
            known.shown.insert(shown, tree.clone());
        }
    });
    Ok(tree)
}

/// Whether blocks are those that entries and the disk have.
fn same(found: &[u128], shown: &[u128], when: &str) -> Result<(), Flaw> {
    let mut blocks = found.iter().zip(shown);
    match blocks.position(|(found, shown)| found != shown) {
        Some(block) => Err(format!("{when} the disk has other bytes in block {block}")),
        None => Ok(()),
    }
}

impl Known {
    /// What is held; `None`: that makes no sense.
    fn look(&mut self, device: &Device) -> Option<Held> {
        let changes = CHANGES.load(Ordering::SeqCst);
        let verdicts = self.held.len().max(self.shown.len());
        if self.changes != changes || verdicts >= VERDICTS_MAX {
            (self.changes, self.held, self.shown) = (changes, HashMap::new(), HashMap::new());
        }
        let pool = device.pool();
        let geometry = geometry(pool)?;
        let mut shown = self.disk(device);
        let mut all = Xxh3::new();
        all.update(&geometry.bytes());
        update(&mut all, &shown);
        let mut block = [0; PAGE as usize];
        for entry in 0..geometry.blocks {
            let at = geometry.entries_at() + entry * 16;
            let (disk, state) = (pool.load(at), State::of(pool.load(at + 8)));
            let Some(number) = state.block() else {
                continue;
            };
            pool.read(geometry.blocks_at() + u64::from(number) * PAGE, &mut block);
            let hash = xxh3_128(&block);
            for word in [entry, disk, state.word()] {
                all.update(&word.to_le_bytes());
            }
            all.update(&hash.to_le_bytes());
            *shown.get_mut(disk as usize)? = hash;
        }
        let all = all.digest128();
        Some(Held { all, shown })
    }

    /// The hashes of a disk's blocks.
    fn disk(&mut self, device: &Device) -> Vec<u128> {
        if self.pages.len() >= PAGES_MAX {
            self.pages.clear();
        }
        device.disk().look(|image, first| self.pages(image, first))
    }

    fn pages(&mut self, image: &Image, first: u64) -> Vec<u128> {
        let mut hashes = vec![0; (image.len() / PAGE - first) as usize];
        for (number, page) in image.shared_pages(first) {
            let known = self.pages.entry(Arc::as_ptr(page) as usize);
            let (_, hash) = known.or_insert_with(|| (page.clone(), xxh3_128(&page[..])));
            hashes[(number - first) as usize] = *hash;
        }
        // A page of zeros may be stored, or not.
        let zeros = xxh3_128(&[0; PAGE as usize]);
        hashes.iter_mut().for_each(|hash| {
            if *hash == 0 {
                *hash = zeros;
            }
        });
        hashes
    }
}

/// Where everything lies in a memory.
fn geometry(pool: &Pool) -> Option<Superblock> {
    let read = |at: u64| {
        let mut bytes = [0; SUPERBLOCK_LEN];
        pool.read(at, &mut bytes);
        Superblock::read(&bytes, pool.len()).ok()
    };
    read(0).or_else(|| read(pool.len() - PAGE))
}

fn update(hash: &mut Xxh3, by: &[u128]) {
    by.iter().for_each(|one| hash.update(&one.to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::engines::ffs::cached::ENGINE;
    use crate::families::by_name;
    use crate::rules::{MEMORY_LEN, Rules};
    use crate::run::Run;
    use parking_lot::{Mutex, MutexGuard};
    use pmem::Domain;

    /// To forget is to forget for all.
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock()
    }

    /// An image that a crash left of a cache with blocks that the disk lacks.
    fn crashed() -> Image {
        let workload = by_name("cache-6").expect("a workload of this name");
        let run = Run::record(workload, Rules::Both(Domain::Line), false).expect("it runs");
        run.some_image(1)
    }

    fn device(image: &Image) -> Device {
        Device::of(image, Rules::Both(Domain::Cache))
    }

    /// Judges an image; `None`: it would be judged in full.
    fn known(image: &Image) -> Option<Result<(), Flaw>> {
        const FULL: &str = "in full";
        match sound(&device(image), || Err(FULL.into())) {
            Err(what) if what == FULL => None,
            known => Some(known.map(drop)),
        }
    }

    /// Places in an image: of a block of the memory that an entry leads to, of one that none does,
    /// and of the state of an entry that is dirty, and whose block the disk has not.
    fn places(image: &Image) -> (u64, u64, u64) {
        let device = device(image);
        drop(open(&device).expect("it is opened"));
        let pool = device.pool();
        let geometry = geometry(pool).expect("there is a superblock");
        let state = |entry: u64| State::of(pool.load(geometry.entries_at() + entry * 16 + 8));
        let used: Vec<u32> = (0..geometry.blocks)
            .filter_map(|e| state(e).block())
            .collect();
        let free = (0..geometry.blocks as u32).find(|block| !used.contains(block));
        let at = |block: u32| geometry.blocks_at() + u64::from(block) * PAGE;
        let lacks = |entry: &u64| {
            let mut bytes = [[0; PAGE as usize]; 2];
            let disk = pool.load(geometry.entries_at() + entry * 16);
            let Some(block) = state(*entry).block() else {
                return false;
            };
            pool.read(at(block), &mut bytes[0]);
            device.disk().read(disk * PAGE, &mut bytes[1]);
            state(*entry).is_dirty() && disk != 0 && bytes[0] != bytes[1]
        };
        let dirty = (0..geometry.blocks).find(lacks).expect("one that is dirty");
        (
            at(used[0]),
            at(free.expect("one that is free")),
            geometry.entries_at() + dirty * 16 + 8,
        )
    }

    #[test]
    fn a_state_is_judged_in_full_once() {
        let _alone = alone();
        let image = crashed();
        assert_eq!(known(&image), None);
        let tree = ENGINE.sound(&device(&image)).expect("it is sound");
        assert_eq!(known(&image), Some(Ok(())));
        let found = (&ENGINE as &dyn Engine).found(&device(&image));
        assert!(found.as_ref() == Ok(&*tree), "it says what is found");
        forget();
        assert_eq!(known(&image), None, "of another cache");
    }

    #[test]
    fn what_only_recovery_reads_makes_no_other_state() {
        let _alone = alone();
        let mut image = crashed();
        ENGINE.sound(&device(&image)).expect("it is sound");
        let (_, free, _) = places(&image);
        image.write(free, &[9; 64]);
        assert_eq!(known(&image), Some(Ok(())));
    }

    #[test]
    fn other_bytes_are_judged_in_full() {
        let _alone = alone();
        let image = crashed();
        ENGINE.sound(&device(&image)).expect("it is sound");
        let (used, ..) = places(&image);
        let mut other = image.clone();
        other.write(used, &[9; 64]);
        assert_eq!(known(&other), None, "in the memory");
        let mut other = image;
        other.write(other.len() - PAGE, &[9; 64]);
        assert_eq!(known(&other), None, "on the disk");
        assert!(other.len() > MEMORY_LEN);
    }

    /// It shows what was judged, and the disk never gets it.
    #[test]
    fn a_block_that_passes_for_clean_is_noticed_in_a_state_that_shows_what_was_judged() {
        let _alone = alone();
        let mut image = crashed();
        ENGINE.sound(&device(&image)).expect("it is sound");
        let (.., state) = places(&image);
        let mut word = [0; 8];
        image.read(state, &mut word);
        let clean = State::of(u64::from_le_bytes(word)).cleaned();
        image.write(state, &clean.word().to_le_bytes());
        let objection = known(&image).expect("what it shows is known");
        assert!(objection.is_err_and(|what| what.contains("once flushed")));
    }
}
