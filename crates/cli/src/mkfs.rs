//! `tureen mkfs`: make a file system in an image.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use uuid::Uuid;
use volume::{Access, Engine, Format, Settings, Volume};

use crate::engines::ENGINES;
use crate::failure::{Failure, Outcome};
use crate::units::{parse_size, size};
use crate::{exclusive, image, random};

/// How much of an image's beginning must be zero for it to pass as empty. Some file systems leave
/// their first 64 KiB alone, btrfs among them.
const BLANK_LEN: u64 = 1 << 20;

/// Make a file system in an image
///
/// Makes the image if it does not exist; then --size is needed. A file or device that holds
/// something already is only overwritten with --force.
#[derive(clap::Args)]
pub struct Args {
    /// The file, block device or persistent-memory device to hold the file system
    image: PathBuf,
    /// Its size, like 512M, 4G or 1.5T
    #[arg(long, short, value_parser = parse_size)]
    size: Option<u64>,
    /// The type of the file system: what serves it
    #[arg(long = "type", short = 't', default_value = ENGINES.default_engine().name())]
    kind: String,
    /// A name for people
    #[arg(long, short = 'L', default_value = "")]
    label: String,
    /// Its identifier; a random one by default
    #[arg(long, short = 'U')]
    uuid: Option<Uuid>,
    /// With a journal, which makes an ext2 image one of ext3
    #[arg(long)]
    journal: bool,
    /// Take blocks of the host file system only as they are used
    #[arg(long)]
    sparse: bool,
    /// Overwrite what the image holds
    #[arg(long, short)]
    force: bool,
    /// Report in JSON
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Outcome {
    let image = image::absolute(&args.image)?;
    let uuid = args.uuid.map_or_else(random_uuid, Ok)?;
    let new = New {
        engine: ENGINES.named(&args.kind).map_err(Failure::usage)?,
        label: args.label.clone(),
        uuid,
        sparse: args.sparse,
        journal: args.journal,
    };
    if new.journal && !new.engine.has_journals() {
        let message = format!("images of {} have no journal", new.engine.name());
        return Err(Failure::usage(message));
    }
    if let Some(size) = args.size {
        new.check_len(&image, size)?;
    }
    let volume = if image.exists() {
        overwrite(args, &image, &new)?
    } else {
        let Some(size) = args.size else {
            let message = "does not exist; say how large it is to be, like --size 4G";
            return Err(Failure::at(&args.image, message));
        };
        new.create(&image, size, &new.engine.settings())?
    };
    if args.json {
        let report = serde_json::json!({
            "image": image.to_string_lossy(), "type": new.engine.name(),
            "size_bytes": volume.len(), "uuid": uuid.to_string(), "label": args.label,
        });
        println!("{report}");
    } else {
        println!(
            "{}: {}, UUID {uuid}",
            args.image.display(),
            size(volume.len())
        );
    }
    Ok(0)
}

/// A file system that is to be made.
struct New {
    engine: &'static dyn Engine,
    label: String,
    uuid: Uuid,
    sparse: bool,
    journal: bool,
}

impl New {
    fn format(&self, zeroed: bool) -> Format {
        Format {
            uuid: self.uuid.into_bytes(),
            label: self.label.clone(),
            zeroed,
            journal: self.journal,
        }
    }

    fn check_len(&self, image: &Path, len: u64) -> Result<(), Failure> {
        let checked = self.engine.check_len(len);
        checked.map_err(|error| Failure::at(image, error))
    }

    /// In a new file.
    fn create(
        &self,
        image: &Path,
        size: u64,
        settings: &Settings,
    ) -> Result<Arc<dyn Volume>, Failure> {
        let volume = self.engine.create(image, size, self.sparse, settings)?;
        if let Err(error) = volume.format(&self.format(true)) {
            // Half an image would only be in the way of the next attempt.
            let _ = std::fs::remove_file(image);
            return Err(error.into());
        }
        Ok(volume)
    }
}

/// A new image of this size with a file system, for `mount --create`.
pub fn create_plain(
    image: &Path,
    size: u64,
    engine: &'static dyn Engine,
    settings: &Settings,
) -> Result<Arc<dyn Volume>, Failure> {
    let new = New {
        engine,
        label: String::new(),
        uuid: random_uuid()?,
        sparse: false,
        journal: false,
    };
    new.check_len(image, size)?;
    new.create(image, size, settings)
}

/// Makes a file system in what exists.
fn overwrite(args: &Args, image: &Path, new: &New) -> Result<Arc<dyn Volume>, Failure> {
    exclusive::check_unmounted(image)?;
    let metadata = std::fs::metadata(image).map_err(|error| Failure::at(image, error))?;
    if metadata.is_file() && metadata.len() == 0 {
        return replace(args, image, new);
    }
    let settings = new.engine.settings();
    let volume = exclusive::open(image, new.engine, Access::Write, &settings)?;
    if !args.force && !is_blank(&*volume)? {
        let message = "holds something already; --force overwrites all of it";
        return Err(Failure::at(&args.image, message));
    }
    if args.size.is_some() && !metadata.is_file() {
        return Err(Failure::at(
            image,
            "has the size that it has: leave out --size",
        ));
    }
    if args.size.is_some_and(|size| size != volume.len()) {
        return replace(args, image, new);
    }
    volume.format(&new.format(false))?;
    Ok(volume)
}

/// Makes a file of another size in place of an existing one, which stays until the new one is
/// complete.
fn replace(args: &Args, image: &Path, new: &New) -> Result<Arc<dyn Volume>, Failure> {
    let Some(size) = args.size else {
        return Err(Failure::at(
            &args.image,
            "is empty; say how large it is to be, like --size 4G",
        ));
    };
    let mut beside = image.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let volume = new.create(&beside, size, &new.engine.settings())?;
    std::fs::rename(&beside, image).map_err(|error| {
        let _ = std::fs::remove_file(&beside);
        Failure::at(image, format!("cannot be replaced: {error}"))
    })?;
    Ok(volume)
}

/// Whether it holds nothing yet: it begins with zeros, like a file made to be filled.
fn is_blank(volume: &dyn Volume) -> Result<bool, Failure> {
    let mut start = vec![0; volume.len().min(BLANK_LEN) as usize];
    volume.read(0, &mut start)?;
    Ok(start.iter().all(|&byte| byte == 0))
}

fn random_uuid() -> Result<Uuid, Failure> {
    Ok(uuid::Builder::from_random_bytes(random::bytes()?).into_uuid())
}
