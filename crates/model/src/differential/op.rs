//! The operations of a sequence, and how chance chooses them.
//!
//! Operations name directories and nodes by slots, small tables of held references that each side
//! fills on its own way. So an operation means something whatever came before it, and a
//! sequence from which some are dropped is still a sequence.

use fastrand::Rng;
use vfs::{Fallocate, RenameMode, SeekFor, SetAttr, Time, XattrMode};

use super::Config;
use crate::Feature;

/// Slots for directories; the first is the root (of the subtree) always.
pub const DIRS: usize = 6;
/// Slots for nodes of any kind.
pub const NODES: usize = 12;

/// A slot for directories.
pub type DirSlot = u8;
/// A slot for nodes.
pub type NodeSlot = u8;
/// Which of the names.
pub type NameId = u8;

/// What kind a new inode gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Make {
    /// A regular file.
    File,
    /// A symbolic link whose target has this length.
    Symlink(u16),
    /// A named pipe.
    Fifo,
    /// A device of this number.
    Device(u32),
}

/// One step of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the arguments of the calls")]
pub enum Op {
    Create {
        dir: DirSlot,
        name: NameId,
        make: Make,
        perm: u16,
        into: NodeSlot,
    },
    Mkdir {
        dir: DirSlot,
        name: NameId,
        perm: u16,
        into: DirSlot,
    },
    Tmpfile {
        dir: DirSlot,
        into: NodeSlot,
    },
    Lookup {
        dir: DirSlot,
        name: NameId,
        into: NodeSlot,
    },
    /// A lookup whose result serves as a directory, whether it is one or not.
    Enter {
        dir: DirSlot,
        name: NameId,
        into: DirSlot,
    },
    Parent {
        dir: DirSlot,
        into: DirSlot,
    },
    Link {
        node: NodeSlot,
        dir: DirSlot,
        name: NameId,
    },
    /// `vetoed`: the removal is refused by its veto.
    Unlink {
        dir: DirSlot,
        name: NameId,
        vetoed: bool,
    },
    Rmdir {
        dir: DirSlot,
        name: NameId,
        vetoed: bool,
    },
    Rename {
        from: DirSlot,
        name: NameId,
        to: DirSlot,
        new_name: NameId,
        mode: RenameMode,
    },
    Readdir {
        dir: DirSlot,
    },
    Readlink {
        node: NodeSlot,
    },
    Write {
        node: NodeSlot,
        offset: u64,
        len: u32,
        fill: u8,
    },
    Append {
        node: NodeSlot,
        len: u32,
        fill: u8,
    },
    Read {
        node: NodeSlot,
        offset: u64,
        len: u32,
    },
    Setattr {
        node: NodeSlot,
        set: SetAttr,
    },
    SetattrDir {
        dir: DirSlot,
        set: SetAttr,
    },
    Fallocate {
        node: NodeSlot,
        mode: Fallocate,
        offset: u64,
        len: u64,
    },
    Seek {
        node: NodeSlot,
        offset: u64,
        what: SeekFor,
    },
    Copy {
        from: NodeSlot,
        from_offset: u64,
        to: NodeSlot,
        to_offset: u64,
        len: u64,
    },
    Getxattr {
        node: NodeSlot,
        name: u8,
    },
    Setxattr {
        node: NodeSlot,
        name: u8,
        len: u32,
        mode: XattrMode,
    },
    Removexattr {
        node: NodeSlot,
        name: u8,
    },
    /// Attributes and extended attributes of a node, all of them.
    Stat {
        node: NodeSlot,
    },
    StatDir {
        dir: DirSlot,
    },
    Forget {
        node: NodeSlot,
    },
    /// The node was read at this time.
    Accessed {
        node: NodeSlot,
        atime: Time,
    },
    Fsync {
        node: NodeSlot,
    },
    /// Let the engine settle.
    Settle,
    /// Compare the whole trees.
    Check,
    /// Unmount and mount again.
    Remount,
}

impl Op {
    /// What an engine must be able to do for this operation to be fair.
    pub(super) fn needs(&self) -> Option<Feature> {
        match self {
            Op::Setattr { set, .. } | Op::SetattrDir { set, .. } if set.ctime.is_some() => {
                Some(Feature::SetCtime)
            }
            Op::Accessed { .. } => Some(Feature::SetCtime),
            _ => None,
        }
    }
}

