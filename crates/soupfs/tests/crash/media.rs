//! The medium: what a run did to it, and the images that a crash may leave of that.
//!
//! States are made by the assumptions of `docs/crash-model.md`, whose numbers are cited here. Not covered:
//! failing syncs (M13), and the freedom of non-temporal stores, of which SoupFS makes none.

use crate::random::Random;
use parking_lot::Mutex;
use pmem::{Domain, LINE, Options, PAGE, Pool, Recorder, StoreKind};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::thread::ThreadId;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const LINE_BYTES: usize = LINE as usize;
const PAGE_BYTES: usize = PAGE as usize;
const WORD: usize = 8;

/// At most so many states of one point are all tried; of more, a sample is.
const EXHAUSTIVE: u64 = 64;
/// Versions that a torn store adds to a line: a few of the subsets of its words (M3).
const TEARS: usize = 3;

/// Something that happened to a pool.
#[derive(Debug, Clone)]
pub enum Event {
    /// Bytes were stored.
    Store {
        at: u64,
        bytes: Vec<u8>,
    },
    /// Write-back was requested, by a thread.
    Flush {
        at: u64,
        len: u64,
        by: ThreadId,
        site: u32,
    },
    /// A thread's fence completed.
    Fence {
        by: ThreadId,
        site: u32,
    },
    /// A step of the workload begins, or has ended.
    Begin(usize),
    End(usize),
}

/// Records what happens to a pool, and where in the engine flushes and fences come from.
#[derive(Default)]
pub struct Trace {
    events: Mutex<Vec<Event>>,
    sites: Option<Mutex<Vec<String>>>,
}

impl Trace {
    /// An empty trace; `sites`: note who flushes and fences (slow).
    pub fn new(sites: bool) -> Arc<Trace> {
        Arc::new(Trace {
            events: Mutex::default(),
            sites: sites.then(Mutex::default),
        })
    }

    /// What has happened so far, and the names of the sites.
    pub fn take(&self) -> (Vec<Event>, Vec<String>) {
        let sites = self.sites.as_ref().map(|s| std::mem::take(&mut *s.lock()));
        (
            std::mem::take(&mut *self.events.lock()),
            sites.unwrap_or_default(),
        )
    }

    /// Note a step's begin or end.
    pub fn mark(&self, event: Event) {
        self.events.lock().push(event);
    }

    fn site(&self) -> u32 {
        let Some(sites) = &self.sites else { return 0 };
        let name = caller(&std::backtrace::Backtrace::force_capture().to_string());
        let mut sites = sites.lock();
        let known = sites.iter().position(|site| *site == name);
        known.unwrap_or_else(|| {
            sites.push(name);
            sites.len() - 1
        }) as u32
    }
}

/// The innermost functions of the engine on a stack, outermost last.
fn caller(stack: &str) -> String {
    let frames = stack.lines().filter_map(|line| {
        let name = line.trim().split_once(": ")?.1;
        let of_engine = ["soupfs::", "pmem::journal", "<soupfs::", "<pmem::journal"]
            .iter()
            .any(|p| name.starts_with(p));
        let name = name.split("::h").next().unwrap_or(name);
        of_engine.then(|| {
            name.rsplit("::")
                .take(2)
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
                .collect::<Vec<_>>()
                .join("::")
        })
    });
    frames
        .filter(|f| !f.contains("closure"))
        .take(3)
        .collect::<Vec<_>>()
        .join(" < ")
}

impl Recorder for Trace {
    fn store(&self, at: u64, bytes: &[u8], _kind: StoreKind) {
        self.events.lock().push(Event::Store {
            at,
            bytes: bytes.to_vec(),
        });
    }

    fn flush(&self, at: u64, len: u64) {
        let site = self.site();
        self.events.lock().push(Event::Flush {
            at,
            len,
            by: std::thread::current().id(),
            site,
        });
    }

    fn fence(&self) {
        let site = self.site();
        self.events.lock().push(Event::Fence {
            by: std::thread::current().id(),
            site,
        });
    }

    fn mark(&self, _text: &str) {}
}

type Line = [u8; LINE_BYTES];

/// What a line may hold: its versions from the newest that is durable for sure to the latest.
struct Versions {
    all: Vec<Line>,
    /// For each thread that flushed since: the version that its flush asked to write back.
    flushed: Vec<(ThreadId, usize)>,
}

/// Where in a run a crash happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Moment {
    /// The step under way, or the last that ended.
    pub step: usize,
    /// It has ended.
    pub ended: bool,
}

/// Lines that differ from the durable image, in a crash state.
pub type Overlay = Vec<(u64, Line)>;

/// A crash state: at a point of the trace, the given lines differ from what is durable.
pub struct Crash<'a> {
    pub moment: Moment,
    /// Number of the point, and of the state at it: the tail of a token.
    pub point: usize,
    pub state: usize,
    pub overlay: &'a Overlay,
}

