//! Who takes part in a run: targets set up from words, and taken away again.
//!
//! - `participant`: one target with its description and its counters
//! - `kernel`: file systems of the kernel's on loop devices
//! - `mount`: processes that serve a FUSE mount
//! - `namespace`: mounts that have a path, and that nobody else sees
//! - `outside`: directories that do not lie below the scratch directory

mod kernel;
mod mount;
mod namespace;
mod outside;
mod participant;

use std::path::Path;

use tempfile::TempDir;

use crate::counters::{CounterSource, disk_of};
use crate::plan::Plan;
use crate::report::Peer;
use crate::target::{Result, Setup, TargetSpec};

pub use kernel::file_system_of;
pub use mount::{MountProcess, end_all as end_mounts};
pub use namespace::with_paths;
pub use outside::{OutsideDir, outside_dirs};
pub use participant::{AnyTarget, Participant};

/// All that take part in a run.
pub struct Participants {
    /// In the order in which they were asked for.
    pub running: Vec<Participant>,
    /// Why others do not.
    pub missing: Vec<Peer>,
    /// Where images and directories are; goes last.
    _home: Home,
}

/// Where images and directories are.
enum Home {
    Scratch(TempDir),
    Disk(OutsideDir),
}

impl Home {
    fn path(&self) -> &Path {
        match self {
            Home::Scratch(dir) => dir.path(),
            Home::Disk(dir) => dir.path(),
        }
    }

    /// The counters of the disk that it is on.
    fn disk(&self) -> Option<CounterSource> {
        match self {
            Home::Scratch(_) => None,
            Home::Disk(dir) => disk_of(dir.path()),
        }
    }
}

impl Participants {
    /// The targets of the plan, each with room for `len` bytes.
    ///
    /// # Errors
    /// See [`Participants::of`].
    pub fn new(plan: &Plan, len: u64) -> Result<Participants> {
        let setup = Setup {
            len,
            ..plan.setup()
        };
        Participants::of(plan, &plan.targets, &setup)
    }

    /// Other targets; engines are set up like `setup` but for what their words say.
    ///
    /// # Errors
    /// If a target cannot be set up that this machine must have, or none is left.
    pub fn of(plan: &Plan, specs: &[TargetSpec], setup: &Setup) -> Result<Participants> {
        let home = Home::Scratch(plan.temp()?);
        Participants::set_up(plan, specs, setup, home)
    }

    /// The same with all that they keep in the plan's directory on an ordinary disk.
    ///
    /// # Errors
    /// See [`Participants::of`].
    pub fn on_disk(plan: &Plan, specs: &[TargetSpec], setup: &Setup) -> Result<Participants> {
        let home = OutsideDir::new(&plan.disk);
        let home = home.map_err(|why| format!("{}: {why}", plan.disk.display()))?;
        Participants::set_up(plan, specs, setup, Home::Disk(home))
    }

    fn set_up(
        plan: &Plan,
        specs: &[TargetSpec],
        setup: &Setup,
        home: Home,
    ) -> Result<Participants> {
        let mut all = Participants {
            running: Vec::new(),
            missing: Vec::new(),
            _home: home,
        };
        for (i, spec) in specs.iter().enumerate() {
            let dir = all._home.path().join(i.to_string());
            std::fs::create_dir(&dir)?;
            match Participant::start(plan, spec, setup, &dir) {
                Ok(participant) => all.running.push(participant),
                // What nobody named, or what the machine lacks, is left out and said.
                Err(why) if spec.is_optional() => all.missing.push(missing(spec, &why)),
                Err(why) => return Err(format!("{}: {why}", spec.name()).into()),
            }
        }
        for one in &mut all.running {
            one.count_also(all._home.disk());
        }
        match all.running.is_empty() {
            false => Ok(all),
            true => Err("no target is left to measure".into()),
        }
    }

    /// One more of them, under a name of its own.
    ///
    /// # Errors
    /// If it cannot be set up.
    pub fn add(&mut self, plan: &Plan, spec: &TargetSpec, setup: &Setup, name: &str) -> Result<()> {
        // Those that are missing have had a directory, too.
        let number = self.running.len() + self.missing.len();
        let dir = self._home.path().join(number.to_string());
        std::fs::create_dir(&dir)?;
        let mut one = Participant::start(plan, spec, setup, &dir)?;
        one.peer.name = name.into();
        one.count_also(self._home.disk());
        self.running.push(one);
        Ok(())
    }

    /// What the report says of them.
    pub fn peers(&self) -> Vec<Peer> {
        let own = self.running.iter().map(|one| one.peer.clone());
        own.chain(self.missing.iter().cloned()).collect()
    }

    /// The target to compare with: the one of the plan, or the first.
    pub fn baseline(&self, plan: &Plan) -> String {
        let names = || self.running.iter().map(|one| &one.peer.name);
        let found = names().find(|name| **name == plan.baseline);
        found.or(names().next()).cloned().unwrap_or_default()
    }
}

fn missing(spec: &TargetSpec, why: &crate::target::Failure) -> Peer {
    Peer {
        name: spec.name(),
        about: String::new(),
        durability: String::new(),
        blocks: String::new(),
        missing: Some(why.to_string()),
    }
}
