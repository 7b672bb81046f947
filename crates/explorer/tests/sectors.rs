//! The explorer knows neither the engine nor the medium: a small file system on the sectors of a
//! disk, which shares nothing with SoupFS, is explored and judged for its own promise, the strict
//! one; and its bugs are noticed.
//!
//! It is a log of operations behind a superblock, and the reference file system in memory. Each
//! operation is one record with a checksum, which is durable before the call returns; mounting does
//! the operations of all whole records again.

use block::SECTOR;
use explorer::disk::Disk;
use explorer::effort::{Effort, Level};
use explorer::engine::{Census, Engine, LATER, Leaves, Mode, Mounted, Mounting, POISON, Shortage};
use explorer::explore::{Wrong, explore, explore_run};
use explorer::families::family;
use explorer::image::Image;
use explorer::op::{HANDLES, Op, Side, contents};
use explorer::rules::Rules;
use explorer::run::Run;
use explorer::scratch::Device;
use explorer::states::Explored;
use explorer::trace::Event;
use explorer::tree::{Flaw, Id, Tree};
use explorer::workload::Workload;
use model::Model;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use vfs::{Clock, Errno, Fallocate, FileSystem, Limits, RenameMode, Time};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: u64 = 0x6c6f_6766_7331;
/// The time when every file system here was made.
const MADE: Time = Time(1_000);
const STRICT: Mode = Mode::new("strict", true, Leaves::Whole);
/// Bytes of a record before its operation: magic, number, length, time, checksum.
const HEADER: usize = 40;
/// The first sector of the log.
const LOG: u64 = SECTOR;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// A record's checksum is not looked at.
    Unverified,
    /// A call returns before the last sector of its record is durable.
    Early,
}

struct LogFs(Bug);

static SOUND: LogFs = LogFs(Bug::None);
static UNVERIFIED: LogFs = LogFs(Bug::Unverified);
static EARLY: LogFs = LogFs(Bug::Early);

/// The time of the record that is done again, and then that of the mount.
struct Replayed {
    record: AtomicI64,
    mount: Arc<dyn Clock>,
}

/// No record is done again any more.
const LIVE: i64 = i64::MIN;

impl Clock for Replayed {
    fn now(&self) -> Time {
        match self.record.load(Relaxed) {
            LIVE => self.mount.now(),
            time => Time(time),
        }
    }
}

/// An operation as it is in the log: words and texts, each with its length.
#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn put(mut self, bytes: &[u8]) -> Fields {
        self.0.extend((bytes.len() as u32).to_le_bytes());
        self.0.extend(bytes);
        self
    }

    fn number(self, n: u64) -> Fields {
        self.put(&n.to_le_bytes())
    }

    fn read(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let (len, rest) = bytes.split_first_chunk::<4>()?;
            let (field, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            fields.push(field.to_vec());
            bytes = rest;
        }
        Some(fields)
    }
}

/// What the log says of an operation; `None`: nothing, it changes nothing on the disk.
///
/// # Errors
/// The file system does not have it.
fn encode(fs: &Side<Model>, op: &Op) -> vfs::Result<Option<Fields>> {
    let verb = |verb: &str, path: &str| Fields::default().put(verb.as_bytes()).put(path.as_bytes());
    Ok(Some(match op {
        Op::Create(path) => verb("create", path),
        Op::Mkdir(path) => verb("mkdir", path),
        Op::Unlink(path) => verb("unlink", path),
        Op::Rmdir(path) => verb("rmdir", path),
        Op::Link(from, to) => verb("link", from).put(to.as_bytes()),
        Op::Rename(from, to, RenameMode::Replace) => verb("rename", from).put(to.as_bytes()),
        Op::Truncate(path, size) => verb("truncate", path).number(*size),
        Op::Fallocate(path, Fallocate::Punch, at, len) => {
            verb("punch", path).number(*at).number(*len)
        }
        Op::Fallocate(path, Fallocate::Allocate { keep_size: true }, at, len) => {
            verb("reserve", path).number(*at).number(*len)
        }
        Op::Write {
            path,
            at,
            len,
            fill,
        } => {
            let size = || Ok::<u64, vfs::Error>(fs.fs.attr(&fs.find(path)?).size);
            let at = at.map_or_else(size, Ok)?;
            let data = contents(path, *fill, at, *len);
            verb("write", path).number(at).put(&data)
        }
        Op::Open(..) | Op::Close(_) => return Ok(None),
        op if op.only_syncs() => return Ok(None),
        _ => return Err(Errno::OPNOTSUPP.into()),
    }))
}

