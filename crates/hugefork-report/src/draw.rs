//! One picture: which entries belong to it, and their lines as SVG. The library `kuva` draws.
//!
//! Places are evenly spaced, whatever the parameter's values are, because these go up by factors
//! and begin with 0. Values have a logarithmic scale.

use std::sync::Arc;

use kuva::plot::{LegendEntry, LegendPosition, LegendShape, LinePlot, ScatterPlot};
use kuva::render::layout::{AxisLabelOverlap, Layout, TickFormat};
use kuva::render::plots::Plot;
use kuva::render::theme::Theme;

use crate::cases::{Picture, is_ours, is_rival};
use crate::figures::{figure, measured, phrases, quantity, spaced, unit};
use crate::record::{Entry, Params};
use crate::work::{constants, pick, work_names};

/// The most lines, and the most places on the horizontal axis, that a picture shows; the table has the rest.
const LINES: usize = 8;
const PLACES: usize = 16;

/// The size in pixels before scaling. Text of 15 pixels is readable where a phone scales the picture to 370.
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 290.0;
/// The legend has two columns below the picture, with rows of this height.
const LEGEND_ROW: f64 = 21.0;

/// A drawn picture.
pub(crate) struct Drawing {
    pub(crate) title: &'static str,
    /// The work that all lines have in common.
    pub(crate) work: String,
    /// The figures in words, for readers who do not see the picture.
    pub(crate) alt: String,
    pub(crate) svg: String,
}

/// Colours as CSS values, and the place of the picture.
pub(crate) struct Colours {
    pub(crate) ink: &'static str,
    pub(crate) faint: &'static str,
    /// Whether the picture stands alone, with its title inside.
    pub(crate) has_title: bool,
    /// hugefork's colour first.
    pub(crate) lines: [&'static str; LINES],
}

/// The colours are variables of the page's style sheet, which has a light and a dark set.
pub(crate) const PAGE: Colours = Colours {
    ink: "var(--ink)",
    faint: "var(--faint)",
    has_title: false,
    lines: [
        "var(--line-0)",
        "var(--line-1)",
        "var(--line-2)",
        "var(--line-3)",
        "var(--line-4)",
        "var(--line-5)",
        "var(--line-6)",
        "var(--line-7)",
    ],
};

pub(crate) const LIGHT: Colours = Colours {
    ink: "#24292f",
    faint: "#d8dee4",
    has_title: true,
    lines: ["#0b6bcb", "#c2410c", "#4d7c0f", "#7c3aed", "#0f766e", "#a16207", "#be185d", "#57606a"],
};

pub(crate) const DARK: Colours = Colours {
    ink: "#e6edf3",
    faint: "#30363d",
    has_title: true,
    lines: ["#58a6ff", "#ff9b5e", "#a3d65c", "#c4a7ff", "#4fd1c5", "#e3b341", "#ff8ac2", "#9aa4af"],
};

/// One subject's figures, by place.
struct Series<'a> {
    label: String,
    points: Vec<(usize, &'a Entry)>,
}

/// Draws `picture` from those of `entries` that belong to it. None if they have fewer than two places.
pub(crate) fn draw(picture: &Picture, entries: &[&Entry], colours: &Colours) -> Option<Drawing> {
    let belongs = |entry: &&Entry| {
        let is = |(name, value): &(&str, &str)| entry.params.get(*name).is_some_and(|own| own == value);
        entry.case == picture.case
            && picture.metrics.contains(&entry.metric.as_str())
            && picture.only.iter().all(is)
            && picture.over.is_none_or(|over| entry.params.contains_key(over))
            && (is_ours(&entry.subject) || is_rival(&entry.subject))
            && entry.median > 0.0
    };
    let (work, entries) = largest_work(picture, entries.iter().copied().filter(belongs).collect());
    let places = places(picture, &entries);
    let series = series(picture, &entries, &places);
    if places.len() < 2 || series.is_empty() {
        return None;
    }
    let unit = unit(&entries[0].unit).to_owned();
    let described = series.iter().map(|series| describe(series, &places)).collect::<Vec<_>>().join("; ");
    let over = picture.over.unwrap_or("percentile");
    let alt = format!("{}, {unit}. {described}.", picture.title);
    let (title, work) = (picture.title, phrases(&work));
    let svg = svg(&series, &places, [title, &work, over, &unit], colours);
    Some(Drawing { title, work, alt, svg })
}

/// Chooses the work that a picture shows, and returns it with its entries. That is the work with the most entries. Of
/// several such works it is the one of the largest size, and of those the first, which has the lowest rate.
fn largest_work<'a>(picture: &Picture, entries: Vec<&'a Entry>) -> (Params, Vec<&'a Entry>) {
    let mut names = work_names(&entries);
    names.retain(|name| Some(name.as_str()) != picture.over);
    let mut works: Vec<(Params, Vec<&Entry>)> = Vec::new();
    for entry in entries {
        let work = pick(entry, &names);
        match works.iter_mut().find(|(known, _)| *known == work) {
            Some((_, list)) => list.push(entry),
            None => works.push((work, vec![entry])),
        }
    }
    let size = |work: &Params| work.get("size").and_then(|size| quantity(size)).unwrap_or(0.0);
    let order = |(work, list): &(Params, Vec<&Entry>)| (list.len(), size(work).to_bits());
    works.into_iter().rev().max_by_key(order).unwrap_or_default()
}

