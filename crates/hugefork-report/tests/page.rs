//! The page against the files that it was made from.

mod common;

use std::collections::BTreeSet;
use std::sync::OnceLock;

use hugefork_report::{pictures, report};

/// The page of this machine's record alone.
fn record_page() -> &'static str {
    static PAGE: OnceLock<String> = OnceLock::new();
    PAGE.get_or_init(|| report(&common::record()).unwrap())
}

#[test]
fn every_figure_shown_is_in_the_files_and_rounded_right() {
    let records = common::everything();
    let page = common::page();
    let entries = || records.iter().flat_map(|record| &record.entries);
    let curves = || records.iter().flat_map(|record| &record.curves).filter(|curve| curve.metric != "heat");
    let known: BTreeSet<u64> = entries()
        .flat_map(|entry| [entry.median, entry.min(), entry.max(), entry.samples.len() as f64])
        .chain(curves().flat_map(|curve| &curve.points).map(|(_, value)| *value))
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
    // Figures without a chart are in the table of all figures.
    seen.extend(common::figures(page).iter().map(|(value, _)| value.to_bits()));
    for entry in entries() {
        assert!(seen.contains(&entry.median.to_bits()), "{entry:?} is not shown");
    }
    assert!(curves().count() > 8);
    for (place, value) in curves().flat_map(|curve| &curve.points) {
        assert!(seen.contains(&value.to_bits()), "{value} at {place} is not shown");
    }
}

#[test]
fn figures_lead_and_commands_come_last() {
    let page = record_page();
    let place = |what: &str| page.find(what).unwrap_or_else(|| panic!("{what} is not in the page"));
    let order = ["class=\"cards\"", "class=\"headline\"", "<figure ", "hugefork bench writer-latency", "<footer"];
    assert!(order.map(place).is_sorted(), "{:?}", order.map(place));
    assert!(place("hugefork bench zero-fault") > page.rfind("</figure>").unwrap());
    for title in ["Taking a snapshot", "Writing after a snapshot", "First write to new memory", "Clearing a block"] {
        assert!(page.contains(&format!("<h3>{title} <code>")), "{title}");
    }
}

/// A page of seventy pictures is read from its list of contents.
#[test]
fn the_contents_lead_to_every_case_and_to_every_kind_of_chart() {
    let page = common::page();
    let machines: Vec<&str> = page.split("class=\"machine\"").skip(1).collect();
    assert!(machines.len() > 1);
    for machine in machines {
        let contents = machine.split_once("<nav class=\"contents\"").unwrap().1.split_once("</nav>").unwrap().0;
        let links: Vec<&str> = contents.split("href=\"#").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        for id in machine.split("<section class=\"case\" id=\"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
            assert!(links.contains(&id), "{id} is not in the contents: {links:?}");
        }
        for link in &links {
            assert!(machine.contains(&format!("id=\"{link}\"")), "{link} leads nowhere");
        }
        let topics: BTreeSet<&str> = links.iter().copied().filter(|link| link.starts_with("chart-")).collect();
        assert_eq!(topics.len(), links.iter().filter(|link| link.starts_with("chart-")).count(), "{links:?}");
    }
    assert!(record_page().contains("<a href=\"#machine-1-writer-latency\">Writing after a snapshot</a>"));
    assert!(record_page().contains("\">All writes together</a></li>"));
}

#[test]
fn losses_have_a_colour_of_their_own_wherever_they_are() {
    let record = |ours: f64| {
        let entry = |subject: &str, median: f64| {
            serde_json::json!({"case": "writer-latency", "subject": subject, "params": {}, "metric": "total", "unit": "ms",
                "samples": vec![median; 5], "median": median})
        };
        let file = serde_json::json!({"schema": 1, "results": [entry("hugefork", ours), entry("fork-4k", 10.0)]});
        hugefork_report::parse("x", file.to_string().as_bytes()).unwrap()
    };
    let (gains, loses) = (report(&[record(5.0)]).unwrap(), report(&[record(40.0)]).unwrap());
    let marks = ["<li class=\"loss\"", "number ratio loss", "<circle class=\"loss\"", "<rect class=\"bar-loss\""];
    for mark in marks {
        assert!(loses.contains(mark) && !gains.contains(mark), "{mark}");
        assert!(gains.contains(&mark.replace("bar-loss", "bar-ours").replace("loss", "gain")), "{mark}");
    }
}

#[test]
fn pauses_far_apart_are_on_a_logarithmic_axis() {
    let page = record_page();
    let chart = common::charts(page).into_iter().find(|chart| chart.contains("chart-snapshot-pause-bars")).unwrap();
    assert!(chart.contains("pause, ms; less is better (logarithmic)") && chart.contains("<circle class=\"bar-ours\""));
}

