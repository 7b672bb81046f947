//! The images whose databases are open, and the paths that lead into them.
//!
//! A path like `demo.img/dir/app.db` leads into an image: the first part of it that is a file, and
//! not a directory, is the image; the rest is the path within. All connections of a process share
//! one mount of an image. It is unmounted when the last of its files is closed.

use std::collections::HashMap;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pmem::{Domain, Pool, PoolError};
use soupfs::{Mode, MountError, MountOptions, Node, SoupFs};
use vfs::{Capabilities, Errno, FileSystem, Kind, NewKind, NewNode, SystemClock};

use crate::locks::Shared;

/// Why an image, or a file in it, cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The image cannot be opened.
    #[error("{path}: {why}")]
    Pool {
        /// The image.
        path: String,
        /// Why.
        why: PoolError,
    },
    /// What is in it cannot be mounted.
    #[error("{path}: {why}; run `tureen fsck` on it")]
    Mount {
        /// The image.
        path: String,
        /// Why.
        why: MountError,
    },
    /// It is mounted with another mode.
    #[error("{0} is open with another durability: use the same for all its databases")]
    OtherMode(String),
    /// It is mounted, and another domain was assumed.
    #[error("{path} is open in domain {domain}: use the same for all its databases")]
    OtherDomain {
        /// The image.
        path: String,
        /// In which it is open.
        domain: Domain,
    },
    /// A parameter has a value that it cannot have.
    #[error("{0}")]
    Parameter(String),
    /// A file or directory in it.
    #[error("{path}: {why}")]
    File {
        /// The path within the image.
        path: String,
        /// Why.
        why: vfs::Error,
    },
}

/// A mounted image.
pub struct Image {
    fs: SoupFs,
    mode: Mode,
    /// Where it was opened; `None`: somebody else has mounted it, and unmounts it.
    path: Option<PathBuf>,
    files: Mutex<HashMap<u64, Weak<Shared>>>,
}

/// An image that is in use. With the last of these it is unmounted.
#[derive(Clone)]
pub struct Lease(Arc<Image>);

impl Deref for Lease {
    type Target = Image;
    fn deref(&self) -> &Image {
        &self.0
    }
}

impl Drop for Lease {
    /// Unmounts under the lock of all images: who opens the image again finds it free.
    fn drop(&mut self) {
        let Some(path) = &self.0.path else { return };
        let mut images = IMAGES.lock();
        let ours_and_the_list = 2;
        if Arc::strong_count(&self.0) == ours_and_the_list {
            images.retain(|(at, _)| at != path);
            if let Err(why) = self.0.fs.unmount() {
                log::error!("{}: it was not unmounted: {why}", path.display());
            }
        }
    }
}

/// All images of this process, by the path under which they are found.
static IMAGES: Mutex<Vec<(PathBuf, Arc<Image>)>> = Mutex::new(Vec::new());

/// Databases in a file system that this program has mounted are found below this path, until
/// [`detach`]. What is at that path otherwise is hidden.
pub fn attach(path: impl Into<PathBuf>, fs: SoupFs) {
    let mode = match fs
        .limits()
        .capabilities
        .contains(Capabilities::WHOLE_WRITES)
    {
        true => Mode::Strong,
        false => Mode::Delayed,
    };
    let image = Image {
        fs,
        mode,
        path: None,
        files: Mutex::default(),
    };
    IMAGES.lock().push((path.into(), Arc::new(image)));
}

/// Databases below this path are not found any more. Those that are open stay open.
pub fn detach(path: &Path) {
    IMAGES
        .lock()
        .retain(|(at, image)| at != path || image.path.is_some());
}

/// A path into an image.
#[derive(Debug, PartialEq, Eq)]
pub struct Inside {
    /// The image.
    pub image: PathBuf,
    /// The path in it, without a slash before it.
    pub path: PathBuf,
}

impl Inside {
    /// Where a path leads, if it leads into an image. It is absolute.
    pub fn of(path: &Path) -> Option<Inside> {
        let inside = |image: &Path| Inside {
            image: image.to_owned(),
            path: path.strip_prefix(image).unwrap_or(path).to_owned(),
        };
        let prefixes: Vec<&Path> = path.ancestors().skip(1).collect();
        let images = IMAGES.lock();
        let is_known = |prefix: &&&Path| images.iter().any(|(at, _)| at == *prefix);
        if let Some(prefix) = prefixes.iter().find(is_known) {
            return Some(inside(prefix));
        }
        drop(images);
        let prefix = prefixes.into_iter().rev().find_map(|prefix| {
            let found = std::fs::metadata(prefix);
            match found {
                Ok(meta) if meta.is_dir() => None,
                Ok(_) => Some(Some(prefix)),
                Err(_) => Some(None),
            }
        });
        prefix.flatten().map(inside)
    }

