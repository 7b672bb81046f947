//! A disk of which one request fails, whichever it is, in the life of an image of ext2 or ext3: one
//! in some requests in one of four ways, in turns, or with `TUREEN_DISK_FAULTS=1` each in each.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use block::{Device, Disk};
use common::{Image, TIME, memory, mount_in, problems};
use ffs::check::{Report, check};
use ffs::{
    Ffs, FormatOptions, Mode, MountError, MountOptions, format, mounts_at_once, recover, superblock,
};
use model::disk_faults::{Volume, fail_everywhere, in_all_ways};
use vfs::ManualClock;

/// Bytes of blocks that are kept: few, so that they go and are read again.
const CACHE_BYTES: usize = 32 << 10;
/// In a short run a life of so many is judged by e2fsck, too.
const JUDGED: usize = 8;

/// How a life is led.
struct Way {
    mode: Mode,
    /// For e2fsck, and how many lives were examined.
    image: Image,
    examined: AtomicUsize,
}

impl Way {
    fn is_journaled(&self) -> bool {
        [Mode::Ordered, Mode::Journal].contains(&self.mode)
    }

    /// Demands that the check, which repairs, finds nothing that needs a decision, and that neither
    /// it nor e2fsck finds anything behind that.
    fn put_right(&self, bytes: &[u8], context: &str) -> Disk {
        let disk = memory(bytes.to_vec());
        let before = superblock(&disk).expect(context);
        recover(disk.clone(), &before).expect(context);
        let report = checked(&disk, true).expect(context);
        assert!(report.exit_code() <= 1, "{context}: {report}");
        // What a failed read has lost keeps it from being clean.
        let is_right = report.findings.is_empty() || !report.was_clean;
        assert!(is_right, "{context}: {report}");
        let report = checked(&disk, false).expect(context);
        assert_eq!(report.exit_code(), 0, "{context}: again: {report}");
        let number = self.examined.fetch_add(1, Ordering::Relaxed);
        if in_all_ways() || number.is_multiple_of(JUDGED) {
            std::fs::write(&self.image.path, all(&disk)).expect("written");
            let codes = problems(&self.image);
            assert!(codes.is_empty(), "{context}: e2fsck: {codes:x?}");
        }
        disk
    }
}

fn all(disk: &Disk) -> Vec<u8> {
    let into = vec![block::Buffer::zeroed(disk.len() as usize)];
    disk.read(0, into).expect("read")[0].to_vec()
}

fn checked(disk: &Disk, repair: bool) -> Result<Report, String> {
    check(disk, repair, TIME, &|_, _, _| ()).map_err(|error| error.to_string())
}

impl Volume for Way {
    type Fs = Ffs;

    fn name(&self) -> String {
        format!("{:?}", self.mode)
    }

    fn bytes(&self) -> usize {
        4 << 20
    }

    fn format(&self, device: Arc<dyn Device>) -> Result<(), String> {
        let options = FormatOptions {
            zeroed: false,
            block_size: 1024,
            bytes_per_inode: 16384,
            journal: self.is_journaled(),
            ..common::format_options()
        };
        format(&Disk::new(device), &options).map_err(|error| error.to_string())
    }

    fn mount(&self, device: Arc<dyn Device>) -> Result<Ffs, String> {
        let options = MountOptions {
            cache_bytes: CACHE_BYTES,
            ..common::mount_options(false, self.mode)
        };
        let clock = Arc::new(ManualClock::new(TIME));
        Ffs::mount(Disk::new(device), clock, options).map_err(|error| error.to_string())
    }

    fn unmount(&self, fs: &Ffs) -> vfs::Result<()> {
        fs.unmount()
    }

    fn is_poisoned(&self, fs: &Ffs) -> bool {
        fs.disk().poisoned().is_some()
    }

    fn is_sound(&self, device: Arc<dyn Device>) -> Result<bool, String> {
        match check(&Disk::new(device), false, TIME, &|_, _, _| ()) {
            Ok(report) => {
                let is_sound = report.exit_code() == 0 || !report.was_clean;
                if !is_sound {
                    println!("{report}");
                }
                Ok(is_sound)
            }
            Err(MountError::NeedsRecovery) => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Behind the check; and at once, where that may be, with the reclaim behind it. Of what had no
    /// order nothing is promised before its end.
    fn goes_on(&self, image: &[u8], ended: bool, context: &str) -> Vec<Ffs> {
        if self.mode == Mode::Async && !ended {
            return Vec::new();
        }
        let mount = |disk| {
            let clock = Arc::new(ManualClock::new(TIME));
            mount_in(disk, false, clock, Mode::Soft).expect(context)
        };
        let mut mounts = vec![mount(self.put_right(image, context))];
        let disk = memory(image.to_vec());
        if mounts_at_once(&disk).expect(context) {
            let served = mount(disk);
            while served.reclaim_step().expect(context) {}
            mounts.push(served);
        }
        mounts
    }
}

fn fails_everywhere_in(mode: Mode, one_in: usize) {
    needs_e2fsprogs!();
    let way = Way {
        mode,
        image: Image::new(0),
        examined: AtomicUsize::new(0),
    };
    fail_everywhere(&way, one_in);
    let examined = way.examined.into_inner();
    println!("{mode:?}: {examined} lives were examined");
    assert!(examined > 10 || mode == Mode::Async);
}

#[test]
fn whichever_request_fails_it_is_told_and_what_was_synced_is_there() {
    fails_everywhere_in(Mode::Soft, 1);
}

#[test]
fn whichever_request_fails_in_mode_sync_it_is_told_and_what_was_done_is_there() {
    fails_everywhere_in(Mode::Sync, 5);
}

#[test]
fn whichever_request_fails_in_mode_ordered_it_is_told_and_what_was_synced_is_there() {
    fails_everywhere_in(Mode::Ordered, 3);
}

#[test]
fn whichever_request_fails_in_mode_journal_it_is_told_and_what_was_synced_is_there() {
    fails_everywhere_in(Mode::Journal, 3);
}

#[test]
fn whichever_request_fails_in_mode_async_it_is_told() {
    fails_everywhere_in(Mode::Async, 5);
}
