//! A simulated medium: from a recorded trace it makes every state that a crash may leave, by the
//! assumptions of `docs/crash-model.md`.
//!
//! Not covered: traces of several threads, and order of non-temporal stores (they are treated as
//! cached, flushed stores; the journal makes none).

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pmem::{Domain, LINE, Recorder, StoreKind};

const LINE_BYTES: usize = LINE as usize;
const WORD: usize = 8;
/// More states than this at one crash point are a mistake in the scenario.
const STATES_MAX: usize = 3_000_000;

/// Something that happened to the pool.
#[derive(Debug, Clone)]
pub enum Event {
    Store { off: u64, bytes: Vec<u8> },
    Flush { off: u64, len: u64 },
    Fence,
    Mark(String),
}

/// A recorder that keeps all events.
#[derive(Default)]
pub struct Trace(Mutex<Vec<Event>>);

impl Trace {
    pub fn new() -> Arc<Trace> {
        Arc::new(Trace::default())
    }

    pub fn events(&self) -> Vec<Event> {
        self.0.lock().clone()
    }
}

impl Recorder for Trace {
    fn store(&self, off: u64, bytes: &[u8], _kind: StoreKind) {
        self.0.lock().push(Event::Store {
            off,
            bytes: bytes.to_vec(),
        });
    }

    fn flush(&self, off: u64, len: u64) {
        self.0.lock().push(Event::Flush { off, len });
    }

    fn fence(&self) {
        self.0.lock().push(Event::Fence);
    }

    fn mark(&self, text: &str) {
        self.0.lock().push(Event::Mark(text.to_owned()));
    }
}

type Line = [u8; LINE_BYTES];

/// What a line may hold after a crash: its versions from the newest that was flushed and fenced
/// (the first) to the latest (the last).
struct Versions {
    all: Vec<Line>,
    /// The version that the newest flush asked to write back.
    flushed: Option<usize>,
}

/// A crash: the image it leaves, and how many events had happened.
pub struct Crash<'a> {
    pub image: &'a [u8],
    pub events: usize,
}

/// Calls `visit` with every state that a crash may leave, until it returns an error; returns
/// the number of states.
pub fn crashes<E>(
    before: &[u8],
    events: &[Event],
    domain: Domain,
    mut visit: impl FnMut(Crash) -> Result<(), E>,
) -> Result<usize, E> {
    match domain {
        Domain::Cache => prefixes(before, events, &mut visit),
        Domain::Line | Domain::Page => line_versions(before, events, &mut visit),
    }
}

/// Domain `cache`: prefixes of the order of all stores.
fn prefixes<E>(
    before: &[u8],
    events: &[Event],
    visit: &mut impl FnMut(Crash) -> Result<(), E>,
) -> Result<usize, E> {
    let mut image = before.to_vec();
    let mut states = 0;
    for (at, event) in events.iter().enumerate() {
        states += 1;
        visit(Crash {
            image: &image,
            events: at,
        })?;
        if let Event::Store { off, bytes } = event {
            let range = *off as usize..*off as usize + bytes.len();
            for torn in tears(&image[range.clone()], bytes, false) {
                image[range.clone()].copy_from_slice(&torn);
                states += 1;
                visit(Crash {
                    image: &image,
                    events: at,
                })?;
            }
            image[range].copy_from_slice(bytes);
        }
    }
    visit(Crash {
        image: &image,
        events: events.len(),
    })?;
    Ok(states + 1)
}

/// Domain `line` (and `page`, whose fence covers flushes alike): each line in any version since
/// the newest flushed and fenced. The sets grow until a fence, so crashes just before each fence
/// and at the end are all there are.
fn line_versions<E>(
    before: &[u8],
    events: &[Event],
    visit: &mut impl FnMut(Crash) -> Result<(), E>,
) -> Result<usize, E> {
    let mut durable = before.to_vec();
    let mut lines: BTreeMap<usize, Versions> = BTreeMap::new();
    let mut states = 0;
    for (at, event) in events.iter().enumerate() {
        match event {
            Event::Store { off, bytes } => store(&durable, &mut lines, *off as usize, bytes),
            Event::Flush { off, len } => {
                for line in *off / LINE..(*off + *len).div_ceil(LINE) {
                    if let Some(versions) = lines.get_mut(&(line as usize)) {
                        versions.flushed = Some(versions.all.len() - 1);
                    }
                }
            }
            Event::Fence => {
                states += product(&durable, &lines, at, visit)?;
                fence(&mut durable, &mut lines);
            }
            Event::Mark(_) => {}
        }
    }
    Ok(states + product(&durable, &lines, events.len(), visit)?)
}

