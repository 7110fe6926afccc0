//! Lines over a few places: cost by size, throughput by tasks, latency by percentile. Each line is named at its end.

use super::scale::{Kind, Scale};
use super::style::{BOLD, NORMAL, OURS, SMALL, fit, width};
use super::svg::{Anchor, Mark, Svg};
use super::{Drawing, FAR_APART, WIDTH};

/// One line.
pub(crate) struct Line {
    pub(crate) label: String,
    pub(crate) ours: bool,
    /// From left to right. A point without a place is the same everywhere, and its line goes across.
    pub(crate) points: Vec<Point>,
}

impl Line {
    /// The size of normal type in which its name would be as wide: hugefork's name is bold.
    fn size(&self) -> f64 {
        if self.ours { BOLD } else { NORMAL }
    }
}

/// One point.
pub(crate) struct Point {
    pub(crate) x: Option<f64>,
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
    /// What is said under the pointer.
    pub(crate) hint: String,
}

/// What lines are drawn over.
pub(crate) struct Axes {
    /// Places with their names, from left to right.
    pub(crate) x: Vec<(f64, String)>,
    pub(crate) x_title: String,
    pub(crate) y_title: String,
    pub(crate) y: Y,
    pub(crate) between: Between,
}

/// What is drawn between points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Between {
    Straight,
    /// A value holds around its place, and changes at once in the middle between two places.
    Steps,
}

/// How values become heights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Y {
    Log,
    /// From zero, or logarithmic where values lie so far apart that most would lie on the axis.
    AsFits,
}

const TOP: f64 = 26.0;
const BOTTOM: f64 = 240.0;

/// With more points than this a line is a curve, and marks would only hide it.
const MARKS: usize = 12;

/// The widest name at a line's end.
const NAMES: f64 = 152.0;

/// Between two names.
const APART: f64 = 15.0;

/// Draws `lines`.
pub(crate) fn draw(axes: &Axes, lines: &[Line]) -> Drawing {
    let y = heights(axes.y, lines);
    let ticks = y.ticks(5);
    let left = ticks.iter().map(|(_, text)| width(text, SMALL)).fold(0.0, f64::max) + 8.0;
    let names = lines.iter().map(|line| width(&line.label, line.size())).fold(0.0, f64::max).min(NAMES);
    let right = WIDTH - names - 16.0;
    let ends = axes.x.iter().map(|(value, _)| *value);
    let ends = || ends.clone().chain(lines.iter().flat_map(|line| &line.points).filter_map(|point| point.x));
    let (first, last) = (ends().fold(f64::INFINITY, f64::min), ends().fold(f64::NEG_INFINITY, f64::max));
    let x = Scale::new(Kind::Linear, first, last, left + 10.0, right - 6.0);
    let mut svg = Svg::default();
    svg.text(0.0, 11.0, Anchor::Start, "soft", &fit(&axes.y_title, SMALL, WIDTH));
    for (value, text) in &ticks {
        let height = y.at(*value);
        svg.line((left, height), (right, height), if *value == 0.0 { "axis" } else { "rule" });
        svg.text(left - 6.0, height + 4.0, Anchor::End, "soft", text);
    }
    places(&mut svg, axes, &x);
    let styles = styles(lines);
    let mut ends = Vec::new();
    // The first are drawn last, so that nothing hides hugefork's.
    for (line, style) in lines.iter().zip(&styles).rev() {
        let place = |point: &Point| (point.x.map_or(right, |value| x.at(value)), y.at(point.median));
        let path: Vec<(f64, f64)> = match line.points.as_slice() {
            [only] if only.x.is_none() => vec![(left, y.at(only.median)), (right, y.at(only.median))],
            points => between(axes.between, points.iter().map(place).collect()),
        };
        svg.polyline(&path, &format!("line s-{0} d-{0}", style.class));
        let is_curve = line.points.len() > MARKS;
        for point in line.points.iter().filter(|point| point.x.is_some()) {
            let (at, height) = place(point);
            if !is_curve {
                svg.line((at, y.at(point.min)), (at, y.at(point.max)), &format!("range s-{}", style.class));
                svg.mark(style.mark, at, height, &format!("m-{}", style.class));
            }
            let reach = if is_curve { 4.0 } else { 8.0 };
            svg.hint((at - reach, height - reach), (2.0 * reach, 2.0 * reach), &point.hint);
        }
        if let Some(end) = path.last() {
            ends.push((*end, line, style));
        }
    }
    name(&mut svg, ends, right + 14.0);
    svg.text(f64::midpoint(left, right), BOTTOM + 33.0, Anchor::Middle, "soft", &axes.x_title);
    Drawing { width: WIDTH, height: BOTTOM + 39.0, body: svg.into_string() }
}

