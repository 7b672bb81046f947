//! A campaign: many workloads, in each domain and mode, on all cores, for a time or to the end.

use crate::effort::{Effort, Level, Until};
use crate::engine::Mode;
use crate::explore::{Wrong, explore, explore_all};
use crate::families::Family;
use crate::kept;
use crate::minimise::minimise;
use crate::report;
use crate::rules::Rules;
use crate::states::Explored;
use crate::token::Token;
use crate::tree::Flaw;
use crate::workload::Workload;
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time to minimise a failure in.
const MINIMISE: Duration = Duration::from_secs(20);

/// What is explored, and how.
pub struct Campaign {
    /// Families, each with how many of its workloads; `None`: all, of an endless one as long as
    /// there is time.
    pub families: Vec<(Family, Option<u64>)>,
    /// By the rules of which media.
    pub rules: Vec<Rules>,
    /// Which modes.
    pub modes: Vec<Mode>,
    /// How thorough.
    pub level: Level,
    /// Chooses the samples, and shifts the endless families.
    pub seed: u64,
    /// For how long. A run takes no more than its family's share of it: it is cut off then.
    pub time: Option<Duration>,
    /// Threads.
    pub jobs: usize,
    /// Only workloads at positions that leave this remainder when divided by that: a shard of a
    /// long exploration.
    pub shard: (u64, u64),
    /// Take the workloads in an order that is all over their families.
    pub spread: bool,
    /// Show one in so many states to a judge that others made, too; 0: none.
    pub others: u64,
    /// Give up after so many failures.
    pub failures_max: usize,
    /// Where runs of several threads that fail are kept.
    pub traces: PathBuf,
}

/// What a family's workloads came to.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Part {
    /// Name of the family.
    pub family: String,
    /// Workloads in it, if it is not endless.
    pub size: Option<u64>,
    /// Workloads that were explored, in each domain and mode.
    pub workloads: u64,
    /// Runs: a workload in a domain and a mode is one.
    pub runs: u64,
    /// What was seen.
    #[serde(flatten)]
    pub explored: Explored,
}

/// Something that is wrong.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Failure {
    /// Replays it.
    pub token: String,
    /// Replays it with as few operations as possible.
    pub minimal: String,
    /// Of that, for people.
    pub account: String,
}

/// What came of a campaign.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Summary {
    /// By family, in order.
    pub parts: Vec<Part>,
    /// What is wrong.
    pub failures: Vec<Failure>,
    /// How long it took.
    pub seconds: f64,
    /// Processor time would have been: threads.
    pub jobs: usize,
    /// The time was over before all was explored.
    pub out_of_time: bool,
}

/// How far a campaign is; looked at from another thread.
#[derive(Default)]
pub struct Progress {
    /// Runs that have ended.
    pub runs: AtomicU64,
    /// States that were judged.
    pub judged: AtomicU64,
    /// Failures.
    pub failures: AtomicU64,
    /// Set to end the campaign.
    pub stop: AtomicBool,
}

/// One thing to do.
struct Task {
    family: usize,
    position: u64,
}

struct Shared<'a> {
    campaign: &'a Campaign,
    progress: &'a Progress,
    start: Instant,
    next: Mutex<Vec<u64>>,
    /// Microseconds that each family has taken.
    spent: Vec<AtomicU64>,
    parts: Mutex<Vec<Part>>,
    failures: Mutex<Vec<Failure>>,
    out_of_time: AtomicBool,
}

impl Campaign {
    /// Runs that there will be, if that is known.
    pub fn runs(&self) -> Option<u64> {
        let each = (self.rules.len() * self.modes.len()) as u64;
        let mut sum = 0;
        for (family, count) in &self.families {
            let count = match (family.size, count) {
                (Some(size), Some(count)) => size.min(*count),
                (Some(size), None) => size,
                (None, Some(count)) => *count,
                (None, None) => return None,
            };
            sum += count.div_ceil(self.shard.1) * each;
        }
        Some(sum)
    }

    /// Explore.
    pub fn run(&self, progress: &Progress) -> Summary {
        let part = |(family, _): &(Family, Option<u64>)| Part {
            family: family.name.into(),
            size: family.size,
            workloads: 0,
            runs: 0,
            explored: Explored::default(),
        };
        let shared = Shared {
            campaign: self,
            progress,
            start: Instant::now(),
            next: Mutex::new(vec![0; self.families.len()]),
            spent: self.families.iter().map(|_| AtomicU64::new(0)).collect(),
            parts: Mutex::new(self.families.iter().map(part).collect()),
            failures: Mutex::default(),
            out_of_time: AtomicBool::new(false),
        };
        std::thread::scope(|s| {
            for _ in 0..self.jobs.max(1) {
                s.spawn(|| shared.work());
            }
        });
        Summary {
            parts: shared.parts.into_inner(),
            failures: shared.failures.into_inner(),
            seconds: shared.start.elapsed().as_secs_f64(),
            jobs: self.jobs,
            out_of_time: shared.out_of_time.into_inner(),
        }
    }
}

