//! A report for people: facts in groups, one a line, aligned, with sizes and times as people read
//! them. What is unknown is left out.
//!
//! The names of the facts say what their numbers are: `..._bytes`, `..._ms`, and `..._at` for
//! seconds since 1970.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Map, Value};

use crate::units::{size, span};

/// What scripts need, and people find elsewhere in the report.
const FOR_SCRIPTS: [&str; 2] = ["image_id", "settings"];
/// What counts.
const COUNTERS: [&str; 2] = ["counters", "requests"];
/// Characters in a line.
const WIDTH: usize = 100;

/// Facts under a title; the first group has none.
#[derive(Default)]
struct Group {
    title: String,
    facts: Vec<(String, String)>,
}

/// The report as text; with the counters, if they are asked for.
pub fn render(report: &Value, counters: bool) -> String {
    render_in(&TimeZone::system(), report, counters)
}

fn render_in(zone: &TimeZone, report: &Value, counters: bool) -> String {
    let mut groups = Vec::new();
    if let Value::Object(facts) = report {
        gather(zone, facts, "", counters, &mut groups);
    }
    groups.retain(|group| !group.facts.is_empty());
    let names = groups.iter().flat_map(|group| &group.facts);
    let column = 2 + names.map(|(name, _)| name.len()).max().unwrap_or(0);
    let texts: Vec<String> = groups.iter().map(|group| group.text(column)).collect();
    texts.join("\n")
}

/// The facts of one group, and behind it those of the groups in it.
fn gather(
    zone: &TimeZone,
    facts: &Map<String, Value>,
    title: &str,
    counters: bool,
    groups: &mut Vec<Group>,
) {
    let at = groups.len();
    groups.push(Group {
        title: title.to_owned(),
        facts: Vec::new(),
    });
    for (name, fact) in facts {
        match fact {
            _ if FOR_SCRIPTS.contains(&name.as_str()) => {}
            Value::Null => {}
            Value::String(text) if text.is_empty() => {}
            Value::Object(_) if !counters && COUNTERS.contains(&name.as_str()) => {}
            Value::Object(inner) => {
                let inner_title = format!("{title} {}", name.replace('_', " "));
                gather(zone, inner, inner_title.trim(), counters, groups);
            }
            fact => {
                let shown = shown(zone, name, fact, facts);
                groups[at].facts.push(shown);
            }
        }
    }
}

/// Name and value of a fact among others.
fn shown(
    zone: &TimeZone,
    name: &str,
    fact: &Value,
    others: &Map<String, Value>,
) -> (String, String) {
    let (name, unit) = match name.rsplit_once('_') {
        Some((name, unit @ ("bytes" | "ms" | "at"))) => (name, unit),
        _ => (name, ""),
    };
    let text = match fact {
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match (unit, number.as_u64()) {
            ("bytes", Some(bytes)) => size(bytes) + &share(name, bytes, others),
            ("ms", Some(ms)) => span(ms),
            ("at", Some(seconds)) => date(zone, seconds),
            _ => number.to_string(),
        },
        other => other.to_string(),
    };
    (name.replace('_', " "), text)
}

/// Of free bytes, which part of the size they are.
fn share(name: &str, bytes: u64, others: &Map<String, Value>) -> String {
    match others.get("size_bytes").and_then(Value::as_u64) {
        Some(all @ 1..) if name == "free" => format!(" ({:.0} %)", bytes as f64 / all as f64 * 1e2),
        _ => String::new(),
    }
}

/// A time in seconds since 1970 as a date.
fn date(zone: &TimeZone, seconds: u64) -> String {
    let time = i64::try_from(seconds).ok();
    let time = time.and_then(|seconds| Timestamp::from_second(seconds).ok());
    match time {
        Some(time) => {
            let time = time.to_zoned(zone.clone());
            time.strftime("%Y-%m-%d %H:%M:%S %Z").to_string()
        }
        None => format!("{seconds} s after 1970"),
    }
}

impl Group {
    /// As text, the values from this column on.
    fn text(&self, column: usize) -> String {
        let mut text = match self.title.as_str() {
            "" => String::new(),
            title => format!("{title}\n"),
        };
        let indent = if self.title.is_empty() { 0 } else { 2 };
        for (name, value) in &self.facts {
            let name = format!("{:indent$}{name}", "");
            let mut lines = wrapped(value, WIDTH.saturating_sub(column + 2).max(20));
            text += &format!("{name:w$}{}\n", lines.remove(0), w = column + 2);
            for line in lines {
                text += &format!("{:w$}{line}\n", "", w = column + 2);
            }
        }
        text
    }
}

/// A text in lines of at most so many characters, if its words are no longer. At least one line.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("there is one");
        match last.is_empty() || last.chars().count() + 1 + word.chars().count() <= width {
            true if last.is_empty() => last.push_str(word),
            true => {
                last.push(' ');
                last.push_str(word);
            }
            false => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_report_is_aligned_in_groups_and_its_counters_are_shown_if_asked_for() {
        let report = json!({
            "image": "/a", "image_id": "1-2", "mounted_at": 1_700_000_000, "read_only": false,
            "last_error": null, "requests": { "lookup": 2 }, "nothing": {},
            "file_system": {
                "size_bytes": 1 << 30, "free_bytes": 1 << 28, "late_ms": 1500, "label": "",
                "counters": { "batches_published": 3 },
            },
        });
        let text = "\
image        /a
mounted      2023-11-14 22:13:20 UTC
read only    no

file system
  size       1 GiB
  free       256 MiB (25 %)
  late       1.5 s
";
        assert_eq!(render_in(&TimeZone::UTC, &report, false), text);
        let text = render_in(&TimeZone::UTC, &report, true);
        for group in [
            "\nrequests\n  lookup             2\n",
            "\nfile system counters\n  batches published  3\n",
        ] {
            assert!(text.contains(group), "{group} in\n{text}");
        }
    }

    #[test]
    fn long_values_are_wrapped_behind_their_names() {
        let words = "word ".repeat(30);
        let text = render_in(&TimeZone::UTC, &json!({ "survives": words.trim() }), false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines.iter().all(|line| line.len() <= WIDTH));
        assert!(lines[1].starts_with("            word"), "{text}");
    }
}
