//! A report as one page that needs nothing else.

use std::fmt::Write;

use super::plot::{STYLE, escape, svg};
use super::result::{Report, Run};
use super::table::Table;
use super::verdict::Verdict;

const PAGE_STYLE: &str = "\
:root{--ink:#1b1b1b;--paper:#fff;--faint:#ddd;--soft:#f4f4f2;--link:#0060a0}
@media(prefers-color-scheme:dark){:root{--ink:#e4e4e4;--paper:#151617;--faint:#3a3a3a;
--soft:#202224;--link:#7ab8e8}}
*{box-sizing:border-box}body{margin:0 auto;padding:1rem;max-width:72rem;color:var(--ink);
background:var(--paper);font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.7rem;margin:.4rem 0}h2{font-size:1.3rem;margin:2.2rem 0 .4rem;border-top:2px solid \
var(--faint);padding-top:.8rem}
h3,figcaption{font-size:1rem;margin:0 0 .3rem;font-weight:600}figure{margin:0;break-inside:avoid}
figcaption small{font-weight:400;display:block}a{color:var(--link)}
.figures{display:grid;gap:1.4rem \
2rem;grid-template-columns:repeat(auto-fill,minmax(min(24rem,100%),1fr));margin:1rem 0}
.wide{overflow-x:auto;margin:.4rem 0 \
1.2rem}table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .6rem;text-align:left;border-bottom:1px solid var(--faint);white-space:nowrap}
td.n{text-align:right}th{background:var(--soft);vertical-align:bottom}
nav a{display:inline-block;margin:.1rem .9rem .1rem 0}code{background:var(--soft);padding:.05rem \
.3rem;overflow-wrap:anywhere}
.verdict{font-weight:700}.Agrees{color:#007a58}.Differs{color:#c04a00}.Unseen{opacity:.75}
@media(prefers-color-scheme:dark){.Agrees{color:#3ccf9f}.Differs{color:#ff9457}}
@media(max-width:40rem){table{font-size:.75rem}th,td{padding:.15rem .3rem;white-space:normal}}
summary{cursor:pointer;margin:.6rem 0}
@media print{:root{--ink:#000;--paper:#fff;--faint:#bbb;--soft:#eee}
body{font-size:10pt;max-width:none;padding:0}
nav{display:none}details::details-content{content-visibility:visible;height:auto}
summary{display:none}.figures{grid-template-columns:1fr 1fr}.wide{overflow:visible}
table{font-size:7pt}th,td{white-space:normal}}
";

/// The whole page.
pub fn page(report: &Report) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>\
         <meta name='viewport' content='width=device-width,initial-scale=1'>\
         <title>Tureen side by side</title><style>\n{PAGE_STYLE}{STYLE}</style></head><body>\n\
         <h1>Tureen side by side</h1>\n<p>{}</p>\n<nav>",
        escape(&report.machine.to_string())
    );
    for run in &report.runs {
        let _ = write!(out, "<a href='#{0}'>{0}</a>", escape(&run.name));
    }
    out.push_str("</nav>\n");
    list(
        &mut out,
        "Who took part",
        report
            .peers
            .iter()
            .map(|peer| format!("**{}** {}", peer.name, peer.told())),
    );
    out.push_str(HOW);
    for (title, made) in [
        ("Through the mount", report.mounted()),
        ("In-process", report.in_process()),
        ("Where it stands", report.aims()),
    ] {
        if !made.rows.is_empty() {
            let _ = write!(out, "<h2>{title}</h2>");
            table(&mut out, &made);
        }
    }
    report.runs.iter().for_each(|run| section(&mut out, run));
    out.push_str("</body></html>\n");
    out
}

/// How to read all of it.
const HOW: &str = "<p>All targets take turns, round by round; the first round warms up. Figures \
 are medians \
over rounds; \
whiskers and brackets are the interval in which the median lies with 95 % (with fewer than six \
rounds: the \
range). A ratio above \
one is better, whatever is measured. Figures beside times count what was flushed, fenced, \
requested or written \
for each \
operation.</p>\n";

fn section(out: &mut String, run: &Run) {
    let _ = writeln!(
        out,
        "<section id='{0}'><h2>{0}: {1}</h2>\n<p><code>{2}</code>, {3:.0} s</p>",
        escape(&run.name),
        escape(&run.about),
        escape(&run.command),
        run.seconds
    );
    if !run.checks.is_empty() {
        out.push_str("<h3>Beside the papers</h3><ul>");
        for check in &run.checks {
            let class = match check.verdict {
                Verdict::Agrees => "Agrees",
                Verdict::Differs => "Differs",
                Verdict::Coarse | Verdict::Unseen | Verdict::Absent => "Unseen",
            };
            let _ = write!(
                out,
                "<li>{} <span class='verdict {class}'>Here: {}.</span> {} {}</li>",
                inline(&check.paper),
                check.verdict,
                inline(&check.here),
                inline(&check.why)
            );
        }
        out.push_str("</ul>\n");
    }
    out.push_str("<div class='figures'>\n");
    for chart in &run.charts {
        let like = match chart.like.as_str() {
            "" => String::new(),
            like => format!("<small>as {}</small>", escape(like)),
        };
        let _ = writeln!(
            out,
            "<figure><figcaption>{}{like}</figcaption>{}</figure>",
            escape(&chart.title),
            svg(chart)
        );
    }
    out.push_str("</div>\n");
    out.push_str(&markdown(&run.text));
    for own in &run.tables {
        table(out, own);
    }
    if !run.charts.is_empty() {
        out.push_str("<details><summary>The figures in numbers</summary>");
        for chart in &run.charts {
            table(out, &chart.table(&run.baseline));
        }
        out.push_str("</details>\n");
    }
    list(out, "To judge the figures", run.notes.iter().cloned());
    out.push_str("</section>\n");
}

fn list(out: &mut String, title: &str, items: impl Iterator<Item = String>) {
    let items: String = items
        .map(|item| format!("<li>{}</li>", inline(&item)))
        .collect();
    if !items.is_empty() {
        let _ = writeln!(out, "<h3>{}</h3><ul>{items}</ul>", escape(title));
    }
}

fn table(out: &mut String, table: &Table) {
    if !table.title.is_empty() {
        let _ = write!(out, "<h3>{}</h3>", escape(&table.title));
    }
    out.push_str("<div class='wide'><table><thead><tr>");
    for column in &table.columns {
        let _ = write!(out, "<th>{}</th>", escape(column));
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for cell in row {
            let class = if cell.is_figure() { " class='n'" } else { "" };
            let _ = write!(out, "<td{class}>{}</td>", escape(&cell.to_string()));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

/// The Markdown that texts here use: paragraphs, lists, and what [`inline`] knows.
fn markdown(text: &str) -> String {
    let mut out = String::new();
    for block in text
        .split("\n\n")
        .map(str::trim)
        .filter(|block| !block.is_empty())
    {
        if block.starts_with("- ") {
            let items = format!("\n{block}");
            let items = items.split("\n- ").skip(1);
            let items: String = items
                .map(|item| format!("<li>{}</li>", inline(item)))
                .collect();
            let _ = writeln!(out, "<ul>{items}</ul>");
        } else {
            let _ = writeln!(out, "<p>{}</p>", inline(block));
        }
    }
    out
}

/// Code, strong and emphasised words.
fn inline(text: &str) -> String {
    let mut out = String::new();
    // Code first: what is in it is not Markdown.
    for (i, part) in text.split('`').enumerate() {
        if i % 2 == 1 {
            let _ = write!(out, "<code>{}</code>", escape(part));
            continue;
        }
        let strong = paired(&escape(part), "**", "strong");
        out.push_str(&paired(&strong, "*", "em"));
    }
    out
}

/// Puts what is between two marks into an element; a mark without another one stays.
fn paired(text: &str, mark: &str, element: &str) -> String {
    let parts: Vec<&str> = text.split(mark).collect();
    let mut out = String::new();
    for (i, part) in parts.iter().enumerate() {
        match i % 2 {
            0 => out.push_str(part),
            _ if i + 1 == parts.len() => {
                let _ = write!(out, "{mark}{part}");
            }
            _ => {
                let _ = write!(out, "<{element}>{part}</{element}>");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_markdown_of_texts_becomes_elements() {
        assert_eq!(
            markdown("**Where** `a*b` goes:\n\n- one\n  more\n- *two* < 3"),
            "<p><strong>Where</strong> <code>a*b</code> goes:</p>\n\
             <ul><li>one\n  more</li><li><em>two</em> &lt; 3</li></ul>\n"
        );
    }

    #[test]
    fn a_single_star_is_a_star() {
        assert_eq!(inline("2 * 3"), "2 * 3");
    }
}
