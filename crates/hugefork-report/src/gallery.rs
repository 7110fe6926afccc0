//! The charts as files, with names and sources.

use std::collections::BTreeSet;

use crate::cases::title;
use crate::chart::Ground;
use crate::chart::style::Scheme;
use crate::charts::charts;
use crate::drawn::Chart;
use crate::machines::{Machine, machines};
use crate::png::{Painter, PictureError};
use crate::record::Record;

/// One chart as files.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Picture {
    /// A file name without its ending: small letters, digits, hyphens and dots, unique in a gallery.
    pub name: String,
    /// As SVG, on white.
    pub svg: String,
    /// As PNG, on white, two pixels a unit.
    pub png: Vec<u8>,
}

/// Every chart of the page as pictures, in the page's order.
///
/// # Errors
/// [`PictureError::NoFont`] if the system has no font.
pub fn pictures(records: &[Record]) -> Result<Vec<Picture>, PictureError> {
    let painter = Painter::new()?;
    let mut names = Names::default();
    let mut pictures = Vec::new();
    for machine in machines(records) {
        for case in charts(&machine) {
            for chart in &case.charts {
                let name = names.of(case.case, chart);
                let svg = chart.standalone(case.case, &machine);
                let png = painter.png(&name, &svg)?;
                pictures.push(Picture { name, svg, png });
            }
        }
    }
    Ok(pictures)
}

impl Chart<'_> {
    /// The chart as a file of its own, with heading and source.
    pub(crate) fn standalone(&self, case: &str, machine: &Machine) -> String {
        let counted = self.entries.iter().map(|entry| entry.samples.len());
        let rounds = counted.chain(self.curves.iter().map(|curve| curve.rounds as usize)).max().unwrap_or(0);
        let version = &machine.records[0].version;
        let span = if self.kind == "heat" || !self.curves.is_empty() { "" } else { ", from the least to the greatest" };
        let source = [machine.name(), format!("hugefork {version}; medians of {rounds} rounds{span}")];
        let title = format!("{}: {}", title(case), self.title);
        self.drawing.standalone([&title, &self.work], &source, Scheme::Light, Ground::Paper)
    }
}

/// File names that were given.
#[derive(Default)]
pub(crate) struct Names(BTreeSet<String>);

impl Names {
    /// A new name for a chart of `case`.
    pub(crate) fn of(&mut self, case: &str, chart: &Chart) -> String {
        let metrics =
            chart.entries.iter().map(|entry| &entry.metric).chain(chart.curves.iter().map(|curve| &curve.metric));
        let metric = metrics.map(String::as_str).next().unwrap_or_default();
        let what = if chart.kind == "percentiles" { "" } else { metric };
        let parts = [case, what, chart.kind, &chart.subtitle].map(slug);
        let stem = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-");
        let mut name = stem.clone();
        for number in 2.. {
            if self.0.insert(name.clone()) {
                break;
            }
            name = format!("{stem}-{number}");
        }
        name
    }
}

/// `text` as part of a file name or address.
pub(crate) fn slug(text: &str) -> String {
    const LONGEST: usize = 60;
    let mut slug = String::new();
    for c in text.chars().take(LONGEST) {
        match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' => slug.push(c.to_ascii_lowercase()),
            '.' if !slug.is_empty() => slug.push('.'),
            _ if slug.is_empty() || slug.ends_with('-') => {}
            _ => slug.push('-'),
        }
    }
    slug.trim_end_matches(['-', '.']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_as_files() {
        assert_eq!(slug("2\u{a0}MiB, whole block used"), "2-mib-whole-block-used");
        assert_eq!(slug("../../etc/passwd"), "etc-passwd");
        assert_eq!(slug("p99.9"), "p99.9");
        assert_eq!(slug("…"), "");
        assert!(slug(&"x".repeat(1000)).len() <= 60);
    }
}
