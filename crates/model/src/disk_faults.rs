//! A disk of which one request fails, whichever it is, in the life of a volume: mkfs, mount, a
//! workload, unmount, fsck. Nobody panics, whoever fails says that the medium failed, and what was
//! synced before is there at the next mount. Each request fails in one of several ways, in turns;
//! with `TUREEN_DISK_FAULTS=1` in each of them.

mod work;

use std::collections::BTreeMap;
use std::sync::Arc;

use block::{Device, Fault, Faults, Memory, Op};
use vfs::{Errno, FileSystem};

use work::{Possible, Run, contents, work};

/// What an engine does to a device in the life of a volume.
pub trait Volume {
    /// A mount.
    type Fs: FileSystem;

    /// How it is made and mounted, for people.
    fn name(&self) -> String;

    /// Bytes of the device.
    fn bytes(&self) -> usize;

    /// Makes a file system.
    ///
    /// # Errors
    /// It cannot be made: why.
    fn format(&self, device: Arc<dyn Device>) -> Result<(), String>;

    /// Mounts it.
    ///
    /// # Errors
    /// It cannot be mounted: why.
    fn mount(&self, device: Arc<dyn Device>) -> Result<Self::Fs, String>;

    /// Unmounts it.
    ///
    /// # Errors
    /// Not all is durable.
    fn unmount(&self, fs: &Self::Fs) -> vfs::Result<()>;

    /// Whether the medium of a mount accepts no more.
    fn is_poisoned(&self, fs: &Self::Fs) -> bool;

    /// Whether the check, which repairs nothing, finds nothing.
    ///
    /// # Errors
    /// It cannot be checked: why.
    fn is_sound(&self, device: Arc<dyn Device>) -> Result<bool, String>;

    /// Demands that what a life has left is sound, as far as a crash leaves it so, and all of it if
    /// `ended`, as its unmount was fine. Mounts it, in each of the ways in which a user may go on.
    ///
    /// # Panics
    /// It is not, or cannot be mounted.
    fn goes_on(&self, image: &[u8], ended: bool, context: &str) -> Vec<Self::Fs>;
}

/// What a whole life of a volume left.
struct Life {
    seen: Vec<Op>,
    /// How many requests there were when the image was formatted, when it was mounted, and when
    /// that had ended; more than there ever are if that did not come.
    formatted: usize,
    mounted: usize,
    unmounted: usize,
    /// What callers were told that failed, and whether the end of the mount was fine.
    errors: Vec<String>,
    ended: bool,
    /// Whether the medium accepted no more when the mount had ended.
    poisoned: bool,
    after_crash: BTreeMap<&'static str, Possible>,
    image: Vec<u8>,
}

fn life(volume: &impl Volume, fault: Option<(usize, Fault)>) -> Life {
    let memory = Arc::new(Memory::from_bytes(vec![0xa5; volume.bytes()]));
    let device = Arc::new(Faults::new(memory.clone()));
    if let Some((at, fault)) = fault {
        device.plan(at, fault);
    }
    let mut life = Life {
        seen: Vec::new(),
        formatted: usize::MAX,
        mounted: usize::MAX,
        unmounted: usize::MAX,
        errors: Vec::new(),
        ended: false,
        poisoned: false,
        after_crash: BTreeMap::new(),
        image: Vec::new(),
    };
    live(&mut life, volume, &device);
    life.seen = device.seen();
    life.image = memory.contents();
    life
}

