//! From a path to a mapped file: kinds of files, file systems, locks, allocation.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use block::{Disk, Identity, LockedFile, OpenError};
use rustix::fs::{Advice, FallocateFlags, SeekFrom};
use rustix::io::Errno;

use crate::map::{Mapping, Shared, Use};
use crate::{Domain, HEAD_LEN, Kind, Options, PAGE, PoolError};

/// What opening a path gave.
pub(crate) struct Opened {
    pub(crate) file: LockedFile,
    pub(crate) contents: Contents,
    pub(crate) kind: Kind,
    pub(crate) detected: Domain,
    pub(crate) sparse: bool,
}

/// How the contents are reached.
pub(crate) enum Contents {
    /// Mapped.
    Mapped(Mapping),
    /// By I/O of our own.
    Disk(Disk),
}

/// Creates the file (or takes the device) and maps it, or opens it as a disk.
pub(crate) fn create(path: &Path, len: u64, options: &Options) -> Result<Opened, PoolError> {
    if !writes(options) {
        let what = "it cannot be created read-only".to_owned();
        return Err(PoolError::Unsupported {
            path: path.into(),
            what,
        });
    }
    if let Ok(meta) = fs::metadata(path) {
        let kind = meta.file_type();
        if kind.is_char_device() || kind.is_block_device() {
            return open_existing(path, len, options);
        }
        return Err(PoolError::Exists { path: path.into() });
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|source| io_error(path, "creating the image", source))?;
    let new = NewFile { path, keep: false };
    let created = fill_new(path, file, len, options)?;
    new.keep();
    Ok(created)
}

/// Removes a file that could not be completed.
struct NewFile<'a> {
    path: &'a Path,
    keep: bool,
}

impl NewFile<'_> {
    fn keep(mut self) {
        self.keep = true;
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if !self.keep
            && let Err(error) = fs::remove_file(self.path)
        {
            log::warn!(
                "{}: cannot remove the incomplete image: {error}",
                self.path.display()
            );
        }
    }
}

fn fill_new(path: &Path, file: File, len: u64, options: &Options) -> Result<Opened, PoolError> {
    let file = lock(path, file, options)?;
    let host = Host::of(path, &file)?;
    if len == 0 {
        return Err(PoolError::TooSmall {
            path: path.into(),
            need: PAGE,
            have: 0,
        });
    }
    let len = len
        .checked_next_multiple_of(host.granule())
        .ok_or_else(|| no_space(path, &file, len))?;
    file.set_len(len)
        .map_err(|error| set_len_error(path, len, error))?;
    if !options.sparse {
        allocate(path, &file, len)?;
    }
    // The name must survive a crash as soon as anything in the image is promised to.
    sync_name(path, &file)?;
    Ok(Opened {
        sparse: options.sparse,
        ..map(path, file, len, host, options)?
    })
}

fn set_len_error(path: &Path, len: u64, error: io::Error) -> PoolError {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::FBIG | Errno::INVAL) => PoolError::Unsupported {
            path: path.into(),
            what: format!(
                "its file system (or a limit of this process) has no files of {len} bytes; \
                 use a smaller size or another file system"
            ),
        },
        _ => io_error(path, "setting the size", error),
    }
}

/// Bytes in the largest unit that a host with pages of 4 KiB caches; it is dropped as a whole only.
const FOLIO_MAX: u64 = 2 << 20;
const _: () = assert!(HEAD_LEN as u64 <= FOLIO_MAX);

/// Drops what the host caches of a synced file, unless its last user ended well. A page whose write
/// failed is cached as if it were on the disk (M13). So is, perhaps, the page that says how the
/// last user ended: that one is always read anew.
///
/// The host keeps pages that another process has mapped.
pub(crate) fn drop_stale(file: &File, ended_well: fn(&[u8]) -> bool) -> io::Result<()> {
    let drop_cached = |len| rustix::fs::fadvise(file, 0, len, Advice::DontNeed);
    let mut head = [0; HEAD_LEN];
    drop_cached(NonZeroU64::new(FOLIO_MAX))?;
    let len = read_head(file, &mut head)?;
    if !ended_well(&head[..len]) {
        drop_cached(None)?; // all of it
    }
    Ok(())
}

