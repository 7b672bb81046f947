//! Writers of contents: what is read after a crash was written, and is no older than promised.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{Promises, Work, contents, fsync, pattern};
use block::Random;

/// Appends to one file: up to its end it holds what was written, and it is no shorter than
/// promised.
#[derive(Clone, Default)]
pub struct Append {
    written: u64,
    tried: u64,
    promised: u64,
    /// Each request is there as a whole or not at all; the kernel divides an append between pages.
    whole: bool,
    /// What a crash left, of which a part may be zeros.
    left: Vec<u8>,
}

impl Append {
    const NUMBER: u64 = 1;
}

impl Work for Append {
    fn step(&mut self, dir: &Path, random: &mut Random, promises: Promises) -> io::Result<()> {
        let path = dir.join("log");
        // Begin anew now and then, so that the image does not fill up.
        if self.written > 8 << 20 {
            (self.promised, self.written, self.whole) = (0, 0, false);
            self.left.clear();
            OpenOptions::new().write(true).open(&path)?.set_len(0)?;
        }
        let len = 1 + random.below(20_000);
        self.tried = self.tried.max(self.written + len);
        let file = OpenOptions::new().append(true).create(true).open(&path)?;
        let data = pattern(Append::NUMBER, self.written, len);
        // One call: short is a write only if the kill came in between.
        if rustix::io::write(&file, &data)? as u64 != len {
            return Err(io::Error::other("a short write"));
        }
        self.written += len;
        let synced = random.one_in(4);
        if synced {
            file.sync_data()?;
        }
        if synced || promises.requests() {
            self.promised = self.written;
            self.tried = self.written;
        }
        self.whole = promises.requests();
        Ok(())
    }

    fn verify(&mut self, dir: &Path, promises: Promises) -> Result<(), String> {
        let found = contents(&dir.join("log"))?.unwrap_or_default();
        let len = found.len() as u64;
        if len < self.promised || len > self.tried {
            return Err(format!(
                "{len} bytes, not {} to {}",
                self.promised, self.tried
            ));
        }
        let is_request = len == self.promised || len == self.tried || len.is_multiple_of(4096);
        if self.whole && !is_request {
            return Err(format!("{len} bytes: a part of a request"));
        }
        let mut expected = self.left.clone();
        expected.extend(pattern(Append::NUMBER, expected.len() as u64, self.tried));
        let (promised, may_be_zero) = (self.promised, promises.only_order());
        let is_right = |at: usize| {
            found[at] == expected[at] || may_be_zero && at as u64 >= promised && found[at] == 0
        };
        if let Some(at) = (0..found.len()).find(|&at| !is_right(at)) {
            return Err(format!(
                "byte {at} of {len} is not what was written, of which {promised} were promised"
            ));
        }
        (self.written, self.tried, self.promised) = (len, len, len);
        if may_be_zero {
            self.left = found;
        }
        Ok(())
    }

    fn copy(&self) -> Box<dyn Work> {
        Box::new(self.clone())
    }
}

/// Overwrites blocks in place: each word of a block is of a version no older than promised.
#[derive(Clone, Default)]
pub struct Overwrite {
    blocks: Vec<Block>,
    /// A write is there as a whole or not at all.
    whole: bool,
}

/// Versions of a block: no word is older than `promised` or newer than `tried`, and none was older
/// than `whole` when the last write was done.
#[derive(Clone, Default)]
struct Block {
    promised: u64,
    whole: u64,
    tried: u64,
}

impl Overwrite {
    const BLOCKS: usize = 64;
    const WORDS: usize = 512;
}

impl Work for Overwrite {
    fn step(&mut self, dir: &Path, random: &mut Random, promises: Promises) -> io::Result<()> {
        let path = dir.join("blocks");
        if self.blocks.is_empty() {
            fs::write(&path, vec![0; Overwrite::BLOCKS * Overwrite::WORDS * 8])?;
            fsync(&path)?;
            self.blocks = vec![Block::default(); Overwrite::BLOCKS];
        }
        let file = OpenOptions::new().write(true).open(&path)?;
        let at = random.below(Overwrite::BLOCKS as u64) as usize;
        self.blocks[at].tried += 1;
        let version = self.blocks[at].tried;
        let block = version.to_le_bytes().repeat(Overwrite::WORDS);
        file.write_all_at(&block, (at * block.len()) as u64)?;
        self.blocks[at].whole = version;
        self.whole = promises.requests();
        if self.whole {
            self.blocks[at].promised = version;
        }
        if random.one_in(6) {
            file.sync_data()?;
            for block in &mut self.blocks {
                block.promised = block.whole;
            }
        }
        Ok(())
    }

