//! hugefork beside the best of the others, with the figures of both: a line for each work. It is never wider than the
//! terminal.
//!
//! ```text
//!                  hugefork         best other  ratio
//! snapshot
//!   pause, 1GiB    0.729 ms  fork-hugetlb 1.43  1.96x
//! ```

use std::fmt::Write;

use hugefork_bench::ratios::Comparison;
use hugefork_bench::result::Param;
use hugefork_report::figure;

use crate::output::terminal::{width, wrap};

/// The work gets at least so many columns.
const LEAST: usize = 16;

/// The cells of a line: the work, hugefork's figure, the best other's, and the ratio.
type Line = [String; 4];

/// A line for each of `comparisons`, in `columns`.
pub(super) fn works(comparisons: &[Comparison], columns: usize) -> String {
    let lines: Vec<Line> = comparisons.iter().map(|comparison| line(comparison, comparisons)).collect();
    let head = ["", "hugefork", "best other", "ratio"].map(str::to_owned);
    let mut widths = [0; 4];
    for (index, widest) in widths.iter_mut().enumerate() {
        *widest = lines.iter().chain([&head]).map(|line| width(&line[index])).max().unwrap_or(0);
    }
    // Each column begins after two spaces.
    let room = columns.saturating_sub(widths[1..].iter().map(|width| width + 2).sum());
    widths[0] = room.max(LEAST).min(widths[0] + 2);
    let mut text = set(&head, widths);
    let mut of_case = "";
    for (comparison, line) in comparisons.iter().zip(&lines) {
        if comparison.case.name() != of_case {
            of_case = comparison.case.name();
            let _ = writeln!(text, "{of_case}");
        }
        text += &set(line, widths);
    }
    text + "\n"
}

/// What was done, in a few words, and what sets hugefork's own rows apart: its stock or mode, the `backing` if there is
/// one to tell, its blocks.
pub(super) fn work(comparison: &Comparison, backing: Option<&Param>) -> String {
    let mut how = Vec::new();
    let kind = ["hugefork-", "run-"].iter().find_map(|ours| comparison.ours.subject.strip_prefix(ours));
    how.extend(kind.map(str::to_owned));
    how.extend(backing.map(Param::to_string));
    let block = comparison.ours.params.get("block_size").map(Param::to_string);
    how.extend(block.filter(|block| block != "2MiB").map(|block| format!("blocks of {block}")));
    let work = comparison.case.in_words(&comparison.ours.params);
    if how.is_empty() { work } else { format!("{work} ({})", how.join(", ")) }
}

/// What hugefork's memory was.
pub(super) fn backing(comparison: &Comparison) -> Option<&Param> {
    comparison.ours.params.get("backing")
}

/// A ratio.
pub(super) fn times(ratio: f64) -> String {
    format!("{}x", figure(ratio))
}

fn line(comparison: &Comparison, all: &[Comparison]) -> Line {
    let ours = format!("{} {}", figure(comparison.ours.median), comparison.ours.unit);
    let (best, ratio) = comparison.best().map_or_else(
        || ("-".to_owned(), "-".to_owned()),
        |best| (format!("{} {}", best.subject, figure(best.median)), times(best.ratio)),
    );
    // A backing is told where there were several.
    let words = |comparison: &Comparison| (comparison.case.name(), work(comparison, None));
    let is_twin = |other: &Comparison| words(other) == words(comparison) && backing(other) != backing(comparison);
    [work(comparison, backing(comparison).filter(|_| all.iter().any(is_twin))), ours, best, ratio]
}

/// A line, of which the work may be wrapped.
fn set([work, ours, best, ratio]: &Line, [room, own, other, last]: [usize; 4]) -> String {
    let work = wrap("  ", "    ", work, room);
    let (first, more) = work.split_once('\n').unwrap_or((&work, ""));
    let figures = format!("{first:room$}  {ours:>own$}  {best:>other$}  {ratio:>last$}");
    format!("{}\n{more}", figures.trim_end())
}
