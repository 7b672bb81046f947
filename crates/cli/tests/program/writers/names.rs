//! Writers of names: those promised are there, those removed for good are not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use super::{Promises, Work, contents, exists, fsync, pattern};
use block::Random;

/// Replaces a file as a whole, by a new one renamed over it: one version is there, complete.
#[derive(Clone, Default)]
pub struct Replace {
    tried: u64,
    promised: u64,
}

impl Replace {
    fn bytes(version: u64) -> Vec<u8> {
        let mut bytes = version.to_le_bytes().to_vec();
        bytes.extend(pattern(version, 0, version * 977 % 50_000));
        bytes
    }
}

impl Work for Replace {
    fn step(&mut self, dir: &Path, random: &mut Random, promises: Promises) -> io::Result<()> {
        let version = self.tried + 1;
        let new = dir.join("new");
        fs::write(&new, Replace::bytes(version))?;
        fsync(&new)?;
        self.tried = version;
        fs::rename(&new, dir.join("current"))?;
        if promises.names() {
            self.promised = version;
        } else if random.one_in(3) {
            fsync(dir)?;
            self.promised = version;
        }
        Ok(())
    }

    fn verify(&mut self, dir: &Path, promises: Promises) -> Result<(), String> {
        // It may be a second name of the current one, which is not to be written to.
        let _ = promises
            .only_order()
            .then(|| fs::remove_file(dir.join("new")));
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

    fn copy(&self) -> Box<dyn Work> {
        Box::new(self.clone())
    }
}

/// Makes and removes names of all kinds, in order: those promised are there, those removed for
/// good are not, and link counts are true.
#[derive(Clone, Default)]
pub struct Names {
    next: u64,
    names: Vec<Name>,
}

#[derive(Clone)]
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

impl Work for Names {
    fn step(&mut self, dir: &Path, random: &mut Random, promises: Promises) -> io::Result<()> {
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
        if !promises.names() && random.one_in(8) {
            fsync(dir)?;
        } else if !promises.names() {
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

    fn verify(&mut self, dir: &Path, _: Promises) -> Result<(), String> {
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

    fn copy(&self) -> Box<dyn Work> {
        Box::new(self.clone())
    }
}

/// Moves files between two directories: each is in one of them, whole.
#[derive(Clone, Default)]
pub struct Move {
    /// For each file: where it was moved to last, and whether that was promised.
    files: Vec<(usize, bool)>,
    /// Files that a crash left with both names: the second one goes before they are moved again.
    doubled: BTreeSet<usize>,
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
}

impl Work for Move {
    fn step(&mut self, dir: &Path, random: &mut Random, promises: Promises) -> io::Result<()> {
        if self.files.is_empty() {
            self.set_up(dir)?;
        }
        let at = random.below(Move::FILES as u64) as usize;
        let from = self.files[at].0;
        let path = |place: usize| dir.join(Move::DIRS[place]).join(at.to_string());
        if self.doubled.contains(&at) {
            fs::remove_file(path(1 - from))?;
            fsync(&dir.join(Move::DIRS[1 - from]))?;
            self.doubled.remove(&at);
        }
        self.files[at] = (1 - from, false);
        fs::rename(path(from), path(1 - from))?;
        if promises.names() {
            self.files[at].1 = true;
        } else if random.one_in(5) {
            for name in Move::DIRS {
                fsync(&dir.join(name))?;
            }
            self.files.iter_mut().for_each(|file| file.1 = true);
        }
        Ok(())
    }

    fn verify(&mut self, dir: &Path, promises: Promises) -> Result<(), String> {
        for (at, state) in self.files.iter_mut().enumerate() {
            let path = |place: usize| dir.join(Move::DIRS[place]).join(at.to_string());
            let place = match (exists(&path(0)), exists(&path(1))) {
                (true, false) => 0,
                (false, true) => 1,
                (true, true) if promises.only_order() && !state.1 => {
                    self.doubled.insert(at);
                    state.0
                }
                (true, true) if self.doubled.contains(&at) => state.0,
                (true, true) => return Err(format!("{at} is in both directories")),
                (false, false) => return Err(format!("{at} is gone")),
            };
            if state.1 && place != state.0 {
                return Err(format!("{at} is in the directory it was moved out of"));
            }
            if !exists(&path(1 - place)) {
                self.doubled.remove(&at);
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

    fn copy(&self) -> Box<dyn Work> {
        Box::new(self.clone())
    }
}

/// Gives files further names across directories and takes names away: the names that a file is
/// known to have are there, at least one always, and its link count is the number of names found.
#[derive(Clone, Default)]
pub struct Links {
    files: Vec<Linked>,
}

/// Of a file: for each of its possible names whether it is there now, and whether it may be
/// otherwise.
#[derive(Clone, Default)]
struct Linked {
    now: [bool; Links::NAMES],
    open: [bool; Links::NAMES],
}

impl Links {
    const FILES: usize = 12;
    const NAMES: usize = 4;
    const DIRS: [&str; 2] = ["left", "right"];

    fn path(dir: &Path, file: usize, name: usize) -> std::path::PathBuf {
        dir.join(Links::DIRS[name % 2])
            .join(format!("{file}-{name}"))
    }

    fn set_up(&mut self, dir: &Path) -> io::Result<()> {
        for name in Links::DIRS {
            fs::create_dir_all(dir.join(name))?;
        }
        let mut first = Linked::default();
        first.now[0] = true;
        for file in 0..Links::FILES {
            let path = Links::path(dir, file, 0);
            fs::write(&path, pattern(file as u64, 0, 100))?;
            fsync(&path)?;
        }
        // No file is in the second one yet, so that no file's sync has promised it.
        fsync(&dir.join(Links::DIRS[1]))?;
        self.files = vec![first; Links::FILES];
        Ok(())
    }
}

impl Work for Links {
    fn step(&mut self, dir: &Path, random: &mut Random, promises: Promises) -> io::Result<()> {
        if self.files.is_empty() {
            self.set_up(dir)?;
        }
        let at = random.below(Links::FILES as u64) as usize;
        let name = random.below(Links::NAMES as u64) as usize;
        let file = &mut self.files[at];
        let has = (0..Links::NAMES).find(|&n| n != name && file.now[n]);
        let path = |name| Links::path(dir, at, name);
        match (file.now[name], has) {
            // The last name stays.
            (true, None) => {}
            (true, Some(_)) => {
                (file.now[name], file.open[name]) = (false, true);
                fs::remove_file(path(name))?;
            }
            (false, Some(other)) => {
                (file.now[name], file.open[name]) = (true, true);
                fs::hard_link(path(other), path(name))?;
            }
            (false, None) => return Err(io::Error::other("a file without names")),
        }
        if promises.names() {
            file.open = Default::default();
        } else if random.one_in(5)
            && let Some(any) = (0..Links::NAMES).find(|&n| file.now[n])
        {
            // Of the file: all names it has are promised, those it lost may be back.
            fsync(&path(any))?;
            for n in 0..Links::NAMES {
                file.open[n] &= !file.now[n];
            }
        } else if random.one_in(12) {
            for name in Links::DIRS {
                fsync(&dir.join(name))?;
            }
            self.files
                .iter_mut()
                .for_each(|file| file.open = Default::default());
        }
        Ok(())
    }

    fn verify(&mut self, dir: &Path, _: Promises) -> Result<(), String> {
        for (at, file) in self.files.iter_mut().enumerate() {
            let mut inodes = BTreeMap::new();
            for name in 0..Links::NAMES {
                let path = Links::path(dir, at, name);
                let found = fs::symlink_metadata(&path).ok();
                if found.is_some() != file.now[name] && !file.open[name] {
                    return Err(format!(
                        "name {name} of file {at}: {} expected",
                        file.now[name]
                    ));
                }
                file.now[name] = found.is_some();
                if let Some(found) = found {
                    let names = inodes.entry(found.ino()).or_insert((0, found.nlink()));
                    names.0 += 1;
                    if contents(&path)?.as_deref() != Some(&*pattern(at as u64, 0, 100)) {
                        return Err(format!("name {name} of file {at} holds something else"));
                    }
                }
            }
            file.open = Default::default();
            match inodes.values().collect::<Vec<_>>()[..] {
                [(names, links)] if names == links => {}
                _ => return Err(format!("file {at}: (names, links) by inode: {inodes:?}")),
            }
        }
        Ok(())
    }

    fn copy(&self) -> Box<dyn Work> {
        Box::new(self.clone())
    }
}

/// Moves directories into one another and about: each is somewhere, in one place, with what is in
/// it.
#[derive(Clone, Default)]
pub struct Trees {
    made: bool,
    next: u64,
    /// For each directory the one that it is in; the first is the writer's own.
    parents: Vec<usize>,
}

impl Trees {
    const DIRS: usize = 8;

    fn path(&self, dir: &Path, at: usize) -> std::path::PathBuf {
        match at {
            0 => dir.to_path_buf(),
            _ => self.path(dir, self.parents[at]).join(format!("d{at}")),
        }
    }

    fn is_below(&self, mut at: usize, above: usize) -> bool {
        while at != 0 && at != above {
            at = self.parents[at];
        }
        at == above
    }

    fn set_up(&mut self, dir: &Path) -> io::Result<()> {
        self.parents = vec![0; Trees::DIRS + 1];
        for at in 1..=Trees::DIRS {
            let path = self.path(dir, at);
            fs::create_dir_all(&path)?;
            fs::write(path.join("mark"), at.to_string())?;
            fsync(&path.join("mark"))?;
        }
        self.made = true;
        Ok(())
    }

    /// Finds all marks below a directory.
    fn find(dir: &Path, above: usize, found: &mut Vec<(usize, usize)>) -> Result<(), String> {
        let entries = fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        for entry in entries {
            let entry = entry.map_err(|error| error.to_string())?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(at) = name.strip_prefix('d').and_then(|n| n.parse::<usize>().ok()) else {
                continue;
            };
            let mark = contents(&entry.path().join("mark"))?;
            if mark != Some(at.to_string().into_bytes()) {
                return Err(format!("the mark of {at} is {mark:?}"));
            }
            found.push((at, above));
            Trees::find(&entry.path(), at, found)?;
        }
        Ok(())
    }
}

impl Work for Trees {
    fn step(&mut self, dir: &Path, random: &mut Random, _: Promises) -> io::Result<()> {
        if !self.made {
            self.set_up(dir)?;
        }
        let at = 1 + random.below(Trees::DIRS as u64) as usize;
        let to = random.below(Trees::DIRS as u64 + 1) as usize;
        if !self.is_below(to, at) {
            let new = self.path(dir, to).join(format!("d{at}"));
            let old = self.path(dir, at);
            self.parents[at] = to;
            fs::rename(old, new)?;
        }
        // A name that comes and goes, so that directories grow and are not empty.
        self.next += 1;
        let passing = self.path(dir, at).join(format!("passing-{}", self.next));
        File::create(&passing)?;
        fs::remove_file(&passing)?;
        if random.one_in(8) {
            fsync(&self.path(dir, at))?;
        }
        Ok(())
    }

    fn verify(&mut self, dir: &Path, _: Promises) -> Result<(), String> {
        if !self.made {
            return Ok(());
        }
        let mut found = Vec::new();
        Trees::find(dir, 0, &mut found)?;
        found.sort();
        if !found.iter().map(|&(at, _)| at).eq(1..=Trees::DIRS) {
            return Err(format!("directories and where they are: {found:?}"));
        }
        for (at, above) in found {
            self.parents[at] = above;
        }
        Ok(())
    }

    fn copy(&self) -> Box<dyn Work> {
        Box::new(self.clone())
    }
}

/// Keeps files open that have no name, and writes them: none of them is there after a crash, nor in
/// the way.
#[derive(Default)]
pub struct Open {
    next: u64,
    files: Vec<File>,
}

impl Work for Open {
    fn step(&mut self, dir: &Path, random: &mut Random, _: Promises) -> io::Result<()> {
        self.next += 1;
        let path = dir.join(self.next.to_string());
        let file = File::create_new(&path)?;
        if random.one_in(2) {
            file.write_all_at(&[7; 20_000], 0)?;
            file.sync_all()?;
        }
        fs::remove_file(&path)?;
        file.write_all_at(&pattern(self.next, 0, 30_000), 1000)?;
        if random.one_in(3) {
            file.sync_all()?;
        }
        self.files.push(file);
        if self.files.len() > 20 {
            self.files.swap_remove(random.below(20) as usize);
        }
        if random.one_in(10) {
            fsync(dir)?;
        }
        Ok(())
    }

    fn verify(&mut self, dir: &Path, _: Promises) -> Result<(), String> {
        self.files.clear();
        let Ok(entries) = fs::read_dir(dir) else {
            return Ok(());
        };
        // Its own last names may be back, if their removal was not durable: they go now.
        for entry in entries {
            let entry = entry.map_err(|error| error.to_string())?;
            fs::remove_file(entry.path()).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Without the files: those of another mount are none of its.
    fn copy(&self) -> Box<dyn Work> {
        Box::new(Open {
            next: self.next,
            files: Vec::new(),
        })
    }
}
