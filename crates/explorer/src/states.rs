//! Crash states: from a trace, the points at which a crash may happen, and at each the images that
//! it may leave.
//!
//! Points are the begin and end of every step, and what the medium says ([`Point`]): every fence,
//! also one that fails, and every flush; in domain `cache` every store; of a disk every barrier. A
//! point with few states has all of them visited, one with many a
//! sample: nothing and everything written back, single lines ahead of or behind the rest, pairs,
//! pages, and any. A state that was seen at the same moment is not visited again.

use crate::image::Overlay;
use crate::medium::{Medium, Point, Tears};
use crate::parallel::Until;
use crate::rules::Rules;
use crate::scratch::Scratch;
use crate::trace::Event;
use block::Random;
use pmem::{LINE, PAGE};
use std::collections::HashSet;

/// Lines of a disk's sector.
const SECTOR_LINES: u64 = 512 / LINE;
const PAGE_LINES: u64 = PAGE / LINE;

/// Where in a run a crash happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Moment {
    /// The step under way, or the last that ended.
    pub step: usize,
    /// It has ended.
    pub ended: bool,
}

/// A crash state's place in a trace: number of the point, and of the state at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Not a crash state: the process is killed after event number `point`, and other lives follow
    /// (see [`crate::lives`]).
    pub killed: bool,
    /// Of the point.
    pub point: usize,
    /// Of the state.
    pub state: usize,
}

/// A crash state: at a place of the trace the given lines differ from what is durable.
pub struct Crash<'a> {
    /// In which step.
    pub moment: Moment,
    /// Its numbers.
    pub place: Place,
    /// Events of the trace that have happened.
    pub events: usize,
    /// The lines.
    pub overlay: &'a Overlay,
}

/// What is wrong with a state, and with which.
#[derive(Debug, Clone)]
pub struct Objection {
    /// When.
    pub moment: Moment,
    /// Which.
    pub place: Place,
    /// Events of the trace that had happened.
    pub events: usize,
    /// How it was chosen.
    pub sampling: Sampling,
    /// Offsets of the lines that differ from what was durable.
    pub lines: Vec<u64>,
    /// What the judges saw.
    pub what: String,
}

/// Judges a state; the scratch has the durable image.
pub type Visit<'a> = dyn FnMut(&Crash<'_>, &mut Scratch) -> Result<(), String> + 'a;

/// Which states are visited.
#[derive(Debug, Clone, Copy)]
pub struct Sampling {
    /// A point with at most so many states has all of them visited.
    pub exhaustive: u64,
    /// States visited at a point that has more.
    pub samples: usize,
    /// States visited before a flush that is not at a fence.
    pub at_flush: usize,
    /// In how many states a store is caught. If in all, each of them is visited at a point that
    /// has more states than are visited: alone ahead of the rest, and alone behind it.
    pub tears: Tears,
    /// Chooses the samples.
    pub seed: u64,
}

/// What an exploration saw.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Explored {
    /// States that were generated.
    pub states: u64,
    /// Different ones, which were judged.
    pub judged: u64,
    /// Of these, that were shown to a judge that others made.
    pub others: u64,
    /// Crash points at which all states were visited.
    pub complete: u64,
    /// Crash points of which a sample was.
    pub sampled: u64,
    /// Traces that were not explored to their end, as the time was over.
    pub cut: u64,
    /// Runs in which there is nothing to explore: what is to fail has no occasion to.
    pub inapplicable: u64,
}

impl Explored {
    /// Of a run in which there is nothing to explore.
    pub fn inapplicable() -> Explored {
        Explored {
            inapplicable: 1,
            ..Explored::default()
        }
    }

    /// Add what another exploration saw.
    pub fn add(&mut self, other: Explored) {
        self.states += other.states;
        self.judged += other.judged;
        self.others += other.others;
        self.complete += other.complete;
        self.sampled += other.sampled;
        self.cut += other.cut;
        self.inapplicable += other.inapplicable;
    }
}

/// Visits the crash states of one trace.
pub struct Explorer<'a> {
    /// Whose rules apply.
    pub rules: Rules,
    /// Which states.
    pub sampling: Sampling,
    /// Only this state: a replay.
    pub only: Option<Place>,
    /// No state before this step has begun.
    pub from: usize,
    /// When no more states are visited.
    pub until: Until<'a>,
    /// Judges them.
    pub visit: &'a mut Visit<'a>,
}

struct Walk<'a, 'b> {
    explorer: &'a mut Explorer<'b>,
    scratch: &'a mut Scratch,
    medium: Box<dyn Medium>,
    moment: Moment,
    point: usize,
    events: usize,
    seen: HashSet<(u128, Moment)>,
    explored: Explored,
}

