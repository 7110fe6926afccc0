//! Colours and type of charts, and how wide a text is.
//!
//! Colours that carry meaning are near Okabe and Ito's, which people with any colour blindness can tell apart. hugefork
//! has them, and vermilion alone says that it loses. Everybody else is grey, with dashes and marks. The heat map goes
//! by lightness.

/// Name, on light, on dark.
type Colour = (&'static str, &'static str, &'static str);

const COLOURS: [Colour; 25] = [
    ("paper", "#ffffff", "#15171a"),
    ("ink", "#1d1f23", "#e4e5e7"),
    ("soft", "#656b74", "#9ba1aa"),
    ("rule", "#e4e6e9", "#2b2f35"),
    ("axis", "#a4a9b1", "#5a616b"),
    ("ours-0", "#0072b2", "#4fb3ee"),
    ("ours-1", "#007a59", "#3cc79d"),
    ("ours-2", "#7d4a9e", "#c49be6"),
    ("loss", "#c2410c", "#ff8a57"),
    ("bar", "#bcc1c8", "#535963"),
    ("theirs", "#757c86", "#8d949e"),
    ("heat-0", "#fff7dc", "#2b2519"),
    ("heat-1", "#fee8ab", "#493a1e"),
    ("heat-2", "#fdcb70", "#6f5321"),
    ("heat-3", "#f8a445", "#9a6e25"),
    ("heat-4", "#d9691d", "#c88f2f"),
    ("heat-5", "#ad430c", "#ebb751"),
    ("heat-6", "#742c07", "#ffe49c"),
    ("on-heat-0", "#1d1f23", "#e4e5e7"),
    ("on-heat-1", "#1d1f23", "#e4e5e7"),
    ("on-heat-2", "#1d1f23", "#ffffff"),
    ("on-heat-3", "#1d1f23", "#ffffff"),
    ("on-heat-4", "#ffffff", "#15171a"),
    ("on-heat-5", "#ffffff", "#15171a"),
    ("on-heat-6", "#ffffff", "#15171a"),
];

/// Steps of the heat map.
pub(crate) const HEATS: usize = 7;

/// Different hugefork lines. The last has the colour of the first, and dashes.
pub(crate) const OURS: usize = 4;

/// The size of labels.
pub(crate) const NORMAL: f64 = 12.5;

/// [`NORMAL`], as wide as it is in bold.
pub(crate) const BOLD: f64 = 1.12 * NORMAL;

/// The size of ticks and titles of axes.
pub(crate) const SMALL: f64 = 11.5;

/// The looks of the classes of charts, in the variables of [`variables`]. Selectors are plain classes, which resvg
/// knows.
pub(crate) const RULES: &str = "\
.chart text{font-size:12.5px;fill:var(--ink)}\
.chart .title{font-size:15px;font-weight:600}\
.chart .source{font-size:9px;fill:var(--soft)}\
.chart .soft{font-size:11.5px;fill:var(--soft)}\
.chart .value{font-size:12.5px}\
.chart .bold{font-weight:600}\
.chart .cell{font-size:11px}\
.chart .paper{fill:var(--paper)}\
.chart .hint{fill:none;stroke:none;pointer-events:all}\
.chart .rule{stroke:var(--rule);stroke-width:1}\
.chart .axis{stroke:var(--axis);stroke-width:1}\
.chart .whisker{stroke:var(--ink);stroke-width:1.2}\
.chart .leader{stroke:var(--axis);stroke-width:0.7}\
.chart .bar-ours{fill:var(--ours-0)}\
.chart .bar-theirs{fill:var(--bar)}\
.chart .bar-loss{fill:var(--loss)}\
.chart .dot-theirs{fill:var(--theirs)}\
.chart .stem{stroke:var(--axis);stroke-width:1.5}\
.chart .line{fill:none;stroke-width:1.8;stroke-linejoin:round}\
.chart .range{stroke-width:1;stroke-opacity:0.55}\
.chart .chosen{fill:none;stroke:var(--ours-0);stroke-width:2.5}\
.chart .s-ours-0{stroke:var(--ours-0)}.chart .s-ours-1{stroke:var(--ours-1)}.chart .s-ours-2{stroke:var(--ours-2)}\
.chart .s-ours-3{stroke:var(--ours-0)}.chart .d-ours-3{stroke-dasharray:5 3}\
.chart .s-theirs-0,.chart .s-theirs-1,.chart .s-theirs-2,.chart .s-theirs-3{stroke:var(--theirs)}\
.chart .d-theirs-1{stroke-dasharray:6 3}.chart .d-theirs-2{stroke-dasharray:2 2.5}.chart .d-theirs-3{stroke-dasharray:8 3 2 3}\
.chart .m-ours-0{fill:var(--ours-0)}.chart .m-ours-1{fill:var(--ours-1)}.chart .m-ours-2{fill:var(--ours-2)}\
.chart .m-ours-3{fill:var(--paper);stroke:var(--ours-0);stroke-width:1.4}\
.chart .m-theirs-0,.chart .m-theirs-1,.chart .m-theirs-2,.chart .m-theirs-3{fill:var(--paper);stroke:var(--theirs);stroke-width:1.4}\
.chart .t-ours-0{fill:var(--ours-0);font-weight:600}.chart .t-ours-1{fill:var(--ours-1);font-weight:600}\
.chart .t-ours-2{fill:var(--ours-2);font-weight:600}.chart .t-ours-3{fill:var(--ours-0);font-weight:600}\
.chart .heat-0{fill:var(--heat-0)}.chart .heat-1{fill:var(--heat-1)}.chart .heat-2{fill:var(--heat-2)}\
.chart .heat-3{fill:var(--heat-3)}.chart .heat-4{fill:var(--heat-4)}.chart .heat-5{fill:var(--heat-5)}\
.chart .heat-6{fill:var(--heat-6)}\
.chart .on-heat-0{fill:var(--on-heat-0)}.chart .on-heat-1{fill:var(--on-heat-1)}.chart .on-heat-2{fill:var(--on-heat-2)}\
.chart .on-heat-3{fill:var(--on-heat-3)}.chart .on-heat-4{fill:var(--on-heat-4)}.chart .on-heat-5{fill:var(--on-heat-5)}\
.chart .on-heat-6{fill:var(--on-heat-6)}";

/// Which colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// For a light ground.
    Light,
    /// For a dark ground.
    Dark,
}

