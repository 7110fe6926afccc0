//! The page: for each machine its pictures and tables, then all its figures. One file, without scripts or a network.

use askama::Template;

use crate::cases::PICTURES;
use crate::draw::{self, Drawing, draw};
use crate::record::{Machine, Record, machines};
use crate::table::{Section, Table, everything, sections};

/// Draws `records` as one page. Records of one machine share pictures and tables. Other machines, and second runs
/// on one machine, have their own.
pub fn report(records: &[Record]) -> String {
    let machines = machines(records).iter().enumerate().map(|(index, machine)| view(machine, index)).collect();
    let page = Page { style: include_str!("../templates/style.css"), machines };
    page.render().expect("writing to a string does not fail")
}

#[derive(Template)]
#[template(path = "report.html")]
struct Page {
    style: &'static str,
    machines: Vec<MachineView>,
}

struct MachineView {
    name: String,
    days: String,
    files: Vec<FileView>,
    notes: Vec<String>,
    cases: Vec<CaseView>,
    everything: Table,
}

struct FileView {
    name: String,
    command: String,
    settings: String,
}

struct CaseView {
    name: String,
    title: String,
    work: String,
    drawings: Vec<Drawing>,
    table: Table,
}

fn view(machine: &Machine, index: usize) -> MachineView {
    MachineView {
        name: machine.records[0].host.name(),
        days: machine.days(),
        files: machine.records.iter().map(|record| file(record)).collect(),
        notes: machine.notes(),
        cases: sections(&machine.entries).into_iter().map(|section| case(section, index)).collect(),
        everything: everything(&machine.entries),
    }
}

fn case(section: Section, machine: usize) -> CaseView {
    let pictures = PICTURES.iter().enumerate().filter(|(_, picture)| picture.case == section.name);
    let drawing = |(index, picture)| {
        let mut drawing = draw(picture, &section.entries, &draw::PAGE)?;
        // The library gives the same names to the parts of each picture.
        drawing.svg = drawing.svg.replace("kuva-clip", &format!("clip-{machine}-{index}"));
        Some(drawing)
    };
    CaseView {
        drawings: pictures.filter_map(drawing).collect(),
        name: section.name.to_owned(),
        title: section.title.to_owned(),
        work: section.work,
        table: section.table,
    }
}

fn file(record: &Record) -> FileView {
    FileView {
        name: record.name.rsplit('/').next().unwrap_or_default().to_owned(),
        command: record.command.clone(),
        settings: record.settings(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::CASES;

    #[test]
    fn each_picture_has_a_case() {
        for picture in &PICTURES {
            let case = CASES.iter().find(|case| case.name == picture.case).expect(picture.title);
            assert!(picture.metrics.iter().all(|metric| case.metrics.contains(metric)), "{}", picture.title);
            assert_eq!(picture.over.is_some(), picture.metrics.len() == 1, "{}", picture.title);
        }
    }
}
