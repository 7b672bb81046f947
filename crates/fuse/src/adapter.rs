//! What every request needs: the way in and out, the inodes, the entries of replies.
//!
//! A request goes: count it, pass the gate, find the node in the inode table, call the VFS, reply.
//! `requests` has them one by one.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fuser::{Generation, INodeNo, Notifier};
use vfs::{Attr, Cred, Errno, Error, FileSystem, Kind, NewKind, NewNodeRequest, Result, Vfs};

use crate::convert::{self, Answer, FileAttr};
use crate::crew::Crew;
use crate::follow::{Client, Follower};
use crate::gate::Gate;
use crate::monitor::{Monitor, Request};
use crate::options::{ControlFn, StatusFn};
use crate::shutdown::Shutdown;
use crate::table::InodeTable;
use crate::wire::Caller;

/// How long the kernel may believe names and attributes: nobody else changes the image, and what
/// changes through this mount the kernel either knows or invalidates (see the crate's docs), but
/// for what [`attr_ttl`] excepts.
pub const TTL: Duration = Duration::from_secs(365 * 24 * 3600);

/// Names taken from a directory at a time for readdirplus: about what a reply of one page holds.
const NAMES_AT_A_TIME: usize = 32;

/// What distinguishes one mount's behaviour from another's.
#[derive(Debug, Clone, Copy)]
pub struct Behaviour {
    /// Let the kernel keep written data and send it later.
    pub writeback: bool,
    /// Drop cached pages at each open, so that reads are seen and access times are set.
    pub reads_must_be_seen: bool,
}

/// Serves requests from a file system.
pub struct Adapter<F: FileSystem> {
    pub vfs: Vfs<F>,
    pub table: InodeTable<F::Node>,
    pub gate: Arc<Gate>,
    pub monitor: Arc<Monitor>,
    pub crew: Arc<Crew>,
    pub follower: Follower,
    pub invalidator: Invalidator,
    pub status: StatusFn,
    pub behaviour: Behaviour,
    /// How to shut down; `None`: not at all.
    pub shutdown: Option<Shutdown>,
    /// Runs commands; `None`: there are none.
    pub control: Option<ControlFn>,
    /// Last, so that it is dropped when all that holds the engine is gone.
    pub _end: EndSignal,
}

/// Tells, when it is dropped, that no request is served any more.
pub struct EndSignal(pub Sender<End>);

/// How serving came to an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The kernel closed the connection, or the library gave up.
    Served,
    /// Users were still there after their grace.
    Abandoned,
}

impl Drop for EndSignal {
    fn drop(&mut self) {
        // When nobody waits there is nobody to tell.
        let _ = self.0.send(End::Served);
    }
}

/// Where the kernel's caches are told what not to believe any more; empty until there is a session.
pub type Invalidator = Arc<OnceLock<Notifier>>;

/// Room for the answer that who gives a command must have.
const CONTROL_SIZE_MIN: u32 = 4096;

/// A name of a directory, where it is and what it says that it leads to.
struct Name {
    cookie: u64,
    kind: Kind,
    name: Vec<u8>,
}

/// Adds an entry to a listing: its cookie, name, attributes and generation. True when it did not
/// fit.
pub type AddEntry<'a> = dyn FnMut(u64, &OsStr, &FileAttr, Generation) -> bool + 'a;

/// What the kernel holds of a server's files.
pub trait Pages: Send + Sync {
    /// Have the kernel write it back, and wait until that has been served.
    fn write_back(&self);
}

impl<F: FileSystem> Pages for Adapter<F> {
    /// syncfs(2) starts write-back, but does not wait for it (Linux 6.18). Dropping pages does. Not
    /// for threads that serve requests.
    fn write_back(&self) {
        for id in self.table.ids() {
            self.drop_pages(id, &(0..u64::MAX));
        }
    }
}

impl<F: FileSystem> Adapter<F> {
    /// Run one request of a client: counted, let in, protected against panics, its error mapped.
    /// For threads that serve requests: they go where the client is.
    pub fn run<T>(
        &self,
        client: Client,
        request: Request,
        op: impl FnOnce() -> Result<T>,
    ) -> Answer<T> {
        self.crew.take();
        self.follower.serve(client, request);
        self.monitor.saw(request);
        self.run_uncounted(request, op)
    }