impl<'b> Explorer<'b> {
    /// Visit crash states of a trace that starts from the image in `scratch`.
    ///
    /// # Errors
    /// The first objection.
    pub fn run(self, events: &[Event], scratch: &mut Scratch) -> Result<Explored, Box<Objection>> {
        let Sampling { tears, seed, .. } = self.sampling;
        let medium = self.rules.medium(tears, seed);
        self.run_on(medium, events, scratch)
    }

    /// The same on a medium that another life has left; what is durable for sure is in `scratch`.
    ///
    /// # Errors
    /// The first objection.
    pub fn run_on(
        mut self,
        medium: Box<dyn Medium>,
        events: &[Event],
        scratch: &mut Scratch,
    ) -> Result<Explored, Box<Objection>> {
        let mut walk = Walk {
            explorer: &mut self,
            scratch,
            medium,
            moment: Moment {
                step: 0,
                ended: false,
            },
            point: 0,
            events: 0,
            seen: HashSet::new(),
            explored: Explored::default(),
        };
        let until = walk.explorer.until;
        for event in events {
            if until.is_over() {
                walk.explored.cut = 1;
                return Ok(walk.explored);
            }
            walk.step(event)?;
            walk.events += 1;
        }
        walk.crash()?;
        Ok(walk.explored)
    }
}

type Step = Result<(), Box<Objection>>;

impl Walk<'_, '_> {
    fn step(&mut self, event: &Event) -> Step {
        match self.medium.before(event) {
            Point::No => {}
            Point::Early => self.early()?,
            Point::Crash => self.crash()?,
            Point::Within => {
                self.crash()?;
                self.within(event)?;
            }
        }
        match *event {
            Event::Begin(step) => self.moment = Moment { step, ended: false },
            Event::End(step) => {
                self.moment = Moment { step, ended: true };
                self.crash()?;
            }
            _ => {}
        }
        self.medium.apply(event, self.scratch);
        Ok(())
    }

    /// No crash is tried so early.
    fn is_before(&self) -> bool {
        self.moment.step < self.explorer.from
    }

    /// A crash in the middle of an event.
    fn within(&mut self, event: &Event) -> Step {
        if !self.is_before() {
            let caught = self.medium.within(event, self.scratch);
            for (state, torn) in caught.iter().enumerate() {
                self.visit(state, torn)?;
            }
        }
        self.point += 1;
        Ok(())
    }

    /// A crash may happen here: visit the states that it may leave, or some of them.
    fn crash(&mut self) -> Step {
        if !self.is_before() {
            let lines = self.medium.units();
            let states = product(&lines);
            if states <= self.explorer.sampling.exhaustive {
                self.explored.complete += 1;
                self.all(&lines, states)?;
            } else {
                self.explored.sampled += 1;
                let Sampling { samples, tears, .. } = self.explorer.sampling;
                self.sample(&lines, samples)?;
                if tears == Tears::All {
                    self.each(2 + samples, &lines)?;
                }
            }
        }
        self.point += 1;
        Ok(())
    }

    /// A few states: the rest are among those of the next point.
    fn early(&mut self) -> Step {
        if !self.is_before() && self.explorer.sampling.at_flush > 0 {
            let lines = self.medium.units();
            self.sample(&lines, self.explorer.sampling.at_flush)?;
        }
        self.point += 1;
        Ok(())
    }

    fn all(&mut self, lines: &[(u64, usize)], states: u64) -> Step {
        for state in 0..states {
            let mut rest = state;
            self.choose(state as usize, lines, |_, versions: usize| {
                let version = rest % versions as u64;
                rest /= versions as u64;
                version as usize
            })?;
        }
        Ok(())
    }

    fn sample(&mut self, lines: &[(u64, usize)], samples: usize) -> Step {
        self.choose(0, lines, |_, _| 0)?;
        self.choose(1, lines, |_, versions| versions - 1)?;
        if lines.is_empty() {
            return Ok(());
        }
        let seed = self.explorer.sampling.seed ^ (self.point as u64) << 32;
        let mut random = Random::new(seed);
        let border = self.medium.border().unwrap_or(u64::MAX);
        let (one, other) = lines.split_at(lines.partition_point(|(unit, _)| *unit < border));
        if !one.is_empty() && !other.is_empty() {
            return self.sample_both(one, other, samples, &mut random);
        }
        for state in 2..2 + samples {
            let mut form = Form::some(&mut random, lines);
            self.choose(state, lines, |line, versions| form.version(line, versions))?;
        }
        Ok(())
    }

