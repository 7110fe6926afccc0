//! The text of `doctor`, as wide as the terminal. Commands are not wrapped, so that they can be
//! copied.

use std::env;
use std::fmt::Write;
use std::io::{IsTerminal, stdout};

use super::finding::{Finding, Status};
use super::fix::Fix;
use crate::output::{columns, wrap};

/// The findings and their number. With `all_reasons` every line shows why it matters, not only the lines to improve.
pub(super) fn findings(findings: &[Finding], all_reasons: bool) -> String {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    let has_colours =
        stdout().is_terminal() && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb");
    let (columns, width) = (columns(&stdout()), findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0));
    let (mut text, mut group) = (String::new(), "");
    for finding in findings {
        if finding.group != group {
            group = finding.group;
            let _ = writeln!(text, "{}{group}", if text.is_empty() { "" } else { "\n" });
        }
        let (word, colour) = match finding.status {
            Status::Skip => ("skip", 2),
            Status::Pass => ("pass", 32),
            Status::Warn => ("warn", 33),
            Status::Fail => ("FAIL", 31),
        };
        let begin = format!("  {word}  {:width$}  ", finding.name);
        let line = wrap(&begin, &" ".repeat(begin.len().min(columns / 2)), &finding.found, columns);
        let shown = if has_colours { format!("\x1b[{colour}m{word}\x1b[0m") } else { word.to_owned() };
        text += &line.replacen(word, &shown, 1);
        if all_reasons || finding.status >= Status::Warn {
            text += &wrap("        why:  ", &" ".repeat(14), finding.why, columns);
        }
        if let Some(mend) = &finding.mend {
            let _ = writeln!(text, "        mend: {}", mend.command);
        }
    }
    let count = |status| findings.iter().filter(|finding| finding.status == status).count();
    let [skip, pass, warn, fail] = [Status::Skip, Status::Pass, Status::Warn, Status::Fail].map(count);
    let mut summary = format!("{pass} passed, {warn} to improve, {fail} failed, {skip} skipped");
    let has_fix = |finding: &&Finding| finding.mend.as_ref().is_some_and(|mend| mend.set.is_some());
    let fixable = findings.iter().filter(has_fix).count();
    if fixable > 0 {
        summary += &format!("; as root, `hugefork doctor --fix` mends {fixable}");
    }
    text + "\n" + &wrap("", "  ", &summary, columns)
}

/// The result of `--fix`.
pub(super) fn fixes(fixes: &[Fix]) -> String {
    let line = |Fix { name, what, command, undo }: &Fix| match undo {
        Some(undo) => format!("fixed {name}: {what}\n  undo: {undo}\n"),
        None => format!("not fixed {name}: {what}\n  as root: {command}\n"),
    };
    let text = if fixes.is_empty() { "nothing to fix\n".to_owned() } else { fixes.iter().map(line).collect() };
    text + "\n"
}
