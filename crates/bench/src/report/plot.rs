//! Charts as SVG.
//!
//! Written by hand: a page that reads on a phone, in print and in the dark needs text as text,
//! colours from a style sheet and a title for those who do not see the picture. Targets differ in
//! colour (those of Okabe and Ito, told apart by colour-blind people too), in the shape of their
//! marks and in how their lines are broken.

mod scale;

use std::fmt::Write;

use super::chart::{Chart, Line, Point, Shape, X};
use super::table::short;
use scale::Scale;

/// Size of a picture, and of what surrounds its plot, in units of its own.
const WIDTH: f64 = 460.0;
const PLOT_HEIGHT: f64 = 210.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
const BELOW: f64 = 42.0;
const LEGEND_LINE: f64 = 17.0;
/// Average width of a letter in the legend.
const LETTER: f64 = 6.4;
/// Classes of the style sheet: beyond this colours repeat.
const COLOURS: usize = 8;
/// From this ratio of the greatest figure to the least on, an axis is logarithmic.
const LOG_FROM: f64 = 25.0;

/// What the style sheet of a page needs for its pictures.
pub const STYLE: &str = "\
svg.plot{width:100%;height:auto;font:12px system-ui,sans-serif}
.plot text{fill:var(--ink)}.plot .axis{stroke:var(--ink);stroke-width:1}
.plot .grid{stroke:var(--faint);stroke-width:1}.plot .line{fill:none;stroke-width:2}
.plot .whisker{stroke-width:1.2;opacity:.75}
.c0{--c:#0072b2}.c1{--c:#e69f00}.c2{--c:#009e73}.c3{--c:#d55e00}
.c4{--c:#cc79a7}.c5{--c:#56b4e9}.c6{--c:var(--ink)}.c7{--c:#b8a800}
.plot .line,.plot .whisker{stroke:var(--c)}.plot .mark,.plot .bar{fill:var(--c)}
.c1 .line,.c5 .line{stroke-dasharray:7 3}.c2 .line,.c6 .line{stroke-dasharray:2 3}
.c3 .line,.c7 .line{stroke-dasharray:8 3 2 3}
";

/// A chart as an SVG element.
pub fn svg(chart: &Chart) -> String {
    let mut plot = Plot::new(chart);
    plot.axes();
    for (i, line) in chart.lines.iter().enumerate() {
        let _ = write!(plot.out, "<g class='c{}'>", i % COLOURS);
        match chart.shape {
            Shape::Bars => plot.bars(i, line),
            _ => plot.line(i, line),
        }
        plot.out.push_str("</g>\n");
    }
    plot.finish()
}

/// For text and attributes.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('\'', "&#39;")
        .replace('"', "&quot;")
}

/// A picture that is being drawn.
struct Plot<'a> {
    chart: &'a Chart,
    out: String,
    top: f64,
    x: Scale,
    y: Scale,
    /// Words on the x axis, where it has no numbers.
    words: Vec<&'a X>,
}

/// A point of a line: where it is, and how far its whisker goes.
struct At {
    x: f64,
    y: f64,
    low: f64,
    high: f64,
}

