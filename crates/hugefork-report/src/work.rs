//! Which entries did the same work, and how subjects are told apart.

use std::collections::BTreeSet;

use crate::cases::HOW;
use crate::record::{Entry, Params};

/// The parameters that all of `entries` have with the same value.
pub(crate) fn constants(entries: &[&Entry]) -> Params {
    let mut constants = entries.first().map(|entry| entry.params.clone()).unwrap_or_default();
    for entry in entries {
        constants.retain(|name, value| entry.params.get(name) == Some(value));
    }
    constants
}

/// The names of the parameters that say what the work of `entries` was: all of them have such a parameter. A parameter
/// that only some have, such as the block size of a pool, says how a subject did the work.
pub(crate) fn work_names(entries: &[&Entry]) -> Vec<String> {
    let Some(first) = entries.first() else { return Vec::new() };
    let is_work =
        |name: &&String| !HOW.contains(&name.as_str()) && entries.iter().all(|entry| entry.params.contains_key(*name));
    first.params.keys().filter(is_work).cloned().collect()
}

/// The parameters of `entry` with these `names`.
pub(crate) fn pick(entry: &Entry, names: &[String]) -> Params {
    names.iter().filter_map(|name| Some((name.clone(), entry.params.get(name)?.clone()))).collect()
}

/// The parameters that a table of `entries` needs as columns: the work as far as it varies, and then as many others
/// as it takes to give each subject one row for each work.
pub(crate) fn columns(entries: &[&Entry]) -> Vec<String> {
    let constants = constants(entries);
    let mut columns = work_names(entries);
    columns.retain(|name| !constants.contains_key(name));
    let others: BTreeSet<&String> = entries.iter().flat_map(|entry| entry.params.keys()).collect();
    let mut others: Vec<&String> = others.into_iter().filter(|name| !constants.contains_key(*name)).collect();
    others.sort_by_key(|name| HOW.contains(&name.as_str()));
    for name in others {
        let rows = |columns: &[String]| -> usize {
            let row = |entry: &&Entry| (entry.subject.clone(), pick(entry, columns));
            entries.iter().map(row).collect::<BTreeSet<_>>().len()
        };
        let more: Vec<String> = columns.iter().chain([name]).cloned().collect();
        if !columns.contains(name) && rows(&more) > rows(&columns) {
            columns = more;
        }
    }
    columns
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::load::parse;

    pub(crate) fn entries(list: &[(&str, &[(&str, &str)])]) -> Vec<Entry> {
        let entry = |(subject, params): &(&str, &[(&str, &str)])| {
            let params: serde_json::Map<_, _> = params.iter().map(|(n, v)| ((*n).to_owned(), (*v).into())).collect();
            serde_json::json!({"case": "c", "subject": subject, "params": params, "metric": "m", "median": 1})
        };
        let file = serde_json::json!({"schema": 1, "results": list.iter().map(entry).collect::<Vec<_>>()});
        parse("x", file.to_string().as_bytes()).unwrap().entries
    }

    #[test]
    fn columns_are_the_work_that_varies_and_what_sets_a_subjects_rows_apart() {
        let list = entries(&[
            ("hugefork", &[("size", "1GiB"), ("held", "0"), ("backing", "thp"), ("block_size", "2MiB")]),
            ("hugefork", &[("size", "1GiB"), ("held", "1"), ("backing", "thp"), ("block_size", "2MiB")]),
            ("kernel", &[("size", "1GiB"), ("held", "0"), ("kernel", "rep")]),
        ]);
        let list: Vec<&Entry> = list.iter().collect();
        assert_eq!(columns(&list), ["held"]);
        assert_eq!(work_names(&list), ["held", "size"]);
        assert_eq!(constants(&list), Params::from([("size".to_owned(), "1GiB".to_owned())]));
        let list = entries(&[
            ("hugefork", &[("size", "1GiB"), ("backing", "thp")]),
            ("hugefork", &[("size", "1GiB"), ("backing", "hugetlb")]),
            ("kernel", &[("size", "1GiB")]),
        ]);
        assert_eq!(columns(&list.iter().collect::<Vec<_>>()), ["backing"]);
        let list = entries(&[
            ("hugefork", &[("near", "rep"), ("use", "64KiB")]),
            ("hugefork", &[("use", "block")]),
            ("hugefork", &[("near", "rep")]),
        ]);
        assert_eq!(columns(&list.iter().collect::<Vec<_>>()), ["use"]);
    }
}
