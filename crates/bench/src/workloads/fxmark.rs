//! FxMark's microbenchmarks (HTMFS Fig. 8, Table 4): one operation, in files and directories that
//! threads have for themselves (L), share in part (M), or share altogether (H).

use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::threads::run_threads;
use crate::sampler::{Sampler, Workload, figure};
use crate::target::{Result, Target};

const BLOCK: usize = 4096;
/// Names that a thread makes, removes or moves in a round, at most.
const NAMES: u64 = 20_000;
/// Blocks that a thread appends in a round, at most.
const BLOCKS: u64 = 8192;
/// Names in a directory that is listed.
const LISTED: u64 = 1_000;

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Overwrite a block of a private file.
    Dwol,
    /// Overwrite a private block of a shared file.
    Dwom,
    /// Overwrite the same block of a shared file.
    Dwoh,
    /// Append a block to a private file.
    Dwal,
    /// Read a block of a private file.
    Drbl,
    /// Read a private block of a shared file.
    Drbm,
    /// Read the same block of a shared file.
    Drbh,
    /// Create files in a private directory.
    Mwcl,
    /// Create files in a shared directory.
    Mwcm,
    /// Remove files from a private directory.
    Mwul,
    /// Rename files within a private directory.
    Mwrl,
    /// Move files from a private directory to a shared one.
    Mwrm,
    /// Open a private file, five directories deep.
    Mrpl,
    /// List a private directory.
    Mrdl,
}

impl Kind {
    /// All of them, in the order of the papers.
    pub const ALL: [Kind; 14] = [
        Kind::Dwol,
        Kind::Dwom,
        Kind::Dwoh,
        Kind::Dwal,
        Kind::Drbl,
        Kind::Drbm,
        Kind::Drbh,
        Kind::Mwcl,
        Kind::Mwcm,
        Kind::Mwul,
        Kind::Mwrl,
        Kind::Mwrm,
        Kind::Mrpl,
        Kind::Mrdl,
    ];

    /// As FxMark calls it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Dwol => "DWOL",
            Kind::Dwom => "DWOM",
            Kind::Dwoh => "DWOH",
            Kind::Dwal => "DWAL",
            Kind::Drbl => "DRBL",
            Kind::Drbm => "DRBM",
            Kind::Drbh => "DRBH",
            Kind::Mwcl => "MWCL",
            Kind::Mwcm => "MWCM",
            Kind::Mwul => "MWUL",
            Kind::Mwrl => "MWRL",
            Kind::Mwrm => "MWRM",
            Kind::Mrpl => "MRPL",
            Kind::Mrdl => "MRDL",
        }
    }

    /// What a thread does.
    pub fn about(self) -> &'static str {
        match self {
            Kind::Dwol => "overwrite a block of a private file",
            Kind::Dwom => "overwrite a private block of a shared file",
            Kind::Dwoh => "overwrite the same block of a shared file",
            Kind::Dwal => "append a block to a private file",
            Kind::Drbl => "read a block of a private file",
            Kind::Drbm => "read a private block of a shared file",
            Kind::Drbh => "read the same block of a shared file",
            Kind::Mwcl => "create in a private directory",
            Kind::Mwcm => "create in a shared directory",
            Kind::Mwul => "unlink in a private directory",
            Kind::Mwrl => "rename within a private directory",
            Kind::Mwrm => "move into a shared directory",
            Kind::Mrpl => "open a private file, five deep",
            Kind::Mrdl => "list a private directory (entries)",
        }
    }

    /// Where HTMFS shows it; empty if it does not.
    pub fn figure(self) -> &'static str {
        match self {
            Kind::Dwol => "HTMFS Fig. 8(a)",
            Kind::Dwom => "HTMFS Fig. 8(b)",
            Kind::Dwoh => "HTMFS Table 4",
            Kind::Dwal => "HTMFS Fig. 8(c)",
            Kind::Drbl => "HTMFS Fig. 8(d)",
            Kind::Mwcl => "HTMFS Fig. 8(e)",
            Kind::Mwcm => "HTMFS Fig. 8(f)",
            Kind::Mwrl => "HTMFS Fig. 8(g)",
            Kind::Mwrm => "HTMFS Fig. 8(h)",
            Kind::Drbm | Kind::Drbh | Kind::Mwul | Kind::Mrpl | Kind::Mrdl => "",
        }
    }

    /// It stores to the medium.
    pub fn writes(self) -> bool {
        !matches!(
            self,
            Kind::Drbl | Kind::Drbm | Kind::Drbh | Kind::Mrpl | Kind::Mrdl
        )
    }

    /// What a step may do at most before its material is used up, divided for a quick look.
    fn most(self, divide: u64) -> u64 {
        let most = match self {
            Kind::Dwal => BLOCKS,
            Kind::Mwcl | Kind::Mwcm | Kind::Mwul | Kind::Mwrl | Kind::Mwrm => NAMES,
            _ => return u64::MAX,
        };
        (most / divide).max(1)
    }
}

