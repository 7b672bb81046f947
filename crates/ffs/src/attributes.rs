//! What an inode on disk says of itself, in the types of this crate.

use vfs::{Attr, Kind, Time};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use crate::layout::{DIRECT, INODE_EXTRA_LEN, INODE_LEN, Inode, InodeExtra, InodeFlags, POINTERS};

/// The attributes of an inode that is in use, and its pointers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// What it is.
    pub kind: Kind,
    /// Permission, set-id and sticky bits.
    pub perm: u16,
    /// Names that refer to it, by what the disk says.
    pub links: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Space used, with indirect blocks, in units of 512 bytes.
    pub sectors: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of contents.
    pub mtime: Time,
    /// Last change of contents or attributes.
    pub ctime: Time,
    /// Birth; where inodes have no room for it, `ctime`.
    pub btime: Time,
    /// There is room for nanoseconds and further bits of seconds. Else times are whole seconds,
    /// from 1901 to 2038, and there is none of birth.
    pub has_fine_times: bool,
    /// Flags.
    pub flags: InodeFlags,
    /// Told apart from earlier inodes of the same number by this.
    pub generation: u32,
    /// Pointers: to blocks, to a tree of extents, or the target of a short symbolic link.
    pub pointers: [u32; POINTERS],
    /// Block of extended attributes; 0: none.
    pub xattr_block: u64,
}

/// The longest target of a symbolic link that lies in the inode itself, in bytes.
pub const FAST_SYMLINK_MAX: u64 = 4 * POINTERS as u64 - 1;

impl Attributes {
    /// As `stat` shows them.
    pub fn attr(&self, ino: u32, has_xattrs: bool) -> Attr {
        Attr {
            ino: ino.into(),
            generation: self.generation,
            kind: self.kind,
            perm: self.perm,
            nlink: self.links.into(),
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev(),
            size: self.size,
            blocks: self.sectors,
            atime: self.kept(self.atime),
            mtime: self.kept(self.mtime),
            ctime: self.kept(self.ctime),
            btime: match self.has_fine_times {
                true => self.kept(self.btime),
                false => self.kept(self.ctime),
            },
            has_xattrs,
        }
    }

    /// A time as the disk has it, and as it is read again: what there is no room for is cut off.
    fn kept(&self, time: Time) -> Time {
        let (first, last) = (i64::from(i32::MIN), i64::from(i32::MAX));
        match self.has_fine_times {
            // The end of what has room is behind the last of all times here.
            true => time.max(Time::new(first, 0)),
            false => Time::new(time.secs().clamp(first, last), 0),
        }
    }

    /// Whether it is a symbolic link whose target is in the place of the pointers.
    pub fn is_fast_symlink(&self) -> bool {
        self.kind == Kind::Symlink
            && self.size <= FAST_SYMLINK_MAX
            && !self.flags.contains(InodeFlags::EXTENTS)
    }

    /// The place of the pointers as bytes.
    pub fn pointer_bytes(&self) -> [u8; 4 * POINTERS] {
        let mut bytes = [0; 4 * POINTERS];
        for (to, pointer) in bytes.chunks_exact_mut(4).zip(self.pointers) {
            to.copy_from_slice(&pointer.to_le_bytes());
        }
        bytes
    }

    /// The number of a device, as Linux has it in `stat`: the first pointer has the old form of 16
    /// bits, which is the same number, and else the second the new one.
    fn rdev(&self) -> u32 {
        match self.kind {
            Kind::CharDev | Kind::BlockDev if self.pointers[0] != 0 => self.pointers[0] & 0xFFFF,
            Kind::CharDev | Kind::BlockDev => self.pointers[1],
            _ => 0,
        }
    }

    /// Whether the pointers lead to blocks. Those of devices, pipes and sockets do not, nor those
    /// of a symbolic link whose target is short.
    pub fn has_blocks(&self) -> bool {
        match self.kind {
            Kind::File | Kind::Dir => true,
            Kind::Symlink => !self.is_fast_symlink(),
            Kind::Fifo | Kind::Socket | Kind::CharDev | Kind::BlockDev => false,
        }
    }

