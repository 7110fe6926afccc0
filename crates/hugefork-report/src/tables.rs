//! The tables of the page: what each chart is drawn from, and everything of each case.

use askama::Template;

use crate::cases::{labels, work};
use crate::curves::place_name;
use crate::drawn::Chart;
use crate::figures::{common, figure, spaced, unit, with_unit};
use crate::headline::headlines;
use crate::machines::Machine;
use crate::record::{Curve, Entry, Params};

/// A table, which displays as HTML.
#[derive(Template)]
#[template(path = "table.html")]
pub(crate) struct Table {
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

/// The head of a column.
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) number: bool,
}

/// One cell.
pub(crate) struct Cell {
    pub(crate) text: String,
    /// The figure in full, if it is one.
    pub(crate) value: Option<f64>,
}

impl Cell {
    fn text(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), value: None }
    }

    fn count(count: usize) -> Cell {
        Cell { text: count.to_string(), value: Some(count as f64) }
    }

    fn figure(value: f64) -> Cell {
        Cell { text: figure(value), value: Some(value) }
    }
}

fn word(name: &str) -> Column {
    Column { name: name.to_owned(), number: false }
}

fn number(name: impl Into<String>) -> Column {
    Column { name: name.into(), number: true }
}

/// What a chart is drawn from: a row for each entry, named as in the chart.
pub(crate) fn of_chart(chart: &Chart) -> Table {
    if !chart.curves.is_empty() {
        return of_curves(chart);
    }
    let unit = chart.entries.first().map_or("", |entry| unit(&entry.unit));
    let place = |entry: &Entry| match chart.over.as_deref() {
        Some("metric") => Some(entry.metric.clone()),
        Some(over) => Some(entry.params.get(over).map_or_else(String::new, |value| spaced(value))),
        None => None,
    };
    let mut columns = vec![word("subject")];
    columns.extend(chart.over.as_deref().map(|over| word(&over.replace('_', " "))));
    columns.extend([number(format!("median {unit}").trim_end()), number("min"), number("max"), number("n")]);
    let row = |(entry, name): (&&Entry, String)| {
        let mut row = vec![Cell::text(name)];
        row.extend(place(entry).map(Cell::text));
        row.extend([entry.median, entry.min(), entry.max()].map(Cell::figure));
        row.push(Cell::count(entry.samples.len()));
        row
    };
    let names = labels(&chart.entries, |entry| place(entry));
    Table { columns, rows: chart.entries.iter().zip(names).map(row).collect() }
}

/// What a chart of curves is drawn from: a row for each place, a column for each curve.
fn of_curves(chart: &Chart) -> Table {
    let over = chart.over.as_deref().unwrap_or_default();
    let of = unit(&chart.curves[0].unit);
    let mut columns = vec![word(over)];
    let names = labels(&chart.curves, |_| ());
    columns.extend(names.into_iter().map(|name| number(format!("{name} {of}").trim_end())));
    let mut places: Vec<f64> = chart.curves.iter().flat_map(|curve| &curve.points).map(|(at, _)| *at).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let value = |curve: &&Curve, place: f64| {
        let found = curve.points.iter().find(|(at, _)| *at == place);
        found.map_or_else(|| Cell::text(""), |(_, value)| Cell::figure(*value))
    };
    let row = |place: f64| {
        let name = Cell::text(place_name(over == "time", place));
        [name].into_iter().chain(chart.curves.iter().map(|curve| value(curve, place))).collect()
    };
    Table { columns, rows: places.into_iter().map(row).collect() }
}

/// Everything of a case: a row for each subject, a column for each metric.
pub(crate) fn everything(entries: &[&Entry]) -> Table {
    let params = Parameters::of(entries);
    let mut metrics: Vec<(&str, &str)> = Vec::new();
    let mut rows: Vec<((&str, &Params), Vec<&Entry>)> = Vec::new();
    for entry in entries {
        let metric = (entry.metric.as_str(), entry.unit.as_str());
        if !metrics.contains(&metric) {
            metrics.push(metric);
        }
        let who = (entry.subject.as_str(), &entry.params);
        // In files of the bench, a subject's metrics follow each other, so that looking at the last row is enough.
        match rows.last_mut().filter(|(known, _)| *known == who) {
            Some((_, row)) => row.push(entry),
            None => rows.push((who, vec![entry])),
        }
    }
    let mut columns = vec![word("subject")];
    columns.extend(params.columns());
    columns.extend(metrics.iter().map(|(metric, of)| number(with_unit(metric, unit(of)))));
    let row = |((subject, _), row): ((&str, &Params), Vec<&Entry>)| {
        let mut cells = vec![Cell::text(subject)];
        cells.extend(params.cells(row[0]));
        cells.extend(metrics.iter().map(|metric| {
            let found = row.iter().find(|entry| (entry.metric.as_str(), entry.unit.as_str()) == *metric);
            found.map_or_else(|| Cell::text(""), |entry| Cell::figure(entry.median))
        }));
        cells
    };
    Table { columns, rows: rows.into_iter().map(row).collect() }
}

/// Ratios that several machines have, side by side; nothing if there are none.
pub(crate) fn overview(machines: &[Machine]) -> Option<Table> {
    let mut rows: Vec<(Vec<String>, Vec<Option<f64>>)> = Vec::new();
    for (index, machine) in machines.iter().enumerate() {
        for line in headlines(machine) {
            let Some(best) = line.best() else {
                continue;
            };
            let what = vec![line.case.to_owned(), format!("{}, {}", line.metric, line.work), line.ours_label.clone()];
            let row = match rows.iter().position(|(known, _)| *known == what) {
                Some(row) => row,
                None => {
                    rows.push((what, vec![None; machines.len()]));
                    rows.len() - 1
                }
            };
            rows[row].1[index] = Some(best.ratio);
        }
    }
    rows.retain(|(_, ratios)| ratios.iter().flatten().count() > 1);
    let mut columns = vec![word("case"), word("work"), word("hugefork")];
    columns.extend((1..=machines.len()).map(|index| number(format!("{index}."))));
    let row = |(what, ratios): (Vec<String>, Vec<Option<f64>>)| {
        let ratio = |ratio: Option<f64>| ratio.map_or_else(|| Cell::text(""), Cell::figure);
        what.into_iter().map(Cell::text).chain(ratios.into_iter().map(ratio)).collect()
    };
    (!rows.is_empty()).then(|| Table { columns, rows: rows.into_iter().map(row).collect() })
}

/// The parameters that differ, with a column for each.
struct Parameters(Vec<String>);

impl Parameters {
    fn of(entries: &[&Entry]) -> Parameters {
        let alike = common(entries.iter().map(|entry| &entry.params));
        let mut names: Vec<String> = Vec::new();
        for name in entries.iter().flat_map(|entry| entry.params.keys()).filter(|name| !alike.contains_key(*name)) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        // What was done comes before how.
        names.sort_by_key(|name| !entries.iter().any(|entry| work(*entry, entries).contains_key(name)));
        Parameters(names)
    }

    fn columns(&self) -> impl Iterator<Item = Column> {
        self.0.iter().map(|name| word(&name.replace('_', " ")))
    }

    fn cells(&self, entry: &Entry) -> impl Iterator<Item = Cell> {
        self.0.iter().map(|name| Cell::text(entry.params.get(name).map_or_else(String::new, |value| spaced(value))))
    }
}
