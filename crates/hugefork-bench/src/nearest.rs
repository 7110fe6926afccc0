//! The known name that is nearest to an unknown one, for error messages.

/// The name out of `names` that the fewest slips make out of `wrong`: a character more, less, another, or two swapped.
/// None if even that takes more slips than one in three characters: such a name would only confuse.
pub fn nearest<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wrong = wrong.to_lowercase();
    names
        .into_iter()
        .map(|name| (distance(&wrong, name), name))
        .filter(|(distance, name)| *distance <= (wrong.len().min(name.len()) / 3).max(1))
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

/// Levenshtein's distance, one row at a time, where two characters that are swapped are one slip.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=to.len()).collect();
    for i in 0..from.len() {
        let mut row = vec![i + 1];
        for j in 0..to.len() {
            let replaced = above[j] + usize::from(from[i] != to[j]);
            let mut least = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && from[i] == to[j - 1] && from[i - 1] == to[j] {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_levenshteins_with_swaps() {
        let known = [("", "", 0), ("a", "", 1), ("", "abc", 3), ("kitten", "sitting", 3), ("same", "same", 0)];
        for (a, b, expected) in known.into_iter().chain([("claer", "clear", 1), ("tph", "thp", 1)]) {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn a_slip_finds_its_name_and_nonsense_finds_none() {
        let names = ["clear", "copy", "zero-fault", "snapshot"];
        assert_eq!(nearest("zero-falt", names), Some("zero-fault"));
        assert_eq!(nearest("SNAPSHOTS", names), Some("snapshot"));
        assert_eq!(nearest("claer", names), Some("clear"));
        for nonsense in ["qqqqqqqqqqqq", "nope", "co", ""] {
            assert_eq!(nearest(nonsense, names), None, "{nonsense}");
        }
        assert!(unknown("case", "cpy", names).contains("did you mean `copy`?"));
        assert!(unknown("case", "qqqqqqqqq", names).ends_with("there are clear, copy, zero-fault, snapshot"));
    }
}
