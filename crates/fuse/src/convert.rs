//! Between the vocabulary of `vfs` and that of FUSE.

use fuser::INodeNo;
use rustix::fs::{FallocateFlags, RenameFlags};
use vfs::{Attr, Errno, Fallocate, Kind, RenameMode, Time};

/// What a request is answered with.
pub type Answer<T> = Result<T, fuser::Errno>;

/// The library's form of an error number.
pub fn errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw_os_error())
}

/// Attributes as the kernel is told them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileAttr {
    /// The number under which the kernel knows the inode.
    pub ino: INodeNo,
    pub size: u64,
    /// Of 512 bytes.
    pub blocks: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub kind: Kind,
    pub perm: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
}

/// The attributes of the inode that the kernel knows as `id`.
pub fn file_attr(id: INodeNo, attr: &Attr) -> FileAttr {
    FileAttr {
        ino: id,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
        kind: attr.kind,
        perm: attr.perm,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
    }
}

/// Attributes of nothing: inode 0 in an entry's reply tells the kernel that the name does not
/// exist, and for how long it may believe so.
pub fn negative_entry() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: Time(0),
        mtime: Time(0),
        ctime: Time(0),
        kind: Kind::File,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
    }
}

/// Attributes in a listing for a name whose inode cannot be read. The kernel links no name to the
/// root, so that it lists this one and links it to nothing; and the reference that it gives back is
/// not counted.
pub fn unknown_entry(kind: Kind) -> FileAttr {
    FileAttr {
        ino: INodeNo::ROOT,
        kind,
        ..negative_entry()
    }
}

/// The rename that `renameat2` flags ask for.
pub fn rename_mode(flags: u32) -> Option<RenameMode> {
    Some(match RenameFlags::from_bits(flags)? {
        flags if flags.is_empty() => RenameMode::Replace,
        RenameFlags::NOREPLACE => RenameMode::NoReplace,
        RenameFlags::EXCHANGE => RenameMode::Exchange,
        RenameFlags::WHITEOUT => RenameMode::Whiteout,
        _ => return None,
    })
}

/// The form of `fallocate` that `mode` asks for, if there is one. Collapsing and inserting ranges
/// is not offered; the kernel never forwards it either.
pub fn fallocate(mode: i32) -> Option<Fallocate> {
    let flags = FallocateFlags::from_bits(mode.cast_unsigned())?;
    let keep_size = flags.contains(FallocateFlags::KEEP_SIZE);
    match flags.difference(FallocateFlags::KEEP_SIZE) {
        rest if rest.is_empty() => Some(Fallocate::Allocate { keep_size }),
        rest if rest == FallocateFlags::PUNCH_HOLE && keep_size => Some(Fallocate::Punch),
        rest if rest == FallocateFlags::ZERO_RANGE => Some(Fallocate::Zero { keep_size }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fallocate_modes_are_refused() {
        assert_eq!(fallocate(0), Some(Fallocate::Allocate { keep_size: false }));
        assert_eq!(fallocate(3), Some(Fallocate::Punch));
        assert_eq!(fallocate(2), None);
        assert_eq!(fallocate(0x11), Some(Fallocate::Zero { keep_size: true }));
        assert_eq!(fallocate(0x08), None);
    }
}
