//! Fits text to a narrow terminal: wide tables are printed row by row, and lines are wrapped.
//!
//! ```text
//! | subject | pause ms |       hugefork
//! |---------|----------|  ──▶    pause ms  0.3
//! | hugefork|      0.3 |
//!
//!   snapshot  pause to take a fork   ──▶    snapshot  pause to take
//!                                                     a fork
//! ```
//! Text for other streams is not changed, so that tables can be quoted.

use std::env;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

/// Minimum assumed width of a terminal.
const LEAST: usize = 20;

/// The columns of the terminal on standard output; `None` if it is not a terminal.
pub(crate) fn columns() -> Option<usize> {
    columns_of(&io::stdout())
}

/// The columns of the terminal `stream`; `None` if it is not a terminal.
pub(crate) fn columns_of(stream: &(impl IsTerminal + AsFd)) -> Option<usize> {
    let named = || env::var("COLUMNS").ok()?.parse().ok();
    let asked = || tcgetwinsize(stream).ok().map(|size| usize::from(size.ws_col));
    let columns = stream.is_terminal().then(|| named().or_else(asked))??;
    (columns > 0).then_some(columns.max(LEAST))
}

/// Whether to print colours to `stream`: it is a terminal, not a dumb one, and `NO_COLOR` is not set.
pub(crate) fn colours(stream: &impl IsTerminal) -> bool {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    stream.is_terminal() && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

/// Fits `text` to standard output.
pub(crate) fn fitted(text: String) -> String {
    fitted_to(text, columns())
}

/// Fits `text` into `columns`, if given.
pub(crate) fn fitted_to(text: String, columns: Option<usize>) -> String {
    match columns {
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
            fitted += &hung(these, columns, 2);
        } else {
            fitted += &by_rows(&table, columns);
        }
        rest = others;
    }
    fitted
}

/// Fits the text of a `--help` into `columns`: lines are wrapped, and descriptions remain in their column.
pub(crate) fn help(text: &str, columns: usize) -> String {
    let line = |line: &str| if width(line) <= columns { line.to_owned() } else { hung(line, columns, 0) };
    text.split_inclusive('\n').map(line).collect()
}

/// Wraps a line. If it consists of a name and, after two or more spaces, a description, the description is aligned
/// below its beginning. In other lines, the second line is indented by `more` columns.
fn hung(line: &str, columns: usize, more: usize) -> String {
    let indent_of = |line: &str| line.len() - line.trim_start().len();
    // Drops an indent that takes most of the line.
    let line = if indent_of(line) > columns / 2 { line.trim_start() } else { line };
    let indent = indent_of(line);
    let gap = line[indent..].find("  ").map(|gap| indent + gap);
    let described = gap.map(|gap| gap + line[gap..].len() - line[gap..].trim_start().len());
    let (begin, then) = match described {
        Some(at) if at < line.trim_end().len() && width(&line[..at]) < columns => {
            let column = width(&line[..at]);
            // If little room is left for the description, it is indented less.
            (at, if column > columns * 2 / 3 { indent + 4 } else { column })
        }
        _ => (indent, indent + more),
    };
    wrap(&line[..begin], &" ".repeat(then), &line[begin..], columns)
}

/// Prints a table row by row: the first cell, then each other cell after the name of its column.
fn by_rows(table: &[&str], columns: usize) -> String {
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let header = cells(table[0]);
    let names = header.iter().skip(1).map(|name| width(name)).max().unwrap_or(0).min(columns / 3);
    let mut text = String::new();
    // Skips the header and the line below it.
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

/// Wraps `words`: the first line begins with `first`, the others with `then`.
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

/// Number of columns that `text` takes; colour codes take none.
pub(crate) fn width(text: &str) -> usize {
    let mut parts = text.split('\x1b');
    let first = parts.next().map_or(0, |part| part.chars().count());
    first + parts.map(|part| part.split_once('m').map_or(0, |(_, shown)| shown.chars().count())).sum::<usize>()
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
    fn text_that_fits_is_not_changed() {
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
    fn descriptions_are_wrapped_in_their_column_and_paragraphs_at_the_margin() {
        let text = "Subjects:\n  limit    the best that is possible\n  \x1b[1mmemset\x1b[0m   of the C library\n\nOne \
                    paragraph of many words\n";
        let expected = "Subjects:\n  limit    the best\n           that is\n           possible\n  \x1b[1mmemset\x1b[0m   of the C\n           \
                        library\n\nOne paragraph of\nmany words\n";
        assert_eq!(help(text, 20), expected);
        assert_eq!(help(text, 200), text);
        assert_eq!(
            help("  a-long-name-of-an-option  what it is for\n", 30),
            "  a-long-name-of-an-option  what\n      it is for\n"
        );
    }

    #[test]
    fn nothing_is_wider_than_the_terminal_but_single_words() {
        let known = include_str!("../../tests/golden/compare.txt");
        for columns in [20, 40, 60, 80, 100] {
            let words = |text: &str| text.split_whitespace().map(width).max().unwrap_or(0);
            for line in fit(known, columns).lines().filter(|line| words(line) + 24 < columns) {
                assert!(width(line) <= columns, "{columns}: {line}");
            }
        }
    }
}