    /// [`Adapter::run`] for the rest of a request that was counted, on any thread.
    pub fn run_uncounted<T>(&self, request: Request, op: impl FnOnce() -> Result<T>) -> Answer<T> {
        let Some(_pass) = self.gate.enter() else {
            return Err(fuser::Errno::EIO);
        };
        match catch_unwind(AssertUnwindSafe(op)) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                self.note(request, &error);
                Err(convert::errno(error.errno()))
            }
            Err(_) => {
                // The state in memory may be half changed: serve nothing more from it. What is
                // on the medium is consistent, and is what the next mount finds.
                self.gate.close();
                self.monitor.failed(format!(
                    "{}: internal error (panic); the mount answers EIO from now on: unmount it, \
                     run fsck, and mount again",
                    request.name()
                ));
                Err(fuser::Errno::EIO)
            }
        }
    }

    /// Keep what is wrong with the image or the medium for the status.
    fn note(&self, request: Request, error: &Error) {
        if !matches!(error, Error::Errno(_)) {
            self.monitor.failed(format!("{}: {error}", request.name()));
        }
    }

    /// The status of the mount. Not through the gate: why nothing is served any more is told here.
    pub fn tell_status(&self) -> Answer<Vec<u8>> {
        self.monitor.saw(Request::GetXattr);
        catch_unwind(AssertUnwindSafe(|| (self.status)())).map_err(|_| fuser::Errno::EIO)
    }

    /// Make everything durable; the answer tells that it is.
    pub fn sync(&self, client: Client) -> Answer<Vec<u8>> {
        self.run(client, Request::GetXattr, || self.vfs.syncfs())?;
        Ok(b"durable".to_vec())
    }

    /// Run a command of root, or of who serves the mount; the answer tells what came of it.
    pub fn control(&self, req: &Caller, command: &[u8], size: u32) -> Answer<Vec<u8>> {
        let control = self.control.as_ref().ok_or(fuser::Errno::ENODATA)?;
        if req.uid() != 0 && req.uid() != rustix::process::geteuid().as_raw() {
            return Err(fuser::Errno::EACCES);
        }
        // Who only asks how long the answer would be must not have it done.
        if size < CONTROL_SIZE_MIN {
            return Err(fuser::Errno::ERANGE);
        }
        let command = std::str::from_utf8(command).map_err(|_| fuser::Errno::EINVAL)?;
        let done = self.run(req.pid(), Request::GetXattr, || Ok(control(command)))?;
        if let (Some(name), Some(kernel)) = (done.changed, self.invalidator.get()) {
            // The kernel may hold that there is no such name, or what it led to.
            if let Err(error) = kernel.inval_entry(INodeNo::ROOT, OsStr::new(name)) {
                log::debug!("cannot invalidate {name}: {error}");
            }
            self.invalidate_attributes(INodeNo::ROOT);
        }
        Ok(done.answer)
    }

    pub fn node(&self, id: INodeNo) -> Result<F::Node> {
        self.table.get(id).ok_or(Error::Errno(Errno::STALE))
    }

    /// Make the kernel drop the attributes of an inode, those too that are on their way to it: an
    /// answer from before a change must not be believed for long because it comes late. Waits for
    /// nothing: no pages are named, and the kernel takes no lock that a request could hold.
    pub fn invalidate_attributes(&self, id: INodeNo) {
        if let Some(kernel) = self.invalidator.get()
            && let Err(error) = kernel.inval_inode(id, -1, 0)
        {
            log::debug!("cannot invalidate the attributes of inode {id}: {error}");
        }
    }

    /// After a call that failed, and may have changed something all the same (as one that strips
    /// rights first): the kernel drops attributes only after those that succeed.
    pub fn doubt_after_failure<T>(&self, id: INodeNo, answer: &Answer<T>) {
        if answer.is_err() {
            self.invalidate_attributes(id);
        }
    }

    /// Have the kernel drop its pages of a range of an inode, and write back first what is dirty.
    /// Not for threads that serve requests: it waits for some.
    pub fn drop_pages(&self, id: INodeNo, range: &Range<u64>) {
        // The kernel's offsets have a sign.
        let end = range.end.min(i64::MAX as u64);
        let (start, len) = (range.start.min(end), end.saturating_sub(range.start));
        if let Some(kernel) = self.invalidator.get()
            && let Err(error) = kernel.inval_inode(id, start.cast_signed(), len.cast_signed())
        {
            log::debug!("cannot drop pages of inode {id}: {error}");
        }
    }

    /// The reply that gives the kernel one more reference to `node`.
    pub fn entry(&self, node: F::Node) -> (FileAttr, Generation) {
        let attr = self.vfs.getattr(&node);
        let id = self.table.id(attr.ino);
        self.table.hold(id, node);
        (convert::file_attr(id, &attr), generation(&attr))
    }

    /// The next names after `offset` with their cookies, a batch of them. Taken before any is
    /// looked up, so that the engine is not called from inside its own listing.
    fn names_after(&self, dir: &F::Node, offset: u64) -> Result<Vec<Name>> {
        let mut names = Vec::with_capacity(NAMES_AT_A_TIME);
        self.vfs.readdir(dir, offset, &mut |entry| {
            if names.len() == NAMES_AT_A_TIME {
                return false;
            }
            names.push(Name {
                cookie: entry.cookie,
                kind: entry.kind,
                name: entry.name.to_vec(),
            });
            true
        })?;
        Ok(names)
    }

    /// Add the names after `offset` with their inodes' attributes to a listing, as many as `add`
    /// takes.
    ///
    /// An error after the first of them ends the listing early: the kernel learns only from the
    /// reply which references it holds. It is told when it asks for what comes next.
    pub fn list(
        &self,
        cred: &Cred,
        dir: &F::Node,
        offset: u64,
        add: &mut AddEntry<'_>,
    ) -> Result<()> {
        let mut added = false;
        let mut note = |cookie, name: &OsStr, attr: &FileAttr, generation| {
            let full = add(cookie, name, attr, generation);
            added |= !full;
            full
        };
        let listed = self.add_entries(cred, dir, offset, &mut note);
        if added { Ok(()) } else { listed }
    }

    fn add_entries(
        &self,
        cred: &Cred,
        dir: &F::Node,
        mut offset: u64,
        add: &mut AddEntry<'_>,
    ) -> Result<()> {
        loop {
            let names = self.names_after(dir, offset)?;
            for name in &names {
                if self.add_entry(cred, dir, name, add)? {
                    return Ok(());
                }
            }
            match names.last() {
                Some(last) if names.len() == NAMES_AT_A_TIME => offset = last.cookie,
                _ => return Ok(()),
            }
        }
    }

    /// Add a name with its inode's attributes to a listing; true when it did not fit any more.
    fn add_entry(
        &self,
        cred: &Cred,
        dir: &F::Node,
        Name { cookie, kind, name }: &Name,
        add: &mut AddEntry<'_>,
    ) -> Result<bool> {
        // Looked up by name and not by number: what the kernel will believe for long must be what
        // the name refers to. A name that has gone since is left out.
        let node = match self.vfs.lookup(cred, dir, name) {
            Err(Error::Errno(Errno::NOENT)) => return Ok(false),
            Err(error @ Error::Corrupt(_)) => {
                self.note(Request::ReadDirPlus, &error);
                let attr = convert::unknown_entry(*kind);
                return Ok(add(*cookie, OsStr::from_bytes(name), &attr, Generation(0)));
            }
            found => found?,
        };
        let attr = self.vfs.getattr(&node);
        let id = self.table.id(attr.ino);
        let full = add(
            *cookie,
            OsStr::from_bytes(name),
            &convert::file_attr(id, &attr),
            generation(&attr),
        );
        // For the directory itself and its parent the kernel takes no reference.
        if !full && name != b"." && name != b".." {
            self.table.hold(id, node);
        }
        Ok(full)
    }

    /// Make an inode and name it.
    pub fn make(
        &self,
        cred: &Cred,
        at: (INodeNo, &OsStr),
        kind: NewKind<'_>,
        (mode, umask): (u32, u32),
    ) -> Result<(FileAttr, Generation)> {
        let dir = self.node(at.0)?;
        let (perm, umask) = (permission_bits(mode), permission_bits(umask));
        let new = NewNodeRequest::new(kind, perm, umask);
        let node = self.vfs.create(cred, &dir, at.1.as_bytes(), &new)?;
        Ok(self.entry(node))
    }
}

