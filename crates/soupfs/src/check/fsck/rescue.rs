//! What has lost its name is given another one, under `lost+found`.
//!
//! In an image that was unmounted the maps are exact. So an inode that they call used and that no
//! name reaches has lost its name to damage; in other images a crash may have left it, of what was
//! removed, and its space is free. Whatever a directory that is lost names keeps that name.
//!
//! What is new is durable before a word leads to it, and each word that does is one store. It is
//! put where neither maps nor walk know anything in use; the maps themselves are written at the end
//! of the repair, as ever.

mod space;

use crate::attributes::Attributes;
use crate::check::audit::{Audit, mask, pages_of, words};
use crate::check::claims::Claims;
use crate::check::contents::symlink_error;
use crate::check::damage::inodes;
use crate::check::dir_table::DirTable;
use crate::check::finding::{FINDINGS_MAX, Finding, Problem};
use crate::fault::{Fault, injected};
use crate::hash::NameHash;
use crate::image::{Image, Superblock};
use crate::layout::{
    LINES_PER_PAGE, WORDS_PER_PAGE, bucket, dentry, index, inode, line_at, page_at,
};
use pmem::{MediumError, Pool};
use space::{Space, pairs};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use vfs::{Clock, Kind, SystemClock};

/// Level of a new `lost+found`: its table fills its one page.
const LEVEL: u32 = 4;
const _: () = assert!(bucket::BASE << LEVEL == WORDS_PER_PAGE);

/// Directories for what was lost that are tried before it is given up: these names may be taken by
/// something else.
const DIRECTORIES_MAX: u32 = 10;

/// An inode that has lost its name.
#[derive(Clone, Copy)]
pub(super) struct Lost {
    pub ino: u64,
    kind: Kind,
}

/// What was named.
#[derive(Default)]
pub(super) struct Named {
    pub count: usize,
    /// One for each, but not more than an audit keeps.
    pub findings: Vec<Finding>,
}

/// Finds what is lost, and names it.
pub(super) struct Rescue<'a> {
    pool: &'a Arc<Pool>,
    sb: &'a Superblock,
    audit: &'a Audit,
    image: Image<'a>,
    hash: NameHash,
    space: Space<'a>,
}

/// What is looked through for lost inodes.
struct Search<'k> {
    /// Inodes that were found before.
    known: &'k HashSet<u64>,
    /// Pages that lost inodes hold, and entries of lost directories.
    seen: Claims,
    /// What these entries name.
    named: HashSet<u64>,
    /// The same of the directory that is looked at.
    names: Vec<u64>,
    lost: Vec<Lost>,
}

