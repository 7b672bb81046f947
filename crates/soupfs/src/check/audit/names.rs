//! The names of a directory: buckets, chains, entries.
//!
//! A chain is followed from its bucket. An entry at home there is claimed; what follows a claimed
//! entry is followed only by who claimed it. Entries that are not at home (or nothing at all) are
//! neither claimed nor ever changed, since they may be somebody's who is met later: a repair leads
//! the last link that is at home past them. After [`ASTRAY_MAX`] of them in a row the chain is
//! taken for another bucket's, which bounds the work.

use super::worker::{Count, DirectoryName, Entry, Task, Worker};
use crate::attributes::Attributes;
use crate::check::damage::inodes;
use crate::check::dir_table::DirTable;
use crate::check::finding::{Finding, Fix, Link, Problem};
use crate::image::{DentryImage, Source};
use crate::layout::{LINE_BITS, LINE_MASK, PAGE, WORDS_PER_PAGE, bucket, dentry, line_at, page_at};
use vfs::{Kind, NAME_MAX};

/// Entries in a row that do not belong to their chain, before it is given up.
const ASTRAY_MAX: u32 = 8;
/// How many entries ahead lines are prefetched, and their inodes.
const AHEAD_ENTRY: usize = 16;
const AHEAD_INODE: usize = 8;

/// A chain to follow.
struct Head {
    bucket: u64,
    link: Link,
    line: u64,
}

/// What became of an entry.
enum Fate {
    /// It is here at home.
    Home(DentryImage),
    /// It cannot be here; why.
    Astray(Finding),
    /// It was met before, and with it what follows.
    Met,
}

