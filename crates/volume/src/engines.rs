//! Whose an image is.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use crate::foreign;
use crate::{Engine, Error, Own, Result};

/// The engines that there are, in the order in which they are asked. The first is that of new
/// images.
#[derive(Clone, Copy)]
pub struct Engines(pub &'static [&'static dyn Engine]);

/// An image that is looked at, to learn whose it is.
pub struct Image {
    path: PathBuf,
    file: File,
    len: u64,
}

impl Image {
    /// The image at this path, whoever holds it.
    pub fn open(path: &Path) -> io::Result<Image> {
        let mut file = File::open(path)?;
        // Of a block device, the metadata do not tell.
        let len = io::Seek::seek(&mut file, io::SeekFrom::End(0))?;
        let path = path.to_path_buf();
        Ok(Image { path, file, len })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// So many bytes at an offset; zeros where the image has none.
    pub fn bytes<const N: usize>(&self, at: u64) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        let mut done = 0;
        while done < N {
            match self.file.read_at(&mut bytes[done..], at + done as u64)? {
                0 => break,
                n => done += n,
            }
        }
        Ok(bytes)
    }
}

impl Engines {
    /// That of new images.
    ///
    /// # Panics
    /// There is none.
    pub fn default_engine(&self) -> &'static dyn Engine {
        self.0[0]
    }

    /// The engine of this name; the error lists those that there are.
    pub fn named(&self, name: &str) -> Result<&'static dyn Engine> {
        let found = self.0.iter().find(|engine| engine.name() == name);
        found.copied().ok_or_else(|| {
            let names: Vec<&str> = self.0.iter().map(|engine| engine.name()).collect();
            Error::new(format_args!(
                "no type '{name}'; there are: {}",
                names.join(", ")
            ))
        })
    }

    /// The engine that the image is for. If it is for none, the error says what it holds, as far as
    /// that can be told.
    pub fn of(&self, path: &Path) -> Result<&'static dyn Engine> {
        let failed = |error: io::Error| Error::at(path, error);
        let kind = std::fs::metadata(path).map_err(failed)?.file_type();
        if kind.is_char_device() {
            let maps = self.0.iter().find(|engine| engine.can_be_mapped());
            return maps
                .copied()
                .ok_or_else(|| Error::at(path, "no file system can be on such a device"));
        }
        let image = Image::open(path).map_err(failed)?;
        let mut by_copy = None;
        for engine in self.0 {
            match engine.owns(&image).map_err(failed)? {
                Own::Yes => return Ok(*engine),
                Own::ByCopy => by_copy = by_copy.or(Some(*engine)),
                Own::No => {}
            }
        }
        if let Some(engine) = by_copy {
            return Ok(engine);
        }
        let held = foreign::contents(&image).map_err(failed)?;
        Err(Error::at(
            path,
            format_args!("this is not a Tureen image: it {held}"),
        ))
    }
}
