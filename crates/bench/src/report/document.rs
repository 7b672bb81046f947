//! A report as Markdown: a page for a person, `docs/performance.md`, and beside it a document with
//! the long tables of each family, `docs/performance/FAMILY.md`.

use std::fmt::{self, Write};

use super::result::{Report, Run};
use super::table::Table;
use super::verdict::Verdict;

/// Before the figures: what this is.
const INTRODUCTION: &str = include_str!("../../text/introduction.md");

/// Behind the figures: how to repeat them, and how they are measured.
const METHOD: &str = include_str!("../../text/method.md");

/// A page, and the documents that it links to.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// What a person reads.
    pub page: String,
    /// The long tables: the name of a file in the folder beside the page, and its text.
    pub families: Vec<(String, String)>,
}

/// A family's document that an earlier run made, and that lies there still.
#[derive(Debug, Clone, PartialEq)]
pub struct Earlier {
    /// The family.
    name: String,
    /// What it measured.
    about: String,
    /// The day, if the document says so.
    date: Option<String>,
}

impl Earlier {
    /// What a document says of itself; `None`: it is not that of this family.
    pub fn read(name: &str, text: &str) -> Option<Earlier> {
        let about = text.lines().next()?.strip_prefix(&format!("# {name}: "))?;
        let mut lines = text.lines();
        let date = lines.find_map(|line| line.strip_prefix("Measured on "));
        let date = date
            .and_then(|said| said.split_once(','))
            .map(|(date, _)| date.to_owned());
        Some(Earlier {
            name: name.into(),
            about: about.into(),
            date,
        })
    }
}

/// The whole document; the page links to the families' documents in `folder`, which lies beside it,
/// those of `earlier` runs too.
pub fn document(report: &Report, folder: &str, earlier: &[Earlier]) -> Document {
    let written = |write: &dyn Fn(&mut String) -> fmt::Result| {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = write(&mut out);
        out
    };
    let runs = report.runs.iter();
    Document {
        page: written(&|out| page(out, report, folder, earlier)),
        families: runs
            .map(|run| {
                let text = written(&|out| family(out, report, run));
                (file_of(run), text)
            })
            .chain([
                (AIMS_FILE.into(), written(&|out| aims(out, report))),
                (PAPERS_FILE.into(), written(&|out| papers(out, report))),
                (
                    IN_PROCESS_FILE.into(),
                    written(&|out| in_process(out, report)),
                ),
                (
                    PARTICIPANTS_FILE.into(),
                    written(&|out| participants(out, report)),
                ),
            ])
            .collect(),
    }
}

fn file_of(run: &Run) -> String {
    format!("{}.md", run.name)
}

fn page(out: &mut String, report: &Report, folder: &str, earlier: &[Earlier]) -> fmt::Result {
    writeln!(out, "{}\n", INTRODUCTION.trim_end())?;
    let measured = format!("Measured on {}: {}.", report.dates(), report.machine);
    writeln!(out, "{}", wrapped(&measured))?;
    for (title, text, table) in [
        ("Through the mount", MOUNTED, report.mounted()),
        ("In-process", IN_PROCESS, short_in_process(report)),
    ] {
        if !table.rows.is_empty() {
            writeln!(out, "\n## {title}\n\n{text}\n\n{table}")?;
        }
    }
    writeln!(out, "\n{}\n\n## The tables\n", METHOD.trim_end())?;
    for (title, file, about) in [
        ("aims", AIMS_FILE, reached(report)),
        (
            "the papers' claims",
            PAPERS_FILE,
            format!("each with what is seen here: {}", verdicts(report)),
        ),
        (
            "in-process",
            IN_PROCESS_FILE,
            "all families, beside the system calls of others".into(),
        ),
        (
            "who took part",
            PARTICIPANTS_FILE,
            "what each is, and what is durable when".into(),
        ),
    ] {
        item(out, &format!("[{title}]({folder}/{file}): {about}"))?;
    }
    report.runs.iter().try_for_each(|run| {
        let (name, about) = (&run.name, &run.about);
        item(
            out,
            &format!("[{name}]({folder}/{}): {about}", file_of(run)),
        )
    })?;
    let measured_here = |name: &str| report.runs.iter().any(|run| run.name == name);
    let mut earlier = earlier.iter().filter(|one| !measured_here(&one.name));
    earlier.try_for_each(|one| {
        let Earlier { name, about, date } = one;
        let date = date.as_deref().unwrap_or("an earlier day");
        item(
            out,
            &format!("[{name}]({folder}/{name}.md), measured on {date}: {about}"),
        )
    })
}

/// The longest line of text; rows of tables are longer.
const LINE: usize = 100;