    /// Makes the bytes of an inode those of a free one, with all fields that are known here.
    pub fn clear(bytes: &mut [u8]) {
        bytes.fill(0);
        if let Some(len) = bytes.get_mut(INODE_LEN..INODE_LEN + 2) {
            len.copy_from_slice(&(INODE_EXTRA_LEN as u16).to_le_bytes());
        }
    }

    /// Stores them in the bytes of an inode; what is not known here stays. `dtime`: the time of
    /// removal, in seconds since 1970.
    ///
    /// # Panics
    /// If there are fewer bytes than an inode has.
    pub fn store(&self, bytes: &mut [u8], dtime: u32) {
        let (base, rest) = Inode::mut_from_prefix(bytes).expect("an inode's size");
        self.store_base(base, dtime);
        // Where others left no room for it, there is none.
        let has_room = |extra: &InodeExtra| usize::from(extra.extra_isize.get()) >= TIMES_LEN;
        if let Ok((extra, _)) = InodeExtra::mut_from_prefix(rest)
            && has_room(extra)
        {
            self.store_extra(extra);
        }
    }

    fn store_base(&self, base: &mut Inode, dtime: u32) {
        let low = |id: u32| (id as u16).into();
        let high = |id: u32| ((id >> 16) as u16).into();
        base.mode = (self.kind.mode_bits() as u16 | self.perm).into();
        base.uid_lo = low(self.uid);
        base.size_lo = (self.size as u32).into();
        base.atime = seconds(self.kept(self.atime));
        base.ctime = seconds(self.kept(self.ctime));
        base.mtime = seconds(self.kept(self.mtime));
        base.dtime = dtime.into();
        base.gid_lo = low(self.gid);
        base.links_count = self.links.into();
        base.blocks_lo = (self.sectors as u32).into();
        base.flags = self.flags.bits().into();
        base.block = self.pointers.map(U32::new);
        base.generation = self.generation.into();
        base.file_acl_lo = (self.xattr_block as u32).into();
        base.size_hi = ((self.size >> 32) as u32).into();
        base.uid_hi = high(self.uid);
        base.gid_hi = high(self.gid);
    }

    fn store_extra(&self, stored: &mut InodeExtra) {
        stored.ctime_extra = extra(self.kept(self.ctime));
        stored.mtime_extra = extra(self.kept(self.mtime));
        stored.atime_extra = extra(self.kept(self.atime));
        stored.crtime = seconds(self.kept(self.btime));
        stored.crtime_extra = extra(self.kept(self.btime));
    }
}

/// Bytes of [`InodeExtra`] up to the last of its times.
pub const TIMES_LEN: usize = 24;

/// The time in both its fields: seconds since 1970, 32 bits signed, and 30 bits of nanoseconds
/// above two that extend the seconds.
pub fn time(seconds: U32, extra: U32) -> Time {
    let extended = i64::from(extra.get() & 3) << 32;
    let seconds = i64::from(seconds.get() as i32) + extended;
    Time::new(seconds, extra.get() >> 2)
}

/// The seconds' field of a time.
fn seconds(time: Time) -> U32 {
    (time.secs() as u32).into()
}

/// The other field of a time.
fn extra(time: Time) -> U32 {
    let secs = time.secs();
    let extended = (secs - i64::from(secs as i32)) >> 32;
    (time.nanos() << 2 | (extended & 3) as u32).into()
}

const _: () = {
    assert!(DIRECT + 3 == POINTERS);
    assert!(size_of::<Inode>() == INODE_LEN);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_from_1901_to_2262_keep_their_nanoseconds() {
        for secs in [
            -2_147_483_648,
            -1,
            0,
            2_147_483_647,
            2_147_483_648,
            9_000_000_000,
        ] {
            let before = Time::new(secs, 123_456_789);
            assert_eq!(time(seconds(before), extra(before)), before, "{secs}");
        }
    }
}
