//! One inode: attributes, and what its kind adds.

use std::collections::BTreeMap;

use vfs::{Attr, COOKIE_FIRST, Errno, Ino, Kind, NewKind, NewNode, Result, Time};

use crate::contents::{BLOCK, Contents};

#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) body: Body,
    pub(crate) perm: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Names that refer to it; a directory counts 2 and its subdirectories, 0 once removed.
    pub(crate) nlink: u32,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) btime: Time,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// References that callers hold; they keep an inode without names alive.
    pub(crate) held: u64,
    /// Made without a name (`O_TMPFILE`) and not named since: only then may a name be given to
    /// an inode that has none.
    pub(crate) nameless: bool,
}

#[derive(Debug)]
pub(crate) enum Body {
    File(Contents),
    Dir(Dir),
    Symlink(Vec<u8>),
    Fifo,
    Socket,
    CharDev(u32),
    BlockDev(u32),
}

/// A directory's names, found by name and, for `readdir`, by cookie.
///
/// A cookie is given to a name once, when the name appears, and grows: a name that changes its
/// inode (rename over it, exchange) keeps its cookie, so a reader meets it exactly once.
#[derive(Debug)]
pub(crate) struct Dir {
    pub(crate) parent: Ino,
    names: BTreeMap<Vec<u8>, Entry>,
    order: BTreeMap<u64, Vec<u8>>,
    next_cookie: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    ino: Ino,
    cookie: u64,
}

impl Dir {
    pub(crate) fn new(parent: Ino) -> Dir {
        Dir {
            parent,
            names: BTreeMap::new(),
            order: BTreeMap::new(),
            next_cookie: COOKIE_FIRST,
        }
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<Ino> {
        self.names.get(name).map(|entry| entry.ino)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Let `name` refer to `ino`, whether it existed before or not.
    pub(crate) fn set(&mut self, name: &[u8], ino: Ino) {
        if let Some(entry) = self.names.get_mut(name) {
            entry.ino = ino;
            return;
        }
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.names.insert(name.to_vec(), Entry { ino, cookie });
        self.order.insert(cookie, name.to_vec());
    }

    pub(crate) fn remove(&mut self, name: &[u8]) {
        if let Some(entry) = self.names.remove(name) {
            self.order.remove(&entry.cookie);
        }
    }

    /// Cookie, name and inode of all entries after `cookie`, in the order of their cookies.
    pub(crate) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &Vec<u8>, Ino)> {
        let from = cookie.saturating_add(1);
        self.order
            .range(from..)
            .map(|(&cookie, name)| (cookie, name, self.names[name].ino))
    }
}

impl Inode {
    /// A new inode without names; `parent` is kept only by a directory.
    pub(crate) fn new(new: &NewNode<'_>, parent: Ino, now: Time) -> Inode {
        let body = match new.kind {
            NewKind::File => Body::File(Contents::default()),
            NewKind::Dir => Body::Dir(Dir::new(parent)),
            NewKind::Symlink(target) => Body::Symlink(target.to_vec()),
            NewKind::Fifo => Body::Fifo,
            NewKind::Socket => Body::Socket,
            NewKind::CharDev(rdev) => Body::CharDev(rdev),
            NewKind::BlockDev(rdev) => Body::BlockDev(rdev),
        };
        Inode {
            body,
            perm: new.perm & 0o7777,
            uid: new.uid,
            gid: new.gid,
            nlink: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            xattrs: new
                .xattrs
                .iter()
                .map(|(n, v)| (n.to_vec(), v.to_vec()))
                .collect(),
            held: 0,
            nameless: false,
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self.body {
            Body::File(_) => Kind::File,
            Body::Dir(_) => Kind::Dir,
            Body::Symlink(_) => Kind::Symlink,
            Body::Fifo => Kind::Fifo,
            Body::Socket => Kind::Socket,
            Body::CharDev(_) => Kind::CharDev,
            Body::BlockDev(_) => Kind::BlockDev,
        }
    }

    pub(crate) fn attr(&self, ino: Ino) -> Attr {
        let (size, blocks, rdev) = match &self.body {
            Body::File(contents) => (contents.size(), contents.blocks() * (BLOCK / 512), 0),
            Body::Dir(_) => (BLOCK, 0, 0),
            Body::Symlink(target) => (target.len() as u64, 0, 0),
            Body::Fifo | Body::Socket => (0, 0, 0),
            Body::CharDev(rdev) | Body::BlockDev(rdev) => (0, 0, *rdev),
        };
        Attr {
            ino,
            generation: 0,
            kind: self.kind(),
            perm: self.perm,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev,
            size,
            blocks,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            has_xattrs: !self.xattrs.is_empty(),
        }
    }

    /// The directory; `ENOTDIR` for anything else, `ENOENT` for one that was removed.
    pub(crate) fn dir(&self) -> Result<&Dir> {
        match &self.body {
            Body::Dir(_) if self.nlink == 0 => Err(Errno::NOENT.into()),
            Body::Dir(dir) => Ok(dir),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    /// As [`Inode::dir`], to change it.
    pub(crate) fn dir_mut(&mut self) -> Result<&mut Dir> {
        match &mut self.body {
            Body::Dir(_) if self.nlink == 0 => Err(Errno::NOENT.into()),
            Body::Dir(dir) => Ok(dir),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    /// The contents; `EISDIR` for a directory, `EINVAL` for what else is no regular file.
    pub(crate) fn file(&self) -> Result<&Contents> {
        match &self.body {
            Body::File(contents) => Ok(contents),
            Body::Dir(_) => Err(Errno::ISDIR.into()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// As [`Inode::file`], to change them.
    pub(crate) fn file_mut(&mut self) -> Result<&mut Contents> {
        match &mut self.body {
            Body::File(contents) => Ok(contents),
            Body::Dir(_) => Err(Errno::ISDIR.into()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// The contents changed.
    pub(crate) fn modified(&mut self, now: Time) {
        self.mtime = now;
        self.ctime = now;
    }
}
