//! SoupFS, as the explorer knows it.

mod damage;
#[cfg(test)]
mod tests;

use crate::engine::{Census, Engine, Mode, Mounted, Mounting, POISON, Thresholds, Volume};
use crate::image::Image;
use crate::op::Side;
use crate::rules::Rules;
use crate::scratch::Device;
use crate::trace::Event;
use crate::tree::{Flaw, Tree};
use parking_lot::Mutex;
use pmem::transaction::{Software, Transactions};
use pmem::{Domain, LINE, PAGE};
use siphasher::sip::SipHasher13;
use soupfs::audit::{Class, Problem};
use soupfs::fsck::{CheckOptions, Outcome, Report, check};
use soupfs::layout::{Geometry, LINES_PER_PAGE, REGION_PAGES, bucket, state};
use soupfs::{FormatOptions, Knobs, MountOptions, SoupFs, format};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vfs::{SystemClock, Time};

/// The engine.
pub static ENGINE: SoupFsEngine = SoupFsEngine;

/// The key under which all images here hash names.
const HASH_KEY: [u8; 16] = [9; 16];
/// The bucket that clashing names are in. If it is split, all of its parts stay in its stripe.
const BUCKET: u64 = 0;
/// Journal words of a batch: any operation on a name takes as many, so that a sweep is split
/// between any two.
const BATCH_WORDS: usize = 1;
/// Journal words that may be pending: those of a directory and of two of its operations.
const PENDING_MAX: u64 = 13;
/// Words of a record that pointers to blocks may take: the nodes of files of some blocks are
/// copied.
const RECORD_WORDS: u64 = 2;
/// Pages at the beginning of a region that hold poison, if there are several.
const POISONED: u64 = 1024;
/// The reclaimer of so small an image ends within this.
const PATIENCE: Duration = Duration::from_secs(60);

/// SoupFS.
pub struct SoupFsEngine;

impl Engine for SoupFsEngine {
    fn name(&self) -> &'static str {
        "soupfs"
    }

    fn modes(&self) -> &'static [Mode] {
        &[Mode::DELAYED, Mode::SYNC, Mode::STRONG]
    }

    fn empty(&self, len: u64, _: Mode) -> Image {
        static MADE: Mutex<BTreeMap<u64, Image>> = Mutex::new(BTreeMap::new());
        let mut made = MADE.lock();
        made.entry(len).or_insert_with(|| empty(len)).clone()
    }

    fn region(&self) -> Option<u64> {
        Some(REGION_PAGES * PAGE)
    }

    fn format(&self, device: &Device) -> Result<(), Flaw> {
        format(device.pool(), &format_options(false)).map_err(|e| e.to_string())
    }

    fn mount(&self, device: &Device, how: &Mounting) -> Result<Box<dyn Mounted>, Flaw> {
        let options = MountOptions {
            mode: match how.mode {
                Mode::SYNC => soupfs::Mode::Sync,
                Mode::STRONG => soupfs::Mode::Strong,
                _ => soupfs::Mode::Delayed,
            },
            persisters: how.persisters,
            manual: true,
            knobs: knobs(how.thresholds),
            transactions: how.transactions.map(|aborts| {
                let software = Software::new(Software::LINES_MAX, aborts);
                Arc::new(software) as Arc<dyn Transactions>
            }),
            ..MountOptions::new(how.clock.clone())
        };
        let fs =
            SoupFs::mount(device.pool().clone(), options).map_err(|e| format!("mount: {e}"))?;
        if how.searches {
            let begun = fs.begin_search();
            begun.map_err(|e| format!("the search for leaks: {e}"))?;
        }
        Ok(Box::new(Side::new(fs)))
    }

    fn is_clean(&self, device: &Device) -> Result<bool, Flaw> {
        let image = soupfs::inspect(device.pool()).map_err(|e| e.to_string())?;
        Ok(image.clean)
    }

    fn edition(&self) -> Option<u64> {
        Some(pmem::fault::all_injected())
    }

    fn audit(&self, device: &Device) -> Result<(), Flaw> {
        let report = fsck(device, false)?;
        let bad = report
            .left
            .iter()
            .any(|f| !may_be_left(f.problem) || report.was_clean);
        match bad || report.more > 0 {
            true => Err(format!("audit:\n{report}")),
            false => Ok(()),
        }
    }

    fn flawless(&self, device: &Device) -> Result<Census, Flaw> {
        let report = fsck(device, false)?;
        if report.outcome != Outcome::Clean || !report.was_clean {
            return Err(format!("it is not clean:\n{report}"));
        }
        Ok(Census {
            inodes: report.totals.inodes,
            names: report.totals.names,
        })
    }

    fn repair(&self, device: &Device) -> Result<(), Flaw> {
        let report = fsck(device, true)?;
        match report.outcome {
            Outcome::ErrorsLeft => Err(format!("fsck gives up:\n{report}")),
            _ => Ok(()),
        }
    }

    fn reclaim(&self, device: &Device) -> Result<Tree, Flaw> {
        let options = MountOptions {
            bound: Duration::from_millis(1),
            ..MountOptions::new(Arc::new(SystemClock))
        };
        let fs = SoupFs::mount(device.pool().clone(), options).map_err(|e| e.to_string())?;
        let start = Instant::now();
        while fs.status().reclaimed_lines.is_none() {
            if start.elapsed() > PATIENCE {
                return Err("the reclaimer does not come to an end".into());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        let tree = Tree::of(&fs, &[])?;
        fs.unmount().map_err(|e| format!("unmount: {e}"))?;
        Ok(tree)
    }

    fn has_shortages(&self) -> bool {
        true
    }

    fn damages(&self) -> u64 {
        damage::kinds()
    }

    fn damage(&self, number: u64, device: &Device, tree: &Tree) -> Option<&'static str> {
        damage::damage(number, device.pool(), tree)
    }

    fn marks(&self, event: &Event) -> bool {
        matches!(event, Event::Store { at, .. } if *at == state::CLEAN_EPOCH)
    }

    fn clashing(&self, name: &str) -> Option<String> {
        let hasher = SipHasher13::new_with_key(&HASH_KEY);
        let mut names = (0..).map(|n| format!("{name}~{n}"));
        names.find(|name| hasher.hash(name.as_bytes()) % bucket::BASE == BUCKET)
    }

    fn place(&self, at: u64, len: u64, inode: &dyn Fn(u64) -> bool) -> String {
        let geometry = Geometry::for_len(len);
        let page = at / PAGE;
        let journal = geometry.journal..geometry.journal + geometry.journal_pages;
        let line = at / LINE;
        if page == 0 {
            format!("{at} (superblock and mount state)")
        } else if journal.contains(&page) {
            let line = line - journal.start * LINES_PER_PAGE;
            format!("{at} (journal, line {line})")
        } else if let Some(ino) = [line, line - 1].into_iter().find(|&ino| inode(ino)) {
            format!("{at} (inode {ino}, line {})", line - ino)
        } else if (0..geometry.regions()).any(|r| geometry.allocatable(r).contains(&page)) {
            format!("{at} (page {page}, line {})", line % LINES_PER_PAGE)
        } else {
            format!("{at} (maps)")
        }
    }

    fn sources(&self) -> &'static [&'static str] {
        &["soupfs/src/", "pmem/src/journal"]
    }
}

