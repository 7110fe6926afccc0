//! Figures by the work that was done.

use crate::cases::work;
use crate::figures::quantity;
use crate::record::{Entry, Params};

/// More works than this are too many to look at one by one.
const WORKS: usize = 4;

/// The block that all is about, in bytes.
const HUGE_PAGE: f64 = (2 << 20) as f64;

/// What is said of many works is a curve over one of these, with one of its values for the rest of the page.
pub(crate) const SIZES: [&str; 3] = ["tasks", "block_size", "size"];

/// Entries of one case and metric by work, in their order.
pub(crate) fn works<'a>(entries: &[&'a Entry]) -> Vec<(Params, Vec<&'a Entry>)> {
    group(entries, |entry| work(entry, entries))
}

/// Entries by what `by` says of them, in their order.
pub(crate) fn group<'a>(entries: &[&'a Entry], by: impl Fn(&Entry) -> Params) -> Vec<(Params, Vec<&'a Entry>)> {
    let mut groups: Vec<(Params, Vec<&Entry>)> = Vec::new();
    for entry in entries {
        let key = by(entry);
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, list)) => list.push(entry),
            None => groups.push((key, vec![entry])),
        }
    }
    groups
}

/// Of many works those of a huge page, or else with the largest sizes; of equally large ones the first.
pub(crate) fn principal<T>(works: &mut Vec<(Params, T)>) {
    if works.len() <= WORKS {
        return;
    }
    for name in SIZES {
        let size = |work: &Params| work.get(name).and_then(|value| quantity(value));
        let sizes = || works.iter().filter_map(|(work, _)| size(work));
        let shown = sizes().find(|&size| size == HUGE_PAGE).unwrap_or_else(|| sizes().fold(0.0, f64::max));
        works.retain(|(work, _)| size(work).is_none_or(|size| size == shown));
    }
    works.truncate(WORKS);
}
