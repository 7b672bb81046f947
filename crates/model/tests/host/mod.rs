//! A directory of the host as a [`FileSystem`]: the kernel judges the model.
//!
//! Where a system call cannot do what the trait asks for, or the kernel decides what the trait
//! leaves to its callers, a comment says so.

use std::ffi::CString;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use model::{Engine, Feature};
use rustix::fs::{
    self, AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RawDir, RenameFlags, SeekFrom,
    StatxFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use tempfile::TempDir;
use vfs::{
    Also, At, Attr, Capabilities, Change, Clock, DirEntry, Errno, Fallocate, FileSystem, Fsync,
    Ino, Kind, Limits, ManualClock, NAME_MAX, NewKind, NewNode, PATH_MAX, Place, RenameMode,
    Result, SeekFor, StatFs, Time, Veto, XATTR_LIST_MAX, XATTR_SIZE_MAX, XattrChange, XattrMode,
};

/// Directories of the host's tmpfs.
pub struct Host;

/// Why the host cannot be used here; `None`: it can.
pub fn unusable() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root, to make devices and to give files away");
    }
    match fs::statfs("/dev/shm") {
        Ok(stat) if stat.f_type as u64 == 0x0102_1994 => None,
        _ => Some("needs a tmpfs at /dev/shm"),
    }
}

impl Engine for Host {
    type Fs = HostFs;

    fn make(&self, _clock: Arc<dyn Clock>) -> HostFs {
        HostFs::new()
    }

    fn tick(&self, _clock: &ManualClock) {
        // Longer than a tick of the kernel's coarse clock.
        std::thread::sleep(Duration::from_millis(11));
    }

    fn lacks(&self, feature: Feature) -> Option<&'static str> {
        match feature {
            Feature::Clock => Some("the kernel has its own clock and relatime"),
            Feature::SetCtime => Some("no system call sets ctime"),
            Feature::EarlyTimes => None,
            Feature::ByNumber => Some("no system call opens by number"),
            Feature::AtomicSetattr => Some("each attribute has its own system call"),
            Feature::Birth => Some("the kernel checks the names and forms of ACLs"),
            Feature::Space => Some("tmpfs is shared with others"),
            Feature::XattrLimits => Some("tmpfs has its own limit on the list"),
        }
    }
}

/// A directory on tmpfs, removed when dropped.
pub struct HostFs {
    _dir: TempDir,
    root: Node,
}

/// An `O_PATH` descriptor, which keeps the inode as a node must.
pub type Node = Arc<OwnedFd>;

impl HostFs {
    fn new() -> HostFs {
        rustix::process::umask(Mode::empty());
        let dir = TempDir::new_in("/dev/shm").expect("tmpfs takes a directory");
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let root = fs::open(dir.path(), flags, Mode::empty()).expect("it was just made");
        fs::chmod(dir.path(), Mode::from_raw_mode(0o755)).expect("it is ours");
        HostFs {
            _dir: dir,
            root: Arc::new(root),
        }
    }

    fn kind(&self, node: &Node) -> Kind {
        self.attr(node).kind
    }

    /// Open a regular file for reading and writing. On other kinds the descriptor decides what
    /// happens, and that is above the trait: the kind is checked as the trait has it.
    fn open(&self, node: &Node, flags: OFlags) -> Result<File> {
        match self.kind(node) {
            Kind::File => {}
            Kind::Dir => return Err(Errno::ISDIR.into()),
            _ => return Err(Errno::INVAL.into()),
        }
        let flags = flags | OFlags::RDWR | OFlags::NOATIME;
        Ok(File::from(fs::open(path(node), flags, Mode::empty())?))
    }

    /// As the trait has it, a veto is asked once source and target are known to differ.
    fn ask(&self, dir: &Node, name: &[u8], veto: Veto<'_>) -> Result<()> {
        match self.lookup(dir, name) {
            Ok(victim) => veto(&self.attr(&victim).rights()),
            Err(_) => Ok(()),
        }
    }

    /// Owner and permissions exactly as asked for: the kernel drops set-id bits on its way.
    fn own(&self, node: &Node, uid: Option<u32>, gid: Option<u32>, perm: u16) -> Result<()> {
        if uid.is_some() || gid.is_some() {
            fs::chownat(
                CWD,
                path(node),
                uid.map(Uid::from_raw),
                gid.map(Gid::from_raw),
                AtFlags::empty(),
            )?;
        }
        if self.kind(node) != Kind::Symlink {
            fs::chmod(path(node), Mode::from_raw_mode(perm.into()))?;
        }
        Ok(())
    }
}