/// The places from left to right: the metrics in the picture's order, or the values of its parameter from the least.
fn places(picture: &Picture, entries: &[&Entry]) -> Vec<String> {
    let Some(over) = picture.over else {
        let is_there = |metric: &&&str| entries.iter().any(|entry| entry.metric == **metric);
        return picture.metrics.iter().filter(is_there).map(|metric| (*metric).to_owned()).collect();
    };
    let mut places: Vec<String> = Vec::new();
    for value in entries.iter().map(|entry| &entry.params[over]) {
        if !places.contains(value) && places.len() < PLACES {
            places.push(value.clone());
        }
    }
    places.sort_by(|a, b| quantity(a).unwrap_or(f64::MAX).total_cmp(&quantity(b).unwrap_or(f64::MAX)));
    places
}

/// hugefork's lines first, because they have the first colours.
fn series<'a>(picture: &Picture, entries: &[&'a Entry], places: &[String]) -> Vec<Series<'a>> {
    let constants = constants(entries);
    let mut series: Vec<Series> = Vec::new();
    for entry in entries {
        let has_several = |other: &&Entry| {
            other.subject == entry.subject && other.params.get("backing") != entry.params.get("backing")
        };
        let backing = entry
            .params
            .get("backing")
            .filter(|_| !constants.contains_key("backing") && entries.iter().any(has_several));
        let label = backing.map_or_else(|| entry.subject.clone(), |backing| format!("{} {backing}", entry.subject));
        let value = picture.over.map_or(&entry.metric, |over| &entry.params[over]);
        let Some(place) = places.iter().position(|place| place == value) else { continue };
        match series.iter_mut().find(|series| series.label == label) {
            Some(series) if series.points.iter().any(|(known, _)| *known == place) => {}
            Some(series) => series.points.push((place, entry)),
            None => series.push(Series { label, points: vec![(place, entry)] }),
        }
    }
    series.sort_by_key(|series| !is_ours(&series.label));
    series.truncate(LINES);
    series.iter_mut().for_each(|series| series.points.sort_by_key(|(place, _)| *place));
    series
}

fn describe(series: &Series, places: &[String]) -> String {
    let value =
        |(place, entry): &(usize, &Entry)| format!("{} at {}", measured(entry.median, entry), spaced(&places[*place]));
    format!("{}: {}", series.label, series.points.iter().map(value).collect::<Vec<_>>().join(", "))
}

