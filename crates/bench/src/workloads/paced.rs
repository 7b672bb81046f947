//! The tasks by which the paper on soft updates shows what they do (section 5), for a disk that is
//! slow beside the caller: a torture test, a program that is built, a mail server. Each does the
//! same calls every time.
//!
//! What a caller computes between calls, and how long it pauses, is stated and not measured: a
//! [`Pace`] says what that means. What is dirty is written behind the caller every
//! [`WRITE_EVERY_NS`] of the task's own time.

use std::ffi::CString;

use block::Random;

use super::gamma;
use crate::target::{Result, Target};

/// How often what is dirty is written behind callers: the 30 s of BSD's syncer, nanoseconds.
pub const WRITE_EVERY_NS: u64 = 30_000_000_000;

const SECOND_NS: u64 = 1_000_000_000;
const MS_NS: u64 = 1_000_000;

/// How time passes for a task.
pub trait Pace {
    /// The task makes a call, which may wait for the disk.
    fn call(&mut self, call: &mut dyn FnMut() -> Result<()>) -> Result<()>;

    /// The task computes or pauses for so long.
    fn compute(&mut self, ns: u64) -> Result<()>;
}

/// A task of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Andrew benchmarks, copies and removals of a tree like `/etc`, searches through all of it,
    /// and pauses.
    Torture,
    /// Sources are read, temporary files made and removed, objects written, programs installed.
    Build,
    /// Mails are queued, delivered to mailboxes and removed from the queue, durably at each step.
    Mail,
}

impl Task {
    /// All of them, in the paper's order.
    pub const ALL: [Task; 3] = [Task::Torture, Task::Build, Task::Mail];

    /// What stands in tables.
    pub fn name(self) -> &'static str {
        match self {
            Task::Torture => "torture",
            Task::Build => "build",
            Task::Mail => "mail",
        }
    }

    /// Turns of the task at full size: runs, sources, mails.
    pub fn turns(self) -> u64 {
        match self {
            Task::Torture => 10,
            Task::Build => 400,
            Task::Mail => 400,
        }
    }

    /// Make what is there at the beginning.
    ///
    /// # Errors
    /// If the target fails.
    pub fn prepare<T: Target>(self, target: &T, turns: u64) -> Result<()> {
        let mut free = Free;
        match self {
            Task::Torture => {
                target.mkdir(c"sources")?;
                make_tree(target, &mut free, "sources/andrew", ANDREW)?;
                make_tree(target, &mut free, "sources/etc", ETC)
            }
            Task::Build => {
                for dir in [c"src", c"obj", c"tmp", c"bin"] {
                    target.mkdir(dir)?;
                }
                let mut random = Random::new(7);
                (0..turns).try_for_each(|i| {
                    let len = gamma(&mut random, SOURCE_MEAN);
                    make(target, &mut free, &path(format!("src/{i}.c"))?, len, false)
                })
            }
            Task::Mail => {
                for dir in [c"queue", c"boxes"] {
                    target.mkdir(dir)?;
                }
                (0..MAILBOXES).try_for_each(|i| {
                    let mailbox = path(format!("boxes/{i}"))?;
                    make(target, &mut free, &mailbox, MAILBOX_LEN, false)
                })
            }
        }?;
        target.sync()
    }

    /// Remove what [`Task::prepare`] made, and what the task left.
    ///
    /// # Errors
    /// If the target fails.
    pub fn clean<T: Target>(self, target: &T, turns: u64) -> Result<()> {
        let remove = |count: u64, name: fn(u64) -> String| {
            (0..count).try_for_each(|i| target.unlink(&path(name(i))?))
        };
        let mut free = Free;
        let dirs: &[&str] = match self {
            Task::Torture => {
                remove_tree(target, &mut free, "sources/andrew", ANDREW)?;
                remove_tree(target, &mut free, "sources/etc", ETC)?;
                &["sources"]
            }
            Task::Build => {
                remove(turns, |i| format!("src/{i}.c"))?;
                remove(turns, |i| format!("obj/{i}.o"))?;
                remove(turns / OBJECTS, |i| format!("bin/{i}"))?;
                &["src", "obj", "tmp", "bin"]
            }
            Task::Mail => {
                remove(MAILBOXES, |i| format!("boxes/{i}"))?;
                &["queue", "boxes"]
            }
        };
        dirs.iter()
            .try_for_each(|dir| target.rmdir(&path((*dir).into())?))?;
        target.sync()
    }

    /// Do it.
    ///
    /// # Errors
    /// If the target fails.
    pub fn run<T: Target>(self, target: &T, pace: &mut dyn Pace, turns: u64) -> Result<()> {
        match self {
            Task::Torture => torture(target, pace, turns),
            Task::Build => build(target, pace, turns),
            Task::Mail => mail(target, pace, turns),
        }
    }
}

