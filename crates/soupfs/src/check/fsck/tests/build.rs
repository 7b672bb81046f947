//! Images made by hand, as the format has them: nothing here goes through the engine.

use crate::hash::NameHash;
use crate::image::Superblock;
use crate::layout::{
    Geometry, LINES_PER_PAGE, WORDS_PER_PAGE, bucket, dentry, index, inode, line_at, page_at,
    state, xattr,
};
use pmem::{Domain, Journal, Options, Pool};
use std::sync::Arc;
use vfs::{Kind, Time};

/// An image that is being made.
pub struct Build {
    pub pool: Arc<Pool>,
    pub sb: Superblock,
    pub hash: NameHash,
    next_page: u64,
    /// The page of lines in use, and its first free line.
    lines: (u64, u64),
    inodes: u64,
}

impl Build {
    /// An image with an empty root of this table level.
    pub fn new(len: u64, level: u64) -> Build {
        // Where the journal has something to replay: in domain `cache` all is durable at once.
        let options = Options {
            domain: Some(Domain::Line),
            ..Options::default()
        };
        let pool = Arc::new(Pool::anonymous(len, &options).unwrap());
        let geometry = Geometry::for_len(len);
        let next_page = geometry.allocatable(0).start;
        let sb = Superblock {
            geometry,
            root: next_page * LINES_PER_PAGE,
            ro_compat: 0,
            created: Time(1),
            uuid: [7; 16],
            hash_key: [9; 16],
            label: "test".into(),
        };
        pool.write(0, &sb.encode());
        pool.write(page_at(geometry.superblock_copy()), &sb.encode());
        Journal::format(
            &pool,
            page_at(geometry.journal),
            page_at(geometry.journal_pages),
        );
        let hash = NameHash::new(sb.hash_key);
        let mut build = Build {
            pool,
            sb,
            hash,
            next_page,
            lines: (0, LINES_PER_PAGE),
            inodes: 0,
        };
        let root = build.directory(level);
        assert_eq!(root, build.sb.root);
        build.set(root, inode::PARENT, root);
        build
    }

    pub fn get(&self, ino: u64, field: u64) -> u64 {
        self.pool.load(line_at(ino) + field)
    }

    pub fn set(&self, ino: u64, field: u64, value: u64) {
        self.pool.store(line_at(ino) + field, value);
    }

    /// A page, marked.
    pub fn page(&mut self) -> u64 {
        let page = self.next_page;
        self.next_page += 1;
        while !self.sb.geometry.holds_page(self.next_page) {
            self.next_page += 1;
            assert!(self.next_page < self.sb.geometry.pages, "the image is full");
        }
        let (at, bit) = self.sb.geometry.page_bit(page);
        self.pool.fetch_or(at, bit);
        page
    }

    /// Adjacent lines, marked.
    pub fn line(&mut self, count: u64) -> u64 {
        let (mut page, mut next) = self.lines;
        next = next.next_multiple_of(count);
        if next + count > LINES_PER_PAGE {
            (page, next) = (self.page(), 0);
        }
        self.lines = (page, next + count);
        self.pool
            .fetch_or(self.sb.geometry.line_word(page), ((1 << count) - 1) << next);
        page * LINES_PER_PAGE + next
    }

    /// An inode without a name.
    pub fn inode(&mut self, kind: Kind) -> u64 {
        let ino = self.line(inode::LINES);
        self.inodes += 1;
        let links = if kind == Kind::Dir { 2 } else { 0 };
        let perm = if kind == Kind::Symlink { 0o777 } else { 0o644 };
        self.set(
            ino,
            inode::MODE_NLINK,
            u64::from(kind.mode_bits() | perm) | links << 32,
        );
        let magic = u64::from(inode::MAGIC) | self.inodes << 32;
        self.set(ino, inode::MAGIC_GENERATION, magic);
        ino
    }

    fn more_pages(&self, ino: u64, pages: u64) {
        self.set(ino, inode::PAGES, self.get(ino, inode::PAGES) + pages);
    }

    /// A directory with room for `BASE << level` buckets. Every third bucket above the base is
    /// split off its parent.
    pub fn directory(&mut self, level: u64) -> u64 {
        let ino = self.inode(Kind::Dir);
        self.set(ino, inode::LEVEL, level);
        let buckets = bucket::BASE << level;
        let blocks = buckets.div_ceil(WORDS_PER_PAGE);
        let pages: Vec<u64> = (0..blocks).map(|_| self.page()).collect();
        let root = self.tree(ino, &pages);
        self.set(ino, inode::ROOT, root);
        for b in (bucket::BASE..buckets).filter(|b| b % 3 == 0) {
            self.pool.store(self.bucket(ino, b).unwrap(), bucket::EMPTY);
        }
        ino
    }

    /// An index tree over these pages; counts them.
    fn tree(&mut self, ino: u64, pages: &[u64]) -> u64 {
        self.more_pages(ino, pages.len() as u64);
        let mut level = pages.to_vec();
        let mut height = 0;
        while level.len() > 1 {
            height += 1;
            let nodes: Vec<u64> = level.chunks(512).map(|_| self.page()).collect();
            for (i, &below) in level.iter().enumerate() {
                let at = page_at(nodes[i / 512]) + i as u64 % 512 * 8;
                self.pool.store(at, below << index::SHIFT);
            }
            level = nodes;
        }
        level[0] << index::SHIFT | height
    }

    /// Where the pointer to a block is.
    pub fn pointer(&self, ino: u64, block: u64) -> u64 {
        let root = self.get(ino, inode::ROOT);
        let mut at = line_at(ino) + inode::ROOT;
        let mut page = root >> index::SHIFT;
        for height in (1..=root & 7).rev() {
            at = page_at(page) + block / index::span(height - 1) % 512 * 8;
            page = self.pool.load(at) >> index::SHIFT;
        }
        at
    }

