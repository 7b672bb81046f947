//! Files in many directories, and a process that makes and removes files until it is killed.

use std::ffi::CString;

use serde::{Deserialize, Serialize};

use crate::target::{Engine, Result, Target};

/// Directories with files in them.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Tree {
    /// Directories in the root.
    pub dirs: u64,
    /// Files in each.
    pub files: u64,
    /// One file in so many has a block of contents; 0: none has.
    pub data_every: u64,
}

/// Files that a churning process makes before it says that it is ready, and before it removes
/// them.
const CHURN: u64 = 100_000;

/// Files of a churning process that are open without a name, with a block of contents each.
const ORPHANS: u64 = 1_000;

impl Tree {
    /// Files in all.
    pub fn count(&self) -> u64 {
        self.dirs * self.files
    }

    /// Make it in the root.
    pub fn build(&self, engine: &impl Target) -> Result<()> {
        self.build_at(engine, "")
    }

    /// Make it in a directory, which is made, too.
    pub fn build_in(&self, engine: &impl Target, parent: &str) -> Result<()> {
        engine.mkdir(&CString::new(parent)?)?;
        self.build_at(engine, &format!("{parent}/"))
    }

    fn build_at(&self, engine: &impl Target, prefix: &str) -> Result<()> {
        let data = vec![1; 4096];
        for dir in 0..self.dirs {
            engine.mkdir(&CString::new(format!("{prefix}{dir}"))?)?;
            for file in 0..self.files {
                let path = CString::new(format!("{prefix}{dir}/{file}"))?;
                let handle = engine.create(&path)?;
                if self.data_every > 0 && file % self.data_every == 0 {
                    engine.write(handle, &data)?;
                }
                engine.close(handle)?;
            }
        }
        engine.sync()
    }
}

/// Make files and remove them, in turns, until `stop`; `ready` is called once, early in the second
/// turn: some changes are persisted then, some are not.
pub fn churn(engine: &Engine, ready: impl FnOnce(), mut stop: impl FnMut() -> bool) -> Result<()> {
    let dir = format!("churn{}-{}", std::process::id(), engine.status().epoch);
    engine.mkdir(&CString::new(dir.as_str())?)?;
    let mut ready = Some(ready);
    for turn in 0u64.. {
        let name = |i| CString::new(format!("{dir}/{turn}-{i}"));
        for i in 0..CHURN {
            engine.create_close(&name(i)?)?;
            if turn == 1 && i == CHURN / 2 {
                ready.take().into_iter().for_each(|ready| ready());
            }
            if stop() {
                return Ok(());
            }
        }
        for i in 0..CHURN {
            engine.unlink(&name(i)?)?;
            if stop() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Files that are open and have no name left, durably: what a kill is sure to lose track of.
pub fn orphans(engine: &Engine) -> Result<()> {
    for i in 0..ORPHANS {
        let name = CString::new(format!("orphan{i}"))?;
        let file = engine.create(&name)?;
        engine.write(file, &[7; 4096])?;
        engine.fsync(file)?;
        engine.unlink(&name)?;
    }
    engine.sync()
}