/// Do an operation of the log again; `None` if it is none.
fn replay(fs: &mut Side<Model>, fields: &[Vec<u8>]) -> Option<()> {
    let text = |i: usize| String::from_utf8(fields.get(i)?.clone()).ok();
    let number = |i: usize| {
        Some(u64::from_le_bytes(
            fields.get(i)?.as_slice().try_into().ok()?,
        ))
    };
    let path = text(1)?;
    let op = match text(0)?.as_str() {
        "create" => Op::Create(path),
        "mkdir" => Op::Mkdir(path),
        "unlink" => Op::Unlink(path),
        "rmdir" => Op::Rmdir(path),
        "link" => Op::Link(path, text(2)?),
        "rename" => Op::Rename(path, text(2)?, RenameMode::Replace),
        "truncate" => Op::Truncate(path, number(2)?),
        "punch" => Op::Fallocate(path, Fallocate::Punch, number(2)?, number(3)?),
        "reserve" => {
            let mode = Fallocate::Allocate { keep_size: true };
            Op::Fallocate(path, mode, number(2)?, number(3)?)
        }
        "write" => {
            let node = fs.find(&path).ok()?;
            return fs
                .fs
                .write(&node, number(2)?, fields.get(3)?)
                .ok()
                .map(drop);
        }
        _ => return None,
    };
    fs.run(&op).ok()
}

/// A mounted log.
struct Mount {
    bug: Bug,
    disk: Arc<Disk>,
    clock: Arc<Replayed>,
    fs: Side<Model>,
    /// The number of the next record, and where it goes.
    number: u64,
    end: AtomicU64,
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A sector of these words.
fn sector(of: &[u64]) -> Vec<u8> {
    let mut bytes = words(of);
    bytes.resize(SECTOR as usize, 0);
    bytes
}

/// The words of the superblock: magic, and how many records there were when it was unmounted, plus
/// one; 0 while it is mounted.
fn superblock(disk: &Disk) -> Result<u64, Flaw> {
    let mut bytes = [0; 16];
    disk.read(0, &mut bytes);
    let word = |i: usize| u64::from_le_bytes(bytes[i..i + 8].try_into().expect("8 bytes"));
    match word(0) {
        MAGIC => Ok(word(8)),
        _ => Err("no log".into()),
    }
}

fn checksum(header: &[u8], op: &[u8]) -> u64 {
    xxh3_64(&[&header[..HEADER - 8], op].concat())
}

impl Mount {
    /// What a disk has, with the time of a mount.
    fn read(bug: Bug, disk: &Arc<Disk>, mount: Arc<dyn Clock>) -> Result<Mount, Flaw> {
        superblock(disk)?;
        let clock = Arc::new(Replayed {
            record: AtomicI64::new(MADE.0),
            mount,
        });
        let mut log = Mount {
            bug,
            disk: disk.clone(),
            fs: Side::new(Model::on(clock.clone())),
            clock,
            number: 0,
            end: AtomicU64::new(LOG),
        };
        while log.next_record().is_some() {}
        log.clock.record.store(LIVE, Relaxed);
        Ok(log)
    }

    /// Do the record behind the last one again; `None` if none is whole there.
    fn next_record(&mut self) -> Option<()> {
        let at = self.end.load(Relaxed);
        if at + SECTOR > self.disk.len() {
            return None;
        }
        let mut header = [0; HEADER];
        self.disk.read(at, &mut header);
        let word = |i: usize| u64::from_le_bytes(header[i * 8..][..8].try_into().expect("8 bytes"));
        let [magic, number, len, time, sum] = std::array::from_fn(word);
        let end = at + (HEADER as u64).checked_add(len)?.next_multiple_of(SECTOR);
        if magic != MAGIC || number != self.number || end > self.disk.len() {
            return None;
        }
        let mut op = vec![0; len as usize];
        self.disk.read(at + HEADER as u64, &mut op);
        if self.bug != Bug::Unverified && sum != checksum(&header, &op) {
            return None;
        }
        self.clock.record.store(time as i64, Relaxed);
        replay(&mut self.fs, &Fields::read(&op)?)?;
        self.number += 1;
        self.end.store(end, Relaxed);
        Some(())
    }

