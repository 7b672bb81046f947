//! Damage to a clean image, of the kinds that the tests of `fsck` know. Each is a word, or a few,
//! that the medium or a foreign program has changed: of an entry, an inode, a table, an index,
//! attributes, maps, counters, superblocks.

use crate::tree::{Id, Object, Tree};
use pmem::{PAGE, Pool};
use soupfs::layout::{
    Geometry, LINE, LINE_MASK, bucket, dentry, index, inode, line_at, page_at, state, superblock,
    xattr,
};
use vfs::Kind;

/// Damage an image with this tree, and say how; `None` if it lacks what is to be damaged.
pub(super) fn damage(number: u64, pool: &Pool, tree: &Tree) -> Option<&'static str> {
    let (name, damage) = DAMAGES[(number % kinds()) as usize];
    damage(&places(pool, tree)?);
    Some(name)
}

/// What can be damaged.
struct Places<'a> {
    pool: &'a Pool,
    geometry: Geometry,
    root: u64,
    /// A directory other than the root that has names, a file with blocks, one with attributes, a
    /// symbolic link.
    dir: u64,
    file: u64,
    tagged: u64,
    link: u64,
    /// Another file with blocks.
    other: u64,
    /// Lines of entries: of the file, of the directory, of one with a long name, of one that
    /// another follows.
    named: u64,
    names: u64,
    long: u64,
    followed: u64,
}

/// What is done to an image, by the name of what `fsck` is to find.
type Damage = (&'static str, fn(&Places<'_>));

