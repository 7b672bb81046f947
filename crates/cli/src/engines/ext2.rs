//! ext2, ext3 and what can be read of ext4, on an image file or a block device.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use block::{Disk, OpenError};
use cache::{Binding, Cache};
use ffs::check::Finding;
use ffs::check_keeping as check;
use ffs::{CacheStore, Ext2Binding, Ffs, FormatOptions};
use fuse::StatusFn;
use pmem::{Domain, Pool, PoolError};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use serde_json::{Value, json};
use uuid::Uuid;
use vfs::{Clock, FileSystem, SystemClock};
use volume::{
    Access, Check, Engine, Error, Format, GoOn, Image, Mounted, Own, Report, Result, Settings,
    Snapshots, Volume,
};

use super::memory;
use super::reclaimer::Reclaimer;
use crate::random;
use crate::units::parse_size;

/// The engine.
pub struct Ext2;

/// An image that is open.
struct Opened {
    path: PathBuf,
    disk: Disk,
    /// The cache through which it is read.
    cache: Option<Arc<Cache>>,
}

/// A mounted one.
struct Live {
    fs: Ffs,
    /// Until it is unmounted; none if nothing is written.
    writer: Mutex<Option<Writer>>,
    /// Likewise; none if no crash has lost anything.
    reclaimer: Mutex<Option<Reclaimer>>,
    cache: Option<Arc<Cache>>,
    /// Likewise.
    _cache_writer: Option<cache::Writer>,
}

/// Where the magic number is, and what it is.
const MAGIC_AT: u64 = 1024 + 56;
const MAGIC: [u8; 2] = [0x53, 0xEF];

/// Blocks that are kept in memory, in bytes; as much again may wait to be written.
const CACHE_BYTES: usize = 128 << 20;

/// Between two ticks of a mounted one: what was changed five of them ago is written, whether it is
/// asked for or not.
const TICK: Duration = Duration::from_secs(1);