impl<'a> Plot<'a> {
    fn new(chart: &'a Chart) -> Plot<'a> {
        let (out, lines) = legend(chart);
        let top = lines as f64 * LEGEND_LINE + 10.0;
        let words = match chart.shape {
            Shape::Bars => chart.xs(),
            _ => Vec::new(),
        };
        let (left, right) = (LEFT, WIDTH - RIGHT);
        let (bottom, upper) = (top + PLOT_HEIGHT, top);
        let points = || chart.lines.iter().flat_map(|line| &line.points);
        let values: Vec<f64> = points().map(|point| point.rounds.median()).collect();
        let numbers: Vec<f64> = points().filter_map(|point| point.x.number()).collect();
        let (x, y) = match chart.shape {
            Shape::Quantiles => (
                Scale::log(&values, left, right),
                Scale::linear(&[0.0, 1.0], bottom, upper),
            ),
            Shape::Growth => (
                Scale::log(&numbers, left + 8.0, right - 8.0),
                figures(&values, chart, bottom, upper),
            ),
            Shape::Bars => (
                Scale::linear(&[0.0, words.len() as f64], left, right),
                figures(&values, chart, bottom, upper),
            ),
            Shape::Lines | Shape::Timeline => (
                Scale::within(&numbers, left + 8.0, right - 8.0),
                figures(&values, chart, bottom, upper),
            ),
        };
        Plot {
            chart,
            out,
            top,
            x,
            y,
            words,
        }
    }

    fn bottom(&self) -> f64 {
        self.top + PLOT_HEIGHT
    }

    fn axes(&mut self) {
        let bottom = self.bottom();
        for (value, text) in self.y.ticks() {
            let y = self.y.at(value);
            let _ = write!(
                self.out,
                "<path class='grid' d='M{LEFT} {y:.1}H{:.1}'/><text x='{:.1}' y='{:.1}' \
                 text-anchor='end'>{text}</text>",
                WIDTH - RIGHT,
                LEFT - 5.0,
                y + 4.0
            );
        }
        if self.words.is_empty() {
            let ticks = match self.chart.shape {
                Shape::Lines => self.own_ticks(),
                _ => self.x.ticks(),
            };
            for (value, text) in ticks {
                let x = self.x.at(value);
                let _ = write!(
                    self.out,
                    "<path class='axis' d='M{x:.1} {bottom:.1}v4'/><text x='{x:.1}' y='{:.1}' \
                     text-anchor='middle'>{text}</text>",
                    bottom + 16.0
                );
            }
        }
        for (i, word) in self.words.clone().into_iter().enumerate() {
            let x = self.x.at(i as f64 + 0.5);
            let text = match word {
                X::Word(word) => escape(word),
                X::Number(number) => short(*number),
            };
            let _ = write!(
                self.out,
                "<text x='{x:.1}' y='{:.1}' text-anchor='middle'>{text}</text>",
                bottom + 16.0
            );
        }
        let (x, y) = match self.chart.shape {
            Shape::Quantiles => (
                format!("{} at most", self.chart.unit),
                "part of the operations".into(),
            ),
            _ => (self.chart.x.clone(), self.chart.unit.clone()),
        };
        let logarithmic = if self.y.is_log() { ", log scale" } else { "" };
        let _ = writeln!(
            self.out,
            "<path class='axis' d='M{LEFT} {bottom:.1}H{:.1}'/>\
             <text x='{:.1}' y='{:.1}' text-anchor='middle'>{}</text>\
             <text transform='translate(11 {:.1}) rotate(-90)' \
             text-anchor='middle'>{}{logarithmic}</text>",
            WIDTH - RIGHT,
            (LEFT + WIDTH - RIGHT) / 2.0,
            bottom + 34.0,
            escape(&x),
            self.top + PLOT_HEIGHT / 2.0,
            escape(&y),
        );
    }

    /// A tick for each value: there are few, and they were chosen.
    fn own_ticks(&self) -> Vec<(f64, String)> {
        let numbers = self.chart.xs().into_iter().filter_map(X::number);
        numbers.map(|x| (x, scale::tick(x))).collect()
    }

    /// Bars side by side; points instead where the axis is logarithmic, as it has no foot to stand
    /// on.
    fn bars(&mut self, i: usize, line: &Line) {
        let count = self.chart.lines.len() as f64;
        let group = self.x.at(1.0) - self.x.at(0.0);
        let width = (0.8 * group / count).min(46.0);
        for point in &line.points {
            let Some(word) = self.words.iter().position(|word| **word == point.x) else {
                continue;
            };
            let x = self.x.at(word as f64 + 0.5) + (i as f64 - (count - 1.0) / 2.0) * width;
            let at = self.place(x, point);
            let _ = write!(self.out, "<g><title>{}</title>", self.label(line, point));
            if self.y.is_log() {
                self.whisker(&at);
                self.mark(i, at.x, at.y);
            } else {
                let (foot, inner) = (self.bottom(), width * 0.86);
                let _ = write!(
                    self.out,
                    "<rect class='bar' x='{:.1}' y='{:.1}' width='{inner:.1}' height='{:.1}'/>",
                    x - inner / 2.0,
                    at.y,
                    (foot - at.y).max(0.5)
                );
                self.whisker(&at);
            }
            self.out.push_str("</g>");
        }
    }

    fn line(&mut self, i: usize, line: &Line) {
        let mut path = String::new();
        let mut marks = Vec::new();
        for point in &line.points {
            let Some(number) = point.x.number() else {
                continue;
            };
            let at = match self.chart.shape {
                Shape::Quantiles => {
                    let (x, y) = (self.x.at(point.rounds.median()), self.y.at(number));
                    At {
                        x,
                        y,
                        low: y,
                        high: y,
                    }
                }
                _ => self.place(self.x.at(number), point),
            };
            let step = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{step}{:.1} {:.1}", at.x, at.y);
            marks.push((at, point));
        }
        let _ = write!(self.out, "<path class='line' d='{path}'/>");
        if self.chart.shape == Shape::Timeline {
            return;
        }
        for (at, point) in marks {
            let _ = write!(self.out, "<g><title>{}</title>", self.label(line, point));
            self.whisker(&at);
            self.mark(i, at.x, at.y);
            self.out.push_str("</g>");
        }
    }

    /// Where a point is, with the interval of its median.
    fn place(&self, x: f64, point: &Point) -> At {
        let found = point.rounds.interval();
        At {
            x,
            y: self.y.at(found.median),
            low: self.y.at(found.low),
            high: self.y.at(found.high),
        }
    }

    fn whisker(&mut self, at: &At) {
        if (at.low - at.high).abs() < 1.0 {
            return;
        }
        let _ = write!(
            self.out,
            "<path class='whisker' d='M{x:.1} {:.1}V{:.1}M{:.1} {:.1}h6M{:.1} {:.1}h6'/>",
            at.low,
            at.high,
            at.x - 3.0,
            at.low,
            at.x - 3.0,
            at.high,
            x = at.x,
        );
    }

    fn mark(&mut self, i: usize, x: f64, y: f64) {
        self.out.push_str(&mark(i, x, y));
    }

    /// What a pointer that rests on a figure is told.
    fn label(&self, line: &Line, point: &Point) -> String {
        let x = self.chart.label(&point.x);
        let found = point.rounds.interval();
        escape(&format!(
            "{}, {x}: {} {} ({} to {})",
            line.target,
            short(found.median),
            self.chart.unit,
            short(found.low),
            short(found.high)
        ))
    }

    fn finish(self) -> String {
        let height = self.bottom() + BELOW;
        let targets: Vec<&str> = self
            .chart
            .lines
            .iter()
            .map(|line| line.target.as_str())
            .collect();
        format!(
            "<svg class='plot' viewBox='0 0 {WIDTH} {height:.0}' role='img' \
             xmlns='http://www.w3.org/2000/svg'>\
             <title>{}</title><desc>{} over {}, of {}; the table has the \
             figures</desc>\n{}</svg>\n",
            escape(&self.chart.title),
            escape(&self.chart.unit),
            escape(&self.chart.x),
            escape(&targets.join(", ")),
            self.out
        )
    }
}

/// The scale of the figures themselves, with all of their whiskers: from zero on, unless the
/// figures differ by too much.
fn figures(values: &[f64], chart: &Chart, bottom: f64, upper: f64) -> Scale {
    let positive = || values.iter().copied().filter(|value| *value > 0.0);
    let greatest = positive().fold(0.0, f64::max);
    let least = positive().fold(f64::INFINITY, f64::min);
    let points = chart.lines.iter().flat_map(|line| &line.points);
    let found = points.map(|point| point.rounds.interval());
    let ends: Vec<f64> = found.flat_map(|found| [found.low, found.high]).collect();
    if chart.shape != Shape::Timeline && greatest > LOG_FROM * least {
        return Scale::log(&[values, &ends].concat(), bottom, upper);
    }
    let highest = ends.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    Scale::linear(&[0.0, highest], bottom, upper)
}

/// The legend, and how many lines it takes.
fn legend(chart: &Chart) -> (String, usize) {
    let (mut out, mut x, mut row) = (String::new(), 4.0, 0);
    for (i, line) in chart.lines.iter().enumerate() {
        let width = 26.0 + LETTER * line.target.chars().count() as f64 + 10.0;
        if x + width > WIDTH && x > 4.0 {
            (x, row) = (4.0, row + 1);
        }
        let y = 12.0 + LEGEND_LINE * f64::from(row);
        let _ = writeln!(
            out,
            "<g class='c{}'><path class='line' d='M{x:.1} {:.1}h20'/>{}</g><text x='{:.1}' \
             y='{y:.1}'>{}</text>",
            i % COLOURS,
            y - 4.0,
            mark(i, x + 10.0, y - 4.0),
            x + 25.0,
            escape(&line.target)
        );
        x += width;
    }
    (out, row as usize + 1)
}

/// The mark of the `i`th target.
fn mark(i: usize, x: f64, y: f64) -> String {
    let path = match i % 6 {
        0 => return format!("<circle class='mark' cx='{x:.1}' cy='{y:.1}' r='3.6'/>"),
        1 => "m-3.4 -3.4h6.8v6.8h-6.8z",
        2 => "m0 -4.4l4.2 7.6h-8.4z",
        3 => "m0 -4.8l4.6 4.8l-4.6 4.8l-4.6 -4.8z",
        4 => "m0 4.4l4.2 -7.6h-8.4z",
        _ => "m-1.3 -4.4h2.6v3.1h3.1v2.6h-3.1v3.1h-2.6v-3.1h-3.1v-2.6h3.1z",
    };
    format!("<path class='mark' d='M{x:.1} {y:.1}{path}'/>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Better;

    fn chart(shape: Shape, values: [f64; 3]) -> Chart {
        let points = values.into_iter().enumerate().map(|(i, value)| Point {
            x: match shape {
                Shape::Bars => X::Word(format!("op{i}")),
                Shape::Quantiles => X::Number([0.5, 0.9, 1.0][i]),
                _ => X::Number(10f64.powi(i as i32)),
            },
            rounds: [value, value * 1.1].into_iter().collect(),
            extra: Vec::new(),
        });
        Chart {
            title: "a <b>".into(),
            like: String::new(),
            x: "threads".into(),
            unit: "ns".into(),
            better: Better::Less,
            shape,
            lines: vec![Line {
                target: "x & y".into(),
                points: points.collect(),
            }],
        }
    }

    #[test]
    fn each_shape_draws_all_points_within_the_picture() {
        for shape in [
            Shape::Bars,
            Shape::Lines,
            Shape::Growth,
            Shape::Quantiles,
            Shape::Timeline,
        ] {
            for values in [[1.0, 2.0, 3.0], [1.0, 1000.0, 1e6], [5.0, 5.0, 5.0]] {
                let svg = svg(&chart(shape, values));
                assert!(
                    !svg.contains("NaN") && !svg.contains("inf"),
                    "{shape:?}: {svg}"
                );
                assert!(svg.contains("a &lt;b&gt;") && svg.contains("x &amp; y"));
                if !matches!(shape, Shape::Timeline) {
                    assert_eq!(svg.matches("<g><title>").count(), 3, "{shape:?}");
                }
            }
        }
    }

    #[test]
    fn figures_that_differ_much_are_points_on_a_logarithmic_axis() {
        let far = svg(&chart(Shape::Bars, [1.0, 1000.0, 1e6]));
        assert!(far.contains("log scale") && !far.contains("<rect"));
        let near = svg(&chart(Shape::Bars, [1.0, 2.0, 3.0]));
        assert!(!near.contains("log scale") && near.contains("<rect"));
    }

    #[test]
    fn the_longest_whisker_ends_within_the_picture_and_not_at_its_edge() {
        let mut chart = chart(Shape::Bars, [1.0, 2.0, 3.0]);
        chart.lines[0].points[0].rounds = [1.0, 1.0, 1.0, 1.0, 30.0].into_iter().collect();
        let scale = figures(&[1.0, 2.0, 3.0], &chart, 100.0, 0.0);
        assert!(scale.at(30.0) < scale.at(29.0), "29 and 30 are one place");
    }
}
