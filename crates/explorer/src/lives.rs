//! Further lives: a process is killed, the next one works on what is visible, and a power cut takes
//! back what was not durable (M15, M16).
//!
//! After some event of a run the process is killed. The medium keeps the versions of its lines;
//! what is visible is what the next process finds. It mounts and works, or reclaims space, or is
//! fsck. Its trace goes on where the last one ended, on the same medium, and each crash state of it
//! is judged like any other, by a history that is both lives'. A life is ended in its turn by
//! another kill, or by a power cut, which leaves a medium on which everything is durable.

use crate::effort::{Effort, OF_RUNS};
use crate::engine::{LATER, Subject};
use crate::examine::Examiner;
use crate::image::Image;
use crate::judge;
use crate::medium::{Medium, Tears};
use crate::nested::{After, to_the_end};
use crate::op::{Op, searched, with_search};
use crate::run::{Run, Step, Synced};
use crate::scratch::Scratch;
use crate::states::{Crash, Explored, Explorer, Moment, Objection, Place, Sampling};
use crate::trace::Event;
use crate::tree::{Flaw, Id, Tree};
use crate::workload::Workload;
use block::Random;
use pmem::Domain;
use vfs::{Fsync, Kind};

/// States of a life: few, as there are many lives.
const SAMPLING: Sampling = Sampling {
    exhaustive: 12,
    samples: 6,
    at_flush: 0,
    tears: Tears::Some,
    seed: 0,
};
/// One in so many states is also repaired and used.
const USED: u64 = 61;
/// In domain `cache` one in so many lives is explored: what is visible is durable there, and each
/// store is a point.
const OF_CACHE: u64 = 4;
/// In one in so many lives that work the search for leaks runs beside.
const SEARCHES: u64 = 3;

/// Lives behind the first.
const DEPTH: u32 = 2;
/// Bytes of a word, which no kill tears.
const WORD: usize = 8;

/// What another life does with what the last one left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Works,
    Ends(After),
}

/// What a life leaves.
struct Left {
    medium: Box<dyn Medium>,
    /// What is durable for sure, and what the next life sees.
    durable: Image,
    visible: Image,
    moment: Moment,
}

impl Left {
    /// A power cut left this.
    fn durably(image: Image, subject: Subject, moment: Moment) -> Left {
        Left {
            medium: subject.rules.medium(Tears::Some, 0),
            durable: image.clone(),
            visible: image,
            moment,
        }
    }

    fn is_durable(&self) -> bool {
        self.medium.units().is_empty()
    }
}

/// What is explored in place of the trace of a further life: to show that the judges notice. The
/// run has the names of the places in the engine.
pub type Tamper<'a> = &'a dyn Fn(&Run) -> Vec<Event>;

/// Kill the process of a run, whose trace may have been tampered with, at so many of its events, or
/// at the place in `only`, and explore what comes then.
///
/// # Errors
/// The first objection, with the run of all lives up to it.
pub fn explore(
    run: &Run,
    events: &[Event],
    effort: Effort,
    only: Option<Place>,
    tamper: Option<Tamper<'_>>,
) -> Result<Explored, (Box<Run>, Box<Objection>)> {
    let mut random = Random::new(effort.sampling.seed ^ run.own_seed() ^ 0x11fe);
    let first = |event: &Event| matches!(event, Event::Begin(step) if *step >= run.from);
    let first = events.iter().position(first).unwrap_or(0);
    let mut kills: Vec<usize> = match only {
        Some(place) => vec![place.point],
        // A short trace, and few of its events are followed by anything but another mkfs.
        None if run.workload.mkfs.is_some() => (first + 1..=events.len()).collect(),
        None if !run.workload.next.is_empty() => (first..events.len())
            .filter(|&at| orders(&events[at]))
            .collect(),
        None => (0..kills(effort.lives, &mut random))
            .map(|_| some_kill(events, first, &mut random))
            .collect(),
    };
    kills.sort_unstable();
    kills.dedup();
    // Whoever replays a state does not know who objected to it.
    let others = run.workload.engine.others();
    let shows_all = only.is_some() && others.is_some_and(|others| others.is_there());
    let effort = Effort {
        others: if shows_all { 1 } else { effort.others },
        ..effort
    };
    let mut explored = Explored::default();
    for event in kills {
        if effort.until.is_over() {
            explored.cut = 1;
            break;
        }
        // What follows a kill follows from its event, so that its token replays it.
        let seed = effort.sampling.seed ^ run.own_seed() ^ (event as u64) << 20;
        let mut lives = Lives {
            random: Random::new(seed),
            place: Place {
                killed: true,
                point: event,
                state: 0,
            },
            effort,
            tamper,
            explored: Explored::default(),
        };
        let in_order = run.rules.domain() == Some(Domain::Cache);
        if only.is_none() && in_order && lives.random.below(OF_CACHE) != 0 {
            continue;
        }
        let start = Left::durably(run.start.clone(), run.subject(), before_all());
        let left = lives.killed(run.subject(), &start, events, event);
        lives.live(run, left, DEPTH)?;
        explored.add(lives.explored);
    }
    Ok(explored)
}

