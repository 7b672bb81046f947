//! SoupFS on a pool of `pmem`.

use std::io;
use std::path::Path;
use std::sync::Arc;

use fuse::StatusFn;
use pmem::{Pool, PoolError};
use serde_json::{Value, json};
use soupfs::audit::{Finding, Progress, Stage};
use soupfs::fsck::{CheckOptions, Outcome};
use soupfs::layout::{Geometry, page_at, superblock};
use soupfs::{Mode, SoupFs};
use uuid::Uuid;
use vfs::{Clock, FileSystem, SystemClock};
use volume::{Access, Check, Engine, Error, Format, Image, Mounted, Own, Report, Settings, Volume};

use super::memory::{self, number, setting};
use crate::random;
use crate::units::{parse_duration, parse_size, parse_threads};

/// The engine.
pub struct Soup;

/// An image in a pool.
struct Opened {
    pool: Arc<Pool>,
}

/// A mounted one.
struct Live {
    fs: SoupFs,
    read_only: bool,
}

impl Engine for Soup {
    fn name(&self) -> &'static str {
        "soupfs"
    }

    /// The superblock, or its copy, has the magic number. Whether it is good is not asked here:
    /// what is wrong with it, the engine tells better.
    fn owns(&self, image: &Image) -> io::Result<Own> {
        let copy = Geometry::for_len(image.len()).pages.saturating_sub(1);
        let has_magic = |page| {
            let at = page_at(page) + superblock::AT_MAGIC as u64;
            Ok::<bool, io::Error>(image.bytes(at)? == superblock::MAGIC.to_le_bytes())
        };
        Ok(match () {
            () if has_magic(0)? => Own::Yes,
            () if has_magic(copy)? => Own::ByCopy,
            () => Own::No,
        })
    }

    fn can_be_mapped(&self) -> bool {
        true
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::new();
        settings.put("mode", "delayed");
        settings.put("bound", "1s");
        settings.put("backlog", 256 << 20);
        settings
    }

    fn set(
        &self,
        settings: &mut Settings,
        name: &str,
        value: Option<&str>,
    ) -> Result<bool, String> {
        match (name, value) {
            ("huge", None) => settings.put("huge", ""),
            ("mode", Some(mode @ ("delayed" | "sync" | "strong"))) => settings.put("mode", mode),
            ("mode", Some(_)) => return Err("use delayed, sync or strong".to_string()),
            ("bound", Some(value)) => {
                let bound = parse_duration(value)?;
                if bound.is_zero() {
                    return Err("for durability at return use mode=sync".to_string());
                }
                settings.put("bound", format_args!("{}s", bound.as_secs_f64()));
            }
            ("backlog", Some(value)) => settings.put("backlog", parse_size(value)?),
            ("cache", Some(value)) => settings.put("cache", parse_size(value)?),
            ("persisters", Some(value)) => settings.put("persisters", parse_threads(value)?),
            _ => return memory::set(settings, name, value),
        }
        Ok(true)
    }

    fn set_sync(&self, settings: &mut Settings, on: bool) {
        // Mode `strong` has more than what `sync` asks for.
        if !(on && settings.get("mode") == Some("strong")) {
            settings.put("mode", if on { "sync" } else { "delayed" });
        }
    }

    fn options_help(&self) -> &'static str {
        "\
  mode=delayed|sync|strong
                      when changes become durable: within the bound; those of names and attributes
                      before the call returns; or each request, its data with it, as a whole and
                      before the call returns (delayed)
  bound=TIME          how late the durable state may be, in delayed mode (1s)
  backlog=SIZE        memory for changes that are not yet durable (256M)
  persisters=N        threads that make changes durable together (one for each node of memory;
                      only on persistent memory more than one)
  domain=line|cache|page
                      the persistence domain to assume, in place of the one detected
  cache=SIZE          memory for the contents of an image on a disk (a quarter of what the process
                      may use)
  flush_ns=N, fence_ns=N, read_ns=N
                      make the medium slower: per flushed line, per fence, per line read
  huge                use huge pages for the image where it can be had"
    }

    fn option_names(&self) -> &'static str {
        "mode=, bound=, backlog=, persisters=, domain=, cache=, flush_ns=, fence_ns=, read_ns=, \
         huge"
    }

    fn check_len(&self, len: u64) -> volume::Result<()> {
        soupfs::check_len(len).map_err(Error::new)
    }

    fn create(
        &self,
        path: &Path,
        len: u64,
        sparse: bool,
        settings: &Settings,
    ) -> volume::Result<Arc<dyn Volume>> {
        let options = pmem::Options {
            sparse,
            ..pool_options(settings)?
        };
        let pool = Pool::create(path, len, &options).map_err(of_pool)?;
        Ok(Arc::new(Opened {
            pool: Arc::new(pool),
        }))
    }

    fn open(
        &self,
        path: &Path,
        access: Access,
        settings: &Settings,
    ) -> volume::Result<Arc<dyn Volume>> {
        let options = pmem::Options {
            read_only: access != Access::Write,
            ..pool_options(settings)?
        };
        let open = |options: &pmem::Options| Pool::open(path, options).map_err(of_pool);
        let mut pool = open(&options)?;
        let is_unclean = soupfs::inspect(&pool).is_ok_and(|info| !info.clean);
        if access == Access::MountReadOnly && is_unclean {
            // What a crash left is replayed in memory. The first pool keeps writers out until the
            // second is there.
            pool = open(&pmem::Options {
                private: true,
                read_only: false,
                ..options
            })?;
        }
        Ok(Arc::new(Opened {
            pool: Arc::new(pool),
        }))
    }
}

