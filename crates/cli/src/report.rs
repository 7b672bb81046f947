//! What the serving process says of its mount; [`crate::status`] asks for it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use fuse::{Monitor, Transport};
use serde_json::{Map, Value, json};
use volume::{Mounted, Settings, Volume};

use crate::image;
use crate::live_check::LiveCheck;
use crate::options::MountOptions;

/// A mount from inside.
#[derive(Clone)]
pub struct Served {
    /// The image, opened.
    pub volume: Arc<dyn Volume>,
    /// The image, mounted.
    pub mounted: Arc<dyn Mounted>,
    /// Whether it was shut down, as if the process had been killed.
    pub shut_down: Arc<AtomicBool>,
    /// The check that is done of it.
    pub check: LiveCheck,
}

/// How it was asked for.
#[derive(Clone)]
pub struct Asked {
    /// By everyone's options.
    pub options: MountOptions,
    /// By those of its engine.
    pub settings: Settings,
}

/// All that there is to say of a mount.
pub struct Report {
    image: PathBuf,
    image_id: Option<String>,
    dir: PathBuf,
    since: SystemTime,
    asked: Asked,
    served: Served,
    monitor: Arc<Monitor>,
}

impl Report {
    /// Of a mount that is about to begin, of an image that was just opened by this path.
    pub fn new(
        (image, dir): (&Path, &Path),
        asked: &Asked,
        served: &Served,
        monitor: &Arc<Monitor>,
    ) -> Report {
        Report {
            image: image.to_path_buf(),
            image_id: image::id(image),
            dir: dir.to_path_buf(),
            since: SystemTime::now(),
            asked: asked.clone(),
            served: served.clone(),
            monitor: monitor.clone(),
        }
    }

    /// All of it, as of now.
    pub fn to_json(&self) -> Value {
        let requests: Map<String, Value> = self
            .monitor
            .counts()
            .into_iter()
            .map(|(request, count)| (request.name().to_string(), count.into()))
            .collect();
        let Asked { options, settings } = &self.asked;
        let settings_now: Map<String, Value> = settings
            .iter()
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        json!({
            "image": self.image.to_string_lossy(),
            "image_id": self.image_id,
            "mounted_on": self.dir.to_string_lossy(),
            "pid": std::process::id(),
            "mounted_at": self.since.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            "read_only": options.read_only,
            "shut_down": self.served.shut_down.load(Relaxed),
            "sync": options.sync,
            "settings": settings_now,
            "options": format!("{options},{settings}"),
            "transport": self.monitor.transport().map(Transport::name),
            "log": options.log.as_ref().map(|log| log.to_string_lossy()),
            "medium": self.served.volume.medium(),
            "file_system": self.served.mounted.status(),
            "requests": requests,
            "last_error": self.monitor.last_error(),
        })
    }
}