fn live(life: &mut Life, volume: &impl Volume, device: &Arc<Faults>) {
    if let Err(error) = volume.format(device.clone()) {
        return life.errors.push(error);
    }
    life.formatted = device.seen().len();
    let fs = match volume.mount(device.clone()) {
        Ok(fs) => fs,
        Err(error) => return life.errors.push(error),
    };
    life.mounted = device.seen().len();
    let mut run = Run::new(fs);
    work(&mut run);
    let before = run.errors.len();
    let ended = volume.unmount(&run.fs);
    life.ended = ended.is_ok();
    run.errors
        .extend(ended.err().map(|error| error.to_string()));
    if run.errors.is_empty() {
        assert_eq!(before, 0);
        run.after_crash.clone_from(&run.now);
    }
    life.poisoned = volume.is_poisoned(&run.fs);
    life.unmounted = device.seen().len();
    (life.errors, life.after_crash) = run.end();
    match volume.is_sound(device.clone()) {
        Ok(is_sound) => assert!(is_sound || !life.errors.is_empty(), "{}", volume.name()),
        Err(error) => life.errors.push(error),
    }
}

/// The image is sound, and each name leads to what it may.
fn examine(volume: &impl Volume, life: &Life, context: &str) {
    for fs in volume.goes_on(&life.image, life.ended, context) {
        for (name, possible) in &life.after_crash {
            let found = contents(&fs, name).expect(context);
            let what = found.as_ref().map(|found| (found.len(), found.first()));
            assert!(
                possible.admits(found.as_deref()),
                "{context}: {name} is {what:?}, not {possible:?}"
            );
        }
    }
}

/// A request fails in one of these ways.
const FAULTS: [(Fault, Errno); 4] = [
    (Fault::Fail(IO), IO),
    (Fault::FailDone(IO), IO),
    (Fault::Short(Errno::NOSPC), Errno::NOSPC),
    (Fault::Vanish, Errno::NODEV),
];
const IO: Errno = Errno::IO;

/// A life in which one request fails.
fn fails(volume: &impl Volume, at: usize, (fault, errno): (Fault, Errno)) {
    let context = format!("{}, request {at}: {fault:?}", volume.name());
    println!("{context}"); // for who panics on the way
    let life = life(volume, Some((at, fault)));
    let Some(op) = life.seen.get(at).copied() else {
        return; // less was read than in the first run
    };
    let why = errno.to_string();
    for error in &life.errors {
        assert!(error.contains(&why), "{context}, {op:?}: {error}");
        assert!(!error.contains("panicked"), "{context}: {error}");
    }
    // Of reads those may fail that were ahead of need.
    let is_told = !life.errors.is_empty();
    assert!(is_told || op == Op::Read, "{context}: nobody is told");
    if life.formatted == usize::MAX {
        return; // nothing was promised
    }
    let while_mounted = life.mounted..life.unmounted;
    if op != Op::Read && while_mounted.contains(&at) {
        assert!(life.poisoned && !life.ended, "{context}: it goes on");
    }
    examine(volume, &life, &context);
}

/// Lets each request of a life fail: one in `one_in` of them, others for each seed; all, and in all
/// ways, if [`in_all_ways`].
///
/// # Panics
/// A failure is not told, or something is not there that was promised.
pub fn fail_everywhere(volume: &impl Volume, one_in: usize) {
    let whole = life(volume, None);
    let name = volume.name();
    assert!(whole.errors.is_empty(), "{name}: {:?}", whole.errors);
    assert!(whole.ended && !whole.poisoned, "{name}");
    examine(volume, &whole, &format!("{name}, no fault"));
    // Most flushes of a log are part of a write.
    for (op, least) in [(Op::Read, 10), (Op::Write, 10), (Op::Flush, 2)] {
        let count = whole.seen.iter().filter(|seen| **seen == op).count();
        println!("{name}: {count} times {op:?}");
        assert!(count > least, "{name}: {count} times {op:?}");
    }
    for at in 0..whole.seen.len() {
        match in_all_ways() {
            true => FAULTS
                .into_iter()
                .for_each(|fault| fails(volume, at, fault)),
            false if at % one_in != 0 => {}
            false => fails(volume, at, FAULTS[at / one_in % FAULTS.len()]),
        }
    }
}

/// Whether each request is to fail in each way, not in one of them.
pub fn in_all_ways() -> bool {
    std::env::var_os("TUREEN_DISK_FAULTS").is_some()
}
