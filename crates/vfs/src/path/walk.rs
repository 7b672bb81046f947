//! Walking along a path.

use std::borrow::Cow;
use std::cell::Ref;

use memchr::memchr;

use super::files::Context;
use crate::{Errno, FileSystem, Kind, PATH_MAX, Result, Vfs};

/// Most symbolic links that one walk follows.
const LINKS_MAX: u32 = 40;

/// A walk along a path: how far it got, and what is left of the path.
///
/// Call [`Walk::reach_parent`], then act on [`Walk::name`] in [`Walk::dir`]; or, should that be a
/// symbolic link, [`Walk::follow`] it and go on. [`Walk::into_node`] does all of it.
pub(super) struct Walk<'a, F: FileSystem> {
    vfs: &'a Vfs<F>,
    ctx: &'a Context<F>,
    dir: Place<'a, F::Node>,
    /// The path, or what it became when a link in it was replaced by its target.
    path: Cow<'a, [u8]>,
    /// How much of `path` is done with.
    at: usize,
    /// What is left of the path is known to be one name.
    at_last: bool,
    links: u32,
    /// The layout's version when the walk began, while it is one that can be noted.
    version: Option<u64>,
}

/// Where a walk is. In the common cases no reference is counted.
enum Place<'a, N> {
    Start(&'a N),
    /// Where a walk before this one was.
    Known(Ref<'a, N>),
    Reached(N),
}

/// The last component of a path.
#[derive(Clone, Copy)]
pub(super) struct Last {
    start: usize,
    end: usize,
    /// Whether a slash follows: it has to be a directory.
    pub(super) slash: bool,
}

impl<'a, F: FileSystem> Walk<'a, F> {
    /// From the working directory, or the root if the path starts with a slash. `ENOENT` for an
    /// empty path, `ENAMETOOLONG` for one too long.
    #[inline(always)] // or a walk is copied from function to function
    pub(super) fn new(vfs: &'a Vfs<F>, ctx: &'a Context<F>, path: &'a [u8]) -> Result<Walk<'a, F>> {
        let start = if path.starts_with(b"/") {
            &ctx.root
        } else {
            &ctx.cwd
        };
        let mut walk = Walk::start(vfs, ctx, Place::Start(start), path)?;
        // Names are too short for a search by vectors to pay.
        match path.iter().rposition(|&byte| byte == b'/') {
            None => walk.at_last = true,
            Some(slash) if slash > 0 && slash + 1 < path.len() => walk.recall(start, slash + 1),
            Some(_) => {}
        }
        Ok(walk)
    }

    /// Goes on where an earlier walk from here has been, if one went the same way to the last name,
    /// which starts at `last`.
    fn recall(&mut self, start: &F::Node, last: usize) {
        let (ctx, fs, layout) = (self.ctx, self.vfs.fs(), self.vfs.layout());
        let known = &self.path[..last];
        match ctx.trails.find(fs, layout, &ctx.cred, fs.ino(start), known) {
            Some(dir) => (self.dir, self.at, self.at_last) = (Place::Known(dir), last, true),
            None => self.version = layout.version(),
        }
    }

    /// From this directory.
    pub(super) fn from_node(
        vfs: &'a Vfs<F>,
        ctx: &'a Context<F>,
        dir: F::Node,
        path: &'a [u8],
    ) -> Result<Walk<'a, F>> {
        Walk::start(vfs, ctx, Place::Reached(dir), path)
    }

    #[inline(always)]
    fn start(
        vfs: &'a Vfs<F>,
        ctx: &'a Context<F>,
        dir: Place<'a, F::Node>,
        path: &'a [u8],
    ) -> Result<Walk<'a, F>> {
        match path.len() {
            0 => Err(Errno::NOENT.into()),
            1..PATH_MAX => Ok(Walk {
                vfs,
                ctx,
                dir,
                path: Cow::Borrowed(path),
                at: 0,
                at_last: false,
                links: 0,
                version: None,
            }),
            _ => Err(Errno::NAMETOOLONG.into()),
        }
    }

    /// The directory reached: always one, provided that the walk started in one.
    pub(super) fn dir(&self) -> &F::Node {
        match &self.dir {
            Place::Start(node) => node,
            Place::Known(node) => node,
            Place::Reached(node) => node,
        }
    }

    /// The name of the last component; `.` for a path of slashes only.
    pub(super) fn name(&self, last: Last) -> &[u8] {
        if last.start == last.end {
            b"."
        } else {
            &self.path[last.start..last.end]
        }
    }

    /// Walks all components but the last.
    #[inline]
    pub(super) fn reach_parent(&mut self) -> Result<Last> {
        if std::mem::take(&mut self.at_last) {
            let (start, end) = (self.at, self.path.len());
            return self.reached(start, end, false);
        }
        self.step_to_parent()
    }

    #[inline(never)]
    fn step_to_parent(&mut self) -> Result<Last> {
        loop {
            let start = self.skip_slashes(self.at);
            let end = memchr(b'/', &self.path[start..]).map_or(self.path.len(), |n| start + n);
            let next = self.skip_slashes(end);
            if next == self.path.len() {
                self.note(start);
                return self.reached(start, end, next > end);
            }
            self.at = next;
            self.step(start, end)?;
        }
    }

    fn reached(&self, start: usize, end: usize, slash: bool) -> Result<Last> {
        if matches!(&self.path[start..end], b"" | b"." | b"..") {
            // What acts on other names finds out by itself.
            self.check_here()?;
        }
        Ok(Last { start, end, slash })
    }

    /// The inode of the last component.
    pub(super) fn lookup(&self, last: Last) -> Result<F::Node> {
        let name = self.name(last);
        if name == b".." && self.is_at_root() {
            return self.vfs.lookup(&self.ctx.cred, self.dir(), b".");
        }
        self.vfs.lookup(&self.ctx.cred, self.dir(), name)
    }

    /// Replaces the last component, a symbolic link, by its target. `ELOOP` when it has been too
    /// many.
    pub(super) fn follow(&mut self, link: &F::Node, last: Last) -> Result<()> {
        self.splice(link, last.end)
    }

    /// Walks to the end, past a symbolic link there only if `follow`, or if a slash comes after it.
    pub(super) fn into_node(mut self, follow: bool) -> Result<F::Node> {
        loop {
            let last = self.reach_parent()?;
            let node = self.lookup(last)?;
            if !follow && !last.slash {
                return Ok(node);
            }
            match self.vfs.fs().kind(&node) {
                Kind::Symlink => self.follow(&node, last)?,
                Kind::Dir => return Ok(node),
                _ if last.slash => return Err(Errno::NOTDIR.into()),
                _ => return Ok(node),
            }
        }
    }

    /// Goes through the component `start..end`.
    fn step(&mut self, start: usize, end: usize) -> Result<()> {
        let vfs = self.vfs;
        let cred = &self.ctx.cred;
        if &self.path[start..end] == b".." {
            self.version = None;
        }
        let node = match &self.path[start..end] {
            b"." => return self.check_here(),
            b".." if self.is_at_root() => return self.check_here(),
            name => vfs.lookup(cred, self.dir(), name)?,
        };
        match vfs.fs().kind(&node) {
            Kind::Dir => self.dir = Place::Reached(node),
            Kind::Symlink => return self.splice(&node, end),
            _ => return Err(Errno::NOTDIR.into()),
        }
        Ok(())
    }

    /// What looking up `.` checks, given that this is a directory.
    pub(super) fn check_here(&self) -> Result<()> {
        self.vfs.check_search(&self.ctx.cred, self.dir())
    }

    fn is_at_root(&self) -> bool {
        let fs = self.vfs.fs();
        fs.ino(self.dir()) == fs.ino(&self.ctx.root)
    }

    /// Makes the link's target, and what came after the link, the path to walk.
    fn splice(&mut self, link: &F::Node, end: usize) -> Result<()> {
        self.links += 1;
        self.version = None;
        if self.links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        let mut path = self.vfs.readlink(link)?;
        if path.is_empty() {
            return Err(Errno::NOENT.into());
        }
        path.extend_from_slice(&self.path[end..]);
        if path[0] == b'/' {
            self.dir = Place::Start(&self.ctx.root);
        }
        self.path = Cow::Owned(path);
        self.at = 0;
        Ok(())
    }

    /// Notes the way to the last name, which starts at `start`, for the next walk.
    fn note(&mut self, start: usize) {
        if let (Some(version), Place::Reached(dir)) = (self.version.take(), &self.dir) {
            let from = match self.path[0] {
                b'/' => &self.ctx.root,
                _ => &self.ctx.cwd,
            };
            let from = self.vfs.fs().ino(from);
            let (ctx, path) = (self.ctx, &self.path[..start]);
            ctx.trails.note(&ctx.cred, from, path, version, dir);
        }
    }

    /// The first place from `at` on that is no slash.
    fn skip_slashes(&self, at: usize) -> usize {
        let rest = self.path[at..].iter();
        at + rest.take_while(|&&byte| byte == b'/').count()
    }
}
