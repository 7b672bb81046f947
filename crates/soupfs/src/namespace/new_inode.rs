//! New inodes: making one, and discarding one that the consistent view never had.

use crate::attributes::Attributes;
use crate::dir::{Dir, PendingName};
use crate::file::File;
use crate::inode::{Body, Inode};
use crate::layout::page_at;
use crate::mount::SoupFs;
use crate::slot::Blank;
use crate::volume::Volume;
use crate::xattr::Xattrs;
use schedule::RwLock;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use triomphe::{Arc, UniqueArc};
use vfs::{Errno, Kind, NewKind, NewNode, PATH_MAX, Result, Time};

impl SoupFs {
    /// An inode that nothing refers to, in the table, and a line for an entry if it is born with
    /// names. Space is taken; an error leaves none taken.
    pub(crate) fn make_inode(
        &self,
        memory: Blank<Inode>,
        parent: u64,
        new: &NewNode<'_>,
        now: Time,
        names: &[PendingName],
    ) -> Result<(Arc<Inode>, u64)> {
        let volume = &self.shared.volume;
        let xattrs = match new.xattrs {
            [] => None,
            pairs => Some(Xattrs::fresh(volume, pairs)?),
        };
        let made = self.make_body(parent, new).and_then(|(body, size)| {
            let space = match names {
                [] => volume.alloc.inode().map(|identity| (identity, 0)),
                _ => (volume.alloc).inode_and_line(|ino| volume.inodes.expect_creation(ino)),
            };
            let (identity, line) = space.inspect_err(|_| self.drop_body(&body))?;
            let kind = new.kind.kind();
            let attributes = Attributes {
                perm: new.perm,
                nlink: if kind == Kind::Dir { 2 } else { 1 },
                uid: new.uid,
                gid: new.gid,
                size,
                pages: u64::from(kind == Kind::Symlink),
                ..Attributes::new(identity.ino, identity.generation, kind, now)
            };
            Ok((memory.fill(Inode::fresh(&attributes, body, names)), line))
        });
        match (made, xattrs) {
            (Ok((inode, line)), xattrs) => {
                if let Some(xattrs) = xattrs {
                    inode.attrs.pages.fetch_add(xattrs.pages() as i64, Relaxed);
                    inode.has_xattrs.store(true, Relaxed);
                    inode.meta.lock().make_rare().xattrs = Some(xattrs);
                }
                if let Err(e) = volume.inodes.insert(inode.clone()) {
                    // The pair is somebody else's, but nothing else is.
                    self.drop_body(&inode.body);
                    if let Some(x) = inode.meta.lock().rare().and_then(|r| r.xattrs.as_mut()) {
                        x.tear_down(volume);
                    }
                    if !names.is_empty() {
                        volume.alloc.free_line(line);
                    }
                    return Err(e);
                }
                Ok((inode, line))
            }
            (Err(e), Some(mut xattrs)) => {
                xattrs.tear_down(volume);
                Err(e)
            }
            (Err(e), None) => Err(e),
        }
    }

    fn make_body(&self, parent: u64, new: &NewNode<'_>) -> Result<(Body, u64)> {
        let volume = &self.shared.volume;
        Ok(match new.kind {
            NewKind::File => (Body::File(RwLock::new(File::fresh())), 0),
            NewKind::Dir => (Body::Dir(Dir::fresh(parent)), 0),
            NewKind::Symlink(target) => {
                if target.is_empty() {
                    return Err(Errno::NOENT.into());
                }
                if target.len() >= PATH_MAX {
                    return Err(Errno::NAMETOOLONG.into());
                }
                let page = volume.alloc.page()?;
                volume.pool.write(page_at(page), target);
                (Body::Symlink { page }, target.len() as u64)
            }
            NewKind::CharDev(rdev) | NewKind::BlockDev(rdev) => (Body::Special { rdev }, 0),
            NewKind::Fifo | NewKind::Socket => (Body::Special { rdev: 0 }, 0),
        })
    }

    fn drop_body(&self, body: &Body) {
        if let Body::Symlink { page } = body {
            self.shared.volume.alloc.free_pages(*page..page + 1);
        }
    }

    /// Free an inode that was taken out of the table while fresh, and lines: nothing on the medium
    /// leads to them.
    pub(super) fn discard(&self, mut inode: UniqueArc<Inode>, lines: &[u64]) {
        let volume = &self.shared.volume;
        match &mut inode.body {
            Body::File(file) => {
                file.get_mut().tear_down(volume);
            }
            Body::Dir(dir) => free_runs(volume, dir.take_growth().1),
            body => self.drop_body(body),
        }
        if let Some(xattrs) = (inode.meta.get_mut().rare()).and_then(|rare| rare.xattrs.as_mut()) {
            xattrs.tear_down(volume);
        }
        volume.alloc.free(Some(inode.ino), lines);
    }
}

fn free_runs(volume: &Volume, runs: Vec<Range<u64>>) {
    runs.into_iter()
        .for_each(|run| volume.alloc.free_pages(run));
}
