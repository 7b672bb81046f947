//! Dumps of a file system, in the format that restore(8) reads: all of it, or what changed since an
//! earlier dump.
//!
//! A dump is a sequence of records: a header, the map of the inodes in use, the map of those that
//! are in the dump, the directories, all else, the end. Who restores a dump of level 0 and then
//! those that build on it has what was there at the last: what is in no map any more is removed,
//! and a directory is known by its number, whatever its name.
//!
//! Works for any engine, through [`vfs::FileSystem`]. Nothing may change the file system meanwhile.

mod directory;
mod record;
mod tape;
mod tree;

use std::io::{self, Write};
use std::ops::Range;

use vfs::{Attr, FileSystem, Ino, Kind, SeekFor};

use directory::Directory;
use record::{DESCRIBED, Header, RECORD, What};
use tape::Tape;
use tree::{Seen, Tree};

pub use record::Names;

/// What to dump, and what its headers say.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// 0: everything. Higher ones build on a dump of a lower level.
    pub level: u8,
    /// When this dump is made: seconds since 1970.
    pub date: u32,
    /// When the dump was made that this one builds on. What changed since is dumped.
    pub since: Option<u32>,
    /// Names for people.
    pub names: Names,
}

/// What became of a dump.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Directories in it.
    pub directories: u64,
    /// Other inodes in it.
    pub files: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Inodes of whose extended attributes the format cannot hold all; none of theirs is there.
    pub without_attributes: u64,
}

/// Why there is no whole dump.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An inode cannot be read.
    #[error("inode {ino} cannot be read: {error}")]
    Unreadable {
        /// Which.
        ino: Ino,
        /// Why.
        error: vfs::Error,
    },
    /// An inode number has no place in the format.
    #[error("inode {0} has a number that dumps cannot hold: they have 31 bits for it")]
    Number(Ino),
    /// The dump cannot be written.
    #[error("the dump cannot be written: {0}")]
    Output(#[from] io::Error),
}

/// What came of it.
pub type Result<T> = std::result::Result<T, Error>;

/// Told while a dump goes on: what is being done, how much of it is done, and of how much (0: not
/// known).
pub type Progress<'a> = &'a dyn Fn(&'static str, u64, u64);

/// Bytes that are read at once: what one header describes.
const PART: usize = DESCRIBED * RECORD;

/// Records that restore(8) gathers at most before it writes them: as many as a block of the file
/// system has that it writes to, up to 64 KiB. Where a hole begins it writes no more of them than
/// the file has bytes left from there on: the rest is lost. So a hole that begins so near to the
/// end of a file is dumped as zeros.
const GATHERED: u64 = 64;

/// The largest set of extended attributes that readers of dumps accept, in bytes.
const ATTRIBUTES_MAX: usize = 64 << 10;

/// Dumps a file system.
///
/// # Errors
/// Something cannot be read, has a number that the format cannot hold, or the output failed. What
/// was written then is no dump.
pub fn dump<F: FileSystem>(
    fs: &F,
    options: &Options,
    out: &mut dyn Write,
    progress: Progress<'_>,
) -> Result<Summary> {
    let tree = Tree::walk(fs, options.since, &|seen| progress("names", seen, 0))?;
    let since = options.since.unwrap_or(0);
    let header = Header::begin(&options.names, options.level, options.date, since);
    let mut dumper = Dumper {
        fs,
        tree: &tree,
        header,
        tape: Tape::new(out),
        summary: Summary::default(),
    };
    dumper.tape.header(header)?;
    dumper.map(What::InUse, |_| true)?;
    dumper.map(What::Dumped, |seen| seen.dumped)?;
    let directories = tree.dumped(true);
    let files = tree.dumped(false);
    let total = (directories.len() + files.len()) as u64;
    for (done, &(number, ino, seen)) in (0..).zip(directories.iter().chain(&files)) {
        progress("inodes", done, total);
        dumper.inode(number, ino, seen)?;
    }
    Ok(Summary {
        directories: directories.len() as u64,
        files: files.len() as u64,
        bytes: dumper.tape.end(header.end(tree.last()))?,
        ..dumper.summary
    })
}

struct Dumper<'a, F> {
    fs: &'a F,
    tree: &'a Tree,
    header: Header,
    tape: Tape<'a>,
    summary: Summary,
}

