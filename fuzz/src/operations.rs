//! The target `operations`: SoupFS beside the reference file system.
//!
//! An input is a byte of settings, then seven bytes for each operation. Every return value is
//! compared, the whole trees at intervals and after each remount; then the image is audited, too.
//! `model` says how.

use std::sync::Arc;

use model::differential::{DIRS, Make, NODES, Op, run_ops};
use pmem::{Domain, Options, Pool};
use soupfs::fsck::{CheckOptions, Outcome, check};
use soupfs::{FormatOptions, Mode, MountOptions, SoupFs, format};
use vfs::{Clock, Fallocate, FileSystem, RenameMode, SeekFor, SetAttr, Time, XattrMode};

use crate::bytes::Bytes;

/// Length of the image: more than the operations of one input can fill.
const LEN: u64 = 8 << 20;
/// Most operations of one input.
const OPS_MAX: usize = 120;
/// Names that are in use.
const NAMES: usize = 80;

/// SoupFS as one input has it mounted.
struct Soup {
    mode: Mode,
    domain: Domain,
    /// Mounts again without unmounting, once everything is synced.
    crash: bool,
}

impl Soup {
    fn mount(&self, pool: Arc<Pool>, clock: Arc<dyn Clock>) -> SoupFs {
        let options = MountOptions {
            mode: self.mode,
            manual: true,
            ..MountOptions::new(clock)
        };
        SoupFs::mount(pool, options).expect("mount")
    }

    fn options(&self) -> Options {
        Options {
            domain: Some(self.domain),
            ..Options::default()
        }
    }
}

impl model::Engine for Soup {
    type Fs = SoupFs;

    fn make(&self, clock: Arc<dyn Clock>) -> SoupFs {
        let pool = Arc::new(Pool::anonymous(LEN, &self.options()).expect("memory"));
        let options = FormatOptions {
            uuid: [7; 16],
            label: "fuzz".into(),
            hash_key: [9; 16],
            time: clock.now(),
            owner: (0, 0),
            zeroed: true,
        };
        format(&pool, &options).expect("format");
        self.mount(pool, clock)
    }

    fn remount(&self, fs: SoupFs) -> SoupFs {
        let (mut pool, clock) = (fs.pool().clone(), fs.clock().clone());
        if self.crash {
            fs.syncfs().expect("syncfs");
            let left = pool.snapshot();
            pool = Arc::new(Pool::from_bytes(&left, &self.options()).expect("memory"));
        } else {
            fs.unmount().expect("unmount");
        }
        drop(fs);
        // Exact after an unmount; a crash may leak, and nothing else.
        let report = check(
            &pool,
            &CheckOptions {
                repair: false,
                threads: 1,
            },
            &|_| (),
        )
        .expect("check");
        let sound = report.outcome == Outcome::Clean && report.was_clean != self.crash;
        assert!(sound, "{report}");
        self.mount(pool, clock)
    }

    fn settle(&self, fs: &SoupFs) {
        fs.syncfs().expect("syncfs");
    }
}

/// Runs an input.
///
/// # Panics
/// When the two differ.
pub fn run(input: &[u8]) {
    let mut input = Bytes::new(input);
    let settings = input.byte();
    let engine = Soup {
        mode: [Mode::Delayed, Mode::Delayed, Mode::Delayed, Mode::Sync][usize::from(settings & 3)],
        domain: [Domain::Line, Domain::Cache, Domain::Page][usize::from(settings >> 2) % 3],
        crash: settings >> 4 == 15,
    };
    let mut ops = Vec::new();
    while !input.is_empty() && ops.len() < OPS_MAX {
        ops.push(op(&mut input));
    }
    if let Err(what) = run_ops(&ops, &engine) {
        panic!("{what}\n{ops:#?}");
    }
}

/// The next operation: what it is, two slots, two names, and where in a file.
fn op(input: &mut Bytes<'_>) -> Op {
    let args = Args {
        kind: input.byte(),
        first: input.byte(),
        second: input.byte(),
        name: input.below(NAMES) as u8,
        new_name: input.below(NAMES) as u8,
        place: input.byte(),
        amount: input.byte(),
    };
    match args.kind % 64 {
        0..26 => args.names(),
        26..48 => args.contents(),
        _ => args.others(),
    }
}

/// The bytes of an operation.
struct Args {
    kind: u8,
    first: u8,
    second: u8,
    name: u8,
    new_name: u8,
    place: u8,
    amount: u8,
}

impl Args {
    fn node(&self) -> u8 {
        self.first % NODES as u8
    }

    fn dir(&self) -> u8 {
        self.first / 16 % DIRS as u8
    }

    fn other_node(&self) -> u8 {
        self.second % NODES as u8
    }

    fn other_dir(&self) -> u8 {
        self.second / 16 % DIRS as u8
    }

    /// An offset around the boundaries of blocks, near and far.
    fn offset(&self) -> u64 {
        let block = [
            0,
            1,
            2,
            3,
            5,
            17,
            511,
            512,
            513,
            1 << 18,
            (1 << 18) - 1,
            (1 << 32) - 20,
        ];
        let within = [0, 1, 63, 64, 65, 100, 2048, 4032, 4094, 4095];
        let (block, within) = (
            block[usize::from(self.place) % 12],
            within[usize::from(self.place) / 12 % 10],
        );
        block * 4096 + within
    }

