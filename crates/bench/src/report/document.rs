//! A report as Markdown: `docs/performance.md`.

use std::fmt::{self, Write};

use super::result::{Report, Run};
use super::table::Table;

/// Before the figures.
const INTRODUCTION: &str = include_str!("../../text/introduction.md");

/// The whole document.
pub fn document(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut out, report);
    out
}

fn write(out: &mut String, report: &Report) -> fmt::Result {
    writeln!(out, "{}", INTRODUCTION.trim_end())?;
    writeln!(out, "\nMachine: {}.\n", report.machine)?;
    writeln!(out, "Who took part:\n")?;
    for peer in &report.peers {
        writeln!(out, "- **{}** {}", peer.name, peer.told())?;
    }
    for (title, table) in [
        ("What the mount does, on a disk", report.mounted()),
        ("In-process", report.in_process()),
        ("Where it stands", report.aims()),
    ] {
        if !table.rows.is_empty() {
            writeln!(out, "\n## {title}\n\n{table}")?;
        }
    }
    report.runs.iter().try_for_each(|run| section(out, run))
}

fn section(out: &mut String, run: &Run) -> fmt::Result {
    writeln!(out, "\n## {}: {}\n", run.name, run.about)?;
    writeln!(out, "`{}`\n", run.command)?;
    if !run.checks.is_empty() {
        writeln!(out, "Beside the papers:\n")?;
        for check in &run.checks {
            writeln!(out, "- {check}")?;
        }
        writeln!(out)?;
    }
    if !run.text.is_empty() {
        writeln!(out, "{}\n", run.text.trim())?;
    }
    for table in run.all_tables() {
        // As a heading, so that the table can be linked to.
        let title = table.title.clone();
        if !title.is_empty() {
            writeln!(out, "### {title}\n")?;
        }
        let untitled = Table {
            title: String::new(),
            ..table
        };
        writeln!(out, "{untitled}")?;
    }
    run.notes
        .iter()
        .try_for_each(|note| writeln!(out, "- {note}"))
}