impl<F: FileSystem> Dumper<'_, F> {
    fn map(&mut self, what: What, of: impl Fn(&Seen) -> bool) -> Result<()> {
        let bits = self.tree.map(of);
        let records = bits.len().div_ceil(RECORD) as u32;
        let header = self.header.map(what, self.tree.last(), records);
        self.tape.header(header)?;
        Ok(self.tape.records(&bits)?)
    }

    /// An inode with its contents and its extended attributes.
    fn inode(&mut self, number: u32, ino: Ino, seen: &Seen) -> Result<()> {
        let unreadable = |error| Error::Unreadable { ino, error };
        let node = self.fs.node(ino).map_err(unreadable)?;
        let mut attr = self.fs.attr(&node);
        match attr.kind {
            Kind::Dir => {
                let contents = self.directory(ino, &node, seen).map_err(unreadable)?;
                attr.size = contents.len() as u64;
                let header = self.header.inode(number, &attr);
                self.tape.whole(header, &contents)?;
            }
            Kind::Symlink => {
                let target = self.fs.readlink(&node).map_err(unreadable)?;
                let header = self.header.inode(number, &attr);
                self.tape.whole(header, &target)?;
            }
            Kind::File => self.file(self.header.inode(number, &attr), &node, &attr)?,
            Kind::Fifo | Kind::Socket | Kind::CharDev | Kind::BlockDev => {
                let header = self.header.inode(number, &attr);
                self.tape.whole(header, &[])?;
            }
        }
        match attr.has_xattrs {
            true => self.attributes(number, &node, &attr),
            false => Ok(()),
        }
    }

    fn directory(&self, ino: Ino, node: &F::Node, seen: &Seen) -> vfs::Result<Vec<u8>> {
        let number = |ino| self.tree.number(ino);
        let mut directory = Directory::new(number(ino), number(seen.parent));
        self.fs.readdir(node, 0, &mut |entry| {
            directory.add(number(entry.ino), entry.kind, entry.name);
            true
        })?;
        Ok(directory.bytes())
    }

    /// The contents of a file, without its holes.
    fn file(&mut self, mut header: Header, node: &F::Node, attr: &Attr) -> Result<()> {
        let unreadable = |error| Error::Unreadable {
            ino: attr.ino,
            error,
        };
        if attr.size == 0 {
            return Ok(self.tape.header(header.describe(&[]))?);
        }
        let mut bytes = Vec::new();
        let tail = attr.size.div_ceil(RECORD as u64).saturating_sub(GATHERED);
        let mut is_behind_data = false;
        for at in (0..attr.size).step_by(PART) {
            let len = (attr.size - at).min(PART as u64) as usize;
            let mut present = self.present(node, at, len).map_err(unreadable)?;
            for (record, is_present) in (at / RECORD as u64..).zip(&mut present) {
                *is_present |= is_behind_data && record >= tail;
                is_behind_data = *is_present;
            }
            self.tape.header(header.describe(&present))?;
            header = header.more();
            for run in runs(&present) {
                let start = run.start * RECORD;
                let end = len.min(run.end * RECORD);
                bytes.resize(end - start, 0);
                let read = self.fs.read(node, at + start as u64, &mut bytes);
                let read = read.map_err(unreadable)?;
                bytes[read..].fill(0);
                self.tape.records(&bytes)?;
            }
        }
        Ok(())
    }

    /// Which records of a part of a file have contents; all others are holes.
    fn present(&self, node: &F::Node, at: u64, len: usize) -> vfs::Result<Vec<bool>> {
        let mut present = vec![false; len.div_ceil(RECORD)];
        let end = at + len as u64;
        let mut next = at;
        while next < end {
            let start = match self.fs.seek(node, next, SeekFor::Data) {
                Ok(start) if start < end => start,
                Err(error) if error != vfs::Errno::NXIO.into() => return Err(error),
                _ => break,
            };
            let stop = self.fs.seek(node, start, SeekFor::Hole)?;
            let stop = stop.clamp(start + 1, end);
            let record = |place: u64| (place - at) as usize / RECORD;
            present[record(start)..=record(stop - 1)].fill(true);
            next = stop;
        }
        Ok(present)
    }

    /// Extended attributes, in the form that ext2 has for a block of them.
    fn attributes(&mut self, number: u32, node: &F::Node, attr: &Attr) -> Result<()> {
        let unreadable = |error| Error::Unreadable {
            ino: attr.ino,
            error,
        };
        let mut all = Vec::new();
        for name in self.fs.listxattr(node).map_err(unreadable)? {
            let value = self.fs.getxattr(node, &name).map_err(unreadable)?;
            all.push((name, value));
        }
        let mut len = RECORD;
        while len <= ATTRIBUTES_MAX {
            if let Ok((_, Some(block))) = ffs::image::xattr::encode(&all, 0, len) {
                let header = self.header.inode(number, attr).attributes(block.len());
                return Ok(self.tape.whole(header, &block)?);
            }
            len *= 2;
        }
        self.summary.without_attributes += 1;
        Ok(())
    }
}

/// The runs of true values.
fn runs(values: &[bool]) -> impl Iterator<Item = Range<usize>> {
    let mut next = 0;
    values.chunk_by(|a, b| a == b).filter_map(move |run| {
        let start = next;
        next += run.len();
        run[0].then_some(start..next)
    })
}
