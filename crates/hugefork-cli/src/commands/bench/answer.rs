//! The answer of a bench, which fits one screen: a line for each case, with the least and the greatest ratio of its
//! works, a bar of both, and the best other where hugefork does worst. Cases are sorted by their least ratio, so that
//! what hugefork loses comes last, with the work in which it loses most.
//!
//! ```text
//!                  ratio             0.1x    1x     10x  best other
//! snapshot         6.69x                     │██████     fork-thp
//! writer-latency   1.63x to 3.42x            │██░░       fork-4k
//! paced           0.174x to 6.90x      ░░░░░░│░░░░░░     fork-thp
//!   worse in 3 of 8: 3125 puts/s to all slots of 16MiB, 3 snapshots, 250ms apart
//! more than 1x: hugefork is better; a light bar: in some works only
//! ```
//! A bar begins at 1x. It is solid as far as all works of the case come, and light as far as only some do.

use hugefork_bench::cases;
use hugefork_bench::ratios::Comparison;

use super::table::Look;
use super::works::{times, work};
use crate::output::terminal::{width, wrap};

/// The bars get at most so many columns, and none where there are fewer than [`LEAST`].
const MOST: usize = 28;
const LEAST: usize = 8;

const GREEN: u8 = 32;
const RED: u8 = 31;

/// A case, and its works with their ratios, the least first. There is at least one.
struct Line<'a> {
    case: &'static str,
    works: Vec<(f64, &'a Comparison)>,
}

impl Line<'_> {
    fn least(&self) -> f64 {
        self.works[0].0
    }

    fn most(&self) -> f64 {
        self.works[self.works.len() - 1].0
    }

    /// The name, the least ratio, the greatest if there are several, and the best other.
    fn cells(&self) -> [String; 4] {
        let [least, most] = [self.least(), self.most()].map(times);
        let most = if self.works.len() > 1 { format!("to {most}") } else { String::new() };
        let rival = self.works[0].1.best().map_or("", |best| &best.subject);
        [self.case.to_owned(), least, most, rival.to_owned()]
    }

    /// In how many works hugefork is worse, and in which it is worst.
    fn loss(&self) -> Option<[String; 2]> {
        let worse = self.works.iter().filter(|(ratio, _)| *ratio < 1.0).count();
        let how_many = match self.works.len() {
            1 => "worse:".to_owned(),
            all => format!("worse in {worse} of {all}:"),
        };
        (worse > 0).then(|| [how_many, work(self.works[0].1, None)])
    }
}

/// A line for each case of `comparisons`, and below it where hugefork is worst, if it is worse.
pub(super) fn answer(comparisons: &[Comparison], look: Look) -> String {
    let mut lines: Vec<Line<'_>> = cases::ALL.iter().filter_map(|case| line(case.name(), comparisons)).collect();
    lines.sort_by(|one, other| other.least().total_cmp(&one.least()));
    let head = ["", "ratio", "", "best other"].map(str::to_owned);
    let cells: Vec<[String; 4]> = lines.iter().map(Line::cells).collect();
    let widths: [usize; 4] =
        std::array::from_fn(|column| cells.iter().chain([&head]).map(|cells| width(&cells[column])).max().unwrap_or(0));
    let [case, least, most, other] = widths;
    // Two spaces stand between columns, and one between the ratios.
    let room = look.columns.saturating_sub(case + 2 + least + 1 + most + 2 + 2 + other).min(MOST);
    let axis = (room >= LEAST).then(|| Axis::new(&lines, room));
    let set = |[name, low, high, rival]: &[String; 4], bar: Option<String>| {
        let bar = bar.map_or(String::new(), |bar| format!("{bar}  "));
        let line = format!("{name:case$}  {low:>least$} {high:most$}  {bar}{rival}");
        format!("{}\n", line.trim_end())
    };
    let mut text = set(&head, axis.as_ref().map(Axis::head));
    for (line, cells) in lines.iter().zip(&cells) {
        text += &set(cells, axis.as_ref().map(|axis| axis.bar(line, look)));
        if let Some([how_many, worst]) = line.loss() {
            text += &wrap(&format!("  {} ", look.painted(&how_many, RED)), "    ", &worst, look.columns);
        }
    }
    text + "more than 1x: hugefork is better; a light bar: in some works only\n"
}

