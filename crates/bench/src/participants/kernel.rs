//! File systems of the kernel's, each on a loop device over a file, mounted where nobody sees it.
//!
//! The mount is *detached*: it is a descriptor, no path leads to it; or it has a path in a
//! namespace of mounts that nobody else sees (`namespace`). The file has no name any more
//! once it is mounted, and the device is told to go away with its last user. So when the descriptor
//! is closed, if only because the process was killed, all of it is gone.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Advice, FallocateFlags, Mode, OFlags, fallocate};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};

use crate::target::{EXT4_DATA_JOURNAL, Result};

/// A file system that is mounted.
pub struct Device {
    /// Its root directory.
    pub root: OwnedFd,
    /// The file that holds it, which has no name any more.
    pub image: File,
    /// Where its device counts.
    pub stat: PathBuf,
    /// What it is.
    pub about: String,
    /// What it writes, when.
    pub durability: String,
}

/// What is known of a file system.
struct Kind {
    name: &'static str,
    /// Arguments of its mkfs, before the file.
    mkfs: &'static [&'static str],
    /// What the kernel calls it.
    kind: &'static str,
    /// Options of its mount.
    options: &'static [(&'static str, &'static str)],
    /// Less than this it does not accept: bytes.
    len_min: u64,
    durability: &'static str,
}

/// Arguments of the mkfs of ext2, ext3 and ext4: nothing is left for the mount to initialise.
const MKE2FS: &[&str] = &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"];

const KINDS: [Kind; 6] = [
    Kind {
        name: "ext4",
        kind: "ext4",
        options: &[],
        mkfs: MKE2FS,
        len_min: 64 << 20,
        durability: "metadata to its journal every 5 s (data=ordered: data first), all of it in \
         fsync \
                     and syncfs, with flushes of the device",
    },
    Kind {
        name: "ext3",
        kind: "ext3",
        options: &[],
        mkfs: MKE2FS,
        len_min: 64 << 20,
        durability: "metadata to its journal every 5 s (data=ordered: data first), all of it in \
         fsync and syncfs, with flushes of the device",
    },
    Kind {
        name: "ext2",
        kind: "ext2",
        options: &[],
        mkfs: &["-q", "-F", "-E", "lazy_itable_init=0"],
        len_min: 64 << 20,
        durability: "in no order, when the kernel writes back (30 s), all of it in fsync and \
         syncfs, with flushes of the device",
    },
    Kind {
        name: EXT4_DATA_JOURNAL,
        kind: "ext4",
        options: &[("data", "journal")],
        mkfs: MKE2FS,
        len_min: 64 << 20,
        durability: "metadata and data to its journal every 5 s, all of it in fsync and syncfs, \
         with flushes of the device",
    },
    Kind {
        name: "xfs",
        kind: "xfs",
        options: &[],
        mkfs: &["-q", "-f"],
        len_min: 300 << 20,
        durability: "metadata to its log in the background (30 s), all of it in fsync and syncfs, \
         with \
                     flushes of the device",
    },
    Kind {
        name: "btrfs",
        kind: "btrfs",
        options: &[],
        mkfs: &["-q", "-f"],
        len_min: 256 << 20,
        durability: "a tree of its own version every 30 s (copy on write, data with checksums), \
         and in \
                     fsync and syncfs, with flushes of the device",
    },
];

/// What has so many bytes for each file has room for all their inodes, by the defaults of each
/// mkfs.
pub const BYTES_PER_FILE: u64 = 16 << 10;

/// Make and mount a file system of `len` bytes, the file for it in `dir`; it is mounted on `at`, or
/// on no path.
pub fn set_up(name: &str, len: u64, dir: &Path, at: Option<&Path>) -> Result<Device> {
    let kind = KINDS.iter().find(|kind| kind.name == name);
    let kind = kind.ok_or_else(|| format!("{name} cannot be set up"))?;
    if !rustix::process::geteuid().is_root() {
        return Err("only root can set up a kernel file system".into());
    }
    let image = dir.join("image");
    let mkfs = kind.make(len, &image)?;
    let device = run(Command::new("losetup")
        .args(["--find", "--show"])
        .arg(&image))?;
    let source = [("source", device.as_str())];
    let options: Vec<_> = source.into_iter().chain(kind.options.to_vec()).collect();
    let mounted = mount(kind.kind, &options, at);
    // In use by the mount, the device goes away with it; otherwise at once.
    let released = run(Command::new("losetup").args(["--detach", &device]));
    let file = File::options().read(true).write(true).open(&image)?;
    std::fs::remove_file(&image)?;
    let root = mounted?;
    released?;
    let short = Path::new(&device)
        .file_name()
        .ok_or("a device without a name")?;
    let on = file_system_of(dir);
    Ok(Device {
        root,
        image: file,
        stat: Path::new("/sys/block").join(short).join("stat"),
        about: format!(
            "{} by system calls, on a loop device of {} MiB over {on}, `{mkfs} {}`, {}",
            kind.kind,
            len.max(kind.len_min) >> 20,
            kind.mkfs.join(" "),
            match kind.options {
                [] => "default mount options".into(),
                all => {
                    let all = all.iter().map(|(name, value)| format!("{name}={value}"));
                    format!("mounted with {}", all.collect::<Vec<_>>().join(","))
                }
            }
        ),
        durability: format!("{}{}", kind.durability, cost_of(&on)),
    })
}

