//! Which charts a case gets.
//!
//! | chart | drawn if |
//! |---|---|
//! | density | the metric that the case is about, or the memory of a history, was measured at three densities or more |
//! | bars | there is a metric; of many works, only those of the largest size; dots if some bars would not be seen |
//! | percentiles | metrics are named `p50`, `p99.9`, `max`, or there is a curve over `percentile` |
//! | time | there is a curve over `time` |
//! | lines | a metric was measured with several tasks, sizes or block sizes |
//! | heat map | kernels were run in several orders |

use crate::cases::{
    aside, chart_title, has_chart, is_by_density, is_ours, is_rival, labels, lead_metric, metric_name, percentile, work,
};
use crate::chart::Drawing;
use crate::chart::bars::{self, Bar, Tone};
use crate::chart::lines::{self, Axes, Between, Line, Point, Y};
use crate::curves;
use crate::drawn::{Chart, LINES, hint, tail};
use crate::figures::{common, counted, figure, phrases, quantity, spaced, unit};
use crate::headline::loses;
use crate::machines::Machine;
use crate::policies;
use crate::record::{Better, Curve, Entry, Params};
use crate::works::{SIZES, group, principal, works};

/// A case with its charts.
pub(crate) struct CaseCharts<'a> {
    pub(crate) case: &'a str,
    /// The parameters that all of it has alike.
    pub(crate) common: String,
    pub(crate) charts: Vec<Chart<'a>>,
    /// Everything that was measured.
    pub(crate) entries: Vec<&'a Entry>,
}

/// In the order of the page.
const KINDS: [&str; 6] = ["density", "bars", "percentiles", "time", "lines", "heat"];

/// Nobody looks at more bars than this.
const BARS: usize = 12;

/// The most single kernels among them.
const KERNELS: usize = 3;

/// What lines go over.
struct Over<'o> {
    /// The parameter.
    name: &'o str,
    kind: &'static str,
    /// What its axis says.
    title: String,
    y: Y,
    /// With fewer places there is no chart.
    fewest: usize,
    /// The most lines.
    most: usize,
}

/// Over the density lines cross, so that no few of them are the best, and every subject has one.
const DENSITY_LINES: usize = 12;

impl Over<'_> {
    fn size(name: &str) -> Over<'_> {
        Over { name, kind: "lines", title: name.replace('_', " "), y: Y::AsFits, fewest: 2, most: LINES }
    }

    /// From a few pages of an area to all of them costs differ as much as densities do.
    fn density() -> Over<'static> {
        let title = "writes a GiB (logarithmic)".to_owned();
        Over { name: "density", kind: "density", title, y: Y::Log, fewest: 3, most: DENSITY_LINES }
    }

    /// A place on the axis in words.
    fn place(&self, value: &str) -> String {
        if self.kind == "density" { counted(value) } else { spaced(value) }
    }
}

/// The cases of `machine`, with their charts.
pub(crate) fn charts<'a>(machine: &Machine<'a>) -> Vec<CaseCharts<'a>> {
    machine.cases().into_iter().map(|case| of_case(machine, case)).collect()
}

