//! `tureen mkfs`: make a file system in an image.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pmem::{Options, Pool};
use uuid::Uuid;

use crate::failure::{Failure, Outcome};
use crate::units::{parse_size, size};
use crate::{engine, image};

/// How much of an image's beginning must be zero for it to pass as empty. Some file systems leave
/// their first 64 KiB alone, btrfs among them.
const BLANK_LEN: u64 = 1 << 20;

/// Make a file system in an image
///
/// Makes the image if it does not exist; then --size is needed. A file or device that holds
/// something already is only overwritten with --force.
#[derive(clap::Args)]
pub struct Args {
    /// The file, or persistent-memory device, to hold the file system
    image: PathBuf,
    /// Its size, like 512M, 4G or 1.5T
    #[arg(long, short, value_parser = parse_size)]
    size: Option<u64>,
    /// A name for people
    #[arg(long, short = 'L', default_value = "")]
    label: String,
    /// Its identifier; a random one by default
    #[arg(long, short = 'U')]
    uuid: Option<Uuid>,
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
    if let Some(size) = args.size {
        engine::check_len(&image, size)?;
    }
    let uuid = args.uuid.map_or_else(random_uuid, Ok)?;
    let pool = if image.exists() {
        overwrite(args, &image, uuid)?
    } else {
        let Some(size) = args.size else {
            let message = "does not exist; say how large it is to be, like --size 4G";
            return Err(Failure::at(&args.image, message));
        };
        create(&image, size, &args.label, uuid, &args.pool_options())?
    };
    if args.json {
        let report = serde_json::json!({
            "image": image.to_string_lossy(), "size_bytes": pool.len(), "uuid": uuid.to_string(),
            "label": args.label,
        });
        println!("{report}");
    } else {
        println!(
            "{}: {}, UUID {uuid}",
            args.image.display(),
            size(pool.len())
        );
    }
    Ok(0)
}

impl Args {
    fn pool_options(&self) -> Options {
        Options {
            sparse: self.sparse,
            ..Options::default()
        }
    }
}

/// A new image of this size with a file system, for `mount --create`.
pub fn create_plain(image: &Path, size: u64, options: &Options) -> Result<Arc<Pool>, Failure> {
    engine::check_len(image, size)?;
    create(image, size, "", random_uuid()?, options)
}

fn create(
    image: &Path,
    size: u64,
    label: &str,
    uuid: Uuid,
    options: &Options,
) -> Result<Arc<Pool>, Failure> {
    let pool = Arc::new(Pool::create(image, size, options)?);
    if let Err(failure) = engine::format(&pool, label, uuid, true) {
        // Half an image would only be in the way of the next attempt.
        let _ = std::fs::remove_file(image);
        return Err(failure);
    }
    Ok(pool)
}

/// Makes a file system in what exists.
fn overwrite(args: &Args, image: &Path, uuid: Uuid) -> Result<Arc<Pool>, Failure> {
    image::check_unmounted(image)?;
    let metadata = std::fs::metadata(image).map_err(|error| Failure::at(image, error))?;
    if metadata.is_file() && metadata.len() == 0 {
        return replace(args, image, uuid);
    }
    let pool = image::open(image, &args.pool_options())?;
    if !args.force && !is_blank(&pool) {
        let message = "holds something already; --force overwrites all of it";
        return Err(Failure::at(&args.image, message));
    }
    if args.size.is_some() && !metadata.is_file() {
        return Err(Failure::at(
            image,
            "has the size that it has: leave out --size",
        ));
    }
    if args.size.is_some_and(|size| size != pool.len()) {
        return replace(args, image, uuid);
    }
    engine::format(&pool, &args.label, uuid, false)?;
    Ok(pool)
}

/// Makes a file of another size in place of an existing one, which stays until the new one is
/// complete.
fn replace(args: &Args, image: &Path, uuid: Uuid) -> Result<Arc<Pool>, Failure> {
    let Some(size) = args.size else {
        return Err(Failure::at(
            &args.image,
            "is empty; say how large it is to be, like --size 4G",
        ));
    };
    let mut new = image.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let pool = create(&new, size, &args.label, uuid, &args.pool_options())?;
    std::fs::rename(&new, image).map_err(|error| {
        let _ = std::fs::remove_file(&new);
        Failure::at(image, format!("cannot be replaced: {error}"))
    })?;
    Ok(pool)
}

/// Whether the pool holds nothing yet: it begins with zeros, like a file made to be filled.
fn is_blank(pool: &Pool) -> bool {
    let mut start = vec![0; pool.len().min(BLANK_LEN) as usize];
    pool.read(0, &mut start);
    start.iter().all(|&byte| byte == 0)
}

fn random_uuid() -> Result<Uuid, Failure> {
    Ok(uuid::Builder::from_random_bytes(engine::random()?).into_uuid())
}
