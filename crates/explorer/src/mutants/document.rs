//! The table of mutants, for people: how many there are, which family notices what, and why nobody
//! need notice the rest.

use super::{Fate, Fates, Mutant};
use crate::rules::Rules;
use std::collections::BTreeMap;
use std::fmt::Write;

/// What can be left out of a trace, by its name in a row.
const LEFT_OUT: [&str; 4] = ["Flushes", "Fences", "Barriers", "Orders"];

/// What became of the mutants of each engine, by its name, as a document.
pub fn document(engines: &[(String, Fates)]) -> String {
    let mut text = "# Mutants\n\n\
        What the judges of crash states notice, as `tureen explore --mutants` finds it\n\
        ([testing](testing.md), *Mutants*). One at a time a flush, a fence, a barrier or an order\n\
        is left out of an engine at one place, or a bug is injected into it. Some workload must\n\
        object, or there is an argument why nobody need, by assumptions of the\n\
        [crash model](crash-model.md) (M1 and so on). Of some the explorer has no life that leads\n\
        there, and tests are named that have, and notice. `crates/explorer/src/mutants.rs` says\n\
        what is left out, and `fault.rs` of each crate what the bugs are.\n\n\
        | Engine | Left out | Noticed | Excused | Neither | Bugs | Noticed | Not noticed |\n\
        |---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for (engine, fates) in engines {
        let (bugs, left_out) = divided(fates);
        let noticed = |of: &[Entry<'_>]| of.iter().filter(|(_, f)| f.noticed.is_some()).count();
        let excused = left_out.iter().filter(|(_, fate)| is_excused(fate)).count();
        let (all, seen) = (left_out.len(), noticed(&left_out));
        let (of_bugs, seen_bugs) = (bugs.len(), noticed(&bugs));
        let neither = all - seen - excused;
        let missed = of_bugs - seen_bugs;
        row(
            &mut text,
            &[
                engine, &all, &seen, &excused, &neither, &of_bugs, &seen_bugs, &missed,
            ],
        );
    }
    for (engine, fates) in engines {
        let (bugs, left_out) = divided(fates);
        write!(text, "\n## {engine}\n").expect("memory");
        by_family(&mut text, &left_out);
        excuses(&mut text, &left_out);
        each_bug(&mut text, &bugs);
    }
    text
}

/// A mutant on a medium, and what became of it.
type Entry<'a> = (&'a (Mutant, Rules), &'a Fate);

/// Bugs, and what is left out.
fn divided(fates: &Fates) -> (Vec<Entry<'_>>, Vec<Entry<'_>>) {
    fates
        .iter()
        .partition(|((mutant, _), _)| matches!(mutant, Mutant::Bug(_)))
}

fn is_excused(fate: &Fate) -> bool {
    fate.noticed.is_none() && fate.excuse.is_some()
}

/// The family whose workload was the first to notice.
fn family(fate: &Fate) -> &str {
    let by = fate.noticed.as_ref().map_or("**nobody**", |(by, _)| by);
    by.rsplit_once('-').map_or(by, |(family, _)| family)
}

fn row(text: &mut String, cells: &[&dyn std::fmt::Display]) {
    for cell in cells {
        write!(text, "| {cell} ").expect("memory");
    }
    text.push_str("|\n");
}

/// How much of each kind each family was the first to notice.
fn by_family(text: &mut String, left_out: &[Entry<'_>]) {
    let mut families: BTreeMap<&str, [u32; LEFT_OUT.len()]> = BTreeMap::new();
    for ((mutant, _), fate) in left_out.iter().filter(|(_, fate)| !is_excused(fate)) {
        let kind = match mutant {
            Mutant::Flush(_) => 0,
            Mutant::Fence(_) => 1,
            Mutant::Barrier(_) => 2,
            Mutant::Order(..) | Mutant::Bug(_) => 3,
        };
        families.entry(family(fate)).or_default()[kind] += 1;
    }
    if families.is_empty() {
        return;
    }
    text.push_str("\n| Left out, noticed first by |");
    LEFT_OUT
        .iter()
        .for_each(|kind| *text += &format!(" {kind} |"));
    text.push_str("\n|---|---|---|---|---|\n");
    for (family, [flushes, fences, barriers, orders]) in &families {
        row(text, &[family, flushes, fences, barriers, orders]);
    }
}

/// The arguments, and what each is for.
fn excuses(text: &mut String, left_out: &[Entry<'_>]) {
    let mut reasons: BTreeMap<&str, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for ((mutant, rules), fate) in left_out.iter().filter(|(_, fate)| is_excused(fate)) {
        let reason = fate.excuse.as_deref().unwrap_or_default();
        let names = reasons.entry(reason).or_default();
        names
            .entry(mutant.to_string())
            .or_default()
            .push(rules.to_string());
    }
    if reasons.is_empty() {
        return;
    }
    text.push_str("\n| Left out, excused | Medium | Why nobody need notice |\n|---|---|---|\n");
    for (reason, names) in &reasons {
        for (name, media) in names {
            let name = name.replace("<", "&lt;");
            row(text, &[&name, &media.join(", "), reason]);
        }
    }
}

/// Each bug, and which family was the first to notice it on which medium.
fn each_bug(text: &mut String, bugs: &[Entry<'_>]) {
    let mut names: BTreeMap<String, BTreeMap<&str, Vec<String>>> = BTreeMap::new();
    for ((mutant, rules), fate) in bugs {
        let Mutant::Bug(name) = mutant else { continue };
        let families = names.entry(name.clone()).or_default();
        families
            .entry(family(fate))
            .or_default()
            .push(rules.to_string());
    }
    if names.is_empty() {
        return;
    }
    text.push_str("\n| Bug | Noticed first by, on which medium |\n|---|---|\n");
    for (name, families) in &names {
        let by =
            |(family, media): (&&str, &Vec<String>)| format!("{family} ({})", media.join(", "));
        let by: Vec<_> = families.iter().map(by).collect();
        row(text, &[name, &by.join("; ")]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmem::Domain;

    #[test]
    fn what_nobody_notices_stands_out() {
        let fate = |by: Option<&str>, excuse: Option<&str>| Fate {
            tried: 1,
            noticed: by.map(|by| (by.into(), "it objects".into())),
            excuse: excuse.map(String::from),
        };
        let rules = Rules::Lines(Domain::Line);
        let flush = |place: &str| (Mutant::Flush(place.into()), rules);
        let fates = Fates::from([
            (flush("a < b"), fate(Some("search-3"), None)),
            (flush("b"), fate(None, Some("M6: it is fenced again"))),
            (flush("c"), fate(None, None)),
            (
                (Mutant::Bug("Early".into()), rules),
                fate(Some("reused-1"), None),
            ),
        ]);
        let text = document(&[("soupfs".to_owned(), fates)]);
        for line in [
            "| soupfs | 3 | 1 | 1 | 1 | 1 | 1 | 0 |",
            "| search | 1 | 0 | 0 | 0 |",
            "| **nobody** | 1 | 0 | 0 | 0 |",
            "| flush b | line | M6: it is fenced again |",
            "| Early | reused (line) |",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
