//! Callers, batches and crashes beside the search.

use super::walk::Walk;
use crate::alloc::{Allowance, Leaks};
use crate::inode::Node;
use crate::layout::{LINES_PER_PAGE, PAGE, REGION_PAGES, index, line_at};
use crate::mount::SoupFs;
use crate::testing::{crash, ends_clean, mounted, new};
use crate::volume::Volume;
use block::Random;
use pmem::Pool;
use std::sync::Arc;
use vfs::{FileSystem, Fsync, NewKind, Result, SetAttr, XattrMode};

/// What a crash left of a file system with this in it, mounted again; nobody searches yet.
fn after_a_crash(prepare: impl Fn(&SoupFs, &Node) -> Result<()>) -> Result<(Arc<Pool>, SoupFs)> {
    let (pool, fs) = mounted();
    prepare(&fs, &fs.root())?;
    fs.syncfs()?;
    let (pool, fs) = crash(&pool, fs);
    fs.shared.reclaimer.begin(&fs.shared.volume);
    Ok((pool, fs))
}

/// For a step beside which nobody waits.
fn alone(budget: u64) -> Allowance<'static> {
    Allowance::new(budget, &|| false)
}

/// Put all free space to use, so that whoever follows a pointer to it meets what is none.
fn reuse_everything(fs: &SoupFs) -> Result<()> {
    fs.syncfs()?;
    let junk = fs.create(&fs.root(), b"junk", &new(NewKind::File))?;
    while fs.append(&junk, &[0xff; 1 << 16]).is_ok() {}
    fs.syncfs()
}

fn search(fs: &SoupFs) {
    let shared = &fs.shared;
    shared.reclaimer.run(&shared.volume, &shared.persister);
    assert_ne!(shared.reclaimer.reclaimed(), None, "met damage");
}

fn filled(fs: &SoupFs, root: &Node) -> Result<()> {
    let file = fs.create(root, b"file", &new(NewKind::File))?;
    fs.setxattr(
        &file,
        b"user.a",
        &[1; 9000],
        XattrMode::Any,
        &SetAttr::default(),
    )?;
    fs.write(&file, 0, &[2; 3 << 20]).map(drop)
}

/// The batch that takes the last name of an open file also changes what it holds.
#[test]
fn a_file_that_changed_when_it_was_removed_keeps_what_it_holds() -> Result<()> {
    let (pool, fs) = after_a_crash(filled)?;
    let root = fs.root();
    let file = fs.lookup(&root, b"file")?;
    let cut = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    fs.setattr(&file, &cut)?;
    fs.write(&file, 0, &[3; 5000])?;
    fs.setxattr(
        &file,
        b"user.a",
        &[4; 5000],
        XattrMode::Any,
        &SetAttr::default(),
    )?;
    fs.unlink(&root, b"file", &|_| Ok(()))?;
    reuse_everything(&fs)?;
    search(&fs);
    let other = fs.create(&root, b"other", &new(NewKind::File))?;
    let _ = fs.append(&other, &[0xff; 1 << 16]); // there may be no space left, and need not be
    let mut bytes = vec![0; 5001];
    assert_eq!(fs.read(&file, 0, &mut bytes)?, 5000);
    assert_eq!(bytes[..5000], [3; 5000]);
    assert_eq!(fs.getxattr(&file, b"user.a")?, [4; 5000]);
    fs.fsync(&file, Fsync::All)?;
    drop((root, file, other));
    ends_clean(&pool, fs);
    Ok(())
}

/// Whoever waits for a step waits for a few things that it looks at, which may all have to be read
/// from a disk, however many there are in a directory or a file. And the search ends all the same.
#[test]
fn a_step_that_is_waited_for_ends_soon() -> Result<()> {
    let (pool, fs) = after_a_crash(|fs, root| {
        filled(fs, root)?;
        let dir = fs.create(root, b"dir", &new(NewKind::Dir))?;
        (0..2000).try_for_each(|i| {
            let name = format!("name{i}");
            fs.create(&dir, name.as_bytes(), &new(NewKind::File))
                .map(drop)
        })
    })?;
    let (volume, reclaimer) = (&fs.shared.volume, &fs.shared.reclaimer);
    let (mut walk, mut leaks, mut steps) = (Walk::default(), Leaks::default(), 0);
    for is_walk in [true, false] {
        loop {
            let mut step = Allowance::new(u64::MAX, &|| true);
            let is_over = match is_walk {
                true => walk.advance(volume, &mut step)?,
                false => leaks.step(&volume.alloc, &mut step),
            };
            // A run of a file's pages, none of which is read, or the words of a region.
            let least = 32 + 4;
            assert!(step.used() <= least + index::FANOUT, "{}", step.used());
            steps += u64::from(step.used() <= least);
            if is_over {
                break;
            }
        }
    }
    assert!(steps > 2000 / 32, "{steps}");
    volume.alloc.set_free_at_mount(&leaks);
    volume.alloc.end_marking();
    *reclaimer.reclaimed.lock() = Some(leaks.lines);
    ends_clean(&pool, fs);
    Ok(())
}

