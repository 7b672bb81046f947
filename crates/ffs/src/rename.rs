//! Renames.

use std::sync::Arc;

use vfs::{Errno, Error, Kind, NewKind, NewNode, Place, RenameMode, Result, Veto};

use crate::dir::{self, Found, NOT_YET, NewName, Withdrawn};
use crate::fault::{Fault, injected, unless};
use crate::image::dir::{promise_of, tag_of, whiteout_of};
use crate::inode::Node;
use crate::layout::ROOT_INO;
use crate::namespace::{LINK_MAX, check_dir, drop_link};
use crate::order::Action;
use crate::order::graph::{self as order, On};
use crate::volume::Volume;

/// A rename that was checked.
struct Rename<'a> {
    from: Place<'a, Node>,
    to: Place<'a, Node>,
    moved: (Node, Found),
    target: Option<(Node, Found)>,
}

impl Volume {
    /// Moves a name, as [`vfs::FileSystem::rename`] has it.
    pub(crate) fn rename(
        self: &Arc<Volume>,
        from: Place<'_, Node>,
        to: Place<'_, Node>,
        mode: RenameMode,
        veto: Veto<'_>,
    ) -> Result<()> {
        let _names = self.names.alone();
        check_dir(from.dir)?;
        check_dir(to.dir)?;
        let moved = self.child(from.dir, from.name)?;
        let target = match self.child(to.dir, to.name) {
            Ok(found) => Some(found),
            Err(Error::Errno(Errno::NOENT)) => {
                self.may_take(to.dir, dir::hash(&self.hash_key, to.name))?;
                None
            }
            Err(error) => return Err(error),
        };
        let rename = Rename {
            from,
            to,
            moved,
            target,
        };
        if !self.check_rename(&rename, mode, veto)? {
            return Ok(());
        }
        match (mode, &rename.target) {
            (RenameMode::Exchange, Some(target)) => self.exchange(&rename, target)?,
            _ => self.replace(&rename, mode)?,
        }
        let now = self.clock.now();
        self.update(&rename.moved.0, |attributes| attributes.ctime = now)?;
        Ok(())
    }

