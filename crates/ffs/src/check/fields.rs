//! Fields of an inode that are to be zero, or in order, whoever uses it: none of them matters while
//! the file system is in use, and then nobody looks at them.

use std::borrow::Cow;
use std::mem::offset_of;

use vfs::{Error, Kind};
use zerocopy::FromBytes;

use super::audit::field;
use super::claims::Claims;
use super::inodes::Look;
use super::{Edit, Problem};
use crate::attributes::Attributes;
use crate::features;
use crate::layout::{INODE_EXTRA_LEN, INODE_LEN, Inode, InodeExtra, InodeFlags};

/// The pointers that a device may have.
const DEVICE_POINTERS: usize = 4;

impl Look<'_> {
    /// The bytes of an inode in use as they are going to be.
    pub(super) fn mended<'b>(
        &mut self,
        ino: u32,
        place: (u64, usize),
        bytes: &'b [u8],
    ) -> Cow<'b, [u8]> {
        let (raw, _) = Inode::read_from_prefix(bytes).expect("an inode is as long");
        let features = self.audit.geometry.features;
        let block_size = u64::from(self.audit.geometry.block_size);
        let kind = Kind::from_mode(raw.mode.get().into());
        let flags = InodeFlags::from_bits_retain(raw.flags.get());
        let has_size = matches!(kind, Some(Kind::File | Kind::Dir | Kind::Symlink) | None);
        let of_others = flags & (InodeFlags::IMAGIC | InodeFlags::CASEFOLD);
        let is_fixed = flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND);
        let stray = &raw.block[DEVICE_POINTERS..];
        if raw.faddr.get() != 0 {
            self.damage(format!("inode {ino} has a fragment"));
        }
        if raw.blocks_hi.get() != 0 && features.ro_compat & features::HUGE_FILE == 0 {
            self.damage(format!("inode {ino} has more blocks than 32 bits count"));
        }
        if !of_others.is_empty() {
            self.damage(format!("inode {ino} has flags {:#x}", of_others.bits()));
        }
        if !has_size && is_fixed && stray.iter().any(|word| word.get() != 0) {
            self.damage(format!("inode {ino} is no {kind:?}: it has pointers"));
        }
        let mut edits = Vec::new();
        if !has_size && (raw.size_lo.get(), raw.size_hi.get()) != (0, 0) {
            edits.push((field(place, offset_of!(Inode, size_lo), &[0; 4]), "size"));
            edits.push((field(place, offset_of!(Inode, size_hi), &[0; 4]), "size"));
        }
        if kind != Some(Kind::Dir) && flags.contains(InodeFlags::INDEX) {
            let flags = (flags - InodeFlags::INDEX).bits().to_le_bytes();
            edits.push((
                field(place, offset_of!(Inode, flags), &flags),
                "index of names",
            ));
        }
        if raw.file_acl_hi.get() != 0 && features.incompat & features::BIT64 == 0 {
            let edit = field(place, offset_of!(Inode, file_acl_hi), &[0; 2]);
            edits.push((edit, "block of extended attributes beyond 32 bits"));
        }
        if let Some(right) = extra_len(&bytes[INODE_LEN..]) {
            let offset = INODE_LEN + offset_of!(InodeExtra, extra_isize);
            let edit = field(place, offset, &right.to_le_bytes());
            edits.push((edit, "number of further bytes"));
        }
        let size = u64::from(raw.size_hi.get()) << 32 | u64::from(raw.size_lo.get());
        let disk = self.audit.geometry.blocks * u64::from(self.audit.geometry.block_size);
        let is_size = size > 0 && size <= disk && size.is_multiple_of(block_size);
        let has_no_size = kind == Some(Kind::Dir) && !is_size;
        if edits.is_empty() && !has_no_size {
            return Cow::Borrowed(bytes);
        }
        let mut mended = bytes.to_vec();
        if has_no_size {
            // One that cannot be: its blocks tell the right one.
            let (inode, _) = Inode::mut_from_prefix(&mut mended).expect("an inode is as long");
            inode.size_lo = (disk as u32).into();
            inode.size_hi = ((disk >> 32) as u32).into();
        }
        for (edit, what) in edits {
            edit.apply(&mut mended, place.1);
            let detail = format!("inode {ino} has a {what}, and should not");
            self.found(Problem::Field, detail, (vec![edit], None));
        }
        Cow::Owned(mended)
    }

    /// Whether the target of a symbolic link is as long as that says.
    pub(super) fn target(
        &mut self,
        ino: u32,
        attributes: &Attributes,
        claims: &Claims,
    ) -> Result<(), Error> {
        let len = attributes.size as usize;
        let is_whole = |bytes: &[u8]| bytes.iter().position(|&byte| byte == 0) == Some(len);
        let is_right = match attributes.is_fast_symlink() {
            true => is_whole(&attributes.pointer_bytes()),
            false if claims.damaged => true,
            false => {
                let first = u64::from(attributes.pointers[0]);
                claims.blocks == 1 && first != 0 && is_whole(&self.audit.read(first)?)
            }
        };
        if !is_right {
            self.damage(format!(
                "inode {ino}, a symbolic link, has no target of {len} bytes"
            ));
        }
        Ok(())
    }

    /// One of the reserved inodes that should have nothing: it is cleared, if it has no blocks, or
    /// if those were a quota's.
    pub(super) fn cleared(&mut self, ino: u32, raw: &Inode, len: usize) {
        let has_pointers = raw.block.iter().any(|word| word.get() != 0);
        let counts = [raw.mode.get(), raw.links_count.get()];
        let sizes = [raw.size_lo, raw.size_hi, raw.blocks_lo];
        let is_used = counts != [0, 0] || sizes.iter().any(|word| word.get() != 0);
        let has_xattrs = raw.file_acl_lo.get() != 0;
        if !is_used && !has_pointers && !has_xattrs {
            return;
        }
        if has_xattrs || has_pointers && !QUOTAS.contains(&ino) {
            self.damage(format!("inode {ino} is reserved, and has blocks"));
            return;
        }
        let place = self.audit.place(ino);
        let edit: Edit = field(place, 0, &vec![0; len]);
        let detail = format!("inode {ino} is reserved, and in use");
        self.found(Problem::Field, detail, (vec![edit], None));
    }
}

/// The inodes of quotas, a feature that nothing here has.
const QUOTAS: [u32; 2] = [3, 4];

/// What the number of further bytes of an inode should be, if it makes no sense.
fn extra_len(rest: &[u8]) -> Option<u16> {
    let len = usize::from(u16::from_le_bytes(*rest.first_chunk()?));
    let is_right = len == 0 || len >= 4 && len <= rest.len() && len.is_multiple_of(4);
    (!is_right).then_some(INODE_EXTRA_LEN as u16)
}