impl Engine for Ext2 {
    fn name(&self) -> &'static str {
        "ext2"
    }

    fn owns(&self, image: &Image) -> io::Result<Own> {
        Ok(match image.bytes(MAGIC_AT)? == MAGIC {
            true => Own::Yes,
            false => Own::No,
        })
    }

    fn has_journals(&self) -> bool {
        true
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::new();
        settings.put("mode", "soft");
        settings
    }

    fn set(
        &self,
        settings: &mut Settings,
        name: &str,
        value: Option<&str>,
    ) -> std::result::Result<bool, String> {
        match (name, value) {
            ("mode", Some(mode)) if mode_of(mode).is_some() => settings.put("mode", mode),
            ("mode", Some(_)) => {
                return Err("use soft, sync, ordered, journal or async".to_owned());
            }
            ("snapshot", Some(name)) if !name.is_empty() => settings.put("snapshot", name),
            ("cache", Some(path)) if !path.is_empty() => {
                let path = std::path::absolute(path).map_err(|error| error.to_string())?;
                settings.put("cache", path.display());
            }
            ("cache_kind", Some(kind @ ("spindle" | "tinca"))) => settings.put("cache_kind", kind),
            ("cache_kind", Some(_)) => return Err("use spindle or tinca".to_owned()),
            ("cache_bypass", Some(size)) => settings.put("cache_bypass", parse_size(size)?),
            ("cache_reads", None | Some("on")) => settings.put("cache_reads", "on"),
            ("cache_reads", Some("off")) => settings.put("cache_reads", "off"),
            ("cache_reads", Some(_)) => return Err("use on or off".to_owned()),
            _ => return memory::set(settings, name, value),
        }
        Ok(true)
    }

    /// Of soft updates there is a mode that has it; the others stay as they are.
    fn set_sync(&self, settings: &mut Settings, on: bool) {
        match (settings.get("mode"), on) {
            (Some("soft"), true) => settings.put("mode", "sync"),
            (Some("sync"), false) => settings.put("mode", "soft"),
            _ => {}
        }
    }

    fn options_help(&self) -> &'static str {
        "\
  mode=soft|sync|ordered|journal|async
                      what a crash may leave (soft). soft: changes are written 5 s later and when
                      asked for, in an order that keeps the file system sound: what is left is space
                      that nobody uses, link counts that are too high, inodes without a name, and
                      directories under two names. sync: likewise, and each change of names is
                      durable when the call returns. ordered, journal: an image with a journal only
                      (ext3, or mkfs --journal); what is written together is a transaction in it,
                      there as a whole or not at all, names that change places, too, and nothing is
                      to be checked: the next mount replays it. Contents of files are written before
                      their transaction (ordered), or are in the journal as well (journal): as
                      data=ordered and data=journal of ext4. async: in no order, so anything. With
                      the option sync, the mode soft becomes sync; contents are durable in any mode
  cache=FILE          a cache in persistent memory, made by 'tureen cache create', before the disk:
                      what is written together is durable there, whole or not at all, whatever the
                      mode; the disk gets it later
  cache_kind=spindle|tinca
                      refuse a cache of the other kind: which one it is was said when it was made
  cache_bypass=SIZE   new blocks go past the cache to the disk if so much of them is written
                      together and in one piece (0: never). Then a sync waits for the disk, and what
                      else is in the cache stays there. A piece is at most a quarter of the cache
  cache_reads[=on|off]
                      blocks that are read from the disk are put into the cache (off), unless they
                      are read in pieces of the size of cache_bypass
  domain=line|cache|page
                      the persistence domain of the cache to assume, in place of the one detected
  flush_ns=N, fence_ns=N, read_ns=N
                      make the memory of the cache slower: per flushed line, per fence, per line
                      read
  snapshot=NAME       what a snapshot of the image has, with ro (see tureen snapshot --help)"
    }

    fn option_names(&self) -> &'static str {
        "mode=, cache=, cache_kind=, cache_bypass=, cache_reads, domain=, flush_ns=, fence_ns=, \
         read_ns=, snapshot="
    }

    fn check_len(&self, len: u64) -> Result<()> {
        ffs::check_len(len, &plain(len)).map_err(Error::new)
    }

    fn create(&self, path: &Path, len: u64, sparse: bool, _: &Settings) -> Result<Arc<dyn Volume>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(path).map_err(|error| Error::at(path, error))?;
        let made = reserve(&file, len, sparse).map_err(|error| Error::at(path, error));
        drop(file);
        made.and_then(|()| open(path, Access::Write, None))
            .inspect_err(|_| {
                let _ = std::fs::remove_file(path);
            })
    }

    fn open(&self, path: &Path, access: Access, how: &Settings) -> Result<Arc<dyn Volume>> {
        if how.get("cache").is_none() && memory::is_set(how) {
            let what = "domain, flush_ns, fence_ns and read_ns are of the memory of a cache: they \
                        are for a mount with cache=FILE";
            return Err(Error::at(path, what));
        }
        let options = memory::options(how)?;
        open(
            path,
            access,
            how.get("cache").map(|at| (Path::new(at), options)),
        )
    }
}

/// Gives a new file its length, and its blocks unless it is to be sparse.
fn reserve(file: &File, len: u64, sparse: bool) -> io::Result<()> {
    file.set_len(len)?;
    if sparse {
        return Ok(());
    }
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len) {
        // The host gives them when they are written.
        Err(Errno::OPNOTSUPP) => Ok(()),
        result => Ok(result?),
    }
}

/// With the cache before it, if one is named, and how the memory of that is.
fn open(
    path: &Path,
    access: Access,
    cache: Option<(&Path, pmem::Options)>,
) -> Result<Arc<dyn Volume>> {
    let disk = open_disk(path, access != Access::Write)?;
    let cache = cache.map(|(at, options)| {
        let pool = open_memory(at, access, options)?;
        let opened = Cache::open(pool, disk.clone(), Arc::new(Ext2Binding));
        opened.map(Arc::new).map_err(|error| Error::at(at, error))
    });
    let cache = cache.transpose()?;
    if cache.is_none() && access != Access::Look {
        refuse_marked(path, &disk)?;
    }
    Ok(Arc::new(Opened {
        path: path.to_path_buf(),
        disk: cache.as_ref().map_or(disk, CacheStore::disk),
        cache,
    }))
}

