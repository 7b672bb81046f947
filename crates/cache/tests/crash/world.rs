//! Two media, what crashes leave of them, and what is expected there.

use std::sync::Arc;

use block::record::{State, Trace as DiskTrace};
use block::{Disk, Memory, Random, Recorder as DiskRecorder};
use cache::testing::Bind;
use cache::{BLOCK, Binding, Cache, CreateOptions, Kind};
use explorer::image::Image;
use explorer::medium::{Medium, Tears};
use explorer::rules::Rules;
use explorer::scratch::Scratch;
use explorer::trace::{Event, Trace};
use parking_lot::Mutex;
use pmem::{Domain, Options, Pool, Recorder, StoreKind};

use crate::life::{Contents, DISK_BLOCKS, Script};

const DISK_LEN: usize = (DISK_BLOCKS * BLOCK) as usize;
/// Bytes of a unit of metadata, and pages of a memory that is far smaller than the disk.
const SIZES: [(u64, u64); 3] = [(64, 76), (256, 80), (4096, 140)];

/// A fault of the world, by which the judge is judged.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// Of each so many fences, this one does nothing.
    NoFence { nth: usize, of: usize },
    /// No flush of the disk does anything.
    NoDiskFlush,
}

/// Records the memory, and beside each event how far the disk is.
struct Both {
    memory: Arc<Trace>,
    disk: Arc<DiskRecorder>,
    points: Mutex<Vec<usize>>,
    fault: Option<Fault>,
    fences: Mutex<usize>,
}

impl Both {
    fn note(&self) {
        let disk = self.disk.len();
        self.points.lock().resize(self.memory.len(), disk);
    }
}

impl Recorder for Both {
    fn store(&self, off: u64, bytes: &[u8], kind: StoreKind) {
        self.memory.store(off, bytes, kind);
        self.note();
    }

    fn flush(&self, off: u64, len: u64) {
        self.memory.flush(off, len);
        self.note();
    }

    fn fence(&self) {
        let mut fences = self.fences.lock();
        *fences += 1;
        if let Some(Fault::NoFence { nth, of }) = self.fault
            && *fences % of == nth
        {
            return;
        }
        self.memory.fence();
        self.note();
    }

    /// The cache marks nothing.
    fn mark(&self, _: &str) {}
}

/// What the disk may hold, by the steps that had returned.
struct Expected {
    contents: Contents,
    unknown: Vec<bool>,
}

/// Two media between lives.
pub struct World {
    pub random: Random,
    kind: Kind,
    domain: Domain,
    fault: Option<Fault>,
    /// What the memory may hold; with the kill of a process, in versions.
    medium: Box<dyn Medium>,
    scratch: Scratch,
    /// What the next process sees of the memory.
    visible: Vec<u8>,
    /// What the disk may hold, and what the next process sees of it.
    disk: DiskTrace,
    disk_visible: Vec<u8>,
    /// What may be there: the step that was under way is there or not.
    expected: Vec<Expected>,
}

impl World {
    /// A new cache for a disk of noise, all of it durable.
    pub fn new(kind: Kind, domain: Domain, seed: u64, fault: Option<Fault>) -> World {
        let mut random = Random::new(seed);
        let mut contents: Contents = (0..DISK_LEN).map(|at| (at / 512) as u8 | 1).collect();
        Bind::label(&mut contents);
        let options = Options {
            domain: Some(domain),
            ..Options::default()
        };
        let (unit, pages) = SIZES[random.below(3) as usize];
        let pool = Arc::new(Pool::anonymous(pages * BLOCK, &options).expect("memory"));
        let disk = Disk::new(Arc::new(Memory::from_bytes(contents.clone())));
        let how = CreateOptions {
            kind,
            uuid: [9; 16],
            unit,
            metadata: random.below(40) * BLOCK,
        };
        let cache = Cache::create(pool.clone(), disk, Arc::new(Bind), &how).expect("it fits");
        drop(cache);
        let image = pool.snapshot();
        World {
            kind,
            domain,
            fault,
            medium: Rules::Lines(domain).medium(Tears::Some, seed),
            scratch: Scratch::on(Rules::Lines(domain), Image::from(image.clone())),
            visible: image,
            disk: DiskTrace::new(contents.clone()),
            disk_visible: contents.clone(),
            expected: vec![Expected {
                unknown: vec![false; DISK_LEN / 512],
                contents,
            }],
            random,
        }
    }

