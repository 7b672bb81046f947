//! On whose behalf an operation is done.

use std::sync::Arc;

use bitflags::bitflags;

bitflags! {
    /// Privileges that lift a check each, as capabilities(7) names them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Caps: u8 {
        /// Give files away, to any owner and group.
        const CHOWN = 1;
        /// Read, write, search; execute what anyone may execute.
        const DAC_OVERRIDE = 1 << 1;
        /// Read anything, search any directory.
        const DAC_READ_SEARCH = 1 << 2;
        /// Do what only the owner may.
        const FOWNER = 1 << 3;
        /// Keep set-id bits where others lose them.
        const FSETID = 1 << 4;
        /// Make device nodes.
        const MKNOD = 1 << 5;
        /// Use `trusted.*` attributes and set `security.*` ones.
        const SYS_ADMIN = 1 << 6;
    }
}

/// On whose behalf an operation is done: user, groups and privileges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cred {
    /// User.
    pub uid: u32,
    /// Group; what is made belongs to it.
    pub gid: u32,
    /// Further groups.
    pub groups: Arc<[u32]>,
    /// Privileges.
    pub caps: Caps,
    /// Whether the kernel has taken file capabilities (`security.capability`) away where contents
    /// change. What it hands over later, from its page cache, must not take those set meanwhile.
    pub capabilities_done: bool,
}

impl Cred {
    /// A user with these groups; user 0 has all privileges, others have none.
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        let caps = if uid == 0 { Caps::all() } else { Caps::empty() };
        Cred {
            uid,
            gid,
            groups: groups.into(),
            caps,
            capabilities_done: false,
        }
    }

    /// The superuser.
    pub fn root() -> Cred {
        Cred::new(0, 0, &[])
    }

    /// A caller whose rights the kernel has checked already (a FUSE mount with
    /// `default_permissions`): nothing is refused, but what is made belongs to `uid` and `gid`,
    /// and set-gid directories and default ACLs have their effect.
    ///
    /// The kernel takes file capabilities away itself, and decides who keeps set-id bits. Where it
    /// says that they must go (`FUSE_WRITE_KILL_SUIDGID` and its like), remove [`Caps::FSETID`]
    /// from `caps`.
    pub fn checked_by_kernel(uid: u32, gid: u32) -> Cred {
        // Callers without supplementary groups share one empty list: nothing is allocated.
        Cred {
            uid,
            gid,
            groups: Arc::default(),
            caps: Caps::all(),
            capabilities_done: true,
        }
    }

    /// Whether it has all of these privileges.
    pub fn has(&self, caps: Caps) -> bool {
        self.caps.contains(caps)
    }

    /// Whether it belongs to the group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether it may do what only the owner of a file may.
    pub fn owns(&self, uid: u32) -> bool {
        self.uid == uid || self.has(Caps::FOWNER)
    }

    /// Whether a set-gid bit survives on a file of this group when the caller changes it.
    pub fn keeps_set_gid(&self, gid: u32) -> bool {
        self.has(Caps::FSETID) || self.in_group(gid)
    }
}