/// The disk of an image.
///
/// # Errors
/// It cannot be opened, or somebody uses it.
pub fn open_disk(path: &Path, read_only: bool) -> Result<Disk> {
    let options = block::OpenOptions {
        read_only,
        ..block::OpenOptions::default()
    };
    options.open(path).map_err(|error| match error {
        OpenError::InUse { .. } => Error::InUse(error.to_string()),
        _ => Error::new(error),
    })
}

/// The memory of a cache: private, so that nothing of it changes, unless it is for writing.
///
/// # Errors
/// It cannot be opened, or somebody uses it.
pub fn open_cache(path: &Path, access: Access) -> Result<Arc<Pool>> {
    open_memory(path, access, pmem::Options::default())
}

fn open_memory(path: &Path, access: Access, options: pmem::Options) -> Result<Arc<Pool>> {
    let options = pmem::Options {
        private: access != Access::Write,
        ..options
    };
    let pool = Pool::open(path, &options).map_err(|error| match error {
        PoolError::InUse { .. } => Error::InUse(error.to_string()),
        _ => Error::new(error),
    })?;
    if access == Access::Write && pool.domain() == Domain::Page {
        log::warn!(
            "{}: this cache is on a disk: each commit costs flushes of that",
            path.display()
        );
    }
    Ok(Arc::new(pool))
}

/// A disk that lacks what is in a cache is used by nobody without that.
fn refuse_marked(path: &Path, disk: &Disk) -> Result<()> {
    let len = (cache::BLOCK).min(disk.len()) as usize;
    let first = disk.read(0, vec![block::Buffer::zeroed(len)]);
    let first = first.map_err(|error| Error::at(path, error))?;
    match Ext2Binding.marked(&first[0]) {
        None => Ok(()),
        Some(uuid) => Err(Error::at(
            path,
            format_args!(
                "it lacks blocks that are in its cache {}: use it with -o cache=CACHE, or --cache, \
                 or let it have them: tureen cache flush CACHE --for {}",
                Uuid::from_bytes(uuid),
                path.display()
            ),
        )),
    }
}

/// The mode of this name.
fn mode_of(name: &str) -> Option<ffs::Mode> {
    Some(match name {
        "soft" => ffs::Mode::Soft,
        "sync" => ffs::Mode::Sync,
        "ordered" => ffs::Mode::Ordered,
        "journal" => ffs::Mode::Journal,
        "async" => ffs::Mode::Async,
        _ => return None,
    })
}

/// What a file system of this length is like if nobody says more.
fn plain(len: u64) -> FormatOptions {
    FormatOptions {
        uuid: [0; 16],
        label: String::new(),
        hash_seed: [0; 16],
        time: SystemClock.now(),
        owner: (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        ),
        zeroed: false,
        block_size: if len < 16 << 20 { 1024 } else { 4096 },
        inode_size: 256,
        // As mke2fs has it.
        bytes_per_inode: if len < 512 << 20 { 4096 } else { 16384 },
        journal: false,
    }
}

impl Opened {
    fn failed(&self, what: impl std::fmt::Display) -> Error {
        Error::at(&self.path, what)
    }

    /// Replays the journal, if it holds anything.
    fn replay(&self) -> Result<()> {
        let superblock = ffs::superblock(&self.disk).map_err(|error| self.failed(error))?;
        let replayed = ffs::recover(self.disk.clone(), &superblock);
        replayed.map(drop).map_err(|error| self.failed(error))
    }