fn svg(series: &[Series], places: &[String], [title, work, x_label, y_label]: [&str; 4], colours: &Colours) -> String {
    let (mut plots, mut legend): (Vec<Plot>, Vec<LegendEntry>) = Default::default();
    // hugefork's line is drawn last, above the others.
    for (index, (series, colour)) in series.iter().zip(colours.lines).enumerate().rev() {
        let points: Vec<(f64, f64)> =
            series.points.iter().map(|(place, entry)| (*place as f64, entry.median)).collect();
        let down = series.points.iter().map(|(_, entry)| entry.median - lower_end(entry));
        let up = series.points.iter().map(|(_, entry)| entry.max() - entry.median);
        let line = LinePlot::new()
            .with_data(points.clone())
            .with_y_err_asymmetric(down.zip(up))
            .with_color(colour)
            .with_stroke_width(if index == 0 { 3.5 } else { 2.0 });
        plots.push(line.into());
        plots.push(ScatterPlot::new().with_data(points).with_color(colour).with_size(4.0).into());
        let (label, color) = (plain(&series.label), colour.to_owned());
        legend.insert(0, LegendEntry { label, color, shape: LegendShape::Circle, dasharray: None });
    }
    let drawn = || series.iter().flat_map(|series| &series.points).map(|(_, entry)| *entry);
    // Whole decades, with room for the marks.
    let least = 10f64.powf((drawn().map(lower_end).fold(f64::MAX, f64::min) / 1.2).log10().floor());
    let most = 10f64.powf((drawn().map(Entry::max).fold(0.0, f64::max) * 1.2).log10().ceil());
    let names: Vec<String> = places.iter().map(|place| plain(&spaced(place))).collect();
    let name = move |at: f64| names.get(at.round() as usize).filter(|_| (at - at.round()).abs() < 0.01).cloned();
    let theme = Theme {
        background: "none".to_owned(),
        axis_color: colours.faint.to_owned(),
        grid_color: colours.faint.to_owned(),
        tick_color: colours.faint.to_owned(),
        text_color: colours.ink.to_owned(),
        ..Theme::light()
    };
    let layout = Layout::auto_from_plots(&plots)
        .with_width(WIDTH)
        .with_height(HEIGHT + legend.len().div_ceil(2) as f64 * LEGEND_ROW)
        .with_theme(theme)
        .with_font_family("system-ui, sans-serif")
        .with_tick_size(15)
        .with_label_size(15)
        .with_body_size(15)
        .with_x_label(x_label)
        .with_log_y()
        .with_y_axis_min(least)
        .with_y_axis_max(most)
        .with_y_label(y_label)
        .with_y_tick_format(TickFormat::Custom(Arc::new(short)))
        .with_x_tick_step(1.0)
        .with_x_axis_min(-0.25)
        .with_x_axis_max(places.len() as f64 - 0.75)
        .with_x_tick_format(TickFormat::Custom(Arc::new(move |at| name(at).unwrap_or_default())))
        .with_x_label_overlap(AxisLabelOverlap::Thin)
        .with_legend_position(LegendPosition::OutsideBottomColumns)
        .with_legend_entries(legend)
        .with_legend_col_limit(2)
        .with_legend_box(false);
    // The page shows both as text.
    let layout = if colours.has_title {
        layout.with_title(title).with_title_size(16).with_title_wrap(60).with_subtitle(work).with_subtitle_size(14)
    } else {
        layout
    };
    let scene = kuva::render::render::render_multiple(plots, layout);
    let (width, height) = (scene.width, scene.height);
    let svg = kuva::backend::svg::SvgBackend::new().render_scene(&scene);
    // With a view box, the picture can be scaled.
    svg.replacen("<svg ", &format!("<svg viewBox=\"0 0 {width} {height}\" "), 1)
}

/// The lower end of the bar of an entry, which a logarithmic scale can show even if a sample is 0.
fn lower_end(entry: &Entry) -> f64 {
    entry.min().max(entry.median / 1000.0)
}

/// The number at a line of the scale.
fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", value / 1e6),
        value if value >= 1e4 => format!("{}k", value / 1e3),
        value if value >= 1.0 => format!("{value:.0}"),
        value => figure(value).trim_end_matches('0').to_owned(),
    }
}

/// A text of a file as a label. The library would take `$` and `\` for mathematics.
fn plain(text: &str) -> String {
    text.chars().map(|c| if matches!(c, '$' | '\\') { ' ' } else { c }).take(24).collect()
}
