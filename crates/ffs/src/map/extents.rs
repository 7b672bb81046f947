//! Trees of extents (ext4): for reading.

use vfs::Result;
use zerocopy::FromBytes;

use super::{Run, checked};
use crate::image::StoredInode;
use crate::layout::{
    EXTENT_DEPTH_MAX, EXTENT_MAGIC, EXTENT_WRITTEN_MAX, Extent, ExtentHeader, ExtentIndex,
};
use crate::medium::Medium;

/// Extents begin below this block.
const END: u64 = 1 << 32;

/// What block `logical` is, and those that follow.
pub(super) fn run(medium: &Medium, inode: &StoredInode, logical: u64) -> Result<Run> {
    if logical >= END {
        return Ok(Run::hole(u64::MAX - logical));
    }
    let root = inode.attributes.pointer_bytes();
    let root = Node::new(medium, inode.at, &root, None)?;
    under(&root, logical, END)
}

/// What block `logical` is under a node, whose extents begin before block `end`.
fn under(node: &Node<'_>, logical: u64, end: u64) -> Result<Run> {
    if node.depth == 0 {
        return leaf(node, logical, end);
    }
    let (index, end) = node.find(logical, end, |index: &ExtentIndex| index.block.get())?;
    let Some(index) = index else {
        return Ok(Run::hole(end - logical));
    };
    let child = u64::from(index.leaf_hi.get()) << 32 | u64::from(index.leaf_lo.get());
    let block = node.medium.follow(node.at, child)?;
    let bytes = block.bytes();
    let child = Node::new(node.medium, child, &bytes, Some(node.depth - 1))?;
    under(&child, logical, end)
}

fn leaf(node: &Node<'_>, logical: u64, end: u64) -> Result<Run> {
    let (extent, end) = node.find(logical, end, |extent: &Extent| extent.block.get())?;
    let Some(extent) = extent else {
        return Ok(Run::hole(end - logical));
    };
    let (is_written, len) = match extent.len.get() {
        len if len > EXTENT_WRITTEN_MAX => (false, len - EXTENT_WRITTEN_MAX),
        len => (true, len),
    };
    let into = logical - u64::from(extent.block.get());
    let Some(rest) = u64::from(len).checked_sub(into).filter(|&rest| rest > 0) else {
        return Ok(Run::hole(end - logical));
    };
    let start = u64::from(extent.start_hi.get()) << 32 | u64::from(extent.start_lo.get());
    let run = checked(node.medium, node.at, start + into, rest)?;
    Ok(match is_written {
        true => run,
        false => Run::hole(rest),
    })
}

/// A node of the tree: of its entries only those in use.
struct Node<'a> {
    medium: &'a Medium,
    /// The block that it is in.
    at: u64,
    /// Levels below it.
    depth: u16,
    entries: &'a [u8],
}

/// Bytes of a header, and of an entry.
const LEN: usize = size_of::<ExtentHeader>();

impl<'a> Node<'a> {
    /// The node in `bytes` of block `at`, where one of this depth is expected.
    fn new(medium: &'a Medium, at: u64, bytes: &'a [u8], expected: Option<u16>) -> Result<Self> {
        let damage = |what: String| medium.geometry.damage(at, format_args!("extents: {what}"));
        let header = ExtentHeader::read_from_prefix(bytes);
        let (header, rest) = header.map_err(|_| damage("cut off".to_owned()))?;
        if header.magic.get() != EXTENT_MAGIC {
            return Err(damage(format!("magic {:#06x}", header.magic.get())));
        }
        let (entries, depth) = (header.entries.get(), header.depth.get());
        let room = rest.len() / LEN;
        if usize::from(entries) > room || entries > header.max.get() {
            return Err(damage(format!("{entries} entries, where {room} have room")));
        }
        if depth > EXTENT_DEPTH_MAX || expected.is_some_and(|expected| depth != expected) {
            return Err(damage(format!("{depth} levels below it")));
        }
        Ok(Node {
            medium,
            at,
            depth,
            entries: &rest[..usize::from(entries) * LEN],
        })
    }

    /// The last entry that begins at `logical` or before, and where the next one begins: `end` at
    /// most, but, whatever damage says, behind `logical`. Entries are in order.
    fn find<E: FromBytes>(
        &self,
        logical: u64,
        end: u64,
        first: impl Fn(&E) -> u32,
    ) -> Result<(Option<E>, u64)> {
        let mut found: Option<E> = None;
        let entries = self.entries.chunks_exact(LEN);
        for entry in entries.map(|bytes| E::read_from_bytes(bytes).expect("entries have one size"))
        {
            let start = first(&entry);
            if found.as_ref().is_some_and(|before| start <= first(before)) {
                let what = format_args!("extents: block {start} is out of order");
                return Err(self.medium.geometry.damage(self.at, what));
            }
            if u64::from(start) > logical {
                return Ok((found, end.min(start.into()).max(logical + 1)));
            }
            found = Some(entry);
        }
        Ok((found, end.max(logical + 1)))
    }
}