/// Replays a trace and visits crash states. The durable image is in a [`Scratch`], so that a state
/// costs only what it changes.
pub struct Explorer<'a> {
    pub domain: Domain,
    /// Sampled states at a point that has too many.
    pub samples: usize,
    /// Only this point and state: a replay.
    pub only: Option<(usize, usize)>,
    pub seed: u64,
    pub visit: &'a mut dyn FnMut(&Crash<'_>, &mut Scratch) -> Result<(), String>,
}

/// What an exploration saw.
#[derive(Debug, Clone, Copy, Default)]
pub struct Explored {
    /// States that were generated.
    pub states: u64,
    /// Different ones, which were judged.
    pub judged: u64,
}

impl Explored {
    pub fn add(&mut self, other: Explored) {
        self.states += other.states;
        self.judged += other.judged;
    }
}

struct Replay<'a, 'b> {
    explorer: &'a mut Explorer<'b>,
    scratch: &'a mut Scratch,
    lines: BTreeMap<u64, Versions>,
    moment: Moment,
    point: usize,
    seen: &'a mut HashSet<(u64, Moment)>,
    explored: Explored,
    /// XOR over all lines of the durable image of their hash: the base of a state's hash.
    durable: u64,
}

fn hash(line: u64, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, line)
}

impl Explorer<'_> {
    /// Visit crash states of a trace that starts from the image in `scratch`.
    pub fn run(&mut self, events: &[Event], scratch: &mut Scratch) -> Result<Explored, String> {
        let mut replay = Replay {
            explorer: self,
            scratch,
            lines: BTreeMap::new(),
            moment: Moment {
                step: 0,
                ended: false,
            },
            point: 0,
            seen: &mut HashSet::new(),
            explored: Explored::default(),
            durable: 0,
        };
        for event in events {
            replay.step(event)?;
        }
        replay.crash()?;
        Ok(replay.explored)
    }
}

impl Replay<'_, '_> {
    fn step(&mut self, event: &Event) -> Result<(), String> {
        let cache = self.explorer.domain == Domain::Cache;
        match event {
            Event::Store { at, bytes } if cache => self.store_in_order(*at, bytes)?,
            Event::Store { at, bytes } => self.store(*at, bytes),
            Event::Flush { .. } | Event::Fence { .. } if cache => {}
            Event::Flush { at, len, by, .. } => self.flush(*at, *len, *by),
            Event::Fence { by, .. } => {
                self.crash()?;
                self.fence(*by);
            }
            Event::Begin(step) => {
                self.moment = Moment {
                    step: *step,
                    ended: false,
                }
            }
            Event::End(step) => {
                if !cache {
                    self.crash()?;
                }
                self.moment = Moment {
                    step: *step,
                    ended: true,
                };
                self.crash()?;
            }
        }
        Ok(())
    }

    fn latest(&self, line: u64) -> Line {
        match self.lines.get(&line) {
            Some(versions) => versions.all[versions.all.len() - 1],
            None => self.scratch.durable(line),
        }
    }

    /// Domains `line` and `page`: a store adds versions to its lines, the torn ones first (M3, M5).
    fn store(&mut self, at: u64, bytes: &[u8]) {
        for (line, from, part) in by_line(at, bytes) {
            let before = self.latest(line);
            let mut after = before;
            after[from..from + part.len()].copy_from_slice(part);
            if after == before {
                continue;
            }
            let durable = self.scratch.durable(line);
            let mut random = Random::new(self.explorer.seed ^ hash(line, &after));
            let versions = self.lines.entry(line).or_insert_with(|| Versions {
                all: vec![durable],
                flushed: Vec::new(),
            });
            versions.all.extend(tears(&before, &after, &mut random));
            versions.all.push(after);
        }
    }

    fn flush(&mut self, at: u64, len: u64, by: ThreadId) {
        for line in at / LINE..(at + len).div_ceil(LINE) {
            if let Some(versions) = self.lines.get_mut(&line) {
                versions.flushed.retain(|&(thread, _)| thread != by);
                versions.flushed.push((by, versions.all.len() - 1));
            }
        }
    }

    /// The versions that were flushed are durable: by this thread (M6), in `page` by any (M12).
    fn fence(&mut self, by: ThreadId) {
        let page = self.explorer.domain == Domain::Page;
        let mut durable = Vec::new();
        for (&line, versions) in &mut self.lines {
            let flushed = versions
                .flushed
                .iter()
                .filter(|(thread, _)| page || *thread == by)
                .map(|&(_, v)| v)
                .max();
            let Some(floor) = flushed else { continue };
            versions.all.drain(..floor);
            versions
                .flushed
                .retain(|&(thread, version)| thread != by && version > floor);
            versions
                .flushed
                .iter_mut()
                .for_each(|(_, version)| *version -= floor);
            durable.push((line, versions.all[0]));
        }
        self.lines.retain(|_, versions| versions.all.len() > 1);
        self.make_durable(&durable);
    }

