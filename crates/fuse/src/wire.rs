//! The bytes of requests, as the kernel sends them, and what they say.
//!
//! The layouts are the kernel's ABI (`linux/fuse.h`, version 7.40): numbers in the byte order of
//! the machine. A request is a header, the arguments that each request of its kind has, and the
//! rest: names, data. Through `/dev/fuse` the three follow each other; through io_uring each has
//! its own place. Nothing here trusts a length: what is too short is no request.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::INodeNo;
use vfs::{Time, TimeOrNow};

/// Bytes of the header of a request.
pub const HEADER_SIZE: usize = 40;

/// Bytes of the header of an answer.
pub const OUT_HEADER_SIZE: usize = 16;

/// What is asked for. The names are FUSE's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opcode {
    Lookup,
    Forget,
    GetAttr,
    SetAttr,
    ReadLink,
    Symlink,
    MkNod,
    MkDir,
    Unlink,
    RmDir,
    Rename,
    Link,
    Open,
    Read,
    Write,
    StatFs,
    Release,
    FSync,
    SetXattr,
    GetXattr,
    ListXattr,
    RemoveXattr,
    Flush,
    OpenDir,
    ReadDir,
    ReleaseDir,
    FSyncDir,
    Access,
    Create,
    Destroy,
    Ioctl,
    Poll,
    BatchForget,
    FAllocate,
    ReadDirPlus,
    Rename2,
    Lseek,
    CopyFileRange,
    /// Not offered; its arguments are not known.
    Other,
}

impl Opcode {
    /// The kind, and the bytes of the arguments that each request of this kind has.
    fn of(number: u32) -> (Opcode, usize) {
        use Opcode::*;
        match number {
            1 => (Lookup, 0),
            2 => (Forget, 8),
            3 => (GetAttr, 16),
            4 => (SetAttr, 88),
            5 => (ReadLink, 0),
            6 => (Symlink, 0),
            8 => (MkNod, 16),
            9 => (MkDir, 8),
            10 => (Unlink, 0),
            11 => (RmDir, 0),
            12 => (Rename, 8),
            13 => (Link, 8),
            14 => (Open, 8),
            15 => (Read, 40),
            16 => (Write, 40),
            17 => (StatFs, 0),
            18 => (Release, 24),
            20 => (FSync, 16),
            21 => (SetXattr, 8),
            22 => (GetXattr, 8),
            23 => (ListXattr, 8),
            24 => (RemoveXattr, 0),
            25 => (Flush, 24),
            27 => (OpenDir, 8),
            28 => (ReadDir, 40),
            29 => (ReleaseDir, 24),
            30 => (FSyncDir, 16),
            34 => (Access, 8),
            35 => (Create, 16),
            38 => (Destroy, 0),
            39 => (Ioctl, 32),
            40 => (Poll, 24),
            42 => (BatchForget, 8),
            43 => (FAllocate, 32),
            44 => (ReadDirPlus, 40),
            45 => (Rename2, 16),
            46 => (Lseek, 24),
            47 => (CopyFileRange, 56),
            _ => (Other, 0),
        }
    }
}

/// A request is shorter than it says.
#[derive(Debug, PartialEq, Eq)]
pub struct TooShort;

type Result<T> = std::result::Result<T, TooShort>;

/// Numbers and names, one after the other.
#[derive(Clone, Copy)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(TooShort)?;
        self.0 = rest;
        Ok(*bytes)
    }

    /// The next number of 32 bits.
    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    /// The next number of 64 bits.
    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_ne_bytes)
    }

    /// The next inode.
    pub fn inode(&mut self) -> Result<INodeNo> {
        self.u64().map(INodeNo)
    }

    /// Leave out so many bytes.
    pub fn skip(&mut self, bytes: usize) -> Result<()> {
        self.0 = self.0.get(bytes..).ok_or(TooShort)?;
        Ok(())
    }

    /// The next name; a zero ends it.
    pub fn name(&mut self) -> Result<&'a OsStr> {
        let len = self.0.iter().position(|&byte| byte == 0).ok_or(TooShort)?;
        let (name, rest) = self.0.split_at(len);
        self.0 = &rest[1..];
        Ok(OsStr::from_bytes(name))
    }

    /// So many of the bytes that are left.
    pub fn data(&self, len: u32) -> Result<&'a [u8]> {
        self.0.get(..len as usize).ok_or(TooShort)
    }
}