/// Reads from the start of the file; returns how much of the buffer it fills.
fn read_head(file: &File, head: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < head.len() {
        match file.read_at(&mut head[len..], len as u64) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

/// Gives the whole file blocks.
fn allocate(path: &Path, file: &File, len: u64) -> Result<(), PoolError> {
    // Ask first: on a file system that cannot allocate in advance the error would come late.
    if let Ok(stat) = rustix::fs::fstatvfs(file)
        && stat.f_blocks > 0 // 0: a tmpfs without a limit
        && free_bytes(&stat) < len
    {
        return Err(no_space(path, file, len));
    }
    match retry(|| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len)) {
        Ok(()) => Ok(()),
        Err(Errno::NOSPC | Errno::FBIG | Errno::DQUOT | Errno::NOMEM) => {
            Err(no_space(path, file, len))
        }
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(path, file, len),
        Err(error) => Err(io_error(path, "allocating blocks", error.into())),
    }
}

/// As posix_fallocate does where the file system cannot allocate in advance.
fn write_zeros(path: &Path, file: &File, len: u64) -> Result<(), PoolError> {
    const CHUNK: usize = 1 << 20;
    let zeros = vec![0u8; CHUNK];
    for off in (0..len).step_by(CHUNK) {
        let n = (len - off).min(CHUNK as u64) as usize;
        file.write_all_at(&zeros[..n], off)
            .map_err(|error| match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    no_space(path, file, len)
                }
                _ => io_error(path, "allocating blocks", error),
            })?;
    }
    Ok(())
}

fn sync_name(path: &Path, file: &File) -> Result<(), PoolError> {
    file.sync_all()
        .map_err(|error| io_error(path, "syncing the new image", error))?;
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    File::open(parent)
        .and_then(|dir| dir.sync_all())
        .or_else(
            |error| match error.raw_os_error().map(Errno::from_raw_os_error) {
                // Some file systems have no sync of directories; they order names themselves.
                Some(Errno::INVAL | Errno::OPNOTSUPP) => Ok(()),
                _ => Err(io_error(parent, "syncing the directory", error)),
            },
        )
}

/// Opens what is there, and maps it or opens it as a disk.
pub(crate) fn open(path: &Path, options: &Options) -> Result<Opened, PoolError> {
    open_existing(path, PAGE, options)
}

fn open_existing(path: &Path, need: u64, options: &Options) -> Result<Opened, PoolError> {
    let is_block_device = |path| fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
    // A block device is written through the disk alone, which is opened exclusively.
    let writable = writes(options) && !is_block_device(path);
    let file = OpenOptions::new()
        .read(true)
        .write(writable)
        .open(path)
        .map_err(|source| io_error(path, "opening the image", source))?;
    let host = Host::of(path, &file)?;
    if let (Host::BlockDevice, Some(Domain::Line | Domain::Cache)) = (&host, options.domain) {
        let what = "a block device has no persistence domain but page".to_owned();
        let path = path.into();
        return Err(PoolError::Unsupported { path, what });
    }
    let file = lock(path, file, options)?;
    let meta = file
        .metadata()
        .map_err(|error| io_error(path, "reading its size", error))?;
    let have = match host {
        Host::DevDax => dax_len(path, meta.rdev())?,
        Host::BlockDevice => rustix::fs::seek(&*file, SeekFrom::End(0))
            .map_err(|error| io_error(path, "reading its size", error.into()))?,
        _ => meta.len(),
    };
    let len = have / host.granule() * host.granule();
    if len < need.max(PAGE) {
        return Err(PoolError::TooSmall {
            path: path.into(),
            need: need.max(PAGE),
            have,
        });
    }
    // A file system that compresses reports fewer blocks; then `back` allocates needlessly, once.
    // What is stored to a private mapping takes no blocks of the file.
    let sparse = !options.private
        && !matches!(host, Host::DevDax | Host::BlockDevice)
        && meta.blocks().saturating_mul(512) < len;
    Ok(Opened {
        sparse,
        ..map(path, file, len, host, options)?
    })
}

