//! Figures by the work that was done.

use std::cmp::Ordering;

use crate::cases::work;
use crate::figures::quantity;
use crate::record::{Measured, Params};

/// More works than this are too many to look at one by one.
const WORKS: usize = 4;

/// Bytes of the block that all is about.
const HUGE_PAGE: f64 = (2 << 20) as f64;

/// Parameters that charts draw lines over. Elsewhere on the page, many works are shown with one value of these.
pub(crate) const SIZES: [&str; 3] = ["tasks", "block_size", "size"];

/// Writes to 1 GiB that tell most of a case with many densities: a few pages; a few in nearly every block; a good part
/// of each block; most pages.
const DENSITIES: [f64; 4] = [10.0, 5e3, 5e4, 5e5];

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
/// with the largest sizes; of works with equal sizes those with the densities that tell most, if there are such; and of
/// these the first ones, those after the first snapshot before the others.
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
    let number = |work: &Params, name: &str| work.get(name).and_then(|value| quantity(value));
    let is_telling = |work: &Params| number(work, "density").is_none_or(|density| DENSITIES.contains(&density));
    if works.len() > WORKS && works.iter().any(|(work, _)| is_telling(work)) {
        works.retain(|(work, _)| is_telling(work));
        works.sort_by(|(a, _), (b, _)| number(a, "epoch").partial_cmp(&number(b, "epoch")).unwrap_or(Ordering::Equal));
    }
    works.truncate(WORKS);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(works: &[(&str, &str, &str)]) -> Vec<String> {
        let params = |(density, pattern, epoch): &(&str, &str, &str)| {
            let list = [("size", "1GiB"), ("density", *density), ("pattern", *pattern), ("epoch", *epoch)];
            (list.map(|(name, value)| (name.to_owned(), value.to_owned())).into(), ())
        };
        let mut works: Vec<(Params, ())> = works.iter().map(params).collect();
        principal(&mut works);
        works
            .iter()
            .map(|(work, ())| ["density", "pattern", "epoch"].map(|name| work[name].as_str()).join(" "))
            .collect()
    }

    #[test]
    fn of_many_densities_those_that_tell_most_are_shown_after_the_first_snapshot() {
        let densities = ["10", "100", "1000", "5000", "50000", "500000", "1000000"];
        let first = densities.map(|density| (density, "random", "1"));
        let third = ["5000", "50000", "500000"].map(|density| (density, "random", "3"));
        let clustered = [("5000", "clustered", "1")];
        let wanted = ["10 random 1", "5000 random 1", "50000 random 1", "500000 random 1"];
        assert_eq!(shown(&[&first[..], &third, &clustered].concat()), wanted);
        assert_eq!(shown(&[&third[..], &first].concat()), wanted);
        assert_eq!(shown(&first[1..5]), ["100 random 1", "1000 random 1", "5000 random 1", "50000 random 1"]);
    }

    #[test]
    fn of_many_works_of_which_nothing_tells_most_the_first_are_shown() {
        let works = ["7", "9", "11", "13", "15"].map(|density| (density, "random", "1"));
        assert_eq!(shown(&works), ["7 random 1", "9 random 1", "11 random 1", "13 random 1"]);
        let works = ["a", "b", "c", "d", "e"].map(|density| (density, "random", "1"));
        assert_eq!(shown(&works), ["a random 1", "b random 1", "c random 1", "d random 1"]);
    }
}
