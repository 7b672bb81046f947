//! What is done on a disk that fails, and what callers were promised.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use vfs::{FileSystem, Fsync, NewKind, NewNode, Place, RenameMode, SetAttr};

/// What may be found under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Possible {
    absent: bool,
    present: bool,
    len: RangeInclusive<u64>,
    /// What its bytes are: zeros, or one of these.
    fills: Vec<u8>,
}

impl Possible {
    const NOTHING: Possible = Possible {
        absent: true,
        present: false,
        len: 0..=0,
        fills: Vec::new(),
    };

    /// What was possible before, and this.
    fn or(&mut self, other: &Possible) {
        self.absent |= other.absent;
        if other.present {
            self.len = match self.present {
                true => {
                    *self.len.start().min(other.len.start())..=*self.len.end().max(other.len.end())
                }
                false => other.len.clone(),
            };
            self.fills.extend(&other.fills);
            self.present = true;
        }
    }

    /// Whether this was found.
    pub fn admits(&self, found: Option<&[u8]>) -> bool {
        match found {
            None => self.absent,
            Some(bytes) => {
                let possible = |byte: &u8| *byte == 0 || self.fills.contains(byte);
                let len = bytes.len() as u64;
                self.present && self.len.contains(&len) && bytes.iter().all(possible)
            }
        }
    }
}

/// A run of the workload: what each name leads to now, and what may be found after a crash.
pub struct Run<F: FileSystem> {
    pub fs: F,
    nodes: BTreeMap<&'static str, F::Node>,
    pub now: BTreeMap<&'static str, Possible>,
    pub after_crash: BTreeMap<&'static str, Possible>,
    /// What callers were told that failed.
    pub errors: Vec<String>,
}

impl<F: FileSystem> Run<F> {
    pub fn new(fs: F) -> Run<F> {
        Run {
            fs,
            nodes: BTreeMap::new(),
            now: BTreeMap::new(),
            after_crash: BTreeMap::new(),
            errors: Vec::new(),
        }
    }

    /// What callers were told that failed, and what may be found after a crash. Nothing is held.
    pub fn end(self) -> (Vec<String>, BTreeMap<&'static str, Possible>) {
        (self.errors, self.after_crash)
    }