/// Files of a tree: directories, files in each, and their mean size in bytes.
type Tree = (u64, u64, f64);

/// The sources of the Andrew benchmark: 70 files, 200 KiB.
const ANDREW: Tree = (5, 14, 3000.0);
/// A tree like `/etc`.
const ETC: Tree = (20, 15, 4000.0);
/// What compiling a file of the Andrew benchmark takes.
const ANDREW_COMPILE_NS: u64 = 300 * MS_NS;
/// The longest pause between a copy and a removal.
const PAUSE_MAX_NS: u64 = 60 * SECOND_NS;
/// One run in so many is followed by a search.
const FIND_EVERY: u64 = 2;

const SOURCE_MEAN: f64 = 12_000.0;
const COMPILE_NS: u64 = 250 * MS_NS;
/// Objects of a program that is linked and installed.
const OBJECTS: u64 = 20;

const MAILBOXES: u64 = 50;
const MAILBOX_LEN: u64 = 20_000;
const MAIL_MEAN: f64 = 3000.0;
/// Between two mails.
const MAIL_NS: u64 = 100 * MS_NS;

/// Of a read or write: bytes.
const IO: u64 = 16 << 10;

/// Time that nobody looks at.
struct Free;

impl Pace for Free {
    fn call(&mut self, call: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        call()
    }

    fn compute(&mut self, _: u64) -> Result<()> {
        Ok(())
    }
}

fn path(text: String) -> Result<CString> {
    Ok(CString::new(text)?)
}

/// A new file with `len` bytes; `durable`: before it is closed.
fn make<T: Target>(
    target: &T,
    pace: &mut dyn Pace,
    path: &CString,
    len: u64,
    durable: bool,
) -> Result<()> {
    let mut file = None;
    pace.call(&mut || {
        file = Some(target.create(path)?);
        Ok(())
    })?;
    let file = file.ok_or("a file that was made is not open")?;
    write(target, pace, file, len)?;
    if durable {
        pace.call(&mut || target.fsync(file))?;
    }
    target.close(file)
}

fn write<T: Target>(target: &T, pace: &mut dyn Pace, file: T::File, len: u64) -> Result<()> {
    let data = [0x65; IO as usize];
    let mut left = len;
    while left > 0 {
        let part = left.min(IO);
        pace.call(&mut || target.write(file, &data[..part as usize]))?;
        left -= part;
    }
    Ok(())
}

/// Reads a whole file; returns its length.
fn read<T: Target>(target: &T, pace: &mut dyn Pace, path: &CString) -> Result<u64> {
    let (mut data, mut len) = ([0; IO as usize], 0);
    pace.call(&mut || {
        len = target.stat(path)?;
        let file = target.open(path, false)?;
        let mut at = 0;
        while at < len {
            let part = (len - at).min(IO);
            target.read_at(file, &mut data[..part as usize], at)?;
            at += part;
        }
        target.close(file)
    })?;
    Ok(len)
}

/// The directories of a tree, and its files.
fn paths(root: &str, (dirs, files, _): Tree) -> Result<(Vec<CString>, Vec<CString>)> {
    let mut all = (vec![path(root.into())?], Vec::new());
    for dir in 0..dirs {
        all.0.push(path(format!("{root}/{dir}"))?);
        for file in 0..files {
            all.1.push(path(format!("{root}/{dir}/{file}"))?);
        }
    }
    Ok(all)
}

fn make_tree<T: Target>(target: &T, pace: &mut dyn Pace, root: &str, tree: Tree) -> Result<()> {
    let (dirs, files) = paths(root, tree)?;
    let mut random = Random::new(3);
    for dir in &dirs {
        pace.call(&mut || target.mkdir(dir))?;
    }
    files
        .iter()
        .try_for_each(|file| make(target, pace, file, gamma(&mut random, tree.2), false))
}

fn copy_tree<T: Target>(
    target: &T,
    pace: &mut dyn Pace,
    (from, to): (&str, &str),
    tree: Tree,
) -> Result<()> {
    let ((_, from), (dirs, to)) = (paths(from, tree)?, paths(to, tree)?);
    for dir in &dirs {
        pace.call(&mut || target.mkdir(dir))?;
    }
    for (from, to) in from.iter().zip(&to) {
        let len = read(target, pace, from)?;
        make(target, pace, to, len, false)?;
    }
    Ok(())
}

