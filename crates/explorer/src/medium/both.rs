//! Two media at once: a memory, and behind it in the space of addresses a disk. Each keeps its own
//! rules, and a crash leaves any state of the one beside any of the other. So a crash state is one
//! of their product.

use super::{Lines, Medium, Point, Sectors};
use crate::image::Overlay;
use crate::rules::{MEMORY_LEN, is_memory};
use crate::scratch::Scratch;
use crate::trace::Event;
use pmem::LINE;

/// The first line of the disk.
const DISK_LINE: u64 = MEMORY_LEN / LINE;

/// A memory and a disk.
pub struct Both {
    lines: Lines,
    sectors: Sectors,
}

impl Both {
    /// On which everything is durable.
    pub fn new(lines: Lines) -> Both {
        Both {
            lines,
            sectors: Sectors::default(),
        }
    }

    /// The medium of a unit.
    fn of(&self, unit: u64) -> &dyn Medium {
        match unit < DISK_LINE {
            true => &self.lines,
            false => &self.sectors,
        }
    }

    /// The media that an event may concern.
    fn concerned(&mut self, event: &Event) -> Vec<&mut dyn Medium> {
        match event {
            Event::Store { at, .. } if is_memory(*at) => vec![&mut self.lines],
            Event::Store { .. } => vec![&mut self.sectors],
            _ => vec![&mut self.lines, &mut self.sectors],
        }
    }
}

impl Medium for Both {
    fn again(&self) -> Box<dyn Medium> {
        Box::new(Both {
            lines: self.lines.clone(),
            sectors: self.sectors.clone(),
        })
    }

    /// Between two points at which either medium loses versions both only gain some: what a crash
    /// leaves there, it leaves at the second of them.
    fn before(&self, event: &Event) -> Point {
        match event {
            Event::Store { at, .. } if is_memory(*at) => self.lines.before(event),
            Event::Store { .. } => self.sectors.before(event),
            _ => self.lines.before(event).max(self.sectors.before(event)),
        }
    }

    /// The disk has its latest sectors then: what else it may have is among the states before the
    /// event.
    fn within(&mut self, event: &Event, scratch: &Scratch) -> Vec<Overlay> {
        let disk = self.sectors.visible();
        let mut caught = self.lines.within(event, scratch);
        for overlay in &mut caught {
            overlay.extend_from_slice(&disk);
        }
        caught
    }

    fn apply(&mut self, event: &Event, scratch: &mut Scratch) {
        for medium in self.concerned(event) {
            medium.apply(event, scratch);
        }
    }

    fn units(&self) -> Vec<(u64, usize)> {
        [self.lines.units(), self.sectors.units()].concat()
    }

    fn border(&self) -> Option<u64> {
        Some(DISK_LINE)
    }

    fn put(&self, unit: u64, version: usize, overlay: &mut Overlay) {
        self.of(unit).put(unit, version, overlay);
    }

    fn kill(&mut self, scratch: &mut Scratch) {
        self.lines.kill(scratch);
        self.sectors.kill(scratch);
    }

    fn visible(&self) -> Overlay {
        [self.lines.visible(), self.sectors.visible()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmem::{Domain, PAGE};
    use std::collections::BTreeSet;

    const DISK: u64 = MEMORY_LEN;

    fn store(at: u64, byte: u8, len: usize) -> Event {
        Event::Store {
            at,
            bytes: vec![byte; len],
            around: None,
        }
    }

    /// What a crash may leave of a word of the memory and a sector of the disk.
    fn left(medium: &Both, scratch: &Scratch) -> BTreeSet<(u8, u8)> {
        let mut states = vec![Overlay::new()];
        for (unit, versions) in medium.units() {
            let with = |state: &Overlay, version| {
                let mut state = state.clone();
                medium.put(unit, version, &mut state);
                state
            };
            let all = states.iter();
            let all = all.flat_map(|state| (0..versions).map(move |v| with(state, v)));
            states = all.collect();
        }
        let bytes = |state: &Overlay| {
            let image = scratch.image(state);
            (image.line(0)[0], image.line(DISK / LINE)[0])
        };
        states.iter().map(bytes).collect()
    }

    #[test]
    fn each_medium_has_its_own_rules_and_states_are_those_of_the_product() {
        let mut scratch = Scratch::new(vec![0; (DISK + PAGE) as usize]);
        let mut medium = Both::new(Lines::new(Domain::Line, 0));
        let mut happens = |medium: &mut Both, event: Event| {
            medium.apply(&event, &mut scratch);
            left(medium, &scratch)
        };
        happens(&mut medium, store(0, 1, 8));
        let all = happens(&mut medium, store(DISK, 2, 512));
        assert_eq!(all, [(0, 0), (0, 2), (1, 0), (1, 2)].into());
        // A barrier is nothing to the memory, a fence nothing to the disk.
        let all = happens(&mut medium, Event::Barrier { by: 0, site: 0 });
        assert_eq!(all, [(0, 2), (1, 2)].into());
        happens(&mut medium, store(DISK, 3, 512));
        let flush = Event::Flush {
            at: 0,
            len: 8,
            by: 0,
            site: 0,
        };
        happens(&mut medium, flush);
        let all = happens(&mut medium, Event::Fence { by: 0, site: 0 });
        assert_eq!(all, [(1, 2), (1, 3)].into());
    }

    #[test]
    fn a_crash_is_tried_before_whatever_takes_versions_away() {
        let medium = Both::new(Lines::new(Domain::Line, 0));
        assert_eq!(
            medium.before(&Event::Fence { by: 0, site: 0 }),
            Point::Crash
        );
        assert_eq!(
            medium.before(&Event::Barrier { by: 0, site: 0 }),
            Point::Crash
        );
        assert_eq!(medium.before(&store(DISK, 1, 512)), Point::No);
        let medium = Both::new(Lines::new(Domain::Cache, 0));
        assert_eq!(medium.before(&store(0, 1, 8)), Point::Within);
        assert_eq!(medium.before(&store(DISK, 1, 512)), Point::No);
    }
}
