//! Minimising: leave operations out of a workload that fails, for as long as it fails in the same
//! manner: in its run, or in a crash state.

use crate::effort::{Effort, Until};
use crate::explore::{Wrong, explore};
use crate::token::{Token, keep};
use crate::workload::Workload;
use std::mem::discriminant;
use std::time::{Duration, Instant};

/// A failure, of as few operations as were needed.
pub struct Minimal {
    /// What replays it, without a place.
    pub token: Token,
    /// What is wrong.
    pub wrong: Wrong,
}

/// Leave operations out, in ever smaller pieces, until none can be missed or `time` is over. What
/// is wrong need not stay the same.
pub fn minimise(token: &Token, workload: &Workload, wrong: Wrong, time: Duration) -> Minimal {
    let start = Instant::now();
    let mut kept: Vec<usize> = match &token.kept {
        Some(kept) => kept.clone(),
        None => (0..workload.ops.len()).collect(),
    };
    let mut wrong = wrong;
    let mut piece = kept.len().div_ceil(2);
    while piece > 0 {
        let mut at = 0;
        while at < kept.len() && start.elapsed() < time {
            let mut fewer = kept.clone();
            let out: Vec<usize> = fewer.drain(at..(at + piece).min(kept.len())).collect();
            // The sync that ends what prepares stays.
            fewer.extend(out.into_iter().filter(|i| i + 1 == workload.setup));
            fewer.sort_unstable();
            if fewer.len() == kept.len() {
                at += piece;
                continue;
            }
            match attempt(token, workload, &fewer, start + time) {
                Some(still) if discriminant(&still) == discriminant(&wrong) => {
                    (kept, wrong) = (fewer, still)
                }
                _ => at += piece,
            }
        }
        piece /= 2;
    }
    let all = kept.len() == workload.ops.len();
    let token = Token {
        kept: (!all).then_some(kept),
        recorded: None,
        place: None,
        ..token.clone()
    };
    Minimal { token, wrong }
}

/// What is wrong with a workload of fewer operations, if something is.
fn attempt(token: &Token, workload: &Workload, kept: &[usize], until: Instant) -> Option<Wrong> {
    let fewer = keep(workload, kept).ok()?;
    let effort = Effort {
        until: Until::Time(until),
        ..token.effort()
    };
    explore(&fewer, token.rules, effort, None).err()
}
