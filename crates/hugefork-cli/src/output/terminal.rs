//! Text for a terminal that may be narrower than the text: tables that do not fit are set row by row, and lines are
//! wrapped.
//!
//! ```text
//! | subject | pause ms |       hugefork
//! |---------|----------|  ──▶    pause ms  0.3
//! | hugefork|      0.3 |
//! ```
//! Elsewhere the text stays as it is, so that tables can be quoted.

use std::env;
use std::io::{self, IsTerminal};

use rustix::termios::tcgetwinsize;

/// A terminal is taken to be at least as wide.
const LEAST: usize = 20;

/// The columns of the terminal on standard output; none if that is something else.
pub(crate) fn columns() -> Option<usize> {
    let stdout = io::stdout();
    let named = || env::var("COLUMNS").ok()?.parse().ok();
    let asked = || tcgetwinsize(&stdout).ok().map(|size| usize::from(size.ws_col));
    let columns = stdout.is_terminal().then(|| named().or_else(asked))??;
    (columns > 0).then_some(columns.max(LEAST))
}

/// `text` as it fits on standard output.
pub(crate) fn fitted(text: String) -> String {
    match columns() {
        Some(columns) => fit(&text, columns),
        None => text,
    }
}

fn fit(text: &str, columns: usize) -> String {
    let (mut fitted, mut rest) = (String::new(), text);
    while !rest.is_empty() {
        let is_row = |line: &&str| line.starts_with('|');
        let table: Vec<&str> = rest.lines().take_while(is_row).collect();
        let lines = table.len().max(1);
        let end = rest.split_inclusive('\n').take(lines).map(str::len).sum();
        let (these, others) = rest.split_at(end);
        if these.lines().all(|line| width(line) <= columns) {
            fitted += these;
        } else if table.is_empty() {
            let begin = &these[..these.len() - these.trim_start().len()];
            fitted += &wrap(begin, &" ".repeat(begin.len() + 2), these, columns);
        } else {
            fitted += &by_rows(&table, columns);
        }
        rest = others;
    }
    fitted
}

/// A table row by row: the first cell, then the others with the names of their columns.
fn by_rows(table: &[&str], columns: usize) -> String {
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let header = cells(table[0]);
    let names = header.iter().skip(1).map(|name| width(name)).max().unwrap_or(0).min(columns / 3);
    let mut text = String::new();
    // The header comes first, then the line below it.
    for row in table.iter().skip(2).map(|line| cells(line)) {
        text += &wrap("", "  ", &row[0], columns);
        for (name, cell) in header.iter().zip(&row).skip(1).filter(|(_, cell)| !cell.is_empty()) {
            if width(name) > names {
                text += &wrap("  ", "  ", name, columns);
                text += &wrap("    ", "    ", cell, columns);
            } else {
                text += &wrap(&format!("  {name:names$}  "), "    ", cell, columns);
            }
        }
        text.push('\n');
    }
    text.pop();
    text
}

/// `words`, wrapped: the first line begins with `first`, the others with `then`.
pub(crate) fn wrap(first: &str, then: &str, words: &str, columns: usize) -> String {
    let (mut text, mut line, mut is_new) = (String::new(), first.to_owned(), true);
    for word in words.split_whitespace() {
        if !is_new && width(&line) + width(word) > columns {
            text += line.trim_end();
            text.push('\n');
            line = then.to_owned();
        }
        line += word;
        line.push(' ');
        is_new = false;
    }
    text + line.trim_end() + "\n"
}

fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
hugefork on a CPU

| subject  | with         |    pause ms |
|----------|--------------|-------------|
| hugefork | backing=thp  | 0.3 (… 0.4) |
| fork     |              |           7 |

note: stopped before the end; figures hold the rounds that were counted
";

    #[test]
    fn what_fits_stays_as_it_is() {
        assert_eq!(fit(TEXT, 72), TEXT);
        assert_eq!(fit("", 20), "");
        assert_eq!(fit("no end of line", 20), "no end of line");
    }

    #[test]
    fn a_table_that_does_not_fit_is_set_row_by_row_and_lines_are_wrapped() {
        let expected = "\
hugefork on a CPU

hugefork
  with      backing=thp
  pause ms  0.3 (… 0.4)

fork
  pause ms  7

note: stopped before the end;
  figures hold the rounds that
  were counted
";
        assert_eq!(fit(TEXT, 30), expected);
    }

    #[test]
    fn nothing_is_wider_than_the_terminal_but_single_words() {
        let known = include_str!("../../tests/golden/bench.md");
        for columns in [20, 40, 60, 80, 100] {
            let words = |text: &str| text.split_whitespace().map(width).max().unwrap_or(0);
            for line in fit(known, columns).lines().filter(|line| words(line) + 24 < columns) {
                assert!(width(line) <= columns, "{columns}: {line}");
            }
        }
    }
}
