//! `tureen stat`: what an image holds, or how a live mount is doing.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use volume::Access;

use crate::engines::ENGINES;
use crate::failure::{Failure, Outcome};
use crate::mounts::LiveMount;
use crate::units::size;
use crate::{exclusive, image, mounts, status};

/// Show what an image holds, or how a live mount is doing
///
/// Of an image: its size, label, identifier, and whether it was unmounted cleanly. Of a mounted
/// directory: space, persistence domain and what survives there, mode, backlog, how late the
/// durable state is, counters, and the last error.
#[derive(clap::Args)]
pub struct Args {
    /// An image, or a directory that one is mounted on
    #[arg(value_name = "IMAGE|DIR")]
    path: PathBuf,
    /// Report in JSON
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Outcome {
    let report = report(&args.path)?;
    if args.json {
        println!("{report}");
    } else {
        print!("{}", render(&report));
    }
    Ok(0)
}

fn report(path: &Path) -> Result<Value, Failure> {
    let absolute = mounts::resolve(path);
    if let Some(mount) = mounts::on(&absolute) {
        return ask(&mount);
    }
    if path.is_dir() {
        return Err(Failure::at(path, "no Tureen file system is mounted here"));
    }
    let image = image::existing(path)?;
    if let Some(mount) = mounts::of(&image) {
        return ask(&mount);
    }
    let engine = ENGINES.of(&image)?;
    let volume = exclusive::open(&image, engine, Access::Look, &engine.settings())?;
    Ok(json!({
        "image": image.to_string_lossy(),
        "medium": volume.medium(),
        "file_system": volume.inspect()?,
    }))
}

fn ask(mount: &LiveMount) -> Result<Value, Failure> {
    mounts::check_uncovered(mount)?;
    status::ask(&mount.dir)
}

/// A report for people: one fact a line, groups indented, sizes with units, what is unknown left
/// out.
fn render(report: &Value) -> String {
    let mut text = String::new();
    render_into(report, 0, &mut text);
    text
}

fn render_into(value: &Value, depth: usize, text: &mut String) {
    let Value::Object(facts) = value else { return };
    for (name, fact) in facts {
        let words = |suffix: &str| name.trim_end_matches(suffix).replace('_', " ");
        let (name, shown) = match fact {
            Value::Null => continue,
            Value::Object(inner) if inner.is_empty() => continue,
            Value::Object(_) => (words(""), String::new()),
            Value::Number(n) if name.ends_with("_bytes") => {
                (words("_bytes"), size(n.as_u64().unwrap_or(0)))
            }
            Value::Number(n) if name.ends_with("_ms") => (words("_ms"), format!("{n} ms")),
            Value::Number(n) if name.ends_with("_s") => (words("_s"), format!("{n} s")),
            Value::Bool(yes) => (words(""), if *yes { "yes" } else { "no" }.to_string()),
            Value::String(s) => (words(""), s.clone()),
            other => (words(""), other.to_string()),
        };
        text.push_str(&"  ".repeat(depth));
        text.push_str(format!("{name}: {shown}").trim_end());
        text.push('\n');
        render_into(fact, depth + 1, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_reads_as_facts_with_units() {
        let report = json!({
            "image": "/a", "size_bytes": 1 << 30, "bound_ms": 1000, "read_only": false,
            "last_error": null, "requests": { "lookup": 2 }, "nothing": {},
        });
        let text = render(&report);
        for line in [
            "image: /a",
            "size: 1 GiB",
            "bound: 1000 ms",
            "read only: no",
            "requests:",
            "  lookup: 2",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
        assert!(
            !text.contains("null") && !text.contains("nothing"),
            "{text}"
        );
    }
}