/// An item of a list.
fn item(out: &mut String, text: &str) -> fmt::Result {
    writeln!(
        out,
        "{}",
        wrapped(&format!("- {text}")).replace('\n', "\n  ")
    )
}

/// Text in lines that are not too long, with room for an item's indentation.
fn wrapped(text: &str) -> String {
    let mut out = String::new();
    let mut line = 0;
    for word in text.split_whitespace() {
        let len = word.chars().count();
        if line > 0 && line + 1 + len > LINE - 2 {
            out.push('\n');
            line = 0;
        } else if line > 0 {
            out.push(' ');
            line += 1;
        }
        out.push_str(word);
        line += len;
    }
    out
}

/// Before the table of the mount.
const MOUNTED: &str = "\
What unmodified programs get: all columns are system calls. Times are medians; a ratio above one is
better for the mount, and in brackets is the interval in which its median lies. What ends in fsync
or fdatasync is durable at return; of other operations `persist` is what it took behind them until
they were, where it was waited for. `host` is the disk's own file system, without a loop device.";

/// Before the table of what is in-process.
const IN_PROCESS: &str = "\
What a program gets that links the engine in: *function calls*, beside the *system calls* of others.
An operation is persisted later, by another thread: `persist ns` is what that takes.";

/// The document of all aims.
const AIMS_FILE: &str = "aims.md";

/// The document of what the papers say.
const PAPERS_FILE: &str = "papers.md";

/// The document of all that is in-process.
const IN_PROCESS_FILE: &str = "in-process.md";

/// The document of who was measured.
const PARTICIPANTS_FILE: &str = "participants.md";

/// Families of which the page shows what is in-process.
const SHOWN_IN_PROCESS: [&str; 2] = ["names", "data"];

/// How many claims of the papers are decided how.
fn verdicts(report: &Report) -> String {
    let checks = || report.runs.iter().flat_map(|run| &run.checks);
    let of = |verdict| checks().filter(|check| check.verdict == verdict).count();
    let all = [
        Verdict::Agrees,
        Verdict::Differs,
        Verdict::Coarse,
        Verdict::Unseen,
        Verdict::Absent,
    ];
    let each = all.map(|verdict| format!("{} {verdict}", of(verdict)));
    each.join(", ")
}

/// Each claim of the papers, family by family.
fn papers(out: &mut String, report: &Report) -> fmt::Result {
    writeln!(out, "# Beside the papers\n")?;
    writeln!(out, "{}", wrapped(&format!("{}.", verdicts(report))))?;
    for run in report.runs.iter().filter(|run| !run.checks.is_empty()) {
        writeln!(out, "\n## [{}]({})\n", run.name, file_of(run))?;
        let mut checks = run.checks.iter();
        checks.try_for_each(|check| item(out, &check.to_string()))?;
    }
    Ok(())
}

/// All aims: first those of which a whole interval lies on the wrong side.
fn aims(out: &mut String, report: &Report) -> fmt::Result {
    writeln!(out, "# aims: {}", reached(report))?;
    for (title, met) in [("Not reached", "no"), ("Reached", "yes")] {
        let table = aims_that_are(report, &|said| said == met);
        writeln!(out, "\n## {title}\n\n{table}")?;
    }
    let open = aims_that_are(report, &|said| !["yes", "no"].contains(&said));
    writeln!(out, "\n## What these figures are too coarse for\n\n{open}")
}

fn aims_that_are(report: &Report, met: &dyn Fn(&str) -> bool) -> Table {
    let mut table = report.aims();
    table.rows.retain(|row| met(&row[2].to_string()));
    table
}

fn in_process(out: &mut String, report: &Report) -> fmt::Result {
    let table = report.in_process();
    writeln!(out, "# In-process\n\n{IN_PROCESS}\n\n{table}")
}

fn participants(out: &mut String, report: &Report) -> fmt::Result {
    writeln!(out, "# Who took part\n")?;
    let mut peers = report.peers.iter();
    peers.try_for_each(|peer| item(out, &format!("**{}** {}", peer.name, peer.told())))
}

/// How many of them are.
fn reached(report: &Report) -> String {
    let rows = report.aims().rows;
    let count = |met: &str| {
        let same = rows.iter().filter(|row| row[2].to_string() == met);
        same.count()
    };
    let (yes, no) = (count("yes"), count("no"));
    let coarse = rows.len() - yes - no;
    format!("{yes} reached, {no} not, {coarse} that these figures are too coarse for")
}

/// What a reader looks for first.
fn short_in_process(report: &Report) -> Table {
    let mut short = report.clone();
    (short.runs).retain(|run| SHOWN_IN_PROCESS.contains(&run.name.as_str()));
    short.in_process()
}

