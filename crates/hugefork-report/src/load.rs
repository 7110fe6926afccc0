//! Reads result files. Any file gives a record, or an error of one line that names the remedy.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::record::{Entry, Record};

/// The schema that this crate reads.
pub const SCHEMA: u64 = 1;

/// Larger files are refused. A full sweep of every case is 2 MiB.
const LONGEST: u64 = 256 << 20;

/// Larger values are refused: 1e15 us are 31 years.
const LARGEST: f64 = 1e15;

const HOW: &str = "write one with `hugefork bench --json FILE`";

/// The reason why a file is no record. The message is one line that names the file and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The system cannot read the file.
    #[error("{file}: cannot be read: {source}; name a file that `hugefork bench --json FILE` wrote")]
    Unreadable {
        /// The file.
        file: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is empty.
    #[error("{file}: is empty; {HOW}")]
    Empty {
        /// The file.
        file: String,
    },
    /// The file ends inside a value.
    #[error("{file}: ends in the middle, at line {line}; copy it again, or {HOW}")]
    Truncated {
        /// The file.
        file: String,
        /// The last line.
        line: usize,
    },
    /// The file is not JSON.
    #[error("{file}: is not JSON: {what}; {HOW}")]
    Malformed {
        /// The file.
        file: String,
        /// The error and its place.
        what: String,
    },
    /// The file is JSON of another program.
    #[error("{file}: is not a result of hugefork: {what}; {HOW}")]
    Foreign {
        /// The file.
        file: String,
        /// The missing part.
        what: String,
    },
    /// The file has another schema.
    #[error("{file}: has schema {schema}, this hugefork reads schema {SCHEMA}; use the hugefork that wrote it")]
    Schema {
        /// The file.
        file: String,
        /// Its schema.
        schema: String,
    },
    /// The file breaks the rules of its schema.
    #[error("{file}: {place}: {what}; the file was changed or damaged: copy it again, or {HOW}")]
    Damaged {
        /// The file.
        file: String,
        /// The damaged part.
        place: String,
        /// The broken rule.
        what: String,
    },
}

/// Reads the result file at `path`.
///
/// # Errors
/// See [`LoadError`]. Nothing that a file contains makes this panic.
pub fn load(path: &Path) -> Result<Record, LoadError> {
    let file = clean(&path.display().to_string());
    let unreadable = |source| LoadError::Unreadable { file: file.clone(), source };
    let mut bytes = Vec::new();
    File::open(path).map_err(unreadable)?.take(LONGEST + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > LONGEST {
        let what = format!("it is longer than {} MiB", LONGEST >> 20);
        return Err(LoadError::Foreign { file, what });
    }
    parse(&file, &bytes)
}

/// Reads a result from the contents of the file named `file`.
///
/// # Errors
/// As [`load`].
pub fn parse(file: &str, bytes: &[u8]) -> Result<Record, LoadError> {
    let file = clean(file);
    if bytes.trim_ascii().is_empty() {
        return Err(LoadError::Empty { file });
    }
    let value: Value = match serde_json::from_slice(bytes) {
        Ok(value) => value,
        Err(error) if error.is_eof() => return Err(LoadError::Truncated { file, line: error.line() }),
        Err(error) => return Err(LoadError::Malformed { file, what: clean(&error.to_string()) }),
    };
    let Value::Object(mut fields) = cleaned(value) else {
        return Err(LoadError::Foreign { file, what: "it is not an object with `schema` and `results`".to_owned() });
    };
    match fields.get("schema") {
        Some(schema) if schema.as_u64() == Some(SCHEMA) => {}
        Some(schema) => return Err(LoadError::Schema { file, schema: short(schema) }),
        None => return Err(LoadError::Foreign { file, what: "it has no `schema`".to_owned() }),
    }
    record(&file, &mut fields).map_err(|(place, what)| LoadError::Damaged { file, place, what })
}

/// A place in the file, and the error there.
type Damage = (String, String);

fn record(file: &str, fields: &mut Map<String, Value>) -> Result<Record, Damage> {
    let Some(Value::Array(results)) = fields.remove("results") else {
        return Err(("results".to_owned(), "is missing or not a list".to_owned()));
    };
    let entries = results
        .into_iter()
        .enumerate()
        .map(|(index, value)| entry(value).map_err(|what| (format!("results[{index}]"), what)));
    Ok(Record {
        name: file.to_owned(),
        version: part(fields, "version")?,
        commit: part(fields, "commit")?,
        date: part(fields, "date")?,
        command: part(fields, "command")?,
        host: part(fields, "host")?,
        entries: entries.collect::<Result<_, _>>()?,
        not_run: part(fields, "not_run")?,
        failed: part(fields, "failed")?,
        warnings: part(fields, "warnings")?,
        interrupted: part(fields, "interrupted")?,
    })
}

/// Takes a field, or its default where the file lacks it.
fn part<T: Default + for<'de> Deserialize<'de>>(fields: &mut Map<String, Value>, name: &str) -> Result<T, Damage> {
    match fields.remove(name) {
        None | Some(Value::Null) => Ok(T::default()),
        Some(value) => read(value).map_err(|what| (name.to_owned(), what)),
    }
}

fn read<T: for<'de> Deserialize<'de>>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| error.to_string())
}

