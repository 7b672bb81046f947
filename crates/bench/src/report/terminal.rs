//! A report as a terminal shows it.

use std::fmt;

use super::result::{Check, Report, Run};

/// For a terminal, in short: what was compared, aimed at and shown by the papers, without the
/// tables of the runs.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mounted = self.mounted();
        if !mounted.rows.is_empty() {
            writeln!(f, "## Through the mount\n\n{mounted}")?;
        }
        writeln!(f, "## In-process\n\n{}", self.in_process())?;
        writeln!(f, "## Where it stands\n\n{}", self.aims())?;
        let checks: Vec<&Check> = self.runs.iter().flat_map(|run| &run.checks).collect();
        if !checks.is_empty() {
            writeln!(f, "## Beside the papers\n")?;
            checks
                .iter()
                .try_for_each(|check| writeln!(f, "- {check}"))?;
        }
        writeln!(f, "\n## Who took part\n")?;
        self.peers.iter().try_for_each(|peer| writeln!(f, "{peer}"))
    }
}

/// For a terminal.
impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "## {}: {}\n", self.name, self.about)?;
        for table in self.all_tables() {
            writeln!(f, "{table}")?;
        }
        for check in &self.checks {
            writeln!(f, "- {check}")?;
        }
        self.notes
            .iter()
            .try_for_each(|note| writeln!(f, "- {note}"))
    }
}
