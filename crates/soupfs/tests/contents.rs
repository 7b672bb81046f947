//! What a file holds, while it is overwritten block by block and its blocks come, go and move.

mod common;

use block::Random;
use common::{Soup, audit, clock, image};
use pmem::Domain;
use soupfs::{Node, SoupFs};
use vfs::{Fallocate, FileSystem, NewKind, NewNode, SetAttr};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 300;

/// A file beside what it should hold.
struct Pair {
    fs: SoupFs,
    file: Node,
    bytes: Vec<u8>,
    fill: u8,
}

impl Pair {
    fn new(fs: SoupFs) -> Pair {
        let new = NewNode {
            kind: NewKind::File,
            perm: 0o644,
            uid: 0,
            gid: 0,
            xattrs: &[],
        };
        let file = fs.create(&fs.root(), b"file", &new).expect("made");
        let (bytes, fill) = (Vec::new(), 0);
        Pair {
            fs,
            file,
            bytes,
            fill,
        }
    }

    fn overwrite(&mut self, from: u64, blocks: u64, at_once: u64) {
        for block in (from..from + blocks).step_by(at_once as usize) {
            self.fill = self.fill.wrapping_add(1);
            let data = vec![self.fill; (at_once * BLOCK) as usize];
            let at = (block * BLOCK) as usize;
            let written = self.fs.write(&self.file, at as u64, &data);
            assert_eq!(written, Ok(data.len()));
            self.bytes.resize(self.bytes.len().max(at + data.len()), 0);
            self.bytes[at..at + data.len()].copy_from_slice(&data);
        }
    }

    /// Write bytes that differ from place to place.
    fn write(&mut self, at: usize, len: usize) {
        self.fill = self.fill.wrapping_add(1);
        let byte = |i: usize| (i * 7 + i / 256) as u8 ^ self.fill;
        let data: Vec<u8> = (0..len).map(byte).collect();
        let written = self.fs.write(&self.file, at as u64, &data);
        assert_eq!(written, Ok(len), "{len} bytes at {at}");
        self.bytes.resize(self.bytes.len().max(at + len), 0);
        self.bytes[at..at + len].copy_from_slice(&data);
    }

    fn punch(&mut self, from: u64, blocks: u64) {
        let (at, len) = (from * BLOCK, blocks * BLOCK);
        self.fs
            .fallocate(&self.file, Fallocate::Punch, at, len)
            .expect("punched");
        let end = self.bytes.len().min((at + len) as usize);
        let start = end.min(at as usize);
        self.bytes[start..end].fill(0);
    }

    fn resize(&mut self, blocks: u64) {
        let set = SetAttr {
            size: Some(blocks * BLOCK),
            ..SetAttr::default()
        };
        self.fs.setattr(&self.file, &set).expect("resized");
        self.bytes.resize((blocks * BLOCK) as usize, 0);
    }

    fn check(&self, when: &str) {
        let mut found = vec![0xee; self.bytes.len() + 1];
        let read = self.fs.read(&self.file, 0, &mut found);
        assert_eq!(read, Ok(self.bytes.len()), "{when}");
        let differs = found.iter().zip(&self.bytes).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{when}");
    }
}

#[test]
fn what_is_written_block_by_block_goes_where_the_blocks_are_now() {
    for seed in 1..60 {
        let pool = image(32 << 20, Domain::Line, vfs::Time(1));
        let fs = Soup::default().mount(pool.clone(), clock());
        let mut pair = Pair::new(fs);
        let mut random = Random::new(seed);
        for i in 0..60 {
            let from = random.below(BLOCKS);
            let blocks = 1 + random.below(100);
            match random.below(10) {
                0..5 => pair.overwrite(from, blocks, 1 + random.below(3)),
                5 => pair.punch(from, blocks),
                6 => pair.punch(from, 1),
                7 => pair.resize(from),
                8 => pair.fs.syncfs().expect("synced"),
                _ => {
                    // In the middle of a run that is overwritten.
                    pair.overwrite(from, 5, 1);
                    pair.punch(from + 4, 3);
                    pair.overwrite(from + 5, 5, 1);
                }
            }
            pair.check(&format!("seed {seed}, change {i}"));
        }
        let Pair { fs, file, .. } = pair;
        drop(file);
        fs.unmount().expect("unmounted");
        audit(&pool);
    }
}

#[test]
fn through_the_caches_or_around_them_the_bytes_arrive() {
    let pool = image(64 << 20, Domain::Line, vfs::Time(1));
    let fs = Soup::default().mount(pool.clone(), clock());
    let mut pair = Pair::new(fs);
    // Around the lengths of files, and of writes, at which the way changes.
    for pass in ["new", "pending", "persisted"] {
        for around in [0, 1 << 20, 16 << 20] {
            let start = (around as usize).saturating_sub(64 << 10);
            for len in [1, 511, 4096, 4097, 16 << 10, (16 << 10) + 1, 100_000] {
                pair.write(start, len);
                pair.write(start + len, len); // behind it
                pair.write(start + 7, len); // before
                pair.write(start + (64 << 10), len); // elsewhere
                pair.check(&format!("{pass}: {len} bytes at {start}"));
            }
        }
        if pass == "pending" {
            pair.fs.syncfs().expect("synced");
        }
    }
    let Pair {
        fs, file, bytes, ..
    } = pair;
    drop(file);
    fs.unmount().expect("unmounted");
    audit(&pool);
    let fs = Soup::default().mount(pool, clock());
    let file = fs.lookup(&fs.root(), b"file").expect("there");
    let mut found = vec![0; bytes.len()];
    assert_eq!(fs.read(&file, 0, &mut found), Ok(bytes.len()));
    assert!(found == bytes, "mounted again");
}
