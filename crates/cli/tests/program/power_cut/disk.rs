//! A disk that records what is written to it and flushed, and loses power at a chosen write or
//! flush.
//!
//! It is a file system with one file, the image, served by this process through FUSE. So all
//! I/O that a daemon makes on the image comes here as the kernel issues it: pages that are written
//! back, by themselves or for a sync, and the flush at the end of each sync.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use fuse::{Options, mount, unmount};
use vfs::{
    Also, At, Attr, Capabilities, Change, DirEntry, Errno, Fallocate, FileSystem, Fsync, Ino, Kind,
    Limits, NewNode, Place, RenameMode, Result, SeekFor, StatFs, SystemClock, Time, Veto,
};

use crate::scene::PATIENCE;
use block::Random;

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;
/// Unit of the images that are kept: most of an image is zeros.
const BLOCK: usize = 4096;

const ROOT: Ino = 1;
const IMAGE: Ino = 2;
/// The image's name in the disk's root.
pub const NAME: &str = "disk.img";

/// The contents of a disk: blocks that are not zeros.
#[derive(Clone)]
pub struct Image {
    len: u64,
    blocks: BTreeMap<u64, Box<[u8; BLOCK]>>,
}

impl Image {
    /// The contents of a file.
    pub fn load(path: &Path) -> io::Result<Image> {
        let file = File::open(path)?;
        let mut image = Image {
            len: file.metadata()?.len(),
            blocks: BTreeMap::new(),
        };
        let mut block = [0; BLOCK];
        for off in (0..image.len).step_by(BLOCK) {
            file.read_exact_at(&mut block, off)?;
            if block.iter().any(|byte| *byte != 0) {
                image.write(off, &block);
            }
        }
        Ok(image)
    }

    /// Makes a file of it.
    pub fn store(&self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.len)?;
        for (number, block) in &self.blocks {
            file.write_all_at(&block[..], number * BLOCK as u64)?;
        }
        Ok(())
    }

    fn write(&mut self, off: u64, data: &[u8]) {
        for (at, part) in pieces(off, data.len(), BLOCK) {
            let block = (self.blocks.entry(at / BLOCK as u64)).or_insert(Box::new([0; BLOCK]));
            let from = (at - off) as usize;
            block[at as usize % BLOCK..][..part].copy_from_slice(&data[from..from + part]);
        }
    }

    fn read(&self, off: u64, data: &mut [u8]) {
        for (at, part) in pieces(off, data.len(), BLOCK) {
            let piece = &mut data[(at - off) as usize..][..part];
            match self.blocks.get(&(at / BLOCK as u64)) {
                Some(block) => piece.copy_from_slice(&block[at as usize % BLOCK..][..part]),
                None => piece.fill(0),
            }
        }
    }
}

/// Cuts a range where units begin: offsets and lengths.
fn pieces(off: u64, len: usize, unit: usize) -> impl Iterator<Item = (u64, usize)> {
    let end = off + len as u64;
    let mut at = off;
    std::iter::from_fn(move || {
        let part = (end - at).min(unit as u64 - at % unit as u64);
        let piece = (at, part as usize);
        at += part;
        (part > 0).then_some(piece)
    })
}

/// What a power cut leaves of the writes since the last flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// None of them.
    All,
    /// All of them.
    Nothing,
    /// The first ones.
    Tail,
    /// Any sectors of any of them: for each write a few, most or half of its sectors.
    Sectors,
}

struct State {
    /// As of the last flush.
    durable: Image,
    /// As a reader sees it.
    current: Image,
    /// Writes since the last flush, in order.
    pending: Vec<(u64, Vec<u8>)>,
    /// Writes and flushes until the power goes; then none are taken any more.
    left: u64,
    flushes: u64,
    /// Nothing is read without power either.
    vanishes: bool,
}

impl State {
    /// Takes one event; not if the power is gone.
    fn event(&mut self, power: &Condvar) -> Result<()> {
        if self.left == 0 {
            return Err(Errno::IO.into());
        }
        self.left -= 1;
        if self.left == 0 {
            power.notify_all();
        }
        Ok(())
    }
}

