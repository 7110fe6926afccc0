//! The page: one file with everything in it, which loads nothing and runs nothing.
//!
//! A content security policy tells the browser so, too, in case a string from a file ever gets past the template's
//! escaping.

use askama::Template;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::cases::{description, title};
use crate::chart::style;
use crate::charts::charts;
use crate::drawn::Chart;
use crate::facts::{facts, file_name, origin, settings};
use crate::figures::{figure, unit};
use crate::gallery::{Names, slug};
use crate::headline::{Headline, Standing, asides, headlines, leading};
use crate::machines::{Machine, machines};
use crate::notes::{not_run, notes};
use crate::png::{Painter, PictureError};
use crate::record::Record;
use crate::strip::Strip;
use crate::tables::{self, Table};

/// Draws `records` as one page. Records of one machine share charts; other machines, and second runs on one machine,
/// have their own. Each chart can be saved as SVG, and as PNG if the system has a font; if it has none, the page says
/// so.
///
/// # Errors
/// [`PictureError`] if a picture cannot be drawn, but not for lack of a font.
pub fn report(records: &[Record]) -> Result<String, PictureError> {
    let (painter, png_missing) = match Painter::new() {
        Ok(painter) => (Some(painter), None),
        Err(missing @ PictureError::NoFont) => (None, Some(missing.to_string())),
        Err(other) => return Err(other),
    };
    let found = machines(records);
    let mut names = Names::default();
    let views = found.iter().enumerate().map(|(index, machine)| view(machine, index, &mut names, painter.as_ref()));
    let page = Page {
        light: style::variables(style::Scheme::Light),
        dark: style::variables(style::Scheme::Dark),
        style: include_str!("../templates/style.css"),
        rules: style::RULES,
        machines: views.collect::<Result<_, _>>()?,
        overview: tables::overview(&found),
        png_missing,
    };
    let failed = |error: askama::Error| PictureError::Drawing { name: "report".to_owned(), what: error.to_string() };
    page.render().map_err(failed)
}

#[derive(Template)]
#[template(path = "report.html")]
struct Page {
    light: String,
    dark: String,
    style: &'static str,
    rules: &'static str,
    machines: Vec<MachineView>,
    overview: Option<Table>,
    png_missing: Option<String>,
}

