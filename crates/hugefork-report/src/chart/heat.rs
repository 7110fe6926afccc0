//! A heat map: rows and columns are choices, a cell is what they cost. Darker is more; on a dark page, lighter is more.

use super::scale::{Kind, Scale};
use super::style::{HEATS, NORMAL, SMALL, fit, width};
use super::svg::{Anchor, Svg};
use super::{Drawing, WIDTH};
use crate::figures::figure;

/// What is drawn.
pub(crate) struct Map {
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<HeatRow>,
    /// What a cell is, with its unit.
    pub(crate) title: String,
}

/// One row.
pub(crate) struct HeatRow {
    pub(crate) label: String,
    /// As many as there are columns.
    pub(crate) cells: Vec<Option<HeatCell>>,
}

/// One cell.
#[derive(Clone)]
pub(crate) struct HeatCell {
    pub(crate) median: f64,
    /// Whether hugefork chose it.
    pub(crate) chosen: bool,
    /// What is said under the pointer.
    pub(crate) hint: String,
}

const ROW: f64 = 26.0;

/// Draws `map`.
pub(crate) fn draw(map: &Map) -> Drawing {
    let cells = || map.rows.iter().flat_map(|row| row.cells.iter().flatten());
    let least = cells().map(|cell| cell.median).fold(f64::INFINITY, f64::min);
    let greatest = cells().map(|cell| cell.median).fold(f64::NEG_INFINITY, f64::max);
    let left = map.rows.iter().map(|row| width(&row.label, NORMAL)).fold(0.0, f64::max).min(140.0) + 8.0;
    // Names of columns are longer than columns are wide. They rise by half a right angle, and the last one into the
    // margin.
    let heads: Vec<String> = map.columns.iter().map(|column| fit(column, SMALL, 90.0)).collect();
    let rise = |head: &String| width(head, SMALL) * std::f64::consts::FRAC_1_SQRT_2;
    let top = heads.iter().map(rise).fold(0.0, f64::max) + 12.0;
    let columns = heads.len().max(1) as f64;
    let margin = (heads.last().map_or(0.0, rise) - 12.0).max(0.0);
    let across = (WIDTH - left - margin) / columns;
    let mut svg = Svg::default();
    for (index, head) in heads.iter().enumerate() {
        svg.slanted(left + across * (index as f64 + 0.5), top - 5.0, "soft", head);
    }
    let mut chosen = Vec::new();
    for (index, row) in map.rows.iter().enumerate() {
        let height = top + ROW * index as f64;
        svg.text(left - 8.0, height + ROW / 2.0 + 4.3, Anchor::End, "plain", &fit(&row.label, NORMAL, left));
        for (column, cell) in row.cells.iter().enumerate() {
            let Some(cell) = cell else {
                continue;
            };
            let corner = (left + across * column as f64, height);
            let heat = heat(cell.median, least, greatest);
            svg.rect((corner.0 + 0.5, corner.1 + 0.5), (across - 1.0, ROW - 1.0), &format!("heat-{heat}"));
            let text = figure(cell.median);
            let middle = (corner.0 + across / 2.0, corner.1 + ROW / 2.0 + 3.9);
            if width(&text, 11.0) <= across + 2.0 {
                svg.text(middle.0, middle.1, Anchor::Middle, &format!("cell on-heat-{heat}"), &text);
            }
            svg.hint(corner, (across, ROW), &cell.hint);
            if cell.chosen {
                chosen.push(corner);
            }
        }
    }
    let bottom = top + ROW * map.rows.len() as f64;
    for corner in &chosen {
        svg.rect((corner.0 + 0.5, corner.1 + 0.5), (across - 1.0, ROW - 1.0), "chosen");
    }
    let key =
        if chosen.is_empty() { map.title.clone() } else { format!("{}; framed: hugefork\u{2019}s choice", map.title) };
    svg.text(WIDTH - margin, bottom + 18.0, Anchor::End, "soft", &fit(&key, SMALL, WIDTH - margin));
    Drawing { width: WIDTH, height: bottom + 26.0, body: svg.into_string() }
}

/// Which of the steps between `least` and `greatest` a value is on.
fn heat(value: f64, least: f64, greatest: f64) -> usize {
    if greatest <= least {
        return 0;
    }
    let scale = Scale::new(Kind::Linear, least, greatest, 0.0, HEATS as f64);
    (scale.at(value) as usize).min(HEATS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_goes_from_the_least_to_the_greatest() {
        assert_eq!([10.0, 15.0, 20.0].map(|value| heat(value, 10.0, 20.0)), [0, 3, 6]);
        assert_eq!(heat(5.0, 5.0, 5.0), 0);
    }
}
