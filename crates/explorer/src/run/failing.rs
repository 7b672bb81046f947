//! A run in which a sync fails (M13): how the engine takes it, and what the medium may hold then.
//!
//! The workload has run before without a failure. So what each step may leave is known; the run
//! with the failure has the same steps up to the one in which a sync fails. From there on nothing
//! is promised but that a crash leaves what one within that step might have left.

use super::{Run, mount};
use crate::op::Op;
use crate::scratch::{Device, Scratch, pool_of};
use crate::trace::{Event, Trace};
use crate::tree::Flaw;
use crate::workload::Workload;
use pmem::{Domain, Syncer};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use vfs::{Errno, ManualClock, Time};

/// No sync fails.
const NEVER: u64 = u64::MAX;

/// A medium of which one sync fails. Those that are not run succeed: nobody looks at the file.
struct Failing {
    trace: Arc<Trace>,
    /// Syncs that succeed before one fails.
    left: AtomicU64,
}

impl Syncer for Failing {
    fn sync(&self, _: u64, _: u64, _: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
        let left = self.left.load(SeqCst);
        match left {
            NEVER => return Ok(()),
            0 => {}
            left => {
                self.left.store(left - 1, SeqCst);
                return Ok(());
            }
        }
        self.trace.mark(Event::Fail);
        Err(io::Error::from_raw_os_error(5))
    }
}

/// Record a workload of which sync `number` behind what prepares fails; if there are not so many,
/// none does, and no crash is tried.
///
/// # Errors
/// The engine did something that it may not.
pub fn record(workload: Workload, number: u64) -> Result<Run, Flaw> {
    again(
        Run::record_good(workload, Domain::Page.into(), false)?,
        number,
    )
}

/// Run the workload of `good` again, with the failure. Up to there it makes the same inodes,
/// generations and all.
fn again(good: Run, number: u64) -> Result<Run, Flaw> {
    let workload = &good.workload;
    let trace = Trace::new(&[]);
    let medium = Arc::new(Failing {
        trace: trace.clone(),
        left: AtomicU64::new(NEVER),
    });
    let pool = pool_of(&good.start, Domain::Page, Some(trace.clone()));
    let pool = Arc::new(pool.with_syncer(medium.clone()));
    let clock = Arc::new(ManualClock::new(Time(1_000)));
    let mounted = || mount(workload, &Device::Memory(pool.clone()), clock.clone());
    trace.mark(Event::Begin(0));
    let mut fs = mounted()?;
    for op in &workload.ops[..workload.setup] {
        clock.advance(1_000);
        let _ = fs.run(op); // as the first time
    }
    trace.mark(Event::End(0));
    medium.left.store(number, SeqCst);
    let mut failed = None;
    for (i, op) in workload.ops[workload.setup..].iter().enumerate() {
        let step = i + 1;
        clock.advance(1_000);
        if failed.is_none() {
            trace.mark(Event::Begin(step));
        }
        let done = match op {
            Op::Remount => {
                fs.let_go();
                let left = fs.unmount();
                if left.is_ok() {
                    fs = mounted()?;
                }
                left
            }
            op => fs.run(op),
        };
        if failed.is_some() && op.only_syncs() && done.is_ok() {
            return Err(format!("after a sync that failed, {op} succeeds"));
        }
        if failed.is_none() {
            match pool.poisoned() {
                None => trace.mark(Event::End(step)),
                Some(_) => {
                    refused(op, done.err().map(|e| e.errno()))?;
                    failed = Some(step);
                }
            }
        }
        if failed.is_some() && *op == Op::Remount {
            break; // the daemon is gone
        }
    }
    let unmount = good.steps.len() - 1;
    if failed.is_none() {
        trace.mark(Event::Begin(unmount));
    }
    let left = fs.unmount();
    match failed {
        None if pool.poisoned().is_none() => {
            let from = good.steps.len();
            return Ok(Run { from, ..good });
        }
        None => failed = Some(unmount),
        Some(_) => {}
    }
    if left.is_ok() {
        return Err("unmounting succeeds although a sync has failed".into());
    }
    drop(fs);
    let events = trace.take().0;
    let mut replayed = Scratch::new(good.start.clone());
    replayed.apply(&events);
    let holds = Device::Memory(pool).holds(&replayed.image(&Vec::new()));
    holds.map_err(|_| "the trace of the run with a failed sync lacks a store")?;
    let step = failed.unwrap_or(unmount);
    let mut steps = good.steps;
    let later = steps.split_off(step + 1);
    Ok(Run {
        events,
        clean: false,
        from: step,
        steps,
        later: later.into_iter().map(|step| step.latest).collect(),
        ..good
    })
}

/// The operation whose sync fails says so.
fn refused(op: &Op, errno: Option<Errno>) -> Result<(), Flaw> {
    match errno {
        Some(Errno::IO) => Ok(()),
        errno => Err(format!("a sync fails in {op}, which returns {errno:?}")),
    }
}
