//! Random damage, and repairs that a crash cuts short.

use super::build::Build;
use super::{exact, run};
use crate::check::fsck::Outcome;
use crate::image::Superblock;
use crate::layout::{LINE, PAGE, page_at, state};
use crate::testing::mount;
use block::Random;
use pmem::{Options, Pool};
use std::sync::Arc;
use vfs::{FileSystem, Kind};

/// An image small enough to damage thousands of times, in the pages that are in use.
fn little() -> (Vec<u8>, u64, Superblock) {
    let mut b = Build::new(1 << 20, 1);
    let root = b.sb.root;
    let sub = b.directory(5);
    b.name(root, b"sub", sub);
    let hard = b.file(2);
    b.xattr(hard, b"user.x");
    for i in 0..12 {
        b.name(root, format!("hard {i}").as_bytes(), hard);
        let ino = match i % 6 {
            0 => b.symlink(b"to"),
            3 => b.inode(Kind::Fifo),
            _ => b.file(i),
        };
        b.name(sub, &vec![b'a' + i as u8; 20 * i as usize + 1], ino);
        let dir = b.directory(0);
        b.name(sub, format!("dir {i}").as_bytes(), dir);
    }
    let end = b.page();
    let (at, bit) = b.sb.geometry.page_bit(end);
    b.pool.fetch_and(at, !bit);
    b.finish(3);
    let sb = b.sb.clone();
    (b.pool.snapshot(), page_at(end), sb)
}

/// Damage the image as `seed` says, and check and repair it.
fn fuzz(image: &[u8], used: u64, sb: &Superblock, seed: u64) {
    let pool = Arc::new(Pool::from_bytes(image, &Options::default()).unwrap());
    let mut random = Random::new(seed);
    let from = if seed.is_multiple_of(2) {
        PAGE
    } else {
        page_at(sb.geometry.allocatable(0).start)
    };
    for _ in 0..1 + random.below(8) {
        let at = from + random.below((used - from) / 8) * 8;
        let other = from + random.below((used - from) / 8) * 8;
        let value = match random.below(24) {
            0..6 => pool.load(at) ^ 1 << random.below(64),
            6..12 => random.below(used / 64),
            12..17 => random.below(used / PAGE) << 12 | random.below(5),
            17..22 => pool.load(other),
            22 => {
                pool.copy(other / LINE * LINE, at / LINE * LINE, LINE);
                continue;
            }
            _ => {
                pool.copy(other / PAGE * PAGE, at / PAGE * PAGE, PAGE);
                continue;
            }
        };
        pool.store(at, value);
    }
    let dry = run(&pool, false);
    let report = run(&pool, true);
    let again = run(&pool, false);
    assert!(
        report.outcome != Outcome::ErrorsLeft && again.was_clean && again.left.is_empty(),
        "seed {seed}: {dry}\n{report}\n{again}"
    );
    if let Err(error) = look_at_all(&pool) {
        panic!("seed {seed}: {error} in a repaired image: {dry}\n{report}");
    }
}

/// Mount an image and look up all its names.
fn look_at_all(pool: &Arc<Pool>) -> vfs::Result<()> {
    let fs = mount(pool);
    let mut directories = vec![fs.root()];
    while let Some(dir) = directories.pop() {
        let mut names = Vec::new();
        fs.readdir(&dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })?;
        for name in names {
            let node = fs.lookup(&dir, &name)?;
            if fs.kind(&node) == Kind::Dir {
                directories.push(node);
            }
        }
    }
    Ok(())
}

#[test]
fn one_damaged_word_costs_one_inode_at_most() {
    let (image, used, _) = little();
    let sound = Arc::new(Pool::from_bytes(&image, &Options::default()).unwrap());
    let before = run(&sound, false).totals.inodes;
    for seed in 0..4000 {
        let pool = Arc::new(Pool::from_bytes(&image, &Options::default()).unwrap());
        let mut random = Random::new(seed);
        let at = PAGE + random.below((used - PAGE) / 8) * 8;
        let damage = match random.below(3) {
            0 => 1 << random.below(64),
            1 => 0xff << (8 * random.below(8)),
            _ => pool.load(at),
        };
        pool.store(at, pool.load(at) ^ damage);
        let report = run(&pool, true);
        assert_ne!(report.outcome, Outcome::ErrorsLeft, "seed {seed}: {report}");
        assert!(report.totals.inodes + 1 >= before, "seed {seed}: {report}");
    }
}

#[test]
fn random_damage_neither_hangs_nor_panics_and_is_repaired() {
    let (image, used, sb) = little();
    for seed in 0..4000 {
        fuzz(&image, used, &sb, seed);
    }
}

#[test]
fn a_repair_that_was_cut_short_is_completed_by_the_next() {
    // Whatever subset of a repair's stores reached the medium.
    let (image, used, _) = little();
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let broken = Pool::from_bytes(&image, &Options::default()).unwrap();
        for _ in 0..6 {
            let at = 4096 + random.below(used / 8 - 512) * 8;
            broken.store(at, broken.load(at) ^ 1 << random.below(64));
        }
        let mut torn = broken.snapshot();
        let broken = Arc::new(broken);
        let report = run(&broken, true);
        assert_ne!(report.outcome, Outcome::ErrorsLeft, "seed {seed}: {report}");
        let repaired = broken.snapshot();
        for at in (0..torn.len()).step_by(8) {
            let clean = at as u64 == state::CLEAN_EPOCH;
            if !clean && random.below(2) == 0 {
                torn[at..at + 8].copy_from_slice(&repaired[at..at + 8]);
            }
        }
        let torn = Arc::new(Pool::from_bytes(&torn, &Options::default()).unwrap());
        let report = run(&torn, true);
        assert_ne!(report.outcome, Outcome::ErrorsLeft, "seed {seed}: {report}");
        exact(&torn);
    }
}