    /// Add a record; it is durable when this returns.
    fn add(&mut self, op: &[u8]) {
        let time = self.clock.now().0 as u64;
        let mut record = words(&[MAGIC, self.number, op.len() as u64, time]);
        record.extend([0; 8]);
        let sum = checksum(&record, op);
        record[HEADER - 8..].copy_from_slice(&sum.to_le_bytes());
        record.extend(op);
        record.resize(record.len().next_multiple_of(SECTOR as usize), 0);
        let at = self.end.load(Relaxed);
        let early = match self.bug {
            Bug::Early => record.len() - SECTOR as usize,
            _ => record.len(),
        };
        self.disk.write(at, &record[..early]);
        self.disk.barrier();
        self.disk.write(at + early as u64, &record[early..]);
        self.number += 1;
        self.end.store(at + record.len() as u64, Relaxed);
    }

    fn mark(&self, clean: u64) {
        self.disk.write(0, &sector(&[MAGIC, clean]));
        self.disk.barrier();
    }
}

impl Mounted for Mount {
    fn run(&mut self, op: &Op) -> vfs::Result<()> {
        let fields = encode(&self.fs, op);
        self.fs.run(op)?;
        if let Some(fields) = fields? {
            self.add(&fields.0);
        }
        Ok(())
    }

    fn act(&self, _op: &Op) -> vfs::Result<()> {
        Err(Errno::OPNOTSUPP.into()) // one thread at a time
    }

    fn suffer(&mut self, _shortage: &mut Shortage, op: &Op) -> vfs::Result<()> {
        self.run(op)
    }

    fn as_far_as_it_went(&self, op: &Op) -> Op {
        self.fs.as_far_as_it_went(op)
    }

    fn tree(&self) -> Result<Tree, Flaw> {
        Mounted::tree(&self.fs)
    }

    fn id(&self, path: &str) -> Option<Id> {
        self.fs.id(path)
    }

    fn held(&self, handle: usize) -> Option<(Id, u32)> {
        Mounted::held(&self.fs, handle)
    }

    fn open(&mut self, path: &str) -> vfs::Result<()> {
        self.fs.open(path)
    }

    fn let_go(&mut self) {
        self.fs.held = [const { None }; HANDLES];
    }

    fn limits(&self) -> Limits {
        self.fs.fs.limits()
    }

    fn free(&self) -> u64 {
        (self.disk.len() - self.end.load(Relaxed)) / 4096
    }

    fn batches(&self) -> u64 {
        0
    }

    fn unmount(&self) -> vfs::Result<()> {
        self.mark(self.number + 1);
        Ok(())
    }
}

impl Engine for LogFs {
    fn name(&self) -> &'static str {
        "logfs"
    }

    fn modes(&self) -> &'static [Mode] {
        &[STRICT]
    }

    fn empty(&self, len: u64, _: Mode) -> Image {
        let mut image = Image::full_of(POISON, len);
        image.write(0, &sector(&[MAGIC, 1]));
        image
    }

    /// A log from before does not count: the first sector of the new one is wiped first.
    fn format(&self, device: &Device) -> Result<(), Flaw> {
        let disk = device.disk();
        disk.write(0, &sector(&[]));
        disk.write(LOG, &sector(&[]));
        disk.barrier();
        disk.write(0, &sector(&[MAGIC, 1]));
        disk.barrier();
        Ok(())
    }

    /// What a killed process left is durable before anything builds on it (B3, B9).
    fn mount(&self, device: &Device, how: &Mounting) -> Result<Box<dyn Mounted>, Flaw> {
        let mount = Mount::read(self.0, device.disk(), how.clock.clone())?;
        mount.mark(0);
        Ok(Box::new(mount))
    }

    fn is_clean(&self, device: &Device) -> Result<bool, Flaw> {
        Ok(superblock(device.disk())? > 0)
    }

    fn media(&self) -> &'static [Rules] {
        &[Rules::Sectors]
    }

    fn audit(&self, device: &Device) -> Result<(), Flaw> {
        let disk = device.disk();
        let found = Mount::read(self.0, disk, Arc::new(vfs::ManualClock::new(LATER)))?;
        match superblock(disk)? {
            0 => Ok(()),
            clean if clean == found.number + 1 => Ok(()),
            clean => Err(format!("{} records, not {}", found.number, clean - 1)),
        }
    }

    fn flawless(&self, device: &Device) -> Result<Census, Flaw> {
        self.audit(device)?;
        if !self.is_clean(device)? {
            return Err("not unmounted".into());
        }
        let disk = device.disk();
        let found = Mount::read(self.0, disk, Arc::new(vfs::ManualClock::new(LATER)))?;
        let tree = Mounted::tree(&found.fs)?;
        Ok(Census {
            inodes: tree.objects.len() as u64,
            names: tree.objects.values().map(|o| o.names.len() as u64).sum(),
        })
    }

    fn repair(&self, device: &Device) -> Result<(), Flaw> {
        self.reclaim(device).map(drop)
    }

    fn reclaim(&self, device: &Device) -> Result<Tree, Flaw> {
        let fs = (self as &dyn Engine).mount_at(device, LATER)?;
        fs.unmount().map_err(|e| e.to_string())?;
        fs.tree()
    }
}