fn remove_tree<T: Target>(target: &T, pace: &mut dyn Pace, root: &str, tree: Tree) -> Result<()> {
    let (dirs, files) = paths(root, tree)?;
    for file in &files {
        pace.call(&mut || target.unlink(file))?;
    }
    for dir in dirs.iter().rev() {
        pace.call(&mut || target.rmdir(dir))?;
    }
    Ok(())
}

fn look_at_tree<T: Target>(target: &T, pace: &mut dyn Pace, root: &str, tree: Tree) -> Result<()> {
    let (dirs, files) = paths(root, tree)?;
    for dir in &dirs {
        pace.call(&mut || target.list(dir).map(drop))?;
    }
    for file in &files {
        pace.call(&mut || target.stat(file).map(drop))?;
    }
    Ok(())
}

/// Directories, copies, a look at all, reading all, compiling; then all of it is removed.
fn andrew<T: Target>(target: &T, pace: &mut dyn Pace) -> Result<()> {
    copy_tree(target, pace, ("sources/andrew", "andrew"), ANDREW)?;
    look_at_tree(target, pace, "andrew", ANDREW)?;
    let (_, files) = paths("andrew", ANDREW)?;
    for file in &files {
        read(target, pace, file)?;
    }
    let object = |file: &CString| path(format!("{}.o", file.to_string_lossy()));
    for file in &files {
        let len = read(target, pace, file)?;
        pace.compute(ANDREW_COMPILE_NS)?;
        make(target, pace, &object(file)?, 2 * len, false)?;
    }
    for file in &files {
        let object = object(file)?;
        pace.call(&mut || target.unlink(&object))?;
    }
    remove_tree(target, pace, "andrew", ANDREW)
}

fn torture<T: Target>(target: &T, pace: &mut dyn Pace, turns: u64) -> Result<()> {
    let mut random = Random::new(11);
    for turn in 0..turns {
        copy_tree(target, pace, ("sources/etc", "etc"), ETC)?;
        andrew(target, pace)?;
        if turn % FIND_EVERY == 0 {
            look_at_tree(target, pace, "sources/etc", ETC)?;
            look_at_tree(target, pace, "etc", ETC)?;
        }
        pace.compute(random.below(PAUSE_MAX_NS))?;
        remove_tree(target, pace, "etc", ETC)?;
    }
    Ok(())
}

fn build<T: Target>(target: &T, pace: &mut dyn Pace, turns: u64) -> Result<()> {
    let object = |i: u64| path(format!("obj/{i}.o"));
    for i in 0..turns {
        let len = read(target, pace, &path(format!("src/{i}.c"))?)?;
        let temporary = path(format!("tmp/{i}.s"))?;
        make(target, pace, &temporary, 2 * len, false)?;
        pace.compute(COMPILE_NS)?;
        read(target, pace, &temporary)?;
        make(target, pace, &object(i)?, len, false)?;
        pace.call(&mut || target.unlink(&temporary))?;
        if i % OBJECTS == OBJECTS - 1 {
            let mut all = 0;
            for part in i + 1 - OBJECTS..=i {
                all += read(target, pace, &object(part)?)?;
            }
            let (new, installed) = (c"bin/new".to_owned(), path(format!("bin/{}", i / OBJECTS))?);
            make(target, pace, &new, all, false)?;
            pace.call(&mut || target.rename(&new, &installed))?;
        }
    }
    Ok(())
}

fn mail<T: Target>(target: &T, pace: &mut dyn Pace, turns: u64) -> Result<()> {
    let mut random = Random::new(13);
    let temporary = c"queue/tf".to_owned();
    for i in 0..turns {
        let (data, control) = (path(format!("queue/df{i}"))?, path(format!("queue/qf{i}"))?);
        let len = gamma(&mut random, MAIL_MEAN);
        make(target, pace, &data, len, true)?;
        make(target, pace, &temporary, 500, true)?;
        pace.call(&mut || target.rename(&temporary, &control))?;
        let mailbox = path(format!("boxes/{}", random.below(MAILBOXES)))?;
        read(target, pace, &data)?;
        let file = target.open(&mailbox, true)?;
        write(target, pace, file, len)?;
        pace.call(&mut || target.fsync(file))?;
        target.close(file)?;
        for done in [&control, &data] {
            pace.call(&mut || target.unlink(done))?;
        }
        pace.compute(MAIL_NS)?;
    }
    Ok(())
}