/// An empty file system, with poison where it is free. If there are several regions, only where
/// each begins: the rest is for workloads to fill.
fn empty(len: u64) -> Image {
    let device = Device::of(&Image::zeros(len), Rules::Lines(Domain::Cache));
    format(device.pool(), &format_options(true)).expect("format");
    let mut image = device.image();
    let geometry = Geometry::for_len(len);
    let poisoned = match geometry.regions() {
        1 => REGION_PAGES,
        _ => POISONED,
    };
    let root = geometry.allocatable(0).start;
    for region in 0..geometry.regions() {
        let pages = geometry.allocatable(region);
        let free = |page: &u64| *page != root;
        let end = pages.end.min(geometry.region_start(region) + poisoned);
        image.fill((pages.start..end).filter(free), POISON);
    }
    image.write(root * PAGE + 128, &[POISON; PAGE as usize - 128]);
    image
}

/// `zeroed`: the device holds zeros.
fn format_options(zeroed: bool) -> FormatOptions {
    FormatOptions {
        uuid: [7; 16],
        label: "crash".into(),
        hash_key: HASH_KEY,
        time: Time(1_000),
        owner: (0, 0),
        zeroed,
    }
}

fn knobs(thresholds: Thresholds) -> Knobs {
    let tight = Knobs {
        batch_words: Some(BATCH_WORDS),
        record_words: Some(RECORD_WORDS),
        ..Knobs::default()
    };
    match thresholds {
        Thresholds::Usual => Knobs::default(),
        Thresholds::Tight => tight,
        Thresholds::Crowded => Knobs {
            pending_max: Some(PENDING_MAX),
            ..tight
        },
    }
}

fn fsck(device: &Device, repair: bool) -> Result<Report, Flaw> {
    let options = CheckOptions { repair, threads: 1 };
    check(device.pool(), &options, &|_| ()).map_err(|e| e.to_string())
}

/// Whether a crash may leave this. Not blocks behind the end of a file: they get there with the
/// size.
fn may_be_left(problem: Problem) -> bool {
    problem.class() != Class::Violation && problem != Problem::BeyondEnd
}

impl Volume for SoupFs {
    fn batches(&self) -> u64 {
        self.status().backlog.batches
    }

    fn unmount(&self) -> vfs::Result<()> {
        SoupFs::unmount(self)
    }

    fn search(&self, budget: u64) -> vfs::Result<()> {
        SoupFs::search(self, budget).map(drop)
    }
}
