//! What a reader must know of a machine's figures: warnings, who did not run, what went wrong.

use std::collections::BTreeSet;

use crate::machines::Machine;
use crate::record::Absent;

/// If more subjects than this have one reason, they are counted and not named.
const NAMED: usize = 4;

/// Who did not run, and why: a line for each case and reason.
pub(crate) fn not_run(machine: &Machine) -> Vec<String> {
    once(machine.records.iter().flat_map(|record| absent("", fields(&record.not_run))).collect())
}

/// A line for each note, and none twice.
pub(crate) fn notes(machine: &Machine) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    if machine.records.len() > 1 {
        notes.push(
            "Figures of one file were measured interleaved, and those of different files were not: between files the \
             machine may have been busier or idler."
                .to_owned(),
        );
    }
    for record in &machine.records {
        notes.extend(absent("went wrong: ", fields(&record.failed)));
        if record.interrupted {
            notes.push(format!("{}: stopped before the end; figures hold the rounds that were counted.", record.name));
        }
        notes.extend(record.warnings.iter().cloned());
    }
    once(notes)
}

fn once(mut lines: Vec<String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    lines.retain(|line| seen.insert(line.clone()));
    lines
}

fn fields(list: &[Absent]) -> impl Iterator<Item = [&str; 3]> {
    list.iter().map(|Absent { case, subject, why }| [case.as_str(), subject, why])
}

/// Says which subjects have no figures. Each item of `list` is a case, a subject and the reason; the result has one
/// line for each case and reason, with `what` before the reason.
pub fn absent<'a>(what: &str, list: impl IntoIterator<Item = [&'a str; 3]>) -> Vec<String> {
    let mut reasons: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for [case, subject, why] in list {
        match reasons.iter_mut().find(|(known, reason, _)| *known == case && *reason == why) {
            Some((.., subjects)) if subjects.contains(&subject) => {}
            Some((.., subjects)) => subjects.push(subject),
            None => reasons.push((case, why, vec![subject])),
        }
    }
    let line = |(case, why, subjects): (&str, &str, Vec<&str>)| {
        let who = if subjects.len() > NAMED { format!("{} subjects", subjects.len()) } else { subjects.join(", ") };
        format!("{case} {who}: {what}{why}")
    };
    reasons.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_and_reason_has_one_line() {
        let mut list = vec![["clear", "a", "no room"], ["clear", "b", "no room"]];
        list.extend([["clear", "a", "no room"], ["clear", "c", "no CPU"]]);
        assert_eq!(absent("not run: ", list.clone()), ["clear a, b: not run: no room", "clear c: not run: no CPU"]);
        list.extend(["d", "e", "f"].map(|subject| ["clear", subject, "no room"]));
        assert_eq!(absent("not run: ", list)[0], "clear 5 subjects: not run: no room");
    }
}
