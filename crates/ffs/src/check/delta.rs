//! The check of a file system that is in use: in steps, on blocks as they were at one moment, and
//! with findings that are repaired meanwhile.
//!
//! A finding is a *delta*: it says by how much something is wrong, not what is right, which changes
//! with what callers do. A block that nothing leads to cannot be found by anybody, and is not
//! handed out as long as its bit is set; a count that is too high by some number stays so, whoever
//! adds and removes names.

use std::collections::HashSet;
use std::sync::Arc;

use vfs::{Error, Time};

use super::audit::Audit;
use super::names::Walk;
use super::{Report, Source};
use crate::geometry::Geometry;

/// What repairs something while the file system is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// A directory has a further name, which its `..` does not agree with.
    ExtraName {
        /// Where that is.
        dir: u32,
        /// The name.
        name: Vec<u8>,
        /// The directory.
        ino: u32,
        /// The whiteout that gets the name.
        whiteout: Option<u32>,
    },
    /// The `..` of a directory is to name another one.
    Parent {
        /// The directory.
        dir: u32,
        /// That one.
        parent: u32,
    },
    /// An inode has no name.
    Nameless {
        /// Its number.
        ino: u32,
    },
    /// An inode counts another number of names than it has.
    Links {
        /// Its number.
        ino: u32,
        /// So many more it has.
        by: i32,
    },
    /// A file or directory has blocks behind its end.
    Size {
        /// Its number.
        ino: u32,
    },
    /// An inode counts another number of blocks than it has.
    BlockCount {
        /// Its number.
        ino: u32,
    },
    /// A free inode has no time of removal.
    RemovalTime {
        /// Its number.
        ino: u32,
    },
    /// Blocks that nothing leads to are in use by their bits.
    Blocks {
        /// Where those bits are.
        bitmap: u64,
        /// The blocks.
        blocks: Vec<u32>,
    },
    /// Free inodes are in use by their bits.
    Inodes(Vec<u32>),
    /// A group counts another number of directories.
    Dirs {
        /// The group.
        group: u32,
        /// So many more it has.
        by: i64,
    },
}

impl Delta {
    /// Whether it removes a name or an inode: counts and bits come after that.
    pub fn is_first(&self) -> bool {
        use Delta::{ExtraName, Nameless, Parent};
        matches!(self, ExtraName { .. } | Parent { .. } | Nameless { .. })
    }
}

/// What there was at the moment that is checked, beside the blocks.
pub struct Moment {
    /// A crash in mode soft was before it, and nothing else is to be found than that leaves.
    pub is_crash: bool,
    /// Inodes without names that somebody used.
    pub held: HashSet<u32>,
    /// The directories that each group counted; `None`: the descriptors have all counts.
    pub dirs: Option<Vec<i64>>,
}

/// A check of a file system in use, as far as it has come.
pub struct Scan {
    source: Arc<dyn Source>,
    geometry: Geometry,
    now: Time,
    stage: Stage,
    directories: u64,
}

enum Stage {
    Begin(Moment),
    Inodes(Box<Audit>, u32),
    Names(Box<Audit>, Box<Walk>, u64),
    Maps(Box<Audit>, Vec<u32>, (u32, u64)),
    End(Option<Report>),
    Failed,
}

impl Scan {
    /// A check of what `source` has.
    pub fn new(source: Arc<dyn Source>, geometry: Geometry, now: Time, moment: Moment) -> Scan {
        Scan {
            source,
            geometry,
            now,
            stage: Stage::Begin(moment),
            directories: 0,
        }
    }

    /// What is being done, how much of it is done, and how much there is.
    pub fn progress(&self) -> (&'static str, u64, u64) {
        let groups = self.geometry.groups.into();
        match &self.stage {
            Stage::Begin(_) => ("inodes", 0, groups),
            Stage::Inodes(_, group) => ("inodes", (*group).into(), groups),
            Stage::Names(_, _, done) => ("names", *done, self.directories),
            Stage::Maps(_, _, (group, _)) => ("maps", (*group).into(), groups),
            Stage::End(_) | Stage::Failed => ("maps", groups, groups),
        }
    }

    /// Goes on: what was found, if that was the end.
    ///
    /// # Errors
    /// The disk failed, or descriptors are damaged.
    pub fn step(&mut self) -> Result<Option<Report>, Error> {
        let stage = std::mem::replace(&mut self.stage, Stage::Failed);
        self.stage = self.after(stage)?;
        match &mut self.stage {
            Stage::End(report) => Ok(report.take()),
            _ => Ok(None),
        }
    }

    fn after(&mut self, stage: Stage) -> Result<Stage, Error> {
        let groups = self.geometry.groups;
        Ok(match stage {
            Stage::Begin(moment) => {
                let (source, geometry) = (self.source.clone(), self.geometry.clone());
                let rules = (moment.is_crash, moment.held);
                let mut audit = Audit::new(source, geometry, self.now, rules)?;
                audit.is_live = true;
                audit.counted_dirs = moment.dirs;
                Stage::Inodes(Box::new(audit), 0)
            }
            Stage::Inodes(mut audit, group) if group < groups => {
                audit.inodes_of(group)?;
                Stage::Inodes(audit, group + 1)
            }
            Stage::Inodes(mut audit, _) => {
                audit.shared_xattrs()?;
                self.directories = audit.dirs().into_iter().map(u64::from).sum();
                match audit.walk() {
                    Some(walk) => Stage::Names(audit, Box::new(walk), 0),
                    None => Stage::End(Some(audit.report(0, true))),
                }
            }
            Stage::Names(mut audit, mut walk, done) => match audit.step(&mut walk)? {
                true => Stage::Names(audit, walk, done + 1),
                false => {
                    audit.counts();
                    let dirs = audit.dirs();
                    Stage::Maps(audit, dirs, (0, 0))
                }
            },
            Stage::Maps(mut audit, dirs, (group, free)) if group < groups => {
                let (blocks, _) = audit.maps_of(group, &dirs)?;
                Stage::Maps(audit, dirs, (group + 1, free + blocks))
            }
            Stage::Maps(mut audit, _, (_, free)) => Stage::End(Some(audit.report(free, true))),
            Stage::End(report) => Stage::End(report),
            Stage::Failed => return Err(Error::medium("an earlier part of the check failed")),
        })
    }
}