fn pool_options(settings: &Settings) -> volume::Result<pmem::Options> {
    let cache_bytes = setting(settings, "cache", number)?;
    let defaults = memory::options(settings)?;
    Ok(pmem::Options {
        paged: cache_bytes
            .map(pmem::paged::Options::new)
            .or(defaults.paged),
        huge_pages: settings.get("huge").is_some(),
        ended_well: soupfs::ended_well,
        ..defaults
    })
}

fn mount_options(settings: &Settings, read_only: bool) -> volume::Result<soupfs::MountOptions> {
    let defaults = soupfs::MountOptions::new(Arc::new(SystemClock));
    let bound = setting(settings, "bound", parse_duration)?;
    let backlog = setting(settings, "backlog", number)?;
    let persisters = setting(settings, "persisters", number)?;
    Ok(soupfs::MountOptions {
        mode: match settings.get("mode") {
            Some("sync") => Mode::Sync,
            Some("strong") => Mode::Strong,
            _ => Mode::Delayed,
        },
        bound: bound.unwrap_or(defaults.bound),
        backlog_max: backlog.unwrap_or(defaults.backlog_max),
        persisters: persisters.unwrap_or_else(memory_nodes),
        read_only,
        ..defaults
    })
}

/// Nodes of memory in this machine: 1 if the kernel does not tell.
fn memory_nodes() -> usize {
    let Ok(entries) = std::fs::read_dir("/sys/devices/system/node") else {
        return 1;
    };
    let is_node = |name: &str| {
        let number = name.strip_prefix("node");
        number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let nodes = entries.flatten();
    let count = nodes.filter(|e| e.file_name().to_str().is_some_and(is_node));
    count.count().max(1)
}

fn of_pool(error: PoolError) -> Error {
    match error {
        PoolError::InUse { .. } => Error::InUse(error.to_string()),
        _ => Error::new(error),
    }
}

fn in_pool(pool: &Pool, error: impl std::fmt::Display) -> Error {
    match pool.info().path {
        Some(path) => Error::at(&path, error),
        None => Error::new(error),
    }
}

impl Volume for Opened {
    fn len(&self) -> u64 {
        self.pool.len()
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> volume::Result<()> {
        self.pool.read(at, buf);
        Ok(())
    }

    fn format(&self, format: &Format) -> volume::Result<()> {
        let options = soupfs::FormatOptions {
            uuid: format.uuid,
            label: format.label.clone(),
            hash_key: random::bytes().map_err(|failure| Error::new(failure.message))?,
            time: SystemClock.now(),
            owner: (
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            ),
            zeroed: format.zeroed,
        };
        soupfs::format(&self.pool, &options).map_err(|error| in_pool(&self.pool, error))
    }

    fn inspect(&self) -> volume::Result<Value> {
        let info = soupfs::inspect(&self.pool).map_err(|error| in_pool(&self.pool, error))?;
        let damaged = info.damaged;
        Ok(json!({
            "type": Soup.name(),
            "uuid": Uuid::from_bytes(info.superblock.uuid).to_string(),
            "label": info.superblock.label,
            "created_at": info.superblock.created.secs(),
            "mounts": mounts(info.epoch),
            "clean": info.clean,
            "free_bytes": info.bytes_free,
            "damaged": damaged.map(|why| format!("{why}; its copy is good: run tureen fsck")),
        }))
    }

    fn is_clean(&self) -> Option<bool> {
        soupfs::inspect(&self.pool).ok().map(|info| info.clean)
    }

    fn medium(&self) -> Value {
        let (info, stats) = (self.pool.info(), self.pool.stats());
        let cache = self.pool.cache().map(|cache| {
            json!({
                "cache_bytes": cache.cache_bytes,
                "cached_bytes": cache.pages * pmem::PAGE,
                "unwritten_bytes": cache.unclean * pmem::PAGE,
                "counters": {
                    "misses": cache.misses,
                    "read_ahead_pages": cache.read_ahead,
                    "back_from_standby_pages": cache.soft_misses,
                    "dropped_pages": cache.dropped,
                    "written_bytes": cache.sectors_written * 512,
                },
            })
        });
        json!({
            "kind": info.kind.to_string(),
            "size_bytes": info.len,
            "domain": info.domain.to_string(),
            "domain_forced": info.forced,
            "survives": info.domain.survives(),
            "flush_instruction": info.flush.name(),
            "hardware_transactions": info.rtm.to_string(),
            "input_output": info.io,
            "cache": cache,
            "huge_pages_bytes": info.huge_pages.bytes,
            "counters": {
                "flushed_lines": stats.flushed_lines,
                "fences": stats.fences,
                "syncs": stats.syncs,
                "stored_cached_bytes": stats.bytes_cached,
                "stored_non_temporal_bytes": stats.bytes_non_temporal,
                "commits": {
                    "transaction_without_lock": stats.commits_optimistic,
                    "transaction_with_locks": stats.commits_transaction,
                    "journal": stats.commits_log,
                    "one_word": stats.commits_word,
                },
                "transactions_aborted": {
                    "by_conflict": stats.aborts_conflict,
                    "by_capacity": stats.aborts_capacity,
                    "otherwise": stats.aborts_other,
                },
            },
        })
    }

    fn check(&self, check: &Check, progress: volume::Progress<'_>) -> volume::Result<Report> {
        let options = CheckOptions {
            repair: check.repair,
            threads: check.threads,
        };
        let watch = |now: Progress| {
            let stage = match now.stage {
                Stage::Names => "names",
                Stage::Maps => "maps",
                Stage::Repair => "repair",
            };
            progress(stage, now.done, now.total);
        };
        let report = soupfs::fsck::check(&self.pool, &options, &watch)
            .map_err(|error| in_pool(&self.pool, error))?;
        Ok(Report {
            text: report.to_string(),
            code: report.exit_code(),
            json: json!({
                "outcome": match report.outcome {
                    Outcome::Clean => "clean",
                    Outcome::Repaired => "repaired",
                    Outcome::ErrorsLeft => "errors left",
                },
                "was_clean": report.was_clean,
                "journal_words_replayed": report.replayed,
                "repaired": report.repaired.iter().map(finding).collect::<Vec<_>>(),
                "left": report.left.iter().map(finding).collect::<Vec<_>>(),
                "left_more": report.more,
                "inodes": report.totals.inodes,
                "directories": report.totals.directories,
                "names": report.totals.names,
                "pages": report.totals.pages,
                "free_lines": report.totals.free_lines,
            }),
        })
    }

    fn mount(&self, settings: &Settings, read_only: bool) -> volume::Result<Arc<dyn Mounted>> {
        let options = mount_options(settings, read_only)?;
        let fs = SoupFs::mount(self.pool.clone(), options)
            .map_err(|error| in_pool(&self.pool, error))?;
        if let Some(notice) = fs.status().notice {
            log::warn!("{notice}");
        }
        Ok(Arc::new(Live { fs, read_only }))
    }

    fn poison(&self, why: &str) {
        self.pool.poison(why);
    }
}

/// Mounts for writing so far: a new image begins with epoch 1, and each of them raises it.
fn mounts(epoch: u64) -> u64 {
    epoch.saturating_sub(1)
}

fn finding(finding: &Finding) -> Value {
    json!({
        "problem": finding.problem.name(),
        "inode": finding.ino,
        "at": finding.at,
        "detail": finding.detail,
    })
}

impl Mounted for Live {
    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn status(&self) -> Value {
        let status = self.fs.status();
        json!({
            "type": Soup.name(),
            "uuid": Uuid::from_bytes(status.uuid).to_string(),
            "label": status.label,
            "size_bytes": status.bytes,
            "free_bytes": status.bytes_free,
            "mounts": mounts(status.epoch),
            "persisters": status.persisters,
            "late_ms": status.late.as_millis() as u64,
            "reclaiming": status.reclaimed_lines.is_none(),
            "failed": status.failed,
            "host_full": status.host_full,
            "notice": status.notice,
            "counters": {
                "inodes_cached": status.inodes_cached,
                "pending_words": status.backlog.words,
                "pending_words_max": status.backlog.words_max,
                "batches_published": status.backlog.batches,
                "operations_published": status.backlog.captured,
                "reclaimed_lines": status.reclaimed_lines,
            },
        })
    }

    fn sync(&self) -> vfs::Result<()> {
        self.fs.syncfs()
    }

    fn unmount(&self) -> volume::Result<()> {
        self.fs.unmount().map_err(|error| {
            Error::new(format_args!(
                "the end of the mount was not made durable: {error}; run tureen fsck"
            ))
        })
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use vfs::{Cred, Errno, NewKind, NewNodeRequest, Vfs, VfsOptions};

    use super::*;
    use crate::serve::poison_on_panic;

    fn create(image: &Path) -> Arc<Pool> {
        let pool = Pool::create(image, 64 << 20, &pmem::Options::default());
        let pool = Arc::new(pool.expect("an image"));
        let format = Format {
            uuid: [0; 16],
            label: String::new(),
            zeroed: true,
            journal: false,
        };
        let opened = Opened { pool: pool.clone() };
        opened.format(&format).expect("formatted");
        pool
    }

    fn mounted(pool: &Arc<Pool>) -> Vfs<SoupFs> {
        let options = soupfs::MountOptions {
            bound: Duration::from_secs(3600), // durable is what was synced
            ..mount_options(&Soup.settings(), false).expect("defaults")
        };
        let fs = SoupFs::mount(pool.clone(), options).expect("mount");
        Vfs::new(fs, VfsOptions::default())
    }

    fn make(vfs: &Vfs<SoupFs>, name: &str) -> vfs::Result<()> {
        let (root, request) = (
            vfs.fs().root(),
            NewNodeRequest::new(NewKind::File, 0o644, 0),
        );
        let made = vfs.create(&Cred::root(), &root, name.as_bytes(), &request);
        made.map(|_| ())
    }

    fn is_there(vfs: &Vfs<SoupFs>, name: &str) -> bool {
        let found = vfs.lookup(&Cred::root(), &vfs.fs().root(), name.as_bytes());
        found.is_ok()
    }

    fn is_clean(image: &Path) -> Option<bool> {
        let volume = Soup.open(image, Access::Look, &Soup.settings());
        volume.expect("the image is free").is_clean()
    }

    #[test]
    fn a_panic_stops_all_changes_and_the_next_mount_finds_what_was_durable() {
        let dir = tempfile::tempdir().expect("a directory");
        let image = dir.path().join("disk.img");
        let pool = create(&image);
        let volume: Arc<dyn Volume> = Arc::new(Opened { pool: pool.clone() });
        poison_on_panic(&volume);
        let vfs = mounted(&pool);
        make(&vfs, "durable").expect("make");
        vfs.syncfs().expect("sync");
        make(&vfs, "pending").expect("make");

        // In the middle of a change, with the engine's locks held.
        let veto = |_: &vfs::Rights| panic!("as a test");
        let root = vfs.fs().root();
        let request = || vfs.fs().unlink(&root, b"durable", &veto);
        let panicked = std::thread::scope(|scope| scope.spawn(request).join().is_err());
        assert!(panicked);
        let why = pool.poisoned().expect("poisoned").to_string();
        assert!(why.contains("as a test"), "{why}");
        let error = make(&vfs, "late").expect_err("no more changes");
        assert_eq!(error.errno(), Errno::IO);
        assert!(vfs.fs().unmount().is_err());
        drop((root, vfs, volume, pool));
        assert_eq!(is_clean(&image), Some(false));

        let pool = Pool::open(&image, &pmem::Options::default());
        let pool = Arc::new(pool.expect("the image is free"));
        let vfs = mounted(&pool);
        let found = ["durable", "pending", "late"].map(|name| is_there(&vfs, name));
        assert_eq!(found, [true, false, false]);
        let start = std::time::Instant::now();
        while vfs.fs().status().reclaimed_lines.is_none() {
            assert!(start.elapsed().as_secs() < 60, "the search does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        vfs.fs().unmount().expect("unmount");
        drop((vfs, pool));
        assert_eq!(is_clean(&image), Some(true));
    }
}