    /// A length of the same kind.
    fn len(&self) -> u32 {
        let lens = [
            1, 2, 63, 64, 65, 100, 4000, 4095, 4096, 4097, 8192, 12_288, 20_000,
        ];
        match self.amount {
            0..13 => lens[usize::from(self.amount)],
            amount => u32::from(amount) * 21,
        }
    }

    fn set_attr(&self) -> SetAttr {
        let mut set = SetAttr::default();
        let time = Some(Time(i64::from(self.amount) << (self.place % 50)));
        match self.place % 6 {
            0 => set.perm = Some(0o600 + u16::from(self.amount)),
            1 => set.uid = Some(self.amount.into()),
            2 => set.gid = Some(self.amount.into()),
            3 => (set.atime, set.mtime) = (time, time),
            4 => (set.mtime, set.ctime) = (time, time),
            _ => {}
        }
        set
    }

    fn names(&self) -> Op {
        let (dir, name) = (self.dir(), self.name);
        match self.kind % 64 {
            0..6 => Op::Create {
                dir,
                name,
                make: match self.place % 8 {
                    0 => Make::Symlink(1 + u16::from(self.amount) * 16),
                    1 => Make::Fifo,
                    2 => Make::Device(1 + u32::from(self.amount)),
                    _ => Make::File,
                },
                perm: 0o644,
                into: self.node(),
            },
            6..10 => Op::Mkdir {
                dir,
                name,
                perm: 0o755,
                into: self.other_dir(),
            },
            10 => Op::Tmpfile {
                dir,
                into: self.node(),
            },
            11..13 => Op::Link {
                node: self.node(),
                dir: self.other_dir(),
                name,
            },
            13..16 => Op::Unlink {
                dir,
                name,
                vetoed: self.amount == 255,
            },
            16..18 => Op::Rmdir {
                dir,
                name,
                vetoed: self.amount == 255,
            },
            18..24 => Op::Rename {
                from: dir,
                name,
                to: self.other_dir(),
                new_name: self.new_name,
                mode: match self.amount % 8 {
                    0 => RenameMode::NoReplace,
                    1 | 2 => RenameMode::Exchange,
                    3 => RenameMode::Whiteout,
                    _ => RenameMode::Replace,
                },
            },
            24 => Op::Lookup {
                dir,
                name,
                into: self.node(),
            },
            _ => Op::Enter {
                dir,
                name,
                into: self.other_dir(),
            },
        }
    }

    fn contents(&self) -> Op {
        let (node, offset, len) = (self.node(), self.offset(), self.len());
        let fill = self.second;
        let keep_size = self.second.is_multiple_of(2);
        let fallocate = |mode| Op::Fallocate {
            node,
            mode,
            offset,
            len: len.into(),
        };
        match self.kind % 64 {
            26..33 => Op::Write {
                node,
                offset,
                len,
                fill,
            },
            33..35 => Op::Append { node, len, fill },
            35 => Op::Read { node, offset, len },
            36..40 => Op::Setattr {
                node,
                set: SetAttr {
                    size: Some(offset),
                    ..SetAttr::default()
                },
            },
            40 => fallocate(Fallocate::Allocate { keep_size }),
            41 => fallocate(Fallocate::Zero { keep_size }),
            42 => fallocate(Fallocate::Punch),
            43 => Op::Fallocate {
                node,
                mode: Fallocate::Punch,
                offset,
                len: u64::from(len) << 16,
            },
            44 => Op::Seek {
                node,
                offset,
                what: SeekFor::Data,
            },
            45 => Op::Seek {
                node,
                offset,
                what: SeekFor::Hole,
            },
            _ => Op::Copy {
                from: node,
                from_offset: offset,
                to: self.other_node(),
                to_offset: u64::from(self.new_name) * 1000,
                len: len.into(),
            },
        }
    }

    fn others(&self) -> Op {
        let (node, name) = (self.node(), self.name % 6);
        match self.kind % 64 {
            48..50 => Op::Fsync { node },
            50 => Op::Settle,
            51 => Op::Check,
            52 => Op::Remount,
            53..56 => Op::Setxattr {
                node,
                name,
                len: [0, 20, 64, 500, 4096, 9000, 20_000, 65_537][usize::from(self.amount % 8)],
                mode: [XattrMode::Any, XattrMode::Create, XattrMode::Replace]
                    [usize::from(self.place % 3)],
            },
            56 => Op::Removexattr { node, name },
            57 => Op::Getxattr { node, name },
            58 => Op::Setattr {
                node,
                set: self.set_attr(),
            },
            59 => Op::SetattrDir {
                dir: self.dir(),
                set: self.set_attr(),
            },
            60 => Op::Forget { node },
            61 => Op::Stat { node },
            62 => Op::Readdir { dir: self.dir() },
            _ => Op::Accessed {
                node,
                atime: Time(i64::from(self.amount) << 20),
            },
        }
    }
}
