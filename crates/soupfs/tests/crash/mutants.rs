//! The judges can fail: a run whose trace lacks flushes or fences of one place in the engine must be
//! objected to, or there is a reason why it need not be.

use crate::explore::{Effort, explore_run};
use crate::media::Event;
use crate::run::{Run, Workload};
use pmem::Domain;
use soupfs::layout::{Geometry, PAGE};
use std::collections::BTreeMap;
use std::fmt;

/// A place in the engine, and what it does there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// Else flushes.
    pub fences: bool,
    /// The innermost functions, outermost last.
    pub name: String,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}",
            if self.fences { "fence" } else { "flush" },
            self.name
        )
    }
}

/// What became of the mutants of a site.
#[derive(Debug, Clone, Default)]
pub struct Fate {
    /// Runs in which the site occurs.
    pub runs: u32,
    /// Runs in which leaving all of its events out was noticed, with the first account.
    pub noticed: u32,
    pub account: Option<String>,
}

/// Groups of pages whose flushes are left out together.
const GROUPS: u64 = 4;

const EFFORT: Effort = Effort {
    samples: 12,
    used: 31,
    nested: u64::MAX,
    reclaimed: u64::MAX,
};

/// A batch flushes in one place what it stored in many: told apart by what the lines hold.
fn site_of(event: &Event, run: &Run) -> Option<Site> {
    let sites = &run.sites;
    match event {
        Event::Flush { site, at, .. } => Some(Site {
            fences: false,
            name: format!("{}{}", sites[*site as usize], of_what(run, *at)),
        }),
        Event::Fence { site, .. } => Some(Site {
            fences: true,
            name: sites[*site as usize].clone(),
        }),
        _ => None,
    }
}

/// Of what can be allocated, the group of pages: inodes, entries, tables and data lie in pages of
/// their own. Of the maps and all that has a place of its own, nothing.
fn of_what(run: &Run, at: u64) -> String {
    let (geometry, page) = (Geometry::for_len(run.workload.len), at / PAGE);
    match geometry.holds_page(page) {
        true => format!(", of pages {} mod {GROUPS}", page % GROUPS),
        false => String::new(),
    }
}

/// Leave out the events of each site in turn, in each workload until it was noticed once.
/// `excused`: not those.
pub fn run(
    workloads: impl Iterator<Item = Workload>,
    domain: Domain,
    excused: impl Fn(&Site) -> bool,
) -> BTreeMap<Site, Fate> {
    let mut fates: BTreeMap<Site, Fate> = BTreeMap::new();
    for workload in workloads {
        let run = Run::record(workload, domain, true).expect("the workload runs");
        let mut here: Vec<Site> = run.events.iter().filter_map(|e| site_of(e, &run)).collect();
        here.sort();
        here.dedup();
        for site in here {
            let fate = fates.entry(site.clone()).or_default();
            if fate.noticed > 0 || excused(&site) {
                continue;
            }
            fate.runs += 1;
            let left = |e: &&Event| site_of(e, &run).as_ref() != Some(&site);
            let events: Vec<Event> = run.events.iter().filter(left).cloned().collect();
            if let Err(account) = explore_run(&run, &events, EFFORT, None) {
                fate.noticed += 1;
                fate.account
                    .get_or_insert(format!("{}: {account}", run.workload.name));
            }
        }
    }
    fates
}
