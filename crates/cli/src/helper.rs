//! The conventions of mount(8) and umount(8) for helper programs.
//!
//! mount(8) calls `/sbin/mount.fuse.tureen SPEC DIR [-sfnv] [-N NS] [-o OPTIONS] [-t TYPE]`, and
//! umount(8) calls `/sbin/umount.fuse.tureen DIR [-flnrv] [-N NS] [-t TYPE]`. Both are this
//! program.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;
use rustix::mount::MountFlags;
use vfs::Atime;

use crate::failure::{Failure, Outcome};
use crate::options::MountOptions;
use crate::umount::Left;
use crate::what::What;
use crate::{mounts, output, status, umount};

/// Names of the helpers: what mount(8) and umount(8) look for in `/sbin`.
pub const NAMES: [&str; 2] = ["mount.fuse.tureen", "umount.fuse.tureen"];

/// Exit codes, as mount(8) has them.
const USAGE: u8 = 1;
const FAILED: u8 = 32;

/// Acts as a helper if called by the name of one.
pub fn called_as_helper(args: &mut [OsString]) -> Option<Outcome> {
    let name = Path::new(args.first()?).file_name()?.to_str()?.to_owned();
    let call = match name.as_str() {
        "mount.fuse.tureen" | "mount.tureen" => mount,
        "umount.fuse.tureen" | "umount.tureen" => umount,
        _ => return None,
    };
    output::start_log("warn");
    Some(Call::parse(&args[1..]).and_then(call))
}

/// What a helper was asked.
#[derive(Debug, Default, PartialEq)]
struct Call {
    positional: Vec<PathBuf>,
    options: Vec<String>,
    fake: bool,
    sloppy: bool,
    lazy: bool,
}

impl Call {
    fn parse(args: &[OsString]) -> Result<Call, Failure> {
        let mut call = Call::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let Some(letters) = arg.to_str().and_then(|arg| arg.strip_prefix('-')) else {
                call.positional.push(PathBuf::from(arg));
                continue;
            };
            let mut letters = letters.chars();
            while let Some(letter) = letters.next() {
                match letter {
                    's' => call.sloppy = true,
                    'f' => call.fake = true,
                    'l' => call.lazy = true,
                    'n' | 'v' | 'r' | 'w' => {}
                    'o' | 't' | 'N' => {
                        let rest = letters.as_str().to_owned();
                        let value = if rest.is_empty() {
                            next_value(&mut args, letter)?
                        } else {
                            rest
                        };
                        if letter == 'o' {
                            call.options.push(value);
                        }
                        break;
                    }
                    _ => return Err(usage(format!("unknown argument -{letter}"))),
                }
            }
        }
        Ok(call)
    }

    /// The options, one by one.
    fn asked(&self) -> impl Iterator<Item = &str> {
        let options = self.options.iter().flat_map(|list| list.split(','));
        options.map(str::trim)
    }
}

fn next_value<'a>(
    args: &mut impl Iterator<Item = &'a OsString>,
    letter: char,
) -> Result<String, Failure> {
    let value = args.next();
    let value = value.ok_or_else(|| usage(format!("-{letter} needs a value")))?;
    let text = value.to_str().map(str::to_owned);
    text.ok_or_else(|| usage(format!("-{letter}: its value is not UTF-8")))
}

fn usage(message: String) -> Failure {
    Failure::new(message).with_code(USAGE)
}

fn mount(call: Call) -> Outcome {
    let [image, dir] = &call.positional[..] else {
        return Err(usage(
            "usage: mount.fuse.tureen IMAGE DIR [-sfnv] [-o OPTIONS]".to_string(),
        ));
    };
    if call.asked().any(|option| option == "remount") {
        return remount(dir, &call).map_err(|failure| failure.with_code(FAILED));
    }
    let mut options = MountOptions::new(rustix::process::geteuid().is_root());
    let mut known = Vec::new();
    for list in &call.options {
        options.apply(list, call.sloppy).map_err(usage)?;
        known.extend(
            list.split(',')
                .filter(|option| is_known(option))
                .map(str::to_owned),
        );
    }
    let what = What::find(image, dir, None).map_err(|failure| failure.with_code(FAILED))?;
    if call.fake {
        return Ok(0);
    }
    match what.in_background(&[known.join(",")]) {
        Ok(0) => Ok(0),
        Ok(_) => Ok(FAILED),
        Err(failure) => Err(failure.with_code(FAILED)),
    }
}

/// `mount -o remount`: changes what the kernel sees to, and keeps the rest as it is: that belongs
/// to the process that serves.
fn remount(dir: &Path, call: &Call) -> Outcome {
    let failed = |what: &dyn Display| Failure::at(dir, format!("cannot remount: {what}"));
    let mount = mounts::on(&mounts::resolve(dir))
        .ok_or_else(|| failed(&"no Tureen file system is mounted here"))?;
    if call.fake {
        return Ok(0);
    }
    check_served(&mount.dir, call).map_err(|why| failed(&why))?;
    let mut flags = present_flags(&mount.dir).map_err(|errno| failed(&errno))?;
    for option in call.asked() {
        for (flag, on, off) in FLAGS {
            flags.set(
                flag,
                (flags.contains(flag) || option == on) && option != off,
            );
        }
    }
    rustix::mount::mount_remount(&mount.dir, flags, c"").map_err(|errno| failed(&errno))?;
    if flags.contains(MountFlags::RDONLY) {
        // Nothing comes after this any more: a barrier. The kernel has handed over what it held.
        sync(&mount.dir).map_err(|errno| {
            let what = format!("it is read-only now, but not all of it is durable: {errno}");
            Failure::at(dir, what).with_code(FAILED)
        })?;
    }
    Ok(0)
}

