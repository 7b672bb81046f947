//! Changes of attributes and extended attributes that belong together.

use crate::{SetAttr, XattrMode};

/// One extended attribute set or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XattrChange<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its value; `None`: it is removed.
    pub value: Option<&'a [u8]>,
    /// What has to be there before. Removing with [`XattrMode::Any`] what is not there is a
    /// success.
    pub mode: XattrMode,
}

impl<'a> XattrChange<'a> {
    /// Sets an attribute, new or not.
    pub const fn set(name: &'a [u8], value: &'a [u8]) -> XattrChange<'a> {
        XattrChange {
            name,
            value: Some(value),
            mode: XattrMode::Any,
        }
    }

    /// Removes an attribute if it is there.
    pub const fn remove(name: &'a [u8]) -> XattrChange<'a> {
        XattrChange {
            name,
            value: None,
            mode: XattrMode::Any,
        }
    }
}

/// What one request changes of an inode besides its contents: callers, and crashes, find all of it
/// or nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Change<'a> {
    /// Attributes.
    pub set: SetAttr,
    /// Extended attributes, one after the other.
    pub xattrs: &'a [XattrChange<'a>],
}

impl Change<'_> {
    /// Whether it leaves everything as it is.
    pub fn is_empty(&self) -> bool {
        self.xattrs.is_empty() && self.set == SetAttr::default()
    }
}