/// A path that leads to the inode itself, a symbolic link's too.
fn path(node: &Node) -> String {
    format!("/proc/self/fd/{}", node.as_raw_fd())
}

fn errno(error: &std::io::Error) -> vfs::Error {
    Errno::from_io_error(error).unwrap_or(Errno::IO).into()
}

/// System calls have signed offsets; the trait has `EFBIG` for what lies beyond.
fn signed(offset: u64) -> Result<i64> {
    i64::try_from(offset).map_err(|_| Errno::FBIG.into())
}

fn timespec(time: Option<Time>) -> Timespec {
    match time {
        Some(time) => Timespec {
            tv_sec: time.secs(),
            tv_nsec: time.nanos().into(),
        },
        None => Timespec {
            tv_sec: 0,
            tv_nsec: fs::UTIME_OMIT,
        },
    }
}

impl HostFs {
    /// The kernel has `user.` attributes on files and directories only: on others they are
    /// `trusted.` ones.
    fn host_name(&self, node: &Node, name: &[u8]) -> CString {
        let plain = matches!(self.kind(node), Kind::File | Kind::Dir);
        let name = match name.strip_prefix(b"user.") {
            Some(rest) if !plain => [b"trusted.", rest].concat(),
            _ => name.to_vec(),
        };
        CString::new(name).expect("names have no zero")
    }

    /// In steps of their own: the kernel has no call for both.
    fn apply_also(&self, node: &Node, also: Also<'_>) -> Result<()> {
        match also {
            Some(change) => self.apply(node, change).map(drop),
            None => Ok(()),
        }
    }

    fn change_xattr(&self, node: &Node, change: &XattrChange<'_>) -> Result<()> {
        let (path, name) = (path(node), self.host_name(node, change.name));
        let Some(value) = change.value else {
            return match fs::removexattr(path, name) {
                Err(Errno::NODATA) if change.mode == XattrMode::Any => Ok(()),
                removed => Ok(removed?),
            };
        };
        let flags = match change.mode {
            XattrMode::Any => XattrFlags::empty(),
            XattrMode::Create => XattrFlags::CREATE,
            XattrMode::Replace => XattrFlags::REPLACE,
        };
        Ok(fs::setxattr(path, name, value, flags)?)
    }
}

impl FileSystem for HostFs {
    type Node = Node;

    fn limits(&self) -> Limits {
        Limits {
            name_max: NAME_MAX,
            symlink_max: PATH_MAX - 1,
            link_max: u32::MAX,
            file_max: i64::MAX as u64,
            xattr_size_max: XATTR_SIZE_MAX,
            xattr_list_max: XATTR_LIST_MAX,
            xattr_room: usize::MAX,
            capabilities: Capabilities::all() - Capabilities::WHOLE_WRITES,
        }
    }

    fn root(&self) -> Node {
        self.root.clone()
    }

    fn node(&self, _ino: Ino) -> Result<Node> {
        Err(Errno::STALE.into())
    }

    fn ino(&self, node: &Node) -> Ino {
        fs::fstat(node).expect("a descriptor has attributes").st_ino
    }

