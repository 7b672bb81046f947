//! A set of files that threads share out: which exist, which may be made, how large they are.
//!
//! Filebench lets threads pick from one locked list. Here each thread has a part of the files for
//! as long as a phase lasts, so that what is measured is the file system and not the list; the
//! files of all threads lie in the same directories.

use std::ffi::{CStr, CString};

use block::Random;

use crate::target::{Result, Target};

/// A file that exists.
#[derive(Debug)]
struct Entry {
    path: CString,
    size: u64,
}

/// Files, or a thread's part of them.
#[derive(Debug)]
pub struct FileSet {
    present: Vec<Entry>,
    absent: Vec<CString>,
    /// Which is next.
    pub random: Random,
}

/// A file that was picked: it stays where it is.
#[derive(Debug, Clone, Copy)]
pub struct Picked(usize);

impl FileSet {
    /// Paths of files that do not exist yet.
    pub fn new(paths: Vec<CString>, seed: u64) -> FileSet {
        FileSet {
            present: Vec::new(),
            absent: paths,
            random: Random::new(seed),
        }
    }

    /// Share all of it out to so many threads.
    pub fn deal(&mut self, threads: usize) -> Vec<FileSet> {
        let mut parts: Vec<FileSet> = (0..threads)
            .map(|_| FileSet::new(Vec::new(), self.random.number()))
            .collect();
        for (i, entry) in self.present.drain(..).enumerate() {
            parts[i % threads].present.push(entry);
        }
        for (i, path) in self.absent.drain(..).enumerate() {
            parts[i % threads].absent.push(path);
        }
        parts
    }

    /// Take a thread's part back.
    pub fn gather(&mut self, part: FileSet) {
        self.present.extend(part.present);
        self.absent.extend(part.absent);
    }

    /// How many exist.
    pub fn len(&self) -> usize {
        self.present.len()
    }

    /// None exists.
    pub fn is_empty(&self) -> bool {
        self.present.is_empty()
    }

    /// All of them exist.
    pub fn is_full(&self) -> bool {
        self.absent.is_empty()
    }

    /// One that exists.
    pub fn pick(&mut self) -> Result<Picked> {
        match self.random.below(self.present.len() as u64) {
            _ if self.present.is_empty() => Err("no file is left to use".into()),
            i => Ok(Picked(i as usize)),
        }
    }

    /// The path of a file.
    pub fn path(&self, file: Picked) -> &CStr {
        &self.present[file.0].path
    }

    /// The size of a file: bytes.
    pub fn size(&self, file: Picked) -> u64 {
        self.present[file.0].size
    }

    /// Make one that does not exist and open it.
    pub fn create<T: Target>(&mut self, target: &T) -> Result<(Picked, T::File)> {
        let i = self.random.below(self.absent.len() as u64) as usize;
        if self.absent.is_empty() {
            return Err("no file is left to make".into());
        }
        let path = self.absent.swap_remove(i);
        let open = target.create(&path)?;
        self.present.push(Entry { path, size: 0 });
        Ok((Picked(self.present.len() - 1), open))
    }

    /// Remove one that exists. Whoever was picked before is another one now.
    pub fn delete<T: Target>(&mut self, target: &T) -> Result<()> {
        let file = self.pick()?;
        let entry = self.present.swap_remove(file.0);
        target.unlink(&entry.path)?;
        self.absent.push(entry.path);
        Ok(())
    }

    /// Write `len` bytes at an open file's position, `io` at a time.
    pub fn write<T: Target>(
        &mut self,
        target: &T,
        (file, open): (Picked, T::File),
        len: u64,
        io: &[u8],
    ) -> Result<()> {
        let mut left = len;
        while left > 0 {
            let part = left.min(io.len() as u64);
            target.write(open, &io[..part as usize])?;
            left -= part;
        }
        self.present[file.0].size += len;
        Ok(())
    }

    /// Read all of an open file, `io` at a time.
    pub fn read<T: Target>(
        &self,
        target: &T,
        (file, open): (Picked, T::File),
        io: &mut [u8],
    ) -> Result<()> {
        let (mut at, size) = (0, self.size(file));
        while at < size {
            let part = (size - at).min(io.len() as u64);
            target.read_at(open, &mut io[..part as usize], at)?;
            at += part;
        }
        Ok(())
    }
}
