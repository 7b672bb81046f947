//! Images in files, made and judged by e2fsprogs.

#![allow(dead_code, reason = "each test uses some of it")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{Disk, Memory, OpenError, OpenOptions};
use e2fsprogs::{command, output, starting};
use ffs::{Ffs, FormatOptions, Mode, MountError, MountOptions};
use tempfile::TempDir;
use vfs::{Clock, ManualClock, Time};

/// How long anything here may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ends a test that needs e2fsprogs, and says so, unless they are there.
#[macro_export]
macro_rules! needs_e2fsprogs {
    () => {
        if !$crate::common::has_e2fsprogs() {
            testing::skip!("needs e2fsprogs (mke2fs, e2fsck, dumpe2fs, debugfs)");
        }
    };
}

/// The time of all that is made here.
pub const TIME: Time = Time(e2fsprogs::NOW * 1_000_000_000 + 123_456_789);

pub fn has_e2fsprogs() -> bool {
    ["mke2fs", "e2fsck", "dumpe2fs", "debugfs"]
        .iter()
        .all(|tool| e2fsprogs::is_there(tool))
}

/// Runs a tool that has to succeed: what it said.
pub fn run<A: AsRef<OsStr>>(tool: &str, args: impl IntoIterator<Item = A>) -> String {
    let output = output(command(tool).args(args)).expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool}: {text}{errors}");
    text
}

/// An image file, in a folder of its own.
pub struct Image {
    pub folder: TempDir,
    pub path: PathBuf,
}

impl Image {
    /// A sparse file.
    pub fn new(len: u64) -> Image {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("image");
        let file = std::fs::File::create(&path).expect("a file");
        file.set_len(len).expect("a length");
        Image { folder, path }
    }

    /// Lets mke2fs format it.
    pub fn mke2fs(len: u64, args: &[&str]) -> Image {
        let image = Image::new(len);
        let path = image.path.to_str().expect("a path");
        run("mke2fs", ["-q", "-F"].iter().chain(args).chain(&[path]));
        image
    }

    /// Opens it. After a disk was dropped the kernel may hold the image for a moment longer: a ring
    /// is taken down in the background.
    pub fn disk(&self) -> Disk {
        let start = Instant::now();
        loop {
            let opened = {
                let _starting = starting();
                OpenOptions::default().open(&self.path)
            };
            match opened {
                Err(OpenError::InUse { .. }) if start.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                opened => return opened.expect("a disk"),
            }
        }
    }

    pub fn mount(&self) -> Ffs {
        mount(self.disk(), true).expect("it mounts")
    }

    /// What dumpe2fs says, a line each.
    pub fn dump(&self) -> Vec<String> {
        let text = run("dumpe2fs", [&self.path]);
        text.lines()
            .map(|line| line.trim_end().to_owned())
            .collect()
    }

    /// Demands that e2fsck has nothing to say against it.
    pub fn assert_clean(&self) {
        let output = output(command("e2fsck").arg("-fn").arg(&self.path)).expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        for sign in ["ixed", "<y>", "? no", "rror"] {
            assert!(!text.contains(sign), "{text}");
        }
    }
}

/// The codes of what e2fsck finds in an image.
pub fn problems(image: &Image) -> BTreeSet<u32> {
    let log = image.folder.path().join("problems");
    e2fsprogs::problems(&image.path, &log).expect("it says what it found")
}

/// Mounts a disk, at that time.
pub fn mount(disk: Disk, read_only: bool) -> Result<Ffs, MountError> {
    mount_at(disk, read_only, Arc::new(ManualClock::new(TIME)))
}

pub fn mount_at(disk: Disk, read_only: bool, clock: Arc<dyn Clock>) -> Result<Ffs, MountError> {
    mount_in(disk, read_only, clock, Mode::default())
}

pub fn mount_in(
    disk: Disk,
    read_only: bool,
    clock: Arc<dyn Clock>,
    mode: Mode,
) -> Result<Ffs, MountError> {
    Ffs::mount(disk, clock, mount_options(read_only, mode))
}

pub fn mount_options(read_only: bool, mode: Mode) -> MountOptions {
    MountOptions {
        mode,
        read_only,
        hash_key: [7; 16],
        cache_bytes: 1 << 20,
    }
}

/// The uuid of what is formatted here, and as mke2fs wants it.
pub const UUID: [u8; 16] = *b"0123456789abcdef";
pub const UUID_TEXT: &str = "30313233-3435-3637-3839-616263646566";

pub fn format_options() -> FormatOptions {
    FormatOptions {
        uuid: UUID,
        label: "tests".to_owned(),
        hash_seed: UUID,
        time: TIME,
        owner: (0, 0),
        zeroed: true,
        block_size: 4096,
        inode_size: 256,
        bytes_per_inode: 16384,
        journal: false,
    }
}

/// A disk in memory.
pub fn memory(bytes: Vec<u8>) -> Disk {
    Disk::new(Arc::new(Memory::from_bytes(bytes)))
}

pub fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("it can be read")
}

/// The seeds of random cases, so many unless `TUREEN_SEEDS` has another number, or `TUREEN_REPLAY`
/// the seed of one.
pub fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    match number("TUREEN_REPLAY") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TUREEN_SEEDS").unwrap_or(count),
    }
}

/// Lets e2fsck judge or repair an image: its exit code, and what it says.
pub fn e2fsck(path: &Path, how: &str) -> (Option<i32>, String) {
    let output = output(command("e2fsck").arg(how).arg(path)).expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), text)
}

/// What mke2fs makes such images of.
pub const FOREIGN: &[&[&str]] = &[
    &["-t", "ext2", "-b", "1024", "-I", "128"],
    &["-t", "ext3", "-b", "1024", "-I", "256"],
    &["-t", "ext2", "-b", "4096", "-O", "^filetype"],
];

/// An image that mke2fs made of a tree.
pub fn foreign(kind: &[&str]) -> Image {
    let source = tempfile::tempdir().expect("a folder");
    for i in 0..150 {
        let dir = source.path().join(format!("dir{}", i % 4));
        std::fs::create_dir_all(&dir).expect("made");
        std::fs::write(
            dir.join(format!("{}{i}", "name".repeat(i % 9))),
            vec![1; i * 300],
        )
        .expect("written");
    }
    let from = source.path().to_str().expect("a path");
    let image = Image::mke2fs(8 << 20, &[kind, &["-d", from]].concat());
    // Hash indexes, where there may be some.
    let path = image.path.to_str().expect("a path");
    let index = format!("e2fsck -fyD '{path}' || [ $? = 1 ]");
    run("sh", ["-c", &index]);
    image
}
