//! Records as Markdown: a page, and the table that a README has room for.

use std::collections::BTreeSet;

use crate::cases::description;
use crate::facts::{facts, file_name, machine_and_days, origin, settings};
use crate::figures::{common, figure, phrases, unit, variation};
use crate::headline::{Beside, Headline, asides, headlines};
use crate::machines::{Machine, machines};
use crate::notes::{not_run, notes};
use crate::record::{Entry, Record};
use crate::tables::everything;

/// `records` as Markdown: hosts, commands, hugefork beside the others, every median.
pub fn measurements(records: &[Record]) -> String {
    machines(records).iter().map(section).collect()
}

/// The table of a README, with the machine that it is from: hugefork in each case and work, beside all others. If a
/// subject has several backings or block sizes, the table has the first.
pub fn summary(records: &[Record]) -> String {
    let lines = |machine: &Machine| {
        let mut seen = BTreeSet::new();
        let first = headlines(machine).into_iter().filter(|line| {
            let what = (line.case.to_owned(), line.work.clone(), line.ours.subject.clone());
            seen.insert(what)
        });
        let from = escaped(&machine_and_days(machine));
        let head = format!("{from}; medians, each file measured interleaved. More than 1x: hugefork is better.\n\n");
        head + &compared(machine, first.map(|line| row_of(&line, &line.ours.subject, Detail::Ratio)))
    };
    machines(records).iter().map(lines).collect()
}

/// How much is said of a ratio.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Detail {
    Ratio,
    /// The ratio, and where it lies.
    Interval,
}

fn section(machine: &Machine) -> String {
    let mut text = format!("## {}\n\n", escaped(&machine.name()));
    text += &list(facts(machine).into_iter().map(|(name, value)| format!("{name}: {value}")));
    for record in &machine.records {
        // An indented command is code, whatever it contains.
        let parts = [settings(record), origin(record)];
        let told: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        let file = escaped(&format!("{}: {}", file_name(record), told.join(" · ")));
        text += &format!("{file}\n\n    {}\n\n", record.command);
    }
    text += "### Beside the kernel\n\nMore than 1x: hugefork is better. In brackets: where the ratio lies, with 95 % confidence.\n\n";
    let lines = headlines(machine);
    text += &compared(machine, lines.iter().map(|line| row_of(line, &line.ours_label, Detail::Interval)));
    for case in machine.cases() {
        let entries: Vec<&Entry> = machine.entries.iter().copied().filter(|entry| entry.case == case).collect();
        let alike = common(entries.iter().map(|entry| &entry.params));
        let about = format!("{} {}", description(case).unwrap_or_default(), phrases(&alike));
        text += &format!("### {}\n\n{}; medians.\n\n", escaped(case), escaped(about.trim()));
        let all = everything(&entries);
        let cells = all.rows.into_iter().map(|row| row.into_iter().map(|cell| cell.text).collect());
        text += &table(&all.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>(), cells);
    }
    for (heading, lines) in [("Notes", notes(machine)), ("Did not run", not_run(machine))] {
        if !lines.is_empty() {
            text += &format!("### {heading}\n\n{}", list(lines));
        }
    }
    text
}

/// hugefork beside the others, and why some of them stand aside.
fn compared(machine: &Machine, rows: impl Iterator<Item = Vec<String>>) -> String {
    table(&["case", "work", "subject", "median", "beside"], rows)
        + &list(asides(machine).into_iter().map(|why| format!("(\\*) {}", escaped(&why))))
}

fn row_of(line: &Headline, name: &str, detail: Detail) -> Vec<String> {
    let others: Vec<String> = line.others.iter().map(|other| ratio(other, detail)).collect();
    let median = format!("{} {}{}", figure(line.ours.median), unit(&line.ours.unit), variation(line.ours));
    vec![line.case.to_owned(), line.work.clone(), name.to_owned(), median, others.join(", ")]
}

fn ratio(other: &Beside, detail: Detail) -> String {
    let mut text = format!("{}x {}", figure(other.ratio), other.entry.subject);
    if other.aside {
        text += " (*)";
    }
    match other.interval.filter(|_| detail == Detail::Interval) {
        Some(interval) => text + &format!(" ({} … {})", figure(interval.low), figure(interval.high)),
        None => text,
    }
}

fn table(columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: Vec<String>| {
        format!("| {} |\n", cells.iter().map(|cell| escaped(cell)).collect::<Vec<_>>().join(" | "))
    };
    let head = line(columns.iter().map(|column| (*column).to_owned()).collect());
    let rule = format!("|{}\n", "---|".repeat(columns.len()));
    head + &rule + &rows.map(line).collect::<String>() + "\n"
}

fn list(lines: impl IntoIterator<Item = String>) -> String {
    let text: String = lines.into_iter().map(|line| format!("* {line}\n")).collect();
    if text.is_empty() { text } else { text + "\n" }
}

/// Text that Markdown cannot take for anything else.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if "\\|<>*_`[]&".contains(c) {
            escaped.push('\\');
        }
        // No-break spaces are for pages.
        escaped.push(if c == '\u{a0}' { ' ' } else { c });
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::parse;

    fn records() -> Vec<Record> {
        let entry = |subject: &str, backing: &str, median: f64| {
            serde_json::json!({"case": "zero-fault", "subject": subject, "params": {"size": "1GiB", "backing": backing},
                "metric": "latency", "unit": "us", "samples": [median, median, median, median], "median": median})
        };
        let file = serde_json::json!({"schema": 1, "command": "hugefork bench | x", "host": {"cpu": "A_CPU"}, "results": [
            entry("hugefork", "shmem-thp", 10.0), entry("hugefork", "hugetlb", 20.0), entry("kernel-thp", "", 30.0),
            entry("kernel-4k", "", 5.0)]});
        vec![parse("dir/x.json", file.to_string().as_bytes()).unwrap()]
    }

    #[test]
    fn a_summary_tells_the_first_backing_and_who_stands_aside() {
        let text = summary(&records());
        let row = "| zero-fault | 1 GiB | hugefork | 10.0 µs | 3.00x kernel-thp, 0.500x kernel-4k (\\*) |\n";
        assert!(text.contains(row), "{text}");
        assert_eq!(text.matches("| zero-fault ").count(), 1, "{text}");
        assert!(text.contains("* (\\*) kernel-4k in zero-fault: makes 64 KiB"), "{text}");
    }

    #[test]
    fn everything_is_on_the_page() {
        let text = measurements(&records());
        for part in [
            "## A\\_CPU",
            "x.json: ",
            "    hugefork bench | x\n",
            "kernel-thp (3.00 … 3.00)",
            "hugefork hugetlb",
            "| 20.0 |",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}