    /// A sample of the states of two media at once: all of one and nothing of the other, and either
    /// in some state of its own.
    fn sample_both(
        &mut self,
        one: &[(u64, usize)],
        other: &[(u64, usize)],
        samples: usize,
        random: &mut Random,
    ) -> Step {
        let (border, lines) = (other[0].0, [one, other].concat());
        for state in 0..samples {
            let mut forms = match state {
                0 => [Form::Latest, Form::Old],
                1 => [Form::Old, Form::Latest],
                _ => [one, other].map(|lines| match random.below(4) {
                    0 => Form::Old,
                    1 => Form::Latest,
                    _ => Form::some(random, lines),
                }),
            };
            self.choose(2 + state, &lines, |line, versions| {
                forms[usize::from(line >= border)].version(line, versions)
            })?;
        }
        Ok(())
    }

    /// Every version of every unit, while all others are old, and while they are the latest. Its
    /// states are numbered from `first` on.
    fn each(&mut self, first: usize, lines: &[(u64, usize)]) -> Step {
        let mut state = first;
        for &(one, count) in lines {
            for picked in 0..count {
                for ahead in [true, false] {
                    self.choose(state, lines, |line, versions| match (line == one, ahead) {
                        (true, _) => picked,
                        (false, true) => 0,
                        (false, false) => versions - 1,
                    })?;
                    state += 1;
                }
            }
        }
        Ok(())
    }

    fn choose(
        &mut self,
        state: usize,
        lines: &[(u64, usize)],
        mut version: impl FnMut(u64, usize) -> usize,
    ) -> Step {
        // A state has the same number whether it is the only one or not; but only it need be made.
        let mut overlay = Overlay::new();
        for &(line, versions) in lines {
            match version(line, versions) {
                0 => {}
                version => self.medium.put(line, version, &mut overlay),
            }
        }
        self.visit(state, &overlay)
    }

    fn visit(&mut self, state: usize, overlay: &Overlay) -> Step {
        let place = Place {
            killed: false,
            point: self.point,
            state,
        };
        self.explored.states += 1;
        match self.explorer.only {
            Some(only) if only != place => return Ok(()),
            Some(_) => {}
            None => {
                let hash = self.scratch.hash(overlay);
                if !self.seen.insert((hash, self.moment)) {
                    return Ok(());
                }
            }
        }
        self.explored.judged += 1;
        let crash = Crash {
            moment: self.moment,
            place,
            events: self.events,
            overlay,
        };
        (self.explorer.visit)(&crash, self.scratch).map_err(|what| {
            Box::new(Objection {
                moment: self.moment,
                place,
                events: self.events,
                sampling: self.explorer.sampling,
                lines: overlay.iter().map(|(line, _)| line * LINE).collect(),
                what,
            })
        })
    }
}

/// States of lines with so many versions.
fn product(lines: &[(u64, usize)]) -> u64 {
    let product = |n: u64, &(_, versions): &(u64, usize)| n.saturating_mul(versions as u64);
    lines.iter().fold(1, product)
}

/// Which lines a sampled state picks out, and what becomes of these and of the rest.
enum Form {
    /// All hold what is durable for sure.
    Old,
    /// All hold the latest.
    Latest,
    /// Some are picked.
    Picked {
        /// Which.
        picks: Picks,
        /// Those that are picked hold something newer than is durable for sure, the rest not; else
        /// what is picked is old and the rest the latest.
        ahead: bool,
        /// Chooses.
        dice: Random,
    },
}

enum Picks {
    /// One or two lines.
    Lines(u64, u64),
    /// All of a page.
    Page(u64),
    /// Each line by itself, with these odds of 16.
    Each(u64),
    /// Whole pages, or sectors, of so many lines, old or latest: what a disk's own caution would
    /// leave.
    Blocks(u64, u64),
}

impl Form {
    fn some(random: &mut Random, lines: &[(u64, usize)]) -> Form {
        let mut line = || random.pick(lines).0;
        let (one, other) = (line(), line());
        let picks = match random.below(10) {
            0..=2 => Picks::Lines(one, one),
            3 => Picks::Lines(one, other),
            4..=5 => Picks::Page(one / PAGE_LINES),
            6 => Picks::Blocks(*random.pick(&[SECTOR_LINES, PAGE_LINES]), random.number()),
            _ => Picks::Each(1 + random.below(15)),
        };
        Form::Picked {
            picks,
            ahead: random.below(2) == 0,
            dice: Random::new(random.number()),
        }
    }