/// How long the kernel may believe attributes. Those of a file with set-id bits not at all: a
/// change of its contents takes them away, after which the kernel doubts size and times but not the
/// mode, and would run the new contents with the old rights.
pub fn attr_ttl(attr: &FileAttr) -> Duration {
    let set_id = attr.kind == Kind::File && attr.perm & 0o6000 != 0;
    if set_id { Duration::ZERO } else { TTL }
}

fn generation(attr: &Attr) -> Generation {
    Generation(u64::from(attr.generation))
}

/// The permission, set-id and sticky bits of a mode or umask.
pub fn permission_bits(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::follow::UNKNOWN;
    use model::Model;
    use std::sync::mpsc::channel;
    use vfs::VfsOptions;

    fn adapter() -> Adapter<Model> {
        let fs = Model::new(Arc::new(|| vfs::Time(0)));
        let root = fs.root();
        let root_ino = fs.ino(&root);
        Adapter {
            vfs: Vfs::new(fs, VfsOptions::default()),
            table: InodeTable::new(root, root_ino),
            gate: Arc::default(),
            monitor: Arc::default(),
            crew: Crew::new(1),
            follower: Follower::default(),
            invalidator: Arc::default(),
            status: Arc::new(|| b"alive".to_vec()),
            behaviour: Behaviour {
                writeback: false,
                reads_must_be_seen: false,
            },
            shutdown: None,
            control: None,
            _end: EndSignal(channel().0),
        }
    }

    #[test]
    fn after_a_panic_nothing_more_is_served_and_the_status_says_why() {
        let adapter = adapter();
        let panicked = adapter.run(UNKNOWN, Request::Rename, || -> Result<()> {
            panic!("as a test")
        });
        assert_eq!(panicked, Err(fuser::Errno::EIO));
        assert_eq!(
            adapter.run(UNKNOWN, Request::Lookup, || Ok(())),
            Err(fuser::Errno::EIO)
        );
        let why = adapter.monitor.last_error().expect("kept");
        assert!(why.starts_with("rename") && why.contains("fsck"), "{why}");
        assert_eq!(adapter.tell_status(), Ok(b"alive".to_vec()));
    }

    #[test]
    fn a_listing_that_fails_half_way_gives_the_kernel_what_it_is_noted_to_hold() {
        let (adapter, root) = (adapter(), Cred::root());
        let make = |dir: &_, name: &str, kind| {
            let made = adapter.vfs.create(
                &root,
                dir,
                name.as_bytes(),
                &NewNodeRequest::new(kind, 0o755, 0),
            );
            made.expect("create")
        };
        let top = adapter.vfs.fs().root();
        let dir = make(&top, "dir", NewKind::Dir);
        let names: Vec<String> = (0..2 * NAMES_AT_A_TIME).map(|n| n.to_string()).collect();
        for name in &names {
            make(&dir, name, NewKind::File);
        }
        // A directory that is removed meanwhile fails when the second batch of names is taken.
        let remove = || {
            for name in &names {
                let gone = adapter.vfs.unlink(&root, &dir, name.as_bytes());
                gone.expect("unlink");
            }
            adapter.vfs.rmdir(&root, &top, b"dir").expect("rmdir");
        };
        let mut added = Vec::new();
        let listed = adapter.list(&root, &dir, 0, &mut |cookie, name, attr, _| {
            added.push((cookie, name.to_owned(), attr.ino));
            if name == "1" {
                remove();
            }
            false
        });
        assert_eq!(listed, Ok(()), "the entries are the answer");
        let (last, ..) = added[added.len() - 1];
        let more = adapter.list(&root, &dir, last, &mut |_, _, _, _| false);
        assert_eq!(more, Err(Errno::NOENT.into()), "who goes on is told");
        let files = added
            .iter()
            .filter(|(_, name, _)| !name.to_string_lossy().starts_with('.'));
        let held: Vec<INodeNo> = files.map(|&(_, _, ino)| ino).collect();
        assert!(held.len() >= 2 && held.iter().all(|ino| adapter.table.get(*ino).is_some()));
    }

    #[test]
    fn failures_of_the_image_are_kept_for_the_status_and_posix_errors_are_not() {
        let adapter = adapter();
        let missing = adapter.run(UNKNOWN, Request::Lookup, || -> Result<()> {
            Err(Errno::NOENT.into())
        });
        assert_eq!(missing, Err(fuser::Errno::ENOENT));
        assert_eq!(adapter.monitor.last_error(), None);
        let corrupt = adapter.run(UNKNOWN, Request::Read, || -> Result<()> {
            Err(Error::corrupt(64, "a bad word"))
        });
        assert_eq!(corrupt, Err(convert::errno(Errno::UCLEAN)));
        let why = adapter.monitor.last_error().expect("kept");
        assert!(why.contains("a bad word at byte 0x40"), "{why}");
    }
}
