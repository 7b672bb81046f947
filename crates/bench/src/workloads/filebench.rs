//! Filebench's fileserver, webproxy and varmail (SoupFS Table 4, Fig. 11 and 12; HTMFS Table 5,
//! Fig. 9), with the operations and parameters of its personalities.

use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use super::fileset::FileSet;
use super::gamma;
use super::threads::run_threads;
use crate::sampler::{Sampler, Workload, figure};
use crate::target::{Result, Target};

/// The part of the files that exists at the beginning: percent.
const EXISTING: u64 = 80;
/// Sizes of appends are drawn up to this.
const APPEND: u64 = 16 << 10;
/// Files that webproxy reads in a loop.
const READS: usize = 5;

/// One of Filebench's personalities.
#[derive(Debug, Clone, Copy)]
pub struct Personality {
    /// As in the papers' figures.
    pub name: &'static str,
    /// Where those are.
    pub figure: &'static str,
    /// Files in the set.
    pub files: u64,
    /// Of files in the beginning, drawn from a gamma distribution: bytes.
    pub mean_size: u64,
    /// Of a read or write: bytes.
    pub io: usize,
    /// Files in a directory; no more than this many.
    pub dir_width: u64,
    flow: Flow,
}

/// What a thread does, over and over.
#[derive(Debug, Clone, Copy)]
enum Flow {
    Fileserver,
    Webproxy,
    Varmail,
}

/// All of them, with the parameters of SoupFS's Table 4.
pub const PERSONALITIES: [Personality; 4] = [
    Personality {
        name: "fileserver",
        figure: "SoupFS Fig. 11(a), 12(a)",
        files: 10_000,
        mean_size: 128 << 10,
        io: 1 << 20,
        dir_width: 20,
        flow: Flow::Fileserver,
    },
    Personality {
        name: "fileserver-1K",
        figure: "SoupFS Fig. 11(b), 12(b)",
        files: 10_000,
        mean_size: 1 << 10,
        io: 1 << 20,
        dir_width: 20,
        flow: Flow::Fileserver,
    },
    Personality {
        name: "webproxy",
        figure: "SoupFS Fig. 11(c), 12(c); HTMFS Fig. 9",
        files: 10_000,
        mean_size: 16 << 10,
        io: 16 << 10,
        dir_width: 1_000_000,
        flow: Flow::Webproxy,
    },
    Personality {
        name: "varmail",
        figure: "SoupFS Fig. 11(d), 12(d); HTMFS Fig. 9",
        files: 5_000,
        mean_size: 16 << 10,
        io: 1 << 20,
        dir_width: 1_000_000,
        flow: Flow::Varmail,
    },
];

impl Flow {
    /// Operations in a loop, as Filebench counts them.
    fn ops(self) -> u64 {
        match self {
            Flow::Fileserver => 11,
            Flow::Webproxy => 4 + 3 * READS as u64,
            Flow::Varmail => 13,
        }
    }
}

/// Threads at one of the personalities.
pub struct Filebench {
    /// Which.
    pub personality: Personality,
    /// Files, after scaling.
    pub files: u64,
}

impl Filebench {
    /// Room that the files need, with what grows meanwhile: bytes.
    pub fn room(&self) -> u64 {
        // Appends of 8 KiB on average, and whole pages.
        let each = self.personality.mean_size + APPEND / 2 + 4096;
        (256 << 20) + 2 * self.files * each
    }

    /// The paths of all files; their directories are made.
    fn paths<T: Target>(&self, target: &T) -> Result<Vec<CString>> {
        let width = self.personality.dir_width;
        let dirs = self.files.div_ceil(width);
        let upper = dirs.div_ceil(width);
        for dir in 0..upper {
            target.mkdir(&CString::new(format!("{dir:05}"))?)?;
        }
        for dir in 0..dirs {
            target.mkdir(&CString::new(format!("{:05}/{dir:05}", dir / width))?)?;
        }
        let path = |i: u64| {
            let dir = i / width;
            Ok(CString::new(format!("{:05}/{dir:05}/{i:08}", dir / width))?)
        };
        (0..self.files).map(path).collect()
    }
}

impl Workload for Filebench {
    type State = FileSet;

