//! Charts of curves: latency by percentile, cost by time around a snapshot. Curves over anything else are from a later
//! hugefork, and are left out.

use crate::cases::{chart_title, is_ours, is_rival, labels};
use crate::chart::lines::{self, Axes, Between, Line, Point, Y};
use crate::drawn::{Chart, LINES, tail};
use crate::figures::{figure, phrases, unit};
use crate::record::{Curve, Params};
use crate::works::works;

/// What a curve goes over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CurveAxis {
    Percentile,
    Time,
}

/// Charts of the `curves` of one case, one for each work. `alike` are the parameters that all charts of the case have
/// alike.
pub(crate) fn charts<'a>(case: &str, curves: &[&'a Curve], alike: &Params) -> Vec<Chart<'a>> {
    let mut charts = Vec::new();
    for (over, name) in [(CurveAxis::Percentile, "percentile"), (CurveAxis::Time, "time")] {
        let mut metrics: Vec<&str> = Vec::new();
        let of_kind: Vec<&Curve> = curves.iter().copied().filter(|curve| curve.over == name).collect();
        for curve in &of_kind {
            if !metrics.contains(&curve.metric.as_str()) {
                metrics.push(&curve.metric);
            }
        }
        for metric in metrics {
            let of_metric: Vec<&Curve> = of_kind.iter().copied().filter(|curve| curve.metric == metric).collect();
            charts.extend(works(&of_metric).into_iter().map(|(work, curves)| chart(case, over, &work, alike, curves)));
        }
    }
    charts
}

fn chart<'a>(case: &str, over: CurveAxis, work: &Params, alike: &Params, mut curves: Vec<&'a Curve>) -> Chart<'a> {
    // hugefork's come first, and have the colours; then come the kernel's and libc's.
    curves.sort_by_key(|curve| (!is_ours(&curve.subject), !is_rival(&curve.subject)));
    let names = labels(&curves, |_| ());
    let beyond = outermost(&curves) + 0.5;
    let place = |at: f64| match over {
        CurveAxis::Percentile => by_tail(at, beyond),
        CurveAxis::Time => by_time(at),
    };
    let line = |(curve, name): (&&Curve, &String)| Line {
        label: name.clone(),
        ours: is_ours(&curve.subject),
        points: curve.points.iter().map(|point| drawn(over, curve, name, *point, place(point.0))).collect(),
    };
    let lines: Vec<Line> = curves.iter().zip(&names).take(LINES).map(line).collect();
    let unit = unit(&curves[0].unit);
    let (x, x_title, y_title) = match over {
        CurveAxis::Percentile => (
            percentile_ticks(beyond),
            "part of the writes that take no longer",
            format!("time of a write, {unit}; less is better"),
        ),
        CurveAxis::Time => (
            time_ticks(&curves),
            "ms since the snapshot was asked for",
            format!("time of a write asked for then, {unit}; less is better"),
        ),
    };
    let between = if over == CurveAxis::Time { Between::Steps } else { Between::Straight };
    let drawing = lines::draw(&Axes { x, x_title: x_title.to_owned(), y_title, y: Y::Log, between }, &lines);
    let own = work.iter().filter(|(name, _)| !alike.contains_key(*name));
    let left_out = curves.len() - lines.len();
    Chart {
        kind: if over == CurveAxis::Percentile { "percentiles" } else { "time" },
        title: chart_title(case, &curves[0].metric),
        subtitle: phrases(own),
        work: phrases(work),
        note: (left_out > 0).then(|| "More is in the table.".to_owned()),
        drawing,
        over: Some(if over == CurveAxis::Percentile { "percentile" } else { "time" }.to_owned()),
        entries: Vec::new(),
        curves,
    }
}

fn drawn(over: CurveAxis, curve: &Curve, name: &str, (at, value): (f64, f64), x: f64) -> Point {
    let hint = format!("{name}, {}: {} {}", place_name(over == CurveAxis::Time, at), figure(value), unit(&curve.unit));
    Point { x: Some(x), min: value, median: value, max: value, hint }
}

/// A place in words.
pub(crate) fn place_name(is_time: bool, at: f64) -> String {
    match (is_time, at) {
        (true, 0.0) => "before".to_owned(),
        (true, at) => format!("until {} ms", short(at)),
        (false, 100.0) => "slowest".to_owned(),
        (false, at) => format!("{} %", short(at)),
    }
}

