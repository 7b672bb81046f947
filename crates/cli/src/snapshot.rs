//! `tureen snapshot`: what a file system was at some moment.
//!
//! Those of a mounted one the serving process makes and deletes: by the commands `snapshot create
//! NAME` and the like, see [`status::command`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Subcommand;
use serde_json::{Value, json};
use volume::{Access, Mounted, Snapshots};

use crate::engines::ENGINES;
use crate::failure::{Failure, Outcome};
use crate::mounts::{self, LiveMount};
use crate::units::size;
use crate::what::What;
use crate::{exclusive, image, output, status};

/// Make, list, read and delete snapshots of a file system
///
/// A snapshot has all files as they were when it was made, and takes only the space of what was
/// changed or removed since. Up to 20 are kept, across unmounts and crashes, until they are
/// deleted:
///
///     tureen snapshot create mnt monday
///     ... use mnt ...
///     tureen snapshot mount mnt monday old
///     cp old/precious mnt/
///     tureen umount old
///     tureen snapshot delete mnt monday
///
/// Only ext2 images have them, mounted in any mode but async, and without a cache. When there is
/// no space left to keep what a snapshot has, it is lost, rather than a write that it stands in the
/// way of: 'tureen stat' says so. After the image was mounted for writing by another system, its
/// snapshots are gone. In the mounted file system they are files in .snapshots, each an image that
/// any program may read.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a snapshot; what programs and the kernel have not written yet is not in it
    Create {
        /// The mounted directory, or an image that is not mounted
        #[arg(value_name = "DIR|IMAGE")]
        of: PathBuf,
        /// A name: letters, digits, '.', '-' and '_'
        name: String,
        /// Report in JSON
        #[arg(long)]
        json: bool,
    },
    /// List the snapshots, older ones first, with the space that each takes
    List {
        /// The mounted directory, or an image that is not mounted
        #[arg(value_name = "DIR|IMAGE")]
        of: PathBuf,
        /// Report in JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete a snapshot, whichever
    Delete {
        /// The mounted directory, or an image that is not mounted
        #[arg(value_name = "DIR|IMAGE")]
        of: PathBuf,
        /// Its name
        name: String,
    },
    /// Mount a snapshot for reading; 'tureen umount' ends that
    Mount {
        /// The mounted directory, or an image that is not mounted
        #[arg(value_name = "DIR|IMAGE")]
        of: PathBuf,
        /// Its name
        name: String,
        /// The directory to mount on
        dir: PathBuf,
    },
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Outcome {
    match &args.command {
        Command::Create { of, name, json } => {
            let made = create(&Whose::find(of)?, name, false)?;
            if *json {
                println!("{made}");
            } else {
                println!(
                    "{name}: made; operations were stopped for {} us, {} writes and {} flushes",
                    made["stopped_us"], made["stopped_writes"], made["stopped_flushes"]
                );
            }
        }
        Command::List { of, json } => list(&Whose::find(of)?, *json)?,
        Command::Delete { of, name } => delete(&Whose::find(of)?, name)?,
        Command::Mount { of, name, dir } => return mount(&Whose::find(of)?, name, dir),
    }
    output::check()?;
    Ok(0)
}

/// Whose snapshots are meant.
pub enum Whose {
    /// Those of a mount.
    Live(LiveMount),
    /// Those of an image that is not mounted.
    Image(PathBuf),
}

impl Whose {
    /// By the path of a directory or an image.
    fn find(path: &Path) -> Result<Whose, Failure> {
        Ok(match mounts::named(path)? {
            Some(mount) => Whose::Live(mount),
            None => Whose::Image(image::existing(path)?),
        })
    }
}

/// Has the process that serves a mount do something with its snapshots.
fn ask(mount: &LiveMount, words: &str) -> Result<Value, Failure> {
    status::command(&mount.dir, &format!("{COMMANDS}{words}"))
}

/// Does that in the serving process, by what is behind [`COMMANDS`].
pub fn act(snapshots: &dyn Snapshots, words: &str) -> Result<Value, String> {
    let said = |error: volume::Error| error.to_string();
    match words.split(' ').collect::<Vec<_>>()[..] {
        ["create", name] => snapshots.create(name, false).map_err(said),
        ["create-temporary", name] => snapshots.create(name, true).map_err(said),
        ["delete", name] => snapshots.delete(name).map(|()| Value::Null).map_err(said),
        ["list"] => Ok(snapshots.list().into()),
        ["path", name] => {
            let all = snapshots.list();
            match all.iter().any(|one| one["name"] == name) {
                true => Ok(json!(Path::new(snapshots.dir()).join(name))),
                false => Err(format!("there is no snapshot {name}")),
            }
        }
        _ => Err(format!(
            "'{words}' is not known here: it is served by another version"
        )),
    }
}

/// What the commands about snapshots begin with.
pub const COMMANDS: &str = "snapshot ";

/// Why there are none.
pub const NONE: &str = "this type of file system has no snapshots: only ext2 images have";

/// Does something with the snapshots of an image that is not mounted.
fn offline<T>(
    image: &Path,
    access: Access,
    act: impl FnOnce(&dyn Snapshots) -> volume::Result<T>,
) -> Result<T, Failure> {
    let engine = ENGINES.of(image)?;
    let settings = engine.settings();
    let volume = exclusive::open(image, engine, access, &settings)?;
    let mounted: Arc<dyn Mounted> = volume.mount(&settings, access != Access::Write)?;
    let done = match mounted.snapshots() {
        None => Err(Failure::at(image, NONE)),
        Some(snapshots) => act(snapshots).map_err(|error| Failure::at(image, error)),
    };
    mounted.unmount()?;
    done
}

fn check_name(name: &str) -> Result<(), Failure> {
    match name.contains(char::is_whitespace) {
        true => Err(Failure::usage("a snapshot's name has no blanks")),
        false => Ok(()),
    }
}

/// Makes one: facts about it.
fn create(of: &Whose, name: &str, temporary: bool) -> Result<Value, Failure> {
    check_name(name)?;
    let kind = if temporary {
        "create-temporary"
    } else {
        "create"
    };
    match of {
        Whose::Live(mount) => ask(mount, &format!("{kind} {name}")),
        Whose::Image(image) => offline(image, Access::Write, |all| all.create(name, temporary)),
    }
}

fn delete(of: &Whose, name: &str) -> Result<(), Failure> {
    check_name(name)?;
    match of {
        Whose::Live(mount) => {
            check_unused(mount, name)?;
            ask(mount, &format!("delete {name}")).map(drop)
        }
        Whose::Image(image) => offline(image, Access::Write, |all| all.delete(name)),
    }
}

/// Refuses to delete a snapshot that is mounted.
fn check_unused(mount: &LiveMount, name: &str) -> Result<(), Failure> {
    let Ok(path) = path(mount, name) else {
        return Ok(());
    };
    exclusive::check_unmounted(&path)
}

fn list(of: &Whose, json: bool) -> Result<(), Failure> {
    let all = match of {
        Whose::Live(mount) => ask(mount, "list")?,
        Whose::Image(image) => offline(image, Access::MountReadOnly, |all| Ok(all.list()))?.into(),
    };
    if json {
        println!("{all}");
        return Ok(());
    }
    for one in all.as_array().into_iter().flatten() {
        let at = jiff::Timestamp::from_second(one["created_at"].as_i64().unwrap_or(0));
        let at = at
            .map_err(Failure::new)?
            .to_zoned(jiff::tz::TimeZone::system());
        let space = size(one["space_bytes"].as_u64().unwrap_or(0));
        let name = one["name"].as_str().unwrap_or_default();
        println!(
            "{name:24} {}  {space:>10}",
            at.strftime("%Y-%m-%d %H:%M:%S")
        );
    }
    Ok(())
}

/// Where the image of a snapshot is in a mount.
fn path(mount: &LiveMount, name: &str) -> Result<PathBuf, Failure> {
    check_name(name)?;
    let answer = ask(mount, &format!("path {name}"))?;
    Ok(mount.dir.join(answer.as_str().unwrap_or_default()))
}

fn mount(of: &Whose, name: &str, dir: &Path) -> Outcome {
    match of {
        Whose::Live(live) => {
            let options = ["ro".to_owned()];
            What::find(&path(live, name)?, dir, None)?.in_background(&options)
        }
        Whose::Image(image) => {
            check_name(name)?;
            let options = [format!("ro,snapshot={name}")];
            What::find(image, dir, None)?.in_background(&options)
        }
    }
}

/// A snapshot of a mount that is deleted when this is dropped; with the mount at the latest.
pub struct Temporary {
    mount: LiveMount,
    name: String,
    /// Its image.
    pub path: PathBuf,
}

impl Temporary {
    /// Makes one.
    pub fn new(mount: LiveMount, purpose: &str) -> Result<Temporary, Failure> {
        let name = format!("{purpose}-{}", std::process::id());
        let whose = Whose::Live(mount.clone());
        create(&whose, &name, true)?;
        let mut made = Temporary {
            path: PathBuf::new(),
            mount,
            name,
        };
        made.path = path(&made.mount, &made.name)?;
        Ok(made)
    }

    /// Has it deleted, which may be done again.
    pub fn delete(&self) {
        let _ = ask(&self.mount, &format!("delete {}", self.name));
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        self.delete();
    }
}
