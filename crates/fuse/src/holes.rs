//! Data and holes, although programs store to mapped pages.
//!
//! A store to a mapped page is the kernel's alone until it writes the page back, and for SEEK_DATA
//! and SEEK_HOLE it does not. Where the engine has data, that changes nothing. Where it has a hole,
//! there may be data: who copies by ranges of data would leave it out. So before an answer that
//! rests on a hole, the kernel is told to drop its pages there, for which it writes the dirty ones
//! back; then the engine is asked again. Pages of a hole are all that is dropped: zeros.
//!
//! The kernel writes back by requests, and waits for them. So this runs on a thread of its own: a
//! thread that serves requests, waiting here, could be the one that is needed.

use std::ops::Range;
use std::sync::Arc;

use fuser::INodeNo;
use vfs::{Errno, Error, FileSystem, Result, SeekFor};

use crate::adapter::Adapter;
use crate::follow::Client;
use crate::monitor::Request;
use crate::reply::ReplyLseek;

/// What is looked for in a file.
#[derive(Clone, Copy)]
pub struct Search {
    pub id: INodeNo,
    pub offset: u64,
    pub what: SeekFor,
}

/// What the engine found.
struct Found {
    answer: Result<u64>,
    /// The hole that the answer rests on; empty if it rests on none.
    hole: Range<u64>,
}

/// Answers a search, on this thread if the answer rests on data alone.
pub fn answer<F: FileSystem>(
    adapter: &Arc<Adapter<F>>,
    client: Client,
    search: Search,
    reply: ReplyLseek,
) {
    let found = match adapter.run(client, Request::Lseek, || ask(adapter, search)) {
        Ok(found) => found,
        Err(errno) => return reply.error(errno),
    };
    let rests_on_data = found.hole.is_empty();
    let adapter = Arc::clone(adapter);
    let finish = move || {
        let settled = || settle(&adapter, search, found);
        let answer = adapter.run_uncounted(Request::Lseek, settled);
        match answer {
            Ok(offset) => reply.offset(offset),
            Err(errno) => reply.error(errno),
        }
    };
    if rests_on_data {
        return finish();
    }
    let thread = std::thread::Builder::new().name("holes".to_owned());
    let find = move || {
        threads::as_usual();
        finish();
    };
    if let Err(error) = thread.spawn(find) {
        // The reply went with the closure; dropped, it is an error.
        log::error!("cannot start a thread that looks for data: {error}");
    }
}

fn ask<F: FileSystem>(adapter: &Adapter<F>, search: Search) -> Result<Found> {
    let node = adapter.node(search.id)?;
    let size = adapter.vfs.getattr(&node).size;
    let seek = |offset, what| adapter.vfs.seek(&node, offset, what);
    let answer = seek(search.offset, search.what);
    let hole = match (&answer, search.what) {
        (Ok(data), SeekFor::Data) => search.offset..*data,
        (Ok(hole), SeekFor::Hole) => *hole..seek(*hole, SeekFor::Data).unwrap_or(size),
        (Err(Error::Errno(Errno::NXIO)), SeekFor::Data) => search.offset..size,
        (Err(_), _) => 0..0,
    };
    Ok(Found { answer, hole })
}

/// The answer once the kernel holds nothing of the hole that it rests on.
///
/// Comes to an end: the kernel has the inode locked for the search, so that nobody punches holes,
/// and each that is looked at begins behind the last.
fn settle<F: FileSystem>(adapter: &Adapter<F>, search: Search, mut found: Found) -> Result<i64> {
    let mut clean = 0..0;
    while !(found.hole.is_empty() || clean.start <= found.hole.start && found.hole.end <= clean.end)
    {
        adapter.drop_pages(search.id, &found.hole);
        clean = found.hole;
        found = ask(adapter, search)?;
    }
    i64::try_from(found.answer?).map_err(|_| Errno::OVERFLOW.into())
}
