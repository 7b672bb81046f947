//! The live mounts, as the kernel lists them in `/proc/self/mountinfo`.

use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::failure::Failure;
use crate::{image, status};

/// The type under which our mounts are listed.
const FS_TYPE: &str = "fuse.tureen";

/// One of our mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveMount {
    /// The image.
    pub image: PathBuf,
    /// Where it is mounted.
    pub dir: PathBuf,
    /// The minor number of the device that the kernel makes for the file system; another one gets
    /// it afterwards.
    pub minor: u32,
}

/// The path without symbolic links; as it is written where that cannot be found out: a mount whose
/// process has died, or that belongs to someone else, does not let itself be looked at.
pub fn resolve(path: &Path) -> PathBuf {
    path.canonicalize()
        .or_else(|_| std::path::absolute(path))
        .unwrap_or_else(|_| path.to_path_buf())
}

/// All of our mounts that this process can see; later ones, which cover earlier ones, last.
pub fn live() -> Vec<LiveMount> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    parse(&table)
}

/// The mount on this directory, which must be absolute and without symbolic links.
pub fn on(dir: &Path) -> Option<LiveMount> {
    live().into_iter().rfind(|mount| mount.dir == dir)
}

/// The mount of this image, which must be absolute and without symbolic links: if it has several,
/// one that is not covered.
pub fn of(image: &Path) -> Option<LiveMount> {
    let mut mounts = live();
    mounts.retain(|mount| mount.image == image && !is_of_another(mount));
    mounts.into_iter().max_by_key(|mount| !is_covered(mount))
}

/// The mount that is meant by this path, of its directory or of its image; `None`: an image that
/// nobody serves.
///
/// # Errors
/// It is a directory on which nothing of ours is mounted, or is covered by another mount; there is
/// no such image.
pub fn named(path: &Path) -> Result<Option<LiveMount>, Failure> {
    if let Some(mount) = on(&resolve(path)) {
        check_uncovered(&mount)?;
        return Ok(Some(mount));
    }
    if path.is_dir() {
        return Err(Failure::at(path, "no Tureen file system is mounted here"));
    }
    let image = image::existing(path)?;
    Ok(of(&image).filter(|mount| !is_dead(&mount.dir)))
}

/// Whether the image of this mount was given another name since, and its path now leads to another
/// file. One that cannot be asked is taken for what its path says.
fn is_of_another(mount: &LiveMount) -> bool {
    if is_covered(mount) {
        return false;
    }
    let served = status::ask(&mount.dir).ok();
    let served = served.and_then(|status| Some(status["image_id"].as_str()?.to_owned()));
    let found = image::id(&mount.image);
    served
        .zip(found)
        .is_some_and(|(served, found)| served != found)
}

/// All mounts of the file system of this one, bind mounts of parts of it among them.
pub fn of_file_system(mount: &LiveMount) -> Vec<LiveMount> {
    let mut mounts = live();
    mounts.retain(|other| (other.minor, &other.image) == (mount.minor, &mount.image));
    mounts
}

/// Whether something else is mounted over this mount, or over what it is in: its directory leads
/// elsewhere.
pub fn is_covered(mount: &LiveMount) -> bool {
    fuse::device(&mount.dir).is_ok_and(|device| device != (0, mount.minor))
}

/// Refuses a mount that is covered: its directory leads to something that is not ours.
pub fn check_uncovered(mount: &LiveMount) -> Result<(), Failure> {
    if !is_covered(mount) {
        return Ok(());
    }
    let message = format!(
        "another file system is mounted over that of {}; unmount that first: umount {}",
        mount.image.display(),
        mount.dir.display()
    );
    Err(Failure::at(&mount.dir, message))
}

/// Whether the process behind a mount has died. Waits for the answer of one that has not.
pub fn is_dead(dir: &Path) -> bool {
    // Unlike attributes, this is never answered from the kernel's caches.
    // A request that was waiting when the process died fails otherwise than later ones.
    let died = [Some(Errno::NOTCONN), Some(Errno::CONNABORTED)];
    died.contains(&rustix::fs::statfs(dir).err())
}

/// What tells whether the kernel still holds a file system, attached to a directory or not: a file
/// that exists as long, and is not taken for that of a later one with the same number.
pub struct Hold(Option<File>);

impl Hold {
    /// Of the file system of a mount that is there.
    pub fn on(mount: &LiveMount) -> Hold {
        let file = format!("/sys/class/bdi/0:{}/read_ahead_kb", mount.minor);
        Hold(File::open(file).ok())
    }

    /// Whether the kernel holds it; not, as far as is known, where the file cannot be read.
    pub fn lasts(&self) -> bool {
        let file = self.0.as_ref();
        file.is_some_and(|file| file.read_at(&mut [0], 0).is_ok())
    }
}

fn parse(table: &[u8]) -> Vec<LiveMount> {
    // 36 35 98:0 /root /mount/point rw,noatime shared:1 - type source options
    let line = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let after = fields.iter().position(|field| *field == b"-")?;
        let (kind, source) = (fields.get(after + 1)?, fields.get(after + 2)?);
        let minor = std::str::from_utf8(fields[2]).ok()?.strip_prefix("0:")?;
        (*kind == FS_TYPE.as_bytes()).then_some(LiveMount {
            image: unescape(source),
            dir: unescape(fields[4]),
            minor: minor.parse().ok()?,
        })
    };
    table
        .split(|&byte| byte == b'\n')
        .filter_map(line)
        .collect()
}

/// Where the kernel has mounted a block device, by its number, `major:minor`, or its path, in a
/// table of mounts.
pub fn dir_of_device(table: &[u8], number: &str, path: Option<&Path>) -> Option<PathBuf> {
    let line = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let after = fields.iter().position(|field| *field == b"-")?;
        let (kind, source) = (fields.get(after + 1)?, fields.get(after + 2)?);
        let is_it = fields[2] == number.as_bytes() || path.is_some_and(|p| unescape(source) == p);
        (is_it && *kind != FS_TYPE.as_bytes()).then(|| unescape(fields[4]))
    };
    table.split(|&byte| byte == b'\n').find_map(line)
}

/// Spaces and the like are written as `\040`.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| byte == b'\\');
        let code =
            octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_mount_of_a_device_is_found_by_number_and_by_path() {
        let table = b"22 1 7:3 / /mnt/a\\040b rw - ext4 /dev/loop3 rw\n\
            23 1 0:50 / /mnt/c rw - btrfs /dev/vdb rw\n\
            24 1 0:51 / /mnt/d rw - fuse.tureen /dev/vdc rw\n";
        let found = |number: &str, path: &str| dir_of_device(table, number, Some(Path::new(path)));
        assert_eq!(found("7:3", "/dev/other"), Some("/mnt/a b".into()));
        assert_eq!(found("8:1", "/dev/vdb"), Some("/mnt/c".into()));
        assert_eq!(found("8:2", "/dev/vdc"), None);
    }

    #[test]
    fn only_our_mounts_are_found_and_escapes_undone() {
        let table = b"22 1 0:20 / /proc rw - proc proc rw\n\
            40 22 0:41 / /mnt/a\\040b rw,relatime shared:5 - fuse.tureen /img\\0401 rw,user_id=0\n\
            broken line\n";
        let found = parse(table);
        assert_eq!(
            found,
            [LiveMount {
                image: "/img 1".into(),
                dir: "/mnt/a b".into(),
                minor: 41,
            }]
        );
    }
}