    fn attr(&self, node: &Node) -> Attr {
        let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
        let stat = fs::statx(
            node,
            c"",
            flags,
            StatxFlags::BASIC_STATS | StatxFlags::BTIME,
        )
        .expect("a descriptor has attributes");
        let time = |stamp: fs::StatxTimestamp| Time::new(stamp.tv_sec, stamp.tv_nsec);
        let mut list = Vec::with_capacity(65536);
        let listed = fs::listxattr(path(node), rustix::buffer::spare_capacity(&mut list));
        Attr {
            ino: stat.stx_ino,
            generation: 0,
            kind: Kind::from_mode(stat.stx_mode.into()).expect("the kernel knows the kind"),
            perm: stat.stx_mode & 0o7777,
            nlink: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            rdev: fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor) as u32,
            size: stat.stx_size,
            blocks: stat.stx_blocks,
            atime: time(stat.stx_atime),
            mtime: time(stat.stx_mtime),
            ctime: time(stat.stx_ctime),
            btime: time(stat.stx_btime),
            has_xattrs: listed.is_ok_and(|len| len > 0),
        }
    }

    fn lookup(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        Ok(Arc::new(fs::openat(dir, name, flags, Mode::empty())?))
    }

    fn parent(&self, dir: &Node) -> Result<Node> {
        if self.ino(dir) == self.ino(&self.root) {
            return Ok(self.root());
        }
        self.lookup(dir, b"..")
    }

    fn create(&self, dir: &Node, name: &[u8], new: &NewNode<'_>) -> Result<Node> {
        let mode = Mode::from_raw_mode(0o600);
        let device = |kind, dev: u32| fs::mknodat(dir, name, kind, mode, dev.into());
        match new.kind {
            NewKind::File => device(FileType::RegularFile, 0)?,
            NewKind::Dir => fs::mkdirat(dir, name, mode)?,
            NewKind::Symlink(target) => fs::symlinkat(target, dir, name)?,
            NewKind::Fifo => device(FileType::Fifo, 0)?,
            NewKind::Socket => device(FileType::Socket, 0)?,
            NewKind::CharDev(dev) => device(FileType::CharacterDevice, dev)?,
            NewKind::BlockDev(dev) => device(FileType::BlockDevice, dev)?,
        }
        let node = self.lookup(dir, name)?;
        self.own(&node, Some(new.uid), Some(new.gid), new.perm)?;
        Ok(node)
    }

    fn tmpfile(&self, dir: &Node, new: &NewNode<'_>) -> Result<Node> {
        let attr = self.attr(dir);
        if attr.kind == Kind::Dir && attr.nlink == 0 {
            // The kernel makes it, for it needs no name; the trait has no files below nothing.
            return Err(Errno::NOENT.into());
        }
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let file = fs::openat(dir, ".", flags, Mode::from_raw_mode(0o600))?;
        let own = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        let node = Arc::new(fs::open(own, OFlags::PATH, Mode::empty())?);
        self.own(&node, Some(new.uid), Some(new.gid), new.perm)?;
        Ok(node)
    }

    fn link(&self, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        Ok(fs::linkat(
            CWD,
            path(node),
            dir,
            name,
            AtFlags::SYMLINK_FOLLOW,
        )?)
    }

    fn unlink(&self, dir: &Node, name: &[u8], veto: Veto<'_>) -> Result<()> {
        self.ask(dir, name, veto)?;
        Ok(fs::unlinkat(dir, name, AtFlags::empty())?)
    }

    fn rmdir(&self, dir: &Node, name: &[u8], veto: Veto<'_>) -> Result<()> {
        self.ask(dir, name, veto)?;
        Ok(fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?)
    }

    fn rename(
        &self,
        from: Place<'_, Node>,
        to: Place<'_, Node>,
        mode: RenameMode,
        veto: Veto<'_>,
    ) -> Result<()> {
        self.ask(from.dir, from.name, veto)?;
        self.ask(to.dir, to.name, veto)?;
        let flags = match mode {
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
            RenameMode::Whiteout => RenameFlags::WHITEOUT,
        };
        Ok(fs::renameat_with(
            from.dir, from.name, to.dir, to.name, flags,
        )?)
    }

    fn readlink(&self, node: &Node) -> Result<Vec<u8>> {
        if self.kind(node) != Kind::Symlink {
            return Err(Errno::INVAL.into());
        }
        Ok(fs::readlinkat(node, c"", Vec::new())?.into_bytes())
    }

    fn readdir(
        &self,
        dir: &Node,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOATIME;
        let open = fs::openat(dir, ".", flags, Mode::empty())?;
        fs::seek(&open, SeekFrom::Start(cookie))?;
        let mut buffer = Vec::with_capacity(32768);
        let mut entries = RawDir::new(open, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let kind = Kind::from_mode(entry.file_type().as_raw_mode());
            let kind = kind.expect("tmpfs knows the kinds of entries");
            let cookie = entry.next_entry_cookie();
            if !emit(DirEntry {
                ino: entry.ino(),
                kind,
                name,
                cookie,
            }) {
                break;
            }
        }
        Ok(())
    }

    fn read(&self, node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let file = self.open(node, OFlags::empty())?;
        if signed(offset).is_err() {
            return Ok(0);
        }
        file.read_at(buf, offset).map_err(|error| errno(&error))
    }

    fn write_with(&self, node: &Node, offset: u64, data: &[u8], also: Also<'_>) -> Result<usize> {
        self.apply_also(node, also)?;
        let file = self.open(node, OFlags::empty())?;
        signed(offset.saturating_add(data.len() as u64))?;
        file.write_at(data, offset).map_err(|error| errno(&error))
    }

    fn append_with(&self, node: &Node, data: &[u8], also: Also<'_>) -> Result<(u64, usize)> {
        self.apply_also(node, also)?;
        let file = self.open(node, OFlags::APPEND)?;
        if data.is_empty() {
            return Ok((self.attr(node).size, 0));
        }
        let written = rustix::io::write(&file, data)?;
        Ok((
            fs::seek(&file, SeekFrom::Current(0))? - written as u64,
            written,
        ))
    }

    fn apply(&self, node: &Node, change: &Change<'_>) -> Result<Attr> {
        for change in change.xattrs {
            self.change_xattr(node, change)?;
        }
        let set = &change.set;
        if let Some(size) = set.size {
            let file = self.open(node, OFlags::empty())?;
            signed(size)?;
            fs::ftruncate(&file, size)?;
        }
        if set.uid.is_some() || set.gid.is_some() || set.perm.is_some() {
            let perm = set.perm.unwrap_or(self.attr(node).perm);
            self.own(node, set.uid, set.gid, perm)?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let times = Timestamps {
                last_access: timespec(set.atime),
                last_modification: timespec(set.mtime),
            };
            fs::utimensat(CWD, path(node), &times, AtFlags::empty())?;
        }
        Ok(self.attr(node))
    }

    fn fallocate_with(
        &self,
        node: &Node,
        mode: Fallocate,
        range: Range<u64>,
        also: Also<'_>,
    ) -> Result<()> {
        self.apply_also(node, also)?;
        let (offset, len) = (range.start, range.end - range.start);
        let file = self.open(node, OFlags::empty())?;
        let keep = FallocateFlags::KEEP_SIZE;
        let size = |keep_size| {
            if keep_size {
                keep
            } else {
                FallocateFlags::empty()
            }
        };
        let punch = FallocateFlags::PUNCH_HOLE | keep;
        match mode {
            Fallocate::Allocate { keep_size } => {
                fs::fallocate(&file, size(keep_size), offset, len)?;
            }
            Fallocate::Punch => fs::fallocate(&file, punch, offset, len)?,
            // tmpfs has no FALLOC_FL_ZERO_RANGE: it is these two.
            Fallocate::Zero { keep_size } => {
                fs::fallocate(&file, punch, offset, len)?;
                fs::fallocate(&file, size(keep_size), offset, len)?;
            }
        }
        Ok(())
    }

    fn seek(&self, node: &Node, offset: u64, what: SeekFor) -> Result<u64> {
        let file = self.open(node, OFlags::empty())?;
        let from = match what {
            SeekFor::Data => SeekFrom::Data(offset),
            SeekFor::Hole => SeekFrom::Hole(offset),
        };
        Ok(fs::seek(&file, from)?)
    }

    fn copy_range_with(
        &self,
        mut from: At<'_, Node>,
        mut to: At<'_, Node>,
        len: u64,
        also: Also<'_>,
    ) -> Result<u64> {
        self.apply_also(to.node, also)?;
        let source = self.open(from.node, OFlags::empty())?;
        let target = self.open(to.node, OFlags::empty())?;
        let (from_at, to_at) = (Some(&mut from.offset), Some(&mut to.offset));
        Ok(fs::copy_file_range(&source, from_at, &target, to_at, len as usize)? as u64)
    }

    fn getxattr(&self, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        let mut value = Vec::with_capacity(65536);
        let buffer = rustix::buffer::spare_capacity(&mut value);
        fs::getxattr(path(node), self.host_name(node, name), buffer)?;
        Ok(value)
    }

    fn listxattr(&self, node: &Node) -> Result<Vec<Vec<u8>>> {
        let mut list = Vec::with_capacity(65536);
        fs::listxattr(path(node), rustix::buffer::spare_capacity(&mut list))?;
        let names = list
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty());
        let trusted = |name: &[u8]| name.strip_prefix(b"trusted.").map(<[u8]>::to_vec);
        Ok(names
            .map(|name| match trusted(name) {
                Some(rest) => [b"user.".to_vec(), rest].concat(),
                None => name.to_vec(),
            })
            .collect())
    }

    fn fsync(&self, _node: &Node, _what: Fsync) -> Result<()> {
        // Nothing on tmpfs becomes durable.
        Ok(())
    }

    fn syncfs(&self) -> Result<()> {
        Ok(())
    }

    fn statfs(&self) -> StatFs {
        let stat = fs::statvfs(path(&self.root)).expect("tmpfs has figures");
        StatFs {
            block_size: stat.f_frsize as u32,
            blocks: stat.f_blocks,
            free: stat.f_bfree,
            files: stat.f_files,
            files_free: stat.f_ffree,
            fsid: stat.f_fsid,
        }
    }
}
