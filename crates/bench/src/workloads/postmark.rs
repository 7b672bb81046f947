//! PostMark (SoupFS Fig. 10): small files made, read, appended to and removed, as mail servers do,
//! with the defaults of version 1.5 but for the number of transactions, which is the paper's.

use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use super::fileset::FileSet;
use super::threads::run_threads;
use crate::sampler::{Sampler, Workload, figure};
use crate::target::{Result, Target};

/// Files at the beginning, and twice as many that there can be.
const FILES: u64 = 500;
/// Sizes of files: bytes.
const SIZE_MIN: u64 = 500;
const SIZE_MAX: u64 = 9770;
/// Of a read or write: it goes through the C library, which does so much at once.
const IO: usize = 4096;
/// Chances in ten to read rather than append, to create rather than delete.
const BIAS: u64 = 5;

/// The chart of [`Postmark`].
pub const CHART: &str = "postmark";

/// One thread's transactions.
pub struct Postmark {
    /// How many there are in a round, at most.
    pub transactions: u64,
}

impl Workload for Postmark {
    type State = ();

    fn prepare<T: Target>(&self, _target: &T) -> Result<()> {
        Ok(())
    }

    fn round<T: Target>(
        &self,
        target: &T,
        _state: &mut (),
        sampler: &mut Sampler<'_>,
    ) -> Result<()> {
        let paths = (0..2 * FILES).map(|i| CString::new(format!("{i:04}")));
        let paths = paths.collect::<std::result::Result<_, _>>()?;
        let mut mail = Mail {
            files: FileSet::new(paths, 42),
            out: vec![0x63; IO],
            back: vec![0; IO],
        };
        (0..FILES).try_for_each(|_| mail.create(target))?;
        let window = Some(sampler.plan().window);
        let mail = Mutex::new(mail);
        sampler.rate(figure(CHART, "transactions"), || {
            run_threads(1, window, |_, until| {
                let mut mail = mail.lock().unwrap_or_else(PoisonError::into_inner);
                until.repeat(self.transactions, 16, |_| mail.transaction(target))
            })
        })?;
        sampler.persist(target)?;
        let mut mail = mail.into_inner().unwrap_or_else(PoisonError::into_inner);
        while !mail.files.is_empty() {
            mail.files.delete(target)?;
        }
        target.sync()
    }
}

struct Mail {
    files: FileSet,
    out: Vec<u8>,
    back: Vec<u8>,
}

impl Mail {
    /// Read or append, then create or delete.
    fn transaction<T: Target>(&mut self, target: &T) -> Result<()> {
        if !self.files.is_empty() {
            match self.files.random.below(10) < BIAS {
                true => self.read(target)?,
                false => self.append(target)?,
            }
        }
        let create = self.files.random.below(10) < BIAS;
        if self.files.is_empty() || create && !self.files.is_full() {
            self.create(target)
        } else {
            self.files.delete(target)
        }
    }

    fn create<T: Target>(&mut self, target: &T) -> Result<()> {
        let size = SIZE_MIN + self.files.random.below(SIZE_MAX - SIZE_MIN + 1);
        let (file, open) = self.files.create(target)?;
        self.files.write(target, (file, open), size, &self.out)?;
        target.close(open)
    }

    fn read<T: Target>(&mut self, target: &T) -> Result<()> {
        let file = self.files.pick()?;
        let open = target.open(self.files.path(file), false)?;
        self.files.read(target, (file, open), &mut self.back)?;
        target.close(open)
    }

    /// By a random length that leaves the file within its limit.
    fn append<T: Target>(&mut self, target: &T) -> Result<()> {
        let file = self.files.pick()?;
        let room = SIZE_MAX.saturating_sub(self.files.size(file));
        let open = target.open(self.files.path(file), true)?;
        let len = self.files.random.below(room + 1);
        self.files.write(target, (file, open), len, &self.out)?;
        target.close(open)
    }
}
