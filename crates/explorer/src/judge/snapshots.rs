//! What snapshots have after a crash: exactly what was there when each was made. To make or to
//! remove one is durable when it has returned, and until then a crash leaves it or not.

use crate::run::Run;
use crate::states::Moment;
use crate::tree::{Flaw, Tree, difference_of_snapshot};
use std::collections::BTreeSet;

/// Whether a crash at this moment may leave these.
pub(super) fn crashed(run: &Run, moment: Moment, tree: &Tree) -> Result<(), Flaw> {
    let step = moment.step;
    let after = &run.steps[step];
    let mut allowed = vec![&after.durable];
    if !moment.ended {
        allowed.push(&run.steps[step.saturating_sub(1)].durable);
        allowed.extend(&after.between);
    }
    let of = |tree: &&Tree| tree.snapshots.keys().cloned().collect::<Vec<_>>();
    let names: BTreeSet<String> = allowed.iter().chain([&tree]).flat_map(of).collect();
    for name in names {
        let found = tree.snapshots.get(&name);
        let mut had = allowed.iter().map(|tree| tree.snapshots.get(&name));
        if !had.any(|had| had == found) {
            let had = allowed.iter().find_map(|tree| tree.snapshots.get(&name));
            let what = difference_of_snapshot(&name, found, had);
            return Err(format!("{what}\n  at step {step}, {}", after.what));
        }
    }
    Ok(())
}
