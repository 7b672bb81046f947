//! Threads on names: how far they get in each other's way.

use std::ffi::{CStr, CString};

use super::claims;
use crate::machine::cores;
use crate::participants::Participants;
use crate::plan::Plan;
use crate::report::{Better, Found, Run, Shape};
use crate::runner::run_rounds;
use crate::sampler::{Sampler, Workload, figure};
use crate::target::{Result, Target};
use crate::workloads::names;
use crate::workloads::threads::run_threads;

const NAMES: u64 = 20_000;
const LEN: u64 = 1 << 30;
const OPS: [&str; 3] = ["create+close", "stat", "unlink"];

/// Charts: of each operation, with names of threads in separate directories, and in one.
pub(super) const CHARTS: [[&str; OPS.len()]; 2] = [
    [
        "create+close, separate directories",
        "stat, separate directories",
        "unlink, separate directories",
    ],
    [
        "create+close, one directory",
        "stat, one directory",
        "unlink, one directory",
    ],
];

/// Runs it.
pub fn run(plan: &Plan) -> Result<Found> {
    let participants = Participants::new(plan, LEN)?;
    let count = plan.scaled(NAMES);
    let work = Threads::new(count);
    let measured = run_rounds(plan, &participants, "threads", &work)?;
    let mut run = Run::new("threads", format!("{count} names per thread"));
    run.baseline = participants.baseline(plan);
    let chart = |key: &str| measured.chart(key, (key, "threads"), Shape::Lines, Better::More);
    run.charts = CHARTS.iter().flatten().map(|key| chart(key)).collect();
    run.tables.push(claims::scaling(&run.charts));
    run.notes = vec![
        "thousands of operations per second in all".into(),
        format!(
            "what is left to persist is waited for behind each phase, beside its figure; within a \
             phase \
             the persister wakes once a second and takes a share of one of the {} cores",
            cores()
        ),
        "sleeps: how often a thread gave up its core to wait, once for the start".into(),
    ];
    Ok((run, participants.peers()))
}

/// Threads that make, look at and remove names.
pub(super) struct Threads {
    count: u64,
}

impl Workload for Threads {
    type State = ();

    fn prepare<T: Target>(&self, _target: &T) -> Result<()> {
        Ok(())
    }

    fn round<T: Target>(
        &self,
        target: &T,
        _state: &mut (),
        sampler: &mut Sampler<'_>,
    ) -> Result<()> {
        let ops: [fn(&T, &CStr) -> Result<()>; OPS.len()] = [
            T::create_close,
            |target, name| target.stat(name).map(drop),
            T::unlink,
        ];
        for threads in sampler.plan().threads.clone() {
            for (charts, shared) in CHARTS.iter().zip([false, true]) {
                let lists = self.names(target, threads, shared)?;
                for (op, chart) in ops.into_iter().zip(charts) {
                    sampler.rate(figure(chart, threads), || {
                        run_threads(threads, None, |number, until| {
                            let list = &lists[number];
                            until.repeat(list.len() as u64, 16, |i| op(target, &list[i as usize]))
                        })
                    })?;
                    sampler.persist(target)?;
                }
                for dir in 0..threads {
                    target.rmdir(&dir_of(dir)?)?;
                }
                target.sync()?;
            }
        }
        Ok(())
    }
}

impl Threads {
    /// Of so many names each.
    pub(super) fn new(count: u64) -> Threads {
        Threads { count }
    }

    /// The names of each thread; their directories are made.
    fn names<T: Target>(
        &self,
        target: &T,
        threads: usize,
        shared: bool,
    ) -> Result<Vec<Vec<CString>>> {
        (0..threads)
            .map(|number| {
                target.mkdir(&dir_of(number)?)?;
                let dir = if shared { 0 } else { number };
                names(&format!("d{dir}/t{number}-"), self.count)
            })
            .collect()
    }
}

fn dir_of(number: usize) -> Result<CString> {
    Ok(CString::new(format!("d{number}"))?)
}
