//! Tokens: short names of runs and of single crash states, which replay them.
//!
//! ```text
//! script-17:line:delayed:normal.0:p12.s3
//! random-4[0-3,7]:page:sync:quick.5
//! both-7@1f2e3d4c:line:delayed:normal.0:p80.s1
//! pair-12:line:delayed:normal.0:k120.s0
//! ace2-117:sectors:soft:quick.0:p4.s7
//! ```
//! are the workload, of which only some operations were kept; of several threads the recorded run,
//! by its hash (see [`crate::kept`]); domain, which says on which engine it runs; mode; effort and
//! seed of the samples; and point and state. Without the last part the token stands for all states.
//! With a `k` in place of the `p` it stands for a kill after the event of this number, and the
//! lives that follow it (see [`crate::lives`]).

use crate::effort::{Effort, Level};
use crate::engine::Mode;
use crate::engines;
use crate::families;
use crate::rules::Rules;
use crate::states::Place;
use crate::tree::Flaw;
use crate::workload::Workload;
use std::fmt;
use std::str::FromStr;

/// Names a run, or a crash state of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Name of the workload.
    pub workload: String,
    /// Its operations that are run, in order, if not all.
    pub kept: Option<Vec<usize>>,
    /// Not to be run anew: the run that was kept under this hash.
    pub recorded: Option<u32>,
    /// Whose rules apply.
    pub rules: Rules,
    /// How it is mounted.
    pub mode: Mode,
    /// How thorough.
    pub level: Level,
    /// Of the samples.
    pub seed: u64,
    /// The state.
    pub place: Option<Place>,
}

impl Token {
    /// What it names.
    ///
    /// # Errors
    /// There is no such workload.
    pub fn workload(&self) -> Result<Workload, Flaw> {
        let mut workload = families::by_name(&self.workload)?;
        let engine = engines::on(self.rules);
        if workload.needs_its_engine() && workload.engine.name() != engine.name() {
            let own = workload.engine.name();
            return Err(format!("{} is for {own} alone", self.workload));
        }
        workload.engine = engine;
        workload.mode = self.mode;
        if let Some(kept) = &self.kept {
            workload = keep(&workload, kept)?;
        }
        Ok(workload)
    }

    /// How thorough.
    pub fn effort(&self) -> Effort<'static> {
        self.level.effort(self.seed)
    }
}

/// A workload of only some of the operations of another.
///
/// # Errors
/// It has not so many.
pub fn keep(workload: &Workload, kept: &[usize]) -> Result<Workload, Flaw> {
    let ops: Option<Vec<_>> = kept.iter().map(|&i| workload.ops.get(i).cloned()).collect();
    Ok(Workload {
        ops: ops.ok_or("the workload has not so many operations")?,
        setup: kept.iter().filter(|&&i| i < workload.setup).count(),
        ..workload.clone()
    })
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.workload)?;
        if let Some(kept) = &self.kept {
            write!(f, "[{}]", ranges(kept))?;
        }
        if let Some(hash) = self.recorded {
            write!(f, "@{hash:08x}")?;
        }
        let level = Level::ALL.iter().find(|(_, l)| *l == self.level);
        let level = level.map_or("", |(name, _)| name);
        let (rules, mode) = (self.rules, self.mode.name);
        write!(f, ":{rules}:{mode}:{level}.{}", self.seed)?;
        match self.place {
            Some(place) => {
                let kind = if place.killed { 'k' } else { 'p' };
                write!(f, ":{kind}{}.s{}", place.point, place.state)
            }
            None => Ok(()),
        }
    }
}

/// Numbers in ascending order as `0-3,7`.
fn ranges(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &n in numbers {
        match parts.last_mut() {
            Some((_, end)) if *end + 1 == n => *end = n,
            _ => parts.push((n, n)),
        }
    }
    let part = |(a, b)| match a == b {
        true => format!("{a}"),
        false => format!("{a}-{b}"),
    };
    parts.into_iter().map(part).collect::<Vec<_>>().join(",")
}

fn parse_ranges(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (a, b) = part.split_once('-').unwrap_or((part, part));
        let (a, b): (usize, usize) = (a.parse().ok()?, b.parse().ok()?);
        if b - a.min(b) > 1 << 20 {
            return None;
        }
        numbers.extend(a..=b);
    }
    Some(numbers)
}

impl FromStr for Token {
    type Err = Flaw;

    fn from_str(text: &str) -> Result<Token, Flaw> {
        let wrong = || format!("no token: {text:?}");
        let parts: Vec<&str> = text.split(':').collect();
        let (&[name, rules, mode, effort], place) = (
            parts.first_chunk::<4>().ok_or_else(wrong)?,
            parts.get(4).copied(),
        );
        let (name, recorded) = match name.split_once('@') {
            None => (name, None),
            Some((name, hash)) => {
                let hash = u32::from_str_radix(hash, 16).map_err(|_| wrong())?;
                (name, Some(hash))
            }
        };
        let (workload, kept) = match name.split_once('[') {
            None => (name, None),
            Some((workload, rest)) => {
                let rest = rest.strip_suffix(']').ok_or_else(wrong)?;
                (workload, Some(parse_ranges(rest).ok_or_else(wrong)?))
            }
        };
        let (level, seed) = effort.split_once('.').ok_or_else(wrong)?;
        let level = Level::ALL.iter().find(|(name, _)| *name == level);
        let rules = rules.parse().map_err(|_| wrong())?;
        let modes = engines::on(rules).modes();
        let mode = modes.iter().find(|known| known.name == mode);
        Ok(Token {
            workload: workload.to_owned(),
            kept,
            recorded,
            rules,
            mode: *mode.ok_or_else(wrong)?,
            level: level.ok_or_else(wrong)?.1,
            seed: seed.parse().map_err(|_| wrong())?,
            place: place
                .map(|p| parse_place(p).ok_or_else(wrong))
                .transpose()?,
        })
    }
}

fn parse_place(text: &str) -> Option<Place> {
    let killed = text.starts_with('k');
    let (point, state) = text.strip_prefix(['p', 'k'])?.split_once(".s")?;
    Some(Place {
        killed,
        point: point.parse().ok()?,
        state: state.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_written() {
        let texts = [
            "script-17:line:delayed:normal.0:p12.s3",
            "ace2-syncs-4[0-3,7]:page:sync:quick.5",
            "both-7[0-9]@01fe3d4c:line:delayed:quick.0:p1.s0",
            "script-17:line:delayed:normal.0:k120.s0",
            "ace2-117:sectors:soft:quick.0:p4.s7",
        ];
        for text in texts {
            let token: Token = text.parse().expect(text);
            assert_eq!(token.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_token_is_refused() {
        for text in [
            "",
            "ace1-0",
            "ace1-0:line:delayed:normal",
            "ace1-0:lime:delayed:normal.0",
            "ace1-0:sectors:delayed:normal.0",
            "ace1-0:line:soft:normal.0",
            "ace1-0[3:line:delayed:normal.0",
            "ace1-0@xyz:line:delayed:normal.0",
            "ace1-0:line:delayed:normal.0:p1",
            "ace1-0[0-99999999999]:line:delayed:normal.0",
        ] {
            assert!(text.parse::<Token>().is_err(), "{text}");
        }
    }
}