    fn verify(&mut self, dir: &Path, _: Promises) -> Result<(), String> {
        if self.blocks.is_empty() {
            return Ok(());
        }
        let found = contents(&dir.join("blocks"))?.ok_or("the file is gone")?;
        if found.len() != Overwrite::BLOCKS * Overwrite::WORDS * 8 {
            return Err(format!("{} bytes", found.len()));
        }
        let blocks = found.chunks_exact(Overwrite::WORDS * 8);
        for (at, (block, state)) in blocks.zip(&mut self.blocks).enumerate() {
            let words = block.chunks_exact(8);
            let versions =
                words.map(|word| word.iter().rev().fold(0, |v, &b| v << 8 | u64::from(b)));
            let (oldest, newest) = versions.fold((u64::MAX, 0), |(a, b), v| (a.min(v), b.max(v)));
            let torn = self.whole && oldest != newest;
            if torn || oldest < state.promised || newest > state.tried {
                return Err(format!(
                    "block {at}: versions {oldest} to {newest}, not {} to {}",
                    state.promised, state.tried
                ));
            }
            (state.promised, state.whole, state.tried) = (oldest, oldest, newest);
        }
        Ok(())
    }

    fn copy(&self) -> Box<dyn Work> {
        Box::new(self.clone())
    }
}

/// Writes, cuts, extends, punches and reserves in one file: each word of it is one that its block
/// had since the last promise, and so is the size.
#[derive(Clone, Default)]
pub struct Resize {
    made: bool,
    /// The next value to write. Each is used once.
    next: u64,
    size: BTreeSet<u64>,
    size_now: u64,
    /// Of each block the values that its words may have; 0 is a hole.
    blocks: Vec<Words>,
}

#[derive(Clone)]
struct Words {
    /// What its words are now: several values, if a crash left it torn.
    now: BTreeSet<u64>,
    may: BTreeSet<u64>,
}

impl Words {
    /// A hole, surely.
    fn hole() -> Words {
        Words {
            now: BTreeSet::from([0]),
            may: BTreeSet::from([0]),
        }
    }

    fn set(&mut self, value: u64) {
        self.now = BTreeSet::from([value]);
        self.may.insert(value);
    }
}

impl Resize {
    const BLOCKS: u64 = 24;
    const BLOCK: u64 = 4096;

    fn set_size(&mut self, size: u64) {
        self.size_now = size;
        self.size.insert(size);
    }

    /// What is beyond this block is zero from now on.
    fn cut(&mut self, from: u64) {
        for words in &mut self.blocks[from as usize..] {
            words.set(0);
        }
    }

    fn promise(&mut self) {
        self.size = BTreeSet::from([self.size_now]);
        for words in &mut self.blocks {
            words.may.clone_from(&words.now);
        }
    }

    fn change(&mut self, file: &File, random: &mut Random) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        let at = random.below(Resize::BLOCKS);
        let from = at * Resize::BLOCK;
        match random.below(8) {
            0..4 => {
                self.next += 1;
                self.blocks[at as usize].set(self.next);
                self.set_size(self.size_now.max(from + Resize::BLOCK));
                let words = (Resize::BLOCK / 8) as usize;
                file.write_all_at(&self.next.to_le_bytes().repeat(words), from)
            }
            4 => {
                self.cut(at);
                self.set_size(from);
                file.set_len(from)
            }
            5 => {
                self.set_size(self.size_now.max(from));
                file.set_len(self.size_now)
            }
            6 => {
                self.blocks[at as usize].set(0);
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                Ok(fallocate(file, flags, from, Resize::BLOCK)?)
            }
            _ => {
                self.set_size(self.size_now.max(from + 2 * Resize::BLOCK));
                Ok(fallocate(
                    file,
                    FallocateFlags::empty(),
                    from,
                    2 * Resize::BLOCK,
                )?)
            }
        }
    }
}

