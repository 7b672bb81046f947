//! Directory entries that nothing leads to yet: making one, and discarding it.

use crate::hash::Name;
use crate::inode_state::InodeState;
use crate::layout::{dentry, line_at};
use crate::medium::Medium;
use smallvec::SmallVec;
use vfs::Result;

/// The lines of an entry: its own, and those that a long name goes on in.
pub type Lines = SmallVec<[u64; 8]>;

/// A new entry for `child`, all but its links.
pub fn make(medium: &Medium, child: &InodeState, name: Name<'_>) -> Result<u64> {
    let line = medium.alloc.line()?;
    fill(medium, line, child, name)
}

/// Make a line an entry. On an error it is freed.
pub fn fill(medium: &Medium, line: u64, child: &InodeState, name: Name<'_>) -> Result<u64> {
    let at = line_at(line);
    let len = name.bytes.len();
    let inline = match len {
        ..=dentry::INLINE => name.bytes,
        _ => fill_more_lines(medium, line, name.bytes)?,
    };
    let kind = u64::from(child.kind.mode_bits() >> 12) << dentry::KIND_SHIFT;
    let target = child.ino | (len as u64) << dentry::LEN_SHIFT | kind | dentry::FRESH;
    medium.pool.store(at + dentry::TARGET, target);
    medium.pool.store(at + dentry::HASH, name.hash);
    medium.pool.write(at + dentry::NAME, inline);
    Ok(line)
}

/// Put what an entry has no room for into further lines. Returns the rest of the name. On an error
/// the entry is freed.
#[cold]
fn fill_more_lines<'n>(medium: &Medium, line: u64, name: &'n [u8]) -> Result<&'n [u8]> {
    let mut lines = Lines::new();
    for _ in 0..dentry::more_lines(name.len()) {
        match medium.alloc.line() {
            Ok(more) => lines.push(more),
            Err(e) => {
                lines.push(line);
                medium.alloc.free(None, &lines);
                return Err(e);
            }
        }
    }
    let (inline, mut rest) = name.split_at(dentry::INLINE_LONG);
    let mut link = line_at(line) + dentry::MORE;
    for more in lines {
        medium.pool.store(link, more);
        link = line_at(more);
        let (part, left) = rest.split_at(rest.len().min(dentry::PER_LINE));
        medium.pool.write(link + 8, part);
        rest = left;
    }
    Ok(inline)
}

/// Free an entry.
pub fn discard(medium: &Medium, line: u64) {
    medium.alloc.free(None, &lines(medium, line));
}

/// The lines of an entry.
pub fn lines(medium: &Medium, line: u64) -> Lines {
    let image = medium.image();
    let more = image.dentry(line).and_then(|d| image.name_lines(&d));
    let mut lines = Lines::from_slice(&[line]);
    lines.extend(more.unwrap_or_default());
    lines
}