    fn make_durable(&mut self, lines: &[(u64, Line)]) {
        for (line, bytes) in lines {
            self.durable ^= hash(*line, &self.scratch.durable(*line)) ^ hash(*line, bytes);
        }
        self.scratch.make_durable(lines);
    }

    /// Domain `cache`: every store is durable at once; the one under way may be torn (M8).
    fn store_in_order(&mut self, at: u64, bytes: &[u8]) -> Result<(), String> {
        self.crash()?;
        let parts: Vec<(u64, Line)> = by_line(at, bytes)
            .map(|(line, from, part)| {
                let mut after = self.scratch.durable(line);
                after[from..from + part.len()].copy_from_slice(part);
                (line, after)
            })
            .collect();
        if parts.len() > 1 || bytes.len() > WORD {
            let mut random = Random::new(self.explorer.seed ^ at);
            let torn: Overlay = parts
                .iter()
                .filter_map(|(line, after)| {
                    let before = self.scratch.durable(*line);
                    match random.below(3) {
                        0 => None,
                        1 => Some((*line, *after)),
                        _ => tears(&before, after, &mut random)
                            .pop()
                            .map(|torn| (*line, torn)),
                    }
                })
                .collect();
            self.visit(0, &torn)?;
            self.point += 1;
        }
        self.make_durable(&parts);
        Ok(())
    }

    /// A crash may happen here: visit the states that it may leave, or some of them.
    fn crash(&mut self) -> Result<(), String> {
        let lines: Vec<(u64, usize)> = self
            .lines
            .iter()
            .map(|(&line, v)| (line, v.all.len()))
            .collect();
        let states = lines
            .iter()
            .fold(1u64, |n, &(_, v)| n.saturating_mul(v as u64));
        if states <= EXHAUSTIVE {
            for state in 0..states {
                let mut rest = state;
                let chosen = |_, versions: usize| {
                    let version = rest % versions as u64;
                    rest /= versions as u64;
                    version as usize
                };
                self.choose(state as usize, &lines, chosen)?;
            }
        } else {
            self.sample(&lines)?;
        }
        self.point += 1;
        Ok(())
    }

    fn sample(&mut self, lines: &[(u64, usize)]) -> Result<(), String> {
        self.choose(0, lines, |_, _| 0)?;
        self.choose(1, lines, |_, versions| versions - 1)?;
        let mut random = Random::new(self.explorer.seed ^ (self.point as u64) << 32);
        for state in 2..2 + self.explorer.samples {
            let one = lines[random.below(lines.len() as u64) as usize].0;
            let page = one / (PAGE / LINE);
            let odds = 1 + random.below(15);
            let form = random.below(7);
            let mut dice = Random::new(random.next());
            self.choose(state, lines, |line, versions| {
                let any = dice.below(versions as u64) as usize;
                let hit = match form {
                    0 | 1 => line == one,
                    2 | 3 => line / (PAGE / LINE) == page,
                    _ => dice.below(16) < odds,
                };
                match (form, hit) {
                    (0 | 2, true) => any.max(1), // ahead
                    (1 | 3, true) => 0,          // behind
                    (0 | 2, false) => 0,
                    (1 | 3, false) => versions - 1,
                    (4, true) => any,
                    (4, false) => 0,
                    (5, true) => any,
                    (5, false) => versions - 1,
                    (_, true) => versions - 1,
                    (_, false) => 0,
                }
            })?;
        }
        Ok(())
    }

    fn choose(
        &mut self,
        state: usize,
        lines: &[(u64, usize)],
        mut version: impl FnMut(u64, usize) -> usize,
    ) -> Result<(), String> {
        let overlay: Overlay = lines
            .iter()
            .filter_map(|&(line, versions)| match version(line, versions) {
                0 => None,
                v => Some((line, self.lines[&line].all[v])),
            })
            .collect();
        self.visit(state, &overlay)
    }

    fn visit(&mut self, state: usize, overlay: &Overlay) -> Result<(), String> {
        self.explored.states += 1;
        match self.explorer.only {
            Some(only) if only != (self.point, state) => return Ok(()),
            Some(_) => {}
            None => {
                let change = |n, (line, bytes): &(u64, Line)| {
                    n ^ hash(*line, bytes) ^ hash(*line, &self.scratch.durable(*line))
                };
                let hash = overlay.iter().fold(self.durable, change);
                if !self.seen.insert((hash, self.moment)) {
                    return Ok(());
                }
            }
        }
        self.explored.judged += 1;
        let crash = Crash {
            moment: self.moment,
            point: self.point,
            state,
            overlay,
        };
        (self.explorer.visit)(&crash, self.scratch).map_err(|what| {
            format!(
                "p{}.s{}\n  crash in {:?}: {what}",
                crash.point, crash.state, crash.moment
            )
        })
    }
}

