//! A ratio as a point on a line. 1 is in the same place in every row, so that a table of them can be read at a glance.

use std::fmt::Write;

use crate::bootstrap::Interval;
use crate::chart::style::width;
use crate::headline::{Beside, Headline};

/// What all rows share.
pub(crate) struct Strip {
    low: f64,
    high: f64,
}

const WIDTH: f64 = 220.0;
const MIDDLE: f64 = 10.0;
const MARGIN: f64 = 12.0;

/// The size of its type, as in `style.css`.
const TYPE: f64 = 11.0;

/// The least room between two texts.
const GAP: f64 = 3.0;

/// Ratios that get a line.
const TICKS: [f64; 9] = [0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 100.0, 300.0];

impl Strip {
    /// Wide enough for all of `lines`, on both sides of 1.
    pub(crate) fn over(lines: &[Headline]) -> Strip {
        let ends = lines.iter().flat_map(Headline::best).flat_map(|best| {
            let interval = best.interval.unwrap_or(Interval { low: best.ratio, high: best.ratio });
            [best.ratio, interval.low, interval.high]
        });
        let (mut low, mut high) = (0.8, 2.0);
        for end in ends.filter(|end| end.is_finite() && *end > 0.0) {
            low = f64::min(low, end);
            high = f64::max(high, end);
        }
        Strip { low, high }
    }

    /// The axis, for the head of the table.
    pub(crate) fn head(&self) -> String {
        let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} 20\" aria-hidden=\"true\">");
        let mut free = f64::NEG_INFINITY;
        for tick in self.ticks() {
            let x = self.at(tick);
            let text = format!("{tick}×");
            let half = width(&text, TYPE) / 2.0;
            // 1 always has its text, whatever is beside it.
            if x - half > free && (tick >= 1.0 || x + half + width("1×", TYPE) < self.at(1.0)) {
                let _ = write!(svg, "<text x=\"{x}\" y=\"15\" text-anchor=\"middle\">{text}</text>");
                free = x + half + GAP;
            }
        }
        svg + "</svg>"
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        TICKS.into_iter().filter(|tick| (self.low..=self.high).contains(tick))
    }

    /// One row.
    pub(crate) fn draw(&self, best: &Beside) -> String {
        let standing = best.standing().class();
        let mut svg =
            format!("<svg viewBox=\"0 0 {WIDTH} 20\" preserveAspectRatio=\"xMinYMid meet\" aria-hidden=\"true\">");
        for tick in self.ticks() {
            let (x, class) = (self.at(tick), if tick == 1.0 { "one" } else { "grid" });
            let _ = write!(svg, "<line class=\"{class}\" x1=\"{x}\" y1=\"0\" x2=\"{x}\" y2=\"20\"/>");
        }
        if let Some(interval) = best.interval {
            let (from, to) = (self.at(interval.low), self.at(interval.high));
            let _ = write!(
                svg,
                "<line class=\"span {standing}\" x1=\"{from}\" y1=\"{MIDDLE}\" x2=\"{to}\" y2=\"{MIDDLE}\"/>"
            );
        }
        let _ =
            write!(svg, "<circle class=\"{standing}\" cx=\"{}\" cy=\"{MIDDLE}\" r=\"4\"/></svg>", self.at(best.ratio));
        svg
    }

    fn at(&self, ratio: f64) -> f64 {
        let part = (ratio / self.low).ln() / (self.high / self.low).ln();
        let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
        ((MARGIN + part * (WIDTH - 2.0 * MARGIN)) * 10.0).round() / 10.0
    }
}