/// The colours as CSS variables.
pub(crate) fn variables(scheme: Scheme) -> String {
    let declare = |colour: &Colour| format!("--{}:{}", colour.0, of(colour, scheme));
    COLOURS.iter().map(declare).collect::<Vec<_>>().join(";")
}

/// [`RULES`] with colours instead of variables, for files that stand alone: viewers and resvg do not know variables.
pub(crate) fn rules_in(scheme: Scheme) -> String {
    let font = ".chart{font-family:system-ui,sans-serif}";
    let put_in = |rules: String, colour: &Colour| rules.replace(&format!("var(--{})", colour.0), of(colour, scheme));
    COLOURS.iter().fold(format!("{font}{RULES}"), put_in)
}

fn of(colour: &Colour, scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Light => colour.1,
        Scheme::Dark => colour.2,
    }
}

/// About the width of `text` at `size`. It is rather too large than too small, since the reader's font is unknown.
pub(crate) fn width(text: &str, size: f64) -> f64 {
    let of = |c: char| match c {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' => 0.33,
        ' ' | '\u{a0}' | '-' | 'f' | 't' | 'r' | '/' | '(' | ')' => 0.4,
        'm' | 'w' | 'M' | 'W' | '@' | '%' => 0.95,
        'A'..='Z' => 0.7,
        c if c < '\u{1100}' => 0.62,
        _ => 1.05,
    };
    text.chars().map(of).sum::<f64>() * size
}

/// `text`, or as much of it as fits into `room` with an ellipsis.
pub(crate) fn fit(text: &str, size: f64, room: f64) -> String {
    if width(text, size) <= room {
        return text.to_owned();
    }
    let mut kept = String::new();
    for c in text.chars() {
        kept.push(c);
        if width(&kept, size) + size > room {
            kept.pop();
            break;
        }
    }
    kept.trim_end().to_owned() + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_colour_that_is_used_exists_in_both_schemes() {
        for scheme in [Scheme::Light, Scheme::Dark] {
            let rules = rules_in(scheme);
            assert!(!rules.contains("var("), "{rules}");
            assert_eq!(variables(scheme).matches("--").count(), COLOURS.len());
        }
    }

    #[test]
    fn what_does_not_fit_ends_in_an_ellipsis() {
        assert_eq!(fit("kernel-thp", NORMAL, 200.0), "kernel-thp");
        let cut = fit("neighbourhood-last/avx512-nt", NORMAL, 100.0);
        assert!(cut.ends_with('…') && width(&cut, NORMAL) <= 100.0 + NORMAL, "{cut}");
        assert_eq!(fit("wide", NORMAL, 0.0), "…");
    }
}
