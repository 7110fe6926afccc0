//! Horizontal bars with whiskers from the least to the greatest sample. If figures lie so far apart that some bars
//! would not be seen, they are dots on a logarithmic axis, which has no zero for bars to start from.
//!
//! ```text
//! hugefork    ███├──┤               33.3      labels beside the bars, or above them where they are long
//! kernel-thp  ██████████├┤          90.6
//!             0     50     100
//!
//! hugefork    ──●                   0.30
//! fork-4k     ───────────●          93.1
//!             0.1   1   10   100
//! ```

use super::scale::{Kind, Scale};
use super::style::{BOLD, NORMAL, SMALL, fit, width};
use super::svg::{Anchor, Svg};
use super::{Drawing, FAR_APART, WIDTH};

/// One bar.
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) tone: Tone,
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
    /// What stands at its end: the median.
    pub(crate) text: String,
    /// What is said under the pointer.
    pub(crate) hint: String,
}

/// Whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Ours,
    /// hugefork's, where it loses.
    Loss,
    Theirs,
}

impl Tone {
    fn class(self) -> &'static str {
        match self {
            Tone::Ours => "bar-ours",
            Tone::Loss => "bar-loss",
            Tone::Theirs => "bar-theirs",
        }
    }
}

impl Bar {
    fn is_ours(&self) -> bool {
        self.tone != Tone::Theirs
    }

    /// The size of normal type in which its text would be as wide: hugefork's text is bold.
    fn size(&self) -> f64 {
        if self.is_ours() { BOLD } else { NORMAL }
    }
}

/// Labels that are wider than this part of the drawing go above their bars.
const BESIDE: f64 = 0.375;

const THICKNESS: f64 = 11.0;

/// The radius of a dot.
const DOT: f64 = 5.0;

/// Draws `bars` over an axis called `title`, on a drawing of the usual width.
pub(crate) fn draw(bars: &[Bar], title: &str) -> Drawing {
    draw_across(WIDTH, bars, title)
}

/// Draws `bars` on a drawing of `across` units.
pub(crate) fn draw_across(across: f64, bars: &[Bar], title: &str) -> Drawing {
    let widest = |texts: &mut dyn Iterator<Item = f64>| texts.fold(0.0, f64::max);
    let label_width = widest(&mut bars.iter().map(|bar| width(&bar.label, bar.size())));
    let value_width = widest(&mut bars.iter().map(|bar| width(&bar.text, bar.size())));
    let beside = label_width <= BESIDE * across;
    let (left, row) = if beside { (label_width + 8.0, 23.0) } else { (0.0, 38.0) };
    let right = across - value_width - 12.0;
    let scale = scale(bars, left, right);
    let title = if scale.is_log() { format!("{title} (logarithmic)") } else { title.to_owned() };
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
        let bold = if bar.is_ours() { "bold" } else { "plain" };
        if beside {
            svg.text(left - 8.0, middle + 4.3, Anchor::End, bold, &bar.label);
        } else {
            svg.text(0.0, middle - THICKNESS / 2.0 - 4.0, Anchor::Start, bold, &fit(&bar.label, bar.size(), across));
        }
        mark(&mut svg, &scale, bar, left, middle);
        svg.text(across, middle + 4.3, Anchor::End, bold, &bar.text);
        svg.hint((0.0, top), (across, row), &bar.hint);
    }
    let middle = f64::midpoint(left, right);
    let half = width(&title, SMALL) / 2.0;
    svg.text(middle.min(across - half).max(half), bottom + 32.0, Anchor::Middle, "soft", &title);
    Drawing { width: across, height: bottom + 38.0, body: svg.into_string() }
}

/// From zero, or logarithmic where the least would not be seen beside the greatest.
fn scale(bars: &[Bar], left: f64, right: f64) -> Scale {
    let least = bars.iter().map(|bar| bar.min).fold(f64::INFINITY, f64::min);
    let high = bars.iter().map(|bar| bar.max).fold(0.0, f64::max);
    let medians = || bars.iter().map(|bar| bar.median);
    let apart = medians().fold(0.0, f64::max) / medians().fold(f64::INFINITY, f64::min);
    // What is not positive has no logarithm.
    if apart > FAR_APART && least > 0.0 {
        // So that the least is not on the edge.
        return Scale::new(Kind::Log, least / 1.5, high, left, right);
    }
    Scale::new(Kind::Linear, least.min(0.0), high, left, right)
}

fn mark(svg: &mut Svg, scale: &Scale, bar: &Bar, left: f64, middle: f64) {
    let end = scale.at(bar.median);
    if scale.is_log() {
        svg.line((left, middle), (end, middle), "stem");
    } else {
        let zero = scale.at(0.0);
        let corner = (zero.min(end), middle - THICKNESS / 2.0);
        svg.rect(corner, ((end - zero).abs(), THICKNESS), bar.tone.class());
    }
    let (from, to) = (scale.at(bar.min), scale.at(bar.max));
    // A shorter whisker would be one line across the end of the bar, and say nothing.
    if to - from > 1.5 {
        svg.line((from, middle), (to, middle), "whisker");
        for end in [from, to] {
            svg.line((end, middle - 3.0), (end, middle + 3.0), "whisker");
        }
    }
    if scale.is_log() {
        svg.dot(end, middle, DOT, if bar.is_ours() { bar.tone.class() } else { "dot-theirs" });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(medians: &[f64]) -> Vec<Bar> {
        let bar = |median: &f64| Bar {
            label: "hugefork".to_owned(),
            tone: Tone::Ours,
            min: *median,
            median: *median,
            max: *median,
            text: String::new(),
            hint: String::new(),
        };
        medians.iter().map(bar).collect()
    }

    #[test]
    fn what_would_not_be_seen_is_a_dot_on_a_logarithmic_axis() {
        let far = draw(&bars(&[0.303, 1.87, 93.1]), "pause, ms").body;
        assert_eq!(far.matches("<circle class=\"bar-ours\"").count(), 3);
        assert!(far.contains("pause, ms (logarithmic)") && !far.contains("<rect class=\"bar"), "{far}");
        for near in [&[10.0, 20.0][..], &[0.0, 93.1], &[-1.0, 93.1]] {
            let near = draw(&bars(near), "pause, ms").body;
            assert!(near.contains("<rect class=\"bar-ours\"") && !near.contains("logarithmic"), "{near}");
        }
    }

    #[test]
    fn a_loss_has_a_colour_of_its_own() {
        let mut list = bars(&[10.0, 20.0]);
        list[1].tone = Tone::Loss;
        let drawn = draw(&list, "").body;
        assert!(drawn.contains("bar-ours") && drawn.contains("bar-loss"), "{drawn}");
    }
}