#[test]
fn curves_take_the_place_of_a_few_percentiles_and_show_time() {
    let page = common::page();
    let machine = page.split("class=\"machine\"").skip(1).find(|part| part.contains("Curved CPU")).unwrap();
    let kinds = |kind: &str| machine.matches(&format!("<figure class=\"{kind}\"")).count();
    assert_eq!((kinds("percentiles"), kinds("time")), (2, 2));
    for text in ["99.99 %", "99.999 %", "until 0.1 ms", ">before<", ">slowest<", "What a write costs, by time"] {
        assert!(machine.contains(text), "{text}");
    }
    assert!(!machine.contains("temperature"), "nobody knows how to draw that");
}

#[test]
fn the_page_says_when_and_of_which_commit() {
    let page = common::page();
    assert!(page.contains("2026-11-21T14:53:23Z \u{b7} commit 0123456789ab"), "in the list of files");
    assert!(page.contains("<dt>measured</dt><dd>2026-11-21</dd>"));
    assert!(!report(&common::record()[..1]).unwrap().contains("<dt>measured</dt><dd></dd>"));
}

#[test]
fn a_pause_is_drawn_against_the_size() {
    let entry = |subject: &str, size: &str, median: f64| {
        serde_json::json!({"case": "snapshot", "subject": subject, "params": {"size": size}, "metric": "pause", "unit": "ms",
            "samples": vec![median; 5], "median": median})
    };
    let sizes = [("256MiB", 1.0), ("1GiB", 4.0), ("4GiB", 16.0)];
    let results: Vec<_> = sizes
        .iter()
        .flat_map(|(size, x)| [entry("hugefork", size, 0.1 * x), entry("fork-4k", size, 6.0 * x)])
        .collect();
    let file = serde_json::json!({"schema": 1, "results": results});
    let page = report(&[hugefork_report::parse("x", file.to_string().as_bytes()).unwrap()]).unwrap();
    let charts = common::charts(&page);
    assert_eq!(charts.len(), 2, "bars of the largest size, and a line over all");
    assert!(charts[0].starts_with("class=\"bars\"") && charts[0].contains("4\u{a0}GiB"), "{}", charts[0]);
    assert!(charts[1].contains("How long the program stands still, by size"), "{}", charts[1]);
    for (size, _) in sizes {
        assert!(charts[1].contains(&size.replace("GiB", "\u{a0}GiB").replace("MiB", "\u{a0}MiB")), "{size}");
    }
}

#[test]
fn what_a_snapshot_takes_is_drawn_against_the_density() {
    let page = common::page();
    let machine = page.split("class=\"machine\"").skip(1).find(|part| part.contains("Dense CPU")).unwrap();
    let of_kind = |kind: &str| -> Vec<&str> {
        common::charts(machine).into_iter().filter(|chart| chart.starts_with(&format!("class=\"{kind}\""))).collect()
    };
    let charts = of_kind("density");
    assert_eq!(charts.len(), 2, "one for each epoch with three densities, none for the one that is clustered");
    for (chart, densities, subtitle) in [(charts[0], 7, "random, epoch 1"), (charts[1], 3, "random, epoch 3")] {
        assert!(chart.contains("What a snapshot takes from the program, by density"), "{chart}");
        assert!(chart.contains(subtitle) && chart.contains(">writes a GiB (logarithmic)<"), "{chart}");
        assert_eq!(chart.matches("<polyline").count(), 11, "a line for each subject");
        for class in ["t-ours-3", "t-theirs-0"] {
            assert!(chart.contains(class), "{class}");
        }
        assert_eq!(common::figures(chart).len(), 11 * densities * 4, "median, least, greatest and count of each");
    }
    for tick in [">10<", ">100<", ">1k<", ">5k<", ">50k<", ">1M<"] {
        assert!(charts[0].contains(tick), "{tick}");
    }
    let bars = of_kind("bars");
    let writes = ["10 writes", "5000 writes", "50000 writes", "500000 writes"];
    assert_eq!(bars.len(), writes.len());
    for (chart, writes) in bars.iter().zip(writes) {
        assert!(chart.contains(&format!(">{writes}, random, epoch 1<")), "{writes}: {chart}");
    }
}

#[test]
fn what_a_history_costs_is_drawn_against_what_is_written_between_two_of_its_snapshots() {
    let page = common::page();
    let machine = page.split("class=\"machine\"").skip(1).find(|part| part.contains("Long CPU")).unwrap();
    assert!(machine.contains("A snapshot while many are held") && machine.contains("100 held"), "{machine}");
    for title in ["What one more snapshot takes from the program, by density", "Memory of each snapshot, by density"] {
        let charts = common::charts(machine);
        let chart = charts.iter().find(|chart| chart.contains(title)).unwrap_or_else(|| panic!("no chart: {title}"));
        assert!(chart.starts_with("class=\"density\""), "{chart}");
        assert_eq!(chart.matches("<polyline").count(), 2, "hugefork beside fork");
        assert_eq!(common::figures(chart).len(), 2 * 4 * 4, "median, least, greatest and count of each");
    }
}

#[test]
fn ratios_shown_are_those_of_the_medians() {
    let page = record_page();
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
    // Pictures that can be saved are encoded, so this looks only at the page itself.
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
    let once = record_page();
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