const DAMAGES: [Damage; 46] = [
    ("DirectorySize", |p| p.set(p.dir, inode::SIZE, 9)),
    ("LinkCount of a file", |p| {
        p.add(p.file, inode::MODE_NLINK, 1 << 32)
    }),
    ("LinkCount of a directory", |p| {
        p.add(p.dir, inode::MODE_NLINK, 1 << 32)
    }),
    ("LinkCount zero", |p| {
        let mode = p.get(p.file, inode::MODE_NLINK) & 0xffff_ffff;
        p.set(p.file, inode::MODE_NLINK, mode);
    }),
    ("PageCount", |p| p.set(p.file, inode::PAGES, 77)),
    ("Counter", |p| p.pool.store(state::FREE_LINES, 0)),
    ("Summary", |p| p.pool.store(p.geometry.summary_at(0), 0)),
    ("WrongParent", |p| p.set(p.dir, inode::PARENT, p.file)),
    ("WrongParent of the root", |p| {
        p.set(p.root, inode::PARENT, p.dir)
    }),
    ("BadEntry of a file", |p| p.set(p.named, dentry::TARGET, 0)),
    ("BadEntry of a directory", |p| {
        p.set(p.names, dentry::TARGET, 0)
    }),
    ("BadEntry that another follows", |p| {
        p.set(p.followed, dentry::TARGET, 0)
    }),
    ("BadEntry by its name", |p| {
        p.pool.write(line_at(p.named) + dentry::NAME, b"/")
    }),
    ("BadEntry by a long name", |p| {
        p.set(p.long, dentry::MORE, u64::MAX)
    }),
    ("Misplaced", |p| {
        p.pool.write(line_at(p.named) + dentry::NAME, b"Q")
    }),
    ("WrongHash", |p| p.set(p.named, dentry::HASH, 1)),
    ("TargetBits", |p| {
        p.flip(p.named, dentry::TARGET, dentry::FRESH)
    }),
    ("WrongKind", |p| {
        p.flip(p.named, dentry::TARGET, 12 << dentry::KIND_SHIFT)
    }),
    ("Dangling", |p| p.add(p.named, dentry::TARGET, 1)),
    ("Dangling, twice named", |p| {
        let target = p.get(p.named, dentry::TARGET) & !LINE_MASK;
        p.set(p.named, dentry::TARGET, target | p.dir);
    }),
    ("no inode", |p| p.set(p.file, inode::MAGIC_GENERATION, 0)),
    ("BadWord of a file", |p| {
        p.flip(p.file, inode::MAGIC_GENERATION, 1 << 9)
    }),
    ("BadWord of a directory", |p| {
        p.flip(p.dir, inode::MAGIC_GENERATION, 1)
    }),
    ("BadWord of the root", |p| {
        p.flip(p.root, inode::MAGIC_GENERATION, 1 << 31)
    }),
    ("WrongKind of a file", |p| {
        p.flip(p.file, inode::MODE_NLINK, 0x4000)
    }),
    ("WrongKind of a directory", |p| {
        p.flip(p.dir, inode::MODE_NLINK, 0x2000)
    }),
    ("WrongSize", |p| p.set(p.file, inode::SIZE, u64::MAX)),
    ("WrongSize of a link", |p| p.set(p.link, inode::SIZE, 0)),
    ("level", |p| p.set(p.dir, inode::LEVEL, 99)),
    ("root level", |p| p.set(p.root, inode::LEVEL, 99)),
    ("a cycle", |p| p.set(p.followed, dentry::NEXT, p.followed)),
    ("a link that leads nowhere", |p| {
        p.set(p.followed, dentry::NEXT, 1 << 39)
    }),
    ("a bucket of another chain", |p| {
        p.pool.store(p.bucket(p.dir), p.named)
    }),
    ("a table that is gone", |p| p.set(p.dir, inode::ROOT, 0)),
    ("a table elsewhere", |p| p.set(p.dir, inode::ROOT, 1 << 60)),
    ("all tables gone", |p| {
        p.pool.zero(line_at(p.root), inode::LEN)
    }),
    ("an index elsewhere", |p| {
        p.set(p.file, inode::ROOT, 1 << 60)
    }),
    ("a page of two files", |p| {
        p.pool
            .store(p.pointer(p.file), p.pool.load(p.pointer(p.other)));
    }),
    ("a page of a file that is one of lines", |p| {
        let page = p.named * LINE / PAGE;
        p.pool.store(p.pointer(p.file), page << index::SHIFT);
    }),
    ("attributes elsewhere", |p| {
        p.set(p.tagged, inode::XATTR, u64::MAX)
    }),
    ("attributes that are too long", |p| {
        let page = p.get(p.tagged, inode::XATTR);
        p.pool.store(page_at(page) + xattr::USED, u64::MAX);
    }),
    ("a page that is not marked", |p| {
        let (at, bit) = p.geometry.page_bit(p.page(p.file));
        p.pool.fetch_and(at, !bit);
    }),
    ("lines that are not marked", |p| {
        p.pool.store(p.geometry.line_word(p.file * LINE / PAGE), 0);
    }),
    ("a journal without a header", |p| {
        p.pool.store(page_at(p.geometry.journal), 0)
    }),
    ("a count of mounts behind itself", |p| {
        let epoch = p.pool.load(state::EPOCH);
        p.pool.store(state::EPOCH, epoch - 1);
    }),
    ("the first superblock", |p| {
        p.pool.store(superblock::AT_LABEL as u64, u64::MAX)
    }),
];

/// How many kinds of damage there are.
pub(super) fn kinds() -> u64 {
    DAMAGES.len() as u64
}