/// A workload of ACE, on a log.
fn on(engine: &'static LogFs, workload: Workload) -> Workload {
    Workload {
        engine,
        mode: STRICT,
        len: 256 << 10,
        ..workload
    }
}

fn workloads(
    engine: &'static LogFs,
    name: &str,
    count: u64,
) -> impl Iterator<Item = Workload> + use<> {
    let family = family(name).expect("a family of this name");
    let numbers = (0..count).map_while(move |n| family.number(n, true).map(|n| family.workload(n)));
    numbers.map(move |workload| on(engine, workload.expect("it is made")))
}

fn effort() -> Effort<'static> {
    Effort {
        used: 31,
        nested: 97,
        reclaimed: 97,
        lives: 16,
        ..Level::Normal.effort(0)
    }
}

#[test]
fn a_log_on_a_disk_keeps_its_promise_through_every_crash() {
    let mut sum = Explored::default();
    let all = workloads(&SOUND, "ace1", u64::MAX).chain(workloads(&SOUND, "ace2", 300));
    for workload in all {
        let name = workload.name.clone();
        match explore(&workload, Rules::Sectors, effort(), None) {
            Ok(explored) => sum.add(explored),
            Err(Wrong::Run(what) | Wrong::Quiescent(_, what)) => panic!("{name}: {what}"),
            Err(Wrong::State(run, objection)) => {
                panic!("{name}: {}\n{}", objection.what, run.account())
            }
        }
    }
    println!("{sum:?}");
    assert!(sum.judged > 10_000, "{sum:?}");
}

/// What the judges say of a log with a bug, of the workloads of ACE.
fn objection(engine: &'static LogFs) -> Option<String> {
    workloads(engine, "ace1", u64::MAX).find_map(|workload| {
        match explore(&workload, Rules::Sectors, effort(), None) {
            Err(Wrong::State(_, objection)) => Some(objection.what),
            Err(wrong) => panic!("{wrong:?}"),
            Ok(_) => None,
        }
    })
}

#[test]
fn a_record_that_is_not_verified_and_a_call_that_returns_early_are_noticed() {
    for engine in [&UNVERIFIED, &EARLY] {
        let what = objection(engine);
        println!("{:?}: {what:?}", engine.0);
        assert!(what.is_some(), "nobody notices {:?}", engine.0);
    }
}

#[test]
fn each_barrier_that_is_left_out_is_noticed() {
    let family = family("ace1").expect("a family of this name");
    let workload = on(&SOUND, family.workload(0).expect("it is made"));
    let run = Run::record(workload, Rules::Sectors, false).expect("it runs");
    let begins = |event: &Event| *event == Event::Begin(run.from);
    let from = run.events.iter().position(begins).expect("a step");
    let barriers: Vec<usize> = (from..run.events.len())
        .filter(|&i| matches!(run.events[i], Event::Barrier { .. }))
        .collect();
    assert!(barriers.len() > 1, "{barriers:?}");
    for &barrier in &barriers {
        let mut events = run.events.clone();
        events.remove(barrier);
        let explored = explore_run(&run, &events, effort(), None);
        assert!(explored.is_err(), "nobody misses barrier {barrier}");
    }
}
