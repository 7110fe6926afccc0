//! Tables of figures: one of each case, and one of everything. The page shows them as HTML, the documents as Markdown.

use std::fmt::Write;

use crate::cases::{CASES, Case};
use crate::figures::{figure, phrases, spaced, unit, with_unit};
use crate::record::{Entry, Params};
use crate::work::{columns, constants, pick};

/// A table of text.
pub(crate) struct Table {
    /// The head of each column, and whether the column holds numbers.
    pub(crate) head: Vec<(String, bool)>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// The figures of one case.
pub(crate) struct Section<'a> {
    pub(crate) name: &'a str,
    pub(crate) title: &'a str,
    /// The work, and the parameters that all figures have.
    pub(crate) work: String,
    pub(crate) entries: Vec<&'a Entry>,
    pub(crate) table: Table,
}

/// A section for each case among `entries`: first the cases of this hugefork, in their order, then all others.
pub(crate) fn sections<'a>(entries: &[&'a Entry]) -> Vec<Section<'a>> {
    let mut names: Vec<&str> = CASES.iter().map(|case| case.name).collect();
    for entry in entries {
        if !names.contains(&entry.case.as_str()) {
            names.push(&entry.case);
        }
    }
    let section = |name| {
        let of_case: Vec<&Entry> = entries.iter().copied().filter(|entry| entry.case == name).collect();
        (!of_case.is_empty()).then(|| section(name, of_case))
    };
    names.into_iter().filter_map(section).collect()
}

fn section<'a>(name: &'a str, entries: Vec<&'a Entry>) -> Section<'a> {
    let case: Option<&Case> = CASES.iter().find(|case| case.name == name);
    let listed = |entry: &&Entry| case.is_some_and(|case| case.metrics.contains(&entry.metric.as_str()));
    // A case of another version may have none of the metrics.
    let shown: Vec<&Entry> = match entries.iter().copied().filter(listed).collect::<Vec<_>>() {
        none if none.is_empty() => entries.clone(),
        some => some,
    };
    let alike = phrases(&constants(&shown));
    let alike = if alike.is_empty() { alike } else { format!("All figures: {alike}.") };
    let work = format!("{} {alike}", case.map_or("", |case| case.work)).trim().to_owned();
    let mut table = by_metric(&shown);
    if let Some(case) = case {
        table.sort_metrics(case.metrics);
    }
    Section { name, title: case.map_or(name, |case| case.title), work, entries, table }
}

/// A row for each subject and work, a column for each metric, with medians.
fn by_metric(entries: &[&Entry]) -> Table {
    let params = columns(entries);
    let mut metrics: Vec<(&str, &str)> = Vec::new();
    let mut rows: Vec<((Params, &str), Vec<&Entry>)> = Vec::new();
    for entry in entries {
        let metric = (entry.metric.as_str(), entry.unit.as_str());
        if !metrics.contains(&metric) {
            metrics.push(metric);
        }
        let key = (pick(entry, &params), entry.subject.as_str());
        match rows.iter_mut().rev().find(|(known, _)| *known == key) {
            Some((_, row)) => row.push(entry),
            None => rows.push((key, vec![entry])),
        }
    }
    let mut head: Vec<(String, bool)> = params.iter().map(|name| (name.replace('_', " "), false)).collect();
    head.push(("subject".to_owned(), false));
    head.extend(metrics.iter().map(|(metric, of)| (with_unit(metric, unit(of)), true)));
    let row = |((work, subject), row): ((Params, &str), Vec<&Entry>)| {
        let mut cells: Vec<String> =
            params.iter().map(|name| work.get(name).map_or_else(String::new, |value| spaced(value))).collect();
        cells.push(subject.to_owned());
        cells.extend(metrics.iter().map(|metric| {
            let found = row.iter().find(|entry| (entry.metric.as_str(), entry.unit.as_str()) == *metric);
            found.map_or_else(String::new, |entry| figure(entry.median))
        }));
        cells
    };
    Table { head, rows: rows.into_iter().map(row).collect() }
}