impl Shared<'_> {
    fn work(&self) {
        while let Some(task) = self.task() {
            let start = Instant::now();
            self.explore(&task);
            let spent = start.elapsed().as_micros() as u64;
            self.spent[task.family].fetch_add(spent, Relaxed);
        }
    }

    fn is_over(&self) -> bool {
        let late = self
            .campaign
            .time
            .is_some_and(|time| self.start.elapsed() >= time);
        if late {
            self.out_of_time.store(true, Relaxed);
        }
        let failed = self.failures.lock().len() >= self.campaign.failures_max;
        late || failed || self.progress.stop.load(Relaxed)
    }

    /// The next workload: of the family that has taken the least time, so that a limited time is
    /// shared among them.
    fn task(&self) -> Option<Task> {
        if self.is_over() {
            return None;
        }
        let mut next = self.next.lock();
        let (rest, shards) = self.campaign.shard;
        let left = |family: usize, taken: u64| {
            let (f, count) = &self.campaign.families[family];
            let position = taken * shards + rest;
            let end = match (f.size, count) {
                (Some(size), Some(count)) => size.min(*count),
                (size, count) => size.or(*count).unwrap_or(u64::MAX),
            };
            (position < end).then_some(position)
        };
        let turn = |(family, &taken): (usize, &u64)| {
            let spent = self.spent[family].load(Relaxed);
            Some((spent, family, left(family, taken)?))
        };
        let (_, family, position) = next.iter().enumerate().filter_map(turn).min()?;
        next[family] += 1;
        Some(Task { family, position })
    }

    fn explore(&self, task: &Task) {
        let campaign = self.campaign;
        let family = &campaign.families[task.family].0;
        let Some(number) = family.number(task.position, campaign.spread) else {
            return;
        };
        let number = match family.size {
            None => number.wrapping_add(campaign.seed.wrapping_mul(1_000_000)),
            Some(_) => number,
        };
        for &mode in &campaign.modes {
            for &rules in &campaign.rules {
                if self.is_over() {
                    return;
                }
                let token = Token {
                    workload: format!("{}-{number}", family.name),
                    kept: None,
                    recorded: None,
                    rules,
                    mode,
                    level: campaign.level,
                    seed: campaign.seed,
                    place: None,
                };
                self.one(task.family, &token);
            }
        }
        self.parts.lock()[task.family].workloads += 1;
    }

    /// When a run that begins now is to end: not all runs of one workload together may take the
    /// time of other families.
    fn until(&self) -> Option<Instant> {
        let campaign = self.campaign;
        campaign.time.and_then(|time| {
            let (jobs, families) = (campaign.jobs.max(1), campaign.families.len().max(1));
            let runs = (campaign.rules.len() * campaign.modes.len()).max(1);
            let share = time.saturating_mul(jobs as u32) / (families * runs) as u32;
            // `None`: it never ends.
            let ends = [
                Instant::now().checked_add(share),
                self.start.checked_add(time),
            ];
            ends.into_iter().flatten().min()
        })
    }

    fn one(&self, family: usize, token: &Token) {
        let limits = (self.until(), self.campaign.others);
        match attempt(token, limits, &self.campaign.traces) {
            Ok(explored) => {
                self.progress.judged.fetch_add(explored.judged, Relaxed);
                let mut parts = self.parts.lock();
                parts[family].explored.add(explored);
                parts[family].runs += 1;
                drop(parts);
                let least = self.campaign.families[family].0.least;
                if let Some(what) = too_few(explored, least) {
                    self.progress.failures.fetch_add(1, Relaxed);
                    self.failures.lock().push(*plain(token, what));
                }
            }
            Err(failure) => {
                self.progress.failures.fetch_add(1, Relaxed);
                self.failures.lock().push(*failure);
            }
        }
        self.progress.runs.fetch_add(1, Relaxed);
    }
}

/// What is wrong with a run that judges fewer states than its family's least number.
fn too_few(explored: Explored, least: u64) -> Option<String> {
    let is_short = explored.judged < least && explored.cut == 0 && explored.inapplicable == 0;
    is_short.then(|| {
        format!(
            "judges {} states, and has {least} at least",
            explored.judged
        )
    })
}

/// A failure of which there is no more to tell.
fn plain(token: &Token, what: String) -> Box<Failure> {
    Box::new(Failure {
        token: token.to_string(),
        minimal: token.to_string(),
        account: format!("{token}\n  {what}"),
    })
}

/// Explore what a token names; a failure is minimised and accounted for, and of several threads
/// kept. It ends at a time, and one in so many states is shown to others.
fn attempt(
    token: &Token,
    (until, others): (Option<Instant>, u64),
    traces: &Path,
) -> Result<Explored, Box<Failure>> {
    let plain = |what: String| plain(token, what);
    let workload = token.workload().map_err(plain)?;
    let effort = Effort {
        until: until.map_or(Until::Done, Until::Time),
        others,
        ..token.effort()
    };
    let explored = caught(|| explore(&workload, token.rules, effort, token.place));
    explored
        .map_err(plain)?
        .map_err(|wrong| Box::new(failure(token, &workload, wrong, traces)))
}