/// A benchmark that is set up on a target, for so many threads.
pub struct Stage<'a, T: Target> {
    kind: Kind,
    target: &'a T,
    /// What each thread has.
    own: Vec<Own<T>>,
}

/// What a thread has.
struct Own<T: Target> {
    file: Option<T::File>,
    /// Offset of its block.
    at: u64,
    path: CString,
    /// Names to make, remove or move; where they go.
    from: Vec<CString>,
    to: Vec<CString>,
}

impl<'a, T: Target> Stage<'a, T> {
    /// Make what `steps` steps of each thread need, which is nothing where they can go on for ever.
    pub fn new(kind: Kind, target: &'a T, threads: usize, steps: u64) -> Result<Stage<'a, T>> {
        target.mkdir(c"shared")?;
        let mut own = Vec::new();
        for thread in 0..threads {
            own.push(Own::new(kind, target, thread, steps)?);
        }
        target.sync()?;
        Ok(Stage { kind, target, own })
    }

    /// The `i`th step of a thread; returns how many operations that was.
    #[inline]
    pub fn step(&self, thread: usize, i: u64, block: &mut [u8]) -> Result<u64> {
        let (target, own) = (self.target, &self.own[thread]);
        let file = || own.file.ok_or("no file was opened");
        match self.kind {
            Kind::Dwol | Kind::Dwom | Kind::Dwoh => target.write_at(file()?, block, own.at)?,
            Kind::Dwal => target.write(file()?, block)?,
            Kind::Drbl | Kind::Drbm | Kind::Drbh => target.read_at(file()?, block, own.at)?,
            Kind::Mwcl | Kind::Mwcm => target.create_close(&own.from[i as usize])?,
            Kind::Mwul => target.unlink(&own.from[i as usize])?,
            Kind::Mwrl | Kind::Mwrm => {
                target.rename(&own.from[i as usize], &own.to[i as usize])?;
            }
            Kind::Mrpl => target.close(target.open(&own.path, false)?)?,
            Kind::Mrdl => return target.list(&own.path),
        }
        Ok(1)
    }

    /// Remove all of it; each thread has done so many steps.
    pub fn clear(self, steps: &[u64]) -> Result<()> {
        for (thread, (own, done)) in self.own.iter().zip(steps).enumerate() {
            own.clear(self.kind, self.target, thread, *done as usize)?;
        }
        self.target.rmdir(c"shared")?;
        self.target.sync()
    }
}

fn path(text: String) -> Result<CString> {
    Ok(CString::new(text)?)
}

/// Directories of MRPL, below a thread's own.
const DEEP: [&str; 4] = ["a", "a/b", "a/b/c", "a/b/c/d"];

impl<T: Target> Own<T> {
    fn new(kind: Kind, target: &T, thread: usize, steps: u64) -> Result<Own<T>> {
        let dir = format!("t{thread}");
        target.mkdir(&path(dir.clone())?)?;
        let names = |prefix: String| -> Result<Vec<CString>> {
            (0..steps)
                .map(|i| path(format!("{prefix}{i:06}")))
                .collect()
        };
        let mut own = Own {
            file: None,
            at: 0,
            path: path(format!("{dir}/file"))?,
            from: Vec::new(),
            to: Vec::new(),
        };
        match kind {
            Kind::Dwol | Kind::Drbl => own.open(target, &own.path.clone(), thread, 0)?,
            Kind::Dwom | Kind::Drbm => {
                own.path = path("shared/file".into())?;
                own.open(target, c"shared/file", thread, thread as u64 * BLOCK as u64)?;
            }
            Kind::Dwoh | Kind::Drbh => {
                own.path = path("shared/file".into())?;
                own.open(target, c"shared/file", thread, 0)?;
            }
            Kind::Dwal => {
                target.create_close(&own.path)?;
                own.file = Some(target.open(&own.path, true)?);
            }
            Kind::Mwcl => own.from = names(format!("{dir}/"))?,
            Kind::Mwcm => own.from = names(format!("shared/{dir}-"))?,
            Kind::Mwul | Kind::Mwrl | Kind::Mwrm => {
                own.from = names(format!("{dir}/"))?;
                own.from
                    .iter()
                    .try_for_each(|name| target.create_close(name))?;
                own.to = match kind {
                    Kind::Mwrl => names(format!("{dir}/to-"))?,
                    Kind::Mwrm => names(format!("shared/{dir}-"))?,
                    _ => Vec::new(),
                };
            }
            Kind::Mrpl => {
                for deep in DEEP {
                    target.mkdir(&path(format!("{dir}/{deep}"))?)?;
                }
                own.path = path(format!("{dir}/{}/file", DEEP[3]))?;
                target.create_close(&own.path)?;
            }
            Kind::Mrdl => {
                for i in 0..LISTED {
                    target.create_close(&path(format!("{dir}/{i:06}"))?)?;
                }
                own.path = path(dir)?;
            }
        }
        Ok(own)
    }

