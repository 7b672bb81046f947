//! An inode in a batch, as it was captured: what the consistent view has of it, and what it will
//! have.
//!
//! Building brings its contents into the consistent view ([`crate::commit::contents`]), settling
//! tells DRAM ([`crate::commit::settle`]).

use crate::attributes::Attributes;
use crate::commit::notes::INODE_WORDS;
use crate::fault::{Fault, injected};
use crate::file::{Extent, FileCapture, Mapping};
use crate::inode::{Body, Inode};
use crate::layout::index;
use crate::volume::Volume;
use crate::xattr::XattrCapture;
use std::ops::Range;
use triomphe::Arc;
use vfs::{Kind, Result};

/// Journal words of an inode that loses its last name: mode, root, extended attributes.
const GONE_WORDS: u64 = 3;

/// An inode in a batch.
pub struct Member {
    /// The inode.
    pub inode: Arc<Inode>,
    /// The consistent view does not hold it yet.
    pub fresh: bool,
    /// What the consistent view is to have: what it has, with the latest of what callers set since
    /// the capture, and with names and contents as the batch is built.
    pub consistent: Attributes,
    /// Names in the consistent view, those of this batch included.
    pub names: i64,
    /// This batch removes the last of them.
    pub lost_all: bool,
    /// It had no name in the latest view when it was captured.
    nameless: bool,
    /// A directory that this batch removes.
    pub doomed: bool,
    // Boxed, as few inodes have any: a batch may have many members.
    pub(super) file: Option<Box<FileCapture>>,
    pub(super) xattrs: Option<Box<XattrCapture>>,
    /// Pages set aside for the table and not used, once it has grown.
    pub(super) growth: Option<Vec<Range<u64>>>,
}

/// What of an inode's contents is captured together with its attributes.
struct Contents {
    xattrs: Option<XattrCapture>,
    file: Option<FileCapture>,
}

/// Take what is pending of an inode's contents, and bring `attributes` up to date as they are at
/// the same time.
fn snapshot(inode: &Inode, attributes: &mut Attributes) -> Contents {
    let mut body = match &inode.body {
        Body::File(file) => Some(file.write()),
        _ => None,
    };
    // Those who map, cut or replace hold one of these two locks, so the count of pages is that of
    // what is captured.
    let mut meta = inode.meta.lock();
    inode.attrs.update(attributes);
    Contents {
        xattrs: meta.rare().and_then(|rare| rare.xattrs.as_mut()?.capture()),
        file: body.as_mut().and_then(|file| file.capture()),
    }
}

impl Member {
    /// Take a snapshot of an inode's attributes and its pending contents.
    pub fn capture(volume: &Volume, inode: &Arc<Inode>) -> Result<Member> {
        let fresh = !inode.is_published();
        let is_dir = inode.kind == Kind::Dir;
        let mut consistent = match fresh {
            false => volume.image().inode(inode.ino)?,
            true => Attributes {
                nlink: if is_dir { 2 } else { 0 },
                ..inode.attributes()
            },
        };
        consistent.pages = consistent.sane_pages();
        let Contents { xattrs, file } = snapshot(inode, &mut consistent);
        Ok(Member {
            fresh,
            xattrs: xattrs.map(Box::new),
            file: file.map(Box::new),
            growth: None,
            names: if is_dir {
                i64::from(!fresh)
            } else {
                i64::from(consistent.nlink)
            },
            lost_all: false,
            nameless: inode.nlink() == 0,
            doomed: false,
            consistent,
            inode: inode.clone(),
        })
    }

    /// An operation captured after the inode was may have changed it: take it again, as a whole.
    /// What changed it meanwhile need not be that operation, so attributes alone could show half of
    /// another.
    pub fn refresh(&mut self, volume: &Volume) {
        self.nameless = self.inode.nlink() == 0;
        let later = snapshot(&self.inode, &mut self.consistent);
        if injected(Fault::RefreshAlone) {
            return;
        }
        match (&mut self.xattrs, later.xattrs) {
            (Some(earlier), Some(later)) => earlier.replace(volume, later),
            (none, Some(later)) => *none = Some(Box::new(later)),
            (_, None) => {}
        }
        match (&mut self.file, later.file) {
            (Some(earlier), Some(later)) => earlier.append(later),
            (none, Some(later)) => *none = Some(Box::new(later)),
            (_, None) => {}
        }
    }

    /// Blocks of a file that were mapped: a word of the journal was noted for each.
    pub fn blocks(&self) -> u64 {
        self.extents(|extent| match extent.to {
            Mapping::Pages { .. } => extent.len,
            Mapping::Hole => 0,
        })
    }

    /// Words of the journal that it may take besides: its own, which are private if it is new and
    /// few if it goes, and those that cut holes. Of these whole subtrees are cut by one.
    pub fn words(&self) -> u64 {
        let cut = self.extents(|extent| match extent.to {
            Mapping::Pages { .. } => 0,
            Mapping::Hole => extent.len.min(index::FANOUT),
        });
        match (self.fresh, self.nameless) {
            (true, _) => self.logged(),
            (false, true) => GONE_WORDS + cut + self.logged(),
            (false, false) => INODE_WORDS + cut + self.logged(),
        }
    }

    /// Words that as much of a record would be as the bytes take which it stores.
    fn logged(&self) -> u64 {
        let ranges = self.file.iter().flat_map(|file| &file.logged);
        ranges.map(|(_, bytes)| bytes.len() as u64 / 16 + 2).sum()
    }

    fn extents(&self, words: impl Fn(&Extent) -> u64) -> u64 {
        let extents = self.file.iter().flat_map(|file| &file.extents);
        extents.map(|(_, extent)| words(extent)).sum()
    }
}