/// A number without digits that say nothing.
fn short(value: f64) -> String {
    format!("{value}")
}

/// How far out the last percentile before the slowest is.
fn outermost(curves: &[&Curve]) -> f64 {
    let places = curves.iter().flat_map(|curve| &curve.points).map(|(at, _)| *at);
    places.filter(|at| *at < 100.0).map(|at| tail(at.max(0.0) / 100.0)).fold(0.0, f64::max)
}

/// The place of a percentile. The slowest write lies `beyond` all of them.
fn by_tail(percent: f64, beyond: f64) -> f64 {
    if percent < 100.0 { tail(percent.max(0.0) / 100.0) } else { beyond }
}

fn percentile_ticks(beyond: f64) -> Vec<(f64, String)> {
    let ticks = [50.0, 90.0, 99.0, 99.9, 99.99, 99.999].map(|percent| (tail(percent / 100.0), format!("{percent} %")));
    let mut ticks: Vec<(f64, String)> = ticks.into_iter().filter(|(place, _)| *place < beyond - 0.3).collect();
    ticks.push((beyond, "slowest".to_owned()));
    ticks
}

/// The place of the time before the snapshot: left of everything since.
const BEFORE: f64 = -2.5;

/// Half of a step. A value holds for a step up to its place, and is drawn in the middle of the step.
const HALF: f64 = 0.05;

fn by_time(ms: f64) -> f64 {
    if ms > 0.0 { (ms.log10() - HALF).max(BEFORE) } else { BEFORE }
}

fn time_ticks(curves: &[&Curve]) -> Vec<(f64, String)> {
    let last = curves.iter().filter_map(|curve| curve.points.last()).map(|(at, _)| by_time(*at)).fold(0.0, f64::max);
    let decades = (-2..=15).take_while(|power| f64::from(*power) <= last + 2.0 * HALF);
    let tick = |power: i32| (f64::from(power), figure_of_ten(power));
    [(BEFORE, "before".to_owned())].into_iter().chain(decades.map(tick)).collect()
}

fn figure_of_ten(power: i32) -> String {
    format!("{:.*}", power.min(0).unsigned_abs() as usize, 10f64.powi(power))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(over: &str, points: &[(f64, f64)]) -> Curve {
        Curve {
            case: "writer-latency".to_owned(),
            subject: "hugefork".to_owned(),
            params: Params::new(),
            metric: "latency".to_owned(),
            unit: "us".to_owned(),
            over: over.to_owned(),
            rounds: 5,
            points: points.to_vec(),
        }
    }

    #[test]
    fn each_kind_gets_a_chart_and_what_is_not_known_none() {
        let list = [
            curve("percentile", &[(50.0, 1.0), (99.0, 2.0), (100.0, 9.0)]),
            curve("time", &[(0.0, 1.0), (0.01, 80.0)]),
            curve("temperature", &[(20.0, 1.0)]),
        ];
        let list: Vec<&Curve> = list.iter().collect();
        let kinds: Vec<&str> = charts("writer-latency", &list, &Params::new()).iter().map(|chart| chart.kind).collect();
        assert_eq!(kinds, ["percentiles", "time"]);
    }

    #[test]
    fn the_slowest_is_beyond_the_last_percentile_and_before_is_left_of_everything() {
        let list = [curve("percentile", &[(50.0, 1.0), (99.9, 2.0), (100.0, 9.0)])];
        let list: Vec<&Curve> = list.iter().collect();
        assert!((outermost(&list) - 3.0).abs() < 1e-9);
        assert!(by_tail(100.0, 3.5) > by_tail(99.9, 3.5));
        assert!(by_time(0.0) < by_time(0.01) && by_time(0.01) < by_time(0.0125));
        let ticks: Vec<String> = percentile_ticks(3.5).into_iter().map(|(_, text)| text).collect();
        assert_eq!(ticks, ["50 %", "90 %", "99 %", "99.9 %", "slowest"]);
    }

    #[test]
    fn places_outside_of_every_axis_are_drawn_all_the_same() {
        for over in ["percentile", "time"] {
            let list = [curve(over, &[(-1e15, -1.0), (0.0, 0.0), (1e-300, 1e15), (1e15, 1.0)])];
            let list: Vec<&Curve> = list.iter().collect();
            assert_eq!(charts("c", &list, &Params::new()).len(), 1);
        }
    }
}