    /// A name may lead to this from now on, if the call succeeds, or to what it did if not.
    fn call<T>(
        &mut self,
        changed: &[(&'static str, Possible)],
        call: impl FnOnce(&F) -> vfs::Result<T>,
    ) -> Option<T> {
        let result = call(&self.fs);
        for (name, to) in changed {
            let now = self.now.entry(name).or_insert(Possible::NOTHING);
            match &result {
                Ok(_) => *now = to.clone(),
                Err(_) => now.or(to),
            }
            let now = now.clone();
            let after = self.after_crash.entry(name).or_insert(Possible::NOTHING);
            after.or(&now);
        }
        let told = |error: vfs::Error| self.errors.push(error.to_string());
        result.map_err(told).ok()
    }

    /// A sync of what a name leads to; `None`: of everything.
    fn sync(&mut self, name: Option<&'static str>) {
        let result = match name {
            None => self.fs.syncfs(),
            Some(name) => match self.nodes.get(name) {
                Some(node) => self.fs.fsync(node, Fsync::All),
                None => return,
            },
        };
        match (result, name) {
            (Err(error), _) => self.errors.push(error.to_string()),
            (Ok(()), None) => self.after_crash.clone_from(&self.now),
            (Ok(()), Some(name)) => {
                self.after_crash.insert(name, self.now[name].clone());
            }
        }
    }

    fn create(&mut self, name: &'static str) {
        let new = NewNode {
            kind: NewKind::File,
            perm: 0o644,
            uid: 0,
            gid: 0,
            xattrs: &[],
        };
        let empty = Possible {
            absent: false,
            present: true,
            len: 0..=0,
            fills: vec![],
        };
        let node = self.call(&[(name, empty)], |fs| {
            fs.create(&fs.root(), name.as_bytes(), &new)
        });
        self.nodes.extend(node.map(|node| (name, node)));
    }

    /// Fills a file from its beginning on.
    fn fill(&mut self, name: &'static str, byte: u8, len: u64) {
        let Some(node) = self.nodes.get(name).cloned() else {
            return;
        };
        let mut to = self.now[name].clone();
        to.fills.push(byte);
        // A write that fails, or a batch between its pieces, may have done a part of it.
        to.len = *to.len.start()..=*to.len.end().max(&len);
        let all = self.call(&[(name, to)], |fs| {
            fs.write(&node, 0, &vec![byte; len as usize])
        });
        if all == Some(len as usize) {
            let now = self.now.get_mut(name).expect("it was just written");
            now.len = *now.len.start().max(&len)..=*now.len.end();
        }
    }

    fn truncate(&mut self, name: &'static str, len: u64) {
        let Some(node) = self.nodes.get(name).cloned() else {
            return;
        };
        let to = Possible {
            len: len..=len,
            ..self.now[name].clone()
        };
        let set = SetAttr {
            size: Some(len),
            ..SetAttr::default()
        };
        self.call(&[(name, to)], |fs| fs.setattr(&node, &set));
    }

    fn unlink(&mut self, name: &'static str) {
        if self.nodes.remove(name).is_some() {
            self.call(&[(name, Possible::NOTHING)], |fs| {
                fs.unlink(&fs.root(), name.as_bytes(), &|_| Ok(()))
            });
        }
    }

    fn rename(&mut self, from: &'static str, to: &'static str) {
        let Some(node) = self.nodes.remove(from) else {
            return;
        };
        let moved = self.now[from].clone();
        let renamed = self.call(&[(from, Possible::NOTHING), (to, moved)], |fs| {
            let root = fs.root();
            let (from, to) = (from.as_bytes(), to.as_bytes());
            let mode = RenameMode::Replace;
            fs.rename(
                Place::new(&root, from),
                Place::new(&root, to),
                mode,
                &|_| Ok(()),
            )
        });
        match renamed {
            Some(()) => drop(self.nodes.insert(to, node)),
            None => drop(self.nodes.remove(to)),
        }
    }

    /// Looks at all that there should be, as callers do.
    fn look(&mut self) {
        for (name, possible) in self.now.clone() {
            match contents(&self.fs, name) {
                Ok(found) => {
                    let what = found.as_ref().map(|found| (found.len(), found.first()));
                    let is_admitted = possible.admits(found.as_deref());
                    assert!(is_admitted, "{name} is {what:?}, not {possible:?}");
                }
                Err(error) => self.errors.push(error.to_string()),
            }
        }
        let mut listed = Vec::new();
        let listing = self.fs.readdir(&self.fs.root(), 0, &mut |entry| {
            listed.push(entry.name.to_vec());
            true
        });
        match listing {
            Ok(()) => self.now.iter().for_each(|(name, possible)| {
                let there = listed.iter().any(|found| found == name.as_bytes());
                let admitted = if there {
                    possible.present
                } else {
                    possible.absent
                };
                assert!(admitted, "{name} in the directory: {there}");
            }),
            Err(error) => self.errors.push(error.to_string()),
        }
    }
}

/// What a name leads to; `None`: nothing.
pub fn contents<F: FileSystem>(fs: &F, name: &str) -> vfs::Result<Option<Vec<u8>>> {
    let node = match fs.lookup(&fs.root(), name.as_bytes()) {
        Err(vfs::Error::Errno(vfs::Errno::NOENT)) => return Ok(None),
        node => node?,
    };
    let mut bytes = vec![0; fs.attr(&node).size as usize];
    let mut done = 0;
    while done < bytes.len() {
        match fs.read(&node, done as u64, &mut bytes[done..])? {
            0 => break,
            more => done += more,
        }
    }
    // In mode `strong` attributes are the latest ones, and contents of the consistent view, which
    // part when a commit fails.
    bytes.truncate(done);
    Ok(Some(bytes))
}

const OTHERS: [&str; 12] = [
    "a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9", "aa", "ab",
];

/// Creates, overwrites, cuts, renames, removes, and syncs this and that.
pub fn work<F: FileSystem>(run: &mut Run<F>) {
    for name in ["kept", "old", "cut", "gone"] {
        run.create(name);
        run.fill(name, b'k', 6000);
    }
    run.sync(Some("kept"));
    run.sync(None);
    for (i, name) in OTHERS.into_iter().enumerate() {
        run.create(name);
        run.fill(name, b'o', 4096 * (1 + i as u64 % 3));
        if i % 6 == 0 {
            run.sync(Some(name));
        }
    }
    run.fill("kept", b'l', 9000);
    run.sync(Some("kept"));
    run.create("new");
    run.fill("new", b'n', 5000);
    run.sync(Some("new"));
    run.rename("new", "old");
    run.truncate("cut", 100);
    run.sync(Some("cut"));
    run.truncate("cut", 20_000);
    run.unlink("gone");
    run.sync(None);
    for name in ["a1", "a7"] {
        run.unlink(name);
    }
    run.create("large");
    run.fill("large", b'g', 200_000);
    run.sync(Some("large"));
    run.look();
    run.fill("kept", b'm', 3000); // and nobody syncs it but the end
}