fn of_case<'a>(machine: &Machine<'a>, case: &'a str) -> CaseCharts<'a> {
    let entries: Vec<&Entry> = machine.entries.iter().copied().filter(|entry| entry.case == case).collect();
    let curves: Vec<&Curve> = machine.curves.iter().copied().filter(|curve| curve.case == case).collect();
    let lead = lead_metric(case, &entries);
    let mut metrics: Vec<&str> = lead.into_iter().collect();
    for entry in &entries {
        let metric = entry.metric.as_str();
        if has_chart(case, metric) && !metrics.contains(&metric) {
            metrics.push(metric);
        }
    }
    let ranks: Vec<&str> = metrics.iter().copied().filter(|metric| percentile(metric).is_some()).collect();
    // Two percentiles make no distribution.
    let ranks = if ranks.len() > 2 { ranks } else { Vec::new() };
    metrics.retain(|metric| !ranks.contains(metric));
    let shown: Vec<&Entry> = entries
        .iter()
        .copied()
        .filter(|e| metrics.contains(&e.metric.as_str()) || ranks.contains(&e.metric.as_str()))
        .collect();
    let alike = common(shown.iter().map(|entry| &entry.params));
    let context = CaseContext { case, alike: &alike };

    let mut charts = Vec::new();
    for metric in metrics {
        let entries: Vec<&Entry> = entries.iter().copied().filter(|entry| entry.metric == metric).collect();
        charts.extend(context.all_bars(&entries));
        charts.extend(SIZES.iter().flat_map(|size| context.lines(&entries, &Over::size(size))));
        if is_by_density(case, metric, lead) {
            charts.extend(context.lines(&entries, &Over::density()));
        }
        if Some(metric) == lead {
            charts.extend(context.heat_maps(&entries));
        }
    }
    let drawn = curves::charts(case, &curves, &alike);
    // A curve has more percentiles than there are metrics.
    if !ranks.is_empty() && drawn.iter().all(|chart| chart.kind != "percentiles") {
        let entries: Vec<&Entry> =
            entries.iter().copied().filter(|entry| ranks.contains(&entry.metric.as_str())).collect();
        charts.extend(works(&entries).into_iter().map(|(_, entries)| context.percentiles(entries)));
    }
    charts.extend(drawn);
    // Charts of one kind are about as high, and stand beside each other.
    charts.sort_by_key(|chart| KINDS.iter().position(|kind| *kind == chart.kind));
    let common = phrases(alike.iter().filter(|(name, _)| entries.iter().any(|e| work(*e, &shown).contains_key(*name))));
    CaseCharts { case, common, charts, entries }
}

/// What the charts of a case share.
struct CaseContext<'g> {
    case: &'g str,
    alike: &'g Params,
}