fn store(durable: &[u8], lines: &mut BTreeMap<usize, Versions>, off: usize, bytes: &[u8]) {
    let one_line = off / LINE_BYTES == (off + bytes.len() - 1) / LINE_BYTES;
    let mut done = 0;
    while done < bytes.len() {
        let line = (off + done) / LINE_BYTES;
        let from = (off + done) % LINE_BYTES;
        let len = (LINE_BYTES - from).min(bytes.len() - done);
        let versions = lines.entry(line).or_insert_with(|| {
            let mut now = [0; LINE_BYTES];
            now.copy_from_slice(&durable[line * LINE_BYTES..][..LINE_BYTES]);
            Versions {
                all: vec![now],
                flushed: None,
            }
        });
        let mut next = versions.all[versions.all.len() - 1];
        let part = &bytes[done..done + len];
        for torn in tears(&next[from..from + len], part, one_line) {
            let mut version = next;
            version[from..from + len].copy_from_slice(&torn);
            versions.all.push(version);
        }
        next[from..from + len].copy_from_slice(part);
        versions.all.push(next);
        done += len;
    }
}

/// What a bulk store may have done so far, as the order of its words is not defined: all proper
/// subsets of the words if `all`, else all prefixes, and all with one word missing.
fn tears(old: &[u8], new: &[u8], all: bool) -> Vec<Vec<u8>> {
    let words = new.len().div_ceil(WORD);
    let subsets: Vec<Vec<bool>> = if all {
        (1..(1u32 << words) - 1)
            .map(|set| (0..words).map(|i| set >> i & 1 == 1).collect())
            .collect()
    } else {
        let prefix = (1..words).map(|n| (0..words).map(|i| i < n).collect());
        let missing = (0..words)
            .filter(|_| words > 1)
            .map(|n| (0..words).map(|i| i != n).collect());
        prefix.chain(missing).collect()
    };
    let torn = subsets.into_iter().map(|stored| {
        let mut bytes = old.to_vec();
        for (i, word) in new.chunks(WORD).enumerate().filter(|&(i, _)| stored[i]) {
            bytes[i * WORD..i * WORD + word.len()].copy_from_slice(word);
        }
        bytes
    });
    let mut torn: Vec<Vec<u8>> = torn.filter(|bytes| bytes != old && bytes != new).collect();
    torn.sort();
    torn.dedup();
    torn
}

fn fence(durable: &mut [u8], lines: &mut BTreeMap<usize, Versions>) {
    for (line, versions) in lines.iter_mut() {
        if let Some(flushed) = versions.flushed.take() {
            versions.all.drain(..flushed);
            durable[line * LINE_BYTES..][..LINE_BYTES].copy_from_slice(&versions.all[0]);
        }
    }
    lines.retain(|_, versions| versions.all.len() > 1);
}

/// Visits every combination of the lines' versions.
fn product<E>(
    durable: &[u8],
    lines: &BTreeMap<usize, Versions>,
    events: usize,
    visit: &mut impl FnMut(Crash) -> Result<(), E>,
) -> Result<usize, E> {
    let lines: Vec<(usize, &Versions)> = lines.iter().map(|(line, v)| (*line, v)).collect();
    let states = lines
        .iter()
        .map(|(_, versions)| versions.all.len())
        .product();
    assert!(states <= STATES_MAX, "{states} states at one crash point");
    let mut image = durable.to_vec();
    let mut chosen = vec![0; lines.len()];
    loop {
        visit(Crash {
            image: &image,
            events,
        })?;
        let mut i = 0;
        loop {
            let Some((line, versions)) = lines.get(i) else {
                return Ok(states);
            };
            chosen[i] = (chosen[i] + 1) % versions.all.len();
            image[line * LINE_BYTES..][..LINE_BYTES].copy_from_slice(&versions.all[chosen[i]]);
            if chosen[i] != 0 {
                break;
            }
            i += 1;
        }
    }
}