    /// The image, mounted.
    ///
    /// # Errors
    /// It cannot be opened, or is mounted in another mode or domain.
    pub fn mounted(&self, mode: Option<Mode>, domain: Option<Domain>) -> Result<Lease, OpenError> {
        let name = || self.image.display().to_string();
        let mut images = IMAGES.lock();
        if let Some((_, image)) = images.iter().find(|(at, _)| *at == self.image) {
            if mode.is_some_and(|mode| mode != image.mode) {
                return Err(OpenError::OtherMode(name()));
            }
            let assumed = image.fs.pool().domain();
            return match domain.is_none_or(|domain| domain == assumed) {
                true => Ok(Lease(image.clone())),
                false => Err(OpenError::OtherDomain {
                    path: name(),
                    domain: assumed,
                }),
            };
        }
        let mode = mode.unwrap_or(Mode::Strong);
        let options = pmem::Options {
            domain,
            ended_well: soupfs::ended_well,
            ..pmem::Options::default()
        };
        let pool = Pool::open(&self.image, &options)
            .map_err(|why| OpenError::Pool { path: name(), why })?;
        let options = MountOptions {
            mode,
            ..MountOptions::new(Arc::new(SystemClock))
        };
        let fs = SoupFs::mount(Arc::new(pool), options)
            .map_err(|why| OpenError::Mount { path: name(), why })?;
        let image = Arc::new(Image {
            fs,
            mode,
            path: Some(self.image.clone()),
            files: Mutex::default(),
        });
        images.push((self.image.clone(), image.clone()));
        Ok(Lease(image))
    }
}

impl Image {
    /// Its file system.
    pub fn fs(&self) -> &SoupFs {
        &self.fs
    }

    /// Whether each write, and each group of them, is there as a whole or not at all, and durable
    /// when it returns.
    pub fn is_strong(&self) -> bool {
        self.mode == Mode::Strong
    }

    /// The directory that holds a path, and the last name of it.
    fn parent<'a>(&self, path: &'a Path) -> vfs::Result<(Node, &'a [u8])> {
        let mut names = path.iter().map(|name| name.as_encoded_bytes());
        let last = names.next_back().ok_or(Errno::ISDIR)?;
        let mut dir = self.fs.root();
        for name in names {
            dir = self.step(&dir, name)?;
        }
        Ok((dir, last))
    }

    fn step(&self, dir: &Node, name: &[u8]) -> vfs::Result<Node> {
        match name {
            b"." => Ok(dir.clone()),
            b".." => self.fs.parent(dir),
            name => self.fs.lookup(dir, name),
        }
    }

    /// The file at a path.
    ///
    /// # Errors
    /// There is none; it is no regular file; a directory on the way is not there.
    pub fn find(&self, path: &Path) -> vfs::Result<Node> {
        let (dir, name) = self.parent(path)?;
        let node = self.fs.lookup(&dir, name)?;
        match self.fs.attr(&node).kind {
            Kind::File => Ok(node),
            Kind::Dir => Err(Errno::ISDIR.into()),
            _ => Err(Errno::INVAL.into()), // links lead nowhere here
        }
    }

    /// The file at a path, which is made if it is not there; `exclusive`: and must not be there.
    ///
    /// # Errors
    /// As [`Image::find`]; there is no space; it is there.
    pub fn find_or_make(&self, path: &Path, exclusive: bool) -> vfs::Result<Node> {
        let (dir, name) = self.parent(path)?;
        let new = NewNode {
            kind: NewKind::File,
            perm: 0o644,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            xattrs: &[],
        };
        match self.fs.create(&dir, name, &new) {
            Err(vfs::Error::Errno(Errno::EXIST)) if !exclusive => self.find(path),
            made => made,
        }
    }

    /// Remove the file at a path.
    ///
    /// # Errors
    /// It is not there; the medium failed.
    pub fn remove(&self, path: &Path) -> vfs::Result<()> {
        let (dir, name) = self.parent(path)?;
        self.fs.unlink(&dir, name, &|_| Ok(()))
    }

    /// What the connections to a file share.
    pub fn shared(&self, node: &Node) -> Arc<Shared> {
        let mut files = self.files.lock();
        files.retain(|_, shared| shared.strong_count() > 0);
        let slot = files.entry(self.fs.ino(node)).or_default();
        slot.upgrade().unwrap_or_else(|| {
            let shared = Arc::default();
            *slot = Arc::downgrade(&shared);
            shared
        })
    }
}

/// An absolute path without symbolic links in its outer part, so that each image has one name.
///
/// # Errors
/// There is no working directory.
pub fn absolute(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    match Inside::of(&path) {
        Some(Inside { image, path: rest }) => match image.canonicalize() {
            Ok(image) => Ok(image.join(rest)),
            Err(_) => Ok(path), // one that was attached
        },
        None => Ok(path),
    }
}
