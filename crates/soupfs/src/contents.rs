//! Changes of what files hold: each is done under the file's lock, noted, and tried again when it
//! found no space and some was made.

use crate::commit::capture::Pull;
use crate::file::{self, File, Plan};
use crate::inode::{Inode, Node};
use crate::inode_state::ANY;
use crate::layout::{PAGE, index};
use crate::mount::SoupFs;
use crate::options::Mode;
use schedule::point;
use std::ops::Range;
use triomphe::Arc;
use vfs::{Also, Errno, Error, Result};

/// How often a change that finds no space is tried again after space was made.
const SPACE_TRIES: usize = 16;

/// Words that a cut may change besides those of the blocks that it unmaps: where nodes on its two
/// edges become empty, and where the tree becomes lower.
pub(crate) const CUT_WORDS: u64 = 3 * index::HEIGHT_MAX;

/// Bytes of a file that one step maps, so that what a single call adds to the backlog is bounded.
const PART_BYTES: u64 = 1 << 30;

/// A range in parts that one step maps each.
fn parts(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let end = ((at / PART_BYTES + 1) * PART_BYTES).min(range.end);
        let part = at..end;
        at = end;
        (!part.is_empty()).then_some(part)
    })
}

/// The blocks that a range of bytes touches.
fn blocks_of(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE..range.end.div_ceil(PAGE)
}

impl SoupFs {
    /// Run a change; when it finds no space, persist what was removed and try again, as other
    /// callers may have been faster to use what was made free.
    pub(crate) fn change<T>(&self, mut op: impl FnMut() -> Result<T>) -> Result<T> {
        self.check_writable()?;
        for _ in 0..SPACE_TRIES {
            match op() {
                Err(Error::Errno(Errno::NOSPC))
                    if self.shared.persister.make_space(&self.shared.volume)? => {}
                result => return self.told(result),
            }
        }
        self.told(op())
    }

    /// An inode's own state changed, and so many pointers to its blocks.
    pub(crate) fn touched(&self, inode: &Arc<Inode>, pointers: u64) -> Result<()> {
        let shared = &self.shared;
        point("contents: not noted");
        shared.persister.note(&shared.volume, inode, pointers)?;
        if shared.options.mode == Mode::Sync {
            shared
                .persister
                .persist(&self.shared.volume, [Pull::Inode(inode.clone())])?;
        }
        Ok(())
    }

    /// A change of contents failed, most likely for space. It may have gone some way: space is set
    /// aside, bytes are zeroed, which are the persister's to return and to flush. `blocks`: most
    /// that may have changed.
    pub(crate) fn failed(&self, inode: &Arc<Inode>, blocks: u64) {
        // Only marked, not waited for: the caller has an error to report already.
        match self.gate().is_there() {
            true => drop(inode.mark_dirty(ANY)),
            false => drop(self.shared.persister.mark(inode, ANY, blocks)),
        }
    }

    pub(crate) fn punch(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        also: Also<'_>,
    ) -> Result<()> {
        let blocks = (range.end - range.start) / PAGE + 2 + CUT_WORDS;
        let cut = self.change(|| {
            let mut file = inode.file()?.write();
            let ends = self.plan_ends(inode, &mut file, &range)?;
            let ends = self.keep_plan(ends, self.apply_also(inode, &mut file, also))?;
            // Marked at each attempt: what it cut off may be the space that the next one needs.
            file.punch(&self.shared.volume, inode, range.clone(), ends)
                .inspect_err(|_| self.failed(inode, blocks))
                .inspect(|_| inode.attrs.touch(self.now()))
        })?;
        self.touched(inode, cut + CUT_WORDS)
    }