/// All figures with their spread.
pub(crate) fn everything(entries: &[&Entry]) -> Table {
    let words = ["case", "subject", "work", "metric"].map(|name| (name.to_owned(), false));
    let numbers = ["median", "min", "max", "rounds"].map(|name| (name.to_owned(), true));
    let row = |entry: &&Entry| {
        let metric = with_unit(&entry.metric, unit(&entry.unit));
        let mut row = vec![entry.case.clone(), entry.subject.clone(), phrases(&entry.params), metric];
        row.extend([entry.median, entry.min(), entry.max()].map(figure));
        row.push(entry.samples.len().to_string());
        row
    };
    Table { head: words.into_iter().chain(numbers).collect(), rows: entries.iter().map(row).collect() }
}

impl Table {
    /// Puts the columns of `metrics` into this order. Words stay in front.
    fn sort_metrics(&mut self, metrics: &[&str]) {
        let place = |(name, number): &(String, bool)| {
            let is_of = |metric: &&str| {
                let metric = metric.replace('_', " ");
                *name == metric || name.starts_with(&format!("{metric} "))
            };
            if *number { metrics.iter().position(is_of).map_or(usize::MAX, |place| place + 1) } else { 0 }
        };
        let mut order: Vec<usize> = (0..self.head.len()).collect();
        order.sort_by_key(|column| place(&self.head[*column]));
        self.head = order.iter().map(|column| self.head[*column].clone()).collect();
        for row in &mut self.rows {
            *row = order.iter().map(|column| std::mem::take(&mut row[*column])).collect();
        }
    }

    /// The table as Markdown.
    pub(crate) fn to_markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut text = line(self.head.iter().map(|(name, _)| escaped(name)).collect());
        text.extend(self.head.iter().map(|(_, number)| if *number { "|---:" } else { "|---" }));
        text += "|\n";
        for row in &self.rows {
            let _ = write!(text, "{}", line(row.iter().map(|cell| escaped(cell)).collect()));
        }
        text
    }
}

/// `text` without a meaning in Markdown or HTML.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::new();
    for c in text.chars() {
        if matches!(c, '|' | '*' | '_' | '`' | '[' | ']' | '<' | '>' | '\\' | '&' | '#') {
            safe.push('\\');
        }
        safe.push(c);
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::parse;
    use crate::record::Record;

    fn record(results: &[serde_json::Value]) -> Record {
        parse("x", serde_json::json!({"schema": 1, "results": results}).to_string().as_bytes()).unwrap()
    }

    fn result(case: &str, subject: &str, written: &str, metric: &str, median: f64) -> serde_json::Value {
        serde_json::json!({"case": case, "subject": subject, "params": {"size": "1GiB", "written": written},
            "metric": metric, "unit": "us", "median": median})
    }

    #[test]
    fn a_case_has_its_metrics_in_order_and_a_row_for_each_subject_and_work() {
        let list = [
            result("reset", "hugefork", "10", "cpu", 1.0),
            result("reset", "hugefork", "10", "reset", 2.0),
            result("reset", "hugefork", "10", "faults", 3.0),
            result("reset", "memfd-private", "10", "reset", 4.0),
            result("reset", "hugefork", "44", "reset", 5.0),
        ];
        let record = record(&list);
        let sections = sections(&record.entries.iter().collect::<Vec<_>>());
        let text = sections[0].table.to_markdown();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "| written | subject | reset µs | cpu µs |");
        assert_eq!(lines[2], "| 10 | hugefork | 2.00 | 1.00 |");
        assert_eq!(lines[3], "| 10 | memfd-private | 4.00 |  |");
        assert_eq!(lines.len(), 5);
        assert!(sections[0].work.ends_with(" 1 GiB."), "{}", sections[0].work);
    }

    #[test]
    fn a_case_of_another_version_has_a_section_with_all_its_metrics() {
        let record = record(&[
            result("defragment", "hugefork", "10", "moves", 1.0),
            result("snapshot", "hugefork", "10", "pause", 2.0),
        ]);
        let entries: Vec<&Entry> = record.entries.iter().collect();
        let found: Vec<_> = sections(&entries).iter().map(|s| (s.name.to_owned(), s.table.head[1].0.clone())).collect();
        assert_eq!(found, [("snapshot", "pause µs"), ("defragment", "moves µs")].map(|(a, b)| (a.into(), b.into())));
        assert_eq!(everything(&entries).rows.len(), 2);
    }

    #[test]
    fn no_text_has_a_meaning_in_markdown() {
        assert_eq!(escaped("a|b*<i>"), r"a\|b\*\<i\>");
    }
}
