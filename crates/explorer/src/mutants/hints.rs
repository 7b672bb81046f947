//! Where bugs were noticed that are long to find.

/// Engine, bug, and the workload that noticed it. It is tried before all others; when it leads
/// nowhere any more, the search goes on as without it.
const HINTS: &[(&str, &str, &str)] = &[
    ("soupfs", "OldNameFirst", "script-466"),
    ("soupfs", "RemovedWithEntries", "script-497"),
    ("soupfs", "Unreachable", "script-225"),
    ("soupfs", "MovesAlone", "script-308"),
    ("soupfs", "TailNotZeroed", "script-462"),
    ("soupfs", "ClaimUnflushed", "script-775"),
    ("soupfs", "InheritedUnflushed", "script-462"),
    ("soupfs", "MovedOnAlone", "script-clash-22"),
    ("soupfs", "XattrsUnflushed", "ace1x-21"),
    ("soupfs", "TargetUnflushed", "ace1x-47"),
    ("soupfs", "FailedLinkCounts", "nospace1-317"),
    ("soupfs", "OrphansForgotten", "search-12"),
    ("soupfs", "RepairKeepsLatest", "damaged-274"),
    ("soupfs", "RescueNamesFirst", "damaged-214"),
    ("soupfs", "UsedWhileLogged", "carried-72"),
    ("soupfs", "RecycledEarly", "strict-6"),
    ("ext2", "PointerShown", "far-tight-52"),
    ("ext2", "PointerUnguarded", "script-tight-390"),
    ("ext2", "SizeBeforePointer", "script-tight-390"),
    ("ext2", "XattrsFirst", "script-tight-851"),
    ("ext2", "NameBeforeCount", "tangle-tight-10"),
    ("ext2", "NameUnreached", "far-tight-53"),
    ("ext2", "NameBeforeDir", "tangle-tight-10"),
    ("ext2", "InodeBeforeParent", "edges-tight-56"),
    ("ext2", "NameBeforeOldCount", "edges-tight-183"),
    ("ext2", "SizeBeforeCut", "far-tight-43"),
    ("ext2", "XattrsFreedEarly", "far-tight-90"),
    ("ext2", "PendingForgotten", "edges-tight-170"),
    ("ext2", "WaitersMet", "edges-tight-325"),
    ("ext2", "PassedTaken", "tangle-9"),
    ("ext2", "KeptForgotten", "script-tight-287"),
    ("ext2", "KeptTaken", "edges-tight-213"),
    ("ext2", "KeptChanged", "edges-tight-254"),
    ("ext2", "MovingMoved", "edges-tight-355"),
    ("ext2", "WhiteoutUntagged", "tangle-474"),
    ("ext2", "NameBeforeWhiteout", "edges-142"),
    ("ext2", "NameBeforePromise", "tangle-9"),
    ("ext2", "RevokeForgotten", "far-111"),
    ("ext2", "RevokeIgnored", "far-111"),
    ("ext2", "NotHeld", "far-106"),
    ("ext2", "OrphansUnlisted", "script-363"),
    ("ext2", "FreedUnkept", "served-57"),
    ("ext2", "EndUnawaited", "served-tight-58"),
    ("ext2", "EndsUntrimmed", "served-6"),
    ("ext2", "MendedUnsettled", "served-8"),
    ("ext2", "SecondNameMoved", "served-12"),
    ("ext2", "SecondNameFirst", "served-12"),
    ("ext2", "GroupsUncounted", "served-13"),
    ("ext2", "CheckUnclaimed", "snapshots-three-tight-5"),
];

/// The workload that noticed a bug of an engine, if it is one that is long to find.
pub(super) fn hint(engine: &str, bug: &str) -> Option<&'static str> {
    let mut hints = HINTS.iter();
    let (_, _, workload) = hints.find(|(of, name, _)| (*of, *name) == (engine, bug))?;
    Some(workload)
}

#[cfg(test)]
mod tests {
    use super::super::of;
    use super::*;
    use crate::engines;
    use crate::families::by_name;

    #[test]
    fn a_hint_has_a_bug_of_its_engine_and_a_workload() {
        for (engine, bug, workload) in HINTS {
            let mut engines = engines::all().into_iter();
            let known = engines.find(|one| one.name() == *engine);
            let table = of(known.expect(engine)).expect(engine);
            let bugs = (table.bugs)();
            assert!(bugs.iter().any(|one| one.name == *bug), "{engine}: {bug}");
            assert!(by_name(workload).is_ok(), "{workload}");
        }
    }
}
