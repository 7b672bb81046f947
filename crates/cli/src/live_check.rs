//! `tureen fsck --live`: the process that serves a mount checks it while it is in use. A check
//! takes long, so a thread of that process does it, and whoever asked for it asks how far it is.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use volume::{Mounted, Report};

use crate::failure::Failure;
use crate::mounts::LiveMount;
use crate::status;

/// What the commands about checks begin with.
pub const COMMANDS: &str = "check ";

/// How often it is asked how far it is.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// Characters of a report in one answer: a fraction of the longest attribute.
const PART_LEN: usize = 8 << 10;

/// The check of a mount: one at a time.
#[derive(Clone, Default)]
pub struct LiveCheck(Arc<Shared>);

#[derive(Default)]
pub struct Shared {
    state: Mutex<State>,
    /// The last one, and its number.
    thread: Mutex<(u64, Option<JoinHandle<()>>)>,
    is_over: AtomicBool,
}

/// What is known of the last one.
#[derive(Default)]
enum State {
    /// There was none.
    #[default]
    None,
    /// What is being done, how much of it is done, and how much there is.
    Running(&'static str, u64, u64),
    /// What came of it, in parts.
    Ended(Result<VecDeque<String>, String>),
}

impl Deref for LiveCheck {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl LiveCheck {
    /// Does what [`run`] asks for.
    pub fn act(&self, mounted: &Arc<dyn Mounted>, word: &str) -> Result<Value, String> {
        match word.split(' ').collect::<Vec<_>>()[..] {
            ["begin"] => self.begin(mounted.clone(), false),
            ["begin-repair"] => self.begin(mounted.clone(), true),
            ["next", number] => self.next(number),
            _ => Err(format!(
                "'{word}' is not known here: it is served by another version"
            )),
        }
    }

    /// Begins one: its number.
    fn begin(&self, mounted: Arc<dyn Mounted>, repair: bool) -> Result<Value, String> {
        let (number, thread) = &mut *lock(&self.thread);
        let is_over = thread.as_ref().is_none_or(JoinHandle::is_finished);
        if !is_over && matches!(*lock(&self.state), State::Running(..)) {
            return Err("a check is under way".to_owned());
        }
        *number += 1;
        self.note(State::Running("snapshot", 0, 0));
        let check = self.clone();
        let work = move || {
            // It was started by a thread that serves requests.
            threads::as_usual();
            let checked = mounted.check_live(repair, &|stage, done, total| {
                check.note(State::Running(stage, done, total));
                !check.is_over.load(Relaxed)
            });
            let parts = checked.map(|report| parts(&report));
            check.note(State::Ended(parts.map_err(|error| error.to_string())));
        };
        let started = std::thread::Builder::new().name("check".to_owned());
        *thread = Some(started.spawn(work).map_err(|error| error.to_string())?);
        Ok((*number).into())
    }

    /// How far that of this number is, or the next part of what came of it.
    fn next(&self, number: &str) -> Result<Value, String> {
        let (last, thread) = &*lock(&self.thread);
        if last.to_string() != number {
            return Err("another check was begun since".to_owned());
        }
        // Asked before: a panic leaves a state that says otherwise, and nothing else does.
        let is_over = thread.as_ref().is_none_or(JoinHandle::is_finished);
        match &mut *lock(&self.state) {
            State::None => Err("there is no check".to_owned()),
            State::Running(..) if is_over => {
                Err("the check ended in a panic; see the log of the mount".to_owned())
            }
            State::Running(stage, done, total) => {
                Ok(json!({ "stage": stage, "done": done, "total": total }))
            }
            State::Ended(Ok(parts)) => {
                let part = parts.pop_front();
                Ok(json!({ "part": part.unwrap_or_default(), "more": !parts.is_empty() }))
            }
            State::Ended(Err(why)) => Err(why.clone()),
        }
    }

    fn note(&self, state: State) {
        *lock(&self.state) = state;
    }

    /// Lets a check under way end: before the unmount.
    pub fn end(&self) {
        self.is_over.store(true, Relaxed);
        if let Some(thread) = lock(&self.thread).1.take() {
            // A panic of its has poisoned the disk and was reported.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn parts(report: &Report) -> VecDeque<String> {
    let whole = json!({ "text": report.text, "json": report.json, "code": report.code });
    let whole: Vec<char> = whole.to_string().chars().collect();
    whole.chunks(PART_LEN).map(String::from_iter).collect()
}

/// Has a mount checked, with repairs or without.
pub fn run(
    mount: &LiveMount,
    repair: bool,
    progress: volume::Progress<'_>,
) -> Result<Report, Failure> {
    let ask = |words: &str| status::command(&mount.dir, &format!("{COMMANDS}{words}"));
    let number = ask(if repair { "begin-repair" } else { "begin" })?;
    let next = format!("next {number}");
    let mut whole = String::new();
    loop {
        let answer = ask(&next)?;
        match answer["part"].as_str() {
            Some(part) => whole.push_str(part),
            None => {
                let number = |name: &str| answer[name].as_u64().unwrap_or(0);
                let stage = STAGES.iter().find(|&&stage| answer["stage"] == stage);
                progress(stage.unwrap_or(&""), number("done"), number("total"));
                std::thread::sleep(ASK_EVERY);
                continue;
            }
        }
        if answer["more"] != true {
            break;
        }
    }
    let report: Value = serde_json::from_str(&whole)
        .map_err(|error| Failure::at(&mount.dir, format!("its report makes no sense: {error}")))?;
    Ok(Report {
        text: report["text"].as_str().unwrap_or_default().to_owned(),
        json: report["json"].clone(),
        code: report["code"].as_u64().unwrap_or(u64::MAX) as u8,
    })
}

/// What a check does, one after the other.
const STAGES: [&str; 5] = ["snapshot", "inodes", "names", "maps", "repairs"];