impl CaseContext<'_> {
    fn chart<'a>(
        &self,
        kind: &'static str,
        title: String,
        work: &Params,
        drawing: Drawing,
        entries: Vec<&'a Entry>,
    ) -> Chart<'a> {
        let own = work.iter().filter(|(name, _)| !self.alike.contains_key(*name));
        let (subtitle, work) = (phrases(own), phrases(work));
        Chart { kind, title, subtitle, work, note: None, drawing, over: None, entries, curves: Vec::new() }
    }

    fn all_bars<'a>(&self, entries: &[&'a Entry]) -> Vec<Chart<'a>> {
        let mut works = works(entries);
        principal(&mut works);
        works.into_iter().map(|(work, entries)| self.bars(&work, entries)).collect()
    }

    fn bars<'a>(&self, work: &Params, mut entries: Vec<&'a Entry>) -> Chart<'a> {
        entries.sort_by(|a, b| best_first(a, b));
        // hugefork, the kernel and libc are shown, and the best of the single kernels.
        let (mut shown, mut kernels): (Vec<&Entry>, Vec<&Entry>) = entries.iter().partition(|entry| is_plain(entry));
        shown.sort_by_key(|entry| !is_ours(&entry.subject));
        shown.truncate(BARS);
        kernels.truncate(KERNELS);
        shown.extend(kernels);
        shown.sort_by(|a, b| best_first(a, b));
        let tone = |entry: &Entry| match is_ours(&entry.subject) {
            false => Tone::Theirs,
            true if loses(entry, &entries) => Tone::Loss,
            true => Tone::Ours,
        };
        let bar = |(entry, label): (&&Entry, String)| Bar {
            tone: tone(entry),
            min: entry.min(),
            median: entry.median,
            max: entry.max(),
            text: figure(entry.median),
            hint: hint(&label, entry),
            label,
        };
        let drawn: Vec<Bar> = shown.iter().zip(labels(&shown, |_| ())).map(bar).collect();
        let drawing = bars::draw(&drawn, &axis(self.case, entries[0]));
        let title = chart_title(self.case, &entries[0].metric);
        let mut chart = self.chart("bars", title, work, drawing, entries);
        let left_out = chart.entries.len() - shown.len();
        chart.note = (left_out > 0).then(|| format!("The best are shown; {left_out} more are in the table."));
        chart
    }

    /// A chart over a parameter, for each work that is otherwise the same.
    fn lines<'a>(&self, entries: &[&'a Entry], wanted: &Over) -> Vec<Chart<'a>> {
        let over = wanted.name;
        let without = |entry: &Entry| {
            let mut work = work(entry, entries);
            work.remove(over);
            // The number of writes follows from the size and the density.
            if ["size", "density"].contains(&over) {
                work.remove("writes");
            }
            work
        };
        let chart = |(work, mut group): (Params, Vec<&'a Entry>)| {
            // Each file has one size; the sizes of a subject belong together.
            group.sort_by_key(|entry| group_start(entries, entry));
            // What has a word there, as densities of older files, is nowhere on the axis.
            group.retain(|entry| entry.params.get(over).is_none_or(|value| quantity(value).is_some()));
            let place = |entry: &Entry| entry.params.get(over).and_then(|value| quantity(value)).filter(|x| *x > 0.0);
            let mut places: Vec<(f64, String)> = group
                .iter()
                .filter_map(|entry| Some((place(entry)?.log2(), wanted.place(&entry.params[over]))))
                .collect();
            places.sort_by(|(a, _), (b, _)| a.total_cmp(b));
            places.dedup_by(|(a, _), (b, _)| a == b);
            let drawn = drawable(&group, over, place);
            if drawn.is_empty() || places.len() < wanted.fewest {
                return None;
            }
            let names = labels(&drawn, |entry| entry.params.get(over).cloned());
            let mut lines = collect_lines(&drawn, &names, |entry| place(entry).map(f64::log2));
            lines.truncate(wanted.most);
            let left_out = group.len() - lines.iter().map(|line| line.points.len()).sum::<usize>();
            let name = over.replace('_', " ");
            let axes = Axes {
                x: places,
                x_title: wanted.title.clone(),
                y_title: axis(self.case, group[0]),
                y: wanted.y,
                between: Between::Straight,
            };
            let title = format!("{}, by {name}", chart_title(self.case, &group[0].metric));
            let mut chart = self.chart(wanted.kind, title, &work, lines::draw(&axes, &lines), group);
            chart.over = Some(over.to_owned());
            chart.note = (left_out > 0).then(|| "More is in the table.".to_owned());
            Some(chart)
        };
        let mut groups = group(entries, without);
        if over == "size" {
            principal(&mut groups);
        }
        groups.into_iter().filter_map(chart).collect()
    }

    fn percentiles<'a>(&self, entries: Vec<&'a Entry>) -> Chart<'a> {
        let mut ranks: Vec<(f64, &str)> = Vec::new();
        for entry in &entries {
            if let Some(part) = percentile(&entry.metric).filter(|_| ranks.iter().all(|(_, m)| *m != entry.metric)) {
                ranks.push((part, &entry.metric));
            }
        }
        ranks.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        // The slowest write lies beyond every percentile, and gets the next place.
        let beyond = ranks.iter().filter(|(part, _)| *part < 1.0).map(|(part, _)| tail(*part)).fold(0.0, f64::max);
        let place = |part: f64| if part < 1.0 { tail(part) } else { beyond + 1.0 };
        let names = labels(&entries, |entry| entry.metric.clone());
        let mut lines = collect_lines(&entries, &names, |entry| percentile(&entry.metric).map(place));
        lines.truncate(LINES);
        let axes = Axes {
            x: ranks.iter().map(|(part, metric)| (place(*part), (*metric).to_owned())).collect(),
            x_title: "percentile".to_owned(),
            y_title: format!("latency, {}; less is better", unit(&entries[0].unit)),
            y: Y::Log,
            between: Between::Straight,
        };
        let work = work(entries[0], &entries);
        let drawing = lines::draw(&axes, &lines);
        let mut chart = self.chart("percentiles", chart_title(self.case, "latency"), &work, drawing, entries);
        chart.over = Some("metric".to_owned());
        chart
    }

    fn heat_maps<'a>(&self, entries: &[&'a Entry]) -> Vec<Chart<'a>> {
        let map = |(work, entries): (Params, Vec<&'a Entry>)| {
            let drawing = policies::draw(&entries, &axis(self.case, entries[0]))?;
            Some(self.chart("heat", "By order, window and primitive".to_owned(), &work, drawing, entries))
        };
        works(entries).into_iter().filter_map(map).collect()
    }
}