impl Work for Resize {
    fn step(&mut self, dir: &Path, random: &mut Random, promises: Promises) -> io::Result<()> {
        let path = dir.join("file");
        if !self.made {
            File::create(&path)?;
            fsync(&path)?;
            self.made = true;
            self.blocks = vec![Words::hole(); Resize::BLOCKS as usize + 2];
            self.promise();
        }
        let file = OpenOptions::new().write(true).open(&path)?;
        self.change(&file, random)?;
        let synced = random.one_in(6);
        if synced {
            file.sync_all()?;
        }
        if synced || promises.requests() {
            self.promise();
        }
        Ok(())
    }

    fn verify(&mut self, dir: &Path, _: Promises) -> Result<(), String> {
        if !self.made {
            return Ok(());
        }
        let found = contents(&dir.join("file"))?.ok_or("the file is gone")?;
        let size = found.len() as u64;
        if !self.size.contains(&size) {
            return Err(format!("{size} bytes, none of {:?}", self.size));
        }
        for (at, block) in found.chunks(Resize::BLOCK as usize).enumerate() {
            let words = &mut self.blocks[at];
            let mut seen = BTreeSet::new();
            for word in block.as_chunks::<8>().0 {
                seen.insert(u64::from_le_bytes(*word));
            }
            if !seen.is_subset(&words.may) {
                return Err(format!("block {at}: {seen:?}, not of {:?}", words.may));
            }
            (words.now, words.may) = (seen.clone(), seen);
        }
        // What was beyond the end is gone.
        for words in &mut self.blocks[size.div_ceil(Resize::BLOCK) as usize..] {
            *words = Words::hole();
        }
        (self.size_now, self.size) = (size, BTreeSet::from([size]));
        Ok(())
    }

    fn copy(&self) -> Box<dyn Work> {
        Box::new(self.clone())
    }
}

/// Sets and removes an extended attribute of a file: it has one of its values since the last
/// promise, whole.
#[derive(Clone, Default)]
pub struct Attributes {
    made: bool,
    next: u64,
    now: u64,
    /// The values it may have; 0 is none.
    may: BTreeSet<u64>,
}

impl Attributes {
    const NAME: &str = "user.value";

    fn value(number: u64) -> Vec<u8> {
        let mut value = number.to_le_bytes().to_vec();
        value.extend(pattern(number, 0, number * 977 % 6000));
        value
    }
}

impl Work for Attributes {
    fn step(&mut self, dir: &Path, random: &mut Random, promises: Promises) -> io::Result<()> {
        use rustix::fs::{XattrFlags, fremovexattr, fsetxattr};
        let path = dir.join("file");
        if !self.made {
            File::create(&path)?;
            fsync(&path)?;
            (self.made, self.may) = (true, BTreeSet::from([0]));
        }
        let file = File::open(&path)?;
        if self.now != 0 && random.one_in(4) {
            (self.now, _) = (0, self.may.insert(0));
            fremovexattr(&file, Attributes::NAME)?;
        } else {
            self.next += 1;
            (self.now, _) = (self.next, self.may.insert(self.next));
            fsetxattr(
                &file,
                Attributes::NAME,
                &Attributes::value(self.next),
                XattrFlags::empty(),
            )?;
        }
        if random.one_in(5) {
            file.sync_all()?;
        } else if !promises.names() {
            return Ok(());
        }
        self.may = BTreeSet::from([self.now]);
        Ok(())
    }

    fn verify(&mut self, dir: &Path, _: Promises) -> Result<(), String> {
        if !self.made {
            return Ok(());
        }
        let mut value = vec![0; 8000];
        let found = match rustix::fs::getxattr(dir.join("file"), Attributes::NAME, &mut value) {
            Ok(len) => {
                value.truncate(len);
                let first = value.first_chunk().ok_or("the value is cut short")?;
                let number = u64::from_le_bytes(*first);
                if value != Attributes::value(number) {
                    return Err(format!("value {number} is not whole"));
                }
                number
            }
            Err(rustix::io::Errno::NODATA) => 0,
            Err(error) => return Err(error.to_string()),
        };
        if !self.may.contains(&found) {
            return Err(format!("value {found}, none of {:?}", self.may));
        }
        (self.now, self.may) = (found, BTreeSet::from([found]));
        Ok(())
    }

    fn copy(&self) -> Box<dyn Work> {
        Box::new(self.clone())
    }
}