/// What writing to a device in a file on such a file system costs.
fn cost_of(on: &str) -> &'static str {
    match on {
        "tmpfs" => ", which is memory: that costs no disk's time",
        _ => ", which reach the disk that its file is on",
    }
}

/// Drop what the kernel keeps of a file's contents in memory.
pub fn forget(file: &File) -> Result<()> {
    // What is not written yet would stay.
    rustix::fs::fdatasync(file)?;
    Ok(rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?)
}

/// Make an ext4 in a file of `len` bytes, for whoever serves it.
pub fn make_ext4(len: u64, image: &Path) -> Result<()> {
    KINDS[0].make(len, image).map(drop)
}

impl Kind {
    /// Make one in a file of `len` bytes; returns the program that did.
    fn make(&self, len: u64, image: &Path) -> Result<String> {
        let (mkfs, len) = (format!("mkfs.{}", self.kind), len.max(self.len_min));
        let file = File::create(image)?;
        file.set_len(len)?;
        run(Command::new(&mkfs).args(self.mkfs).arg(image))?;
        // On a disk whoever writes would wait for the host's allocation, and our images have
        // theirs; in memory it would only take what is never used. After mkfs, which gives back
        // what is there.
        if is_allocated(image) {
            fallocate(&file, FallocateFlags::empty(), 0, len)?;
        }
        Ok(mkfs)
    }
}

/// Whether the blocks of such a device are all there before they are written.
pub fn is_allocated(dir: &Path) -> bool {
    file_system_of(dir) != "tmpfs"
}

/// A tmpfs of its own, with no limit to its files, on `at` or on no path; `None` if this user may
/// not mount.
pub fn tmpfs(at: Option<&Path>) -> Option<OwnedFd> {
    mount("tmpfs", &[("nr_inodes", "0")], at).ok()
}

/// The root of a file system that is mounted on `at`, or that no path leads to.
fn mount(name: &str, options: &[(&str, &str)], at: Option<&Path>) -> Result<OwnedFd> {
    let say = |what: &str, errno| -> crate::target::Failure {
        match errno {
            rustix::io::Errno::NODEV => {
                format!("the kernel has no {name} (its module is missing)").into()
            }
            errno => format!("{what} {name}: {errno}").into(),
        }
    };
    let fs = fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC).map_err(|errno| say("open", errno))?;
    for (key, value) in options {
        fsconfig_set_string(&fs, *key, *value).map_err(|errno| say("configure", errno))?;
    }
    fsconfig_create(&fs).map_err(|errno| say("mount", errno))?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    let mount =
        fsmount(&fs, flags, MountAttrFlags::empty()).map_err(|errno| say("mount", errno))?;
    if let Some(at) = at {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        let moved = move_mount(&mount, "", rustix::fs::CWD, at, flags);
        moved.map_err(|errno| say("attach", errno))?;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(&mount, ".", flags, Mode::empty())?)
}

/// Runs a program; returns what it printed, without the end of the line.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|why| match why.kind() {
        std::io::ErrorKind::NotFound => format!("{program} is not installed"),
        _ => format!("{program}: {why}"),
    })?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program}: {}", why.trim()).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The type of the file system that a path is on, as the table of mounts has it.
pub fn file_system_of(path: &Path) -> String {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mounts = table.lines().filter_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let on = mount.split(' ').nth(4)?;
        path.starts_with(on)
            .then(|| (on.len(), source.split(' ').next().unwrap_or("")))
    });
    // Of mounts on the same directory the last one counts, and so does `max_by_key`.
    mounts
        .max_by_key(|(len, _)| *len)
        .map_or("an unknown file system", |(_, kind)| kind)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_on_proc() {
        assert_eq!(file_system_of(Path::new("/proc/self/stat")), "proc");
    }

    #[test]
    fn a_program_that_is_not_there_is_said_to_be_missing() {
        let why = run(&mut Command::new("mkfs.nosuchfs")).unwrap_err();
        assert_eq!(why.to_string(), "mkfs.nosuchfs is not installed");
    }
}
