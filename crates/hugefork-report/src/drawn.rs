//! One chart with what it is drawn from, and what charts of all kinds share.

use crate::chart::Drawing;
use crate::figures::{figure, unit};
use crate::record::{Curve, Entry};

/// The most lines that can be told apart.
pub(crate) const LINES: usize = 7;

/// One chart of a case.
pub(crate) struct Chart<'a> {
    /// `density`, `bars`, `lines`, `percentiles`, `time` or `heat`.
    pub(crate) kind: &'static str,
    /// What is drawn.
    pub(crate) title: String,
    /// The work, as far as it differs between the case's charts.
    pub(crate) subtitle: String,
    /// All of the work.
    pub(crate) work: String,
    /// What the chart leaves out.
    pub(crate) note: Option<String>,
    pub(crate) drawing: Drawing,
    /// The parameter that lines go over, or `metric`.
    pub(crate) over: Option<String>,
    /// What it is drawn from, if it is drawn from entries.
    pub(crate) entries: Vec<&'a Entry>,
    /// What it is drawn from, if it is drawn from curves.
    pub(crate) curves: Vec<&'a Curve>,
}

/// How far out a percentile is: 1 for nine of ten, 2 for 99 of 100.
pub(crate) fn tail(part: f64) -> f64 {
    -(1.0 - part).log10()
}

/// What is said of a point under the pointer: all that is known of it.
pub(crate) fn hint(label: &str, entry: &Entry) -> String {
    let unit = unit(&entry.unit);
    let (median, min, max) = (figure(entry.median), figure(entry.min()), figure(entry.max()));
    format!("{label}: {} {median} {unit} ({min} … {max}, {} samples)", entry.metric, entry.samples.len())
}
