//! The parts of this repository's documents that hold figures: the README's sentences and its
//! picture, and the tables of `docs/measurements.md`.

use std::fmt::Write;

use crate::cases::{CASES, Case, HIGHLIGHTS, Highlight, LOSSES, PICTURES, in_words, is_ours, is_rival};
use crate::draw::{DARK, Drawing, LIGHT, draw};
use crate::figures::{figure, measured, phrases, quantity, spaced};
use crate::record::{Entry, Record, machines};
use crate::table::{escaped, sections};
use crate::work::{pick, work_names};

/// A text, and the figures that the records lack for it.
pub struct Generated {
    /// The text as Markdown.
    pub text: String,
    /// A line for each figure that the text leaves out.
    pub missing: Vec<String>,
}

/// The README's figures, each with its work, its spread and its rivals, and then the worst losses. A list as Markdown.
pub fn highlights(records: &[Record]) -> Generated {
    let entries: Vec<&Entry> = records.iter().flat_map(|record| &record.entries).collect();
    let mut generated = Generated { text: String::new(), missing: Vec::new() };
    for highlight in &HIGHLIGHTS {
        match sentence(highlight, &entries) {
            Some(sentence) => generated.text += &sentence,
            None => generated.missing.push(format!("{} {} {:?}", highlight.case, highlight.metric, highlight.only)),
        }
    }
    let mut losses: Vec<(f64, String)> = CASES.iter().filter_map(|case| worst_loss(case, &entries)).collect();
    losses.sort_by(|a, b| b.0.total_cmp(&a.0));
    if !losses.is_empty() {
        generated.text += "\nIt loses most here:\n\n";
        generated.text.extend(losses.into_iter().take(LOSSES).map(|(_, line)| line));
    }
    generated
}

fn sentence(highlight: &Highlight, entries: &[&Entry]) -> Option<String> {
    let belongs = |entry: &&Entry| {
        let is = |(name, value): &(&str, &str)| entry.params.get(*name).is_some_and(|own| own == value);
        entry.case == highlight.case && entry.metric == highlight.metric && highlight.only.iter().all(is)
    };
    let entries: Vec<&Entry> = entries.iter().copied().filter(belongs).collect();
    let size = |entry: &&&Entry| entry.params.get("size").and_then(|size| quantity(size)).unwrap_or(0.0);
    let ours = entries.iter().filter(|entry| entry.subject == "hugefork").rev();
    let ours = ours.max_by(|a, b| size(a).total_cmp(&size(b)))?;
    let put_in = |text: String, (name, value): (&String, &String)| text.replace(&format!("{{{name}}}"), &spaced(value));
    let says = ours.params.iter().fold(highlight.says.to_owned(), put_in);
    if says.contains('{') {
        return None;
    }
    let rivals = rivals(ours, &entries);
    let rivals: Vec<String> =
        rivals.iter().map(|rival| format!("{} {}", in_words(&rival.subject), measured(rival.median, rival))).collect();
    let beside = if rivals.is_empty() { String::new() } else { format!("; {}", rivals.join(", ")) };
    let spread = format!("{} to {}", figure(ours.min()), figure(ours.max()));
    let value = measured(ours.median, ours);
    Some(format!("* **{value}** ({spread}) {says}{beside} (`hugefork bench {}`).\n", highlight.case))
}

/// The rivals that did the same work as `ours`, the best first.
fn rivals<'a>(ours: &Entry, entries: &[&'a Entry]) -> Vec<&'a Entry> {
    let names = work_names(entries);
    let is_other = |other: &&Entry| {
        is_rival(&other.subject)
            && (&other.metric, &other.unit) == (&ours.metric, &ours.unit)
            && pick(other, &names) == pick(ours, &names)
    };
    let worse = |entry: &&Entry| entry.times_worse_than(ours).map_or(f64::MAX, |(times, _)| times);
    let mut rivals: Vec<&Entry> = entries.iter().copied().filter(is_other).collect();
    rivals.sort_by(|a, b| worse(a).total_cmp(&worse(b)));
    rivals
}

/// The figure of `case` in which hugefork is most behind its best rival, with all samples: the factor, and a line.
fn worst_loss(case: &Case, entries: &[&Entry]) -> Option<(f64, String)> {
    let of_case = |entry: &&Entry| entry.case == case.name && case.judged.contains(&entry.metric.as_str());
    let entries: Vec<&Entry> = entries.iter().copied().filter(of_case).collect();
    let names = work_names(&entries);
    let losses = entries.iter().copied().filter(|entry| is_ours(&entry.subject)).filter_map(|ours| {
        let rival = *rivals(ours, &entries).first()?;
        let (times, surely) = ours.times_worse_than(rival)?;
        (surely && times > 1.0).then_some((times, ours, rival))
    });
    let (times, ours, rival) = losses.max_by(|a, b| a.0.total_cmp(&b.0))?;
    let work = phrases(&pick(ours, &names));
    let work = if work.is_empty() { String::new() } else { format!(", {work}") };
    let line = format!(
        "* {}{work}: {} {} with {}, {} with {} (`hugefork bench {}`).\n",
        case.title,
        escaped(&ours.metric),
        measured(ours.median, ours),
        escaped(&ours.subject),
        measured(rival.median, rival),
        in_words(&rival.subject),
        case.name,
    );
    Some((times, line))
}

