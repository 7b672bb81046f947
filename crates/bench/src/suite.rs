//! All families, by name.

use std::time::Instant;

use crate::field::Field;
use crate::plan::Plan;
use crate::report::{Peer, Run};
use crate::runs;
use crate::target::Result;

/// Something that can be measured.
pub struct Family {
    /// The word that asks for it.
    pub name: &'static str,
    /// What it measures, in a line.
    pub about: &'static str,
    measure: Measure,
}

/// Families that compare targets give those back, so that the report can say who they were.
enum Measure {
    Compare(fn(&Plan) -> Result<(Run, Field)>),
    Alone(fn(&Plan) -> Result<Run>),
}

use Measure::{Alone, Compare};

const fn family(name: &'static str, about: &'static str, measure: Measure) -> Family {
    Family {
        name,
        about,
        measure,
    }
}

/// All of them, in the order of a report.
pub const FAMILIES: &[Family] = &[
    family(
        "names",
        "files and directories made and removed",
        Compare(runs::names::run),
    ),
    family(
        "data",
        "4 KiB appended, overwritten, read, made durable",
        Compare(runs::data::run),
    ),
    family(
        "latency",
        "creates on media with slow flushes",
        Alone(runs::latency::run),
    ),
    family(
        "threads",
        "two threads on names",
        Compare(runs::threads::run),
    ),
    family(
        "growth",
        "one directory that grows",
        Compare(runs::growth::run),
    ),
    family(
        "overload",
        "more creates than the medium takes",
        Alone(runs::overload::run),
    ),
    family(
        "scale",
        "5,000,000 files: mounts and DRAM",
        Alone(runs::scale::run),
    ),
    family(
        "recovery",
        "the offline check, and reclaim after a kill",
        Alone(runs::recovery::run),
    ),
    family(
        "modes",
        "what each mode costs caller and medium",
        Alone(runs::modes::run),
    ),
];

impl Family {
    /// The family of a name.
    pub fn of(name: &str) -> Option<&'static Family> {
        FAMILIES.iter().find(|family| family.name == name)
    }

    /// Measure it; `command` is how it was asked for. Returns who took part, too.
    pub fn run(&self, plan: &Plan, command: &str) -> Result<(Run, Vec<Peer>)> {
        let begin = Instant::now();
        let (mut run, peers) = match self.measure {
            Compare(measure) => {
                let (run, field) = measure(plan)?;
                let peers = field.peers();
                (run, peers)
            }
            Alone(measure) => (measure(plan)?, Vec::new()),
        };
        run.seconds = begin.elapsed().as_secs_f64();
        run.command = command.into();
        Ok((run, peers))
    }
}
