//! The page against the files that it was made from.

mod common;

use std::collections::BTreeSet;

use hugefork_report::{pictures, report};

#[test]
fn every_figure_shown_is_in_the_files_and_rounded_right() {
    let records = common::everything();
    let page = common::page();
    let entries = || records.iter().flat_map(|record| &record.entries);
    let known: BTreeSet<u64> = entries()
        .flat_map(|entry| [entry.median, entry.min(), entry.max(), entry.samples.len() as f64])
        .map(f64::to_bits)
        .collect();
    let mut seen = BTreeSet::new();
    for chart in common::charts(page) {
        let figures = common::figures(chart);
        assert!(!figures.is_empty(), "a chart has no table: {chart}");
        for (value, text) in figures {
            assert!(known.contains(&value.to_bits()), "{value} is in no file");
            let shown: f64 = text.parse().unwrap();
            assert!(
                (shown - value).abs() <= 0.005_001 * value.abs() || value.abs() < 0.01,
                "{value} is shown as {text}"
            );
            seen.insert(value.to_bits());
        }
    }
    // What has no chart stands in the table of all figures.
    seen.extend(common::figures(page).iter().map(|(value, _)| value.to_bits()));
    for entry in entries() {
        assert!(seen.contains(&entry.median.to_bits()), "{entry:?} is not shown");
    }
}

#[test]
fn ratios_shown_are_those_of_the_medians() {
    let records = common::record();
    let page = report(&records).unwrap();
    let table = page.split("class=\"headline\"").nth(1).unwrap().split("</table>").next().unwrap();
    let figures = common::figures(table);
    assert!(figures.len() >= 9 && figures.len().is_multiple_of(3), "{figures:?}");
    for line in figures.chunks(3) {
        let [(ours, _), (best, _), (ratio, text)] = line else { unreachable!() };
        let expected = if (ratio - best / ours).abs() < 1e-9 { best / ours } else { ours / best };
        assert!((ratio - expected).abs() < 1e-9, "{line:?}");
        assert!((text.trim_end_matches('×').parse::<f64>().unwrap() - expected).abs() <= 0.006 * expected, "{line:?}");
    }
}

#[test]
fn the_page_asks_for_nothing_runs_nothing_and_obeys_no_name() {
    let page = common::page();
    // Pictures that can be saved are encoded; what is left is the page itself.
    for part in ["<script", "<img", "<b>", "<i>", "@import", "url(", "onload='", "</code><script"] {
        assert!(!page.contains(part), "{part} is in the page");
    }
    for address in page.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(address.starts_with('#') || address.starts_with("data:"), "{address}");
    }
    assert!(page.contains("default-src &#39;none&#39;") || page.contains("default-src 'none'"));
    assert!(page.contains("&lt;script&gt;") || page.contains("&#60;script&#62;"));
}

#[test]
fn machines_and_second_runs_are_kept_apart() {
    let mut records = common::record();
    let once = report(&records).unwrap();
    assert_eq!(once.matches("class=\"machine\"").count(), 1);
    records.extend(common::record());
    let twice = report(&records).unwrap();
    assert_eq!(twice.matches("class=\"machine\"").count(), 2);
    assert!(twice.contains("class=\"overview\""));
}

#[test]
fn addresses_within_the_page_lead_somewhere() {
    let page = common::page();
    let ids: Vec<&str> = page.split(" id=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "an id is given twice");
    for target in page.split("href=\"#").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(ids.contains(&target), "{target}");
    }
}

#[test]
fn nothing_at_all_is_a_page_too() {
    assert!(report(&[]).unwrap().contains("</html>"));
    assert!(pictures(&[]).unwrap().is_empty());
    let empty = hugefork_report::parse("x", br#"{"schema": 1, "results": []}"#).unwrap();
    assert!(report(&[empty]).unwrap().contains("unnamed CPU"));
}

#[test]
fn pictures_are_the_page_s_charts_with_text_in_them() {
    let records = common::everything();
    let gallery = pictures(&records).unwrap();
    assert_eq!(gallery.len(), common::charts(common::page()).len());
    let names: BTreeSet<&str> = gallery.iter().map(|picture| picture.name.as_str()).collect();
    assert_eq!(names.len(), gallery.len());
    for picture in &gallery {
        let tidy = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
        assert!(picture.name.chars().all(tidy) && !picture.name.starts_with('.'), "{}", picture.name);
        assert!(picture.png.starts_with(b"\x89PNG\r\n\x1a\n"), "{}", picture.name);
        assert!(picture.svg.starts_with("<svg xmlns=") && !picture.svg.contains("var("), "{}", picture.name);
        // The title alone has more ink than that; without fonts there would be none.
        assert!(picture.png.len() > 8_000, "{} has {} bytes", picture.name, picture.png.len());
    }
}