fn family(out: &mut String, report: &Report, run: &Run) -> fmt::Result {
    writeln!(out, "# {}: {}\n", run.name, run.about)?;
    writeln!(out, "`{}`\n", run.command)?;
    let date = match run.date.as_str() {
        "" => "at an unknown date",
        date => date,
    };
    let seconds = run.seconds;
    writeln!(
        out,
        "Measured on {date}, in {seconds:.0} s: {}.\n",
        report.machine
    )?;
    if !run.checks.is_empty() {
        writeln!(out, "Beside the papers:\n")?;
        for check in &run.checks {
            item(out, &check.to_string())?;
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
            writeln!(out, "## {title}\n")?;
        }
        let untitled = Table {
            title: String::new(),
            ..table
        };
        writeln!(out, "{untitled}")?;
    }
    run.notes.iter().try_for_each(|note| item(out, note))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::{Better, Chart, Line, MOUNT, ON_DISK, Point, Shape};

    #[test]
    fn the_page_is_short_and_leads_with_the_mount_and_long_tables_lie_beside_it() {
        let line = |target: &str| Line {
            target: target.into(),
            points: (0..300)
                .map(|i| Point::new(i as u64, [1.0; 5].into_iter().collect()))
                .collect(),
        };
        let long = Chart {
            lines: vec![line(MOUNT), line("tmpfs")],
            ..Chart::new("Long", "names", "ns", Better::Less, Shape::Growth)
        };
        let bars = Chart {
            lines: [MOUNT, "ext4"]
                .map(|target| Line {
                    target: target.into(),
                    points: vec![Point::new("stat", [2.0; 5].into_iter().collect())],
                })
                .into(),
            ..Chart::new(ON_DISK, "operation", "ns", Better::Less, Shape::Bars)
        };
        let run = |name: &str, chart: Chart| Run {
            charts: vec![chart],
            baseline: MOUNT.into(),
            date: "2026-01-02".into(),
            ..Run::new(name, "what it is")
        };
        let report = Report {
            machine: Machine::here(),
            peers: Vec::new(),
            runs: vec![run("growth", long), run("disk", bars)],
        };
        let made = document(&report, "performance", &[]);
        let lines = made.page.lines().count();
        assert!(lines < 200, "{lines} lines");
        let first = made.page.lines().find(|line| line.starts_with("## "));
        assert_eq!(first, Some("## Through the mount"));
        assert!(made.page.contains("2026-01-02"), "{}", made.page);
        assert!(
            made.page.contains("(performance/growth.md)"),
            "{}",
            made.page
        );
        let names: Vec<_> = made
            .families
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        let others = ["aims.md", "papers.md", "in-process.md", "participants.md"];
        assert_eq!(names, [&["growth.md", "disk.md"], &others[..]].concat());
        assert!(made.families[0].1.lines().count() > 300);
    }

    #[test]
    fn documents_of_earlier_runs_are_linked_with_their_day_but_not_of_what_was_measured_again() {
        let run = |name: &str, about: &str| Run {
            date: "2026-01-02".into(),
            ..Run::new(name, about)
        };
        let report = |runs: Vec<Run>| Report {
            machine: Machine::here(),
            peers: Vec::new(),
            runs,
        };
        let before = report(vec![run("growth", "names"), run("scale", "files")]);
        let before = document(&before, "performance", &[]).families;
        let earlier: Vec<_> = ["growth", "scale"]
            .into_iter()
            .zip(&before)
            .filter_map(|(name, (_, text))| Earlier::read(name, text))
            .collect();
        assert_eq!(earlier.len(), 2);
        assert_eq!(Earlier::read("scale", &before[0].1), None);
        let again = report(vec![run("scale", "more files")]);
        let page = document(&again, "performance", &earlier).page;
        let links: Vec<_> = page
            .lines()
            .filter(|line| line.contains("files") || line.contains("growth.md"))
            .collect();
        assert_eq!(
            links,
            [
                "- [scale](performance/scale.md): more files",
                "- [growth](performance/growth.md), measured on 2026-01-02: names",
            ]
        );
    }

    #[test]
    fn lines_of_text_are_at_most_a_hundred_characters_and_items_are_indented() {
        let mut out = String::new();
        item(&mut out, &"word ".repeat(50)).unwrap();
        let lines: Vec<_> = out.lines().collect();
        assert!(lines.len() > 1 && lines.iter().all(|line| line.len() <= LINE));
        assert!(lines[0].starts_with("- word") && lines[1].starts_with("  word"));
        assert_eq!(out.split_whitespace().count(), 51);
    }
}