    /// Replays the journal of an image that was not unmounted; if it is not clean then, checks and
    /// repairs it, unless a mount in this mode may serve it at once.
    fn put_right(&self, mode: ffs::Mode) -> Result<()> {
        let path = self.path.display();
        self.replay()?;
        if self.is_clean() == Some(true) {
            return Ok(());
        }
        let is_soft = mode.is_soft() && self.cache.is_none();
        // What cannot be read is for the check to say.
        if is_soft && ffs::mounts_at_once(&self.disk).unwrap_or(false) {
            log::warn!(
                "{path}: it was not unmounted cleanly: what was lost is searched for while it is \
                 in use"
            );
            return Ok(());
        }
        log::warn!("{path}: it was not unmounted cleanly, and is checked first");
        let report = check(&self.disk, true, SystemClock.now(), &|_, _, _| {})
            .map_err(|error| self.failed(error))?;
        match report.exit_code() {
            0 => Ok(()),
            1 => {
                let found = report.findings.len();
                log::warn!("{path}: {found} errors were repaired");
                Ok(())
            }
            _ => Err(self.failed(
                "it was not unmounted cleanly, and has errors whose repair needs decisions: see \
                 tureen fsck -n, run e2fsck, or mount it with -o ro",
            )),
        }
    }
}

impl Opened {
    /// The cache is of the kind that is wanted; if it is for writing, it treats blocks as wanted.
    fn tune_cache(&self, settings: &Settings, is_writable: bool) -> Result<()> {
        let (bypass, reads) = (settings.get("cache_bypass"), settings.get("cache_reads"));
        let wanted = settings.get("cache_kind");
        let Some(cache) = &self.cache else {
            return match bypass.or(reads).or(wanted) {
                None => Ok(()),
                Some(_) => Err(self.failed(
                    "cache_kind, cache_bypass and cache_reads are for a mount with cache=FILE",
                )),
            };
        };
        let kind = cache.status().kind.to_string();
        if wanted.is_some_and(|wanted| wanted != kind) {
            return Err(self.failed(format_args!("its cache is of the kind {kind}")));
        }
        if is_writable {
            let bytes = bypass.and_then(|bytes| bytes.parse().ok());
            cache.set_bypass(bytes.unwrap_or(0));
            cache.keep_reads(reads == Some("on"));
        }
        Ok(())
    }

    /// Mounts what a snapshot has.
    fn mount_snapshot(&self, name: &str, read_only: bool) -> Result<Arc<dyn Mounted>> {
        if !read_only {
            return Err(self.failed("a snapshot is only read: mount it with -o ro"));
        }
        let mount = |disk: Disk| {
            let options = ffs::MountOptions {
                read_only: true,
                hash_key: secret()?,
                cache_bytes: CACHE_BYTES,
                mode: ffs::Mode::Soft,
            };
            Ffs::mount(disk, Arc::new(SystemClock), options).map_err(|error| self.failed(error))
        };
        let whole = mount(self.disk.clone())?;
        let disk = whole.snapshot_disk(name);
        let fs = mount(disk.map_err(|error| self.failed(error))?)?;
        Ok(Arc::new(Live {
            fs,
            writer: Mutex::new(None),
            reclaimer: Mutex::new(None),
            cache: None,
            _cache_writer: None,
        }))
    }
}

fn secret() -> Result<[u8; 16]> {
    random::bytes().map_err(|failure| Error::new(failure.message))
}