impl<'a> Rescue<'a> {
    pub(super) fn new(pool: &'a Arc<Pool>, sb: &'a Superblock, audit: &'a Audit) -> Rescue<'a> {
        let image = Image::new(&**pool, &sb.geometry);
        Rescue {
            pool,
            sb,
            audit,
            image,
            hash: NameHash::new(sb.hash_key),
            space: Space::new(image, audit),
        }
    }

    /// The inodes that have lost their names, but not those that something lost names, nor those
    /// that were `known` before.
    pub(super) fn lost(&self, known: &HashSet<u64>) -> Vec<Lost> {
        let mut search = Search {
            known,
            seen: Claims::new(self.sb.geometry),
            named: HashSet::new(),
            names: Vec::new(),
            lost: Vec::new(),
        };
        for region in 0..self.sb.geometry.regions() {
            if self.space.is_unused(region) {
                continue;
            }
            let usable = self.sb.geometry.allocatable(region);
            for first in words(&self.sb.geometry, region) {
                let pages = mask(&usable, first) & !self.audit.claims.whole_pages(first);
                for page in pages_of(first, pages) {
                    self.search(page, &mut search);
                }
            }
        }
        let on_top = |inode: &&Lost| !search.named.contains(&inode.ino);
        let top: Vec<Lost> = search.lost.iter().filter(on_top).copied().collect();
        match top.is_empty() {
            true => search.lost.into_iter().take(1).collect(), // directories that name each other
            false => top,
        }
    }

    /// Look for lost inodes in a page of lines.
    fn search(&self, page: u64, search: &mut Search<'_>) {
        let (at, bit) = self.sb.geometry.page_bit(page);
        let lines = match self.pool.load(at) & bit {
            0 => 0,
            _ => self.pool.load(self.sb.geometry.line_word(page)),
        };
        let lines = lines & !self.audit.claims.lines_of(page);
        for line in pages_of(page * LINES_PER_PAGE, pairs(lines)) {
            if let Some(inode) = self.accepted(line)
                && !search.known.contains(&inode.ino)
                && self.is_whole(&inode, search)
            {
                let (ino, kind) = (inode.ino, inode.kind);
                search.lost.push(Lost { ino, kind });
                search.named.extend(&search.names);
            }
            search.names.clear();
        }
    }

    /// The inode at a line, if the walk will take it for one once it has a name.
    fn accepted(&self, line: u64) -> Option<Attributes> {
        let inode = self.image.inode_as_it_is(line, None).ok()?;
        let (inode, _) = inodes::mended(&self.image, line, inode.kind, Some(inode.parent)).ok()?;
        (inode.nlink > 0).then_some(inode)
    }

    /// Whether what an inode holds is nobody else's. What cannot be read is cut off once the inode
    /// is reached.
    fn is_whole(&self, inode: &Attributes, search: &mut Search<'_>) -> bool {
        let tree = match inode.kind {
            Kind::Symlink if symlink_error(&self.image, inode).is_some() => return false,
            Kind::File | Kind::Dir | Kind::Symlink => self.image.root(inode.ino, inode.root),
            _ => Ok(None),
        };
        let tree = tree.ok().flatten();
        let xattrs = self.image.xattr_pages(inode.ino, inode.xattr);
        tree.is_none_or(|root| self.is_lost_tree(inode.kind, root.top.page, root.height, search))
            && xattrs
                .into_iter()
                .flatten()
                .all(|(page, _)| self.is_lost(page, search))
    }

    /// Whether all pages of an index are lost; notes what the entries of a directory name.
    fn is_lost_tree(&self, kind: Kind, page: u64, height: u64, search: &mut Search<'_>) -> bool {
        if !self.is_lost(page, search) {
            return false;
        }
        let is_leaf = height == 0;
        if is_leaf && kind != Kind::Dir {
            return true; // contents
        }
        for at in (page_at(page)..page_at(page + 1)).step_by(8) {
            let word = self.pool.load(at);
            if is_leaf {
                self.note_names(word & !bucket::EMPTY, search);
            } else if let Ok(Some(child)) = self.image.pointer(at, word, height == 1)
                && !self.is_lost_tree(kind, child.page, height - 1, search)
            {
                return false;
            }
        }
        true
    }

    /// Note what the entries of a chain name, until one that was met before.
    fn note_names(&self, mut line: u64, search: &mut Search<'_>) {
        while self.sb.geometry.holds_line(line) && search.seen.lines(line, 1) {
            if let Ok(entry) = self.image.dentry(line) {
                search.names.push(entry.ino);
            }
            line = self.pool.load(line_at(line) + dentry::NEXT);
        }
    }

    /// Whether the maps call a page used whole, nobody is known to use it, and it is met for the
    /// first time.
    fn is_lost(&self, page: u64, search: &mut Search<'_>) -> bool {
        let (at, bit) = self.sb.geometry.page_bit(page);
        let used_whole =
            self.pool.load(at) & bit != 0 && self.pool.load(self.sb.geometry.line_word(page)) == 0;
        used_whole && self.space.is_unclaimed(page) && search.seen.page(page)
    }

    /// Name inodes in `lost+found`, as many as there is space for; what was done.
    pub(super) fn name(&mut self, lost: &[Lost]) -> Result<Named, MediumError> {
        let mut directory = self.directory()?;
        if directory.is_none() && self.space.widen() {
            directory = self.directory()?;
        }
        let Some((directory, path)) = directory else {
            return Ok(Named::default());
        };
        // The new heads of chains, by where they go.
        let mut heads = BTreeMap::new();
        let mut named = Named::default();
        for inode in lost {
            let number = format!("#{}", inode.ino);
            let at = self.bucket(&directory, number.as_bytes());
            let mut line = self.space.lines(1);
            if line.is_none() && self.space.widen() {
                line = self.space.lines(1);
            }
            let Some((at, line)) = at.zip(line) else {
                break;
            };
            let next = heads.get(&at).copied();
            let next = next.unwrap_or_else(|| self.head(at));
            self.entry(line, number.as_bytes(), *inode, next)?;
            if inode.kind == Kind::Dir {
                self.store_new(line_at(inode.ino) + inode::PARENT, &[directory.ino])?;
            }
            heads.insert(at, line);
            named.count += 1;
            if named.findings.len() < FINDINGS_MAX {
                let detail = format!("had lost its name, is {path}/{number} now");
                let found = Finding::new(Problem::Lost, inode.ino, line_at(inode.ino), detail);
                named.findings.push(found);
            }
        }
        self.publish(heads)?;
        Ok(named)
    }

    /// The directory for what was lost, and its path: one that is there, or a new one. If there is
    /// no space for that, or its names are all taken, the root.
    fn directory(&mut self) -> Result<Option<(Attributes, String)>, MediumError> {
        let Ok(root) = self.image.inode_as_it_is(self.sb.root, None) else {
            return Ok(None);
        };
        for further in 0..DIRECTORIES_MAX {
            let name = match further {
                0 => String::from("lost+found"),
                _ => format!("lost+found.{further}"),
            };
            let found = match self.find(&root, name.as_bytes()) {
                Some(inode) if !self.holds_names(&inode) => continue,
                Some(inode) => Some(inode),
                None => self.make(&root, name.as_bytes())?,
            };
            if let Some(inode) = found {
                return Ok(Some((inode, format!("/{name}"))));
            }
            break;
        }
        let has_table = self.bucket(&root, b"").is_some();
        Ok(has_table.then_some((root, String::new())))
    }

    /// What the root has under a name; as the repair of what leads nowhere is yet to come, it may
    /// be nothing usable.
    fn find(&self, root: &Attributes, name: &[u8]) -> Option<Attributes> {
        let hash = self.hash.hash(name);
        let mut next = self.head(self.bucket(root, name)?);
        let mut known = HashSet::new();
        while next != 0 && self.sb.geometry.holds_line(next) && known.insert(next) {
            if let Ok(Some(ino)) = self.image.named(next, hash, name) {
                return self.image.inode_as_it_is(ino, Some(Kind::File)).ok();
            }
            next = self.pool.load(line_at(next) + dentry::NEXT);
        }
        None
    }

    fn holds_names(&self, inode: &Attributes) -> bool {
        let image = self.image;
        let reached = self.audit.claims.lines_of(inode.ino / LINES_PER_PAGE);
        inode.kind == Kind::Dir
            && reached >> (inode.ino % LINES_PER_PAGE) & 1 == 1
            && image.has_room_for_table(inode.level)
            && (DirTable { image, inode }).at(0).is_some()
    }

    /// Where the bucket is that a name belongs to.
    fn bucket(&self, dir: &Attributes, name: &[u8]) -> Option<u64> {
        let (image, inode) = (self.image, dir);
        let table = DirTable { image, inode };
        table.at(table.home(self.hash.hash(name), 0))
    }

    /// The first entry of a bucket; 0 for none.
    fn head(&self, at: u64) -> u64 {
        self.pool.load(at) & !bucket::EMPTY
    }

    /// A new directory in the root, if there is space for it.
    fn make(&mut self, root: &Attributes, name: &[u8]) -> Result<Option<Attributes>, MediumError> {
        let Some(table) = self.space.page() else {
            return Ok(None); // the lines are for names
        };
        let lines = self.space.lines(inode::LINES).zip(self.space.lines(1));
        let Some((ino, line)) = lines else {
            return Ok(None);
        };
        self.store_new(page_at(table), &[bucket::EMPTY; WORDS_PER_PAGE as usize])?;
        let now = SystemClock.now();
        let made = Attributes {
            perm: 0o700,
            nlink: 2,
            root: table << index::SHIFT,
            pages: 1,
            parent: root.ino,
            level: LEVEL,
            ..Attributes::new(ino, now.0 as u32, Kind::Dir, now)
        };
        self.store_new(line_at(ino), &made.encode())?;
        let Some(at) = self.root_bucket(root, name)? else {
            return Ok(None);
        };
        let kind = made.kind;
        self.entry(line, name, Lost { ino, kind }, self.head(at))?;
        self.publish(BTreeMap::from([(at, line)]))?;
        Ok(Some(made))
    }

    /// Where the bucket of a name in the root is; if its table has no first page, in a new one.
    fn root_bucket(&mut self, root: &Attributes, name: &[u8]) -> Result<Option<u64>, MediumError> {
        if let Some(at) = self.bucket(root, name) {
            return Ok(Some(at));
        }
        let (at, height) = self.missing(root);
        let mut top = 0;
        for _ in 0..=height {
            let Some(page) = self.space.page() else {
                return Ok(None);
            };
            let mut words = [0; WORDS_PER_PAGE as usize];
            words[0] = top << index::SHIFT;
            self.store_new(page_at(page), &words)?;
            top = page;
        }
        self.publish(BTreeMap::from([(at, top << index::SHIFT)]))?;
        let root = Attributes {
            root: self.pool.load(line_at(root.ino) + inode::ROOT),
            ..*root
        };
        Ok(self.bucket(&root, name))
    }

    /// Where a pointer on the way to the first page of a table leads nowhere, and the height of
    /// what belongs there.
    fn missing(&self, dir: &Attributes) -> (u64, u64) {
        let mut at = line_at(dir.ino) + inode::ROOT;
        let Ok(Some(root)) = self.image.root(dir.ino, dir.root) else {
            return (at, 0);
        };
        let mut page = root.top.page;
        for height in (0..root.height).rev() {
            at = page_at(page);
            match self.image.pointer(at, self.pool.load(at), false) {
                Ok(Some(pointer)) => page = pointer.page,
                _ => return (at, height),
            }
        }
        (at, 0) // a root that is unwritten
    }

    /// Store an entry that nothing leads to yet.
    fn entry(&self, line: u64, name: &[u8], inode: Lost, next: u64) -> Result<(), MediumError> {
        let kind = u64::from(inode.kind.mode_bits() >> 12) << dentry::KIND_SHIFT;
        let len = (name.len() as u64) << dentry::LEN_SHIFT;
        let mut words = [0; 8];
        words[dentry::NEXT as usize / 8] = next;
        words[dentry::TARGET as usize / 8] = inode.ino | len | kind;
        words[dentry::HASH as usize / 8] = self.hash.hash(name);
        for (i, piece) in name.chunks(8).enumerate() {
            let mut bytes = [0; 8];
            bytes[..piece.len()].copy_from_slice(piece);
            words[dentry::NAME as usize / 8 + i] = u64::from_le_bytes(bytes);
        }
        self.store_new(line_at(line), &words)
    }

    /// Store and flush what nothing leads to yet.
    fn store_new(&self, at: u64, words: &[u64]) -> Result<(), MediumError> {
        let len = words.len() as u64 * 8;
        self.pool.back(at, len)?;
        for (i, &word) in (0..).zip(words) {
            self.pool.store(at + i * 8, word);
        }
        self.pool.flush(at, len);
        Ok(())
    }

    /// Store words that lead to what is new: each a commit point.
    fn publish(&self, words: BTreeMap<u64, u64>) -> Result<(), MediumError> {
        if !injected(Fault::RescueNamesFirst) {
            self.pool.fence()?;
        }
        for (at, word) in words {
            self.store_new(at, &[word])?;
        }
        self.pool.fence()
    }
}
