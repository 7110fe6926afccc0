//! The table of the kernels that hugefork timed on this machine to choose those for clear and copy.

use std::fmt::Write;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use hugefork::kernels::Figure;
use hugefork::machine::Survey;
use serde::Serialize;

/// A kernel that was timed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Tried {
    /// `clear` or `copy`.
    work: String,
    /// The use of the block afterwards.
    used: String,
    kernel: String,
    /// Time for a block and its use; `null` if the time budget ended before.
    nanoseconds: Option<u64>,
    /// Whether hugefork chose it for this work and use.
    chosen: bool,
}

/// The kernels that `survey` lists.
pub(crate) fn of(survey: &Survey) -> Vec<Tried> {
    let tried = |figure: &Figure| Tried {
        work: format!("{:?}", figure.what).to_lowercase(),
        used: format!("{:?}", figure.used).to_lowercase(),
        kernel: figure.kernel.to_string(),
        nanoseconds: figure.nanoseconds,
        chosen: figure.chosen,
    };
    survey.calibration.iter().map(tried).collect()
}

/// The table as text, with the fastest first for each work and use. Empty if no kernel was timed.
pub(crate) fn render(tried: &[Tried]) -> String {
    let mut groups: Vec<Vec<&Tried>> = Vec::new();
    for one in tried {
        match groups.iter_mut().find(|group| (&group[0].work, &group[0].used) == (&one.work, &one.used)) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    if groups.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["work", "used", "kernel", "us", ""]);
    for group in &mut groups {
        // Kernels without a time come last.
        group.sort_by_key(|one| one.nanoseconds.unwrap_or(u64::MAX));
        for one in group.iter() {
            let time = match one.nanoseconds {
                None => "-".to_owned(),
                Some(nanoseconds) => format!("{:.1}", nanoseconds as f64 / 1e3),
            };
            let mark = if one.chosen { "chosen" } else { "" };
            table.add_row([&one.work, &one.used, &one.kernel, &time, mark]);
        }
    }
    if let Some(column) = table.column_mut(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = String::from("\ncalibration\n");
    for line in table.lines() {
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(work: &str, used: &str, kernel: &str, nanoseconds: Option<u64>, chosen: bool) -> Tried {
        Tried { work: work.to_owned(), used: used.to_owned(), kernel: kernel.to_owned(), nanoseconds, chosen }
    }

    #[test]
    fn kernels_that_were_not_timed_take_no_line() {
        assert_eq!(render(&[]), "");
    }

    #[test]
    fn the_fastest_come_first_in_each_group_and_the_choice_is_marked() {
        let text = render(&[
            tried("clear", "near", "straight/rep", Some(40_120), false),
            tried("clear", "near", "hybrid/sse2-nt+rep@64KiB", None, false),
            tried("copy", "whole", "straight/rep", Some(162_000), true),
            tried("clear", "near", "hybrid/clzero+rep@128KiB", Some(23_580), true),
        ]);
        let rows: Vec<Vec<&str>> = text.lines().skip(3).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            rows,
            [
                vec!["clear", "near", "hybrid/clzero+rep@128KiB", "23.6", "chosen"],
                vec!["clear", "near", "straight/rep", "40.1"],
                vec!["clear", "near", "hybrid/sse2-nt+rep@64KiB", "-"],
                vec!["copy", "whole", "straight/rep", "162.0", "chosen"],
            ],
            "{text}"
        );
        let widest =
            tried("clear", "gigantic", "neighbourhood-last/avx512-nt+portable@1024KiB", Some(123_456_789), true);
        assert!(render(&[widest]).lines().all(|line| line.chars().count() <= 100));
    }
}
