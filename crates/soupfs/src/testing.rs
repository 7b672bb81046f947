//! Small file systems in memory, persisted step by step, for tests of what only the crate can see.

use crate::check::fsck::{CheckOptions, Outcome, check};
use crate::format::{FormatOptions, format};
use crate::mount::SoupFs;
use crate::options::MountOptions;
use pmem::{Domain, Options, Pool};
use std::sync::Arc;
use vfs::{NewKind, NewNode, SystemClock, Time};

fn options() -> Options {
    Options {
        domain: Some(Domain::Cache),
        ..Options::default()
    }
}

/// Mount so that nothing happens in the background.
pub fn mount(pool: &Arc<Pool>) -> SoupFs {
    let options = MountOptions {
        manual: true,
        ..MountOptions::new(Arc::new(SystemClock))
    };
    SoupFs::mount(pool.clone(), options).expect("mount")
}

/// A new file system of 16 MiB in which nothing happens in the background.
pub fn mounted() -> (Arc<Pool>, SoupFs) {
    let pool = Arc::new(Pool::anonymous(16 << 20, &options()).expect("anonymous memory"));
    let format_options = FormatOptions {
        uuid: [1; 16],
        label: "test".into(),
        hash_key: [2; 16],
        time: Time(1),
        owner: (0, 0),
        zeroed: true,
    };
    format(&pool, &format_options).expect("format");
    let fs = mount(&pool);
    (pool, fs)
}

/// What a crash leaves of it now, mounted.
pub fn crash(pool: &Pool, fs: SoupFs) -> (Arc<Pool>, SoupFs) {
    let bytes = pool.snapshot();
    drop(fs);
    let pool = Arc::new(Pool::from_bytes(&bytes, &options()).expect("memory"));
    let fs = mount(&pool);
    (pool, fs)
}

/// Something new without extended attributes.
pub fn new(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode {
        kind,
        perm: 0o700,
        uid: 0,
        gid: 0,
        xattrs: &[],
    }
}

/// Unmount: the image is clean.
pub fn ends_clean(pool: &Arc<Pool>, fs: SoupFs) {
    drop(fs);
    let options = CheckOptions {
        repair: false,
        threads: 1,
    };
    let report = check(pool, &options, &|_| ()).expect("check");
    assert_eq!(report.outcome, Outcome::Clean, "{report}");
}
