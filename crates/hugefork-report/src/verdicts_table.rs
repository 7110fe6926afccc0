//! A comparison for people. Tables are Markdown, like those of `hugefork bench`.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};

use crate::figures::{figure, with_unit, words};
use crate::record::Params;
use crate::verdicts::{Comparison, Lone, Row, Side, Verdict};

/// From this many rows on, chance is worth a word.
const MANY: usize = 20;

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "A: {}\nB: {}\n", side(&self.a), side(&self.b))?;
        let mut cases: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !cases.contains(&row.case.as_str()) {
                cases.push(&row.case);
            }
        }
        for case in cases {
            let rows: Vec<&Row> = self.rows.iter().filter(|row| row.case == case).collect();
            write_case(f, case, &rows)?;
        }
        write_lone(f, "A", &self.only_a, &self.cases(&self.only_b))?;
        write_lone(f, "B", &self.only_b, &self.cases(&self.only_a))?;
        let counts = Verdict::ALL.map(|verdict| (verdict, self.count(verdict)));
        let said: Vec<String> =
            counts.iter().filter(|(_, count)| *count > 0).map(|(v, count)| format!("{count} {}", v.name())).collect();
        if said.is_empty() {
            return writeln!(f, "nothing in common: give results of the same cases and sizes");
        }
        writeln!(f, "from A to B: {}", said.join(", "))?;
        if self.rows.len() >= MANY {
            let chance = self.rows.len().div_ceil(20);
            writeln!(f, "note: of {} intervals of 95 %, up to {chance} miss the truth by chance", self.rows.len())?;
        }
        if self.count(Verdict::CannotTell) > 0 {
            writeln!(
                f,
                "note: an interval takes at least 4 samples on both sides, all more than 0; measure with --runs 5"
            )?;
        }
        Ok(())
    }
}

fn side(side: &Side) -> String {
    format!("{}  hugefork {} on {}, {} CPUs, {}", side.file, side.version, side.cpu, side.cpus, side.kernel)
}

fn write_case(f: &mut fmt::Formatter<'_>, case: &str, rows: &[&Row]) -> fmt::Result {
    // Parameters that all who have them have alike go to the heading.
    let mut shared = Params::new();
    for (name, value) in rows.iter().flat_map(|row| &row.params) {
        if rows.iter().all(|row| row.params.get(name).is_none_or(|other| other == value) && !row.how.contains_key(name))
        {
            shared.insert(name.clone(), value.clone());
        }
    }
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(["subject", "with", "metric", "A", "B", "B/A", "95 %", "verdict"]);
    for column in 3..7 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for row in rows {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let mut with = words(row.params.iter().filter(|(name, _)| !shared.contains_key(*name)));
        for (name, [a, b]) in &row.how {
            let _ = write!(with, " {name}={a}→{b}");
        }
        table.add_row([
            row.subject.clone(),
            with.trim_start().to_owned(),
            with_unit(&row.metric, &row.unit),
            figure(row.a),
            figure(row.b),
            or_dash(row.ratio.map(|ratio| format!("{}x", figure(ratio)))),
            or_dash(row.interval.map(|interval| format!("{} … {}", figure(interval.low), figure(interval.high)))),
            row.verdict.name().to_owned(),
        ]);
    }
    writeln!(f, "{case}  {}\n\n{table}\n", words(&shared))
}

/// More lines than this of what only one side has are told case by case.
const LONE: usize = 6;

impl Comparison {
    /// The cases of the side that has `lone` alone.
    fn cases<'c>(&'c self, lone: &'c [Lone]) -> BTreeSet<&'c str> {
        let shared = self.rows.iter().map(|row| row.case.as_str());
        shared.chain(lone.iter().map(|lone| lone.case.as_str())).collect()
    }
}