    /// Whether it may be done, and (`false`) whether there is nothing to do.
    fn check_rename(
        self: &Arc<Volume>,
        rename: &Rename<'_>,
        mode: RenameMode,
        veto: Veto<'_>,
    ) -> Result<bool> {
        let Rename { from, to, .. } = *rename;
        let (moved, target) = (
            &rename.moved.0,
            rename.target.as_ref().map(|target| &target.0),
        );
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST.into()),
            (RenameMode::Exchange, None) => return Err(Errno::NOENT.into()),
            _ => {}
        }
        if self.is_below(to.dir, moved)? {
            return Err(Errno::INVAL.into());
        }
        if let Some(target) = target
            && self.is_below(from.dir, target)?
        {
            return Err(match mode {
                RenameMode::Exchange => Errno::INVAL,
                _ => Errno::NOTEMPTY,
            }
            .into());
        }
        if target.is_some_and(|target| target.ino == moved.ino) {
            return Ok(false);
        }
        // Before anybody is asked, who is asked once.
        let mut both = [Some(moved), target].into_iter().flatten();
        if both.any(|node| self.medium.order.is_exchanged(node.ino)) {
            return Err(NOT_YET.into());
        }
        if let (RenameMode::Exchange, Some((target, found))) = (mode, &rename.target) {
            self.may_exchange(from.dir, (moved, &rename.moved.1))?;
            self.may_exchange(to.dir, (target, found))?;
        }
        veto(&moved.state.read().attr().rights())?;
        if let Some(target) = target {
            veto(&target.state.read().attr().rights())?;
            if mode != RenameMode::Exchange {
                self.may_replace(moved, target)?;
            }
        }
        self.check_links(rename, mode)?;
        let pending = match target {
            Some(target) if target.kind == Kind::Dir => {
                dir::pending(&self.medium, &target.state.read().stored)?
            }
            _ => Vec::new(),
        };
        // What leads to the new name, and to the old one if something is to be there; and who has
        // the new one until now may have others.
        let left = (mode == RenameMode::Whiteout).then_some(from.dir.ino);
        let left = left.filter(|_| !injected(Fault::WhiteoutUnsearched));
        let others = [left, Some(to.dir.ino), target.map(|target| target.ino)];
        let others: Vec<u32> = others.into_iter().flatten().collect();
        let behind = (&*others, &*pending);
        self.may_leave(from.dir, (moved, &rename.moved.1), behind)?;
        if let Some((target, found)) = &rename.target {
            self.may_leave(to.dir, (target, found), behind)?;
        }
        Ok(true)
    }

    /// A name, which was found, may change places with another one: the disk has it, and nobody
    /// waits for it, else one of the two inodes might have no name there that the check could give
    /// to it; and what it leads to has no tag, which would go at its own time. [`NOT_YET`].
    fn may_exchange(&self, dir: &Node, (node, found): (&Node, &Found)) -> Result<()> {
        let stored = &dir.state.read().stored;
        let is_pending = dir::is_unshown(&self.medium, stored, found)?;
        let is_pending = is_pending && !injected(Fault::ExchangeUnshown);
        match is_pending || self.medium.order.tag(node.ino).is_some() {
            true => Err(NOT_YET.into()),
            false => Ok(()),
        }
    }

    fn check_links(&self, rename: &Rename<'_>, mode: RenameMode) -> Result<()> {
        let Rename { from, to, .. } = *rename;
        if from.dir.ino == to.dir.ino {
            return Ok(());
        }
        let is_dir = |node: &Node| node.kind == Kind::Dir;
        let arriving = is_dir(&rename.moved.0);
        let leaving = rename
            .target
            .as_ref()
            .is_some_and(|target| is_dir(&target.0));
        let full = |dir: &Node| dir.state.read().stored.attributes.links >= LINK_MAX;
        let back = mode == RenameMode::Exchange && leaving;
        if arriving && !leaving && full(to.dir) || back && !arriving && full(from.dir) {
            return Err(Errno::MLINK.into());
        }
        Ok(())
    }

    fn may_replace(&self, moved: &Node, target: &Node) -> Result<()> {
        match (moved.kind == Kind::Dir, target.kind == Kind::Dir) {
            (true, false) => Err(Errno::NOTDIR.into()),
            (false, true) => Err(Errno::ISDIR.into()),
            (true, true) if !self.is_empty(target)? => Err(Errno::NOTEMPTY.into()),
            _ => Ok(()),
        }
    }

    /// Whether a directory is `ancestor`, or lies below it. Damage may have made a ring.
    fn is_below(self: &Arc<Volume>, dir: &Node, ancestor: &Node) -> Result<bool> {
        if ancestor.kind != Kind::Dir {
            return Ok(false);
        }
        let mut dir = dir.clone();
        for _ in 0..self.medium.geometry.inodes {
            if dir.ino == ancestor.ino {
                return Ok(true);
            }
            if dir.ino == ROOT_INO || dir.state.read().stored.attributes.links == 0 {
                return Ok(false);
            }
            dir = self.parent(&dir)?;
        }
        let what = format_args!("directory {} lies below itself", dir.ino);
        Err(self
            .medium
            .geometry
            .damage(dir.state.read().stored.at, what))
    }

    /// Whether a directory, or one above it, may have a second name that a crash left.
    pub(crate) fn is_below_one_of_two_names(self: &Arc<Volume>, dir: &Node) -> Result<bool> {
        let mut dir = dir.clone();
        for _ in 0..self.medium.geometry.inodes {
            if dir.ino == ROOT_INO || dir.kind != Kind::Dir {
                return Ok(false);
            }
            if self.may_have_two_names(&dir)? {
                return Ok(true);
            }
            if dir.state.read().stored.attributes.links == 0 {
                return Ok(false);
            }
            dir = self.parent(&dir)?;
        }
        // Damage has made a ring, which the move finds.
        Ok(false)
    }

    /// The moved inode takes the new name; whoever had it loses it.
    fn replace(self: &Arc<Volume>, rename: &Rename<'_>, mode: RenameMode) -> Result<()> {
        let Rename { from, to, .. } = *rename;
        let (moved, old) = &rename.moved;
        let whiteout = match mode {
            RenameMode::Whiteout => Some(self.make(&WHITEOUT, from.dir.ino, 1)?),
            _ => None,
        };
        let target = rename.target.as_ref();
        let mut pending = match target {
            Some((target, _)) if target.kind == Kind::Dir => {
                dir::pending(&self.medium, &target.state.read().stored)?
            }
            _ => Vec::new(),
        };
        // For a while the disk may have both names. The one that goes then is to be one that may be
        // missing: not where another directory was, or a whiteout is to be.
        if moved.kind == Kind::Dir {
            let tag = match (target, &whiteout) {
                (Some(_), _) => tag_of(to.dir.ino, to.name),
                (None, Some(_)) => tag_of(from.dir.ino, from.name),
                (None, None) => 0,
            };
            if !injected(Fault::MoveUntagged) {
                self.medium.order.set_tag(moved.ino, tag);
            }
        }
        // Where neither may be missing, or nothing would be reached by the names that are kept, the
        // check removes the old one: it gives that to the whiteout, which has its own tag until
        // it is there.
        let is_promised = moved.kind == Kind::Dir;
        let promised = whiteout.as_ref().filter(|_| is_promised);
        let promised = promised.filter(|_| !injected(Fault::WhiteoutUntagged));
        if let Some(whiteout) = promised {
            let keeps = target.is_none();
            let tag = whiteout_of(from.dir.ino, from.name, moved.ino, keeps);
            self.medium.order.set_tag(whiteout.ino, tag);
            self.raise(whiteout)?;
            let place = [On::Place(self.medium.place(whiteout.ino)?)];
            pending.extend(unless(Fault::NameBeforeWhiteout, &place));
        }
        self.raise(moved)?;
        let comes = self.comes(moved, to.dir)?;
        // What the disk has by no name gets its new `..` before the new one, also if that is of an
        // earlier move: else it would be there with the old one alone.
        let is_new = moved.kind == Kind::Dir
            && dir::is_unshown(&self.medium, &from.dir.state.read().stored, old)?;
        let mut parent = None;
        if is_new && !injected(Fault::ParentLast) {
            // What that names is there before. It may have been made in the moved one, and wait for
            // the inode of that, which when it is removed waits for its `..`: but then the old name
            // was waited for, and the inode is removed when that is gone.
            let above = self.medium.place(to.dir.ino)?;
            let above = self
                .medium
                .order
                .is_guarded(above)
                .then_some(On::Place(above));
            let above = unless(Fault::InodeBeforeParent, above.as_slice());
            parent = self.moved_to(moved, to.dir, above)?;
            pending.push(On::Place(self.place_of_parent(moved)?));
        }
        let placed = self.place_at(to, moved, target, (comes, pending));
        let (place, replaced) = match placed {
            Ok(placed) => placed,
            Err(error) => {
                if parent.is_some() {
                    self.moved_to(moved, from.dir, &[])?;
                }
                self.arrived(moved, &[]);
                if let Some(whiteout) = promised {
                    self.untagged(whiteout, &[]);
                }
                if let Some(whiteout) = whiteout {
                    self.update(&whiteout, |attributes| attributes.links = 0)?;
                }
                return Err(error);
            }
        };
        let parent = match parent {
            Some(place) => Some(place),
            None => self.moved_to(moved, to.dir, &[On::Place(place)])?,
        };
        let after = parent.map(On::Place);
        let after = unless(Fault::OldNameBeforeParent, after.as_slice());
        let gone = self.change_dir(from.dir, |dir| match &whiteout {
            Some(whiteout) => dir.replace(old, (whiteout.ino, whiteout.kind), after),
            None => dir.remove(old, after),
        })?;
        self.arrived(moved, gone.after());
        if let Some(whiteout) = promised {
            self.untagged(whiteout, gone.after());
        }
        if let Some(place) = parent {
            self.lower(from.dir, 1, &gone.and(place))?;
        }
        match (target, replaced) {
            (Some((target, _)), Some(replaced)) => {
                if target.kind == Kind::Dir {
                    self.lower(to.dir, 1, &replaced)?;
                }
                self.drop_name(target, &replaced)
            }
            _ => Ok(()),
        }
    }

    /// The disk has the old name until conditions hold, and counts it.
    fn arrived(&self, moved: &Node, after: &[On]) {
        match moved.kind {
            Kind::Dir => self.untagged(moved, after),
            _ => self.lower_after(moved, 1, after),
        }
    }

    /// Of an inode that has a tag for the check: when conditions hold the tag goes, and the name
    /// that is counted for it.
    fn untagged(&self, node: &Node, after: &[On]) {
        let ino = node.ino;
        let tag = self.medium.order.tag(ino);
        let action = Action::Arrived { ino, tag };
        let after = unless(Fault::TagLowered, after);
        // Without an order there are no tags.
        let _ = self.medium.order.after(&self.medium.cache, action, after);
    }

    /// Whether a directory is moved to another one than it was in.
    fn comes(&self, moved: &Node, dir: &Node) -> Result<bool> {
        Ok(moved.kind == Kind::Dir && self.find(moved, b"..")?.ino != dir.ino)
    }

    /// Lets a name lead to an inode, which `comes` from elsewhere if it is a directory: where, and
    /// the entry that named the target before.
    fn place_at(
        &self,
        to: Place<'_, Node>,
        moved: &Node,
        target: Option<&(Node, Found)>,
        (comes, pending): (bool, Vec<On>),
    ) -> Result<(order::Place, Option<Withdrawn>)> {
        self.change_dir(to.dir, |dir| {
            let mut after = self.count_child(dir, comes)?;
            if moved.kind == Kind::Dir && !comes {
                // It is counted, perhaps in memory alone.
                let count = [On::Place(self.medium.place(dir.inode.ino)?)];
                after.extend(unless(Fault::NameBeforeOldCount, &count));
            }
            after.extend(pending);
            let done = match target {
                Some((_, found)) => dir
                    .replace(found, (moved.ino, moved.kind), &after)
                    .map(|replaced| (replaced.place, Some(replaced))),
                None => {
                    let new = NewName {
                        name: to.name,
                        hash: dir::hash(&self.hash_key, to.name),
                        ino: moved.ino,
                        kind: moved.kind,
                    };
                    dir.insert(new, &after).map(|place| (place, None))
                }
            };
            if done.is_err() && comes {
                drop_link(&mut dir.inode.attributes);
            }
            done
        })
    }

    /// Two names change places. The disk has `to` lead to the moved inode first, which has both
    /// names then, and the target none; and `from` lead to the target second. Tags say so before:
    /// the moved inode's which name it is to have, the target's which one it is promised. So the
    /// check does the second step if the first one was done.
    fn exchange(self: &Arc<Volume>, rename: &Rename<'_>, target: &(Node, Found)) -> Result<()> {
        let Rename { from, to, .. } = *rename;
        let (moved, other) = (&rename.moved.0, &target.0);
        self.medium.order.exchange(
            (moved.ino, tag_of(to.dir.ino, to.name)),
            (other.ino, promise_of(from.dir.ino, from.name)),
        );
        self.raise(moved)?;
        self.raise(other)?;
        let (leaves, returns) = (self.comes(moved, to.dir)?, self.comes(other, from.dir)?);
        let promise = [On::Place(self.medium.place(other.ino)?)];
        let mut promise = unless(Fault::NameBeforePromise, &promise).to_vec();
        // The check, too, takes the old name away: it goes behind the others that are to come.
        let others = self.medium.order.names_to_come(moved.ino);
        promise.extend(unless(Fault::ExchangeBeforeNames, &others));
        if returns {
            // The check, too, lets the target's `..` name that directory.
            promise.extend(self.change_dir(from.dir, |dir| self.count_child(dir, true))?);
        }
        let (place, replaced) = self.place_at(to, moved, Some(target), (leaves, promise))?;
        let arrived = On::Place(place);
        let parent = self.moved_to(moved, to.dir, &[arrived])?;
        // Nobody finds the target now: its `..` is right before it has a name.
        let others_parent = self.moved_to(other, from.dir, &[arrived])?;
        let parents = [parent, others_parent].into_iter().flatten();
        let parents: Vec<On> = parents.map(On::Place).collect();
        let parents = unless(Fault::OldNameBeforeParent, &parents).to_vec();
        let (place, gone) = self.place_at(from, other, Some(&rename.moved), (false, parents))?;
        let (replaced, gone) = replaced.zip(gone).expect("both names were there");
        self.untagged(moved, gone.after());
        self.untagged(other, replaced.and(place).after());
        if let Some(parent) = parent {
            self.lower(from.dir, 1, &gone.and(parent))?;
        }
        if let Some(parent) = others_parent {
            self.lower(to.dir, 1, &replaced.and(parent))?;
        }
        let now = self.clock.now();
        self.update(other, |attributes| attributes.ctime = now)?;
        Ok(())
    }

    /// The disk may have one more name of an inode than callers see.
    fn raise(&self, node: &Node) -> Result<()> {
        if injected(Fault::RaiseForgotten) {
            return Ok(());
        }
        self.medium.order.raise(node.ino, 1);
        self.store(&node.state.read().stored)
    }

    /// Where a directory says which one is above it.
    fn place_of_parent(&self, dir: &Node) -> Result<order::Place> {
        let found = self.find(dir, b"..")?;
        dir::place_of(&self.medium, &dir.state.read().stored, &found)
    }

    /// An inode has an entry in another directory, which one that is a directory itself has to say,
    /// behind something: where it says so.
    fn moved_to(&self, moved: &Node, dir: &Node, after: &[On]) -> Result<Option<order::Place>> {
        if moved.kind != Kind::Dir {
            return Ok(None);
        }
        let found = self.find(moved, b"..")?;
        if found.ino == dir.ino {
            return Ok(None);
        }
        // Its own times stay.
        let times = {
            let state = moved.state.read();
            let attributes = &state.stored.attributes;
            (attributes.mtime, attributes.ctime)
        };
        let parent = self.change_dir(moved, |moved| {
            moved.move_to(&found, dir.ino, unless(Fault::ParentFirst, after))
        })?;
        self.update(moved, |attributes| {
            (attributes.mtime, attributes.ctime) = times
        })?;
        Ok(Some(parent))
    }
}

/// What a rename leaves behind if it is asked to.
const WHITEOUT: NewNode<'static> = NewNode {
    kind: NewKind::CharDev(0),
    perm: 0,
    uid: 0,
    gid: 0,
    xattrs: &[],
};