impl<S: Source> Worker<'_, S> {
    /// Follow the chains of all buckets of a table page.
    pub(super) fn table_page(
        &mut self,
        dir: &Attributes,
        page: u64,
        block: u64,
        count: &mut Count,
    ) {
        let image = self.walk.image;
        let heads = self.heads(dir, page, block, count);
        for (i, head) in heads.iter().enumerate() {
            if let Some(ahead) = heads.get(i + AHEAD_ENTRY) {
                image.pool.prefetch(line_at(ahead.line));
            }
            if let Some(ahead) = heads.get(i + AHEAD_INODE) {
                // In range, as `heads` has checked.
                let target = image.pool.load(line_at(ahead.line) + dentry::TARGET) & LINE_MASK;
                image.pool.prefetch(line_at(target));
                image.pool.prefetch(line_at(target + 1));
            }
            self.chain(dir, head, count);
        }
    }

    /// The chains that start in a table page.
    fn heads(&mut self, dir: &Attributes, page: u64, block: u64, count: &mut Count) -> Vec<Head> {
        let limit = bucket::BASE << dir.level;
        let mut heads = Vec::new();
        let words = self.walk.image.words(page, 0..WORDS_PER_PAGE);
        for (slot, word) in (0..).zip(words) {
            let at = page_at(page) + slot * 8;
            if word == 0 {
                continue;
            }
            let b = block * WORDS_PER_PAGE + slot;
            let link = Link {
                at,
                bucket: true,
                depth: 0,
            };
            if b >= limit {
                let detail = format!("bucket {b} is used, there are {limit}");
                let finding = Finding::new(Problem::StrayBucket, dir.ino, at, detail);
                self.report(finding.fix(Fix::Store { at, value: 0 }));
                if count.level == 0 {
                    count.level = self.level_of(dir, b, at, word);
                }
                continue;
            }
            match self.walk.image.bucket(at, word) {
                Ok(None) => {}
                Ok(Some(line)) => heads.push(Head {
                    bucket: b,
                    link,
                    line,
                }),
                Err(why) => {
                    let fix = Fix::Lead { link, word, to: 0 };
                    self.refuse(Problem::BadLink, dir.ino, at, why, fix);
                }
            }
        }
        heads
    }

    /// The level at which a bucket that the directory's excludes leads to an entry at home there; 0
    /// if at none.
    fn level_of(&self, dir: &Attributes, b: u64, at: u64, word: u64) -> u64 {
        let image = self.walk.image;
        let mut buf = [0; NAME_MAX];
        let hash = |line| {
            let found = image.dentry(line).ok()?;
            Some(self.walk.hash.hash(image.name(&found, &mut buf).ok()?))
        };
        let first = image.bucket(at, word).ok().flatten();
        let Some(hash) = first.and_then(hash) else {
            return 0; // without a look at the table: most of many such buckets are empty
        };
        let level = inodes::table_level(&image, dir);
        let inode = &Attributes { level, ..*dir };
        match (DirTable { image, inode }).is_home(hash, b) {
            true => level.into(),
            false => 0,
        }
    }

    fn chain(&mut self, dir: &Attributes, head: &Head, count: &mut Count) {
        let image = self.walk.image;
        let mut entry = Entry {
            line: head.line,
            link: head.link,
            word: head.line,
        };
        let mut names: Vec<(u64, Entry)> = Vec::new();
        // The first of a row of entries that are astray, and how many there are.
        let mut astray: Option<(Finding, u32)> = None;
        loop {
            let at = entry.at() + dentry::NEXT;
            let next = image.pool.load(at);
            // Harmless if the word is nonsense.
            image.pool.prefetch(line_at(next & LINE_MASK));
            let mut home = false;
            match self.entry(dir, head.bucket, entry) {
                Fate::Met => {
                    self.report_astray(astray, entry.lead(0));
                    break;
                }
                Fate::Home(found) => {
                    self.report_astray(astray.take(), entry.lead(entry.line));
                    names.push((found.hash, entry));
                    self.target(dir, entry, &found, count);
                    home = true;
                }
                Fate::Astray(why) => {
                    let (first, row) = astray.take().unwrap_or((why, 0));
                    if row == ASTRAY_MAX {
                        let detail = format!("bucket {} leads to another's chain", head.bucket);
                        let stray =
                            Finding::new(Problem::StrayChain, dir.ino, head.link.at, detail);
                        self.report(stray.fix(entry.lead(0)));
                        self.report_astray(Some((first, row)), entry.lead(0));
                        break;
                    }
                    astray = Some((first, row + 1));
                }
            }
            if home {
                let depth = entry.link.depth.saturating_add(1);
                entry.link = Link {
                    at,
                    bucket: false,
                    depth,
                };
                entry.word = next;
            }
            match image.next(entry.line) {
                Ok(Some(line)) => entry.line = line,
                Ok(None) => {
                    self.report_astray(astray, entry.lead(0));
                    break;
                }
                Err(why) => {
                    self.report_astray(astray, entry.lead(0));
                    self.refuse(Problem::BadLink, dir.ino, at, why, entry.lead(0));
                    break;
                }
            }
        }
        if names.len() > 1 {
            self.distinct(dir, &mut names);
        }
    }

    /// Report the first of a row of entries that are astray, and what leads past them.
    fn report_astray(&mut self, row: Option<(Finding, u32)>, fix: Fix) {
        if let Some((mut first, row)) = row {
            if row > 1 {
                first.detail += &format!(", nor are {} behind it", row - 1);
            }
            self.report(first.fix(fix));
        }
    }

    /// Check the entry itself, and claim its lines if it is at home.
    fn entry(&mut self, dir: &Attributes, b: u64, entry: Entry) -> Fate {
        let image = self.walk.image;
        let at = entry.at();
        let astray = |problem, detail| Fate::Astray(Finding::new(problem, dir.ino, at, detail));
        let mut found = match image.dentry(entry.line) {
            Ok(found) => found,
            Err(why) => return astray(Problem::BadEntry, why.to_string()),
        };
        let mut buf = [0; NAME_MAX];
        let name = match image.name(&found, &mut buf) {
            Ok(name) => name,
            Err(why) => return astray(Problem::BadEntry, why.to_string()),
        };
        if name == b"." || name == b".." || name.iter().any(|&c| c == b'/' || c == 0) {
            let detail = format!("\"{}\" cannot be a name", name.escape_ascii());
            return astray(Problem::BadEntry, detail);
        }
        let hash = self.walk.hash.hash(name);
        if !(DirTable { image, inode: dir }).is_home(hash, b) {
            let detail = format!("\"{}\" is not at home in bucket {b}", name.escape_ascii());
            return astray(Problem::Misplaced, detail);
        }
        if !self.claim_line(entry.line, dir.ino, at, entry.lead(0)) {
            return Fate::Met;
        }
        if found.hash != hash {
            let detail = format!(
                "\"{}\" has hash {:#x} stored",
                name.escape_ascii(),
                found.hash
            );
            let at = at + dentry::HASH;
            let finding = Finding::new(Problem::WrongHash, dir.ino, at, detail);
            self.report(finding.fix(Fix::Store { at, value: hash }));
            found.hash = hash;
        }
        if found.name_len > dentry::INLINE {
            self.name_lines(dir, entry, &found);
        }
        self.check_tag(dir, entry);
        if let Some(visit) = self.walk.visit {
            visit(entry.line);
        }
        Fate::Home(found)
    }

    /// A later mount would take the pointer for its own.
    fn check_tag(&mut self, dir: &Attributes, entry: Entry) {
        let at = entry.at() + dentry::LATEST_NEXT;
        let tag = self.walk.image.pool.load(at) >> LINE_BITS;
        if self.walk.epoch.is_some_and(|epoch| tag > epoch) {
            let detail = format!("a latest pointer of mount {tag}, which is yet to come");
            let finding = Finding::new(Problem::EarlyTag, dir.ino, at, detail);
            self.report(finding.fix(Fix::Store { at, value: 0 }));
        }
    }

    fn name_lines(&mut self, dir: &Attributes, entry: Entry, found: &DentryImage) {
        // The name has been read along them.
        for line in self.walk.image.name_lines(found).unwrap_or_default() {
            self.claim_line(line, dir.ino, entry.at(), entry.remove());
        }
    }

    /// Check what an entry names, and claim it at its first name.
    fn target(&mut self, dir: &Attributes, entry: Entry, found: &DentryImage, count: &mut Count) {
        count.names += 1;
        self.totals.names += 1;
        let remove = entry.remove();
        let (inode, mends) =
            match inodes::mended(&self.walk.image, found.ino, found.kind, Some(dir.ino)) {
                Ok(mended) => mended,
                Err(why) => {
                    let detail = format!("\"{}\": {why}", self.text(found));
                    let finding = Finding::new(Problem::Dangling, dir.ino, entry.at(), detail);
                    self.report(finding.fix(remove));
                    return;
                }
            };
        self.target_word(dir, entry, found, inode.kind);
        if inode.kind == Kind::Dir {
            let name = DirectoryName {
                dir: *dir,
                entry,
                found: *found,
                inode,
                mends,
            };
            count.directories += 1;
            let several = (self.walk.suspects.as_ref())
                .is_some_and(|suspects| suspects.directories.contains(&inode.ino));
            if several && inode.parent != dir.ino {
                self.doubtful.push(name);
            } else if !self.directory(name) {
                count.directories -= 1;
            }
        } else if self.walk.claims.inode(inode.ino) {
            self.claim_inode(inode.ino, inode.ino, entry.at(), remove);
            self.met(&inode, mends);
            if inode.nlink != 1 {
                self.links.entry(inode.ino).or_default();
            }
            self.contents(&inode, entry.at(), remove);
        } else {
            self.note_inode(inode.ino, inode.ino, entry.at(), remove);
            *self.links.entry(inode.ino).or_default() += 1;
        }
    }

    /// Claim a directory for a name; false if another has it.
    pub(super) fn directory(&mut self, name: DirectoryName) -> bool {
        let DirectoryName {
            dir,
            entry,
            found,
            inode,
            mends,
        } = name;
        let is_first = self.walk.claims.inode(inode.ino);
        if is_first {
            self.claim_inode(inode.ino, inode.ino, entry.at(), entry.remove());
            self.met(&inode, mends);
            self.check_parent(&inode, dir.ino);
            self.tasks.push(Task::directory(&inode));
        } else {
            self.suspects.directory(inode.ino);
            let detail = format!(
                "\"{}\" is a second name of directory {}",
                self.text(&found),
                inode.ino
            );
            let finding = Finding::new(Problem::SecondName, dir.ino, entry.at(), detail);
            self.report(finding.fix(entry.remove()));
        }
        is_first
    }

    /// The name of an entry, for people.
    #[cold]
    fn text(&self, found: &DentryImage) -> String {
        let mut buf = [0; NAME_MAX];
        match self.walk.image.name(found, &mut buf) {
            Ok(name) => name.escape_ascii().to_string(),
            Err(_) => format!("entry {}", found.line),
        }
    }

    /// Check the kind and the clear bits of the target word.
    fn target_word(&mut self, dir: &Attributes, entry: Entry, found: &DentryImage, kind: Kind) {
        let at = entry.at() + dentry::TARGET;
        let word = self.walk.image.pool.load(at);
        let kind_bits = u64::from(kind.mode_bits() >> 12) << dentry::KIND_SHIFT;
        let value = found.ino | (found.name_len as u64) << dentry::LEN_SHIFT | kind_bits;
        if word == value {
            return;
        }
        let (problem, detail) = if found.kind == kind {
            (Problem::TargetBits, format!("target word {word:#x}"))
        } else {
            let detail = format!(
                "\"{}\" is a {:?} here, but a {kind:?}",
                self.text(found),
                found.kind
            );
            (Problem::WrongKind, detail)
        };
        self.report(Finding::new(problem, dir.ino, at, detail).fix(Fix::Store { at, value }));
    }

    /// Check that the names of a chain differ. Equal names have equal hashes, hence one bucket.
    fn distinct(&mut self, dir: &Attributes, names: &mut [(u64, Entry)]) {
        names.sort_unstable_by_key(|(hash, entry)| (*hash, entry.link.depth));
        for same in names
            .chunk_by(|a, b| a.0 == b.0)
            .filter(|same| same.len() > 1)
        {
            let mut known: Vec<Vec<u8>> = Vec::new();
            for (_, entry) in same {
                let mut buf = [0; NAME_MAX];
                let image = self.walk.image;
                let Ok(found) = image.dentry(entry.line) else {
                    continue;
                };
                let Ok(name) = image.name(&found, &mut buf) else {
                    continue;
                };
                if !known.iter().any(|k| k == name) {
                    known.push(name.to_vec());
                    continue;
                }
                let detail = format!("\"{}\" is there twice", name.escape_ascii());
                let finding = Finding::new(Problem::DuplicateName, dir.ino, entry.at(), detail);
                self.report(finding.fix(entry.remove()));
            }
        }
    }
}

const _: () = assert!(bucket::BASE <= WORDS_PER_PAGE && PAGE == WORDS_PER_PAGE * 8);
