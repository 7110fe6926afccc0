//! The page against the files that it was made from.

use crate::common::{every_case, hostile, made_up, result};
use crate::record::record;
use hugefork_report::{Scheme, figure, parse, pause_picture, report};
use serde_json::json;

/// The text of `page` between `start` and the next `end`, for each `start`.
fn between<'a>(page: &'a str, start: &str, end: &str) -> Vec<&'a str> {
    page.split(start).skip(1).map(|rest| rest.split_once(end).expect(end).0).collect()
}

#[test]
fn all_figures_of_all_files_are_in_the_tables() {
    let mut records = record();
    records.push(every_case());
    let page = report(&records);
    let cells: Vec<&str> = between(&page, "<td class=\"number\">", "</td>");
    for entry in records.iter().flat_map(|record| &record.entries) {
        for value in [entry.median, entry.min(), entry.max()] {
            assert!(cells.contains(&figure(value).as_str()), "{value} of {entry:?}");
        }
    }
    let rows: usize =
        between(&page, "<summary>", "</details>").iter().map(|table| table.matches("<tr>").count() - 1).sum();
    assert_eq!(rows, records.iter().map(|record| record.entries.len()).sum::<usize>());
}

#[test]
fn each_case_has_a_section_and_each_picture_its_lines_and_an_alternative_text() {
    let page = report(&[every_case()]);
    for case in ["snapshot", "reset", "changes", "first-touch", "read-after", "anon-w-seq", "lazy-free", "clear"] {
        assert!(page.contains(&format!("<code>{case}</code></h3>")), "{case}");
    }
    let figures = between(&page, "<figure ", "</figure>");
    assert_eq!(figures.len(), 9);
    for figure in &figures {
        let alt = between(figure, "aria-label=\"", "\"")[0];
        assert!(alt.contains("hugefork: ") && alt.matches(" at ").count() > 6, "{alt}");
        assert!(figure.matches("<path").count() >= 3 && figure.contains(">hugefork</text>"), "{figure}");
        assert!(figure.contains("var(--line-0)") && figure.contains("var(--ink)"), "no colours of the style sheet");
    }
    assert!(
        figures[0].contains("hugefork: 0.0500 ms at 256 MiB, 0.200 ms at 1 GiB, 0.800 ms at 4 GiB"),
        "{}",
        figures[0]
    );
    // Resets after writes to the same pages and to others are two pictures.
    assert!(figures[6].contains("60.0 µs at 1000") && figures[7].contains("540 µs at 1000"));
}

#[test]
fn one_place_is_no_picture_but_is_in_the_table() {
    let params = json!({"size": "1GiB", "held": 0});
    let page = report(&[made_up("a.json", "A CPU", vec![result("snapshot", "hugefork", params, "call", "ms", 0.625)])]);
    assert!(!page.contains("<figure") && page.contains(">0.625<"));
}

#[test]
fn names_of_files_are_text() {
    let page = report(&[hostile()]);
    for forbidden in ["<script", "<img", "<b>", "<i>", "</table>x"] {
        let shown = page.replace("&#60;", "").matches(forbidden).count();
        assert_eq!(shown, 0, "{forbidden}");
    }
    assert!(page.contains("defragment") && page.contains("<figure"));
}

#[test]
fn nothing_is_asked_of_a_network() {
    let page = report(&[every_case()]).replace("http://www.w3.org/2000/svg", "").replace("url(#", "");
    assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("url(") && !page.contains("<link"));
}

#[test]
fn machines_stand_apart_and_second_runs_too() {
    let of = |cpu: &str| made_up("a.json", cpu, vec![result("reset", "hugefork", json!({}), "reset", "us", 1.0)]);
    let page = report(&[of("A CPU"), of("B CPU"), of("A CPU")]);
    assert_eq!(page.matches("<section class=\"machine\">").count(), 3);
}

#[test]
fn a_file_without_figures_makes_a_page() {
    let empty = parse("x", br#"{"schema": 1, "results": []}"#).unwrap();
    assert!(report(&[empty]).trim_end().ends_with("</html>"));
}

#[test]
fn the_picture_for_a_readme_has_its_title_its_work_and_no_ground() {
    for scheme in [Scheme::Light, Scheme::Dark] {
        let svg = pause_picture(&[every_case()], scheme).unwrap();
        for text in [">hugefork<", ">fork-4k<", ">4 GiB<", "Time of the snapshot call, by size", "held 0"] {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
        assert!(svg.contains("height=\"100%\" fill=\"none\"") && !svg.contains("var("), "{svg}");
    }
    assert!(pause_picture(&[], Scheme::Light).is_none());
}
