//! Numbers, units and words as they are shown.

use crate::record::{Entry, Params};

/// A measured value as it is shown, with three significant digits.
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

/// The head of a metric's column: `pause ms`. A unit that only says the name again is left out.
pub fn with_unit(metric: &str, unit: &str) -> String {
    if unit.is_empty() || metric == unit { metric.to_owned() } else { format!("{metric} {unit}") }
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

/// `2MiB` as `2 MiB`, with a no-break space; other words as they are.
pub(crate) fn spaced(word: &str) -> String {
    let digits = word.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = word.split_at(digits);
    match unit {
        "KiB" | "MiB" | "GiB" | "TiB" if digits > 0 => format!("{number}\u{a0}{unit}"),
        _ => word.to_owned(),
    }
}

/// `5000` as `5k`, for places on an axis that are close to each other; other words as they are.
pub(crate) fn counted(word: &str) -> String {
    let short = [("000000", 'M'), ("000", 'k')].into_iter().find_map(|(zeros, sign)| {
        let digits = word.strip_suffix(zeros).filter(|rest| !rest.is_empty() && quantity(word).is_some())?;
        Some(format!("{digits}{sign}"))
    });
    short.unwrap_or_else(|| word.to_owned())
}

/// The value of a size or a count; none for words.
pub(crate) fn quantity(word: &str) -> Option<f64> {
    let digits = word.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = word.split_at(digits);
    let scale = match unit {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    let number: u32 = number.parse().ok()?;
    Some(f64::from(number) * 2f64.powi(scale))
}

/// One parameter in words.
pub(crate) fn phrase(name: &str, value: &str) -> String {
    let value = spaced(value);
    match name {
        // How huge pages were got, as in `shmem-thp (MADV_COLLAPSE)`, is for tables.
        "backing" => value.split(" (").next().unwrap_or_default().to_owned(),
        "size" | "density" | "order" | "pattern" => value,
        "tasks" if value == "1" => "1 task".to_owned(),
        "tasks" => format!("{value} tasks"),
        "writes" => format!("{value} writes"),
        "held" => format!("{value} held"),
        "use" if value == "block" => "whole block used".to_owned(),
        "use" => format!("{value} used"),
        "stride" => format!("one write every {value}"),
        "area" => format!("rotating over {value}"),
        "victim" => format!("other CPU reads {value}"),
        "block_size" => format!("{value} blocks"),
        "window" => format!("{value} window"),
        _ => format!("{name} {value}"),
    }
}

/// Parameters in words, in the order in which people say them.
pub(crate) fn phrases<'a>(params: impl IntoIterator<Item = (&'a String, &'a String)>) -> String {
    const ORDER: [&str; 12] = [
        "density",
        "writes",
        "pattern",
        "epoch",
        "tasks",
        "size",
        "block_size",
        "backing",
        "use",
        "stride",
        "area",
        "victim",
    ];
    let mut list: Vec<(&String, &String)> = params.into_iter().collect();
    // A density that is a number is that of 1 GiB, and the number of writes says more.
    if list.iter().any(|(name, _)| *name == "writes") {
        list.retain(|(name, value)| *name != "density" || quantity(value).is_none());
    }
    list.sort_by_key(|(name, _)| ORDER.iter().position(|known| known == name).unwrap_or(ORDER.len()));
    list.into_iter().map(|(name, value)| phrase(name, value)).collect::<Vec<_>>().join(", ")
}

/// Parameters as the file has them.
pub(crate) fn words<'a>(params: impl IntoIterator<Item = (&'a String, &'a String)>) -> String {
    params.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// Those of `params` that all of `others` have alike.
pub(crate) fn common<'a>(mut others: impl Iterator<Item = &'a Params>) -> Params {
    let mut common = others.next().cloned().unwrap_or_default();
    for other in others {
        common.retain(|name, value| other.get(name) == Some(value));
    }
    common
}

/// From so many times the least sample on, the greatest is worth a word.
const STEADY: f64 = 1.3;

/// How much the samples vary, if that is much: ` (varies 1.7-fold)`.
pub(crate) fn variation(entry: &Entry) -> String {
    let times = entry.max() / entry.min();
    if times.is_finite() && times > STEADY { format!(" (varies {times:.1}-fold)") } else { String::new() }
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
    fn a_unit_that_says_the_name_again_is_left_out() {
        assert_eq!(with_unit("pause", "ms"), "pause ms");
        assert_eq!(with_unit("faults", "faults"), "faults");
        assert_eq!(with_unit("amplification", unit("count")), "amplification");
    }

    #[test]
    fn sizes_and_counts_are_quantities_and_words_are_not() {
        assert_eq!(quantity("2MiB"), Some(2097152.0));
        assert_eq!(quantity("16"), Some(16.0));
        for word in ["", "MiB", "block", "2MB", "99999999999999999999"] {
            assert_eq!(quantity(word), None, "{word}");
        }
    }

    #[test]
    fn large_counts_are_short_on_an_axis() {
        let words = ["10", "1000", "12500", "500000", "1000000", "2500000", "000", "a000", "0"];
        assert_eq!(words.map(counted), ["10", "1k", "12500", "500k", "1M", "2500k", "000", "a000", "0"]);
    }

    #[test]
    fn parameters_are_said_in_words() {
        let params =
            Params::from([("use", "block"), ("size", "2MiB"), ("colour", "red")].map(|(n, v)| (n.into(), v.into())));
        assert_eq!(phrases(&params), "2\u{a0}MiB, whole block used, colour red");
    }

    #[test]
    fn what_varies_much_is_said_to() {
        let of = |samples: &[f64]| {
            let one = serde_json::json!({"case": "c", "subject": "s", "metric": "m", "unit": "us", "samples": samples});
            let file = serde_json::json!({"schema": 1, "results": [one]}).to_string();
            variation(&crate::load::parse("a.json", file.as_bytes()).unwrap().entries[0])
        };
        assert_eq!([of(&[1.0]), of(&[1.0, 1.3]), of(&[2.0, 1.0, 1.5])], ["", "", " (varies 2.0-fold)"]);
        assert_eq!(of(&[0.0, 1.0]), "");
    }
}