    /// Reserve a range, and make it read as zeros if so desired. All space comes first: if there is
    /// too little, what was reserved goes back, and nothing has happened.
    pub(crate) fn allocate(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        (keep_size, zero): (bool, bool),
        also: Also<'_>,
    ) -> Result<()> {
        let volume = &self.shared.volume;
        let strong = self.gate().is_there();
        if !keep_size {
            self.checkpoint_tail(inode, range.end)?;
        }
        let _reserving = volume.lock_reserving(inode.ino);
        let step = |file: &mut File, part: Range<u64>, ends: Option<Plan>| {
            let mut void = 0;
            if zero {
                point("allocate: not zeroed");
                void = file
                    .void(volume, inode, part.clone(), ends)
                    .inspect_err(|_| self.failed(inode, PART_BYTES / PAGE + 2))?;
            }
            point("allocate: the size is old");
            if !keep_size && part.end == range.end {
                file.extend(volume, inode, range.end)?;
            }
            inode.attrs.touch(self.now());
            Ok(void)
        };
        // Without zeros only the end is left to do.
        let end = range.end.saturating_sub(1)..range.end;
        let mut steps = parts(if zero { range.clone() } else { end });
        let mut reserved = Vec::new();
        let begun =
            self.reserve(inode, range.clone(), &mut reserved)
                .and_then(|()| {
                    let ends = match zero {
                        true => self
                            .change(|| self.plan_ends(inode, &mut inode.file()?.write(), &range))?,
                        false => None,
                    };
                    let mut file = inode.file()?.write();
                    let mut backed = file.back_ends(volume, inode, range.clone());
                    if strong && zero && backed.is_ok() {
                        backed = file.provide_mapped(volume, blocks_of(&range));
                    }
                    // With what changes first: no batch finds that alone.
                    let also = backed.and_then(|()| self.apply_also(inode, &mut file, also));
                    let ends = self.keep_plan(ends, also)?;
                    let first = steps.next();
                    first.map_or(Ok(0), |first| step(&mut file, first, ends))
                });
        match begun {
            Ok(void) => self.touched(inode, void)?,
            Err(e) => {
                self.give_up(inode, reserved);
                return Err(e);
            }
        }
        for part in steps {
            let ends = strong.then(Plan::default); // the first step had them
            let void = step(&mut inode.file()?.write(), part, ends)?;
            self.touched(inode, void)?;
        }
        Ok(())
    }

    /// Map the holes in a range; `reserved` is told which they were.
    fn reserve(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        reserved: &mut Vec<Range<u64>>,
    ) -> Result<()> {
        for part in parts(range) {
            let blocks = blocks_of(&part);
            let count = blocks.end - blocks.start;
            let holes = self.change(|| {
                let mut file = inode.file()?.write();
                file.reserve(&self.shared.volume, inode, blocks.clone())
                    .inspect_err(|_| self.failed(inode, count + CUT_WORDS))
            })?;
            let mapped = holes.iter().map(|hole| hole.end - hole.start).sum();
            reserved.extend(holes);
            self.touched(inode, mapped)?;
        }
        Ok(())
    }

    /// Undo a reservation for which there is too little space, and make what it had free before the
    /// caller hears of it.
    fn give_up(&self, inode: &Arc<Inode>, reserved: Vec<Range<u64>>) {
        let volume = &self.shared.volume;
        let given_up = reserved.into_iter().try_for_each(|holes| {
            for part in parts(holes.start * PAGE..holes.end * PAGE) {
                let mut file = inode.file()?.write();
                let cut = file.give_up(volume, inode, blocks_of(&part));
                drop(file);
                self.touched(inode, cut? + CUT_WORDS)?;
            }
            Ok(())
        });
        let freed = given_up.and_then(|()| self.shared.persister.make_space(volume));
        if let Err(e) = freed {
            log::error!("what a failed call had reserved is still reserved: {e}");
        }
    }

    /// A plan is carried out if all went well so far; else what was taken for it goes back.
    pub(crate) fn keep_plan<P: Into<Option<Plan>>>(
        &self,
        plan: P,
        so_far: Result<()>,
    ) -> Result<P> {
        match so_far {
            Ok(()) => Ok(plan),
            Err(e) => {
                let plan: Option<Plan> = plan.into();
                plan.into_iter()
                    .for_each(|plan| plan.discard(&self.shared.volume));
                Err(e)
            }
        }
    }

    /// What else a request changes of a file whose contents, which are locked, it is about to
    /// change.
    pub(crate) fn apply_also(&self, inode: &Inode, file: &mut File, also: Also<'_>) -> Result<()> {
        match also {
            Some(change) => self.apply_locked(inode, Some(file), change)?.map(drop),
            None => Ok(()),
        }
    }

    /// Write as much as one step takes, at the offset or at the end.
    pub(crate) fn write_at(
        &self,
        node: &Node,
        offset: Option<u64>,
        data: &[u8],
        also: Also<'_>,
    ) -> Result<(u64, usize)> {
        let (inode, mut many_dirty) = (node.inode(), false);
        let written = self.change(|| {
            let mut file = inode.file()?.write();
            let at = offset.unwrap_or_else(|| file::size(inode));
            let len = file::clamp(at, data.len())?.min(PART_BYTES as usize);
            self.apply_also(inode, &mut file, also)?;
            let (done, streaming) = file.write(&self.shared.volume, inode, at, &data[..len])?;
            point("write: times are old");
            if done > 0 {
                inode.attrs.touch(self.now());
            }
            many_dirty = file.has_many_dirty();
            drop(streaming);
            Ok((at, done))
        });
        let (at, done) = written.inspect_err(|_| self.failed(inode, 2))?;
        if done > 0 {
            self.touched(inode, done as u64 / PAGE + 2)?;
        }
        if many_dirty {
            let pull = Pull::Inode(inode.clone());
            self.shared.persister.persist(&self.shared.volume, [pull])?;
        }
        Ok((at, done))
    }
}