/// The walk comes to a directory that was removed meanwhile, and its entries are something else
/// now.
#[test]
fn a_removed_directory_that_is_open_leads_nowhere() -> Result<()> {
    let names: Vec<_> = (0..200).map(|i| format!("name{i}")).collect();
    let (pool, fs) = after_a_crash(|fs, root| {
        let dir = fs.create(root, b"dir", &new(NewKind::Dir))?;
        names.iter().try_for_each(|name| {
            fs.create(&dir, name.as_bytes(), &new(NewKind::File))
                .map(drop)
        })
    })?;
    let (volume, root) = (&fs.shared.volume, fs.root());
    let dir = fs.lookup(&root, b"dir")?;
    let mut walk = Walk::default();
    let mut goes_on = || !walk.advance(volume, &mut alone(2)).expect("whole") && walk.at.is_some();
    while goes_on() {} // through the root
    for name in &names {
        fs.unlink(&dir, name.as_bytes(), &|_| Ok(()))?;
    }
    fs.rmdir(&root, b"dir", &|_| Ok(()))?;
    reuse_everything(&fs)?;
    search(&fs);
    drop((root, dir));
    ends_clean(&pool, fs);
    Ok(())
}

/// What the walk would pass over as removed meanwhile is damage if a name leads there: nothing
/// below it is freed.
#[test]
fn what_a_name_leads_to_is_not_taken_for_removed() -> Result<()> {
    let damages: [fn(&Volume, u64); 3] = [
        |v, ino| {
            v.pool
                .store(line_at(ino), v.pool.load(line_at(ino)) & 0xffff_ffff)
        },
        |v, ino| {
            v.pool
                .store(line_at(ino), v.pool.load(line_at(ino)) ^ 0o020_000)
        },
        |v, ino| {
            let word = v.geometry().line_word(ino / LINES_PER_PAGE);
            v.pool.fetch_and(word, !(1 << (ino % LINES_PER_PAGE)));
        },
    ];
    for damage in damages {
        for of_root in [false, true] {
            let (_pool, fs) = after_a_crash(|fs, root| {
                let dir = fs.create(root, b"dir", &new(NewKind::Dir))?;
                filled(fs, &dir)
            })?;
            let (shared, root) = (&fs.shared, fs.root().inode().ino);
            let volume = &shared.volume;
            let dir = fs.lookup(&fs.root(), b"dir")?.inode().ino;
            let before = volume.alloc.free_lines();
            damage(volume, if of_root { root } else { dir });
            shared.reclaimer.run(volume, &shared.persister);
            assert_eq!(shared.reclaimer.reclaimed(), None);
            assert_eq!(volume.alloc.free_lines(), before);
        }
    }
    Ok(())
}

/// However little is looked at in a step, the walk goes on.
#[test]
fn a_search_in_the_smallest_steps_comes_to_its_end() -> Result<()> {
    let (pool, fs) = after_a_crash(filled)?;
    for _ in 0..100_000 {
        if fs.search(1)? {
            ends_clean(&pool, fs);
            return Ok(());
        }
    }
    panic!("it does not end");
}

/// A caller that changes something at each step, by chance.
struct Caller {
    random: Random,
    /// Files that were removed, and the byte that fills each.
    open: Vec<(Node, u8)>,
    /// Names, and the byte that fills the file.
    files: Vec<(String, u8)>,
    made: u32,
}

impl Caller {
    fn below(&mut self, below: usize) -> usize {
        self.random.below(below as u64) as usize
    }

