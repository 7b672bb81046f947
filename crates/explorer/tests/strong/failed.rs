//! A commit that fails: all look at the consistent view from then on, and if one did not it would
//! be noticed.

use crate::{INJECTING, mount, names, new, pool_in};
use pmem::{Domain, Options, Pool, Syncer};
use soupfs::fault::{Fault, fault};
use soupfs::{Node, SoupFs};
use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use vfs::{Change, Errno, FileSystem, ManualClock, Result, SetAttr, Time, XattrChange};

/// A medium that fails once it is told so.
#[derive(Default)]
struct Failing(AtomicBool);

impl Syncer for Failing {
    fn sync(&self, _: u64, _: u64, medium: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
        match self.0.load(SeqCst) {
            true => Err(io::Error::from_raw_os_error(5)),
            false => medium(),
        }
    }
}

type Request = fn(&SoupFs, &Node) -> Result<()>;

/// What is there, so that each view that a look may be at has a request that shows it: attributes,
/// names, what a handle without a look tells, extended attributes.
const REQUESTS: [(&str, Request); 5] = [
    ("append", |fs, file| fs.append(file, &[2; 5000]).map(drop)),
    ("mode", |fs, file| {
        let set = SetAttr {
            perm: Some(0o711),
            ..SetAttr::default()
        };
        fs.setattr(file, &set).map(drop)
    }),
    ("create", |fs, _| {
        fs.create(&fs.root(), b"new", &new()).map(drop)
    }),
    ("unlink", |fs, _| {
        fs.unlink(&fs.root(), b"file", &|_| Ok(()))
    }),
    ("xattrs", |fs, file| {
        let change = Change {
            set: SetAttr::default(),
            xattrs: &[XattrChange::set(b"user.a", b"2")],
        };
        fs.apply(file, &change).map(drop)
    }),
];

/// All that callers see of a file and of its directory, but for times.
fn seen(fs: &SoupFs, file: &Node) -> impl PartialEq + Debug + use<> {
    let attr = fs.attr(file);
    let mut bytes = vec![0; 20_000];
    let len = fs.read(file, 0, &mut bytes).expect("read");
    bytes.truncate(len);
    let found = fs.lookup(&fs.root(), b"file").is_ok();
    let by_number = fs.node(fs.ino(file)).is_ok();
    let xattr = fs.getxattr(file, b"user.a").map_err(|e| e.errno());
    let attr = (attr.perm, attr.size, attr.nlink, attr.blocks);
    (attr, bytes, names(fs), found, by_number, xattr)
}

/// Whether anybody sees something of a request whose commit has failed.
fn shows(request: Request) -> bool {
    let options = Options {
        domain: Some(Domain::Page),
        ..Options::default()
    };
    let medium = Arc::new(Failing::default());
    let bytes = pool_in(Domain::Page).snapshot();
    let pool = Pool::from_bytes(&bytes, &options).expect("memory");
    let pool = Arc::new(pool.with_syncer(medium.clone()));
    let fs = mount(&pool, Arc::new(ManualClock::new(Time(5))));
    let file = fs.create(&fs.root(), b"file", &new()).expect("made");
    fs.write(&file, 0, &[1; 5000]).expect("written");
    let before = seen(&fs, &file);
    medium.0.store(true, SeqCst);
    assert_eq!(request(&fs, &file).map_err(|e| e.errno()), Err(Errno::IO));
    seen(&fs, &file) != before
}

#[test]
fn nobody_sees_anything_of_a_commit_that_failed() {
    let _injecting = INJECTING.lock();
    for (name, request) in REQUESTS {
        assert!(!shows(request), "{name}");
        assert!(fault(Some(Fault::FailureUntold)), "a test build has faults");
        let noticed = shows(request);
        fault(None);
        assert!(noticed, "{name}: this test sees nothing");
    }
}