impl Places<'_> {
    fn get(&self, line: u64, field: u64) -> u64 {
        self.pool.load(line_at(line) + field)
    }

    fn set(&self, line: u64, field: u64, value: u64) {
        self.pool.store(line_at(line) + field, value);
    }

    fn add(&self, line: u64, field: u64, n: u64) {
        self.set(line, field, self.get(line, field).wrapping_add(n));
    }

    fn flip(&self, line: u64, field: u64, bits: u64) {
        self.set(line, field, self.get(line, field) ^ bits);
    }

    /// Where the pointer to the first block of an inode is.
    fn pointer(&self, ino: u64) -> u64 {
        first_pointer(self.pool, ino)
    }

    /// The first block of an inode.
    fn page(&self, ino: u64) -> u64 {
        self.pool.load(self.pointer(ino)) >> index::SHIFT
    }

    /// Where the word of a directory's first bucket with entries is.
    fn bucket(&self, dir: u64) -> u64 {
        let words = (0..bucket::BASE).map(|b| page_at(self.page(dir)) + b * 8);
        let mut used = words.filter(|&at| self.pool.load(at) & LINE_MASK != 0);
        used.next().unwrap_or_else(|| page_at(self.page(dir)))
    }
}

fn first_pointer(pool: &Pool, ino: u64) -> u64 {
    let mut at = line_at(ino) + inode::ROOT;
    for _ in 0..pool.load(at) & 7 {
        at = page_at(pool.load(at) >> index::SHIFT);
    }
    at
}

/// The entries of a directory with its table in one page: line and what it names, bucket by bucket.
fn entries(pool: &Pool, dir: u64) -> Vec<Vec<(u64, u64)>> {
    let page = pool.load(first_pointer(pool, dir)) >> index::SHIFT;
    if page == 0 {
        return Vec::new(); // nothing was ever in it
    }
    let chain = |b: u64| {
        let mut line = pool.load(page_at(page) + b * 8) & LINE_MASK;
        let mut chain = Vec::new();
        while line != 0 {
            let target = pool.load(line_at(line) + dentry::TARGET);
            chain.push((line, target & LINE_MASK));
            line = pool.load(line_at(line) + dentry::NEXT) & LINE_MASK;
        }
        chain
    };
    let buckets = bucket::BASE << pool.load(line_at(dir) + inode::LEVEL);
    (0..buckets.min(PAGE / 8))
        .map(chain)
        .filter(|c| !c.is_empty())
        .collect()
}

/// What of an image can be damaged; `None` if it lacks something.
fn places<'a>(pool: &'a Pool, tree: &Tree) -> Option<Places<'a>> {
    let root = tree.root.0;
    let named = |id: &Id| tree.objects.get(id).map(|object| (id.0, object));
    let children = tree.objects[&tree.root].names.values();
    let here: Vec<(u64, &Object)> = children.filter_map(named).collect();
    let find = |wanted: &dyn Fn(&Object) -> bool, but: u64| {
        let mut found = here.iter().filter(|(ino, o)| *ino != but && wanted(o));
        found.next().map(|(ino, _)| *ino)
    };
    let has_blocks = |o: &Object| o.kind == Kind::File && o.size > PAGE;
    let file = find(&has_blocks, 0)?;
    let dirs = here.iter().filter(|(_, o)| o.kind == Kind::Dir);
    let dir = dirs.max_by_key(|(_, o)| o.names.len())?.0;
    let chains: Vec<_> = [entries(pool, root), entries(pool, dir)].concat();
    let line_of = |ino: u64| {
        let mut all = chains.iter().flatten();
        all.find(|(_, child)| *child == ino).map(|(line, _)| *line)
    };
    let length = |line: u64| pool.load(line_at(line) + dentry::TARGET) >> dentry::LEN_SHIFT & 0xff;
    let mut lines = chains.iter().flatten().map(|(line, _)| *line);
    let long = lines.find(|&line| length(line) > dentry::INLINE as u64)?;
    let followed = chains.iter().find(|chain| chain.len() > 1)?[0].0;
    Some(Places {
        pool,
        geometry: Geometry::for_len(pool.len()),
        root,
        dir,
        file,
        tagged: find(&|o| !o.xattrs.is_empty(), 0)?,
        link: find(&|o| o.kind == Kind::Symlink, 0)?,
        other: find(&has_blocks, file)?,
        named: line_of(file)?,
        names: line_of(dir)?,
        long,
        followed,
    })
}