    fn prepare<T: Target>(&self, target: &T) -> Result<FileSet> {
        let mut files = FileSet::new(self.paths(target)?, 1);
        let io = vec![0x61; self.personality.io];
        for _ in 0..self.files * EXISTING / 100 {
            let size = gamma(&mut files.random, self.personality.mean_size as f64);
            let (file, open) = files.create(target)?;
            files.write(target, (file, open), size, &io)?;
            target.close(open)?;
        }
        target.sync()?;
        Ok(files)
    }

    fn round<T: Target>(
        &self,
        target: &T,
        state: &mut FileSet,
        sampler: &mut Sampler<'_>,
    ) -> Result<()> {
        let window = Some(sampler.plan().window);
        for threads in sampler.plan().threads.clone() {
            let parts: Vec<Mutex<Worker>> = state
                .deal(threads)
                .into_iter()
                .map(|files| Mutex::new(Worker::new(files, self.personality)))
                .collect();
            sampler.rate(figure(self.personality.name, threads), || {
                let mut done = run_threads(threads, window, |number, until| {
                    let mut own = parts[number].lock().unwrap_or_else(PoisonError::into_inner);
                    until.repeat(u64::MAX, 1, |_| own.turn(target, self.personality.flow))
                })?;
                done.ops *= self.personality.flow.ops();
                Ok(done)
            })?;
            for part in parts {
                state.gather(
                    part.into_inner()
                        .unwrap_or_else(PoisonError::into_inner)
                        .files,
                );
            }
            sampler.persist(target)?;
        }
        Ok(())
    }
}

/// A thread, with its files and buffers.
struct Worker {
    files: FileSet,
    mean_size: u64,
    out: Vec<u8>,
    back: Vec<u8>,
}

impl Worker {
    fn new(files: FileSet, personality: Personality) -> Worker {
        Worker {
            files,
            mean_size: personality.mean_size,
            out: vec![0x62; personality.io],
            back: vec![0; personality.io],
        }
    }

    fn turn<T: Target>(&mut self, target: &T, flow: Flow) -> Result<()> {
        match flow {
            Flow::Fileserver => self.fileserver(target),
            Flow::Webproxy => self.webproxy(target),
            Flow::Varmail => self.varmail(target),
        }
    }

    /// Make and write a file, append to one, read one, remove one, look at one.
    fn fileserver<T: Target>(&mut self, target: &T) -> Result<()> {
        // As the first ones: files as large as some that are there would grow with what is appended
        // to those.
        let size = gamma(&mut self.files.random, self.mean_size as f64);
        let (file, open) = self.files.create(target)?;
        self.files.write(target, (file, open), size, &self.out)?;
        target.close(open)?;
        self.append(target, false)?;
        self.read_one(target)?;
        self.files.delete(target)?;
        let file = self.files.pick()?;
        target.stat(self.files.path(file)).map(drop)
    }

    /// Replace a file by a new one, read five.
    fn webproxy<T: Target>(&mut self, target: &T) -> Result<()> {
        self.files.delete(target)?;
        self.create_and_append(target, false)?;
        (0..READS).try_for_each(|_| self.read_one(target))
    }

    /// Remove a mail, write one durably, read one and append to it durably, read one.
    fn varmail<T: Target>(&mut self, target: &T) -> Result<()> {
        self.files.delete(target)?;
        self.create_and_append(target, true)?;
        self.append(target, true)?;
        self.read_one(target)
    }

    fn create_and_append<T: Target>(&mut self, target: &T, durable: bool) -> Result<()> {
        let (file, open) = self.files.create(target)?;
        let len = self.append_len();
        self.files.write(target, (file, open), len, &self.out)?;
        if durable {
            target.fsync(open)?;
        }
        target.close(open)
    }

    /// Append to a file; a mail is read before and made durable after.
    fn append<T: Target>(&mut self, target: &T, mail: bool) -> Result<()> {
        let file = self.files.pick()?;
        let open = target.open(self.files.path(file), true)?;
        if mail {
            self.files.read(target, (file, open), &mut self.back)?;
        }
        let len = self.append_len();
        self.files.write(target, (file, open), len, &self.out)?;
        if mail {
            target.fsync(open)?;
        }
        target.close(open)
    }

    fn append_len(&mut self) -> u64 {
        self.files.random.below(APPEND) + 1
    }

    fn read_one<T: Target>(&mut self, target: &T) -> Result<()> {
        let file = self.files.pick()?;
        let open = target.open(self.files.path(file), false)?;
        self.files.read(target, (file, open), &mut self.back)?;
        target.close(open)
    }
}