    /// Open a file, which the first thread that wants it makes, and write this thread's block.
    fn open(&mut self, target: &T, file: &CStr, thread: usize, at: u64) -> Result<()> {
        let private = file.to_bytes().starts_with(b"t");
        if private || thread == 0 {
            target.create_close(file)?;
        }
        let open = target.open(file, false)?;
        target.write_at(open, &[0x64; BLOCK], at)?;
        (self.file, self.at) = (Some(open), at);
        Ok(())
    }

    fn clear(&self, kind: Kind, target: &T, thread: usize, done: usize) -> Result<()> {
        let dir = format!("t{thread}");
        if let Some(file) = self.file {
            target.close(file)?;
        }
        let unlink = |names: &[CString]| names.iter().try_for_each(|name| target.unlink(name));
        match kind {
            Kind::Dwol | Kind::Drbl | Kind::Dwal => target.unlink(&self.path)?,
            Kind::Dwom | Kind::Drbm | Kind::Dwoh | Kind::Drbh => {
                if thread == 0 {
                    target.unlink(&self.path)?;
                }
            }
            Kind::Mwcl | Kind::Mwcm => unlink(&self.from[..done])?,
            Kind::Mwul => unlink(&self.from[done..])?,
            Kind::Mwrl | Kind::Mwrm => {
                unlink(&self.to[..done])?;
                unlink(&self.from[done..])?;
            }
            Kind::Mrpl => {
                target.unlink(&self.path)?;
                for deep in DEEP.iter().rev() {
                    target.rmdir(&path(format!("{dir}/{deep}"))?)?;
                }
            }
            Kind::Mrdl => {
                for i in 0..LISTED {
                    target.unlink(&path(format!("{dir}/{i:06}"))?)?;
                }
            }
        }
        target.rmdir(&path(dir)?)
    }
}

/// Some of them, at each count of threads.
pub struct FxMark<'a>(pub &'a [Kind]);

impl Workload for FxMark<'_> {
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
        let (window, divide) = (sampler.plan().window, sampler.plan().divide);
        for &kind in self.0 {
            for threads in sampler.plan().threads.clone() {
                let most = kind.most(divide);
                let material = if most == u64::MAX { 0 } else { most };
                let stage = Stage::new(kind, target, threads, material)?;
                let steps: Vec<_> = (0..threads).map(|_| AtomicU64::new(0)).collect();
                sampler.rate(figure(kind.name(), threads), || {
                    run_threads(threads, Some(window), |thread, until| {
                        let (mut block, mut ops) = ([0x65; BLOCK], 0);
                        let done = until.repeat(most, 16, |i| {
                            ops += stage.step(thread, i, &mut block)?;
                            Ok(())
                        })?;
                        steps[thread].store(done, Relaxed);
                        Ok(ops)
                    })
                })?;
                sampler.persist(target)?;
                let steps: Vec<u64> = steps.into_iter().map(AtomicU64::into_inner).collect();
                stage.clear(&steps)?;
            }
        }
        Ok(())
    }
}