/// How many, if `lives` is the number for [`OF_RUNS`] runs.
fn kills(lives: u64, random: &mut Random) -> u64 {
    lives / OF_RUNS + u64::from(random.below(OF_RUNS) < lives % OF_RUNS)
}

/// After how many events there is a kill, behind event `first`. Every other one is just before a
/// fence: what is flushed then is visible and not durable.
fn some_kill(events: &[Event], first: usize, random: &mut Random) -> usize {
    let any = first + 1 + random.below((events.len() - first) as u64) as usize;
    let next = || (any..events.len()).find(|&at| orders(&events[at]));
    match random.below(2) {
        0 => any,
        _ => next().unwrap_or(any),
    }
}

/// Whether nothing that comes later overtakes what was flushed before this.
fn orders(event: &Event) -> bool {
    matches!(event, Event::Fence { .. } | Event::Barrier { .. })
}

fn before_all() -> Moment {
    Moment {
        step: 0,
        ended: false,
    }
}

struct Lives<'a> {
    random: Random,
    /// Of the first kill: all else follows from it.
    place: Place,
    effort: Effort<'a>,
    tamper: Option<Tamper<'a>>,
    explored: Explored,
}

type Wrong = (Box<Run>, Box<Objection>);

impl Lives<'_> {
    /// What a kill after so many events leaves. A store of several words may be caught half-way.
    fn killed(&mut self, subject: Subject, start: &Left, events: &[Event], killed: usize) -> Left {
        let mut medium = start.medium.again();
        let mut scratch = subject.scratch(start.durable.clone());
        let mut moment = start.moment;
        for event in &events[..killed.min(events.len())] {
            medium.apply(event, &mut scratch);
            match *event {
                Event::Begin(step) => moment = Moment { step, ended: false },
                Event::End(step) => moment = Moment { step, ended: true },
                _ => {}
            }
        }
        if let Some(Event::Store { at, bytes, around }) = events.get(killed)
            && subject.rules.has_memory(*at)
            && bytes.len() > WORD
            && self.random.below(2) == 0
        {
            let words = 1 + self.random.below((bytes.len() / WORD) as u64) as usize;
            let torn = Event::Store {
                at: *at,
                bytes: bytes[..(words * WORD).min(bytes.len())].to_vec(),
                around: *around,
            };
            medium.apply(&torn, &mut scratch);
        }
        medium.kill(&mut scratch);
        Left {
            visible: scratch.image(&medium.visible()),
            durable: scratch.image(&Vec::new()),
            medium,
            moment,
        }
    }

    /// One more life, its crash states, and what follows one of these and a kill.
    fn live(&mut self, before: &Run, left: Left, depth: u32) -> Result<(), Wrong> {
        if before.is_being_made(left.moment) {
            let subject = before.subject();
            let mut visible = subject.scratch(left.visible.clone());
            let empty = before.steps[0].durable.objects.len() as u64;
            match visible.look(|device| subject.engine.flawless(device)) {
                Ok(census) if census.inodes == empty => {}
                // It is refused, is that from before, or lacks a superblock: mkfs or fsck is next.
                _ => return Ok(()),
            }
        }
        let life = match self.random.below(8) {
            _ if !before.workload.next.is_empty() => Life::Works,
            0 => Life::Ends(After::Reclaim),
            1 | 2 => Life::Ends(After::Fsck),
            _ => Life::Works,
        };
        let mut run = match self.run(before, &left, life) {
            Ok(run) => run,
            Err(what) => return Err((Box::new(copy(before)), self.objection(left.moment, what))),
        };
        if let Some(tamper) = self.tamper {
            run.events = tamper(&run);
        }
        let (mut last, mut seen) = (None, 0);
        let (explored, mut random) = (&mut self.explored, self.random.clone());
        // Who is shown what is no part of what follows from the kill.
        let (one_in, mut chosen) = (self.effort.others, random.clone());
        let others = run.workload.engine.others().filter(|_| one_in > 0);
        let mut shown = 0;
        let mut examiner = Examiner::new(&run);
        let mut visit = |crash: &Crash<'_>, scratch: &mut Scratch| {
            let used = random.below(USED) == 0;
            examiner
                .examine(crash, scratch, used)
                .map_err(|e| format!("power cut in the life after ({life:?}): {e}"))?;
            if let Some(others) = others.filter(|_| chosen.below(one_in) == 0)
                && !run.is_being_made(crash.moment)
            {
                others.judge(&scratch.image(crash.overlay))?;
                shown += 1;
            }
            seen += 1;
            if random.below(seen) == 0 {
                last = Some((scratch.image(crash.overlay), crash.moment));
            }
            Ok(())
        };
        let explorer = Explorer {
            rules: run.rules,
            sampling: SAMPLING,
            only: None,
            from: run.from,
            until: self.effort.until,
            visit: &mut visit,
        };
        let mut scratch = run.subject().scratch(left.durable.clone());
        match explorer.run_on(left.medium.again(), &run.events, &mut scratch) {
            Ok(more) => explored.add(Explored {
                others: shown,
                ..more
            }),
            Err(objection) => {
                let place = self.place;
                return Err((
                    Box::new(run),
                    Box::new(Objection {
                        place,
                        ..*objection
                    }),
                ));
            }
        }
        self.random = random;
        if depth <= 1 {
            return Ok(());
        }
        match last {
            Some((image, moment)) if self.random.below(3) == 0 => {
                self.live(&run, Left::durably(image, run.subject(), moment), depth - 1)
            }
            _ => {
                let first = |event: &Event| *event == Event::Begin(run.from);
                let first = run.events.iter().position(first).unwrap_or(0);
                let killed = some_kill(&run.events, first, &mut self.random);
                let left = self.killed(run.subject(), &left, &run.events, killed);
                self.live(&run, left, depth - 1)
            }
        }
    }

    fn objection(&self, moment: Moment, what: Flaw) -> Box<Objection> {
        Box::new(Objection {
            moment,
            place: self.place,
            events: 0,
            sampling: SAMPLING,
            lines: Vec::new(),
            what,
        })
    }

    /// The history of what was left, as it was found, and of the life after it.
    fn run(&mut self, before: &Run, left: &Left, life: Life) -> Result<Run, Flaw> {
        let subject = before.subject();
        let mut visible = subject.scratch(left.visible.clone());
        let found = visible.look(|device| subject.engine.found(device))?;
        judge::crashed(before, left.moment, &found)
            .map_err(|e| format!("what is visible after the kill: {e}"))?;
        let Next {
            mut steps,
            mut events,
            sites,
            clean,
        } = match life {
            Life::Works => self.work(before, left, &found)?,
            Life::Ends(after) => self.end(subject, left, after, &found)?,
        };
        let from = left.moment.step + 1;
        let mut history = before.steps[..from].to_vec();
        if let Some(last) = history.last_mut().filter(|_| !left.moment.ended) {
            last.synced = Synced::Nothing;
        }
        // Until what was found is durable a power cut may leave what it might have left before.
        let first = &mut steps[0];
        first.what = format!("killed, then {life:?}: {}", first.what);
        first.between = match left.moment.ended || from < 2 {
            true => Vec::new(),
            false => {
                let tree = [before.steps[from - 2].durable.clone()];
                let between = before.steps[from - 1].between.iter().cloned();
                tree.into_iter().chain(between).collect()
            }
        };
        first.latest = found.clone();
        first.durable = found;
        if life == Life::Works && before.rules.are(Domain::Line) && !left.is_durable() {
            // Names are durable once it is mounted, bytes once they are synced.
            first.synced = Synced::Nothing;
        }
        history.append(&mut steps);
        for event in &mut events {
            if let Event::Begin(step) | Event::End(step) = event {
                *step += from;
            }
        }
        Ok(Run {
            workload: before.workload.clone(),
            rules: before.rules,
            made: before.is_being_made(left.moment).then_some(from),
            start: left.durable.clone(),
            clean,
            events,
            sites,
            from,
            steps: history,
            later: Vec::new(),
        })
    }

    /// A life that mounts, works on what it finds, syncs some of it, and unmounts.
    fn work(&mut self, before: &Run, left: &Left, found: &Tree) -> Result<Next, Flaw> {
        let mut ops = self.ops(found);
        if self.random.below(SEARCHES) == 0 {
            ops = searched(with_search(ops, &mut self.random));
        }
        if !before.workload.next.is_empty() {
            ops = before.workload.next.clone();
        }
        let workload = Workload {
            name: before.workload.name.clone(),
            ops,
            engine: before.workload.engine,
            mode: before.workload.next_mode.unwrap_or(before.workload.mode),
            threads: before.workload.threads,
            persisters: 1,
            thresholds: before.workload.thresholds,
            transactions: before.workload.transactions,
            len: left.visible.len(),
            start: Some(left.visible.clone()),
            is_full: before.workload.is_full,
            mkfs: None,
            fails: None,
            shortage: None,
            next: Vec::new(),
            next_mode: None,
            damage: None,
            setup: 0,
        };
        let mut run = Run::record(workload, before.rules, self.tamper.is_some())?;
        judge::quiescent(&run)?;
        spare_what_was_found(&mut run.steps, found);
        Ok(Next {
            steps: run.steps,
            events: run.events,
            sites: run.sites,
            clean: run.clean,
        })
    }

    /// A life of one step, at the end of which the image is clean.
    fn end(&self, subject: Subject, left: &Left, after: After, found: &Tree) -> Result<Next, Flaw> {
        let trace = subject.trace(self.tamper.is_some());
        let device = subject.recorded(&left.visible, &trace);
        trace.mark(Event::Begin(0));
        to_the_end(after, subject.engine, &device, found)?;
        trace.mark(Event::End(0));
        let step = Step {
            what: after.to_string(),
            time: LATER,
            synced: Synced::Everything,
            batches: 0,
            moved: Vec::new(),
            between: Vec::new(),
            written: None,
            latest: found.clone(),
            durable: found.clone(),
        };
        let (events, sites) = trace.take();
        Ok(Next {
            steps: vec![step],
            events,
            sites,
            clean: true,
        })
    }

    /// Some operations, among them always something that makes durable what was found.
    fn ops(&mut self, found: &Tree) -> Vec<Op> {
        let files = files(found);
        let fresh = format!("life-{}", self.random.below(1000));
        let file = match files.is_empty() {
            true => fresh.clone(),
            false => self.random.pick(&files).clone(),
        };
        let write = |path: &str, at, fill| Op::Write {
            path: path.to_owned(),
            at,
            len: 300,
            fill,
        };
        let fsync = |path: &str| Op::Fsync(path.to_owned(), Fsync::All);
        match self.random.below(6) {
            0 => vec![Op::Syncfs],
            1 => files.iter().map(|path| fsync(path)).collect(),
            2 => vec![write(&file, Some(10), 201), fsync(&file), Op::Syncfs],
            3 => vec![
                Op::Create(fresh.clone()),
                write(&fresh, None, 202),
                fsync(&fresh),
                Op::Unlink(file.clone()),
                fsync(""),
            ],
            4 => vec![
                write(&file, Some(4090), 203),
                Op::Rename(file.clone(), fresh.clone(), vfs::RenameMode::Replace),
                fsync(&fresh),
            ],
            // What was free is used, removed, and used again.
            _ => {
                let names: Vec<_> = (0..6).map(|i| format!("{fresh}-{i}")).collect();
                let make = || names.iter().cloned().map(Op::Create);
                let fill = names.iter().map(|name| write(name, None, 204));
                let mut ops: Vec<Op> = make().chain(fill).collect();
                ops.push(Op::Syncfs);
                ops.extend(names.iter().cloned().map(Op::Unlink));
                ops.push(Op::Syncfs);
                ops.extend(make());
                ops.push(fsync(&names[0]));
                ops
            }
        }
    }
}

