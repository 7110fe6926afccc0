//! Horizontal bars with whiskers from the least to the greatest sample.
//!
//! ```text
//! hugefork    ███├──┤               33.3      labels beside the bars, or above them where they are long
//! kernel-thp  ██████████├┤          90.6
//!             0     50     100
//! ```

use super::scale::{Kind, Scale};
use super::style::{BOLD, NORMAL, SMALL, fit, width};
use super::svg::{Anchor, Svg};
use super::{Drawing, WIDTH};
use crate::figures::figure;

/// One bar.
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) ours: bool,
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
    /// What is said under the pointer.
    pub(crate) hint: String,
}

impl Bar {
    /// As which size its text is as wide as in normal type: hugefork's is bold.
    fn size(&self) -> f64 {
        if self.ours { BOLD } else { NORMAL }
    }
}

/// Labels wider than this go above their bars.
const BESIDE: f64 = 150.0;

const THICKNESS: f64 = 11.0;

/// Draws `bars` over an axis called `title`.
pub(crate) fn draw(bars: &[Bar], title: &str) -> Drawing {
    let widest = |texts: &mut dyn Iterator<Item = f64>| texts.fold(0.0, f64::max);
    let label_width = widest(&mut bars.iter().map(|bar| width(&bar.label, bar.size())));
    let value_width = widest(&mut bars.iter().map(|bar| width(&figure(bar.median), bar.size())));
    let beside = label_width <= BESIDE;
    let (left, row) = if beside { (label_width + 8.0, 23.0) } else { (0.0, 38.0) };
    let right = WIDTH - value_width - 12.0;
    let low = bars.iter().map(|bar| bar.min).fold(0.0, f64::min);
    let high = bars.iter().map(|bar| bar.max).fold(0.0, f64::max);
    let scale = Scale::new(Kind::Linear, low, high, left, right);
    let bottom = row * bars.len() as f64 + 4.0;

    let mut svg = Svg::default();
    for (value, text) in scale.ticks(((right - left) / 60.0) as usize) {
        let x = scale.at(value);
        svg.line((x, 0.0), (x, bottom), if value == 0.0 { "axis" } else { "rule" });
        // Half of the text must not stick out on the left.
        let half = width(&text, SMALL) / 2.0;
        svg.text(x.max(half), bottom + 14.0, Anchor::Middle, "soft", &text);
    }
    for (index, bar) in bars.iter().enumerate() {
        let top = row * index as f64;
        let middle = if beside { top + row / 2.0 } else { top + row - THICKNESS / 2.0 - 4.0 };
        let bold = if bar.ours { "bold" } else { "plain" };
        if beside {
            svg.text(left - 8.0, middle + 4.3, Anchor::End, bold, &bar.label);
        } else {
            svg.text(0.0, middle - THICKNESS / 2.0 - 4.0, Anchor::Start, bold, &fit(&bar.label, bar.size(), WIDTH));
        }
        let (zero, end) = (scale.at(0.0), scale.at(bar.median));
        let class = if bar.ours { "bar-ours" } else { "bar-theirs" };
        svg.rect((zero.min(end), middle - THICKNESS / 2.0), ((end - zero).abs(), THICKNESS), class);
        let (from, to) = (scale.at(bar.min), scale.at(bar.max));
        // Closer than that is one line across the end of the bar, which says nothing.
        if to - from > 1.5 {
            svg.line((from, middle), (to, middle), "whisker");
            for end in [from, to] {
                svg.line((end, middle - 3.0), (end, middle + 3.0), "whisker");
            }
        }
        svg.text(WIDTH, middle + 4.3, Anchor::End, bold, &figure(bar.median));
        svg.hint((0.0, top), (WIDTH, row), &bar.hint);
    }
    let middle = f64::midpoint(left, right);
    let half = width(title, SMALL) / 2.0;
    svg.text(middle.min(WIDTH - half).max(half), bottom + 32.0, Anchor::Middle, "soft", title);
    Drawing { height: bottom + 38.0, body: svg.into_string() }
}