fn between(shape: Between, points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    if shape == Between::Straight {
        return points;
    }
    let mut path = Vec::new();
    for (index, (x, y)) in points.iter().enumerate() {
        if let Some((earlier, above)) = index.checked_sub(1).map(|index| points[index]) {
            let middle = f64::midpoint(earlier, *x);
            path.extend([(middle, above), (middle, *y)]);
        }
        path.push((*x, *y));
    }
    path
}

fn heights(wanted: Y, lines: &[Line]) -> Scale {
    let points = || lines.iter().flat_map(|line| &line.points);
    let least = points().map(|point| point.min).fold(f64::INFINITY, f64::min);
    let greatest = points().map(|point| point.max).fold(f64::NEG_INFINITY, f64::max);
    let medians = || points().map(|point| point.median);
    let apart = medians().fold(0.0, f64::max) / medians().fold(f64::INFINITY, f64::min);
    let log = wanted == Y::Log || apart > FAR_APART;
    // What is not positive has no logarithm.
    if log && least > 0.0 && greatest.is_finite() {
        return Scale::new(Kind::Log, least, greatest, BOTTOM, TOP);
    }
    Scale::new(Kind::Linear, least.min(0.0), if greatest.is_finite() { greatest } else { 1.0 }, BOTTOM, TOP)
}

/// Draws as many names of places as there is room for, and always the last.
fn places(svg: &mut Svg, axes: &Axes, x: &Scale) {
    let half = |text: &str| width(text, SMALL) / 2.0;
    let last = axes.x.last().map_or(f64::INFINITY, |(value, text)| x.at(*value) - half(text));
    let mut free = f64::NEG_INFINITY;
    for (index, (value, text)) in axes.x.iter().enumerate() {
        let at = x.at(*value);
        svg.line((at, BOTTOM), (at, BOTTOM + 4.0), "axis");
        let is_last = index + 1 == axes.x.len();
        if is_last || (at - half(text) > free && at + half(text) + 4.0 < last) {
            svg.text(at, BOTTOM + 16.0, Anchor::Middle, "soft", text);
            free = at + half(text) + 4.0;
        }
    }
}

struct Style {
    class: String,
    mark: Mark,
}

/// hugefork's lines get colours, and the others are grey with dashes. Where colours or dashes repeat, marks differ.
fn styles(lines: &[Line]) -> Vec<Style> {
    let (mut ours, mut theirs) = (0, 0);
    let style = |line: &Line| {
        let (count, name, different) = if line.ours { (&mut ours, "ours", OURS) } else { (&mut theirs, "theirs", 4) };
        let (round, number) = (*count / different, *count % different);
        *count += 1;
        Style { class: format!("{name}-{number}"), mark: Mark::ALL[(number + round) % Mark::ALL.len()] }
    };
    lines.iter().map(style).collect()
}

/// Names lines at their ends, apart from each other.
fn name(svg: &mut Svg, mut ends: Vec<((f64, f64), &Line, &Style)>, left: f64) {
    ends.sort_by(|((_, a), ..), ((_, b), ..)| a.total_cmp(b));
    let mut heights: Vec<f64> = ends.iter().map(|((_, height), ..)| *height).collect();
    spread(&mut heights, TOP - 4.0, BOTTOM + 4.0);
    for (((x, end), line, style), height) in ends.into_iter().zip(heights) {
        if (end - height).abs() > 3.0 || x < left - 22.0 {
            svg.line((x + 5.0, end), (left - 2.0, height), "leader");
        }
        let name = fit(&line.label, line.size(), WIDTH - left);
        svg.text(left, height + 4.3, Anchor::Start, &format!("t-{}", style.class), &name);
    }
}

/// Moves sorted `heights` apart, inside of `top ..= bottom` as far as that can be.
fn spread(heights: &mut [f64], top: f64, bottom: f64) {
    let apart = APART.min((bottom - top) / heights.len().max(2).saturating_sub(1) as f64);
    let mut least = top;
    for height in heights.iter_mut() {
        *height = height.max(least);
        least = *height + apart;
    }
    let mut most = bottom;
    for height in heights.iter_mut().rev() {
        *height = height.min(most);
        most = *height - apart;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_change_in_the_middle() {
        let points = vec![(0.0, 1.0), (4.0, 3.0)];
        assert_eq!(between(Between::Straight, points.clone()), points);
        assert_eq!(between(Between::Steps, points), [(0.0, 1.0), (2.0, 1.0), (2.0, 3.0), (4.0, 3.0)]);
        assert!(between(Between::Steps, Vec::new()).is_empty());
    }

    #[test]
    fn names_are_moved_apart_and_stay_inside() {
        let mut heights = [0.0, 1.0, 2.0, 100.0, 101.0];
        spread(&mut heights, 0.0, 105.0);
        assert_eq!(heights, [0.0, 15.0, 30.0, 90.0, 105.0]);
        let mut many = vec![50.0; 40];
        spread(&mut many, 0.0, 100.0);
        assert!(many.iter().all(|height| (-1e-9..=100.1).contains(height)), "{many:?}");
    }
}