    fn change(&mut self, fs: &SoupFs) -> Result<()> {
        let root = fs.root();
        let which = self.below(self.files.len() + 1);
        match (self.below(6), self.files.get(which).cloned()) {
            (0, Some((name, fill))) => {
                self.files.remove(which);
                let file = fs.lookup(&root, name.as_bytes())?;
                fs.unlink(&root, name.as_bytes(), &|_| Ok(()))?;
                if self.below(2) == 0 {
                    self.open.push((file, fill));
                }
            }
            (1, Some((name, fill))) | (5, Some((name, fill))) if self.files.len() > 30 => {
                let file = fs.lookup(&root, name.as_bytes())?;
                let size = Some(0);
                fs.setattr(
                    &file,
                    &SetAttr {
                        size,
                        ..SetAttr::default()
                    },
                )?;
                fs.append(&file, &vec![fill; 1 + self.below(20_000)])?;
            }
            (2, _) => {
                let keep = 1 + self.below(4);
                self.open.truncate(keep);
            }
            (3, _) => fs.syncfs()?,
            (4, Some((name, _))) => {
                let file = fs.lookup(&root, name.as_bytes())?;
                fs.fsync(&file, Fsync::All)?;
            }
            _ => {
                self.made += 1;
                let (name, fill) = (format!("n{}", self.made), self.made as u8);
                let file = fs.create(&root, name.as_bytes(), &new(NewKind::File))?;
                fs.append(&file, &vec![fill; 1 + self.below(20_000)])?;
                self.files.push((name, fill));
            }
        }
        Ok(())
    }
}

/// Callers and batches go on between any two steps of the walk and of what follows it: nothing
/// that they use is freed, all that was leaked is, and free space is counted exactly.
#[test]
fn leaks_are_freed_in_steps_between_which_everything_changes() -> Result<()> {
    for seed in 1..=40 {
        freed_in_steps(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    Ok(())
}

fn freed_in_steps(seed: u64) -> Result<()> {
    let open = std::cell::RefCell::new(Vec::new());
    let (pool, fs) = after_a_crash(|fs, root| {
        for i in 0..30 {
            let name = format!("o{i}");
            let file = fs.create(root, name.as_bytes(), &new(NewKind::File))?;
            fs.append(&file, &vec![1; 300 * i])?;
            open.borrow_mut().push(file);
        }
        fs.syncfs()?;
        (0..30)
            .step_by(2)
            .try_for_each(|i| fs.unlink(root, format!("o{i}").as_bytes(), &|_| Ok(())))
    })?;
    let shared = &fs.shared;
    let (volume, persister) = (&shared.volume, &shared.persister);
    let mut caller = Caller {
        random: Random::new(seed),
        open: Vec::new(),
        files: (1..30).step_by(2).map(|i| (format!("o{i}"), 1)).collect(),
        made: 0,
    };
    // The walk finds no name of this one.
    let nameless = fs.lookup(&fs.root(), b"o29")?;
    fs.unlink(&fs.root(), b"o29", &|_| Ok(()))?;
    fs.fsync(&nameless, Fsync::All)?;
    caller.files.pop();
    caller.open.push((nameless, 1));
    fs.syncfs()?;
    let (mut walk, mut marked) = (Walk::default(), false);
    while !marked {
        caller.change(&fs)?;
        if persister.undisturbed(|| walk.advance(volume, &mut alone(50)))? {
            let all = persister.with_nothing_deferred(volume, |orphans| {
                walk.add_orphans(volume, orphans)?;
                walk.advance(volume, &mut alone(50))
            })?;
            marked = all == Some(true);
        }
    }
    let mut leaks = Leaks::default();
    loop {
        let budget = 1 + caller.below(400) as u64;
        let mut step = alone(budget);
        let done = persister.between_batches(volume, || leaks.step(&volume.alloc, &mut step))?;
        // At the most the last page has 64 lines to free, or a region is begun.
        let most = budget + REGION_PAGES / 64 + LINES_PER_PAGE + 2;
        assert!(step.used() <= most, "seed {seed}");
        if done {
            break;
        }
        caller.change(&fs)?;
    }
    volume.alloc.set_free_at_mount(&leaks);
    volume.alloc.end_marking();
    *shared.reclaimer.reclaimed.lock() = Some(leaks.lines);
    assert!(leaks.lines > 0, "seed {seed}");
    reuse_everything(&fs)?;
    let named = caller.files.iter().map(|(name, fill)| {
        let file = fs.lookup(&fs.root(), name.as_bytes()).expect("there");
        (file, *fill)
    });
    for (file, fill) in named.chain(caller.open) {
        let mut bytes = vec![0; fs.attr(&file).size as usize];
        fs.read(&file, 0, &mut bytes)?;
        assert!(
            bytes.iter().all(|&byte| byte == fill),
            "seed {seed}: {fill}"
        );
    }
    fs.syncfs()?;
    fs.syncfs()?;
    let free = fs.status().bytes_free;
    fs.unmount()?;
    drop(fs);
    let fs = crate::testing::mount(&pool);
    let again = fs.status().bytes_free;
    // Pages that were set aside for the table of the root have gone back.
    assert!(
        (free..=free + 2 * PAGE).contains(&again),
        "seed {seed}: {free}, {again}"
    );
    ends_clean(&pool, fs);
    Ok(())
}
