//! Workloads with low thresholds of the engine, which lead to where a small file system does not
//! come otherwise.

use crate::engine::Thresholds;
use crate::workload::Workload;

/// The same with sweeps that are split wherever they can be, or waves that take what chance has.
pub fn tight(workload: Workload) -> Workload {
    with(workload, "tight", Thresholds::Tight)
}

/// The same with callers that persist what is pending themselves, within their operations, in split
/// sweeps.
pub fn crowded(workload: Workload) -> Workload {
    with(workload, "crowded", Thresholds::Crowded)
}

fn with(mut workload: Workload, suffix: &str, thresholds: Thresholds) -> Workload {
    workload.thresholds = thresholds;
    if let Some((family, number)) = workload.name.rsplit_once('-') {
        workload.name = format!("{family}-{suffix}-{number}");
    }
    workload
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::by_name;
    use crate::op::Op;
    use crate::run::{Run, Step};
    use pmem::Domain;

    fn steps(name: &str) -> Vec<Step> {
        let workload = by_name(name).expect("a workload of this name");
        let run = Run::record(workload, Domain::Line, false).expect("it runs");
        run.steps
    }

    #[test]
    fn sweeps_are_split() {
        let batches = |name: &str| steps(name).iter().map(|s| s.batches).max();
        assert_eq!(batches("script-5"), Some(1));
        assert!(batches("script-tight-5") > Some(2));
    }

    #[test]
    fn callers_persist_within_operations() {
        let changes = |step: &&Step| {
            step.batches > 0 && !step.what.starts_with("Sync") && !step.what.starts_with("Fsync")
        };
        let unmounting = 1;
        let within = |name: &str| steps(name).iter().filter(changes).count();
        assert!(within("tangle-5") <= unmounting);
        assert!(within("tangle-crowded-5") > unmounting + 2);
    }

    #[test]
    fn only_the_thresholds_are_others() {
        let (plain, tight) = (by_name("ace2-7"), by_name("ace2-tight-7"));
        let ops = |workload: Result<Workload, String>| -> Vec<Op> { workload.expect("known").ops };
        assert_eq!(ops(plain), ops(tight));
    }
}