impl Volume for Opened {
    fn len(&self) -> u64 {
        self.disk.len()
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<()> {
        // A disk is read by the sector.
        let first = at / block::SECTOR * block::SECTOR;
        let end = (at + buf.len() as u64).next_multiple_of(block::SECTOR);
        if end == first {
            return Ok(());
        }
        let into = vec![block::Buffer::zeroed((end - first) as usize)];
        let read = self.disk.read(first, into).map_err(|e| self.failed(e))?;
        buf.copy_from_slice(&read[0][(at - first) as usize..][..buf.len()]);
        Ok(())
    }

    fn format(&self, format: &Format) -> Result<()> {
        let options = FormatOptions {
            uuid: format.uuid,
            label: format.label.clone(),
            hash_seed: secret()?,
            zeroed: format.zeroed,
            journal: format.journal,
            ..plain(self.len())
        };
        ffs::format(&self.disk, &options).map_err(|error| self.failed(error))
    }

    fn inspect(&self) -> Result<Value> {
        let info = ffs::inspect(&self.disk).map_err(|error| self.failed(error))?;
        let read_only = info.read_only();
        let access = match &info.obstacle {
            Some(why) => format!("none: {why}"),
            None if read_only.is_empty() => "reading and writing".to_owned(),
            None => format!("reading only, because of {}", read_only.join(", ")),
        };
        Ok(json!({
            "type": Ext2.name(),
            "uuid": Uuid::from_bytes(info.uuid).to_string(),
            "label": info.label,
            "created_at": info.created.secs(),
            "mounts": info.mounts,
            "clean": info.clean,
            "size_bytes": info.bytes,
            "free_bytes": info.bytes_free,
            "inodes": info.inodes,
            "inodes_free": info.inodes_free,
            "block_bytes": info.block_size,
            "features": info.features.names().join(" "),
            "access": access,
            "damaged": info.damage(),
        }))
    }

    fn is_clean(&self) -> Option<bool> {
        ffs::inspect(&self.disk).ok().map(|info| info.clean)
    }

    fn medium(&self) -> Value {
        let (info, stats) = (self.disk.info(), self.disk.stats());
        let is_device = info.identity.is_some_and(|identity| identity.inode == 0);
        json!({
            "kind": if is_device { "block device" } else { "image file" },
            "size_bytes": info.len,
            "access": info.how,
            "survives": "what was synced, if the disk honours flushes; of the rest a part, in no \
                order",
            "counters": {
                "reads": stats.reads,
                "writes": stats.writes,
                "flushes": stats.flushes,
                "read_bytes": stats.bytes_read,
                "written_bytes": stats.bytes_written,
            },
        })
    }

    fn check(&self, how: &Check, progress: volume::Progress<'_>) -> Result<Report> {
        if how.repair {
            self.replay()?;
        }
        let report = check(&self.disk, how.repair, SystemClock.now(), progress)
            .map_err(|error| self.failed(error))?;
        Ok(told(&report))
    }

    fn mount(&self, settings: &Settings, read_only: bool) -> Result<Arc<dyn Mounted>> {
        if let Some(name) = settings.get("snapshot") {
            return self.mount_snapshot(name, read_only);
        }
        let info = ffs::inspect(&self.disk).map_err(|error| self.failed(error))?;
        let unwritable = info.read_only();
        if !read_only && info.obstacle.is_none() && !unwritable.is_empty() {
            let (path, names) = (self.path.display(), unwritable.join(", "));
            log::warn!("{path}: mounted read-only, because of its features {names}");
        }
        let mode = settings.get("mode").and_then(mode_of).unwrap_or_default();
        if !read_only && info.obstacle.is_none() && unwritable.is_empty() && !info.clean {
            self.put_right(mode)?;
        }
        let options = ffs::MountOptions {
            read_only: read_only || !unwritable.is_empty(),
            hash_key: secret()?,
            cache_bytes: CACHE_BYTES,
            mode,
        };
        let writer_wanted = !options.read_only;
        self.tune_cache(settings, writer_wanted)?;
        let clock = Arc::new(SystemClock);
        let fs = match &self.cache {
            Some(cache) => Ffs::mount_cached(cache, clock, options),
            None => Ffs::mount(self.disk.clone(), clock, options),
        };
        let fs = fs.map_err(|error| self.failed(error))?;
        let cache = self.cache.clone().filter(|_| writer_wanted);
        let cache_writer = cache.map(cache::Writer::start).transpose();
        let writer = writer_wanted.then(|| Writer::start(&fs)).transpose();
        let writer = writer.map_err(|error| self.failed(error))?;
        let reclaimer = Reclaimer::start(&fs).map_err(|error| self.failed(error))?;
        Ok(Arc::new(Live {
            fs,
            writer: Mutex::new(writer),
            reclaimer: Mutex::new(reclaimer),
            cache: self.cache.clone(),
            _cache_writer: cache_writer.map_err(|error| self.failed(error))?,
        }))
    }

    fn poison(&self, _: &str) {
        self.disk.stop();
    }
}

/// How a cache is doing, for `stat`.
pub fn cache_status(status: &cache::Status) -> Value {
    let [data_hits, metadata_hits] = status.write_hits;
    let [data_misses, metadata_misses] = status.write_misses;
    let (blocks, out) = (status.blocks_written, status.written_out);
    let rounded = |ratio: f64| (ratio * 1000.0).round() / 1000.0;
    json!({
        "kind": status.kind.to_string(),
        "uuid": Uuid::from_bytes(status.uuid).to_string(),
        "domain": status.domain.to_string(),
        "disk_uuid": Uuid::from_bytes(status.disk_uuid).to_string(),
        "write_through": status.is_through,
        "unit_bytes": status.unit,
        "blocks": status.blocks,
        "cached": status.cached,
        "metadata": status.metadata,
        "metadata_kept": status.metadata_min,
        "dirty": status.dirty,
        "dirty_metadata": status.dirty_metadata,
        "commits": status.commits,
        "read_hits": status.hits,
        "read_misses": status.misses,
        "data_hits": data_hits,
        "data_misses": data_misses,
        "metadata_hits": metadata_hits,
        "metadata_misses": metadata_misses,
        "blocks_written": blocks.iter().sum::<u64>(),
        "metadata_blocks_written": blocks[1],
        "units_changed": status.units,
        "evictions": status.evictions,
        "written_out": out.iter().sum::<u64>(),
        "metadata_written_out": out[1],
        "data_amplification_memory": rounded(status.memory_amplification()[0]),
        "metadata_amplification_memory": rounded(status.memory_amplification()[1]),
        "data_amplification_disk": rounded(status.disk_amplification()[0]),
        "metadata_amplification_disk": rounded(status.disk_amplification()[1]),
        "bypass_bytes": status.bypass,
        "bypassed": status.past,
        "keeps_reads": status.keeps_reads,
        "reads_kept": status.reads_kept,
    })
}

/// How the snapshots of a mount are doing, for `stat`.
fn snapshot_status(fs: &Ffs) -> Value {
    let all = fs.snapshots();
    let (counts, stop) = fs.snapshot_counts();
    if all.is_empty() && counts == ffs::SnapshotCounts::default() && stop == Default::default() {
        return Value::Null;
    }
    let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
    json!({
        "names": names.join(", "),
        "space_bytes": all.iter().map(|one| one.space).sum::<u64>(),
        "copied": counts.copied,
        "claimed": counts.claimed,
        "lost": counts.lost,
        "stopped_us": stop.ns / 1000,
        "stopped_writes": stop.writes,
        "stopped_flushes": stop.flushes,
    })
}

impl Snapshots for Live {
    fn create(&self, name: &str, temporary: bool) -> Result<Value> {
        let stop = self
            .fs
            .create_snapshot(name, temporary)
            .map_err(Error::new)?;
        Ok(json!({
            "name": name,
            "stopped_us": stop.ns / 1000,
            "stopped_writes": stop.writes,
            "stopped_flushes": stop.flushes,
        }))
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.fs.delete_snapshot(name).map_err(Error::new)
    }

