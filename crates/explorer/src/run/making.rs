//! A run of mkfs alone. A crash within it may leave no file system, but not half of one.

use super::{Run, Step, Synced};
use crate::engine::Subject;
use crate::image::Image;
use crate::rules::Rules;
use crate::trace::Event;
use crate::tree::Flaw;
use crate::workload::Workload;
use vfs::Time;

/// Make a file system on a device that is full of the workload's byte, or on the workload's image.
///
/// # Errors
/// It cannot be made, or is not without a flaw.
pub fn record(workload: Workload, rules: Rules, sites: bool) -> Result<Run, Flaw> {
    let engine = workload.engine;
    let subject = Subject { engine, rules };
    let full = || Image::full_of(workload.mkfs.unwrap_or(0), workload.len);
    let start = workload.start.clone().unwrap_or_else(full);
    let before = workload.start.as_ref().map(|start| {
        let device = subject.device(start);
        engine.found(&device)
    });
    let trace = subject.trace(sites);
    let device = subject.recorded(&start, &trace);
    trace.mark(Event::Begin(0));
    engine.format(&device)?;
    trace.mark(Event::End(0));
    let made = subject.device(&device.image());
    engine.flawless(&made)?;
    let empty = engine.found(&made)?;
    let (events, sites) = trace.take();
    Ok(Run {
        workload,
        rules,
        made: Some(0),
        start,
        clean: true,
        events,
        sites,
        from: 0,
        steps: vec![Step {
            what: "mkfs".into(),
            time: Time(0),
            synced: Synced::Everything,
            batches: 0,
            moved: Vec::new(),
            between: before.transpose()?.into_iter().collect(),
            written: None,
            latest: empty.clone(),
            durable: empty,
        }],
        later: Vec::new(),
    })
}
