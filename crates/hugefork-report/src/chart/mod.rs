//! Drawings: bars, lines and heat maps as SVG.
//!
//! They are written by hand. kuva 0.6 was tried on the same figures: its SVG has a fixed size and no `viewBox`, a white
//! background and colours in every element, so that a chart neither shrinks to a phone (at 400 pixels one sees half of
//! 830) nor turns dark with the page. Three kinds of charts with classes for colours take less than adapting it.
//!
//! A drawing is [`WIDTH`] units wide. That is a column of the page on a large screen and all of it on a phone, so that
//! text is readable on both without much scaling.

pub(crate) mod bars;
pub(crate) mod heat;
pub(crate) mod lines;
mod scale;
pub(crate) mod style;
mod svg;

pub(crate) use svg::escape;

use style::Scheme;
use svg::{Anchor, Svg};

/// Units across.
pub(crate) const WIDTH: f64 = 400.0;

/// If the greatest value is so many times the least, the least would not be seen on an axis from zero.
const FAR_APART: f64 = 20.0;

/// What is behind a picture.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ground {
    Paper,
    /// Whatever it is put on.
    None,
}

/// What is drawn inside an `<svg>`.
#[derive(Debug)]
pub(crate) struct Drawing {
    width: f64,
    height: f64,
    body: String,
}

impl Drawing {
    /// The drawing for a page that has [`style::RULES`] and their colours; `label` is for those who do not see it.
    pub(crate) fn inline(&self, label: &str) -> String {
        format!(
            "<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">{}</svg>",
            self.width,
            self.height,
            escape(label),
            self.body
        )
    }

    /// The drawing as a file of its own, with heading, lines of source and colours, on paper or on whatever is behind
    /// it.
    pub(crate) fn standalone(&self, heading: [&str; 2], source: &[String], scheme: Scheme, ground: Ground) -> String {
        let [title, subtitle] = heading;
        const MARGIN: f64 = 14.0;
        let mut head = Svg::default();
        let mut top = MARGIN + 12.0;
        head.text(0.0, top, Anchor::Start, "title", &style::fit(title, 15.0, self.width));
        if !subtitle.is_empty() {
            top += 18.0;
            head.text(0.0, top, Anchor::Start, "soft", &style::fit(subtitle, style::SMALL, self.width));
        }
        top += 12.0;
        let mut bottom = top + self.height + 4.0;
        for line in source {
            bottom += 12.0;
            head.text(0.0, bottom, Anchor::Start, "source", &style::fit(line, 9.0, self.width));
        }
        let (width, height) = (self.width + 2.0 * MARGIN, bottom + MARGIN);
        let paper = match ground {
            Ground::Paper => {
                format!("<rect class=\"paper\" x=\"{}\" y=\"0\" width=\"{width}\" height=\"{height}\"/>", -MARGIN)
            }
            Ground::None => String::new(),
        };
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" width=\"{width}\" height=\"{height}\" viewBox=\"{} 0 \
             {width} {height}\"><style>{}</style>{paper}{}<g transform=\"translate(0 {top})\">{}</g></svg>\n",
            -MARGIN,
            style::rules_in(scheme),
            head.into_string(),
            self.body
        )
    }
}