/// A colour scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Dark ink for white paper.
    Light,
    /// Light ink for black paper.
    Dark,
}

/// The README's picture as SVG without a background; none if no record has its figures.
pub fn pause_picture(records: &[Record], scheme: Scheme) -> Option<String> {
    let colours = match scheme {
        Scheme::Light => &LIGHT,
        Scheme::Dark => &DARK,
    };
    let machines = machines(records);
    let drawings = PICTURES.iter().flat_map(|picture| machines.iter().map(move |machine| (picture, machine)));
    let mut drawings = drawings.filter_map(|(picture, machine)| draw(picture, &machine.entries, colours));
    drawings.next().map(|Drawing { svg, .. }| svg)
}

/// The tables of `records` as Markdown: a section for each case of each machine, the notes, and the commands.
pub fn measurements(records: &[Record]) -> String {
    let mut text = String::new();
    for machine in machines(records) {
        let _ =
            write!(text, "## {}\n\n{}. Medians.\n", escaped(&machine.records[0].host.name()), escaped(&machine.days()));
        for section in sections(&machine.entries) {
            let title = if section.title == section.name {
                escaped(section.name)
            } else {
                format!("{} (`{}`)", section.title, section.name)
            };
            let _ = write!(text, "\n### {title}\n\n{}\n\n{}", escaped(&section.work), section.table.to_markdown());
        }
        let notes = machine.notes().iter().map(|note| format!("* {}\n", escaped(note))).collect::<String>();
        let command =
            |record: &&Record| format!("* `{}` ({})\n", record.command.replace('`', "'"), escaped(&record.settings()));
        let lists = [("Notes", notes), ("Commands", machine.records.iter().map(command).collect())];
        for (title, list) in lists.iter().filter(|(_, list)| !list.is_empty()) {
            let _ = write!(text, "\n### {title}\n\n{list}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::parse;

    fn record(results: &[serde_json::Value]) -> Vec<Record> {
        vec![parse("x", serde_json::json!({"schema": 1, "results": results}).to_string().as_bytes()).unwrap()]
    }

    fn call(subject: &str, size: &str, held: &str, median: f64) -> serde_json::Value {
        serde_json::json!({"case": "snapshot", "subject": subject, "params": {"size": size, "held": held},
            "metric": "call", "unit": "ms", "samples": vec![median; 5]})
    }

    #[test]
    fn a_sentence_has_the_work_of_the_largest_size_and_the_best_rival_first() {
        let found = highlights(&record(&[
            call("hugefork", "1GiB", "0", 0.2),
            call("hugefork", "4GiB", "0", 0.3),
            call("fork-4k", "4GiB", "0", 90.0),
            call("fork-thp", "4GiB", "0", 1.5),
            call("fork-thp", "1GiB", "0", 0.9),
            call("fork-thp", "4GiB", "10", 0.5),
        ]));
        let parts =
            ["**0.300 ms** (0.300 to 0.300)", "4 GiB", "huge pages 1.50 ms", "4 KiB pages 90.0 ms", "bench snapshot"];
        let places: Vec<Option<usize>> = parts.iter().map(|part| found.text.find(part)).collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{}", found.text);
        assert_eq!(found.text.lines().count(), 1, "{}", found.text);
        assert_eq!(found.missing.len(), HIGHLIGHTS.len() - 1, "{:?}", found.missing);
        assert!(!found.text.contains("loses"), "{}", found.text);
    }

    #[test]
    fn a_loss_counts_if_all_samples_are_worse() {
        let lost = |ours: &[f64]| {
            let mut results = vec![call("hugefork", "1GiB", "0", 1.0), call("memcpy", "1GiB", "0", 0.5)];
            results.push(call("limit", "1GiB", "0", 0.1));
            results[0]["samples"] = ours.into();
            let text = highlights(&record(&results)).text;
            text.split_once("loses").map(|(_, losses)| losses.to_owned())
        };
        let text = lost(&[1.0, 0.9, 1.1]).expect("a loss");
        assert!(text.contains("1.00 ms") && text.contains("a copy") && text.contains("1 GiB, held 0"), "{text}");
        assert!(!text.contains("limit"), "{text}");
        assert_eq!(lost(&[1.0, 0.4, 1.1]), None);
    }

    #[test]
    fn highlights_belong_to_cases() {
        for highlight in &HIGHLIGHTS {
            let case = CASES.iter().find(|case| case.name == highlight.case).expect(highlight.says);
            assert!(case.metrics.contains(&highlight.metric), "{}", highlight.says);
        }
    }
}