struct Medium {
    state: Mutex<State>,
    power: Condvar,
}

impl Medium {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread of the disk panicked")
    }
}

/// A disk that is mounted; it goes when this is dropped.
pub struct Disk {
    medium: Arc<Medium>,
    dir: PathBuf,
    /// Waits for the end of the mount.
    end: Option<JoinHandle<io::Result<()>>>,
}

impl Disk {
    /// Plugs in a disk with these contents; its image is in `dir`. The power goes after so many
    /// writes and flushes.
    pub fn new(image: &Image, dir: &Path, events: u64) -> io::Result<Disk> {
        let state = State {
            durable: image.clone(),
            current: image.clone(),
            pending: Vec::new(),
            left: events,
            flushes: 0,
            vanishes: false,
        };
        let medium = Arc::new(Medium {
            state: Mutex::new(state),
            power: Condvar::new(),
        });
        let options = Options::new("disk", Arc::new(SystemClock));
        let served = Served(medium.clone());
        let mount = mount(served, dir, &options, Arc::new(Vec::new))?;
        Ok(Disk {
            medium,
            dir: dir.to_owned(),
            end: Some(std::thread::spawn(move || mount.wait())),
        })
    }

    /// Without power nothing can be read either.
    pub fn vanishes(&self) {
        self.medium.state().vanishes = true;
    }

    /// Whether the power is gone.
    pub fn is_off(&self) -> bool {
        self.medium.state().left == 0
    }

    /// Waits until the power is gone.
    pub fn wait_until_off(&self) {
        let on = |state: &mut State| state.left > 0;
        let state = self.medium.state();
        let waited = (self.medium.power.wait_timeout_while(state, PATIENCE, on)).expect("no panic");
        assert!(!waited.1.timed_out(), "the disk is not written to");
    }

    /// Writes since the last flush.
    pub fn pending(&self) -> usize {
        self.medium.state().pending.len()
    }

    /// Flushes.
    pub fn flushes(&self) -> u64 {
        self.medium.state().flushes
    }

    /// What the power cut may have left.
    pub fn after(&self, loss: Loss, random: &mut Random) -> Image {
        let state = self.medium.state();
        let mut image = state.durable.clone();
        let kept = match loss {
            Loss::All => 0,
            Loss::Tail => random.below(state.pending.len() as u64 + 1) as usize,
            Loss::Nothing | Loss::Sectors => state.pending.len(),
        };
        for (off, data) in &state.pending[..kept] {
            let share = match loss {
                Loss::Sectors => [1, 4, 7][random.below(3) as usize],
                _ => 8,
            };
            for (at, part) in pieces(*off, data.len(), SECTOR) {
                if random.below(8) < share {
                    image.write(at, &data[(at - off) as usize..][..part]);
                }
            }
        }
        image
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Whoever still holds it gets errors from here on.
        if let Err(error) = unmount(&self.dir, true) {
            eprintln!("cannot unmount the disk: {error}");
        } else if let Some(end) = self.end.take().filter(|_| !std::thread::panicking()) {
            // Where a test has failed a mount may still have the image open, and is unmounted only
            // behind this. An error says that serving ended: there is nothing left to wait for.
            let _ = end.join();
        }
    }
}

/// What is served: the root, and the image in it.
struct Served(Arc<Medium>);