    fn list(&self) -> Vec<Value> {
        let one = |one: ffs::SnapshotInfo| {
            json!({
                "name": one.name,
                "created_at": one.created.secs(),
                "space_bytes": one.space,
                "temporary": one.temporary,
            })
        };
        self.fs.snapshots().into_iter().map(one).collect()
    }

    fn dir(&self) -> &'static str {
        ".snapshots"
    }
}

/// What a check found and did, as it is told.
fn told(report: &ffs::check::Report) -> Report {
    let finding = |finding: &Finding| {
        let name = finding.problem.name();
        json!({ "problem": name, "detail": finding.detail })
    };
    Report {
        text: report.to_string(),
        code: report.exit_code(),
        json: json!({
            "outcome": match (report.exit_code(), report.needs_decision()) {
                (0, _) => "clean",
                (1, _) => "repaired",
                (_, true) => "decisions needed",
                _ => "errors left",
            },
            "was_clean": report.was_clean,
            "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
            "inodes": report.inodes,
            "directories": report.directories,
            "free_blocks": report.blocks_free,
        }),
    }
}

/// A thread that writes now and then.
struct Writer {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Writer {
    fn start(fs: &Ffs) -> io::Result<Writer> {
        let (stop, stopped) = mpsc::channel();
        let fs = fs.clone();
        let thread = std::thread::Builder::new().name("write-back".to_owned());
        let thread = thread.spawn(move || {
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                if fs.is_changed()
                    && let Err(error) = fs.tick()
                {
                    log::error!("{error}");
                    return;
                }
            }
        })?;
        Ok(Writer { stop, thread })
    }

