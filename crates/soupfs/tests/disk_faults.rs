//! A disk of which one request fails, whichever it is, in the life of a volume.

use std::sync::Arc;

use block::{Device, Disk, Memory};
use model::disk_faults::{Volume, fail_everywhere, in_all_ways};
use pmem::{Options, PAGE, Pool, paged};
use soupfs::fsck::{CheckOptions, Outcome, Report, check};
use soupfs::{FormatOptions, Mode, MountOptions, SoupFs, format};
use vfs::{SystemClock, Time};

/// How a life is led.
#[derive(Debug, Clone, Copy)]
struct Way {
    mode: Mode,
    /// The MMU finds absent pages.
    by_faults: bool,
}

fn pool(device: Arc<dyn Device>, by_faults: bool) -> Result<Arc<Pool>, String> {
    // So few that pages go, are written to make room, and are read again.
    let small = paged::Options::new(16 * PAGE);
    let options = Options {
        paged: Some(paged::Options {
            faults: by_faults,
            ..small
        }),
        ..Options::default()
    };
    let pool = Pool::on_disk(Disk::new(device), &options);
    pool.map(Arc::new).map_err(|error| error.to_string())
}

fn mount(pool: Arc<Pool>, mode: Mode) -> Result<SoupFs, String> {
    let options = MountOptions {
        mode,
        manual: true,
        ..MountOptions::new(Arc::new(SystemClock))
    };
    SoupFs::mount(pool, options).map_err(|error| error.to_string())
}

fn checked(pool: &Arc<Pool>) -> Result<Report, String> {
    let options = CheckOptions {
        repair: false,
        threads: 1,
    };
    check(pool, &options, &|_| ()).map_err(|error| error.to_string())
}

impl Volume for Way {
    type Fs = SoupFs;

    fn name(&self) -> String {
        format!("{self:?}")
    }

    fn bytes(&self) -> usize {
        1 << 20
    }

    fn format(&self, device: Arc<dyn Device>) -> Result<(), String> {
        let how = FormatOptions {
            uuid: [7; 16],
            label: String::new(),
            hash_key: [9; 16],
            time: Time(0),
            owner: (0, 0),
            zeroed: false,
        };
        format(&pool(device, self.by_faults)?, &how).map_err(|error| error.to_string())
    }

    fn mount(&self, device: Arc<dyn Device>) -> Result<SoupFs, String> {
        mount(pool(device, self.by_faults)?, self.mode)
    }

    fn unmount(&self, fs: &SoupFs) -> vfs::Result<()> {
        fs.unmount()
    }

    fn is_poisoned(&self, fs: &SoupFs) -> bool {
        fs.pool().poisoned().is_some()
    }

    fn is_sound(&self, device: Arc<dyn Device>) -> Result<bool, String> {
        let report = checked(&pool(device, self.by_faults)?)?;
        Ok(report.outcome == Outcome::Clean)
    }

    fn goes_on(&self, image: &[u8], ended: bool, context: &str) -> Vec<SoupFs> {
        let device = Arc::new(Memory::from_bytes(image.to_vec()));
        let pool = pool(device, false).expect("no fault");
        let report = checked(&pool).expect("no fault");
        assert_eq!(report.outcome, Outcome::Clean, "{context}: {report}");
        assert!(report.was_clean || !ended, "{context}");
        vec![mount(pool, Mode::Delayed).expect(context)]
    }
}

/// In `mode`; in a longer run also with the other way to find absent pages.
fn fails_everywhere_in(mode: Mode, by_faults: bool) {
    fail_everywhere(&Way { mode, by_faults }, 1);
    if in_all_ways() {
        let by_faults = !by_faults;
        fail_everywhere(&Way { mode, by_faults }, 1);
    }
}

#[test]
fn whichever_request_fails_it_is_told_and_what_was_synced_is_there() {
    fails_everywhere_in(Mode::Delayed, false);
}

#[test]
fn whichever_request_fails_in_mode_strong_it_is_told_and_what_was_done_is_there() {
    fails_everywhere_in(Mode::Strong, true);
}