    /// Opens what there is, judges it, and does what the script says; then a crash, at any moment
    /// of that, ends it.
    pub fn live(&mut self, script: &Script) -> Result<(), String> {
        let (both, pool) = self.media();
        let disk = Disk::new(both.disk.clone());
        let opened = Cache::open(pool, disk, Arc::new(Bind));
        let cache = Arc::new(opened.map_err(|error| format!("opening: {error}"))?);
        if self.random.one_in(2) {
            cache.set_bypass(2 * BLOCK);
        }
        cache.keep_reads(self.random.one_in(2));
        let mut now = self.judge(&cache)?;
        // Of each step: the number of events when it had returned, and what is there then.
        let mut past = vec![(0, 0)];
        let mut states = vec![Expected {
            contents: now.contents.clone(),
            unknown: now.unknown.clone(),
        }];
        past.push((both.memory.len(), both.disk.len()));
        for step in &script.steps {
            step.run(&cache)
                .map_err(|error| format!("{step:?}: {error}"))?;
            step.apply(&mut now.contents, &mut now.unknown);
            states.push(Expected {
                contents: now.contents.clone(),
                unknown: now.unknown.clone(),
            });
            past.push((both.memory.len(), both.disk.len()));
        }
        drop(cache);
        let (events, _) = both.memory.take();
        let points = both.points.lock().clone();
        let (at, disk_at) = self.moment(&points, both.disk.len());
        // Steps that had returned then.
        let is_over = |end: &&(usize, usize)| end.0 <= at && end.1 <= disk_at;
        let returned = past[1..].iter().take_while(is_over).count();
        if returned > 0 {
            let rest = states.split_off(returned - 1);
            self.expected = rest.into_iter().take(2).collect();
            if returned > script.steps.len() {
                self.expected.truncate(1);
            }
        }
        self.crash(&events[..at], &both.disk.trace().before(disk_at));
        Ok(())
    }

    /// What the next process has, recorded.
    fn media(&self) -> (Arc<Both>, Arc<Pool>) {
        let disk = Arc::new(Memory::from_bytes(self.disk_visible.clone()));
        let both = Arc::new(Both {
            memory: Trace::new(&[]),
            disk: Arc::new(DiskRecorder::resume(disk, self.disk.clone())),
            points: Mutex::default(),
            fault: self.fault,
            fences: Mutex::default(),
        });
        let options = Options {
            domain: Some(self.domain),
            recorder: Some(both.clone()),
            ..Options::default()
        };
        let pool = Arc::new(Pool::from_bytes(&self.visible, &options).expect("memory"));
        (both, pool)
    }

    /// A moment of a life: events of the memory, and of the disk.
    fn moment(&mut self, points: &[usize], disk_len: usize) -> (usize, usize) {
        let first = self.disk.events.len();
        // Between two events of the memory any number of those of the disk may have been.
        let at = self.random.below(points.len() as u64 + 1) as usize;
        let from = if at == 0 { first } else { points[at - 1] };
        let to = points.get(at).copied().unwrap_or(disk_len);
        let disk_at = from + self.random.below((to - from) as u64 + 1) as usize;
        (at, disk_at)
    }

    /// Power is cut, or the process killed, after these events.
    fn crash(&mut self, events: &[Event], disk: &DiskTrace) {
        for event in events {
            self.medium.apply(event, &mut self.scratch);
        }
        let mut trace = disk.clone();
        if let Some(Fault::NoDiskFlush) = self.fault {
            let is_flush = |event: &block::record::Event| {
                *event == block::record::Event::Submitted(block::record::Change::Flush)
            };
            trace = without(disk, is_flush);
        }
        if self.random.one_in(3) {
            self.medium.kill(&mut self.scratch);
            self.visible = self.scratch.image(&self.medium.visible()).bytes();
            self.disk = killed(disk, &mut self.random);
            let crash = self.disk.crash(self.disk.events.len());
            self.disk_visible = crash.image(State::Newest).expect("there is one");
            return;
        }
        let crash = trace.crash(trace.events.len());
        let mut overlay = Vec::new();
        let mode = self.random.below(4);
        for (unit, versions) in self.medium.units() {
            let version = match mode {
                0 => 0,
                1 => versions - 1,
                _ => self.random.below(versions as u64) as usize,
            };
            self.medium.put(unit, version, &mut overlay);
        }
        self.visible = self.scratch.image(&overlay).bytes();
        let seed = self.random.number();
        let state = match self.random.below(4) {
            0 => State::Oldest,
            1 => State::Newest,
            _ => State::Random(seed),
        };
        self.disk_visible = crash.image(state).expect("there is one");
        self.disk = DiskTrace::new(self.disk_visible.clone());
        let rules = Rules::Lines(self.domain);
        self.medium = rules.medium(Tears::Some, seed);
        self.scratch = Scratch::on(rules, Image::from(self.visible.clone()));
    }