    fn end(self) {
        drop(self.stop);
        // A panic of its has poisoned the disk and was reported.
        let _ = self.thread.join();
    }
}

impl Mounted for Live {
    fn is_read_only(&self) -> bool {
        self.fs.status().read_only
    }

    fn status(&self) -> Value {
        let status = self.fs.status();
        let ffs::ReclaimProgress {
            stage, done, total, ..
        } = status.reclaim;
        let reclaim = (!stage.is_empty()).then(|| format!("{stage}, {done} of {total}"));
        json!({
            "type": Ext2.name(),
            "uuid": Uuid::from_bytes(status.uuid).to_string(),
            "label": status.label,
            "size_bytes": status.bytes,
            "free_bytes": status.bytes_free,
            "inodes_free": status.inodes_free,
            "mounts": status.mounts,
            "reclaiming": self.fs.is_reclaiming(),
            "reclaim": reclaim,
            "failed": status.failed,
            "counters": {
                "reclaim_repairs": status.reclaim.deltas,
                "inodes_in_use": status.inodes_in_use,
                "pending_bytes": status.bytes_dirty,
                "dependencies": status.dependencies,
                "dependency_bytes": status.dependency_bytes,
                "rolled_back": status.rolled_back,
                "out_of_order": status.out_of_order,
            },
            "snapshots": snapshot_status(&self.fs),
            "cache": self.cache.as_ref().map(|cache| cache_status(&cache.status())),
        })
    }

    fn sync(&self) -> vfs::Result<()> {
        self.fs.syncfs()
    }

    fn control(&self, command: &str) -> Result<()> {
        let Some(cache) = &self.cache else {
            return Err(Error::new("there is no cache before this disk"));
        };
        self.fs.syncfs().map_err(Error::new)?;
        let done = match command {
            "cache.flush" => cache.flush(),
            "cache.write-through" => cache.set_through(true),
            "cache.write-back" => cache.set_through(false),
            _ => {
                let what = format_args!("{command}: not a command of a cache");
                return Err(Error::new(what));
            }
        };
        done.map_err(Error::new)
    }

    fn check_live(&self, repair: bool, go_on: GoOn<'_>) -> Result<Report> {
        let report = self.fs.check_live(repair, go_on).map_err(Error::new)?;
        Ok(told(&report))
    }

    fn unmount(&self) -> Result<()> {
        let mut reclaimer = self
            .reclaimer
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(reclaimer) = reclaimer.take() {
            reclaimer.end();
        }
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(writer) = writer.take() {
            writer.end();
        }
        self.fs.unmount().map_err(|error| {
            Error::new(format_args!(
                "the end of the mount was not made durable: {error}; run tureen fsck"
            ))
        })
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }

    fn dump(
        &self,
        options: &dump::Options,
        out: &mut dyn io::Write,
        progress: dump::Progress<'_>,
    ) -> dump::Result<dump::Summary> {
        dump::dump(&self.fs, options, out, progress)
    }

    fn serve(
        &self,
        dir: &Path,
        options: &fuse::Options,
        status: StatusFn,
    ) -> io::Result<fuse::Mount> {
        fuse::mount(self.fs.clone(), dir, options, status)
    }
}