/// Those of `group` that make lines over the parameter `over`, or have no such parameter and are the same everywhere.
/// Nothing if hugefork is there and makes no line. Single kernels stay out, since there are scores of them.
fn drawable<'a>(group: &[&'a Entry], over: &str, place: impl Fn(&Entry) -> Option<f64>) -> Vec<&'a Entry> {
    let plain: Vec<&Entry> = group.iter().copied().filter(|entry| is_plain(entry)).collect();
    let names = labels(&plain, |entry| entry.params.get(over).cloned());
    let lines = collect_lines(&plain, &names, &place);
    let line = |name: &String| lines.iter().find(|line| line.label == *name);
    let about_ours = plain.iter().any(|entry| is_ours(&entry.subject));
    if !lines.iter().any(|line| line.points.len() > 1 && (line.ours || !about_ours)) {
        return Vec::new();
    }
    // One point is no line, unless it is the same everywhere.
    let makes_line = |name| line(name).is_some_and(|line| line.points.len() > 1 || line.points[0].x.is_none());
    plain.into_iter().zip(&names).filter(|(_, name)| makes_line(name)).map(|(entry, _)| entry).collect()
}

/// Lines by name: hugefork's first, then the kernel's and libc's, of which those that stand aside come last, then the
/// others.
fn collect_lines(entries: &[&Entry], names: &[String], place: impl Fn(&Entry) -> Option<f64>) -> Vec<Line> {
    let mut lines: Vec<((bool, bool), Line)> = Vec::new();
    for (entry, name) in entries.iter().zip(names) {
        let point = Point {
            x: place(entry),
            min: entry.min(),
            median: entry.median,
            max: entry.max(),
            hint: hint(name, entry),
        };
        match lines.iter_mut().find(|(_, line)| line.label == *name) {
            Some((_, line)) => line.points.push(point),
            None => {
                let line = Line { label: name.clone(), ours: is_ours(&entry.subject), points: vec![point] };
                lines.push(((!is_rival(&entry.subject), aside(&entry.case, &entry.subject).is_some()), line));
            }
        }
    }
    lines.sort_by_key(|(others, line)| (!line.ours, *others));
    let mut lines: Vec<Line> = lines.into_iter().map(|(_, line)| line).collect();
    for line in &mut lines {
        line.points.sort_by(|a, b| a.x.unwrap_or(f64::MIN).total_cmp(&b.x.unwrap_or(f64::MIN)));
        line.points.dedup_by(|a, b| a.x == b.x);
    }
    lines
}

/// Where the first entry of the same subject is.
fn group_start(entries: &[&Entry], entry: &Entry) -> Option<usize> {
    entries.iter().position(|other| other.subject == entry.subject)
}

/// Whether it is not a single kernel of `clear` or `copy`: there are scores of those.
fn is_plain(entry: &Entry) -> bool {
    is_ours(&entry.subject) || is_rival(&entry.subject)
}

fn best_first(a: &Entry, b: &Entry) -> std::cmp::Ordering {
    match a.better() {
        Better::Lower => a.median.total_cmp(&b.median),
        Better::Higher => b.median.total_cmp(&a.median),
    }
}

/// The title of an axis.
fn axis(case: &str, entry: &Entry) -> String {
    let better = match entry.better() {
        Better::Lower => "less is better",
        Better::Higher => "more is better",
    };
    let name = metric_name(case, &entry.metric);
    match unit(&entry.unit) {
        unit if unit.is_empty() || unit == name => format!("{name}; {better}"),
        unit => format!("{name}, {unit}; {better}"),
    }
}