/// The parts of a range by line: line, offset in it, bytes.
fn by_line(at: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, usize, &[u8])> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == bytes.len() {
            return None;
        }
        let here = at as usize + done;
        let n = (LINE_BYTES - here % LINE_BYTES).min(bytes.len() - done);
        let part = (
            here as u64 / LINE,
            here % LINE_BYTES,
            &bytes[done..done + n],
        );
        done += n;
        Some(part)
    })
}

/// Some of the states in which a store of several words to a line may be caught.
fn tears(before: &Line, after: &Line, random: &mut Random) -> Vec<Line> {
    let changed: Vec<usize> = (0..LINE_BYTES / WORD)
        .filter(|w| before[w * WORD..][..WORD] != after[w * WORD..][..WORD])
        .collect();
    if changed.len() < 2 {
        return Vec::new();
    }
    let mut sets = BTreeSet::new();
    for _ in 0..TEARS {
        sets.insert(1 + random.below((1 << changed.len()) - 2));
    }
    let torn = |set: u64| {
        let mut line = *before;
        for (i, w) in changed
            .iter()
            .enumerate()
            .filter(|(i, _)| set >> i & 1 == 1)
        {
            debug_assert!(i < changed.len());
            line[w * WORD..][..WORD].copy_from_slice(&after[w * WORD..][..WORD]);
        }
        line
    };
    sets.into_iter().map(torn).collect()
}

/// Notes which pages of a pool were stored to.
#[derive(Default)]
struct Dirty(Mutex<BTreeSet<u64>>);

impl Recorder for Dirty {
    fn store(&self, at: u64, bytes: &[u8], _kind: StoreKind) {
        self.0
            .lock()
            .extend(at / PAGE..(at + bytes.len() as u64).div_ceil(PAGE));
    }
    fn flush(&self, _at: u64, _len: u64) {}
    fn fence(&self) {}
    fn mark(&self, _text: &str) {}
}

/// The durable image, and a pool that is brought into one crash state after another.
pub struct Scratch {
    image: Vec<u8>,
    pool: Arc<Pool>,
    dirty: Arc<Dirty>,
}

impl Scratch {
    /// Over an image.
    pub fn new(image: Vec<u8>) -> Scratch {
        let (pool, dirty) = Scratch::pool(&image);
        Scratch { image, pool, dirty }
    }

    /// A recovery stores the same in every domain; in this one flushes cost nothing.
    fn pool(image: &[u8]) -> (Arc<Pool>, Arc<Dirty>) {
        let dirty = Arc::new(Dirty::default());
        let options = Options {
            domain: Some(Domain::Cache),
            recorder: Some(dirty.clone()),
            ..Options::default()
        };
        (
            Arc::new(Pool::from_bytes(image, &options).expect("anonymous memory")),
            dirty,
        )
    }

    fn durable(&self, line: u64) -> Line {
        let mut bytes = [0; LINE_BYTES];
        bytes.copy_from_slice(&self.image[line as usize * LINE_BYTES..][..LINE_BYTES]);
        bytes
    }

    fn make_durable(&mut self, lines: &[(u64, Line)]) {
        for (line, bytes) in lines {
            self.image[*line as usize * LINE_BYTES..][..LINE_BYTES].copy_from_slice(bytes);
            self.pool.write(line * LINE, bytes);
        }
        self.dirty.0.lock().clear();
    }

    /// The image of a crash state.
    pub fn image(&self, overlay: &Overlay) -> Vec<u8> {
        let mut image = self.image.clone();
        for (line, bytes) in overlay {
            image[*line as usize * LINE_BYTES..][..LINE_BYTES].copy_from_slice(bytes);
        }
        image
    }

    /// Let `judge` have the pool in a crash state; afterwards it is as durable again.
    pub fn with<T>(&mut self, overlay: &Overlay, judge: impl FnOnce(&Arc<Pool>) -> T) -> T {
        for (line, bytes) in overlay {
            self.pool.write(line * LINE, bytes);
        }
        let result = judge(&self.pool);
        if self.pool.poisoned().is_some() || Arc::strong_count(&self.pool) > 1 {
            (self.pool, self.dirty) = Scratch::pool(&self.image);
            return result;
        }
        let dirty = std::mem::take(&mut *self.dirty.0.lock());
        for page in dirty {
            self.pool.write(
                page * PAGE,
                &self.image[page as usize * PAGE_BYTES..][..PAGE_BYTES],
            );
        }
        self.dirty.0.lock().clear();
        result
    }
}
