//! The heat map of `clear` and `copy`: what each primitive costs in each order, with each window.

use crate::chart::Drawing;
use crate::chart::heat::{self, HeatCell, HeatRow, Map};
use crate::drawn::hint;
use crate::figures::{quantity, spaced};
use crate::record::{Entry, Params};

/// Fewer rows or columns than this make no map.
const FEWEST: usize = 3;

/// Where a kernel is in the map.
#[derive(Clone, PartialEq)]
struct Policy {
    order: String,
    /// In bytes, for the order of the rows, and in words.
    window: Option<(f64, String)>,
    primitive: String,
}

/// Draws the kernels among `entries`, which are of one work; none if they make no map.
pub(crate) fn draw(entries: &[&Entry], title: &str) -> Option<Drawing> {
    let kernels: Vec<(Policy, &Entry)> = entries
        .iter()
        .filter_map(|entry| Some((policy(&entry.params)?, *entry)))
        .filter(|(p, e)| names(e, p))
        .collect();
    let mut rows: Vec<&Policy> = Vec::new();
    let mut columns: Vec<&str> = Vec::new();
    for (policy, _) in &kernels {
        if !rows.iter().any(|known| same_row(known, policy)) {
            rows.push(policy);
        }
        if !columns.contains(&policy.primitive.as_str()) {
            columns.push(&policy.primitive);
        }
    }
    if rows.len() < FEWEST || columns.len() < FEWEST || kernels.len() * 2 < rows.len() * columns.len() {
        return None;
    }
    rows.sort_by(|a, b| {
        let bytes = |policy: &Policy| policy.window.as_ref().map_or(0.0, |(bytes, _)| *bytes);
        let order = |policy: &Policy| ORDERS.iter().position(|known| *known == policy.order).unwrap_or(ORDERS.len());
        order(a).cmp(&order(b)).then_with(|| a.order.cmp(&b.order)).then(bytes(a).total_cmp(&bytes(b)))
    });
    // The kernel that hugefork runs, by the same parameters.
    let chosen = entries.iter().find(|entry| entry.subject == "hugefork").and_then(|entry| policy(&entry.params));
    let cell = |row: &Policy, column: &str| {
        let (policy, entry) = kernels.iter().find(|(p, _)| same_row(p, row) && p.primitive == column)?;
        Some(HeatCell {
            median: entry.median,
            chosen: chosen.as_ref() == Some(policy),
            hint: hint(&entry.subject, entry),
        })
    };
    let row =
        |row: &&Policy| HeatRow { label: label(row), cells: columns.iter().map(|column| cell(row, column)).collect() };
    let map = Map {
        rows: rows.iter().map(row).collect(),
        columns: columns.iter().map(|column| (*column).to_owned()).collect(),
        title: title.to_owned(),
    };
    Some(heat::draw(&map))
}

/// The orders as rows, from Linux's to hugefork's.
const ORDERS: [&str; 4] = ["target-last", "straight", "neighbourhood-last", "hybrid"];

fn policy(params: &Params) -> Option<Policy> {
    let window = params.get("window").map(|window| (quantity(window).unwrap_or(0.0), spaced(window)));
    Some(Policy { order: params.get("order")?.clone(), window, primitive: params.get("kernel")?.clone() })
}

/// Whether the subject is this kernel by name, and not hugefork, which runs it.
fn names(entry: &Entry, policy: &Policy) -> bool {
    let rest = entry.subject.strip_prefix(&format!("{}/{}", policy.order, policy.primitive));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', '@']))
}

fn same_row(a: &Policy, b: &Policy) -> bool {
    a.order == b.order && a.window == b.window
}

fn label(policy: &Policy) -> String {
    match &policy.window {
        Some((_, window)) => format!("{} {window}", policy.order),
        None => policy.order.clone(),
    }
}
