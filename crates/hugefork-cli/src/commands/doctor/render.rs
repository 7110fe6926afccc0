//! The text of `doctor`, as wide as the terminal. Commands are not wrapped, so that they can be
//! copied.

use std::fmt::Write;

use super::check::{Check, Group, Status};
use super::fix::Fixes;
use crate::output::terminal;

/// The assumed columns of a stream that is not a terminal.
const WIDTH: usize = 80;

/// The amount of detail, and the form of the text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    /// Whether every line shows why it matters, not only the lines with a remedy.
    pub(super) all_reasons: bool,
    pub(super) colours: bool,
    /// The columns of the terminal, if it is one.
    pub(super) columns: Option<usize>,
}

/// The findings.
pub(super) fn groups(groups: &[Group], style: Style) -> String {
    let width = groups.iter().flat_map(|group| &group.checks).map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for group in groups {
        let _ = writeln!(text, "{}", group.name);
        for check in &group.checks {
            line(&mut text, check, width, style);
        }
        text.push('\n');
    }
    text
}

fn line(text: &mut String, check: &Check, width: usize, style: Style) {
    let (word, colour) = match check.status {
        Status::Skip => ("skip", 2),
        Status::Pass => ("pass", 32),
        Status::Warn => ("warn", 33),
        Status::Fail => ("FAIL", 31),
    };
    let begin = format!("  {word}  {:width$}  ", check.name);
    let columns = style.columns.unwrap_or(WIDTH);
    let wrap = |begin: &str, words: &str| {
        // If half of the line would be empty, the text is indented less.
        let then = if begin.len() > columns / 2 { 8 } else { begin.len() };
        terminal::wrap(begin, &" ".repeat(then), words, columns)
    };
    let mut wrapped = wrap(&begin, &check.found);
    if style.colours {
        wrapped = wrapped.replacen(word, &format!("\x1b[{colour}m{word}\x1b[0m"), 1);
    }
    text.push_str(&wrapped);
    if style.all_reasons || check.status >= Status::Warn {
        text.push_str(&wrap("        why:  ", check.why));
    }
    if let Some(mend) = &check.mend {
        let _ = writeln!(text, "        mend: {}", mend.command);
    }
}

/// The result of `--fix`.
pub(super) fn fixes(fixes: &Fixes) -> String {
    let mut text = String::new();
    for fixed in &fixes.fixed {
        let _ = writeln!(text, "fixed {}: {} -> {}\n  undo: {}", fixed.name, fixed.before, fixed.after, fixed.undo);
    }
    for refused in &fixes.refused {
        let _ = writeln!(text, "not fixed {}: {}\n  as root: {}", refused.name, refused.why, refused.command);
    }
    if text.is_empty() {
        text.push_str("nothing to fix\n");
    }
    text
}

/// The user who may make the changes of `--fix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fixer {
    Anybody,
    Root,
}

/// The summary line.
pub(super) fn summary(groups: &[Group], fixer: Fixer) -> String {
    let checks = || groups.iter().flat_map(|group| &group.checks);
    let count = |status| checks().filter(|check| check.status == status).count();
    let [skip, pass, warn, fail] = [Status::Skip, Status::Pass, Status::Warn, Status::Fail].map(count);
    let mut text = format!("{pass} passed, {warn} to improve, {fail} failed, {skip} skipped");
    let fixable = checks().filter(|check| check.mend.as_ref().is_some_and(|mend| mend.set.is_some())).count();
    if fixable > 0 {
        let who = if fixer == Fixer::Root { "as root, " } else { "" };
        let _ = write!(text, "; {who}`hugefork doctor --fix` mends {fixable}");
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::super::check::About;
    use super::*;

    const PLAIN: Style = Style { all_reasons: false, colours: false, columns: None };

    #[test]
    fn long_findings_are_wrapped_and_commands_are_not() {
        let long = (1..60).map(|word| format!("word{word}")).collect::<Vec<_>>().join(" ");
        let command = "x".repeat(120);
        let checks = vec![About("cpu", "b c a").warn(long.clone()).run(&command), About("name", "").pass("y")];
        let text = groups(&[Group { name: "group", checks }], PLAIN);
        let commands = |line: &&str| line.contains("mend: ");
        assert!(text.lines().filter(|line| !commands(line)).all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.lines().find(commands).unwrap().ends_with(&command), "{text}");
        let found = text.lines().skip(1).take_while(|line| !line.contains("why: "));
        assert_eq!(found.flat_map(str::split_whitespace).skip(2).collect::<Vec<_>>().join(" "), long);
        assert!(
            text.starts_with("group\n  warn  cpu   word1 word2") && text.ends_with("\n  pass  name  y\n\n"),
            "{text}"
        );
    }

    #[test]
    fn a_wide_terminal_is_used() {
        let long = (1..60).map(|word| format!("word{word}")).collect::<Vec<_>>().join(" ");
        let checks = vec![About("cpu", "b c a").warn(long)];
        let text = groups(&[Group { name: "group", checks }], Style { columns: Some(200), ..PLAIN });
        assert!(text.lines().any(|line| (180..=200).contains(&line.chars().count())), "{text}");
    }

    #[test]
    fn the_summary_counts_the_fixes_and_names_the_user_for_them() {
        let setting = || About("a", "b").warn("c").set("/x".into(), 1);
        let told = |checks, fixer| summary(&[Group { name: "group", checks }], fixer);
        let count = "0 passed, 1 to improve, 0 failed, 0 skipped";
        assert_eq!(told(vec![About("a", "b").warn("c")], Fixer::Root), format!("{count}\n"));
        let mends = "`hugefork doctor --fix` mends 1\n";
        assert_eq!(told(vec![setting()], Fixer::Anybody), format!("{count}; {mends}"));
        assert_eq!(told(vec![setting()], Fixer::Root), format!("{count}; as root, {mends}"));
    }

    #[test]
    fn a_narrow_terminal_is_used_fully() {
        let checks = vec![About("address-space", "").warn("three short words and a few more")];
        let text = groups(&[Group { name: "group", checks }], Style { columns: Some(40), ..PLAIN });
        assert_eq!(text, "group\n  warn  address-space  three short words\n        and a few more\n        why:\n\n");
    }

    #[test]
    fn only_the_status_is_coloured_and_reasons_are_optional() {
        let checks = || vec![Group { name: "group", checks: vec![About("warn", "b c a").pass("pass")] }];
        let text = groups(&checks(), Style { colours: true, ..PLAIN });
        assert_eq!(text, "group\n  \x1b[32mpass\x1b[0m  warn  pass\n\n");
        let text = groups(&checks(), Style { all_reasons: true, ..PLAIN });
        assert_eq!(text, "group\n  pass  warn  pass\n        why:  b c a\n\n");
    }
}
