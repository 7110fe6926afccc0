//! Figures by the work that was done.

use crate::cases::work;
use crate::figures::quantity;
use crate::record::{Measured, Params};

/// More works than this are too many to look at one by one.
const WORKS: usize = 4;

/// Bytes of the block that all is about.
const HUGE_PAGE: f64 = (2 << 20) as f64;

/// Parameters that charts draw lines over. Elsewhere on the page, many works are shown with one value of these.
pub(crate) const SIZES: [&str; 3] = ["tasks", "block_size", "size"];

/// What was measured of one case and metric, by work, in the order of the file.
pub(crate) type Groups<'a, M> = Vec<(Params, Vec<&'a M>)>;

/// Entries of one case and metric by work.
pub(crate) fn works<'a, M: Measured>(entries: &[&'a M]) -> Groups<'a, M> {
    group(entries, |entry| work(entry, entries))
}

/// Entries by what `by` says of them.
pub(crate) fn group<'a, M>(entries: &[&'a M], by: impl Fn(&M) -> Params) -> Groups<'a, M> {
    let mut groups: Groups<M> = Vec::new();
    for entry in entries {
        let key = by(entry);
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, list)) => list.push(entry),
            None => groups.push((key, vec![entry])),
        }
    }
    groups
}

/// Leaves only the largest of several sizes of one work. Of many works it leaves those of a huge page, or else those
/// with the largest sizes; of works with equal sizes it leaves the first ones.
pub(crate) fn principal<T>(works: &mut Vec<(Params, T)>) {
    let without_size = |work: &Params| {
        let mut work = work.clone();
        work.remove("size");
        work
    };
    let one_work = works.windows(2).all(|pair| without_size(&pair[0].0) == without_size(&pair[1].0));
    if works.len() <= WORKS && !one_work {
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