    /// The version that a line is to have in this state.
    fn version(&mut self, line: u64, versions: usize) -> usize {
        let latest = versions - 1;
        let (picks, ahead, dice) = match self {
            Form::Old => return 0,
            Form::Latest => return latest,
            Form::Picked { picks, ahead, dice } => (picks, *ahead, dice),
        };
        let any = dice.below(versions as u64) as usize;
        let picked = match *picks {
            Picks::Lines(one, other) => line == one || line == other,
            Picks::Page(page) => line / PAGE_LINES == page,
            Picks::Each(odds) => dice.below(16) < odds,
            Picks::Blocks(size, seed) => {
                let new = Random::new(seed ^ (line / size)).below(2) == 1;
                return if new { latest } else { 0 };
            }
        };
        match (picked, ahead) {
            (true, true) => any.max(1).min(latest),
            (true, false) => any.min(latest.saturating_sub(1)),
            (false, true) => 0,
            (false, false) => latest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use pmem::Domain;

    const DATA: u64 = 4096;
    const POINTER: u64 = 8192;

    fn store(at: u64, bytes: Vec<u8>, around: Option<u32>) -> Event {
        Event::Store { at, bytes, around }
    }

    /// Explores a trace on an image of zeros; objects to a pointer that is there without its data.
    fn published_with_its_data(domain: Domain, events: &[Event]) -> Result<Explored, String> {
        let mut visit = |crash: &Crash<'_>, scratch: &mut Scratch| {
            let image = scratch.image(crash.overlay).bytes();
            match (image[POINTER as usize], image[DATA as usize]) {
                (1, 0) => Err("a pointer to nothing".to_owned()),
                _ => Ok(()),
            }
        };
        let explorer = Explorer {
            rules: domain.into(),
            sampling: Sampling {
                exhaustive: 64,
                samples: 8,
                at_flush: 0,
                tears: Tears::Some,
                seed: 0,
            },
            only: None,
            from: 0,
            until: Until::Done,
            visit: &mut visit,
        };
        let explored = explorer.run(events, &mut Scratch::new(vec![0; 16384]));
        explored.map_err(|objection| objection.what)
    }

    #[test]
    fn in_domain_cache_a_store_around_the_cache_needs_a_fence_before_what_leads_to_it() {
        let data = || store(DATA, vec![7; 64], Some(0));
        let pointer = || store(POINTER, vec![1, 0, 0, 0, 0, 0, 0, 0], None);
        let fence = |by| Event::Fence { by, site: 0 };
        let judge = |events: &[Event]| published_with_its_data(Domain::Cache, events);
        assert!(judge(&[data(), fence(0), pointer(), Event::End(0)]).is_ok());
        for injected in [
            vec![data(), pointer(), fence(0), Event::End(0)],
            vec![data(), fence(1), pointer(), Event::End(0)],
        ] {
            assert!(judge(&injected).is_err(), "{injected:?}");
        }
        let cached = store(DATA, vec![7; 64], None);
        assert!(judge(&[cached, pointer(), Event::End(0)]).is_ok());
    }

    #[test]
    fn every_tear_is_visited_alone_where_not_all_states_are() {
        let events = [
            store(DATA, vec![7; 64], None),
            store(POINTER, vec![1; 64], None),
            Event::End(0),
        ];
        let (mut data, mut pairs) = (BTreeSet::new(), BTreeSet::new());
        let mut visit = |crash: &Crash<'_>, scratch: &mut Scratch| {
            let image = scratch.image(crash.overlay).bytes();
            let line = |at: u64| image[at as usize..][..64].to_vec();
            if line(POINTER) == [0; 64] {
                data.insert(line(DATA));
            }
            pairs.insert((line(DATA), line(POINTER)));
            Ok(())
        };
        let explorer = Explorer {
            rules: Domain::Line.into(),
            sampling: Sampling {
                exhaustive: 64,
                samples: 0,
                at_flush: 0,
                tears: Tears::All,
                seed: 0,
            },
            only: None,
            from: 0,
            until: Until::Done,
            visit: &mut visit,
        };
        let explored = explorer.run(&events, &mut Scratch::new(vec![0; 16384]));
        explored.expect("nobody objects");
        assert_eq!(data.len(), 256);
        // Alone ahead and alone behind, of either line; those with none or all of both are double.
        assert_eq!(pairs.len(), 4 * 256 - 4);
    }

    #[test]
    fn what_was_flushed_for_a_sync_that_failed_is_not_durable_after_another() {
        let flush = |at| Event::Flush {
            at,
            len: 64,
            by: 0,
            site: 0,
        };
        let fence = || Event::Fence { by: 0, site: 0 };
        let trace = |first: Event| {
            vec![
                store(DATA, vec![7; 8], None),
                flush(DATA),
                first,
                fence(),
                store(POINTER, vec![1, 0, 0, 0, 0, 0, 0, 0], None),
                flush(POINTER),
                fence(),
                Event::End(0),
            ]
        };
        let judge = |events: &[Event]| published_with_its_data(Domain::Page, events);
        assert!(judge(&trace(fence())).is_ok());
        assert!(judge(&trace(Event::Fail)).is_err());
    }
}
