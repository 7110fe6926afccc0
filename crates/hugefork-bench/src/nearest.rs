//! The known name that is nearest to an unknown one, for error messages.

/// The name out of `names` that the fewest insertions, deletions and replacements make out of `wrong`; none if even
/// that one is so far off that it would only confuse.
pub fn nearest<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wrong = wrong.to_lowercase();
    names
        .into_iter()
        .map(|name| (distance(&wrong, name), name))
        .filter(|(distance, name)| *distance <= name.len().div_ceil(2))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// "unknown case `zero-falt`: did you mean `zero-fault`? There are clear, copy, …".
pub fn unknown<'a>(kind: &str, wrong: &str, names: impl IntoIterator<Item = &'a str> + Clone) -> String {
    let all = names.clone().into_iter().collect::<Vec<_>>().join(", ");
    match nearest(wrong, names) {
        Some(name) => format!("unknown {kind} `{wrong}`: did you mean `{name}`? There are {all}"),
        None => format!("unknown {kind} `{wrong}`: there are {all}"),
    }
}

/// Levenshtein's distance, one row at a time.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_levenshteins() {
        for (a, b, expected) in
            [("", "", 0), ("a", "", 1), ("", "abc", 3), ("kitten", "sitting", 3), ("same", "same", 0)]
        {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn a_slip_finds_its_name_and_nonsense_finds_none() {
        let names = ["clear", "copy", "zero-fault", "snapshot"];
        assert_eq!(nearest("zero-falt", names), Some("zero-fault"));
        assert_eq!(nearest("SNAPSHOTS", names), Some("snapshot"));
        assert_eq!(nearest("qqqqqqqqqqqq", names), None);
        assert!(unknown("case", "cpy", names).contains("did you mean `copy`?"));
        assert!(unknown("case", "qqqqqqqqq", names).ends_with("there are clear, copy, zero-fault, snapshot"));
    }
}