/// A panic of the engine is a finding like others, and no reason to end a campaign or the program.
fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        format!("panicked: {}", text.unwrap_or("?"))
    })
}

fn failure(token: &Token, workload: &Workload, wrong: Wrong, traces: &Path) -> Failure {
    let (mut full, trouble) = recorded(token, &wrong, traces);
    if let Wrong::State(_, objection) = &wrong {
        full.place = Some(objection.place);
    }
    let minimal = minimise(token, workload, wrong, MINIMISE);
    let (token, again) = recorded(&minimal.token, &minimal.wrong, traces);
    let mut account = report::account(&token, &minimal.wrong);
    for trouble in trouble.into_iter().chain(again) {
        account += &format!("\n  not kept: {trouble}");
    }
    Failure {
        token: full.to_string(),
        minimal: account.lines().next().unwrap_or_default().to_owned(),
        account,
    }
}

/// What replays a failure exactly: of several threads their recorded run. If that cannot be kept,
/// what runs them anew, and why.
fn recorded(token: &Token, wrong: &Wrong, traces: &Path) -> (Token, Option<Flaw>) {
    match wrong.run() {
        Some(run) if run.workload.is_concurrent() => match kept::keep(traces, token, run) {
            Ok(token) => (token, None),
            Err(trouble) => (token.clone(), Some(trouble)),
        },
        _ => (token.clone(), None),
    }
}

/// Replay what a token names; recorded runs are in `traces`.
///
/// # Errors
/// What is wrong with it, for people.
pub fn replay(token: &Token, traces: &Path) -> Result<Explored, String> {
    let (effort, place) = (token.effort(), token.place);
    let explored = match token.recorded {
        Some(hash) => {
            let run = kept::load(traces, token, hash)?;
            caught(|| explore_all(run, effort, place))
        }
        None => {
            let workload = token.workload()?;
            caught(|| explore(&workload, token.rules, effort, place))
        }
    };
    let explored = explored
        .map_err(|what| format!("{token}\n  {what}"))?
        .map_err(|wrong| report::account(token, &wrong))?;
    if token.place.is_some() && explored.judged == 0 {
        return Err(format!(
            "{token}\n  the run has no such state; the token is of another version"
        ));
    }
    Ok(explored)
}

impl Summary {
    /// All that was seen.
    pub fn explored(&self) -> Explored {
        let mut sum = Explored::default();
        self.parts.iter().for_each(|part| sum.add(part.explored));
        sum
    }

    /// For people: a line for each family, and the sum.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{:14} {:>16} {:>8} {:>12} {:>12}\n",
            "family", "workloads", "runs", "states", "different"
        );
        for part in &self.parts {
            let of = part
                .size
                .map_or(String::new(), |size| format!(" of {size}"));
            text += &format!(
                "{:14} {:>16} {:>8} {:>12} {:>12}{}\n",
                part.family,
                format!("{}{of}", part.workloads),
                part.runs,
                part.explored.states,
                part.explored.judged,
                match part.explored.inapplicable {
                    0 => String::new(),
                    all if all == part.runs => "  does not apply".into(),
                    some => format!("  ({some} runs with nothing to explore)"),
                }
            );
        }
        let all = self.explored();
        let per_second = all.judged as f64 / self.seconds.max(1e-9);
        text += &format!(
            "{} different states of {} judged in {:.1} s on {} threads: {per_second:.0} a \
             second; {} points complete, {} sampled{}\n",
            all.judged,
            all.states,
            self.seconds,
            self.jobs,
            all.complete,
            all.sampled,
            match (self.out_of_time, all.cut) {
                (false, 0) => String::new(),
                (_, 0) => "; the time was over".into(),
                (_, cut) => format!("; the time was over, {cut} runs were cut off"),
            },
        );
        if all.others > 0 {
            text += &format!("{} of them judged by others, too\n", all.others);
        }
        text += &format!("{} failures\n", self.failures.len());
        text
    }
}

/// The name of what a campaign runs in, for people.
pub fn settings(campaign: &Campaign) -> String {
    let rules: Vec<String> = campaign.rules.iter().map(Rules::to_string).collect();
    let modes: Vec<&str> = campaign.modes.iter().map(|mode| mode.name).collect();
    format!("domains {}; modes {}", rules.join(", "), modes.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_judges_too_little_is_a_failure_unless_nothing_is_to_be_explored() {
        let judged = |judged| Explored {
            judged,
            ..Explored::default()
        };
        assert!(too_few(judged(3), 4).is_some() && too_few(judged(4), 4).is_none());
        assert!(too_few(Explored::inapplicable(), 4).is_none());
        let cut = Explored {
            cut: 1,
            ..Explored::default()
        };
        assert!(too_few(cut, 4).is_none());
    }
}
