//! Numbers, units and parameters as text.

use crate::record::{Entry, Params};

/// A measured value with three significant digits.
pub fn figure(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.9995 => format!("{value:.2}"),
        size if size >= 0.09995 => format!("{value:.3}"),
        size if size >= 0.009995 => format!("{value:.4}"),
        _ => format!("{value:.5}"),
    }
}

/// The head of a metric's column: `call ms`. A unit that repeats the name is left out.
pub fn with_unit(metric: &str, unit: &str) -> String {
    let metric = metric.replace('_', " ");
    if unit.is_empty() || metric == unit { metric } else { format!("{metric} {unit}") }
}

/// A unit with its sign.
pub(crate) fn unit(unit: &str) -> &str {
    match unit {
        "us" => "µs",
        "ratio" => "×",
        "count" => "",
        other => other,
    }
}

/// A value with its unit.
pub(crate) fn measured(value: f64, of: &Entry) -> String {
    format!("{} {}", figure(value), unit(&of.unit)).trim_end().to_owned()
}

/// `2MiB` as `2 MiB`; other words as they are.
pub(crate) fn spaced(word: &str) -> String {
    let (number, unit) = split(word);
    match unit {
        "KiB" | "MiB" | "GiB" | "TiB" if !number.is_empty() => format!("{number} {unit}"),
        _ => word.to_owned(),
    }
}

/// The value of a size, a count or a percentage; none for words.
pub(crate) fn quantity(word: &str) -> Option<f64> {
    let (number, unit) = split(word);
    let scale = match unit {
        "" | "B" | "%" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    Some(number * 2f64.powi(scale))
}

fn split(word: &str) -> (&str, &str) {
    word.split_at(word.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count())
}

/// Parameters in words: the size alone, any other parameter with its name.
pub(crate) fn phrases(params: &Params) -> String {
    let phrase = |(name, value): (&String, &String)| match name.as_str() {
        "size" => spaced(value),
        name => format!("{} {}", name.replace('_', " "), spaced(value)),
    };
    let (size, others): (Params, Params) = params.clone().into_iter().partition(|(name, _)| name == "size");
    size.iter().chain(&others).map(phrase).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.001234, "0.00123"),
            (0.0665, "0.0665"),
            (9.996, "10.0"),
            (24.04, "24.0"),
            (1234.5, "1234"),
            (-3.21, "-3.21"),
        ] {
            assert_eq!(figure(value), text);
        }
    }

    #[test]
    fn a_unit_that_repeats_the_name_is_left_out() {
        assert_eq!(with_unit("call", "ms"), "call ms");
        assert_eq!(with_unit("faults", "faults"), "faults");
        assert_eq!(with_unit("victim_slowdown", unit("count")), "victim slowdown");
    }

    #[test]
    fn sizes_counts_and_percentages_are_quantities_and_words_are_not() {
        assert_eq!(quantity("2MiB"), Some(2097152.0));
        assert_eq!(quantity("16"), Some(16.0));
        assert_eq!(quantity("0.1%"), Some(0.1));
        for word in ["", "MiB", "block", "2MB", ".", "1.2.3"] {
            assert_eq!(quantity(word), None, "{word}");
        }
        assert_eq!([spaced("2MiB"), spaced("64"), spaced("MiB")], ["2 MiB", "64", "MiB"]);
    }

    #[test]
    fn the_size_comes_first() {
        let params = Params::from(
            [("use", "block"), ("size", "2MiB"), ("block_size", "4KiB")].map(|(n, v)| (n.into(), v.into())),
        );
        assert_eq!(phrases(&params), "2 MiB, block size 4 KiB, use block");
    }
}
