//! Who may read, write, search and execute.

use bitflags::bitflags;

use crate::{Caps, Cred, Errno, Kind, Result, Rights};

bitflags! {
    /// Ways to use a file, with the values of `access(2)`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Access: u8 {
        /// Read; list a directory.
        const R = 4;
        /// Write; change the names in a directory.
        const W = 2;
        /// Execute; search a directory.
        const X = 1;
    }
}

impl Access {
    /// From the lowest three of the bits given.
    pub fn from_perm(perm: u16) -> Access {
        Access::from_bits_truncate((perm & 7) as u8)
    }

    /// As permission bits of others; shift for owner and group.
    pub fn perm(self) -> u16 {
        u16::from(self.bits())
    }
}

/// Whether the permission bits grant all of `want`. Only the first class that applies counts: an
/// owner may be denied what others are granted.
pub(crate) fn perm_permits(cred: &Cred, of: &Rights, want: Access) -> bool {
    let class = if cred.uid == of.uid {
        of.perm >> 6
    } else if cred.in_group(of.gid) {
        of.perm >> 3
    } else {
        of.perm
    };
    Access::from_perm(class).contains(want)
}

/// Whether privileges grant `want` although permissions do not.
#[inline]
pub(crate) fn caps_permit(cred: &Cred, kind: Kind, perm: u16, want: Access) -> bool {
    let read_only = match kind {
        Kind::Dir => !want.contains(Access::W),
        _ => want == Access::R,
    };
    if read_only && cred.has(Caps::DAC_READ_SEARCH) {
        return true;
    }
    // No privilege makes a file executable that is executable for nobody.
    let executable = kind == Kind::Dir || perm & 0o111 != 0;
    cred.has(Caps::DAC_OVERRIDE) && (executable || !want.contains(Access::X))
}

/// The sticky rule: in a directory with the bit, `EPERM` unless the caller owns the victim or
/// the directory.
pub(crate) fn check_sticky(cred: &Cred, dir: &Rights, victim: &Rights) -> Result<()> {
    let free = dir.perm & 0o1000 == 0 || cred.owns(victim.uid) || cred.owns(dir.uid);
    if free {
        Ok(())
    } else {
        Err(Errno::PERM.into())
    }
}

/// The permission bits of a file after someone changed its contents or its owner: without set-uid,
/// and without set-gid where it lends the group's rights or the caller may not set it. (Without
/// group execute, the bit means something else, and the privileged keep it.)
pub(crate) fn without_set_id(cred: &Cred, of: &Rights) -> u16 {
    let mut perm = of.perm & !0o4000;
    if perm & 0o010 != 0 || !cred.keeps_set_gid(of.gid) {
        perm &= !0o2000;
    }
    perm
}
