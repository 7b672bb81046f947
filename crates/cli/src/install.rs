//! `tureen install`: let mount(8), umount(8) and fstab know this program.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Outcome};
use crate::helper;

/// Make 'mount -t fuse.tureen' and fstab work
///
/// Links this program into sbin under the names of the helpers that mount(8) and umount(8) look
/// for. Then 'mount -t fuse.tureen IMAGE DIR', 'umount DIR' (which waits until all is durable), and
/// in /etc/fstab 'IMAGE DIR fuse.tureen defaults 0 0' work. 'mount -o remount,OPTIONS DIR' changes
/// what the kernel sees to: ro (all that was done before is durable when it returns), nodev,
/// nosuid, noexec, and sync where mode=sync is served; it refuses to change other options.
#[derive(clap::Args)]
pub struct Args {
    /// The root of the system to install into
    #[arg(long, default_value = "/")]
    prefix: PathBuf,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Outcome {
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find this program: {error}")))?;
    let sbin = args.prefix.join("sbin");
    std::fs::create_dir_all(&sbin).map_err(|error| Failure::at(&sbin, error))?;
    for name in helper::NAMES {
        let link = sbin.join(name);
        install(&program, &link)?;
        println!("{} -> {}", link.display(), program.display());
    }
    Ok(0)
}

/// Makes the link, in place of an older one; a file that is no link is left alone.
fn install(program: &Path, link: &Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::at(link, format!("cannot install: {error}"));
    match std::fs::symlink_metadata(link) {
        Ok(old) if old.is_symlink() => std::fs::remove_file(link).map_err(failed)?,
        Ok(_) => {
            return Err(Failure::at(
                link,
                "exists and is not a link: remove it first",
            ));
        }
        Err(_) => {}
    }
    symlink(program, link).map_err(failed)
}