/// Maps a file all of whose blocks the host has, or opens it as a disk.
fn map(
    path: &Path,
    file: LockedFile,
    len: u64,
    host: Host,
    options: &Options,
) -> Result<Opened, PoolError> {
    let len = usize::try_from(len).map_err(|_| no_space(path, &file, len))?;
    let to = match (options.private, options.read_only) {
        (true, _) => Use::Private,
        (false, true) => Use::Read,
        (false, false) => Use::Write,
    };
    let refused = |error| map_error(path, &file, len as u64, options, error);
    let shared = match host {
        Host::BlockDevice => Shared::Plain,
        _ => Mapping::sharing(file.as_fd(), len, to).map_err(refused)?,
    };
    let (kind, detected) = host.judge(shared);
    let domain = options.domain.unwrap_or(detected);
    let contents = if domain == Domain::Page && options.paged.is_some() && !options.private {
        Contents::Disk(disk(path, &file, options)?)
    } else {
        let mapping = Mapping::file(file.as_fd(), len, to, shared).map_err(refused)?;
        // In a page cache that is written back a huge page would be written whole for one changed
        // line: 2 MiB for each sync that covers it.
        if options.huge_pages && detected != Domain::Page {
            mapping.ask_huge_pages();
        }
        Contents::Mapped(mapping)
    };
    Ok(Opened {
        file,
        contents,
        kind,
        detected,
        sparse: false,
    })
}

fn map_error(path: &Path, file: &File, len: u64, options: &Options, error: io::Error) -> PoolError {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NODEV | Errno::INVAL | Errno::OPNOTSUPP) => PoolError::Unsupported {
            path: path.into(),
            what: match options.private {
                true => "it cannot be mapped privately".into(),
                false => "its file system cannot map files shared and writable; use another".into(),
            },
        },
        Some(Errno::NOMEM) => no_space(path, file, len),
        _ => io_error(path, "mapping", error),
    }
}

/// The file, which is locked, as a disk.
fn disk(path: &Path, file: &File, options: &Options) -> Result<Disk, PoolError> {
    let how = block::OpenOptions {
        read_only: options.read_only,
        lock: false,
        ..block::OpenOptions::default()
    };
    let disk = how.open(path).map_err(|error| match error {
        OpenError::InUse { path } => PoolError::InUse { path, pid: None },
        error => io_error(path, "opening it as a disk", io::Error::other(error)),
    })?;
    let meta = file
        .metadata()
        .map_err(|error| io_error(path, "reading its type", error))?;
    let same = match meta.file_type().is_block_device() {
        true => Identity {
            device: meta.rdev(),
            inode: 0,
        },
        false => Identity {
            device: meta.dev(),
            inode: meta.ino(),
        },
    };
    if disk.info().identity != Some(same) {
        let what = "another file has taken its name meanwhile".to_owned();
        let path = path.into();
        return Err(PoolError::Unsupported { path, what });
    }
    Ok(disk)
}

/// Whether the file itself is written to.
fn writes(options: &Options) -> bool {
    !options.read_only && !options.private
}

/// What kind of file a descriptor refers to.
enum Host {
    DevDax,
    BlockDevice,
    Tmpfs,
    Hugetlbfs { page: u64 },
    Other(String),
}

impl Host {
    fn of(path: &Path, file: &File) -> Result<Host, PoolError> {
        let meta = file
            .metadata()
            .map_err(|error| io_error(path, "reading its type", error))?;
        let kind = meta.file_type();
        if kind.is_char_device() && is_dax(meta.rdev()) {
            return Ok(Host::DevDax);
        }
        if kind.is_block_device() {
            return Ok(Host::BlockDevice);
        }
        if !kind.is_file() {
            let what = "it is no regular file, block device or device DAX; use an image file";
            let what = what.to_owned();
            return Err(PoolError::Unsupported {
                path: path.into(),
                what,
            });
        }
        let stat = rustix::fs::fstatfs(file)
            .map_err(|error| io_error(path, "reading its file system's type", error.into()))?;
        Ok(match stat.f_type as u32 {
            0x0102_1994 | 0x8584_58f6 => Host::Tmpfs,
            0x9584_58f6 => Host::Hugetlbfs {
                page: stat.f_bsize as u64,
            },
            magic => Host::Other(fs_name(magic)),
        })
    }

