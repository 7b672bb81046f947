//! Writers that know what they were promised.
//!
//! Each does small steps in a directory of its own until one fails, and notes, outside the file
//! system: before a change, that it may be there; after an fsync that succeeded, that it must be
//! there. `verify` compares that with what a mount after a crash shows, and goes on from there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::random::Random;

/// A writer, its random choices, and whether the engine promises names at return.
pub struct Writer {
    name: &'static str,
    kind: Kind,
    random: Random,
    sync: bool,
}

enum Kind {
    Append(Append),
    Overwrite(Overwrite),
    Replace(Replace),
    Names(Names),
    Move(Move),
}

/// One of each kind.
pub fn writers(sync: bool, seed: u64) -> Vec<Writer> {
    let kinds = [
        ("append", Kind::Append(Append::default())),
        ("overwrite", Kind::Overwrite(Overwrite::default())),
        ("replace", Kind::Replace(Replace::default())),
        ("names", Kind::Names(Names::default())),
        ("move", Kind::Move(Move::default())),
    ];
    let with_state = |(at, (name, kind)): (u64, _)| Writer {
        name,
        kind,
        random: Random::new(seed.wrapping_mul(31).wrapping_add(at)),
        sync,
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
        match &mut self.kind {
            Kind::Append(append) => append.step(&dir, &mut self.random),
            Kind::Overwrite(overwrite) => overwrite.step(&dir, &mut self.random),
            Kind::Replace(replace) => replace.step(&dir, &mut self.random, self.sync),
            Kind::Names(names) => names.step(&dir, &mut self.random, self.sync),
            Kind::Move(moves) => moves.step(&dir, &mut self.random, self.sync),
        }
    }

    /// Compares what is there with what was promised.
    #[track_caller]
    pub fn verify(&mut self, mount: &Path, context: &str) {
        let dir = mount.join(self.name);
        let verdict = match &mut self.kind {
            Kind::Append(append) => append.verify(&dir),
            Kind::Overwrite(overwrite) => overwrite.verify(&dir),
            Kind::Replace(replace) => replace.verify(&dir),
            Kind::Names(names) => names.verify(&dir),
            Kind::Move(moves) => moves.verify(&dir),
        };
        if let Err(why) = verdict {
            panic!("{context}: {}: {why}", self.name);
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

/// Appends to one file: up to its end it holds what was written, and it is no shorter than promised.
#[derive(Default)]
struct Append {
    written: u64,
    tried: u64,
    promised: u64,
}

impl Append {
    const NUMBER: u64 = 1;

    fn step(&mut self, dir: &Path, random: &mut Random) -> io::Result<()> {
        let path = dir.join("log");
        // Begin anew now and then, so that the image does not fill up.
        if self.written > 8 << 20 {
            (self.promised, self.written) = (0, 0);
            OpenOptions::new().write(true).open(&path)?.set_len(0)?;
        }
        let len = 1 + random.below(20_000);
        self.tried = self.tried.max(self.written + len);
        let file = OpenOptions::new().append(true).create(true).open(&path)?;
        let data = pattern(Append::NUMBER, self.written, len);
        // One call: short is a write only if the kill came in between.
        if rustix::io::write(&file, &data)? as u64 != len {
            return Err(io::Error::other("a short write"));
        }
        self.written += len;
        if random.one_in(4) {
            file.sync_data()?;
            self.promised = self.written;
            self.tried = self.written;
        }
        Ok(())
    }

    fn verify(&mut self, dir: &Path) -> Result<(), String> {
        let found = contents(&dir.join("log"))?.unwrap_or_default();
        let len = found.len() as u64;
        if len < self.promised || len > self.tried {
            return Err(format!(
                "{len} bytes, not {} to {}",
                self.promised, self.tried
            ));
        }
        let expected = pattern(Append::NUMBER, 0, len);
        if let Some(at) = (0..found.len()).find(|&at| found[at] != expected[at]) {
            return Err(format!("byte {at} of {len} is not what was written"));
        }
        (self.written, self.tried, self.promised) = (len, len, len);
        Ok(())
    }
}

/// Overwrites blocks in place: each word of a block is of a version no older than promised.
#[derive(Default)]
struct Overwrite {
    blocks: Vec<Block>,
}

/// Versions of a block: no word is older than `promised` or newer than `tried`, and none was older
/// than `whole` when the last write was done.
#[derive(Clone, Default)]
struct Block {
    promised: u64,
    whole: u64,
    tried: u64,
}

impl Overwrite {
    const BLOCKS: usize = 64;
    const WORDS: usize = 512;

    fn step(&mut self, dir: &Path, random: &mut Random) -> io::Result<()> {
        let path = dir.join("blocks");
        if self.blocks.is_empty() {
            fs::write(&path, vec![0; Overwrite::BLOCKS * Overwrite::WORDS * 8])?;
            fsync(&path)?;
            self.blocks = vec![Block::default(); Overwrite::BLOCKS];
        }
        let file = OpenOptions::new().write(true).open(&path)?;
        let at = random.below(Overwrite::BLOCKS as u64) as usize;
        self.blocks[at].tried += 1;
        let version = self.blocks[at].tried;
        let block = version.to_le_bytes().repeat(Overwrite::WORDS);
        file.write_all_at(&block, (at * block.len()) as u64)?;
        self.blocks[at].whole = version;
        if random.one_in(6) {
            file.sync_data()?;
            for block in &mut self.blocks {
                block.promised = block.whole;
            }
        }
        Ok(())
    }

    fn verify(&mut self, dir: &Path) -> Result<(), String> {
        if self.blocks.is_empty() {
            return Ok(());
        }
        let found = contents(&dir.join("blocks"))?.ok_or("the file is gone")?;
        if found.len() != Overwrite::BLOCKS * Overwrite::WORDS * 8 {
            return Err(format!("{} bytes", found.len()));
        }
        let blocks = found.chunks_exact(Overwrite::WORDS * 8);
        for (at, (block, state)) in blocks.zip(&mut self.blocks).enumerate() {
            let words = block.chunks_exact(8);
            let versions =
                words.map(|word| word.iter().rev().fold(0, |v, &b| v << 8 | u64::from(b)));
            let (oldest, newest) = versions.fold((u64::MAX, 0), |(a, b), v| (a.min(v), b.max(v)));
            if oldest < state.promised || newest > state.tried {
                return Err(format!(
                    "block {at}: versions {oldest} to {newest}, not {} to {}",
                    state.promised, state.tried
                ));
            }
            (state.promised, state.whole, state.tried) = (oldest, oldest, newest);
        }
        Ok(())
    }
}

/// Replaces a file as a whole, by a new one renamed over it: one version is there, complete.
#[derive(Default)]
struct Replace {
    tried: u64,
    promised: u64,
}

impl Replace {
    fn bytes(version: u64) -> Vec<u8> {
        let mut bytes = version.to_le_bytes().to_vec();
        bytes.extend(pattern(version, 0, version * 977 % 50_000));
        bytes
    }

    fn step(&mut self, dir: &Path, random: &mut Random, sync: bool) -> io::Result<()> {
        let version = self.tried + 1;
        let new = dir.join("new");
        fs::write(&new, Replace::bytes(version))?;
        fsync(&new)?;
        self.tried = version;
        fs::rename(&new, dir.join("current"))?;
        if sync {
            self.promised = version;
        } else if random.one_in(3) {
            fsync(dir)?;
            self.promised = version;
        }
        Ok(())
    }

    fn verify(&mut self, dir: &Path) -> Result<(), String> {
        let Some(found) = contents(&dir.join("current"))? else {
            return match self.promised {
                0 => Ok(()),
                version => Err(format!("version {version} is gone")),
            };
        };
        let version = found
            .first_chunk()
            .map(|bytes| u64::from_le_bytes(*bytes))
            .ok_or("cut short")?;
        if version < self.promised || version > self.tried {
            return Err(format!(
                "version {version}, not {} to {}",
                self.promised, self.tried
            ));
        }
        if found != Replace::bytes(version) {
            return Err(format!("version {version} is not complete"));
        }
        self.promised = version;
        Ok(())
    }
}

/// Makes and removes names of all kinds, in order: those promised are there, those removed for
/// good are not, and link counts are true.
#[derive(Default)]
struct Names {
    next: u64,
    names: Vec<Name>,
}

struct Name {
    number: u64,
    made: Promise,
    removed: Promise,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Promise {
    No,
    Tried,
    Promised,
}

impl Names {
    const ALIVE: usize = 40;

    fn step(&mut self, dir: &Path, random: &mut Random, sync: bool) -> io::Result<()> {
        self.next += 1;
        let path = |number: u64| dir.join(number.to_string());
        self.names.push(Name {
            number: self.next,
            made: Promise::Tried,
            removed: Promise::No,
        });
        Names::make(&path(self.next), &dir.join("link"), self.next)?;
        if self.names.len() > Names::ALIVE {
            let at = random.below(self.names.len() as u64) as usize;
            let name = &mut self.names[at];
            if name.removed == Promise::No {
                name.removed = Promise::Tried;
                Names::remove(&path(name.number), name.number)?;
            }
        }
        if !sync && random.one_in(8) {
            fsync(dir)?;
        } else if !sync {
            return Ok(());
        }
        for name in &mut self.names {
            for promise in [&mut name.made, &mut name.removed] {
                if *promise == Promise::Tried {
                    *promise = Promise::Promised;
                }
            }
        }
        Ok(())
    }

    /// By its number a name is a file, a directory, a symbolic link, or a file with a second name.
    fn make(path: &Path, second: &Path, number: u64) -> io::Result<()> {
        match number % 4 {
            0 => fs::create_dir(path),
            1 => File::create_new(path).map(drop),
            2 => std::os::unix::fs::symlink(format!("to-{number}"), path),
            _ => {
                File::create_new(path)?;
                let _ = fs::remove_file(second);
                fs::hard_link(path, second)
            }
        }
    }

    fn remove(path: &Path, number: u64) -> io::Result<()> {
        match number % 4 {
            0 => fs::remove_dir(path),
            _ => fs::remove_file(path),
        }
    }

    fn verify(&mut self, dir: &Path) -> Result<(), String> {
        let second = fs::symlink_metadata(dir.join("link")).ok();
        for name in &mut self.names {
            let path = dir.join(name.number.to_string());
            let found = fs::symlink_metadata(&path).ok();
            let must = name.made == Promise::Promised && name.removed == Promise::No;
            let may = name.removed < Promise::Promised;
            if found.is_none() && must {
                return Err(format!("{} is gone", name.number));
            }
            if found.is_some() && !may {
                return Err(format!("{} is back", name.number));
            }
            let Some(found) = found else {
                name.removed = Promise::Promised;
                continue;
            };
            (name.made, name.removed) = (Promise::Promised, Promise::No);
            Names::verify_one(&path, name.number, &found, second.as_ref())?;
        }
        let listed = match fs::read_dir(dir) {
            Ok(names) => names.filter(|name| name.as_ref().is_ok_and(|n| n.file_name() != "link")),
            Err(_) if self.names.is_empty() => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        self.names.retain(|name| name.removed == Promise::No);
        match listed.count() {
            count if count == self.names.len() => Ok(()),
            count => Err(format!("{count} names listed, not {}", self.names.len())),
        }
    }

    fn verify_one(
        path: &Path,
        number: u64,
        found: &fs::Metadata,
        second: Option<&fs::Metadata>,
    ) -> Result<(), String> {
        let right = match number % 4 {
            0 => found.is_dir() && found.nlink() == 2,
            1 => found.is_file() && found.nlink() == 1,
            2 => fs::read_link(path).is_ok_and(|to| to.as_os_str() == &*format!("to-{number}")),
            _ => {
                let linked = second.is_some_and(|second| second.ino() == found.ino());
                found.is_file() && found.nlink() == 1 + u64::from(linked)
            }
        };
        match right {
            true => Ok(()),
            false => Err(format!("{number} is wrong: {found:?}, link: {second:?}")),
        }
    }
}

/// Moves files between two directories: each is in one of them, whole.
#[derive(Default)]
struct Move {
    /// For each file: where it was moved to last, and whether that was promised.
    files: Vec<(usize, bool)>,
}

impl Move {
    const FILES: usize = 20;
    const DIRS: [&str; 2] = ["one", "two"];

    fn set_up(&mut self, dir: &Path) -> io::Result<()> {
        for name in Move::DIRS {
            fs::create_dir_all(dir.join(name))?;
        }
        for at in 0..Move::FILES {
            let path = dir.join(Move::DIRS[0]).join(at.to_string());
            fs::write(&path, pattern(at as u64, 0, 5000))?;
            fsync(&path)?;
        }
        Move::DIRS
            .iter()
            .try_for_each(|name| fsync(&dir.join(name)))?;
        fsync(dir)?;
        self.files = vec![(0, true); Move::FILES];
        Ok(())
    }

    fn step(&mut self, dir: &Path, random: &mut Random, sync: bool) -> io::Result<()> {
        if self.files.is_empty() {
            self.set_up(dir)?;
        }
        let at = random.below(Move::FILES as u64) as usize;
        let from = self.files[at].0;
        self.files[at] = (1 - from, false);
        let path = |place: usize| dir.join(Move::DIRS[place]).join(at.to_string());
        fs::rename(path(from), path(1 - from))?;
        if sync {
            self.files[at].1 = true;
        } else if random.one_in(5) {
            for name in Move::DIRS {
                fsync(&dir.join(name))?;
            }
            self.files.iter_mut().for_each(|file| file.1 = true);
        }
        Ok(())
    }

    fn verify(&mut self, dir: &Path) -> Result<(), String> {
        for (at, state) in self.files.iter_mut().enumerate() {
            let path = |place: usize| dir.join(Move::DIRS[place]).join(at.to_string());
            let place = match (exists(&path(0)), exists(&path(1))) {
                (true, false) => 0,
                (false, true) => 1,
                (true, true) => return Err(format!("{at} is in both directories")),
                (false, false) => return Err(format!("{at} is gone")),
            };
            if state.1 && place != state.0 {
                return Err(format!("{at} is in the directory it was moved out of"));
            }
            let mut found = Vec::new();
            File::open(path(place))
                .and_then(|mut file| file.read_to_end(&mut found))
                .map_err(|error| format!("{at}: {error}"))?;
            if found != pattern(at as u64, 0, 5000) {
                return Err(format!("{at} holds something else"));
            }
            *state = (place, true);
        }
        Ok(())
    }
}
