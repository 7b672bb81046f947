//! A disk: what each sector may hold after a crash, by the rules of [`block::record::Sectors`].
//! Writes have completed when they are reported, so that none overlap in flight (B5).

use super::{Medium, Point};
use crate::image::{LINE_BYTES, Overlay};
use crate::scratch::Scratch;
use crate::trace::Event;
use block::SECTOR;
use block::record::{self, Change};
use pmem::LINE;

/// Lines of a sector.
const LINES: u64 = SECTOR / LINE;

/// The sectors of a disk that a crash may leave in several versions.
#[derive(Clone, Default)]
pub struct Sectors(record::Sectors);

impl Sectors {
    fn done(&mut self, change: Change) {
        let id = self.0.submit(change);
        self.0.complete(id, true);
    }

    /// Adds a version of a sector to a state; what is durable for sure is there without that.
    fn add(&self, sector: u64, version: record::Version, overlay: &mut Overlay) {
        if let Some(id) = version {
            add(sector, self.0.contents(sector, id), overlay);
        }
    }
}

fn add(sector: u64, contents: &[u8], overlay: &mut Overlay) {
    let (lines, _) = contents.as_chunks::<LINE_BYTES>();
    overlay.extend((sector * LINES..).zip(lines.iter().copied()));
}

impl Medium for Sectors {
    fn again(&self) -> Box<dyn Medium> {
        Box::new(self.clone())
    }

    /// Until a barrier ends there are ever more states: those before it are all.
    fn before(&self, event: &Event) -> Point {
        match event {
            Event::Barrier { .. } | Event::End(_) => Point::Crash,
            _ => Point::No,
        }
    }

    fn apply(&mut self, event: &Event, scratch: &mut Scratch) {
        match event {
            Event::Store { at, bytes, .. } => self.done(Change::Write {
                at: *at,
                bytes: bytes.as_slice().into(),
            }),
            Event::Barrier { .. } => {
                self.done(Change::Flush);
                let mut durable = Overlay::new();
                let keep = |sector, contents: &[u8]| add(sector, contents, &mut durable);
                self.0.settle(keep);
                scratch.make_durable(&durable);
            }
            _ => {}
        }
    }

    fn units(&self) -> Vec<(u64, usize)> {
        let versions = self.0.versions().iter();
        versions
            .map(|(&sector, v)| (sector * LINES, v.len()))
            .collect()
    }

    fn put(&self, unit: u64, version: usize, overlay: &mut Overlay) {
        let sector = unit / LINES;
        self.add(sector, self.0.versions()[&sector][version], overlay);
    }

    /// The disk goes on (B9).
    fn kill(&mut self, _scratch: &mut Scratch) {}

    fn visible(&self) -> Overlay {
        let mut lines = Overlay::new();
        for (&sector, versions) in self.0.versions() {
            self.add(sector, versions[versions.len() - 1], &mut lines);
        }
        lines
    }
}
