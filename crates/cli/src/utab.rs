//! The list of mounts that util-linux keeps for itself, `/run/mount/utab`.
//!
//! umount(8) calls `umount.fuse.tureen` when it knows the type of what it unmounts. Given an
//! absolute path it takes a short cut: it asks the file system for its number, which is that of all
//! of FUSE, finds no helper for `fuse`, and unmounts without waiting for anybody. The short cut is
//! not taken for a directory that this list names: then umount(8) reads the kernel's list, which
//! has the whole type. mount(8) leaves it to a helper to enter what it mounts.
//!
//! An entry is a line of `KEY=VALUE`; the file is replaced as a whole, under a lock on `utab.lock`.
//! One that stays after the serving process was killed harms nobody, and the next mount of the
//! directory replaces it.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::FlockOperation;

/// Where the list is.
const DIR: &str = "/run/mount";
/// Its name there.
const NAME: &str = "utab";
/// Without this, umount(8) has nothing to call.
const HELPER: &str = "/sbin/umount.fuse.tureen";

/// Enters a mount, if umount(8) has a helper to call and this user keeps the list.
pub fn enter(image: &Path, dir: &Path) {
    if !rustix::process::geteuid().is_root() || !Path::new(HELPER).exists() {
        return;
    }
    let entered = update(Path::new(DIR), |list| entered(list, image, dir));
    if let Err(error) = entered {
        log::warn!("{DIR}/{NAME}: {error}: umount(8) will not wait until the image is free");
    }
}

/// Takes a mount off the list. To be called before the image is free for the next mount.
pub fn leave(image: &Path, dir: &Path) {
    let list = Path::new(DIR).join(NAME);
    if !rustix::process::geteuid().is_root() || !list.exists() {
        return;
    }
    if let Err(error) = update(Path::new(DIR), |list| left(list, image, dir)) {
        log::warn!(
            "{DIR}/{NAME}: {error}: the entry of {} stays",
            dir.display()
        );
    }
}

/// Replaces the list in `dir` by what `change` makes of it, unless that is the same.
fn update(dir: &Path, change: impl FnOnce(&[u8]) -> Vec<u8>) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let mut options = OpenOptions::new();
    let lock = options.write(true).create(true).mode(0o644);
    let lock = lock.open(dir.join(format!("{NAME}.lock")))?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
    let path = dir.join(NAME);
    let old = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    let new = change(&old);
    if new == old {
        return Ok(());
    }
    let mut file = tempfile::NamedTempFile::with_prefix_in(format!("{NAME}."), dir)?;
    file.write_all(&new)?;
    file.as_file()
        .set_permissions(Permissions::from_mode(0o644))?;
    let _: File = file.persist(&path)?;
    Ok(())
}

/// The list with an entry for this mount as the only one of its directory.
fn entered(list: &[u8], image: &Path, dir: &Path) -> Vec<u8> {
    let target = field("TARGET=", dir);
    let mut new = without(list, &[&target]);
    for part in [
        &field("SRC=", image),
        &b" "[..],
        &target,
        b" ROOT=/ OPTS=x-tureen\n",
    ] {
        new.extend_from_slice(part);
    }
    new
}

/// The list without the entries of this mount.
fn left(list: &[u8], image: &Path, dir: &Path) -> Vec<u8> {
    without(list, &[&field("SRC=", image), &field("TARGET=", dir)])
}

/// The list without the lines that have all of these fields.
fn without(list: &[u8], fields: &[&[u8]]) -> Vec<u8> {
    let has = |line: &[u8], field: &&[u8]| {
        let mut parts = line.trim_ascii_end().split(|&byte| byte == b' ');
        parts.any(|part| part == *field)
    };
    let lines = list.split_inclusive(|&byte| byte == b'\n');
    let kept = lines.filter(|line| !fields.iter().all(|field| has(line, field)));
    kept.collect::<Vec<_>>().concat()
}

/// A field of an entry. What would end it is written as in the kernel's list: `\040`.
fn field(key: &str, path: &Path) -> Vec<u8> {
    let mut field = key.as_bytes().to_vec();
    let path: &OsStr = path.as_ref();
    for &byte in path.as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' | b'#' => field.extend(format!("\\{byte:03o}").bytes()),
            _ => field.push(byte),
        }
    }
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_comes_and_goes_and_others_stay() {
        let dir = tempfile::tempdir().expect("a directory");
        let (image, mnt) = (Path::new("/an image"), Path::new("/mnt"));
        let other = "SRC=server:/x TARGET=/nfs ROOT=/ OPTS=user\n";
        let read = || fs::read_to_string(dir.path().join(NAME)).expect("a list");
        fs::write(dir.path().join(NAME), other).expect("write");
        for _ in 0..2 {
            update(dir.path(), |list| entered(list, image, mnt)).expect("update");
            let own = "SRC=/an\\040image TARGET=/mnt ROOT=/ OPTS=x-tureen\n";
            assert_eq!(read(), format!("{other}{own}"));
        }
        // The next mount may have been quicker.
        let next = Path::new("/another");
        update(dir.path(), |list| entered(list, next, mnt)).expect("update");
        update(dir.path(), |list| left(list, image, mnt)).expect("update");
        assert!(read().contains("SRC=/another TARGET=/mnt "));
        update(dir.path(), |list| left(list, next, mnt)).expect("update");
        assert_eq!(read(), other);
    }
}
