//! Two results side by side, of two machines, kernels or builds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};

use crate::cases::{HOW, is_ours};
use crate::figures::{figure, phrases, unit, with_unit};
use crate::record::{Entry, Record};

/// Two results. It displays as a table.
pub struct Comparison<'a> {
    /// The first result.
    pub a: &'a Record,
    /// The second.
    pub b: &'a Record,
    /// The figures that both have: first those that differ beyond their spread, the largest difference first, then the
    /// others in the order of `a`.
    pub rows: Vec<Row<'a>>,
    /// Figures that only `a` has.
    pub only_a: Vec<&'a Entry>,
    /// Figures that only `b` has.
    pub only_b: Vec<&'a Entry>,
}

/// One figure of both results.
pub struct Row<'a> {
    /// The figure in the first result.
    pub a: &'a Entry,
    /// The figure in the second.
    pub b: &'a Entry,
    /// `b` / `a`; none unless both are positive.
    pub ratio: Option<f64>,
    /// The verdict for a change from `a` to `b`; none unless all samples of one are better than all of the other.
    pub verdict: Option<Verdict>,
}

/// A difference beyond the spread of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// `b` is better than `a`.
    Better,
    /// `b` is worse than `a`.
    Worse,
}

/// Puts `b` beside `a`. Two entries are the same figure if case, subject, metric, unit and all parameters are the
/// same. hugefork's entries also match where only its own choice differs, such as the kernel after calibration, if
/// each result has one such entry.
pub fn compare<'a>(a: &'a Record, b: &'a Record) -> Comparison<'a> {
    let (mut only_a, mut only_b, mut pairs) = (once(a), once(b), BTreeMap::new());
    let place: BTreeMap<_, usize> = only_a.iter().enumerate().map(|(place, entry)| (entry.key(), place)).collect();
    for exact in [true, false] {
        let theirs = single(&only_b, exact);
        let ours = single(&only_a, exact);
        for (key, entry) in &ours {
            if let Some(other) = theirs.get(key) {
                pairs.insert(place[&entry.key()], row(entry, other));
            }
        }
        let paired =
            |entry: &Entry, of: fn(&Row) -> *const Entry| pairs.values().any(|row| std::ptr::eq(of(row), entry));
        only_a.retain(|entry| !paired(entry, |row| row.a));
        only_b.retain(|entry| !paired(entry, |row| row.b));
    }
    let mut rows: Vec<Row> = pairs.into_values().collect();
    let difference = |row: &Row| row.verdict.and(row.ratio).map_or(0.0, |ratio| ratio.ln().abs());
    rows.sort_by(|a, b| difference(b).total_cmp(&difference(a)));
    Comparison { a, b, rows, only_a, only_b }
}

/// The entries of `record`, each once.
fn once(record: &Record) -> Vec<&Entry> {
    let mut seen = BTreeSet::new();
    record.entries.iter().filter(|entry| seen.insert(entry.key())).collect()
}

/// The entries whose key no other entry has. Unless the key is `exact`, it leaves out hugefork's own choices.
fn single<'a>(entries: &[&'a Entry], exact: bool) -> BTreeMap<Vec<&'a str>, &'a Entry> {
    let mut found: BTreeMap<Vec<&str>, Vec<&Entry>> = BTreeMap::new();
    for entry in entries {
        let mut key: Vec<&str> = vec![&entry.case, &entry.subject, &entry.metric, &entry.unit];
        let is_part = |name: &str| exact || !is_ours(&entry.subject) || !HOW.contains(&name);
        key.extend(
            entry.params.iter().filter(|(name, _)| is_part(name)).flat_map(|(name, value)| [name.as_str(), value]),
        );
        found.entry(key).or_default().push(entry);
    }
    found.into_iter().filter_map(|(key, list)| (list.len() == 1).then(|| (key, list[0]))).collect()
}

fn row<'a>(a: &'a Entry, b: &'a Entry) -> Row<'a> {
    let verdict = match (a.times_worse_than(b), b.times_worse_than(a)) {
        (_, Some((_, true))) => Some(Verdict::Worse),
        (Some((_, true)), _) => Some(Verdict::Better),
        _ => None,
    };
    Row { a, b, ratio: (a.median > 0.0 && b.median > 0.0).then(|| b.median / a.median), verdict }
}

impl<'a> Comparison<'a> {
    /// The rows that are worse in `b` by more than `percent` of `a`, even if the best sample of `b` is put beside the
    /// worst of `a`. A time that doubles is worse by 100 %, a rate that halves by 50 %.
    pub fn worse_by_more_than(&self, percent: f64) -> Vec<&Row<'a>> {
        self.rows
            .iter()
            .filter(|row| row.verdict == Some(Verdict::Worse) && row.least_loss() > percent / 100.0)
            .collect()
    }
}

impl Row<'_> {
    fn least_loss(&self) -> f64 {
        let (a, b) = (self.a, self.b);
        match a.better() {
            crate::record::Better::Lower => b.min() / a.max() - 1.0,
            crate::record::Better::Higher => 1.0 - b.max() / a.min(),
        }
    }
}

impl fmt::Display for Comparison<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (letter, record) in [("A", self.a), ("B", self.b)] {
            writeln!(f, "{letter}: {}  hugefork {}  {}", record.name, record.version, record.host.name())?;
        }
        if self.rows.is_empty() {
            writeln!(f, "\nnothing in common: give results of the same cases and sizes")?;
        } else {
            writeln!(f, "\n{}", self.table())?;
            let beyond = self.rows.iter().filter(|row| row.verdict.is_some()).count();
            writeln!(f, "\n{beyond} of {} figures differ beyond the spread of their samples", self.rows.len())?;
        }
        for (letter, list) in [("A", &self.only_a), ("B", &self.only_b)] {
            let names: BTreeSet<String> =
                list.iter().map(|entry| format!("{} {}", entry.case, entry.subject)).collect();
            if !names.is_empty() {
                let names = names.into_iter().collect::<Vec<_>>().join(", ");
                writeln!(f, "only in {letter}: {} figures of {names}", list.len())?;
            }
        }
        Ok(())
    }
}

impl Comparison<'_> {
    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN).set_header(["subject", "case", "work", "metric", "A", "B", "B/A", ""]);
        for row in &self.rows {
            let mut work = row.a.params.clone();
            work.retain(|name, value| !HOW.contains(&name.as_str()) || row.b.params.get(name) != Some(value));
            for (name, value) in &mut work {
                if let Some(other) = row.b.params.get(name).filter(|other| *other != value) {
                    *value = format!("{value} -> {other}");
                }
            }
            let verdict = match row.verdict {
                Some(Verdict::Better) => "better",
                Some(Verdict::Worse) => "worse",
                None => "",
            };
            table.add_row([
                row.a.subject.clone(),
                row.a.case.clone(),
                phrases(&work),
                with_unit(&row.a.metric, unit(&row.a.unit)),
                figure(row.a.median),
                figure(row.b.median),
                row.ratio.map_or_else(String::new, |ratio| format!("{}x", figure(ratio))),
                verdict.to_owned(),
            ]);
        }
        for column in 4..7 {
            table.column_mut(column).expect("there are eight").set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}
