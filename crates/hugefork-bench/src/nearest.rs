//! The known name that is nearest to an unknown one, for error messages.

/// The name out of `names` with the fewest slips from `wrong`. A slip is an added, missing, wrong or swapped character.
/// `None` if the nearest name has more than one slip in three characters: such a suggestion would only confuse.
pub fn nearest<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wrong = wrong.to_lowercase();
    names
        .into_iter()
        .map(|name| (strsim::osa_distance(&wrong, name), name))
        .filter(|(distance, name)| *distance <= (wrong.len().min(name.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// The message for an unknown name: "unknown case `first-tuch`: did you mean `first-touch`? There are clear, copy, …".
pub fn unknown<'a>(kind: &str, wrong: &str, names: impl IntoIterator<Item = &'a str> + Clone) -> String {
    let all = names.clone().into_iter().collect::<Vec<_>>().join(", ");
    match nearest(wrong, names) {
        Some(name) => format!("unknown {kind} `{wrong}`: did you mean `{name}`? There are {all}"),
        None => format!("unknown {kind} `{wrong}`: there are {all}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_name_and_nonsense_finds_none() {
        let names = ["clear", "copy", "first-touch", "snapshot"];
        assert_eq!(nearest("first-tuch", names), Some("first-touch"));
        assert_eq!(nearest("SNAPSHOTS", names), Some("snapshot"));
        assert_eq!(nearest("claer", names), Some("clear"));
        for nonsense in ["qqqqqqqqqqqq", "nope", "co", ""] {
            assert_eq!(nearest(nonsense, names), None, "{nonsense}");
        }
        assert!(unknown("case", "cpy", names).contains("did you mean `copy`?"));
        assert!(unknown("case", "qqqqqqqqq", names).ends_with("there are clear, copy, first-touch, snapshot"));
    }
}
