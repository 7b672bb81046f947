//! The account of a failure, for people: the operations, the crash point, the lines that the state
//! holds, what the judges saw, and the directories as they were, were found and were seen by
//! callers.

use crate::explore::Wrong;
use crate::image::Image;
use crate::parallel::Until;
use crate::run::Run;
use crate::scratch::Scratch;
use crate::states::{Crash, Explorer, Objection};
use crate::token::Token;
use crate::trace::Event;
use crate::tree::{Id, Tree};
use std::collections::BTreeSet;
use std::fmt::Write;
use vfs::Kind;

/// Lines of a state and events before it that are shown.
const SHOWN: usize = 12;
/// Directories that are drawn.
const DRAWN: usize = 4;

/// An account that ends in the token.
pub fn account(token: &Token, wrong: &Wrong) -> String {
    match wrong {
        Wrong::Run(flaw) | Wrong::Quiescent(_, flaw) => format!("{token}\n  {flaw}"),
        Wrong::State(run, objection) => {
            let token = Token {
                place: Some(objection.place),
                ..token.clone()
            };
            format!("{token}\n{}", of_state(run, objection))
        }
    }
}

fn of_state(run: &Run, objection: &Objection) -> String {
    let mut text = String::new();
    let moment = objection.moment;
    let step = &run.steps[moment.step.min(run.steps.len() - 1)];
    let when = if moment.ended { "after" } else { "in" };
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "  crash {when} step {}, {}\n  what is wrong: {}\n  steps:\n{}",
        moment.step,
        step.what,
        objection.what,
        run.account()
    );
    let _ = writeln!(text, "  the last events before the crash:");
    let from = objection.events.saturating_sub(SHOWN);
    for event in &run.events[from..objection.events.min(run.events.len())] {
        let _ = writeln!(text, "    {}", describe(run, event));
    }
    let lines = &objection.lines;
    let _ = writeln!(
        text,
        "  lines newer than is durable for sure: {}",
        lines.len()
    );
    for &at in lines.iter().take(SHOWN) {
        let _ = writeln!(text, "    {}", place(run, at));
    }
    if lines.len() > SHOWN {
        let _ = writeln!(text, "    and {} more", lines.len() - SHOWN);
    }
    text + &picture(run, objection)
}

fn describe(run: &Run, event: &Event) -> String {
    match event {
        Event::Store { at, bytes, .. } => {
            format!("store {} bytes to {}", bytes.len(), place(run, *at))
        }
        Event::Together(words) => {
            let at = words.first().map_or(0, |&(at, _)| at);
            format!(
                "store {} words at once, the first to {}",
                words.len(),
                place(run, at)
            )
        }
        Event::Flush { at, len, .. } => format!("flush {len} bytes of {}", place(run, *at)),
        Event::Fence { .. } => "fence".into(),
        Event::Barrier { .. } => "barrier".into(),
        Event::Fail => "a fence fails".into(),
        Event::Begin(step) => format!("step {step} begins"),
        Event::End(step) => format!("step {step} has ended"),
    }
}

/// What is at an offset.
fn place(run: &Run, at: u64) -> String {
    let inode = |ino: u64| {
        let known = |tree: &Tree| tree.objects.keys().any(|id| id.0 == ino);
        run.steps
            .iter()
            .any(|s| known(&s.latest) || known(&s.durable))
    };
    let len = run.start.len();
    run.workload.engine.place(at, len, &inode)
}

/// The image of the state, if the trace still has it.
fn image(run: &Run, objection: &Objection) -> Option<Image> {
    let mut image = None;
    let mut visit = |crash: &Crash<'_>, scratch: &mut Scratch| {
        image = Some(scratch.image(crash.overlay));
        Ok(())
    };
    let explorer = Explorer {
        rules: run.rules,
        sampling: objection.sampling,
        only: Some(objection.place),
        from: run.from,
        until: Until::Done,
        visit: &mut visit,
    };
    let mut scratch = run.subject().scratch(run.start.clone());
    explorer.run(&run.events, &mut scratch).ok()?;
    image
}

/// Directories whose names the crash may have changed: the consistent view before and after the
/// step, as found, and what callers saw.
fn picture(run: &Run, objection: &Objection) -> String {
    let at = objection.moment.step.min(run.steps.len() - 1);
    let (before, after) = (&run.steps[at.saturating_sub(1)], &run.steps[at]);
    let subject = run.subject();
    let found =
        image(run, objection).and_then(|image| subject.engine.found(&subject.device(&image)).ok());
    let mut views = vec![("before", &before.durable), ("after", &after.durable)];
    if let Some(found) = &found {
        views.push(("FOUND", found));
    }
    views.push(("callers saw", &after.latest));
    let dirs: BTreeSet<Id> = views
        .iter()
        .flat_map(|(_, tree)| tree.objects.iter())
        .filter(|(_, object)| object.kind == Kind::Dir)
        .map(|(id, _)| *id)
        .collect();
    let differ = |dir: &&Id| {
        let names = |tree: &Tree| tree.objects.get(dir).map(|o| o.names.clone());
        views.windows(2).any(|w| names(w[0].1) != names(w[1].1))
    };
    let mut text = String::new();
    for dir in dirs.iter().filter(differ).take(DRAWN) {
        draw(&mut text, *dir, &views);
    }
    text
}

/// A directory: a line for each name that differs, a column for each view, the inode that the name
/// leads to.
fn draw(text: &mut String, dir: Id, views: &[(&str, &Tree)]) {
    let _ = write!(text, "  directory, inode {}:\n    {:24}", dir.0, "name");
    for (title, _) in views {
        let _ = write!(text, " {title:>12}");
    }
    text.push('\n');
    let names: BTreeSet<&Vec<u8>> = views
        .iter()
        .filter_map(|(_, tree)| tree.objects.get(&dir))
        .flat_map(|object| object.names.keys())
        .collect();
    for name in names {
        let slot = (dir, name.clone());
        let cells: Vec<Option<Id>> = views.iter().map(|(_, tree)| tree.slot(&slot)).collect();
        if cells.windows(2).all(|w| w[0] == w[1]) {
            continue;
        }
        let _ = write!(text, "    {:24}", name.escape_ascii().to_string());
        for cell in cells {
            let cell = cell.map_or("-".to_owned(), |id| id.0.to_string());
            let _ = write!(text, " {cell:>12}");
        }
        text.push('\n');
    }
}
