//! Records one behind the other.

use std::io::{self, Write};

use crate::record::{DESCRIBED, Header, RECORD, RECORDS_IN_BLOCK};

/// Where a dump goes.
pub struct Tape<'a> {
    out: &'a mut dyn Write,
    /// Records that were written.
    written: u32,
}

impl<'a> Tape<'a> {
    /// At its beginning.
    pub fn new(out: &'a mut dyn Write) -> Tape<'a> {
        Tape { out, written: 0 }
    }

    /// Bytes that were written.
    pub fn len(&self) -> u64 {
        u64::from(self.written) * RECORD as u64
    }

    /// A header.
    pub fn header(&mut self, header: Header) -> io::Result<()> {
        let bytes = header.bytes(self.written);
        self.records(&bytes)
    }

    /// Contents, filled up with zeros to whole records.
    pub fn records(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        let records = bytes.len().div_ceil(RECORD);
        let missing = records * RECORD - bytes.len();
        self.out.write_all(&[0; RECORD][..missing])?;
        let written = u32::try_from(records).ok();
        let written = written.and_then(|records| self.written.checked_add(records));
        let too_long = || io::Error::other("a dump has at most 4 TiB");
        self.written = written.ok_or_else(too_long)?;
        Ok(())
    }

    /// An inode, or its extended attributes, all of which is at hand.
    pub fn whole(&mut self, header: Header, contents: &[u8]) -> io::Result<()> {
        let mut header = header;
        if contents.is_empty() {
            return self.header(header.describe(&[]));
        }
        for part in contents.chunks(DESCRIBED * RECORD) {
            self.header(header.describe(&vec![true; part.len().div_ceil(RECORD)]))?;
            self.records(part)?;
            header = header.more();
        }
        Ok(())
    }

    /// The end, and more of it until a block of records is full.
    pub fn end(mut self, header: Header) -> io::Result<u64> {
        self.header(header)?;
        while !self.written.is_multiple_of(RECORDS_IN_BLOCK) {
            self.header(header)?;
        }
        self.out.flush()?;
        Ok(self.len())
    }
}
