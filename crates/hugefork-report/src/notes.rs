//! What a reader must know of a machine's figures: warnings, who did not run, what went wrong.

use std::collections::BTreeSet;

use crate::machines::Machine;
use crate::record::Absent;

/// If more subjects than this have one reason, they are counted and not named.
const NAMED: usize = 4;

/// Who did not run, and why: a line for each case and reason.
pub(crate) fn not_run(machine: &Machine) -> Vec<String> {
    once(machine.records.iter().flat_map(|record| absent("", &record.not_run)).collect())
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
        notes.extend(absent("went wrong: ", &record.failed));
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

/// A line for each case and reason.
fn absent(what: &str, list: &[Absent]) -> Vec<String> {
    let mut reasons: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for Absent { case, subject, why } in list {
        match reasons.iter_mut().find(|(known, reason, _)| known == case && reason == why) {
            Some((.., subjects)) if subjects.contains(&subject.as_str()) => {}
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