/// Who asks, and for what inode.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    opcode: u32,
    unique: u64,
    node: INodeNo,
    uid: u32,
    gid: u32,
    pid: u32,
}

impl Caller {
    fn parse(header: &[u8]) -> Result<Caller> {
        let mut fields = Fields(header);
        fields.skip(4)?;
        Ok(Caller {
            opcode: fields.u32()?,
            unique: fields.u64()?,
            node: fields.inode()?,
            uid: fields.u32()?,
            gid: fields.u32()?,
            pid: fields.u32()?,
        })
    }

    /// The number that the answer names.
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// The user that the kernel checked permissions for.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The group of that user.
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// The thread that asks; 0 if it is not to be known here.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

/// A request, not yet read to its end.
#[derive(Clone, Copy)]
pub struct Incoming<'a> {
    pub caller: Caller,
    pub opcode: Opcode,
    /// What it is about, mostly.
    pub node: INodeNo,
    /// What each request of its kind has.
    pub fixed: Fields<'a>,
    /// Names and data.
    pub rest: Fields<'a>,
}

impl<'a> Incoming<'a> {
    /// From one piece, as `/dev/fuse` has it.
    pub fn whole(bytes: &'a [u8]) -> Result<Incoming<'a>> {
        let (header, body) = bytes.split_at_checked(HEADER_SIZE).ok_or(TooShort)?;
        let caller = Caller::parse(header)?;
        let (_, size) = Opcode::of(caller.opcode);
        let (fixed, rest) = body.split_at_checked(size).ok_or(TooShort)?;
        Ok(Incoming::new(caller, fixed, rest))
    }

    /// From three pieces, as io_uring has it; behind the fixed arguments there may be room.
    pub fn pieces(header: &[u8], fixed: &'a [u8], rest: &'a [u8]) -> Result<Incoming<'a>> {
        Ok(Incoming::new(Caller::parse(header)?, fixed, rest))
    }

    fn new(caller: Caller, fixed: &'a [u8], rest: &'a [u8]) -> Incoming<'a> {
        Incoming {
            caller,
            opcode: Opcode::of(caller.opcode).0,
            node: caller.node,
            fixed: Fields(fixed),
            rest: Fields(rest),
        }
    }
}

/// A change of attributes, as the kernel asks for it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<TimeOrNow>,
    pub mtime: Option<TimeOrNow>,
    pub ctime: Option<Time>,
}

