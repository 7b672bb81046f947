//! A disk: what each sector may hold after a crash, by B1 to B4 of `docs/design/block.md`. Writes have
//! completed when they are reported, so that none overlap in flight (B5).

use super::{Medium, Point};
use crate::disk::SECTOR;
use crate::scratch::{LINE_BYTES, Line, Overlay, Scratch};
use crate::trace::Event;
use pmem::LINE;
use std::collections::BTreeMap;

/// Lines of a sector.
const LINES: u64 = SECTOR / LINE;

type Sector = [Line; LINES as usize];

/// The sectors of a disk that a crash may leave in several versions.
#[derive(Clone, Default)]
pub struct Sectors {
    /// By number of the sector: from what is durable for sure to what was written last.
    versions: BTreeMap<u64, Vec<Sector>>,
}

impl Sectors {
    /// Whole sectors are written; each is there or not by itself, and none in part (B1).
    fn write(&mut self, at: u64, bytes: &[u8], scratch: &Scratch) {
        for (sector, bytes) in (at / SECTOR..).zip(bytes.chunks_exact(SECTOR as usize)) {
            let versions = self.versions.entry(sector);
            let versions = versions.or_insert_with(|| {
                let durable = |i| scratch.durable(sector * LINES + i as u64);
                vec![std::array::from_fn(durable)]
            });
            let written = std::array::from_fn(|i| {
                let mut line = [0; LINE_BYTES];
                line.copy_from_slice(&bytes[i * LINE_BYTES..][..LINE_BYTES]);
                line
            });
            versions.push(written);
        }
    }

    fn latest(&self) -> Overlay {
        let mut lines = Overlay::new();
        for (&sector, versions) in &self.versions {
            add(sector, &versions[versions.len() - 1], &mut lines);
        }
        lines
    }
}

fn add(sector: u64, bytes: &Sector, overlay: &mut Overlay) {
    overlay.extend((sector * LINES..).zip(bytes.iter().copied()));
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
            Event::Store { at, bytes, .. } => self.write(*at, bytes, scratch),
            Event::Barrier { .. } => {
                scratch.make_durable(&self.latest());
                self.versions.clear();
            }
            _ => {}
        }
    }

    fn units(&self) -> Vec<(u64, usize)> {
        let count = |(&sector, v): (&u64, &Vec<Sector>)| (sector * LINES, v.len());
        self.versions.iter().map(count).collect()
    }

    fn put(&self, unit: u64, version: usize, overlay: &mut Overlay) {
        let sector = unit / LINES;
        add(sector, &self.versions[&sector][version], overlay);
    }

    /// The disk goes on (B9).
    fn kill(&mut self, _scratch: &mut Scratch) {}

    fn visible(&self) -> Overlay {
        self.latest()
    }
}