fn entry(mut value: Value) -> Result<Entry, String> {
    let written: Option<f64> = read(value.get_mut("median").map_or(Value::Null, Value::take))?;
    let mut entry: Entry = read(value)?;
    entry.median = written.or_else(|| median(&entry.samples)).ok_or("has neither samples nor a median")?;
    check_size(entry.samples.iter().chain([&entry.median]))?;
    Ok(entry)
}

fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.get(samples.len().checked_sub(1)? / 2)?, sorted[samples.len() / 2]);
    Some(f64::midpoint(*low, high))
}

fn check_size<'a>(mut values: impl Iterator<Item = &'a f64>) -> Result<(), String> {
    match values.find(|value| value.abs() > LARGEST) {
        Some(value) => Err(format!("{value:e} is more than can be measured")),
        None => Ok(()),
    }
}

/// Makes every text of a file safe to show.
fn cleaned(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(clean(&text)),
        Value::Array(list) => list.into_iter().map(cleaned).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (clean(&name), cleaned(value))).collect(),
        other => other,
    }
}

/// Replaces characters that command a terminal, that XML forbids, or that change the direction of text.
fn clean(text: &str) -> String {
    let bad = |c: char| {
        c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
    };
    text.replace(bad, "\u{fffd}")
}

/// The first 20 characters of a value.
fn short(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 20 { text } else { text.chars().take(20).chain(['…']).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let line = parse("a.json", text.as_bytes()).unwrap_err().to_string();
        assert!(line.starts_with("a.json: ") && !line.contains('\n'), "{line}");
        line
    }

    #[test]
    fn each_error_is_one_line_with_the_remedy() {
        assert!(refused(" \n").contains("is empty; write one with `hugefork bench --json FILE`"));
        assert!(refused(r#"{"schema": 1, "#).contains("ends in the middle, at line 1"));
        assert!(refused("case,subject\n").contains("is not JSON"));
        assert!(refused("[1]").contains("not an object"));
        assert!(refused(r#"{"name": "left-pad"}"#).contains("has no `schema`"));
        assert!(refused(r#"{"schema": 2}"#).contains("has schema 2, this hugefork reads schema 1"));
        assert!(
            refused(r#"{"schema": "http://json-schema.org/draft-07"}"#).contains("has schema \"http://json-schema.…")
        );
        assert!(refused(r#"{"schema": 1}"#).contains("results: is missing"));
        assert!(refused(r#"{"schema": 1, "results": [], "host": 3}"#).contains("host: "));
        assert!(refused(&"[".repeat(100_000)).contains("is not JSON"));
    }

    #[test]
    fn an_error_names_the_damaged_part() {
        let of = |entry: &str| refused(&format!(r#"{{"schema": 1, "results": [{entry}]}}"#));
        assert!(of("{}").contains("results[0]: missing field `case`"));
        let head = r#""case": "c", "subject": "s", "metric": "m""#;
        assert!(of(&format!("{{{head}}}")).contains("results[0]: has neither samples nor a median"));
        assert!(of(&format!(r#"{{{head}, "samples": [1, null]}}"#)).contains("results[0]: "));
        assert!(of(&format!(r#"{{{head}, "median": 1e300}}"#)).contains("1e300 is more than can be measured"));
        assert!(of(&format!(r#"{{{head}, "median": 1e999}}"#)).contains("is not JSON"));
    }

    #[test]
    fn a_missing_file_and_a_directory_are_errors_too() {
        let line = load(Path::new("/nonexistent/a.json")).unwrap_err().to_string();
        assert!(line.starts_with("/nonexistent/a.json: cannot be read"), "{line}");
        assert!(load(Path::new("/")).unwrap_err().to_string().starts_with("/: cannot be read"));
    }

    #[test]
    fn no_string_of_a_file_can_command_a_terminal() {
        let text = r#"{"schema": 1, "command": "\u001b[2J\u202e", "host": {"cpu": "\u0000"}, "results":
            [{"case": "c\u0007", "subject": "s", "params": {"p\u0000": "\u0085", "n": 2}, "metric": "m", "median": 1}]}"#;
        let record = parse("a\nb", text.as_bytes()).unwrap();
        let shown = format!("{record:?}");
        assert!(shown.contains('\u{fffd}') && !shown.contains("\\u{") && !shown.contains("\\n"), "{shown}");
        assert_eq!(record.entries[0].params["n"], "2");
    }
}