/// Makes durable all that was done in the file system on this directory. The kernel does not tell
/// the process that serves it of a remount, nor of syncfs(2).
fn sync(dir: &Path) -> rustix::io::Result<()> {
    rustix::fs::getxattr(dir, fuse::SYNC_XATTR, &mut [0; 64]).map(|_| ())
}

/// Refuses what the serving process would have to change: it would look as if it had happened.
/// Options that are as they were are no reason, mount(8) adds those of fstab.
fn check_served(dir: &Path, call: &Call) -> Result<(), String> {
    let (served, engine) = status::options(dir).map_err(|failure| failure.message)?;
    // It adds those that the kernel shows, too: of what is served with `strictatime` that is
    // `relatime`.
    let is_shown = |option: &str| match option {
        "relatime" => served.atime == Atime::Strict,
        "sync" => served.sync,
        _ => false,
    };
    let mut asked = served.clone();
    for option in call.asked() {
        if option != "remount" && !is_shown(option) {
            asked.apply(option, true)?;
        }
    }
    let settings = served.settings(engine)?;
    let differs = settings.difference(&asked.settings(engine)?);
    match differs.or_else(|| difference(&served, &asked)) {
        None => Ok(()),
        Some(what) => Err(format!(
            "{what} is up to the process that serves it; unmount it and mount it again with the \
             new options"
        )),
    }
}

/// What a remount cannot make of the options that something is served with: all but what the kernel
/// sees to. Those of the engine are compared elsewhere.
fn difference(served: &MountOptions, asked: &MountOptions) -> Option<&'static str> {
    let differences = [
        ("rw", served.read_only && !asked.read_only),
        ("access times", served.atime != asked.atime),
        ("allow_other", served.allow_other != asked.allow_other),
        ("threads", served.threads != asked.threads),
        ("transport", served.transport != asked.transport),
        ("writeback", served.writeback != asked.writeback),
        ("log", served.log != asked.log),
    ];
    let mut differences = differences.into_iter();
    differences.find_map(|(what, differs)| differs.then_some(what))
}

/// What can be changed by a remount: the flag, the option that sets it, the one that takes it away.
const FLAGS: [(MountFlags, &str, &str); 5] = [
    (MountFlags::RDONLY, "ro", "rw"),
    (MountFlags::NOSUID, "nosuid", "suid"),
    (MountFlags::NODEV, "nodev", "dev"),
    (MountFlags::NOEXEC, "noexec", "exec"),
    (MountFlags::SYNCHRONOUS, "sync", "async"),
];

/// The flags of a mount as it is: a remount takes away those that it does not name.
fn present_flags(dir: &Path) -> rustix::io::Result<MountFlags> {
    let present = rustix::fs::statvfs(dir)?.f_flag;
    // The two calls number these flags alike.
    let mut flags = FLAGS
        .iter()
        .filter(|(flag, ..)| present.bits() & u64::from(flag.bits()) != 0)
        .fold(MountFlags::empty(), |flags, (flag, ..)| flags | *flag);
    let by_rule = StatVfsMountFlags::NOATIME | StatVfsMountFlags::RELATIME;
    flags.set(MountFlags::STRICTATIME, !present.intersects(by_rule));
    let never = present.contains(StatVfsMountFlags::NOATIME);
    flags.set(MountFlags::NOATIME, never);
    Ok(flags)
}

/// What a sloppy call passed over must not reach the run in the background, which is strict.
fn is_known(option: &str) -> bool {
    MountOptions::new(false).apply(option, false).is_ok()
}

fn umount(call: Call) -> Outcome {
    let [dir] = &call.positional[..] else {
        return Err(usage("usage: umount.fuse.tureen DIR [-flnrv]".to_string()));
    };
    if call.fake {
        log::info!("-f has no meaning for a file system without a server elsewhere");
    }
    // As for umount(8) of any file system, it is not for this directory to say who else has it.
    match umount::unmount(dir, call.lazy) {
        Ok(Left::Nothing) => Ok(0),
        Ok(Left::Mounted(what) | Left::Held(what)) => {
            eprintln!("umount.fuse.tureen: {}: {what}", dir.display());
            Ok(0)
        }
        Err(failure) => Err(failure.with_code(FAILED)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn parse(args: &[&str]) -> Result<Call, Failure> {
        Call::parse(&args.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_arguments_of_mount_are_understood() {
        let call = parse(&[
            "/img",
            "/mnt",
            "-sv",
            "-o",
            "rw,noatime",
            "-t",
            "fuse.tureen",
        ])
        .expect("as mount(8) has it");
        assert_eq!(call.positional, [Path::new("/img"), Path::new("/mnt")]);
        assert_eq!(call.options, ["rw,noatime"]);
        assert!(call.sloppy && !call.fake);
        assert_eq!(parse(&["a", "b", "-oro"]).expect("joined").options, ["ro"]);
    }

    #[test]
    fn wrong_arguments_end_with_the_code_of_mount() {
        assert_eq!(parse(&["-Z"]).expect_err("unknown").code, USAGE);
        assert_eq!(parse(&["-o"]).expect_err("no value").code, USAGE);
        let no_text = OsString::from_vec(b"log=\xff".to_vec());
        let call = Call::parse(&["-o".into(), no_text]);
        assert_eq!(call.expect_err("no text").code, USAGE);
        assert_eq!(mount(Call::default()).expect_err("no image").code, USAGE);
    }
}
