//! Requests of mode `strong` that take no lock: what they change fits a transaction of memory,
//! which stands for what they were decided upon (HTMFS §3.1, §3.2.2).
//!
//! ```text
//! seen       the numbers of the inode's scope, even: nobody changes it
//! decide     by the consistent view: where the bytes are, and which words change
//! attempt    one transaction: numbers as they were, nobody shares the scope; then all words, on
//!            the medium and in DRAM, and the numbers go up       (the commit point, or nothing)
//! ```
//!
//! These are done so, as what they change has a word in each view and nothing is prepared for them:
//! - bytes that are there are overwritten, up to a page;
//! - a few are appended that the last block has room for: behind the end it is void (F3), so the
//!   bytes, the size and the times change together;
//! - permissions, owners and times are set.
//!
//! All else is prepared in the latest view, where others would meet it half done, and needs the
//! scope. An attempt that was aborted has changed nothing; what it was decided upon may have
//! changed, so the next one begins anew. Whoever has tried often enough takes the scope, and
//! decides once more ([`crate::strong`]).

use crate::attributes::Attributes;
use crate::commit::gate::Seen;
use crate::fault::{Fault, injected};
use crate::file::Consistent;
use crate::inode::{Inode, Node};
use crate::layout::{PAGE, inode as layout, line_at};
use crate::mount::SoupFs;
use pmem::{Abort, Transaction};
use schedule::point;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vfs::{Also, Attr, Change, Kind, Result, SetAttr};

/// Most bytes that are stored in a transaction: so many lines any processor has room for.
const BYTES_MAX: usize = PAGE as usize;