macro_rules! refused {
    ($(fn $name:ident($($type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $(_: $type),*) -> $result {
            Err(Errno::NOTSUP.into())
        })*
    };
}

impl FileSystem for Served {
    type Node = Ino;

    fn limits(&self) -> Limits {
        Limits {
            name_max: NAME.len(),
            symlink_max: 0,
            link_max: 2,
            file_max: self.0.state().current.len,
            xattr_size_max: 0,
            xattr_list_max: 0,
            xattr_room: 0,
            capabilities: Capabilities::empty(),
        }
    }

    fn root(&self) -> Ino {
        ROOT
    }

    fn node(&self, ino: Ino) -> Result<Ino> {
        match ino {
            ROOT | IMAGE => Ok(ino),
            _ => Err(Errno::STALE.into()),
        }
    }

    fn ino(&self, node: &Ino) -> Ino {
        *node
    }

    fn attr(&self, node: &Ino) -> Attr {
        let dir = *node == ROOT;
        let size = if dir { 0 } else { self.0.state().current.len };
        let time = Time::default();
        Attr {
            ino: *node,
            generation: 0,
            kind: if dir { Kind::Dir } else { Kind::File },
            perm: if dir { 0o700 } else { 0o600 },
            nlink: if dir { 2 } else { 1 },
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            size,
            // All of it: a disk has no holes.
            blocks: size / 512,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            has_xattrs: false,
        }
    }

    fn lookup(&self, dir: &Ino, name: &[u8]) -> Result<Ino> {
        match (*dir, name == NAME.as_bytes()) {
            (ROOT, true) => Ok(IMAGE),
            _ => Err(Errno::NOENT.into()),
        }
    }

    fn parent(&self, _: &Ino) -> Result<Ino> {
        Ok(ROOT)
    }

    fn readdir(&self, _: &Ino, _: u64, _: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        Ok(())
    }

    fn read(&self, _: &Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let state = self.0.state();
        if state.vanishes && state.left == 0 {
            return Err(Errno::IO.into());
        }
        let len = (state.current.len.saturating_sub(offset)).min(buf.len() as u64) as usize;
        state.current.read(offset, &mut buf[..len]);
        Ok(len)
    }

    fn write_with(&self, _: &Ino, offset: u64, data: &[u8], _: Also<'_>) -> Result<usize> {
        let mut state = self.0.state();
        state.event(&self.0.power)?;
        state.current.write(offset, data);
        state.pending.push((offset, data.to_vec()));
        Ok(data.len())
    }

    /// Times only: the size of a disk does not change.
    fn apply(&self, node: &Ino, change: &Change<'_>) -> Result<Attr> {
        match change.set.size {
            None if change.xattrs.is_empty() => Ok(self.attr(node)),
            _ => Err(Errno::NOTSUP.into()),
        }
    }

    fn fsync(&self, _: &Ino, _: Fsync) -> Result<()> {
        let state = &mut *self.0.state();
        state.event(&self.0.power)?;
        for (off, data) in state.pending.drain(..) {
            state.durable.write(off, &data);
        }
        state.flushes += 1;
        Ok(())
    }

    fn syncfs(&self) -> Result<()> {
        Ok(())
    }

    fn statfs(&self) -> StatFs {
        StatFs {
            block_size: BLOCK as u32,
            blocks: self.0.state().current.len / BLOCK as u64,
            free: 0,
            files: 2,
            files_free: 0,
            fsid: 0,
        }
    }

    refused! {
        fn create(&Ino, &[u8], &NewNode<'_>) -> Result<Ino>;
        fn tmpfile(&Ino, &NewNode<'_>) -> Result<Ino>;
        fn link(&Ino, &Ino, &[u8]) -> Result<()>;
        fn unlink(&Ino, &[u8], Veto<'_>) -> Result<()>;
        fn rmdir(&Ino, &[u8], Veto<'_>) -> Result<()>;
        fn rename(Place<'_, Ino>, Place<'_, Ino>, RenameMode, Veto<'_>) -> Result<()>;
        fn readlink(&Ino) -> Result<Vec<u8>>;
        fn append_with(&Ino, &[u8], Also<'_>) -> Result<(u64, usize)>;
        fn fallocate_with(&Ino, Fallocate, Range<u64>, Also<'_>) -> Result<()>;
        fn seek(&Ino, u64, SeekFor) -> Result<u64>;
        fn copy_range_with(At<'_, Ino>, At<'_, Ino>, u64, Also<'_>) -> Result<u64>;
        fn getxattr(&Ino, &[u8]) -> Result<Vec<u8>>;
        fn listxattr(&Ino) -> Result<Vec<Vec<u8>>>;
    }
}