/// The sequence of a seed.
pub(super) fn generate(config: Config, seed: u64) -> Vec<Op> {
    let mut chance = Chance {
        rng: Rng::with_seed(seed),
        far: config.far,
    };
    (0..config.ops)
        .map(|_| {
            let mut one_in = |n: u16| n > 0 && chance.rng.u16(0..n) == 0;
            if one_in(config.remount_one_in) && config.threads <= 1 {
                Op::Remount
            } else if one_in(config.settle_one_in) {
                Op::Settle
            } else if one_in(config.check_one_in) {
                Op::Check
            } else {
                chance.op()
            }
        })
        .collect()
}

struct Chance {
    rng: Rng,
    far: bool,
}

impl Chance {
    /// True once in `n` times.
    fn one_in(&mut self, n: u32) -> bool {
        self.rng.u32(0..n) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.rng.usize(0..from.len())]
    }

    fn op(&mut self) -> Op {
        match self.rng.u32(0..100) {
            0..26 => self.naming(),
            26..40 => self.renaming(),
            40..52 => self.finding(),
            52..72 => self.contents(),
            72..82 => self.ranges(),
            _ => self.attributes(),
        }
    }

    fn naming(&mut self) -> Op {
        let (dir, name, into) = (self.dir(), self.name(), self.node());
        match self.rng.u32(0..26) {
            0..8 => {
                let make = match self.rng.u32(0..10) {
                    0 => Make::Symlink(self.pick(&[1, 20, 60, 64, 300, 4095])),
                    1 => Make::Fifo,
                    2 => Make::Device(self.rng.u32(1..0x1000)),
                    _ => Make::File,
                };
                Op::Create {
                    dir,
                    name,
                    make,
                    perm: self.perm(),
                    into,
                }
            }
            8..14 => Op::Mkdir {
                dir,
                name,
                perm: self.perm(),
                into: self.dir(),
            },
            14..15 => Op::Tmpfile { dir, into },
            15..19 => Op::Link {
                node: into,
                dir,
                name,
            },
            19..23 => Op::Unlink {
                dir,
                name,
                vetoed: self.one_in(20),
            },
            _ => Op::Rmdir {
                dir,
                name,
                vetoed: self.one_in(20),
            },
        }
    }

    fn renaming(&mut self) -> Op {
        let mode = match self.rng.u32(0..10) {
            0 => RenameMode::NoReplace,
            1 | 2 => RenameMode::Exchange,
            3 => RenameMode::Whiteout,
            _ => RenameMode::Replace,
        };
        let (from, to) = (self.dir(), self.dir());
        Op::Rename {
            from,
            name: self.name(),
            to,
            new_name: self.name(),
            mode,
        }
    }

    fn finding(&mut self) -> Op {
        let (dir, name) = (self.dir(), self.name());
        match self.rng.u32(0..12) {
            0..5 => Op::Lookup {
                dir,
                name,
                into: self.node(),
            },
            5..9 => Op::Enter {
                dir,
                name,
                into: self.dir(),
            },
            9..10 => Op::Parent {
                dir,
                into: self.dir(),
            },
            _ => Op::Readdir { dir },
        }
    }

    fn contents(&mut self) -> Op {
        let node = self.node();
        let (offset, len) = (self.offset(), self.len());
        let fill = self.rng.u8(..);
        match self.rng.u32(0..20) {
            0..8 => Op::Write {
                node,
                offset,
                len,
                fill,
            },
            8..11 => Op::Append { node, len, fill },
            11..15 => Op::Read { node, offset, len },
            15..16 => Op::Fsync { node },
            _ => {
                let set = SetAttr {
                    size: Some(self.offset()),
                    ..SetAttr::default()
                };
                Op::Setattr { node, set }
            }
        }
    }

    fn ranges(&mut self) -> Op {
        let (node, offset, len) = (self.node(), self.offset(), u64::from(self.len()));
        let keep_size = self.rng.bool();
        match self.rng.u32(0..10) {
            0..2 => Op::Fallocate {
                node,
                mode: Fallocate::Allocate { keep_size },
                offset,
                len,
            },
            2..4 => Op::Fallocate {
                node,
                mode: Fallocate::Zero { keep_size },
                offset,
                len,
            },
            4..6 => {
                let len = if self.one_in(5) { 1 << 30 } else { len };
                Op::Fallocate {
                    node,
                    mode: Fallocate::Punch,
                    offset,
                    len,
                }
            }
            6..8 => {
                let to = if self.rng.bool() { node } else { self.node() };
                Op::Copy {
                    from: node,
                    from_offset: offset,
                    to,
                    to_offset: self.offset(),
                    len,
                }
            }
            _ => {
                let what = self.pick(&[SeekFor::Data, SeekFor::Hole]);
                Op::Seek { node, offset, what }
            }
        }
    }

    fn attributes(&mut self) -> Op {
        let (node, name) = (self.node(), self.rng.u8(0..6));
        match self.rng.u32(0..18) {
            0..3 => Op::Setattr {
                node,
                set: self.set(),
            },
            3..4 => Op::SetattrDir {
                dir: self.dir(),
                set: self.set(),
            },
            4..9 => {
                let len = self.pick(&[0, 1, 20, 40, 64, 500, 4000, 4096, 9000, 65_536, 65_537]);
                let mode = self.pick(&[
                    XattrMode::Any,
                    XattrMode::Any,
                    XattrMode::Create,
                    XattrMode::Replace,
                ]);
                Op::Setxattr {
                    node,
                    name,
                    len,
                    mode,
                }
            }
            9..11 => Op::Removexattr { node, name },
            11..13 => Op::Getxattr { node, name },
            13..14 => Op::StatDir { dir: self.dir() },
            14..15 => Op::Readlink { node },
            15..16 if self.rng.bool() => Op::Forget { node },
            15..16 => Op::Accessed {
                node,
                atime: Time(self.rng.i64(0..2_000_000_000)),
            },
            _ => Op::Stat { node },
        }
    }

    fn set(&mut self) -> SetAttr {
        let mut set = SetAttr::default();
        let time = Some(Time(
            self.rng.i64(-1_000_000_000_000..4_000_000_000_000_000_000),
        ));
        match self.rng.u32(0..8) {
            0 | 1 => set.perm = Some(self.perm()),
            2 => set.uid = Some(self.rng.u32(0..5)),
            3 => (set.uid, set.gid) = (Some(self.rng.u32(0..5)), Some(self.rng.u32(0..5))),
            4 => set.atime = time,
            5 => (set.atime, set.mtime) = (time, time),
            6 => (set.mtime, set.ctime) = (time, time),
            _ => {}
        }
        set
    }

    /// The root often: names collide there.
    fn dir(&mut self) -> DirSlot {
        if self.one_in(3) {
            0
        } else {
            self.rng.u8(0..DIRS as u8)
        }
    }

    fn node(&mut self) -> NodeSlot {
        self.rng.u8(0..NODES as u8)
    }

    fn name(&mut self) -> NameId {
        self.rng.u8(0..12)
    }

    fn perm(&mut self) -> u16 {
        self.pick(&[0o644, 0o755, 0o600, 0o777, 0o1777, 0o700])
    }

    /// Around the boundaries of blocks, near and far.
    fn offset(&mut self) -> u64 {
        let block = match self.rng.u32(0..40) {
            0..25 => self.rng.u64(0..6),
            25..33 => self.rng.u64(0..40),
            33..36 => self.pick(&[511, 512, 513]),
            36..38 => self.pick(&[1 << 18, 512 * 512]),
            38 if self.far => (1 << 32) - 20,
            _ => 0,
        };
        let within = match self.rng.u32(0..4) {
            0 => 0,
            1 => self.rng.u64(0..4096),
            2 => self.rng.u64(0..70),
            _ => 4096 - self.rng.u64(0..70),
        };
        block * 4096 + within
    }

    fn len(&mut self) -> u32 {
        match self.rng.u32(0..8) {
            0..3 => self.rng.u32(0..130),
            3 => 4096,
            4 => 4096 - 65 + self.rng.u32(0..130),
            5 => self.rng.u32(0..20_000),
            6 => 8192,
            _ => self.rng.u32(0..5000),
        }
    }
}

/// The name of this number, in one of the lengths that entries treat differently.
pub(super) fn name(id: NameId, prefix: &str) -> Vec<u8> {
    let mut base = format!("{prefix}{}", char::from(b'a' + id % 26));
    if id >= 26 {
        base += &(id / 26).to_string();
    }
    let len = match id % 6 {
        3 => 31,
        4 => 33,
        5 => 255,
        _ => 0,
    };
    let mut name = base.into_bytes();
    let fill = len.max(name.len()) - name.len();
    // Collide up to the last byte.
    let last = name.pop();
    name.extend(std::iter::repeat_n(b'-', fill));
    name.extend(last);
    name
}

/// What is written: no zeros, and another sequence for each `fill`; every eighth is all zeros.
pub(super) fn bytes(len: u32, fill: u8) -> Vec<u8> {
    if fill.is_multiple_of(8) {
        return vec![0; len as usize];
    }
    (0..len)
        .map(|at| ((at.wrapping_mul(13) + u32::from(fill) * 7) % 255) as u8 + 1)
        .collect()
}
