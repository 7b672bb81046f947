//! The table of mutants, for people.

use super::{Fates, survivors};

/// The table of mutants as a document.
pub fn document(fates: &Fates) -> String {
    let noticed = fates.values().filter(|fate| fate.noticed.is_some()).count();
    let mut text = format!(
        "# Mutants\n\n\
        What the crash explorer's judges notice, made by `tureen explore --mutants \
        docs/crash-mutants.md` from a build with `--features faults`. One at a\ntime something is \
        left out of the engine, or a bug is injected in it (what the names mean is in \
        `crates/explorer/src/mutants.rs`,\nthe bugs are in `fault.rs` of `crates/pmem` and \
        `crates/soupfs`); some workload must be objected to.\n\n\
        {} mutants, {noticed} noticed, {} excused, {} neither.\n\n\
        | Left out, or injected | Domain | Noticed by | What the judge said, or why nobody need \
        notice |\n\
        |---|---|---|---|\n",
        fates.len(),
        fates.len() - noticed - survivors(fates).len(),
        survivors(fates).len(),
    );
    for ((mutant, rules), fate) in fates {
        let (by, what) = match (&fate.noticed, &fate.excuse) {
            (Some((workload, what)), _) => (format!("`{workload}`"), brief(what)),
            (None, Some(reason)) => ("-".into(), reason.clone()),
            (None, None) => (
                "**nobody**".into(),
                format!("{} workloads tried", fate.tried),
            ),
        };
        text += &format!("| {mutant} | {rules} | {by} | {what} |\n");
    }
    text
}

/// The first line or two of an objection, in a cell of a table. Of an audit, what is no mere leak.
fn brief(what: &str) -> String {
    let allowed = ["audit:", "journal:", "leak:", "counter:", "summary:"];
    let lines = what.lines().map(str::trim);
    let worse = lines
        .clone()
        .find(|line| !allowed.iter().any(|a| line.starts_with(a)));
    let text = match worse {
        Some(line) if what.starts_with("audit:") => format!("audit: {line}"),
        _ => lines.take(2).collect::<Vec<_>>().join(" "),
    };
    let text: String = text.chars().take(110).collect();
    text.replace('|', "/").replace("<", "&lt;")
}
