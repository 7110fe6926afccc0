//! The top of a README: one picture and a few sentences, made from records like the tables.

use crate::cases::is_ours;
use crate::chart::Ground;
use crate::chart::bars::{self, Bar, Tone};
use crate::chart::style::Scheme;
use crate::facts::machine_and_days;
use crate::figures::{figure, spaced, unit, variation};
use crate::headline::{Beside, Headline, headlines, leading};
use crate::machines::{Machine, machines};
use crate::record::{Entry, Record};

/// Units across: as wide as a README, so that its text is about as large as the README's.
const WIDTH: f64 = 620.0;

/// How long a snapshot of the largest size stops the program, beside `fork(2)`, as SVG without a background; none if no
/// record has a snapshot.
pub fn pause_picture(records: &[Record], scheme: Scheme) -> Option<String> {
    let found = machines(records);
    let (machine, line) = first(&found, "snapshot")?;
    let rivals = line.others.iter().filter(|other| !other.aside).map(|other| other.entry);
    let bar = |entry: &Entry| Bar {
        label: if is_ours(&entry.subject) { "hugefork".to_owned() } else { who(&entry.subject) },
        tone: if is_ours(&entry.subject) { Tone::Ours } else { Tone::Theirs },
        min: entry.min(),
        median: entry.median,
        max: entry.max(),
        text: value(entry),
        hint: String::new(),
    };
    let drawn: Vec<Bar> = [line.ours].into_iter().chain(rivals).map(bar).collect();
    let drawing = bars::draw_across(WIDTH, &drawn, &format!("pause, {}; less is better", unit(&line.ours.unit)));
    let title = format!("How long a snapshot{} stops the program", of_size(line.ours));
    let source = format!(
        "{}; medians of {} rounds, from the least to the greatest",
        machine_and_days(machine),
        line.ours.samples.len()
    );
    Some(drawing.standalone([&title, ""], &[source], scheme, Ground::None))
}

/// Sentences on what readers come for, and on the worst loss, as a list in Markdown. Those that records have no figures
/// for are left out.
pub fn highlights(records: &[Record]) -> String {
    let found = machines(records);
    let told = |(case, what): &(&str, &str)| {
        let (_, line) = first(&found, case)?;
        let (work, varies) = (with_work(what, line.ours), variation(line.ours));
        Some(format!("* **{}** {work}{varies}: {}.\n", value(line.ours), beside(&line)))
    };
    let mut text: String = SENTENCES.iter().filter_map(told).collect();
    let worst = found.iter().find_map(|machine| {
        let lines = headlines(machine);
        let line = leading(&lines, 1).into_iter().find(|line| line.best().is_some_and(|best| best.ratio < 1.0))?;
        let ahead = line.others.iter().filter(|other| !other.aside && other.ratio < 1.0);
        let what = format!("{}, {}", line.metric, line.work);
        Some(format!("* **{}** where it loses most ({what}): {}.\n", value(line.ours), list(ahead)))
    });
    text.extend(worst);
    text.replace('\u{a0}', " ")
}

/// What is said of a case, with the parameters that the sentence names.
const SENTENCES: [(&str, &str); 3] = [
    ("snapshot", "is how long a snapshot of {size} stops the program"),
    ("anon-cow-seq", "is how fast {tasks} threads fill copy-on-write copies of {size}"),
    ("zero-fault", "is what a first write to a new huge page takes, with the use of {use} around it"),
];

fn with_work(sentence: &str, entry: &Entry) -> String {
    let put_in = |text: String, (name, value): (&String, &String)| text.replace(&format!("{{{name}}}"), &spaced(value));
    entry.params.iter().fold(sentence.to_owned(), put_in)
}

/// hugefork on the first machine that has `case`.
fn first<'m, 'a>(machines: &'m [Machine<'a>], case: &str) -> Option<(&'m Machine<'a>, Headline<'a>)> {
    machines.iter().find_map(|machine| {
        let line = headlines(machine).into_iter().find(|line| line.case == case && !line.others.is_empty())?;
        Some((machine, line))
    })
}