/// In how many works hugefork is better.
pub(super) fn sum(comparisons: &[Comparison]) -> String {
    let ratios: Vec<f64> = comparisons.iter().filter_map(|comparison| Some(comparison.best()?.ratio)).collect();
    let better = ratios.iter().filter(|ratio| **ratio > 1.0).count();
    match ratios.len() {
        0 => String::new(),
        1 => format!("hugefork is better than the best other in {better} of 1 work\n"),
        works => format!("hugefork is better than the best other in {better} of {works} works\n"),
    }
}

/// The works of one case in which hugefork has a rival; none if there are none.
fn line<'a>(case: &'static str, comparisons: &'a [Comparison]) -> Option<Line<'a>> {
    let of_case = comparisons.iter().filter(|comparison| comparison.case.name() == case);
    let mut works: Vec<_> = of_case.filter_map(|work| Some((work.best()?.ratio, work))).collect();
    works.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    (!works.is_empty()).then_some(Line { case, works })
}

/// Where bars are drawn: logarithmic, since ratios differ by several powers of ten, and half is as far as double.
struct Axis {
    /// Columns for ratios below 1x, and above.
    below: usize,
    above: usize,
    /// Powers of ten in a column.
    step: f64,
}

impl Axis {
    /// An axis for all of `lines` in `room` columns, one of which is that of 1x. It goes at least up to 10x, so that
    /// a bar is only long where a ratio is great.
    fn new(lines: &[Line<'_>], room: usize) -> Axis {
        let least = lines.iter().map(Line::least).fold(1.0, f64::min);
        let most = lines.iter().map(Line::most).fold(10.0, f64::max);
        // Both sides are rounded up to whole columns, which takes one more than their sum.
        let step = (tens(least) + tens(most)) / (room - 2) as f64;
        let [below, above] = [least, most].map(|ratio| (tens(ratio) / step).ceil() as usize);
        Axis { below, above, step }
    }

    /// The columns from 1x to `ratio`. Every difference can be seen.
    fn columns(&self, ratio: f64) -> usize {
        ((tens(ratio) / self.step).round() as usize).max(usize::from(ratio != 1.0))
    }

    fn bar(&self, line: &Line<'_>, look: Look) -> String {
        let [least, most] = [line.least(), line.most()];
        let columns = |ratio: f64, is_there: bool| if is_there { self.columns(ratio) } else { 0 };
        let [all_worse, some_worse] = [most, least].map(|ratio| columns(ratio, ratio < 1.0));
        let [all_better, some_better] = [least, most].map(|ratio| columns(ratio, ratio > 1.0));
        let (solid, light) = (|columns| "█".repeat(columns), |columns| "░".repeat(columns));
        let worse = light(some_worse - all_worse) + &solid(all_worse);
        let better = solid(all_better) + &light(some_better - all_better);
        let [before, after] = [self.below - some_worse, self.above - some_better].map(|columns| " ".repeat(columns));
        format!("{before}{}│{}{after}", look.painted(&worse, RED), look.painted(&better, GREEN))
    }

    /// The powers of ten, each above the end of its bar, as far as there is room.
    fn head(&self) -> String {
        let mut head = vec![' '; self.below + 1 + self.above];
        for power in [0, 1, -1, 2, -2, 3, -3] {
            let ratio = 10f64.powi(power);
            let name: Vec<char> = format!("{ratio}x").chars().collect();
            let far = self.columns(ratio);
            let start =
                if power > 0 { (self.below + far + 1).checked_sub(name.len()) } else { self.below.checked_sub(far) };
            let Some(start) = start else { continue };
            let end = start + name.len();
            let around = start.saturating_sub(1)..(end + 1).min(head.len());
            if end <= head.len() && head[around].iter().all(|sign| *sign == ' ') {
                head[start..end].copy_from_slice(&name);
            }
        }
        head.into_iter().collect()
    }
}

/// By how many powers of ten `ratio` differs from 1x. What cannot be drawn, since a figure was 0, is 6.
fn tens(ratio: f64) -> f64 {
    ratio.log10().abs().min(6.0)
}