struct MachineView {
    id: String,
    name: String,
    file_names: String,
    facts: Vec<(&'static str, String)>,
    files: Vec<FileView>,
    cards: Vec<CardView>,
    headlines: Vec<HeadlineView>,
    strip_head: String,
    asides: Vec<String>,
    notes: Vec<String>,
    not_run: Vec<String>,
    cases: Vec<CaseView>,
}

struct FileView {
    name: String,
    /// When, and with which hugefork.
    origin: String,
    settings: String,
    command: String,
}

/// One figure in large type.
struct CardView {
    /// `gain` or `loss`.
    class: &'static str,
    case: String,
    case_id: String,
    value: f64,
    text: String,
    unit: String,
    what: String,
    beside: String,
}

struct HeadlineView {
    /// The number of lines from here on that are of this case and work; 0 if the line above is, too.
    rows: usize,
    title: String,
    case_id: String,
    work: String,
    ours_label: String,
    ours: f64,
    ours_text: String,
    unit: String,
    best: Option<BestView>,
}

struct BestView {
    label: String,
    value: f64,
    text: String,
    ratio: f64,
    ratio_text: String,
    /// `gain`, `loss`, or `unsure` where 1 is in the interval.
    class: &'static str,
    interval: String,
    strip: String,
}

struct CaseView {
    id: String,
    case: String,
    title: String,
    description: Option<&'static str>,
    common: String,
    charts: Vec<ChartView>,
    /// What the charts are about, each once, with the first chart of it.
    topics: Vec<TopicView>,
    /// How many charts are in the last row of three, and of two.
    last_of_three: usize,
    last_of_two: usize,
    /// The figures of one chart, if a place is left beside the last charts.
    beside: Option<(String, Table)>,
    table: Table,
}

/// A line of the list of contents.
struct TopicView {
    title: String,
    chart_id: String,
}

struct ChartView {
    kind: &'static str,
    id: String,
    title: String,
    subtitle: String,
    note: Option<String>,
    svg: String,
    /// The name under which it is saved.
    file: String,
    svg_address: String,
    png_address: Option<String>,
    table: Table,
}

/// The number of charts beside each other on a large screen; `style.css` has the same.
const COLUMNS: usize = 3;

/// The number of figures that lead the page.
const CARDS: usize = 4;

fn view(
    machine: &Machine,
    index: usize,
    names: &mut Names,
    painter: Option<&Painter>,
) -> Result<MachineView, PictureError> {
    let id = format!("machine-{}", index + 1);
    let lines = headlines(machine);
    let strip = Strip::over(&lines);
    let file = |record: &&Record| FileView {
        name: file_name(record),
        origin: origin(record),
        settings: settings(record),
        command: record.command.clone(),
    };
    let mut cases = Vec::new();
    for case in charts(machine) {
        let view = |chart: &Chart| chart_view(chart, machine, case.case, names, painter);
        let (last_of_three, last_of_two) = (case.charts.len() % COLUMNS, case.charts.len() % 2);
        let principal =
            case.charts.iter().rev().filter(|chart| chart.curves.is_empty()).max_by_key(|c| c.entries.len());
        let views = case.charts.iter().map(view).collect::<Result<Vec<_>, _>>()?;
        cases.push(CaseView {
            last_of_three,
            last_of_two,
            beside: principal.filter(|_| last_of_three != 0).map(|c| (c.title.clone(), tables::of_chart(c))),
            topics: topics(&views),
            title: title(case.case).to_owned(),
            id: format!("{id}-{}", slug(case.case)),
            case: case.case.to_owned(),
            description: description(case.case),
            common: case.common,
            charts: views,
            table: tables::everything(&case.entries),
        });
    }
    Ok(MachineView {
        name: machine.name(),
        file_names: machine.records.iter().map(|record| file_name(record)).collect::<Vec<_>>().join(", "),
        facts: facts(machine),
        files: machine.records.iter().map(file).collect(),
        cards: leading(&lines, CARDS).into_iter().filter_map(|line| card_view(line, &id)).collect(),
        headlines: headline_views(&lines, &id, &strip),
        strip_head: strip.head(),
        asides: asides(machine),
        notes: notes(machine),
        not_run: not_run(machine),
        cases,
        id,
    })
}

fn topics(charts: &[ChartView]) -> Vec<TopicView> {
    let is_first = |index: usize| charts[..index].iter().all(|earlier| earlier.title != charts[index].title);
    let topic = |chart: &ChartView| TopicView { title: chart.title.clone(), chart_id: chart.id.clone() };
    (0..charts.len()).filter(|index| is_first(*index)).map(|index| topic(&charts[index])).collect()
}

fn headline_views(lines: &[Headline], machine: &str, strip: &Strip) -> Vec<HeadlineView> {
    let mut views: Vec<HeadlineView> = lines.iter().map(|line| headline_view(line, machine, strip)).collect();
    for index in (1..views.len()).rev() {
        let (above, view) = (&views[index - 1], &views[index]);
        if (&above.case_id, &above.work) == (&view.case_id, &view.work) {
            views[index - 1].rows += std::mem::take(&mut views[index].rows);
        }
    }
    views
}

fn card_view(line: &Headline, machine: &str) -> Option<CardView> {
    let rivals = || line.others.iter().filter(|other| !other.aside);
    let beside = match line.best()?.standing() {
        Standing::Loss => {
            let ahead: Vec<String> = rivals()
                .filter(|other| other.ratio < 1.0)
                .map(|other| {
                    format!("{} {} {}", other.entry.subject, figure(other.entry.median), unit(&line.ours.unit))
                })
                .collect();
            format!("behind {}", ahead.join(", "))
        }
        _ => {
            let list = rivals().enumerate().map(|(index, other)| {
                let than = if index == 0 { "better than " } else { "" };
                format!("{}×\u{a0}{than}{}", figure(other.ratio), other.entry.subject)
            });
            list.collect::<Vec<_>>().join(", ")
        }
    };
    Some(CardView {
        class: line.best()?.standing().class(),
        case: title(line.case).to_owned(),
        case_id: format!("{machine}-{}", slug(line.case)),
        value: line.ours.median,
        text: figure(line.ours.median),
        unit: unit(&line.ours.unit).to_owned(),
        what: [line.metric.as_str(), line.work.as_str()].join(", ").trim_end_matches(", ").to_owned(),
        beside,
    })
}

fn headline_view(line: &Headline, machine: &str, strip: &Strip) -> HeadlineView {
    let best = line.best().map(|best| BestView {
        label: best.entry.subject.clone(),
        value: best.entry.median,
        text: figure(best.entry.median),
        ratio: best.ratio,
        ratio_text: format!("{}×", figure(best.ratio)),
        class: best.standing().class(),
        interval: best.interval.map_or_else(String::new, |i| format!("{} … {}", figure(i.low), figure(i.high))),
        strip: strip.draw(best),
    });
    HeadlineView {
        rows: 1,
        title: title(line.case).to_owned(),
        case_id: format!("{machine}-{}", slug(line.case)),
        work: [line.metric.as_str(), line.work.as_str()].join(", ").trim_end_matches(", ").to_owned(),
        ours_label: line.ours_label.clone(),
        ours: line.ours.median,
        ours_text: figure(line.ours.median),
        unit: unit(&line.ours.unit).to_owned(),
        best,
    }
}

fn chart_view(
    chart: &Chart,
    machine: &Machine,
    case: &str,
    names: &mut Names,
    painter: Option<&Painter>,
) -> Result<ChartView, PictureError> {
    let file = names.of(case, chart);
    let svg = chart.standalone(case, machine);
    let png = painter.map(|painter| painter.png(&file, &svg)).transpose()?;
    Ok(ChartView {
        kind: chart.kind,
        id: format!("chart-{file}"),
        title: chart.title.clone(),
        subtitle: chart.subtitle.clone(),
        note: chart.note.clone(),
        svg: chart
            .drawing
            .inline(&format!("{case}: {}, {}. The figures are in the table below.", chart.title, chart.work)),
        svg_address: format!("data:image/svg+xml;base64,{}", STANDARD.encode(&svg)),
        png_address: png.map(|png| format!("data:image/png;base64,{}", STANDARD.encode(png))),
        file,
        table: tables::of_chart(chart),
    })
}