/// What a request changes, and what it returns.
struct Decided<'a, T> {
    /// Words of the medium.
    words: Vec<(u64, u64)>,
    /// Words of the latest view.
    memory: SmallVec<[(&'a AtomicU64, u64); 4]>,
    returns: T,
}

impl SoupFs {
    /// Write parts of a file without a lock, all of them or none. `false`: nothing was done, and
    /// the request goes the way with locks.
    pub(crate) fn write_at_once(
        &self,
        node: &Node,
        parts: &[(u64, &[u8])],
        also: Also<'_>,
    ) -> Result<bool> {
        let len = parts.iter().map(|part| part.1.len()).sum();
        if !self.may_write_at_once(node, len, also) || parts.iter().any(|part| part.1.is_empty()) {
            return Ok(false);
        }
        let inode = node.inode();
        let done = self.at_once(inode, || self.decide_write(inode, parts))?;
        Ok(done.is_some())
    }

    /// Append to a file without a lock; returns where. `None`: nothing was done, as above.
    pub(crate) fn append_at_once(
        &self,
        node: &Node,
        data: &[u8],
        also: Also<'_>,
    ) -> Result<Option<u64>> {
        if !self.may_write_at_once(node, data.len(), also) {
            return Ok(None);
        }
        let inode = node.inode();
        self.at_once(inode, || {
            let end = Consistent::of(&self.shared.volume, inode.ino).size();
            let decided = self.decide_write(inode, &[(end, data)])?;
            Ok(decided.map(|decided| Decided {
                returns: end,
                words: decided.words,
                memory: decided.memory,
            }))
        })
    }

    /// Whether bytes may be written without a lock: few, of a file, and nothing else with them.
    fn may_write_at_once(&self, node: &Node, len: usize, also: Also<'_>) -> bool {
        let more = also.is_some_and(|change| !change.is_empty());
        (1..=BYTES_MAX).contains(&len) && !more && node.inode().kind == Kind::File
    }

    /// Set permissions, owners and times without a lock; returns the attributes. `None`: nothing
    /// was done, as above.
    pub(crate) fn set_at_once(&self, node: &Node, change: &Change<'_>) -> Result<Option<Attr>> {
        let inode = node.inode();
        let more = change.set.size.is_some() || !change.xattrs.is_empty();
        if more || change.is_empty() {
            return Ok(None);
        }
        self.at_once(inode, || self.decide_set(inode, &change.set))
    }

    /// Do what is decided upon in one transaction. `None`: nothing was done.
    fn at_once<'a, T>(
        &'a self,
        inode: &'a Inode,
        decide: impl Fn() -> Result<Option<Decided<'a, T>>>,
    ) -> Result<Option<T>> {
        let Some(transactions) = self.shared.persister.transactions.as_deref() else {
            return Ok(None);
        };
        if !self.gate().is_there() || !inode.is_published() {
            return Ok(None);
        }
        self.check_writable()?;
        let (mut tries, mut others) = (0, 0);
        let mut kept: Option<Decided<'a, T>> = None;
        loop {
            let Some(seen) = self.gate().seen(inode.ino) else {
                return Ok(None); // locks are taken: whoever waits for them is sure to get on
            };
            if tries >= seen.patience() {
                seen.learn(false);
                return Ok(None);
            }
            tries += 1;
            let stale = kept.take().filter(|_| injected(Fault::StaleFallback));
            let Some(decided) = stale.map_or_else(&decide, |it| Ok(Some(it)))? else {
                return Ok(None);
            };
            point("transaction: decided");
            let transaction = decided.transaction(seen);
            // Commit point of the request.
            match transactions.attempt(&self.shared.volume.pool, &transaction) {
                Ok(()) => {
                    seen.learn(true);
                    return Ok(Some(decided.returns));
                }
                Err(Abort::Conflict) => kept = Some(decided),
                Err(Abort::Other) if others == 0 => others += 1,
                Err(Abort::Other) => {
                    seen.learn(false);
                    return Ok(None);
                }
                Err(Abort::Capacity) => return Ok(None),
            }
            point("transaction: aborted");
        }
    }

    /// What a write changes, by the consistent view as it may be; `None`: more than words of it.
    /// What the view says while it is changing means nothing, errors with it.
    fn decide_write<'a>(
        &self,
        inode: &'a Inode,
        parts: &[(u64, &[u8])],
    ) -> Result<Option<Decided<'a, ()>>> {
        let medium = &self.shared.volume;
        let file = Consistent::of(medium, inode.ino);
        let (mut bytes, mut size) = (Transaction::default(), file.size());
        for &(offset, data) in parts {
            let Ok(Some(places)) = file.places(offset, data.len() as u64) else {
                return Ok(None);
            };
            size = size.max(offset + data.len() as u64);
            let mut rest = data;
            for (at, len) in places {
                medium.alloc.back(at, len)?;
                let (data, behind) = rest.split_at(len as usize);
                bytes.write(&medium.pool, at, data);
                rest = behind;
            }
        }
        let mut decided = Decided {
            words: bytes.into_words(),
            memory: SmallVec::new(),
            returns: (),
        };
        let now = self.now().0 as u64;
        let [mtime, ctime, _] = inode.attrs.times();
        let at = line_at(inode.ino);
        // The clock is coarse, and both views have the same time.
        for (time, field) in [(mtime, layout::MTIME), (ctime, layout::CTIME)] {
            if time.load(Relaxed) != now {
                decided.set(time, at + field, now);
            }
        }
        if size > file.size() {
            decided.set(&inode.attrs.size, at + layout::SIZE, size);
        }
        Ok(Some(decided))
    }

    /// The same of attributes that are set.
    fn decide_set<'a>(&self, inode: &'a Inode, set: &SetAttr) -> Result<Option<Decided<'a, Attr>>> {
        let Ok(mut image) = self.shared.volume.image().inode(inode.ino) else {
            return Ok(None);
        };
        let [mtime, ctime, atime] = inode.attrs.times();
        let (at, owner) = (line_at(inode.ino), inode.attrs.owner());
        let Attributes { uid, gid, .. } = image;
        (image.uid, image.gid) = (set.uid.unwrap_or(uid), set.gid.unwrap_or(gid));
        image.perm = set.perm.map_or(image.perm, |perm| perm & 0o7777);
        image.ctime = set.ctime.unwrap_or_else(|| self.now());
        image.mtime = set.mtime.unwrap_or(image.mtime);
        // The medium may have an older one.
        image.atime = set
            .atime
            .unwrap_or_else(|| vfs::Time(atime.load(Relaxed) as i64));
        let mut decided = Decided {
            words: Vec::new(),
            memory: SmallVec::new(),
            returns: image.stat(image.xattr != 0),
        };
        decided.set(ctime, at + layout::CTIME, image.ctime.0 as u64);
        if set.mtime.is_some() {
            decided.set(mtime, at + layout::MTIME, image.mtime.0 as u64);
        }
        if set.atime.is_some() {
            decided.set(atime, at + layout::ATIME, image.atime.0 as u64);
        }
        if set.uid.is_some() || set.gid.is_some() {
            decided.set(owner, at + layout::OWNER, image.owner_word());
        }
        if let Some(perm) = set.perm {
            // Both have something else in the same word, which stays: links, a number.
            decided.memory.push(inode.attrs.perm_word(perm));
            let word = image.mode_nlink_word();
            decided.words.push((at + layout::MODE_NLINK, word));
        }
        Ok(Some(decided))
    }
}

impl<'a, T> Decided<'a, T> {
    /// A word gets this value in both views.
    fn set(&mut self, latest: &'a AtomicU64, at: u64, value: u64) {
        self.memory.push((latest, value));
        self.words.push((at, value));
    }

    fn transaction(&self, seen: Seen<'a>) -> Transaction<'a> {
        let mut all = Transaction::of_words(self.words.clone());
        seen.validate(&mut all);
        for &(word, value) in &self.memory {
            all.set_memory(word, value);
        }
        all
    }
}