    /// What the length is a multiple of, in bytes.
    fn granule(&self) -> u64 {
        match self {
            Host::Hugetlbfs { page } => (*page).max(PAGE),
            _ => PAGE,
        }
    }

    fn judge(self, shared: Shared) -> (Kind, Domain) {
        match (self, shared) {
            (Host::DevDax, _) => (Kind::DevDax, Domain::Line),
            (Host::BlockDevice, _) => (Kind::BlockDevice, Domain::Page),
            (Host::Tmpfs, _) => (Kind::Tmpfs, Domain::Cache),
            (Host::Hugetlbfs { .. }, _) => (Kind::Hugetlbfs, Domain::Cache),
            (Host::Other(fs), Shared::Sync) => (Kind::MapSyncFile(fs), Domain::Line),
            (Host::Other(fs), Shared::Plain) => (Kind::File(fs), Domain::Page),
        }
    }
}

fn fs_name(magic: u32) -> String {
    let name = match magic {
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0xf2f5_2010 => "f2fs",
        0x2fc1_2fc1 => "zfs",
        0x794c_7630 => "overlayfs",
        0x6573_5546 => "fuse",
        0x0102_1997 => "9p",
        0x6969 => "nfs",
        0xfe53_4d42 | 0xff53_4d42 => "smb",
        0x4d44 => "vfat",
        0x2011_bab0 => "exfat",
        0x7366_746e => "ntfs",
        _ => return format!("a file system of type {magic:#x}"),
    };
    name.to_owned()
}

/// Where sysfs describes a character device.
fn sys_dev(rdev: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    PathBuf::from(format!("/sys/dev/char/{major}:{minor}"))
}

fn is_dax(rdev: u64) -> bool {
    fs::canonicalize(sys_dev(rdev).join("subsystem"))
        .is_ok_and(|subsystem| subsystem.ends_with("dax"))
}

fn dax_len(path: &Path, rdev: u64) -> Result<u64, PoolError> {
    let text = fs::read_to_string(sys_dev(rdev).join("size"))
        .map_err(|error| io_error(path, "reading the device's size", error))?;
    text.trim().parse().map_err(|_| {
        let what = format!("its size '{}' is no number", text.trim());
        PoolError::Unsupported {
            path: path.into(),
            what,
        }
    })
}

fn lock(path: &Path, file: File, options: &Options) -> Result<LockedFile, PoolError> {
    if !options.exclusive {
        return Ok(LockedFile::without(file));
    }
    LockedFile::lock(file, !writes(options)).map_err(|(file, errno)| match errno {
        Errno::WOULDBLOCK => PoolError::InUse {
            path: path.into(),
            pid: lock_holder(&file),
        },
        errno => io_error(path, "locking", errno.into()),
    })
}

/// The process that holds the lock, as /proc/locks tells it.
fn lock_holder(file: &File) -> Option<u32> {
    let meta = file.metadata().ok()?;
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let id = format!("{major:02x}:{minor:02x}:{}", meta.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    // 1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&id.as_str()))
            .then(|| fields.get(4)?.parse().ok())?
    })
}

/// Bytes that the file system of a file can still give.
pub(crate) fn free_space(file: &File) -> u64 {
    rustix::fs::fstatvfs(file).map_or(0, |stat| free_bytes(&stat))
}

fn free_bytes(stat: &rustix::fs::StatVfs) -> u64 {
    stat.f_bavail.saturating_mul(stat.f_frsize)
}

/// Repeats a system call that a signal interrupts.
pub(crate) fn retry<T>(call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    rustix::io::retry_on_intr(call)
}

fn no_space(path: &Path, file: &File, need: u64) -> PoolError {
    PoolError::NoSpace {
        path: path.into(),
        need,
        free: free_space(file),
    }
}

fn io_error(path: &Path, action: &'static str, source: io::Error) -> PoolError {
    match source.kind() {
        io::ErrorKind::NotFound => PoolError::NotFound { path: path.into() },
        io::ErrorKind::AlreadyExists => PoolError::Exists { path: path.into() },
        _ => PoolError::Io {
            path: path.into(),
            action,
            source,
        },
    }
}
