//! Requests of mode `strong` that take no lock: what they change fits a transaction of memory,
//! which stands for what they were decided upon (HTMFS §3.1, §3.2.2).
//!
//! ```text
//! seen       the numbers of the file's scope, even: nobody changes it
//! decide     by the consistent view: where the bytes are, and which words change
//! attempt    one transaction: numbers as they were, nobody shares the scope; then all words, on
//!            the medium and in DRAM, and the numbers go up       (the commit point, or nothing)
//! ```
//!
//! Overwriting bytes that are there is done so, up to a page. All else is prepared in the latest
//! view, where others would meet it half done, and needs the scope. An attempt that was aborted has
//! changed nothing; what it was decided upon may have changed, so the next one begins anew. Whoever
//! has tried often enough takes the scope, and decides once more ([`crate::strong`]).

use crate::commit::gate::Seen;
use crate::fault::{Fault, injected};
use crate::file::Consistent;
use crate::inode::{Inode, Node};
use crate::layout::{PAGE, inode as layout, line_at};
use crate::mount::SoupFs;
use pmem::{Abort, Transaction};
use schedule::point;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Also, Kind, Result, Time};

/// Most bytes that are stored in a transaction: so many lines any processor has room for.
const BYTES_MAX: usize = PAGE as usize;

/// Words of a file's bytes that an overwrite changes, and when it was decided upon.
struct Decided {
    words: Vec<(u64, u64)>,
    now: Time,
}

impl SoupFs {
    /// Overwrite parts of a file without a lock, all of them or none. `false`: nothing was done,
    /// and the request goes the way with locks.
    pub(crate) fn overwrite_at_once(
        &self,
        node: &Node,
        parts: &[(u64, &[u8])],
        also: Also<'_>,
    ) -> Result<bool> {
        let Some(transactions) = self.shared.persister.transactions.as_deref() else {
            return Ok(false);
        };
        let inode = node.inode();
        let small = parts.iter().map(|part| part.1.len()).sum::<usize>() <= BYTES_MAX;
        let some = parts.iter().all(|part| !part.1.is_empty()) && !parts.is_empty();
        let more = also.is_some_and(|change| !change.is_empty());
        if !small
            || !some
            || more
            || !self.gate().is_there()
            || !inode.is_published()
            || inode.kind != Kind::File
        {
            return Ok(false);
        }
        self.check_writable()?;
        let (mut tries, mut others) = (0, 0);
        let mut kept: Option<Decided> = None;
        loop {
            let Some(seen) = self.gate().seen(inode.ino) else {
                return Ok(false); // locks are taken: whoever waits for them is sure to get on
            };
            if tries >= seen.patience() {
                seen.learn(false);
                return Ok(false);
            }
            tries += 1;
            let stale = kept.take().filter(|_| injected(Fault::StaleFallback));
            let Some(decided) =
                stale.map_or_else(|| self.decide(inode, parts), |it| Ok(Some(it)))?
            else {
                return Ok(false);
            };
            point("transaction: decided");
            let transaction = decided.transaction(inode, seen);
            // Commit point of the request.
            match transactions.attempt(&self.shared.volume.pool, &transaction) {
                Ok(()) => {
                    seen.learn(true);
                    return Ok(true);
                }
                Err(Abort::Conflict) => kept = Some(decided),
                Err(Abort::Other) if others == 0 => others += 1,
                Err(Abort::Other) => {
                    seen.learn(false);
                    return Ok(false);
                }
                Err(Abort::Capacity) => return Ok(false),
            }
            point("transaction: aborted");
        }
    }

    /// What an overwrite changes, by the consistent view as it may be; `None`: more than words of
    /// it. What the view says while it is changing means nothing, errors with it.
    fn decide(&self, inode: &Inode, parts: &[(u64, &[u8])]) -> Result<Option<Decided>> {
        let medium = &self.shared.volume;
        let file = Consistent::of(medium, inode.ino);
        let mut bytes = Transaction::default();
        for &(offset, data) in parts {
            let Ok(Some(places)) = file.places(offset, data.len() as u64) else {
                return Ok(None);
            };
            let mut rest = data;
            for (at, len) in places {
                medium.alloc.back(at, len)?;
                let (data, behind) = rest.split_at(len as usize);
                bytes.write(&medium.pool, at, data);
                rest = behind;
            }
        }
        Ok(Some(Decided {
            words: bytes.into_words(),
            now: self.now(),
        }))
    }
}

impl Decided {
    fn transaction<'a>(&self, inode: &'a Inode, seen: Seen<'a>) -> Transaction<'a> {
        let mut all = Transaction::of_words(self.words.clone());
        seen.validate(&mut all);
        let at = line_at(inode.ino);
        let [mtime, ctime] = inode.attrs.changes();
        for (time, field) in [(mtime, layout::MTIME), (ctime, layout::CTIME)] {
            let now = self.now.0 as u64;
            // The clock is coarse, and both views have the same time.
            if time.load(Relaxed) != now {
                all.set_memory(time, now);
                all.set(at + field, now);
            }
        }
        all
    }
}
