//! A second engine, for tests of all that must not know which one it serves: the reference file
//! system, whose contents live as long as the mount. Its image is a header.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use fuse::StatusFn;
use model::Model;
use rustix::fs::FlockOperation;
use serde_json::{Value, json};
use vfs::SystemClock;
use volume::{
    Access, Check, Engine, Error, Format, Image, Mounted, Own, Progress, Report, Result, Settings,
    Volume,
};

/// The engine.
pub struct Volatile;

/// The image's first words.
const MAGIC: [u8; 8] = *b"Volatile";
/// Where the image says whether it was unmounted.
const AT_CLEAN: u64 = 8;

struct Opened {
    file: Arc<File>,
    len: u64,
}

struct Live {
    file: Arc<File>,
    /// Until it is served.
    fs: Mutex<Option<Model>>,
    settings: Settings,
    read_only: bool,
}

impl Engine for Volatile {
    fn name(&self) -> &'static str {
        "volatile"
    }

    fn owns(&self, image: &Image) -> io::Result<Own> {
        Ok(match image.bytes(0)? == MAGIC {
            true => Own::Yes,
            false => Own::No,
        })
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::new();
        settings.put("room", 1000);
        settings
    }

    fn set(
        &self,
        settings: &mut Settings,
        name: &str,
        value: Option<&str>,
    ) -> std::result::Result<bool, String> {
        let ("room", Some(value)) = (name, value) else {
            return Ok(false);
        };
        let room: u64 = value.parse().map_err(|_| "use a number of blocks")?;
        settings.put("room", room);
        Ok(true)
    }

    fn set_sync(&self, _: &mut Settings, _: bool) {}

    fn options_help(&self) -> &'static str {
        "  room=N              blocks"
    }

    fn option_names(&self) -> &'static str {
        "room="
    }

    fn check_len(&self, len: u64) -> Result<()> {
        match len {
            16.. => Ok(()),
            _ => Err(Error::new("an image has 16 bytes or more")),
        }
    }

    fn create(&self, path: &Path, len: u64, _: bool, _: &Settings) -> Result<Arc<dyn Volume>> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).open(path);
        opened(path, file.and_then(|file| file.set_len(len).map(|()| file)))
    }

    fn open(&self, path: &Path, _: Access, _: &Settings) -> Result<Arc<dyn Volume>> {
        opened(path, OpenOptions::new().read(true).write(true).open(path))
    }
}

fn opened(path: &Path, file: io::Result<File>) -> Result<Arc<dyn Volume>> {
    let file = file.map_err(|error| Error::at(path, error))?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| Error::InUse(format!("{}: in use", path.display())))?;
    let len = file.metadata().map_err(Error::new)?.len();
    Ok(Arc::new(Opened {
        file: Arc::new(file),
        len,
    }))
}

impl Volume for Opened {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(buf, at).map_err(Error::new)
    }

    fn format(&self, _: &Format) -> Result<()> {
        let header = [MAGIC, 1_u64.to_le_bytes()].concat();
        self.file.write_all_at(&header, 0).map_err(Error::new)
    }

    fn inspect(&self) -> Result<Value> {
        Ok(json!({ "type": Volatile.name(), "clean": self.is_clean() }))
    }

    fn is_clean(&self) -> Option<bool> {
        let mut clean = [0];
        self.read(AT_CLEAN, &mut clean).ok()?;
        Some(clean == [1])
    }

    fn medium(&self) -> Value {
        json!({ "kind": "memory", "survives": "nothing" })
    }

    fn check(&self, _: &Check, progress: Progress<'_>) -> Result<Report> {
        progress("header", 1, 1);
        let clean = self.is_clean() == Some(true);
        Ok(Report {
            text: if clean { "clean" } else { "was not unmounted" }.to_owned(),
            json: json!({ "was_clean": clean }),
            code: if clean { 0 } else { 4 },
        })
    }

    fn mount(&self, settings: &Settings, read_only: bool) -> Result<Arc<dyn Mounted>> {
        let room = settings.get("room").and_then(|room| room.parse().ok());
        let options = model::Options {
            capacity: room,
            ..model::Options::default()
        };
        self.file.write_all_at(&[0], AT_CLEAN).map_err(Error::new)?;
        Ok(Arc::new(Live {
            file: self.file.clone(),
            fs: Mutex::new(Some(Model::with_options(Arc::new(SystemClock), options))),
            settings: settings.clone(),
            read_only,
        }))
    }

    /// Nothing becomes durable anyway.
    fn poison(&self, _: &str) {}
}

impl Mounted for Live {
    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn status(&self) -> Value {
        json!({ "type": Volatile.name(), "room": self.settings.get("room") })
    }

    fn sync(&self) -> vfs::Result<()> {
        Ok(()) // nothing survives a crash
    }

    fn unmount(&self) -> Result<()> {
        self.file.write_all_at(&[1], AT_CLEAN).map_err(Error::new)
    }

    fn dump(
        &self,
        options: &dump::Options,
        out: &mut dyn io::Write,
        progress: dump::Progress<'_>,
    ) -> dump::Result<dump::Summary> {
        let fs = self.fs.lock().unwrap_or_else(PoisonError::into_inner);
        let fs = fs.as_ref().ok_or(io::Error::other("it is served"))?;
        dump::dump(fs, options, out, progress)
    }

    fn serve(
        &self,
        dir: &Path,
        options: &fuse::Options,
        status: StatusFn,
    ) -> io::Result<fuse::Mount> {
        let mut fs = self.fs.lock().unwrap_or_else(PoisonError::into_inner);
        let fs = fs.take().ok_or(io::ErrorKind::AlreadyExists)?;
        fuse::mount(fs, dir, options, status)
    }
}

mod tests;