fn beside(line: &Headline) -> String {
    list(line.others.iter().filter(|other| !other.aside))
}

/// `fork(2)` 0.86 ms with hugetlb pages, 93 ms with 4 KiB pages.
fn list<'l, 'a: 'l>(others: impl Iterator<Item = &'l Beside<'a>>) -> String {
    let mut named = "";
    let one = |other: &'l Beside<'a>| {
        let (entry, subject) = (other.entry, other.entry.subject.as_str());
        let (whose, pages) = match subject.split_once('-') {
            Some(("fork", pages)) => ("`fork(2)`", pages),
            Some(("kernel", pages)) => ("the kernel", pages),
            _ => return format!("{subject} {}", value(entry)),
        };
        let name = if whose == named { String::new() } else { format!("{whose} ") };
        named = whose;
        format!("{name}{} with {}", value(entry), pages_of(pages))
    };
    others.map(one).collect::<Vec<_>>().join(", ")
}

fn who(subject: &str) -> String {
    match subject.split_once('-') {
        Some(("fork", pages)) => format!("fork, {}", pages_of(pages)),
        _ => subject.to_owned(),
    }
}

fn pages_of(pages: &str) -> String {
    match pages {
        "thp" => "transparent huge pages".to_owned(),
        "4k" => "4 KiB pages".to_owned(),
        other => format!("{other} pages"),
    }
}

fn value(entry: &Entry) -> String {
    format!("{} {}", figure(entry.median), unit(&entry.unit)).trim_end().to_owned()
}

fn of_size(entry: &Entry) -> String {
    entry.params.get("size").map_or_else(String::new, |size| format!(" of {}", spaced(size)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::parse;

    fn records() -> Vec<Record> {
        let entry = |subject: &str, size: &str, median: f64| {
            serde_json::json!({"case": "snapshot", "subject": subject, "params": {"size": size}, "metric": "pause",
                "unit": "ms", "samples": vec![median; 5], "median": median})
        };
        let file = serde_json::json!({"schema": 1, "date": "2026-11-21T14:53:23Z", "host": {"cpu": "A CPU"}, "results": [
            entry("hugefork", "1GiB", 0.2), entry("fork-4k", "1GiB", 25.0), entry("hugefork", "4GiB", 0.3),
            entry("fork-thp", "4GiB", 1.5), entry("fork-4k", "4GiB", 90.0), entry("memcpy", "4GiB", 400.0)]});
        vec![parse("x", file.to_string().as_bytes()).unwrap()]
    }

    #[test]
    fn sentences_are_of_the_largest_size_and_only_of_what_is_there() {
        let sentence = "* **0.300 ms** is how long a snapshot of 4 GiB stops the program: `fork(2)` 1.50 ms with transparent \
                        huge pages, 90.0 ms with 4 KiB pages.\n";
        assert_eq!(highlights(&records()), sentence);
        assert_eq!(highlights(&[]), "");
    }

    #[test]
    fn the_worst_loss_is_told_too() {
        let mut records = records();
        for entry in records[0].entries.iter_mut().filter(|entry| entry.subject == "fork-4k") {
            (entry.median, entry.samples) = (0.1, vec![0.1; 5]);
        }
        let text = highlights(&records);
        let line = "* **0.300 ms** where it loses most (pause, 4 GiB): `fork(2)` 0.100 ms with 4 KiB pages.\n";
        assert!(text.ends_with(line), "{text}");
    }

    #[test]
    fn the_picture_has_the_figures_and_no_ground_of_its_own() {
        for scheme in [Scheme::Light, Scheme::Dark] {
            let svg = pause_picture(&records(), scheme).unwrap();
            for text in
                ["of 4\u{a0}GiB", ">hugefork<", ">fork, 4 KiB pages<", ">0.300 ms<", ">90.0 ms<", "2026-11-21", "A CPU"]
            {
                assert!(svg.contains(text), "{text} is not in {svg}");
            }
            assert!(!svg.contains("memcpy") && !svg.contains("class=\"paper\""), "{svg}");
        }
        assert!(pause_picture(&[], Scheme::Light).is_none());
    }
}