    /// Which of the expected contents are there.
    fn judge(&self, cache: &Cache) -> Result<Expected, String> {
        let mut found = vec![0; DISK_LEN];
        let read = cache.read(0, &mut found);
        read.map_err(|error| format!("reading: {error}"))?;
        self.is_expected(&found)
    }

    fn is_expected(&self, found: &[u8]) -> Result<Expected, String> {
        let differs = |expected: &Expected| {
            let sectors = found.chunks(512).zip(expected.contents.chunks(512));
            let mut sectors = sectors.zip(&expected.unknown);
            sectors.position(|((found, expected), unknown)| !unknown && found != expected)
        };
        let all: Vec<Option<usize>> = self.expected.iter().map(differs).collect();
        match all.iter().position(Option::is_none) {
            Some(which) => Ok(Expected {
                contents: found.to_vec(),
                unknown: self.expected[which].unknown.clone(),
            }),
            None => Err(format!("sectors that are of no step: {all:?}")),
        }
    }

    /// The last life lets the disk have everything: it is consistent by itself.
    pub fn finish(&mut self) -> Result<(), String> {
        let (both, pool) = self.media();
        let disk = Disk::new(both.disk.clone());
        let opened = Cache::open(pool.clone(), disk, Arc::new(Bind));
        let cache = opened.map_err(|error| format!("opening at last: {error}"))?;
        self.judge(&cache)?;
        assert_eq!(cache.status().kind, self.kind);
        cache
            .detach()
            .map_err(|error| format!("detaching: {error}"))?;
        let trace = both.disk.trace();
        let crash = trace.crash(trace.events.len());
        // All of it is durable.
        let alone = crash.image(State::Oldest).expect("there is one");
        self.is_expected(&alone)?;
        match Bind.marked(&alone) {
            None => Ok(()),
            Some(_) => Err("the disk is still marked".to_owned()),
        }
    }
}

/// A trace whose process was killed (B9). A flush in flight has not been. Writes in flight have not
/// been either, or their first sectors are there: what the next process sees is what it flushes.
fn killed(trace: &DiskTrace, random: &mut Random) -> DiskTrace {
    use block::record::{Change, Event};
    let mut open = Vec::new();
    let mut changes = 0;
    for (at, event) in trace.events.iter().enumerate() {
        match event {
            Event::Submitted(change) => {
                open.push((changes, at, *change == Change::Flush));
                changes += 1;
            }
            Event::Completed { id, .. } => open.retain(|(open, ..)| open != id),
            Event::Mark(_) => {}
        }
    }
    let has_been = random.one_in(2);
    if let Some(&(_, at, _)) = open.iter().find(|(.., is_flush)| *is_flush || !has_been) {
        return killed(&trace.before(at), random);
    }
    let mut trace = trace.clone();
    for (id, at, _) in open {
        if let Event::Submitted(Change::Write { bytes, .. }) = &mut trace.events[at] {
            let sectors = 1 + random.below(bytes.len() as u64 / 512) as usize;
            *bytes = bytes[..sectors * 512].into();
        }
        trace.complete(id, true);
    }
    trace
}

/// A trace without the flushes: their completions count for nothing.
fn without(trace: &DiskTrace, is: impl Fn(&block::record::Event) -> bool) -> DiskTrace {
    use block::record::Event;
    let mut flushes = Vec::new();
    let mut id = 0;
    let mut left = trace.clone();
    for event in &trace.events {
        if let Event::Submitted(_) = event {
            if is(event) {
                flushes.push(id);
            }
            id += 1;
        }
    }
    for event in &mut left.events {
        if let Event::Completed { id, ok } = event
            && flushes.contains(id)
        {
            *ok = false;
        }
    }
    left
}
