//! Runs that are kept in files: what several threads did, so that a failure of theirs can be judged
//! again exactly.
//!
//! Another run of the same workload interleaves its threads otherwise. So what is kept is not how
//! to run it, but what the run came to: its trace, in which the stores of all threads have one
//! order, and what was true after each step. A token names the file by the hash of what is in it
//! (see [`crate::token`]); nothing runs again but the judges.
//!
//! (A scheduler that lets one thread run at a time, from a seed, would need no file. But it can
//! switch only where it is called, at stores; a thread that was stopped there may hold locks of the
//! engine, the one that goes on blocks or spins on these unseen, and what threads do between their
//! stores would still race.)

use crate::image::Image;
use crate::run::{Run, Step};
use crate::token::Token;
use crate::trace::Event;
use crate::tree::Flaw;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// Of a kept run, what the workload does not say.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// Of the run, without a place.
    token: String,
    /// The image that it started from. No two are made alike.
    #[serde(with = "image")]
    start: Image,
    clean: bool,
    from: usize,
    steps: Vec<Step>,
    events: Vec<Event>,
}

fn file(dir: &Path, hash: u32) -> PathBuf {
    dir.join(format!("{hash:08x}.json"))
}

/// The hash that names a file.
fn name(text: &str) -> u32 {
    xxh3_64(text.as_bytes()) as u32
}

/// Keep a run in a directory, which is made if it is not there; returns the token that names both.
///
/// # Errors
/// It cannot be written.
pub fn keep(dir: &Path, token: &Token, run: &Run) -> Result<Token, Flaw> {
    let token = Token {
        place: None,
        recorded: None,
        ..token.clone()
    };
    let kept = Kept {
        token: token.to_string(),
        start: run.start.clone(),
        clean: run.clean,
        from: run.from,
        steps: run.steps.clone(),
        events: run.events.clone(),
    };
    let text = serde_json::to_string(&kept).map_err(|e| e.to_string())?;
    let hash = name(&text);
    let path = file(dir, hash);
    let written = std::fs::create_dir_all(dir).and_then(|()| std::fs::write(&path, text));
    written.map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(Token {
        recorded: Some(hash),
        ..token
    })
}

/// The run that a token names by its hash.
///
/// # Errors
/// It is not there, or is another one.
pub fn load(dir: &Path, token: &Token, hash: u32) -> Result<Run, Flaw> {
    let path = file(dir, hash);
    let fail = |what: String| format!("the recorded run {}: {what}", path.display());
    let text = std::fs::read_to_string(&path).map_err(|e| fail(e.to_string()))?;
    if name(&text) != hash {
        return Err(fail("it has been changed".into()));
    }
    let kept: Kept = serde_json::from_str(&text).map_err(|e| fail(e.to_string()))?;
    let recorded: Token = kept.token.parse()?;
    let named = Token {
        place: None,
        recorded: None,
        ..token.clone()
    };
    if recorded != named {
        return Err(fail(format!("it is of {recorded}")));
    }
    Ok(Run {
        workload: recorded.workload()?,
        rules: recorded.rules,
        made: None,
        start: kept.start,
        clean: kept.clean,
        events: kept.events,
        sites: Vec::new(),
        from: kept.from,
        steps: kept.steps,
        later: Vec::new(),
    })
}

/// Images: their length, and their pages by number.
mod image {
    use crate::forms::bytes;
    use crate::image::Image;
    use pmem::PAGE;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(image: &Image, to: S) -> Result<S::Ok, S::Error> {
        let pages = image.pages();
        let pages = pages.map(|(number, page)| (number, bytes::text(page)));
        (image.len(), pages.collect::<Vec<_>>()).serialize(to)
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Image, D::Error> {
        let (len, pages) = <(u64, Vec<(u64, String)>)>::deserialize(from)?;
        if !len.is_multiple_of(PAGE) {
            return Err(D::Error::custom("no whole pages"));
        }
        let mut image = Image::zeros(len);
        for (number, text) in pages {
            let page = bytes::parse(&text).filter(|page| page.len() as u64 == PAGE);
            match page {
                Some(page) if number < len / PAGE => image.write(number * PAGE, &page),
                _ => return Err(D::Error::custom("no page")),
            }
        }
        Ok(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::replay;
    use crate::explore::explore_run;
    use pmem::Domain;

    #[test]
    fn a_state_of_a_kept_run_is_judged_again_exactly() {
        let dir = tempfile::tempdir().expect("a directory");
        let token: Token = "both-25:line:delayed:quick.0".parse().expect("a token");
        let workload = token.workload().expect("known");
        let mut run = Run::record(workload, Domain::Line, false).expect("it runs");
        run.events
            .retain(|event| !matches!(event, Event::Flush { .. }));
        let objection = explore_run(&run, &run.events, token.effort(), None);
        let objection = objection.expect_err("nothing was flushed");
        let kept = Token {
            place: Some(objection.place),
            ..keep(dir.path(), &token, &run).expect("kept")
        };
        let account = replay(&kept, dir.path()).expect_err("it is wrong still");
        let first = account.lines().next();
        assert_eq!(first, Some(&*kept.to_string()));
        assert!(account.contains(&objection.what), "{account}");
    }

    #[test]
    fn a_run_is_loaded_as_it_was_kept_and_nothing_else_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let token: Token = "both-25:line:delayed:quick.0".parse().expect("a token");
        let workload = token.workload().expect("known");
        let run = Run::record(workload, Domain::Line, false).expect("it runs");
        let kept = keep(dir.path(), &token, &run).expect("kept");
        let hash = kept.recorded.expect("named");
        let loaded = load(dir.path(), &kept, hash).expect("loaded");
        assert!(loaded.start == run.start && loaded.clean == run.clean);
        assert_eq!(loaded.events, run.events);
        assert_eq!(loaded.account(), run.account());
        for (one, other) in loaded.steps.iter().zip(&run.steps) {
            assert!(one.latest == other.latest && one.durable == other.durable);
            assert_eq!((&one.synced, one.time), (&other.synced, other.time));
            assert_eq!((&one.moved, one.batches), (&other.moved, other.batches));
        }
        let other = Token {
            workload: "both-26".into(),
            ..kept.clone()
        };
        assert!(load(dir.path(), &other, hash).is_err(), "another workload");
        assert!(load(dir.path(), &kept, hash ^ 1).is_err(), "none");
        let path = file(dir.path(), hash);
        let text = std::fs::read_to_string(&path).expect("there");
        std::fs::write(&path, text.replacen("clean\":true", "clean\":false", 1)).expect("written");
        assert!(load(dir.path(), &kept, hash).is_err(), "changed");
    }
}
