//! The cases: which operation stops where, beside which others, and how the file system is mounted.

use crate::engine::{Mode, Thresholds};
use crate::op::Op;
use std::collections::BTreeSet;
use std::sync::OnceLock;
use vfs::{Fallocate, Fsync, RenameMode};

/// How the file system is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Delayed,
    /// Every sweep is split wherever it can be.
    Tight,
    /// Every operation is durable when it has returned.
    Sync,
    /// On what a crash has left, with a search for leaks.
    Search,
}

impl Style {
    const ALL: [Style; 4] = [Style::Delayed, Style::Tight, Style::Sync, Style::Search];

    pub fn mode(self) -> Mode {
        match self {
            Style::Sync => Mode::SYNC,
            Style::Delayed | Style::Tight | Style::Search => Mode::DELAYED,
        }
    }

    pub fn thresholds(self) -> Thresholds {
        match self {
            Style::Tight => Thresholds::Tight,
            Style::Delayed | Style::Sync | Style::Search => Thresholds::Usual,
        }
    }

    pub fn searches(self) -> bool {
        self == Style::Search
    }

    /// What stops half-way.
    fn slow(self) -> Vec<Op> {
        let search = self.searches().then_some(SEARCH);
        operations().into_iter().chain(search).collect()
    }

    /// What runs beside an operation that stops. The search has a part in all cases of its style.
    fn beside(self, slow: &Op) -> Vec<Op> {
        match self.searches() && *slow != SEARCH {
            true => vec![SEARCH],
            false => operations(),
        }
    }
}

/// Operations that meet.
#[derive(Debug, Clone)]
pub struct Case {
    /// Which.
    pub number: u64,
    /// What stops.
    pub slow: Op,
    /// Behind so many points.
    pub stop: u32,
    /// What runs meanwhile, each on a thread of its own.
    pub others: Vec<Op>,
    pub(super) style: Style,
}

impl Case {
    /// What is opened before anything meets, as operations on files and directories are not to
    /// depend on their names.
    pub(super) fn opens(&self) -> BTreeSet<&str> {
        let ops = [&self.slow].into_iter().chain(&self.others);
        let targets = ops.filter_map(Op::target);
        ["A", "B", "N"].into_iter().chain(targets).collect()
    }
}

fn s(path: &str) -> String {
    path.to_owned()
}

fn write(path: &str, at: u64, len: usize, fill: u8) -> Op {
    Op::Write {
        path: s(path),
        at: Some(at),
        len,
        fill,
    }
}

/// The search for leaks, in steps.
pub const SEARCH: Op = Op::Search(24);

/// What leaves space that the next life finds and frees: the kill comes before it is free.
pub fn leaked() -> Vec<Op> {
    vec![
        Op::Create(s("lost")),
        write("lost", 0, 30_000, 9),
        Op::Syncfs,
        Op::Unlink(s("lost")),
        Op::Fsync(s(""), Fsync::All),
    ]
}

/// What is there, durably, before anything else.
pub fn setup() -> Vec<Op> {
    vec![
        Op::Mkdir(s("A")),
        Op::Mkdir(s("B")),
        Op::Create(s("foo")),
        write("foo", 0, 5000, 1),
        Op::Link(s("foo"), s("A/link")),
        Op::Create(s("B/cfg")),
        Op::SetXattr {
            path: s("foo"),
            name: b'a',
            len: 100,
            fill: 2,
        },
    ]
}

/// What was done since, and is pending.
pub fn pending() -> Vec<Op> {
    vec![
        Op::Create(s("new")),
        write("new", 0, 3000, 3),
        Op::Mkdir(s("N")),
        Op::Create(s("N/x")),
        write("foo", 4000, 50, 4),
        Op::Link(s("foo"), s("A/l")),
    ]
}

/// What meets. None of them takes several steps, as copying and reserving do, between which others
/// may see the file.
fn operations() -> Vec<Op> {
    let moves = |from, to, mode| Op::Rename(s(from), s(to), mode);
    let fsync = |path| Op::Fsync(s(path), Fsync::All);
    vec![
        Op::Create(s("A/bar")),
        Op::Mkdir(s("A/d")),
        Op::Link(s("foo"), s("B/foo")),
        Op::Link(s("new"), s("A/n")),
        Op::Unlink(s("foo")),
        Op::Unlink(s("A/link")),
        Op::Unlink(s("A/l")),
        Op::Unlink(s("new")),
        Op::Unlink(s("N/x")),
        moves("foo", "B/foo", RenameMode::Replace),
        moves("new", "B/cfg", RenameMode::Replace),
        moves("new", "old", RenameMode::Replace),
        moves("foo", "new", RenameMode::Exchange),
        moves("N", "A/N", RenameMode::Replace),
        moves("new", "w", RenameMode::Whiteout),
        write("foo", 100, 6000, 5),
        write("new", 3000, 2000, 6),
        Op::Truncate(s("foo"), 100),
        Op::Chmod(s("foo"), 0o600),
        Op::SetAcl {
            path: s("foo"),
            perm: 0o640,
            len: 60,
            fill: 7,
        },
        Op::SetXattr {
            path: s("new"),
            name: b'b',
            len: 5000,
            fill: 8,
        },
        Op::Fallocate(s("foo"), Fallocate::Punch, 0, 4096),
        fsync("foo"),
        fsync("new"),
        fsync("N/x"),
        fsync("A"),
        Op::Syncfs,
    ]
}

/// What a third thread does: nothing, or a sync.
fn thirds() -> [Option<Op>; 3] {
    [
        None,
        Some(Op::Syncfs),
        Some(Op::Fsync(s("new"), Fsync::All)),
    ]
}

/// An operation that stops.
struct Slow {
    style: Style,
    op: Op,
    /// What runs beside it, and perhaps on a third thread.
    beside: Vec<(Op, Option<Op>)>,
    /// How many points it passes if nothing meets it.
    points: u32,
}

impl Slow {
    fn new(style: Style, op: Op) -> Slow {
        let case = Case {
            number: 0,
            slow: op.clone(),
            stop: u32::MAX,
            others: Vec::new(),
            style,
        };
        let beside = style.beside(&op).into_iter();
        let with_thirds = |op: Op| thirds().map(|third| (op.clone(), third));
        Slow {
            points: super::points(&case),
            beside: beside.flat_map(with_thirds).collect(),
            style,
            op,
        }
    }

    /// How many cases it has.
    fn cases(&self) -> u64 {
        u64::from(self.points) * self.beside.len() as u64
    }
}

/// Each operation, with each way to mount.
fn slow() -> &'static [Slow] {
    static SLOW: OnceLock<Vec<Slow>> = OnceLock::new();
    SLOW.get_or_init(|| {
        let styles = Style::ALL.into_iter();
        let all = styles.flat_map(|style| style.slow().into_iter().map(move |op| (style, op)));
        all.map(|(style, op)| Slow::new(style, op)).collect()
    })
}

/// How many cases there are; none in a build without points.
pub fn count() -> u64 {
    slow().iter().map(Slow::cases).sum()
}

/// The case of a number.
///
/// # Panics
/// There is none.
pub fn case(number: u64) -> Case {
    let mut left = number;
    let slow = slow()
        .iter()
        .find(|slow| {
            let here = left < slow.cases();
            if !here {
                left -= slow.cases();
            }
            here
        })
        .expect("there is such a case");
    let all = slow.beside.len() as u64;
    let (other, third) = slow.beside[(left % all) as usize].clone();
    Case {
        number,
        slow: slow.op.clone(),
        stop: (left / all) as u32,
        others: [other].into_iter().chain(third).collect(),
        style: slow.style,
    }
}
