//! Text for a terminal that may be narrower than the text: tables that do not fit are set row by row, and lines are
//! wrapped.
//!
//! ```text
//! | subject | pause ms |       hugefork
//! |---------|----------|  ──▶    pause ms  0.3
//! | hugefork|      0.3 |
//!
//!   snapshot  pause to take a fork   ──▶    snapshot  pause to take
//!                                                     a fork
//! ```
//! Elsewhere the text stays as it is, so that tables can be quoted.

use std::env;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

/// A terminal is taken to be at least as wide.
const LEAST: usize = 20;

/// The columns of the terminal on standard output; none if that is something else.
pub(crate) fn columns() -> Option<usize> {
    columns_of(&io::stdout())
}

/// The columns of the terminal that `stream` is; none if it is something else.
pub(crate) fn columns_of(stream: &(impl IsTerminal + AsFd)) -> Option<usize> {
    let named = || env::var("COLUMNS").ok()?.parse().ok();
    let asked = || tcgetwinsize(stream).ok().map(|size| usize::from(size.ws_col));
    let columns = stream.is_terminal().then(|| named().or_else(asked))??;
    (columns > 0).then_some(columns.max(LEAST))
}

/// Whether `stream` shows colours: it is a terminal, unless it is a dumb one or `NO_COLOR` asks for none.
pub(crate) fn colours(stream: &impl IsTerminal) -> bool {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    stream.is_terminal() && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

/// `text` as it fits on standard output.
pub(crate) fn fitted(text: String) -> String {
    fitted_to(text, columns())
}

/// `text` as it fits into `columns`, if there are any.
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

/// The text of a `--help` in `columns`: each line is wrapped, and a description stays in its column.
pub(crate) fn help(text: &str, columns: usize) -> String {
    let line = |line: &str| if width(line) <= columns { line.to_owned() } else { hung(line, columns, 0) };
    text.split_inclusive('\n').map(line).collect()
}

/// A line, wrapped. If it is a name and, two spaces or more later, a description, then all of the description is below
/// its beginning. The second line of others begins `more` columns further right than the first.
fn hung(line: &str, columns: usize, more: usize) -> String {
    let indent_of = |line: &str| line.len() - line.trim_start().len();
    // An indent that takes most of the line is no use.
    let line = if indent_of(line) > columns / 2 { line.trim_start() } else { line };
    let indent = indent_of(line);
    let gap = line[indent..].find("  ").map(|gap| indent + gap);
    let described = gap.map(|gap| gap + line[gap..].len() - line[gap..].trim_start().len());
    let (begin, then) = match described {
        Some(at) if at < line.trim_end().len() && width(&line[..at]) < columns => {
            let column = width(&line[..at]);
            // Where little would be left for the description, it goes on further left.
            (at, if column > columns * 2 / 3 { indent + 4 } else { column })
        }
        _ => (indent, indent + more),
    };
    wrap(&line[..begin], &" ".repeat(then), &line[begin..], columns)
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

/// How many columns `text` takes. Colours take none.
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
    fn descriptions_stay_in_their_column_and_paragraphs_at_the_margin() {
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
