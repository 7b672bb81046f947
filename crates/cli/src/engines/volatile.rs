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

mod tests {
    use std::path::PathBuf;
    use std::thread::JoinHandle;
    use std::time::Duration;

    use clap::Parser;

    use crate::engines::ENGINES;
    use crate::failure::{Outcome, USAGE};
    use crate::{Cli, mounts, status};

    /// A directory with an image to be made and a directory to mount it on.
    struct Scene {
        _dir: tempfile::TempDir,
        image: PathBuf,
        mnt: PathBuf,
    }

    impl Scene {
        fn new() -> Scene {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().canonicalize().expect("it was just made");
            let (image, mnt) = (path.join("disk.img"), path.join("mnt"));
            std::fs::create_dir(&mnt).expect("a directory");
            let _dir = dir;
            Scene { _dir, image, mnt }
        }

        /// Runs the program; `IMAGE` and `DIR` stand for those of the scene.
        fn run(&self, line: &str) -> Outcome {
            let paths = [("IMAGE", &self.image), ("DIR", &self.mnt)];
            let word = |word: &str| match paths.iter().find(|(name, _)| *name == word) {
                Some((_, path)) => path.as_os_str().to_owned(),
                None => word.into(),
            };
            let line = format!("tureen {line}");
            let cli = Cli::try_parse_from(line.split(' ').map(word));
            crate::run(cli.expect("arguments").command)
        }

        #[track_caller]
        fn must(&self, line: &str) {
            assert!(matches!(self.run(line), Ok(0)), "{line}");
        }

        #[track_caller]
        fn fails(&self, line: &str, code: u8, hint: &str) {
            let failure = self.run(line).expect_err(line);
            assert!(failure.message.contains(hint), "{failure:?}");
            assert_eq!(failure.code, code, "{failure:?}");
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            while fuse::unmount(&self.mnt, true).is_ok() {}
        }
    }

    /// A mount in front, by a thread of its own, once it is there.
    fn mount(scene: &std::sync::Arc<Scene>, options: &str) -> JoinHandle<Outcome> {
        let (other, line) = (scene.clone(), format!("mount -f IMAGE DIR -o {options}"));
        let front = std::thread::spawn(move || other.run(&line));
        while mounts::on(&scene.mnt).is_none() {
            assert!(!front.is_finished(), "{:?}", front.join());
            std::thread::sleep(Duration::from_millis(1));
        }
        front
    }

    #[test]
    fn each_command_serves_an_image_by_what_it_holds() {
        let scene = std::sync::Arc::new(Scene::new());
        scene.must("mkfs IMAGE --size 4096 --type volatile");
        for line in ["fsck IMAGE", "fsck -n IMAGE", "stat IMAGE"] {
            scene.must(line);
        }
        let front = mount(&scene, "noatime,room=500");
        std::fs::write(scene.mnt.join("file"), "data").expect("write");
        let found = std::fs::read_to_string(scene.mnt.join("file"));
        assert_eq!(found.expect("read"), "data");
        let space = rustix::fs::statvfs(&scene.mnt).expect("statfs");
        assert_eq!(space.f_blocks, 500, "its own option");
        let status = status::ask(&scene.mnt).expect("status");
        assert_eq!(status["file_system"]["type"], "volatile");
        assert_eq!(status["settings"]["room"], "500");
        let (options, engine) = status::options(&scene.mnt).expect("options");
        let settings = options.settings(engine).expect("its own");
        assert_eq!(settings.get("room"), Some("500"));
        scene.must("stat DIR");
        scene.must("stat IMAGE");
        scene.fails("fsck IMAGE", 8, "is mounted on");
        scene.must("umount DIR");
        assert!(matches!(front.join(), Ok(Ok(0))));
        scene.must("fsck -n IMAGE");
        scene.fails(
            "mount -f IMAGE DIR -o bound=2s",
            USAGE,
            "no option of volatile",
        );
    }

    #[test]
    fn what_is_made_has_the_type_that_was_asked_for() {
        let scene = Scene::new();
        scene.fails(
            "mkfs IMAGE --size 4096 --type zfs",
            USAGE,
            "soupfs, ext2, volatile",
        );
        scene.fails("mkfs IMAGE --size 4096", 1, "an image has 1048576");
        let name = || ENGINES.of(&scene.image).map(|engine| engine.name()).ok();
        scene.must("mkfs IMAGE --size 4M");
        assert_eq!(name(), Some("soupfs"));
        // The copy of the superblock of what was there before stays.
        scene.must("mkfs IMAGE --force --type volatile");
        assert_eq!(name(), Some("volatile"));
        scene.must("mkfs IMAGE --force --type soupfs");
        assert_eq!(name(), Some("soupfs"));
    }

    #[test]
    fn an_image_of_nobody_is_described() {
        let scene = Scene::new();
        let hint = "not a Tureen image: it holds text";
        std::fs::write(&scene.image, "some text").expect("write");
        scene.fails("mount -f IMAGE DIR", 1, hint);
        scene.fails("stat IMAGE", 1, hint);
        scene.fails("fsck IMAGE", 8, hint);
    }
}
