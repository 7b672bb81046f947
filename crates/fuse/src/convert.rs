//! Between the vocabulary of `vfs` and that of the FUSE library.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo};
use rustix::fs::FallocateFlags;
use vfs::{Attr, Errno, Fallocate, Kind, RenameMode, Time};

/// Unit of `st_blksize`: what an engine reads and writes best.
pub const BLOCK_SIZE: u32 = 4096;

/// What a request is answered with.
pub type Answer<T> = Result<T, fuser::Errno>;

/// The library's form of an error number.
pub fn errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw_os_error())
}

/// The library's form of a kind.
pub fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Dir => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDev => FileType::CharDevice,
        Kind::BlockDev => FileType::BlockDevice,
    }
}

/// The library's form of attributes, of the inode that the kernel knows as `id`.
pub fn file_attr(id: INodeNo, attr: &Attr) -> FileAttr {
    FileAttr {
        ino: id,
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime),
        kind: file_type(attr.kind),
        perm: attr.perm,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

/// Attributes of nothing: inode 0 in an entry's reply tells the kernel that the name does not
/// exist, and for how long it may believe so.
pub fn negative_entry() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// Attributes in a listing for a name whose inode cannot be read. The kernel links no name to the
/// root, so that it lists this one and links it to nothing; and the reference that it gives back is
/// not counted.
pub fn unknown_entry(kind: Kind) -> FileAttr {
    FileAttr {
        ino: INodeNo::ROOT,
        kind: file_type(kind),
        ..negative_entry()
    }
}

fn system_time(time: Time) -> SystemTime {
    let ns = Duration::from_nanos(time.0.unsigned_abs());
    if time.0 >= 0 {
        UNIX_EPOCH + ns
    } else {
        UNIX_EPOCH - ns
    }
}

/// The time that the kernel sent and the library decoded.
///
/// Before 1970 the kernel sends negative seconds and positive nanoseconds, and the library
/// subtracts both from the epoch, where the nanoseconds ought to be added. Its two parts can still
/// be told apart, so this undoes the slip (the test below pins it, should the library change).
pub fn time(decoded: SystemTime) -> Time {
    match decoded.duration_since(UNIX_EPOCH) {
        Ok(after) => Time::new(clamp_secs(after), after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            Time::new(-clamp_secs(before), before.subsec_nanos())
        }
    }
}

fn clamp_secs(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

/// The rename that `renameat2` flags ask for.
pub fn rename_mode(flags: fuser::RenameFlags) -> Option<RenameMode> {
    use fuser::RenameFlags as F;
    if flags.is_empty() {
        Some(RenameMode::Replace)
    } else if flags == F::RENAME_NOREPLACE {
        Some(RenameMode::NoReplace)
    } else if flags == F::RENAME_EXCHANGE {
        Some(RenameMode::Exchange)
    } else if flags == F::RENAME_WHITEOUT {
        Some(RenameMode::Whiteout)
    } else {
        None
    }
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
    fn times_before_1970_keep_their_nanoseconds() {
        // utimensat with -2 s and 250 ms: the library decodes it as 2.25 s before the epoch.
        let decoded = UNIX_EPOCH - Duration::new(2, 250_000_000);
        assert_eq!(time(decoded), Time::new(-2, 250_000_000));
        // What goes back to the kernel is encoded rightly.
        let sent = system_time(Time::new(-2, 250_000_000));
        assert_eq!(sent, UNIX_EPOCH - Duration::new(1, 750_000_000));
    }

    #[test]
    fn times_far_out_are_clamped() {
        let far = UNIX_EPOCH + Duration::from_secs(i64::MAX as u64);
        assert_eq!(time(far), Time(i64::MAX));
        assert_eq!(time(UNIX_EPOCH + Duration::new(7, 9)), Time::new(7, 9));
    }

    #[test]
    fn unknown_fallocate_modes_are_refused() {
        assert_eq!(fallocate(0), Some(Fallocate::Allocate { keep_size: false }));
        assert_eq!(fallocate(3), Some(Fallocate::Punch));
        assert_eq!(fallocate(2), None);
        assert_eq!(fallocate(0x11), Some(Fallocate::Zero { keep_size: true }));
        assert_eq!(fallocate(0x08), None);
    }
}