impl SetAttr {
    /// The fixed arguments of SETATTR. A mask says which of them count.
    pub fn parse(mut fields: Fields<'_>) -> Result<SetAttr> {
        const MODE: u32 = 1 << 0;
        const UID: u32 = 1 << 1;
        const GID: u32 = 1 << 2;
        const SIZE: u32 = 1 << 3;
        const ATIME: u32 = 1 << 4;
        const MTIME: u32 = 1 << 5;
        const ATIME_NOW: u32 = 1 << 7;
        const MTIME_NOW: u32 = 1 << 8;
        const CTIME: u32 = 1 << 10;
        let mask = fields.u32()?;
        fields.skip(4 + 8)?;
        let size = fields.u64()?;
        fields.skip(8)?;
        // Before 1970 the seconds are negative, and the nanoseconds never are.
        let mut seconds = || fields.u64().map(u64::cast_signed);
        let (atime, mtime, ctime) = (seconds()?, seconds()?, seconds()?);
        let atime = Time::new(atime, fields.u32()?);
        let mtime = Time::new(mtime, fields.u32()?);
        let ctime = Time::new(ctime, fields.u32()?);
        let mode = fields.u32()?;
        fields.skip(4)?;
        let (uid, gid) = (fields.u32()?, fields.u32()?);
        let time = |at, set, now| match (mask & set != 0, mask & now != 0) {
            (false, _) => None,
            (true, true) => Some(TimeOrNow::Now),
            (true, false) => Some(TimeOrNow::At(at)),
        };
        Ok(SetAttr {
            mode: (mask & MODE != 0).then_some(mode),
            uid: (mask & UID != 0).then_some(uid),
            gid: (mask & GID != 0).then_some(gid),
            size: (mask & SIZE != 0).then_some(size),
            atime: time(atime, ATIME, ATIME_NOW),
            mtime: time(mtime, MTIME, MTIME_NOW),
            ctime: (mask & CTIME != 0).then_some(ctime),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(opcode: u32, node: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in [0, opcode] {
            bytes.extend_from_slice(&number.to_ne_bytes());
        }
        for number in [7, node] {
            bytes.extend_from_slice(&number.to_ne_bytes());
        }
        for number in [1000, 100, 42, 0_u32] {
            bytes.extend_from_slice(&number.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn a_request_is_the_same_in_one_piece_and_in_three() {
        let (header, fixed, rest) = (header(12, 3), 9_u64.to_ne_bytes(), b"old\0new\0");
        let whole = [&header[..], &fixed, rest].concat();
        let mut op_in = [0; 128];
        op_in[..8].copy_from_slice(&fixed);
        let both = [
            Incoming::whole(&whole).expect("long enough"),
            Incoming::pieces(&header, &op_in, rest).expect("long enough"),
        ];
        for mut request in both {
            assert_eq!((request.opcode, request.node), (Opcode::Rename, INodeNo(3)));
            let caller = request.caller;
            let who = (caller.unique(), caller.uid(), caller.gid(), caller.pid());
            assert_eq!(who, (7, 1000, 100, 42));
            assert_eq!(request.fixed.inode(), Ok(INodeNo(9)));
            let names = [request.rest.name(), request.rest.name()];
            assert_eq!(names, [Ok(OsStr::new("old")), Ok(OsStr::new("new"))]);
        }
    }

    #[test]
    fn what_is_too_short_is_no_request() {
        let whole = [&header(12, 3)[..], &9_u64.to_ne_bytes(), b"old"].concat();
        for len in 0..HEADER_SIZE + 8 {
            assert!(Incoming::whole(&whole[..len]).is_err(), "{len} bytes");
        }
        let mut request = Incoming::whole(&whole).expect("the name is not looked at");
        assert_eq!(request.rest.name(), Err(TooShort), "nothing ends it");
        assert_eq!(request.rest.data(4), Err(TooShort));
    }

    /// SETATTR with these bits and seconds and nanoseconds of the access time.
    fn set_attr(mask: u32, seconds: i64, nanoseconds: u32) -> SetAttr {
        let mut bytes = [0; 88];
        bytes[..4].copy_from_slice(&mask.to_ne_bytes());
        bytes[32..40].copy_from_slice(&seconds.to_ne_bytes());
        bytes[56..60].copy_from_slice(&nanoseconds.to_ne_bytes());
        bytes[68..72].copy_from_slice(&0o640_u32.to_ne_bytes());
        SetAttr::parse(Fields(&bytes)).expect("long enough")
    }

    #[test]
    fn attributes_that_are_not_named_are_not_set() {
        assert_eq!(set_attr(0, 5, 6), SetAttr::default());
        let mode = SetAttr {
            mode: Some(0o640),
            ..SetAttr::default()
        };
        assert_eq!(set_attr(1, 5, 6), mode);
        assert_eq!(set_attr(0x90, 5, 6).atime, Some(TimeOrNow::Now));
    }

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        // utimensat with -2 s and 250 ms.
        let at = |time| Some(TimeOrNow::At(time));
        let set = set_attr(0x10, -2, 250_000_000);
        assert_eq!(set.atime, at(Time::new(-2, 250_000_000)));
        assert_eq!(
            set_attr(0x10, i64::MIN, 0).atime,
            at(Time::new(i64::MIN, 0))
        );
    }
}
