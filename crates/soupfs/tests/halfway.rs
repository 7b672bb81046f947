//! What a batch makes of an operation that is half done: a thread is held in the middle of one
//! while another syncs.

mod common;

use common::{Soup, clock, image};
use parking_lot::{Condvar, Mutex};
use pmem::{Domain, Options, Pool, Recorder, StoreKind};
use soupfs::SoupFs;
use soupfs::layout::{LINE, LINE_MASK, dentry};
use std::sync::Arc;
use std::thread::{scope, sleep};
use std::time::Duration;
use vfs::{FileSystem, Fsync, NewKind, NewNode, Place, RenameMode, Time};

/// Longer than it takes another thread to go on, if it can.
const WHILE: Duration = Duration::from_millis(300);

#[derive(Default, PartialEq)]
enum State {
    #[default]
    Off,
    Armed,
    Holding,
}

/// Holds the next thread that links a new entry into its bucket.
#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, state: State) {
        *self.state.lock() = state;
        self.changed.notify_all();
    }

    fn await_holding(&self) {
        let mut state = self.state.lock();
        self.changed
            .wait_while(&mut state, |s| *s != State::Holding);
    }
}

impl Recorder for Gate {
    fn store(&self, off: u64, bytes: &[u8], _: StoreKind) {
        let Ok(word) = bytes.try_into().map(u64::from_le_bytes) else {
            return;
        };
        let mut state = self.state.lock();
        if off % LINE == dentry::NEXT
            && word & dentry::PENDING != 0
            && word & LINE_MASK != LINE_MASK
            && *state == State::Armed
        {
            *state = State::Holding;
            self.changed.notify_all();
            self.changed
                .wait_while(&mut state, |s| *s == State::Holding);
        }
    }

    fn flush(&self, _: u64, _: u64) {}
    fn fence(&self) {}
    fn mark(&self, _: &str) {}
}

fn new(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode {
        kind,
        perm: 0o644,
        uid: 0,
        gid: 0,
        xattrs: &[],
    }
}

fn soup() -> Soup {
    Soup {
        manual: true,
        domain: Domain::Cache,
        ..Soup::default()
    }
}

fn mounted(gate: &Arc<Gate>) -> SoupFs {
    let options = Options {
        domain: Some(Domain::Cache),
        recorder: Some(gate.clone()),
        ..Options::default()
    };
    let bytes = image(2 << 20, Domain::Cache, Time(1)).snapshot();
    soup().mount(
        Arc::new(Pool::from_bytes(&bytes, &options).expect("memory")),
        clock(),
    )
}

/// The file system as a crash now leaves it.
fn crashed(fs: &SoupFs) -> SoupFs {
    let options = Options {
        domain: Some(Domain::Cache),
        ..Options::default()
    };
    let pool = Pool::from_bytes(&fs.pool().snapshot(), &options).expect("memory");
    soup().mount(Arc::new(pool), clock())
}

/// Run `slow` up to where it links a new entry, then `meanwhile`, which may have to wait for it.
fn halfway(gate: &Gate, slow: impl FnOnce() + Send, meanwhile: impl FnOnce() + Send) {
    gate.set(State::Armed);
    scope(|scope| {
        scope.spawn(slow);
        gate.await_holding();
        scope.spawn(meanwhile);
        sleep(WHILE);
        gate.set(State::Off);
    });
}

#[test]
fn a_new_file_that_is_being_renamed_is_synced() {
    for mode in [
        RenameMode::Replace,
        RenameMode::Whiteout,
        RenameMode::Exchange,
    ] {
        let gate = Arc::new(Gate::default());
        let fs = mounted(&gate);
        let root = fs.root();
        let file = fs
            .create(&root, b"old", &new(NewKind::File))
            .expect("created");
        if mode == RenameMode::Exchange {
            fs.create(&root, b"new", &new(NewKind::Dir))
                .expect("created");
        }
        let rename = || {
            fs.rename(
                Place::new(&root, b"old"),
                Place::new(&root, b"new"),
                mode,
                &|_| Ok(()),
            )
            .expect("renamed")
        };
        halfway(&gate, rename, || {
            fs.fsync(&file, Fsync::All).expect("synced")
        });
        let after = crashed(&fs);
        let has = |name: &[u8]| {
            let found = after.lookup(&after.root(), name);
            found.is_ok_and(|node| after.ino(&node) == fs.ino(&file))
        };
        assert!(
            has(b"old") || has(b"new"),
            "{mode:?}: neither name is there"
        );
    }
}

#[test]
fn what_is_synced_in_a_new_directory_that_is_being_renamed_is_reachable() {
    let gate = Arc::new(Gate::default());
    let fs = mounted(&gate);
    let root = fs.root();
    let dir = fs
        .create(&root, b"old", &new(NewKind::Dir))
        .expect("created");
    let file = fs
        .create(&dir, b"file", &new(NewKind::File))
        .expect("created");
    let rename = || {
        fs.rename(
            Place::new(&root, b"old"),
            Place::new(&root, b"new"),
            RenameMode::Replace,
            &|_| Ok(()),
        )
        .expect("renamed");
    };
    halfway(&gate, rename, || {
        fs.fsync(&file, Fsync::All).expect("synced")
    });
    let after = crashed(&fs);
    let found = [b"old", b"new"].map(|name| after.lookup(&after.root(), name));
    let dir = found
        .into_iter()
        .find_map(Result::ok)
        .expect("a name of the directory");
    assert!(after.lookup(&dir, b"file").is_ok());
}

#[test]
fn a_file_that_is_being_linked_keeps_a_name_when_it_loses_the_other() {
    let gate = Arc::new(Gate::default());
    let fs = mounted(&gate);
    let root = fs.root();
    let dir = fs
        .create(&root, b"dir", &new(NewKind::Dir))
        .expect("created");
    let file = fs
        .create(&dir, b"old", &new(NewKind::File))
        .expect("created");
    fs.syncfs().expect("synced");
    halfway(
        &gate,
        || fs.link(&file, &root, b"new").expect("linked"),
        || {
            fs.unlink(&dir, b"old", &|_| Ok(())).expect("unlinked");
            fs.fsync(&dir, Fsync::All).expect("synced");
        },
    );
    let after = crashed(&fs);
    let root = after.root();
    let old = after
        .lookup(&root, b"dir")
        .and_then(|dir| after.lookup(&dir, b"old"));
    assert!(
        old.is_ok() || after.lookup(&root, b"new").is_ok(),
        "no name is left"
    );
}
