//! Every crash state of a trace, as the medium of `explorer` makes them by `docs/crash-model.md`.

use explorer::effort::Until;
use explorer::medium::{Lines, Tears};
use explorer::scratch::Scratch;
use explorer::states::{Crash, Explored, Explorer, Sampling};
use explorer::trace::Event;
use pmem::Domain;

/// All states of every crash point. More of them at one point are a mistake in the scenario.
const SAMPLING: Sampling = Sampling {
    exhaustive: 3_000_000,
    samples: 0,
    at_flush: 0,
    tears: Tears::Some,
    seed: 0,
};

/// When a crash happens, in a run whose steps are marked by [`Event::Begin`] and [`Event::End`].
/// They are numbered from 1: what comes before them is step 0, which does not end.
#[derive(Debug, Clone, Copy)]
pub struct When {
    /// Steps that had begun.
    pub begun: usize,
    /// Steps that had ended: as many, or one less.
    pub ended: usize,
}

/// Judges the image of every state that a crash may leave of a trace, on a medium of which
/// `durable` is what is durable for sure. A step that has ended is judged as such before anything
/// else happens.
///
/// # Errors
/// What the judge says of the first state that is wrong.
pub fn every_crash(
    domain: Domain,
    medium: Lines,
    durable: &[u8],
    events: &[Event],
    mut judge: impl FnMut(When, &[u8]) -> Result<(), String>,
) -> Result<Explored, String> {
    let begins: Vec<usize> = (0..events.len())
        .filter(|&at| matches!(events[at], Event::Begin(_)))
        .collect();
    let mut visit = |crash: &Crash<'_>, scratch: &mut Scratch| {
        let begun = begins.partition_point(|&at| at < crash.events);
        let ended = match crash.moment.ended {
            true => begun,
            false => begun.saturating_sub(1),
        };
        judge(When { begun, ended }, &scratch.image(crash.overlay).bytes())
    };
    let explorer = Explorer {
        rules: domain.into(),
        sampling: SAMPLING,
        only: None,
        from: 0,
        until: Until::Done,
        visit: &mut visit,
    };
    let mut scratch = Scratch::new(durable.to_vec());
    let explored = explorer.run_on(Box::new(medium), events, &mut scratch);
    let explored = explored.map_err(|objection| {
        let lines = &objection.lines;
        let what = &objection.what;
        format!(
            "after {} events, lines {lines:?} ahead: {what}",
            objection.events
        )
    })?;
    assert_eq!(explored.sampled, 0, "too many states at a crash point");
    Ok(explored)
}
