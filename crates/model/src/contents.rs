//! The contents of one regular file: a size, and the blocks that are not holes.
//!
//! Invariant: every byte at or beyond `size` in an allocated block is zero, so that growing the
//! file never shows what was cut off.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

/// Unit of allocation, in bytes.
pub(crate) const BLOCK: u64 = 4096;

/// Blocks that are only reserved share their zeros.
type Block = Arc<[u8; BLOCK as usize]>;

#[derive(Debug, Clone, Default)]
pub(crate) struct Contents {
    size: u64,
    blocks: BTreeMap<u64, Block>,
}

/// The part of one block that a range of bytes covers.
struct Piece {
    /// Number of the block in the file.
    block: u64,
    /// First byte within the block.
    start: usize,
    /// Bytes of the piece.
    len: usize,
}

/// Cut the bytes from `offset` up to `end` at block boundaries.
fn pieces(offset: u64, end: u64) -> impl Iterator<Item = Piece> {
    let mut at = offset;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let start = at % BLOCK;
            let len = (BLOCK - start).min(end - at);
            let piece = Piece {
                block: at / BLOCK,
                start: start as usize,
                len: len as usize,
            };
            at += len;
            piece
        })
    })
}

impl Contents {
    /// In bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// How many blocks are allocated.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Fill `buf` from `offset`; returns the bytes there are.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let end = self.size.min(offset.saturating_add(buf.len() as u64));
        let mut done = 0;
        for piece in pieces(offset, end) {
            let out = &mut buf[done..done + piece.len];
            match self.blocks.get(&piece.block) {
                Some(block) => out.copy_from_slice(&block[piece.start..piece.start + piece.len]),
                None => out.fill(0),
            }
            done += piece.len;
        }
        done
    }

    /// Put `data` at `offset`, allocating at most `room` blocks; returns the bytes written.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8], room: u64) -> usize {
        let limit = self.blocks().saturating_add(room);
        let mut done = 0;
        for piece in pieces(offset, offset + data.len() as u64) {
            if self.blocks() >= limit && !self.blocks.contains_key(&piece.block) {
                break;
            }
            let block = self.blocks.entry(piece.block).or_insert_with(zeroed);
            Arc::make_mut(block)[piece.start..piece.start + piece.len]
                .copy_from_slice(&data[done..done + piece.len]);
            done += piece.len;
        }
        if done > 0 {
            self.size = self.size.max(offset + done as u64);
        }
        done
    }

    /// Cut off, or extend with a hole. Drops what was reserved beyond the end.
    pub(crate) fn truncate(&mut self, size: u64) {
        self.blocks.split_off(&size.div_ceil(BLOCK));
        if let Some(last) = self.blocks.get_mut(&(size / BLOCK)) {
            Arc::make_mut(last)[(size % BLOCK) as usize..].fill(0);
        }
        self.size = size;
    }

    /// How many blocks `reserve` would allocate.
    pub(crate) fn missing(&self, offset: u64, end: u64) -> u64 {
        let range = offset / BLOCK..end.div_ceil(BLOCK);
        (range.end - range.start) - self.blocks.range(range).count() as u64
    }

    /// Allocate every block of the range; holes become zeros, the size stays.
    pub(crate) fn reserve(&mut self, offset: u64, end: u64) {
        for block in offset / BLOCK..end.div_ceil(BLOCK) {
            self.blocks.entry(block).or_insert_with(zeroed);
        }
    }

    /// Make the range read as zeros; blocks wholly inside it become holes.
    pub(crate) fn punch(&mut self, offset: u64, end: u64) {
        let inner = offset.div_ceil(BLOCK)..end / BLOCK;
        if inner.start < inner.end {
            let after = self.blocks.split_off(&inner.end);
            self.blocks.split_off(&inner.start);
            self.blocks.extend(after);
        }
        // Only the two ends can be parts of blocks; what lies between is gone already.
        let head = pieces(offset, end.min(inner.start * BLOCK));
        let tail = pieces(offset.max(inner.end * BLOCK), end);
        for piece in head.chain(tail) {
            if let Some(block) = self.blocks.get_mut(&piece.block) {
                Arc::make_mut(block)[piece.start..piece.start + piece.len].fill(0);
            }
        }
    }

    /// Extend to at least `size`.
    pub(crate) fn grow(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// The first byte at or after `offset` in an allocated block, before the end of the file.
    pub(crate) fn next_data(&self, offset: u64) -> Option<u64> {
        let (&block, _) = self.blocks.range(offset / BLOCK..).next()?;
        let at = offset.max(block * BLOCK);
        (at < self.size).then_some(at)
    }

    /// The first byte at or after `offset` (below the size) outside allocated blocks.
    pub(crate) fn next_hole(&self, offset: u64) -> u64 {
        let mut block = offset / BLOCK;
        while self.blocks.contains_key(&block) {
            block += 1;
        }
        offset.max(block * BLOCK).min(self.size)
    }
}

fn zeroed() -> Block {
    static ZEROS: LazyLock<Block> = LazyLock::new(|| Arc::new([0; BLOCK as usize]));
    ZEROS.clone()
}