/// A life by itself.
struct Next {
    steps: Vec<Step>,
    events: Vec<Event>,
    sites: Vec<String>,
    clean: bool,
}

/// A run, without its trace: for the account of what is wrong.
fn copy(run: &Run) -> Run {
    Run {
        workload: run.workload.clone(),
        rules: run.rules,
        made: run.made,
        start: run.start.clone(),
        clean: run.clean,
        events: Vec::new(),
        sites: Vec::new(),
        from: run.from,
        steps: run.steps.clone(),
        later: run.later.clone(),
    }
}

/// In a mode in which each operation is durable when it returns, that is so of what it changed.
/// What an earlier life wrote to other files, and had not synced when it was killed, is not.
fn spare_what_was_found(steps: &mut [Step], found: &Tree) {
    let mut unsynced: Vec<Id> = found.contents.keys().copied().collect();
    let mut before = found;
    for Step { latest, synced, .. } in steps.iter_mut().skip(1) {
        let is_as_before = |id: &Id| {
            before.objects.get(id) == latest.objects.get(id)
                && before.contents.get(id) == latest.contents.get(id)
        };
        unsynced.retain(|id| *synced != Synced::Everything && is_as_before(id));
        if let Synced::EverythingBut(inodes) = synced {
            inodes.clone_from(&unsynced);
        }
        before = latest;
    }
}

/// The paths of all regular files.
fn files(tree: &Tree) -> Vec<String> {
    let (mut files, mut dirs) = (Vec::new(), vec![(tree.root, String::new())]);
    while let Some((dir, path)) = dirs.pop() {
        for (name, child) in &tree.objects[&dir].names {
            let name = String::from_utf8_lossy(name);
            let path = match path.as_str() {
                "" => name.into_owned(),
                path => format!("{path}/{name}"),
            };
            match tree.objects[child].kind {
                Kind::Dir => dirs.push((*child, path)),
                Kind::File => files.push(path),
                _ => {}
            }
        }
    }
    files
}
