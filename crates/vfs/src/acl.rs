//! POSIX access control lists, as acl(5) describes them, and their form in extended attributes.
//!
//! The attribute holds a version word (2), then entries of tag, permissions and id, little-endian,
//! in the order: owner, named users, owning group, named groups, mask, others.

use crate::{Access, Cred, Errno, Result, Rights};

/// The attribute that holds a file's own list.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute that holds what a directory hands down to what is made in it.
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;
const NO_ID: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// An access control list. There is a mask whenever there are named users or groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    /// What the owner may do.
    pub owner: Access,
    /// What certain users may do, within the mask.
    pub users: Vec<(u32, Access)>,
    /// What the owning group may do, within the mask.
    pub group: Access,
    /// What certain groups may do, within the mask.
    pub groups: Vec<(u32, Access)>,
    /// The most that anyone but the owner and others may do.
    pub mask: Option<Access>,
    /// What everyone else may do.
    pub other: Access,
}

impl Acl {
    /// The list that says the same as the permission bits `perm`.
    pub fn from_perm(perm: u16) -> Acl {
        Acl {
            owner: Access::from_perm(perm >> 6),
            users: Vec::new(),
            group: Access::from_perm(perm >> 3),
            groups: Vec::new(),
            mask: None,
            other: Access::from_perm(perm),
        }
    }

    /// Reads the attribute's form. `None` is a list without entries, which means: no list.
    ///
    /// `EOPNOTSUPP` for another version; `EINVAL` when entries are out of order, missing, doubled
    /// or malformed.
    pub fn parse(value: &[u8]) -> Result<Option<Acl>> {
        let Some((version, entries)) = value.split_first_chunk::<4>() else {
            return if value.is_empty() {
                Ok(None)
            } else {
                Err(Errno::INVAL.into())
            };
        };
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::OPNOTSUPP.into());
        }
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err(Errno::INVAL.into());
        }
        if entries.is_empty() {
            return Ok(None);
        }
        Parser::default()
            .parse(entries)
            .map(Some)
            .ok_or(Errno::INVAL.into())
    }

    /// The attribute's form.
    pub fn to_xattr(&self) -> Vec<u8> {
        let count = 4 + self.users.len() + self.groups.len();
        let mut out = Vec::with_capacity(4 + ENTRY_BYTES * count);
        out.extend(VERSION.to_le_bytes());
        let mut put = |tag: u16, access: Access, id: u32| {
            out.extend(tag.to_le_bytes());
            out.extend(u16::from(access.bits()).to_le_bytes());
            out.extend(id.to_le_bytes());
        };
        put(USER_OBJ, self.owner, NO_ID);
        self.users
            .iter()
            .for_each(|&(id, access)| put(USER, access, id));
        put(GROUP_OBJ, self.group, NO_ID);
        self.groups
            .iter()
            .for_each(|&(id, access)| put(GROUP, access, id));
        self.mask.iter().for_each(|&mask| put(MASK, mask, NO_ID));
        put(OTHER, self.other, NO_ID);
        out
    }

    /// Whether permission bits alone say as much.
    pub fn is_minimal(&self) -> bool {
        self.mask.is_none() && self.users.is_empty() && self.groups.is_empty()
    }

    /// The nine permission bits to show for it: the group's are those of the mask.
    pub fn perm(&self) -> u16 {
        let class = self.mask.unwrap_or(self.group);
        self.owner.perm() << 6 | class.perm() << 3 | self.other.perm()
    }

    /// What `chmod` does to it: owner, mask (or group, without one) and others follow `perm`.
    pub fn chmod(&mut self, perm: u16) {
        self.owner = Access::from_perm(perm >> 6);
        *self.mask.as_mut().unwrap_or(&mut self.group) = Access::from_perm(perm >> 3);
        self.other = Access::from_perm(perm);
    }

    /// Applies a default list to something made with `perm`: what the maker did not ask for is not
    /// given. Returns the permission bits it then has, set-id and sticky bits kept.
    pub fn inherit(&mut self, perm: u16) -> u16 {
        let allowed = perm & self.perm();
        self.chmod(allowed);
        perm & !0o777 | allowed
    }

    /// Whether it grants all of `want` on a file of this owner and group.
    pub fn permits(&self, cred: &Cred, of: &Rights, want: Access) -> bool {
        if cred.uid == of.uid {
            return self.owner.contains(want);
        }
        let mask = self.mask.unwrap_or(Access::all());
        if let Some((_, access)) = self.users.iter().find(|&&(id, _)| id == cred.uid) {
            return (*access & mask).contains(want);
        }
        let own = cred.in_group(of.gid).then_some(self.group);
        let named = self
            .groups
            .iter()
            .filter(|&&(id, _)| cred.in_group(id))
            .map(|&(_, a)| a);
        let mut grants = own.into_iter().chain(named).peekable();
        if grants.peek().is_none() {
            return self.other.contains(want);
        }
        // One entry must grant it all; several are not added up.
        grants.any(|access| (access & mask).contains(want))
    }
}

/// Takes entries in and sees to their order.
#[derive(Default)]
struct Parser {
    owner: Option<Access>,
    users: Vec<(u32, Access)>,
    group: Option<Access>,
    groups: Vec<(u32, Access)>,
    mask: Option<Access>,
    other: Option<Access>,
}

impl Parser {
    fn parse(mut self, entries: &[[u8; ENTRY_BYTES]]) -> Option<Acl> {
        let mut last_tag = 0;
        for &[t0, t1, p0, p1, i0, i1, i2, i3] in entries {
            let tag = u16::from_le_bytes([t0, t1]);
            let access = Access::from_bits(u8::try_from(u16::from_le_bytes([p0, p1])).ok()?)?;
            let repeatable = tag == USER || tag == GROUP;
            // Tags grow in the order that entries must have.
            if tag < last_tag || (tag == last_tag && !repeatable) {
                return None;
            }
            last_tag = tag;
            self.put(tag, access, u32::from_le_bytes([i0, i1, i2, i3]))?;
        }
        let named = !self.users.is_empty() || !self.groups.is_empty();
        if named && self.mask.is_none() {
            return None;
        }
        Some(Acl {
            owner: self.owner?,
            users: self.users,
            group: self.group?,
            groups: self.groups,
            mask: self.mask,
            other: self.other?,
        })
    }

    fn put(&mut self, tag: u16, access: Access, id: u32) -> Option<()> {
        match tag {
            USER_OBJ => self.owner = Some(access),
            USER => self.users.push(((id != NO_ID).then_some(id)?, access)),
            GROUP_OBJ => self.group = Some(access),
            GROUP => self.groups.push(((id != NO_ID).then_some(id)?, access)),
            MASK => self.mask = Some(access),
            OTHER => self.other = Some(access),
            _ => return None,
        }
        Some(())
    }
}