    /// Where the word of a bucket is.
    pub fn bucket(&self, dir: u64, b: u64) -> Option<u64> {
        let page = self.pool.load(self.pointer(dir, b / 512)) >> index::SHIFT;
        (page != 0).then(|| page_at(page) + b % 512 * 8)
    }

    /// The bucket a lookup ends in.
    pub fn home(&self, dir: u64, hash: u64) -> u64 {
        let mut b = hash & ((bucket::BASE << self.get(dir, inode::LEVEL)) - 1);
        while b >= bucket::BASE && self.pool.load(self.bucket(dir, b).unwrap()) == 0 {
            b = bucket::parent(b);
        }
        b
    }

    /// Name an inode; returns the entry's line.
    pub fn name(&mut self, dir: u64, name: &[u8], ino: u64) -> u64 {
        let hash = self.hash.hash(name);
        let line = self.entry(name, hash, ino);
        let at = self.bucket(dir, self.home(dir, hash)).unwrap();
        let first = self.pool.load(at) & !bucket::EMPTY;
        self.set(line, dentry::NEXT, first);
        self.pool.store(at, line);
        self.set(dir, inode::SIZE, self.get(dir, inode::SIZE) + 1);
        if self.kind(ino) == Kind::Dir {
            self.set(ino, inode::PARENT, dir);
            self.links(dir, 1);
        } else {
            self.links(ino, 1);
        }
        line
    }

    pub fn kind(&self, ino: u64) -> Kind {
        Kind::from_mode(self.get(ino, inode::MODE_NLINK) as u32 & 0xffff).unwrap()
    }

    pub fn links(&self, ino: u64, more: u64) {
        self.set(
            ino,
            inode::MODE_NLINK,
            self.get(ino, inode::MODE_NLINK) + (more << 32),
        );
    }

    /// An entry in no chain.
    fn entry(&mut self, name: &[u8], hash: u64, ino: u64) -> u64 {
        let line = self.line(1);
        let kind = u64::from(self.kind(ino).mode_bits() >> 12);
        let len = name.len() as u64;
        let target = ino | len << dentry::LEN_SHIFT | kind << dentry::KIND_SHIFT;
        self.set(line, dentry::TARGET, target);
        self.set(line, dentry::HASH, hash);
        self.set(line, dentry::LATEST_NEXT, 3 << 40 | 77);
        if name.len() <= dentry::INLINE {
            self.pool.write(line_at(line) + dentry::NAME, name);
            return line;
        }
        let (head, rest) = name.split_at(dentry::INLINE_LONG);
        self.pool.write(line_at(line) + dentry::NAME, head);
        let mut link = line_at(line) + dentry::MORE;
        for piece in rest.chunks(dentry::PER_LINE) {
            let more = self.line(1);
            self.pool.store(link, more);
            self.pool.write(line_at(more) + 8, piece);
            link = line_at(more);
        }
        line
    }

    /// A file of `blocks` pages, its size up to the end of them.
    pub fn file(&mut self, blocks: u64) -> u64 {
        let ino = self.inode(Kind::File);
        self.set(ino, inode::SIZE, blocks * 4096);
        if blocks > 0 {
            let pages: Vec<u64> = (0..blocks).map(|_| self.page()).collect();
            let root = self.tree(ino, &pages);
            self.set(ino, inode::ROOT, root);
        }
        ino
    }

    pub fn symlink(&mut self, target: &[u8]) -> u64 {
        let ino = self.inode(Kind::Symlink);
        let page = self.page();
        self.pool.write(page_at(page), target);
        self.set(ino, inode::SIZE, target.len() as u64);
        self.set(ino, inode::ROOT, page << index::SHIFT);
        self.more_pages(ino, 1);
        ino
    }

    /// Give an inode an extended attribute that fills two pages.
    pub fn xattr(&mut self, ino: u64, name: &[u8]) {
        let mut bytes = Vec::new();
        bytes.extend((name.len() as u16).to_le_bytes());
        bytes.extend(5000_u32.to_le_bytes());
        bytes.extend(name);
        bytes.extend([1; 5000]);
        let mut link = line_at(ino) + inode::XATTR;
        for piece in bytes.chunks(xattr::CAPACITY as usize) {
            let page = self.page();
            self.pool.store(link, page);
            self.pool
                .store(page_at(page) + xattr::USED, piece.len() as u64);
            self.pool.write(page_at(page) + xattr::DATA, piece);
            self.more_pages(ino, 1);
            link = page_at(page) + xattr::NEXT;
        }
    }

    /// Write the counters and mark the image clean, in `epoch`.
    pub fn finish(&self, epoch: u64) {
        let geometry = &self.sb.geometry;
        let mut all = 0;
        for region in 0..geometry.regions() {
            let (mut pages, mut lines) = (0, 0);
            for page in geometry.allocatable(region) {
                let (at, bit) = geometry.page_bit(page);
                let used = self.pool.load(geometry.line_word(page));
                match (self.pool.load(at) & bit != 0, used) {
                    (false, _) => pages += 1,
                    (true, 0) => {}
                    (true, used) => lines += u64::from((!used).count_ones()),
                }
            }
            self.pool
                .store(geometry.summary_at(region), pages | lines << 32);
            all += pages * LINES_PER_PAGE + lines;
        }
        self.pool.store(state::FREE_LINES, all);
        self.pool.store(state::EPOCH, epoch);
        self.pool.store(state::CLEAN_EPOCH, epoch);
    }
}
