//! Elements of an SVG, with everything that comes from a file escaped.

use std::fmt::Write;

/// Which part of a text is at its point.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A shape that tells one line's points from another's.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mark {
    Circle,
    Square,
    Triangle,
    Diamond,
}

impl Mark {
    pub(crate) const ALL: [Mark; 4] = [Mark::Circle, Mark::Square, Mark::Triangle, Mark::Diamond];
}

/// Elements, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Svg(String);

impl Svg {
    pub(crate) fn into_string(self) -> String {
        self.0
    }

    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.push(format_args!(
            "<line class=\"{class}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>",
            at(x1),
            at(y1),
            at(x2),
            at(y2)
        ));
    }

    pub(crate) fn rect(&mut self, corner: (f64, f64), size: (f64, f64), class: &str) {
        self.push(format_args!("<rect class=\"{class}\" {}/>", area(corner, size)));
    }

    /// An invisible area that says `text` under the pointer.
    pub(crate) fn hint(&mut self, corner: (f64, f64), size: (f64, f64), text: &str) {
        let area = area(corner, size);
        self.push(format_args!("<rect class=\"hint\" {area}><title>{}</title></rect>", escape(text)));
    }

    pub(crate) fn polyline(&mut self, points: &[(f64, f64)], class: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{},{}", at(*x), at(*y))).collect();
        self.push(format_args!("<polyline class=\"{class}\" points=\"{}\"/>", points.join(" ")));
    }

    pub(crate) fn text(&mut self, x: f64, y: f64, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.push(format_args!(
            "<text class=\"{class}\" x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            at(x),
            at(y),
            escape(text)
        ));
    }

    /// A text that rises to the right.
    pub(crate) fn slanted(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let (x, y) = (at(x), at(y));
        self.push(format_args!(
            "<text class=\"slanted {class}\" x=\"{x}\" y=\"{y}\" transform=\"rotate(-45 {x} {y})\">{}</text>",
            escape(text)
        ));
    }

    pub(crate) fn dot(&mut self, x: f64, y: f64, radius: f64, class: &str) {
        let (x, y) = (at(x), at(y));
        self.push(format_args!("<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"{radius}\"/>"));
    }

    pub(crate) fn mark(&mut self, mark: Mark, x: f64, y: f64, class: &str) {
        let polygon = |corners: &[(f64, f64)]| {
            let corners: Vec<String> =
                corners.iter().map(|(dx, dy)| format!("{},{}", at(x + dx), at(y + dy))).collect();
            format!("<polygon class=\"{class}\" points=\"{}\"/>", corners.join(" "))
        };
        let shape = match mark {
            Mark::Circle => format!("<circle class=\"{class}\" cx=\"{}\" cy=\"{}\" r=\"3.2\"/>", at(x), at(y)),
            Mark::Square => polygon(&[(-2.9, -2.9), (2.9, -2.9), (2.9, 2.9), (-2.9, 2.9)]),
            Mark::Triangle => polygon(&[(0.0, -3.9), (3.6, 2.6), (-3.6, 2.6)]),
            Mark::Diamond => polygon(&[(0.0, -4.1), (4.1, 0.0), (0.0, 4.1), (-4.1, 0.0)]),
        };
        self.0.push_str(&shape);
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.0.write_fmt(element);
    }
}

fn area((x, y): (f64, f64), (width, height): (f64, f64)) -> String {
    format!("x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"", at(x), at(y), at(width.max(0.0)), at(height.max(0.0)))
}

/// A coordinate, to a tenth of a unit.
fn at(value: f64) -> f64 {
    debug_assert!(value.is_finite(), "scales map into the drawing");
    // Adding zero turns -0 into 0.
    (value * 10.0).round() / 10.0 + 0.0
}

/// For text and attributes of XML and HTML.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}
