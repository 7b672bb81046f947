//! Writers that know what they were promised.
//!
//! Each does small steps in a directory of its own until one fails, and notes, outside the file
//! system: before a change, that it may be there; after an fsync that succeeded, that it must be
//! there. `verify` compares that with what a mount after a crash shows, and goes on from there.

mod contents;
mod names;

use std::fs::{self, File};
use std::io;
use std::path::Path;

use block::Random;

/// What a change promises when it returns, without an fsync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promises {
    /// Nothing but the order of soft updates: what was written since the last fsync may be zeros,
    /// and what was moved may have both names.
    Order,
    /// Nothing; what is there is what was there at some time.
    Nothing,
    /// Names and attributes are durable.
    Names,
    /// So are contents, and each change of these is there as a whole or not at all.
    Requests,
}

impl Promises {
    /// Those of a mode of the engine.
    pub fn of(mode: &str) -> Promises {
        match mode {
            "strong" => Promises::Requests,
            "sync" => Promises::Names,
            "soft" => Promises::Order,
            _ => Promises::Nothing,
        }
    }

    fn names(self) -> bool {
        matches!(self, Promises::Names | Promises::Requests)
    }

    fn only_order(self) -> bool {
        self == Promises::Order
    }

    fn requests(self) -> bool {
        self == Promises::Requests
    }
}

/// What one kind of writer does.
trait Work: Send {
    /// One change, or one fsync.
    fn step(&mut self, dir: &Path, random: &mut Random, promises: Promises) -> io::Result<()>;

    /// Compares what is there with what was promised; goes on from what is there.
    fn verify(&mut self, dir: &Path, promises: Promises) -> Result<(), String>;

    /// One that knows the same, to verify another image.
    fn copy(&self) -> Box<dyn Work>;
}

/// A writer, its random choices, and what the engine promises at return.
pub struct Writer {
    name: &'static str,
    work: Box<dyn Work>,
    random: Random,
    promises: Promises,
}

/// One of each kind.
pub fn writers(promises: Promises, seed: u64) -> Vec<Writer> {
    let kinds: [(&str, Box<dyn Work>); 10] = [
        ("append", Box::new(contents::Append::default())),
        ("overwrite", Box::new(contents::Overwrite::default())),
        ("resize", Box::new(contents::Resize::default())),
        ("xattrs", Box::new(contents::Attributes::default())),
        ("replace", Box::new(names::Replace::default())),
        ("names", Box::new(names::Names::default())),
        ("move", Box::new(names::Move::default())),
        ("links", Box::new(names::Links::default())),
        ("trees", Box::new(names::Trees::default())),
        ("open", Box::new(names::Open::default())),
    ];
    let with_state = |(at, (name, work)): (u64, _)| Writer {
        name,
        work,
        random: Random::new(seed.wrapping_mul(31).wrapping_add(at)),
        promises,
    };
    (0..).zip(kinds).map(with_state).collect()
}

impl Writer {
    /// What it does.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// One change, or one fsync.
    pub fn step(&mut self, mount: &Path) -> io::Result<()> {
        let dir = mount.join(self.name);
        if !dir.exists() {
            fs::create_dir(&dir)?;
            File::open(mount)?.sync_all()?;
        }
        self.work.step(&dir, &mut self.random, self.promises)
    }

    /// Compares what is there with what was promised.
    #[track_caller]
    pub fn verify(&mut self, mount: &Path, context: &str) {
        if let Err(why) = self.try_verify(mount) {
            panic!("{context}: {why}");
        }
    }

    /// Compares what is there with what was promised; an error says what differs.
    pub fn try_verify(&mut self, mount: &Path) -> Result<(), String> {
        let verified = self.work.verify(&mount.join(self.name), self.promises);
        verified.map_err(|why| format!("{}: {why}", self.name))
    }

    /// A writer that was promised the same, to verify another image.
    pub fn copy(&self) -> Writer {
        Writer {
            work: self.work.copy(),
            random: self.random.clone(),
            ..*self
        }
    }
}

/// The contents that belong to a number, from an offset on.
fn pattern(number: u64, from: u64, len: u64) -> Vec<u8> {
    let byte = |at: u64| {
        let word = (number ^ (at / 8)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        word.to_le_bytes()[(at % 8) as usize]
    };
    (from..from + len).map(byte).collect()
}

/// The contents of a file; none if there is no such file.
fn contents(path: &Path) -> Result<Option<Vec<u8>>, String> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

fn fsync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