/// What only one side has: a line for each subject, or, if they were too many, for each case that the `others` have,
/// and one for all cases that they have not.
fn write_lone(f: &mut fmt::Formatter<'_>, side: &str, list: &[Lone], others: &BTreeSet<&str>) -> fmt::Result {
    let mut subjects: Vec<(&Lone, Vec<&str>)> = Vec::new();
    for lone in list {
        let of = |lone: &Lone| (lone.case.clone(), lone.subject.clone(), lone.params.clone());
        match subjects.last_mut().filter(|(known, _)| of(known) == of(lone)) {
            Some((_, metrics)) => metrics.push(&lone.metric),
            None => subjects.push((lone, vec![&lone.metric])),
        }
    }
    if subjects.len() <= LONE {
        for (Lone { case, subject, params, .. }, metrics) in subjects {
            writeln!(f, "only in {side}: {case} {subject} {}: {}", words(params), metrics.join(", "))?;
        }
        return if list.is_empty() { Ok(()) } else { writeln!(f) };
    }
    let names = |of: &dyn Fn(&Lone) -> bool, name: fn(&Lone) -> &str| {
        let names: BTreeSet<&str> = list.iter().filter(|lone| of(lone)).map(name).collect();
        names.into_iter().collect::<Vec<_>>()
    };
    let count = |of: &dyn Fn(&Lone) -> bool| match list.iter().filter(|lone| of(lone)).count() {
        1 => "1 figure".to_owned(),
        figures => format!("{figures} figures"),
    };
    for case in names(&|lone| others.contains(lone.case.as_str()), |lone| &lone.case) {
        let of = |lone: &Lone| lone.case == case;
        writeln!(
            f,
            "only in {side}: {} of {case}: {} (--json names them)",
            count(&of),
            names(&of, |lone| &lone.subject).join(", ")
        )?;
    }
    let foreign = |lone: &Lone| !others.contains(lone.case.as_str());
    let cases = names(&foreign, |lone| &lone.case);
    if !cases.is_empty() {
        writeln!(f, "only in {side}: {}, all of {} (--json names them)", count(&foreign), cases.join(", "))?;
    }
    writeln!(f)
}

#[cfg(test)]
mod tests {
    use crate::load::parse;
    use crate::verdicts::compare;

    #[test]
    fn rows_lone_rows_and_the_sum_are_told() {
        let file = |name: &str, time: f64, other: &str| {
            let entry = |subject: &str, metric: &str, samples: Vec<f64>| {
                serde_json::json!({"case": "snapshot", "subject": subject, "params": {"size": "1GiB", "backing": subject},
                    "metric": metric, "unit": "ms", "samples": samples})
            };
            let samples = vec![time, time * 1.01, time * 1.02, time * 1.03, time * 1.04];
            let file = serde_json::json!({"schema": 1, "version": "0.1.0", "results": [
                entry("hugefork", "pause", samples), entry("kernel", "pause", vec![1.0]),
                entry(other, "pause", vec![1.0]), entry(other, "user", vec![1.0])]});
            parse(name, file.to_string().as_bytes()).unwrap()
        };
        let text = compare(&file("a.json", 1.0, "memcpy"), &file("b.json", 2.0, "fork")).to_string();
        assert!(text.starts_with("A: a.json  hugefork 0.1.0 on"), "{text}");
        assert!(text.contains("snapshot  size=1GiB\n"), "{text}");
        assert!(text.contains("| 1.02 | 2.04 | 2.00x | 1.94 … 2.06 | worse"), "{text}");
        assert!(text.contains("only in A: snapshot memcpy backing=memcpy size=1GiB: pause, user\n"), "{text}");
        assert!(text.contains("only in B: snapshot fork backing=fork size=1GiB: pause, user\n"), "{text}");
        assert!(text.contains("from A to B: 1 worse, 1 cannot tell"), "{text}");
        let empty = parse("e", br#"{"schema": 1, "results": []}"#).unwrap();
        assert!(compare(&empty, &empty).to_string().contains("nothing in common"));
    }

    /// Two suites that have little in common are no reason to print everything that they have not.
    #[test]
    fn different_suites_do_not_flood() {
        let file = |cases: &[&str], subjects: &[&str]| {
            let mut results = Vec::new();
            for case in cases {
                for subject in subjects {
                    results.push(serde_json::json!({"case": case, "subject": subject, "params": {}, "metric": "pause",
                        "unit": "ms", "samples": [1.0, 1.0]}));
                }
            }
            let file = serde_json::json!({"schema": 1, "results": results});
            parse("x", file.to_string().as_bytes()).unwrap()
        };
        let many = file(&["snapshot", "reset", "clear", "copy"], &["hugefork", "fork-4k", "memcpy"]);
        let text = compare(&many, &file(&["snapshot"], &["hugefork"])).to_string();
        let lone: Vec<&str> = text.lines().filter(|line| line.starts_with("only in")).collect();
        let told = [
            "only in A: 2 figures of snapshot: fork-4k, memcpy (--json names them)",
            "only in A: 9 figures, all of clear, copy, reset (--json names them)",
        ];
        assert_eq!(lone, told, "{text}");
    }
}
