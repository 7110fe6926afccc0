//! Output to standard output, a terminal or a file.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use rustix::termios::tcgetwinsize;

use crate::failure::Failure;

/// Prints to standard output; a closed pipe (`| head`) is not an error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("writing to standard output"),
        _ => Ok(()),
    }
}

/// The columns of the terminal `stream`, and of paper if it is none.
pub(crate) fn columns(stream: &(impl IsTerminal + AsFd)) -> usize {
    let size = tcgetwinsize(stream).ok().filter(|size| stream.is_terminal() && size.ws_col > 0);
    size.map_or(80, |size| usize::from(size.ws_col).max(20))
}

/// Wraps `words`: the first line begins with `first`, the others with `then`.
pub(crate) fn wrap(first: &str, then: &str, words: &str, columns: usize) -> String {
    let (mut text, mut line, mut is_new) = (String::new(), first.to_owned(), true);
    for word in words.split_whitespace() {
        if !is_new && line.chars().count() + word.chars().count() > columns {
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

/// Rows of cells as text. The first cell of a row is set to the left, the others to the right.
pub(crate) fn aligned(rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).add_rows(rows);
    for (nth, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        column.set_cell_alignment(if nth == 0 { CellAlignment::Left } else { CellAlignment::Right });
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// A number of bytes as text for people.
pub(crate) fn size(bytes: u64) -> String {
    let (unit, shift) = match bytes {
        0..0x4000_0000 => ("MiB", 20),
        0x4000_0000..0x100_0000_0000 => ("GiB", 30),
        _ => ("TiB", 40),
    };
    let number = format!("{:.1}", bytes as f64 / (1_u64 << shift) as f64);
    format!("{} {unit}", number.strip_suffix(".0").unwrap_or(&number))
}

/// A writable file. It is replaced as a whole, so that it is never half written, even if the command is stopped.
#[derive(Debug)]
pub(crate) struct Sink {
    /// The option that names it.
    option: &'static str,
    /// The path as the user wrote it.
    pub(crate) named: PathBuf,
    way: Way,
}

#[derive(Debug)]
enum Way {
    /// Written beside this file, then renamed over it.
    Replace(PathBuf),
    /// A device or a pipe. It is opened at the start, because the reader of a pipe may exit when the pipe is closed.
    Stream(File),
    /// The standard output of this process, of any kind.
    Stdout,
}

impl Sink {
    /// Checks before any work that `path`, the value of `option`, is writable. An older file is not touched until the
    /// new one is complete. `-` is standard output.
    pub(crate) fn open(option: &'static str, path: &Path) -> Result<Sink, Failure> {
        let refused = |error| unwritable(&format!("{option} {}", path.display()), "file", &error);
        let way = match fs::metadata(path) {
            _ if path == Path::new("-") => Way::Stdout,
            Ok(there) if is_stdout(&there) => Way::Stdout,
            Ok(there) if !there.is_file() => Way::Stream(File::options().append(true).open(path).map_err(refused)?),
            // The target of a link is replaced, not the link.
            _ => Way::Replace(fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())),
        };
        if let Way::Replace(target) = &way {
            let beside = beside(target);
            fs::write(&beside, "").map_err(refused)?;
            let _ = fs::remove_file(&beside);
        }
        Ok(Sink { option, named: path.to_owned(), way })
    }

    /// Whether it is standard output. Nothing else may be printed there then.
    pub(crate) fn is_stdout(&self) -> bool {
        matches!(self.way, Way::Stdout)
    }

    /// Whether a later write replaces an earlier one.
    pub(crate) fn replaces(&self) -> bool {
        matches!(self.way, Way::Replace(_))
    }

    /// Writes `contents`.
    pub(crate) fn write(&self, contents: &str) -> Result<(), Failure> {
        match &self.way {
            Way::Replace(target) => {
                let beside = beside(target);
                let written = fs::write(&beside, contents).and_then(|()| fs::rename(&beside, target));
                written.inspect_err(|_| drop(fs::remove_file(&beside)))
            }
            Way::Stream(stream) => (&*stream).write_all(contents.as_bytes()),
            Way::Stdout => return Ok(print(contents)?),
        }
        .map_err(|error| unwritable(&format!("{} {}", self.option, self.named.display()), "file", &error))
    }
}

/// The temporary file of this process beside a file.
fn beside(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.{}", std::process::id()))
}

/// An error that `what` cannot be written, with the reason and a remedy. It should be a `kind`, such as a file.
pub(crate) fn unwritable(what: &str, kind: &str, error: &io::Error) -> Failure {
    let mend = match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => format!("name a {kind} in a directory that exists"),
        ErrorKind::PermissionDenied => format!("name a {kind} in a directory that is yours"),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => format!("free space or name a {kind} elsewhere"),
        ErrorKind::AlreadyExists | ErrorKind::IsADirectory => format!("name a {kind}"),
        _ => format!("name another {kind}"),
    };
    Failure::usage(format!("{what}: cannot be written: {error}; {mend}"))
}

fn is_stdout(there: &Metadata) -> bool {
    let ours = rustix::fs::fstat(io::stdout());
    ours.is_ok_and(|ours| (ours.st_dev, ours.st_ino) == (there.dev(), there.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A temporary directory of this test, removed at its end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("hugefork-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn an_old_file_exists_until_the_result_and_no_temporary_file_remains() {
        let scratch = Scratch::new("sink");
        let path = scratch.0.join("out.json");
        fs::write(&path, "old").unwrap();
        let sink = Sink::open("--json", &path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        sink.write("new").unwrap();
        sink.write("newer").unwrap();
        drop(sink);
        assert_eq!(fs::read_to_string(&path).unwrap(), "newer");
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
    }

    #[test]
    fn an_unwritable_file_is_reported_before_any_work() {
        let Failure(status, line) = Sink::open("--csv", Path::new("/nonexistent/out.csv")).unwrap_err();
        assert!(status == 2 && line.starts_with("--csv /nonexistent/out.csv: cannot be written"), "{line}");
        let Failure(_, line) = Sink::open("--json", Path::new("/")).unwrap_err();
        assert!(line.ends_with("Is a directory (os error 21); name a file"), "{line}");
    }

    #[test]
    fn a_failed_write_is_reported_with_a_matching_remedy() {
        let Failure(_, found) = Sink::open("--json", Path::new("/dev/full")).unwrap().write("new").unwrap_err();
        let line = "--json /dev/full: cannot be written: No space left on device (os error 28); free space or name a file elsewhere";
        assert_eq!(found, line);
    }

    #[test]
    fn a_device_is_written_and_not_replaced() {
        let sink = Sink::open("--json", Path::new("/dev/null")).unwrap();
        sink.write("new").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn a_link_is_followed_and_not_replaced() {
        let scratch = Scratch::new("link");
        let (file, link) = (scratch.0.join("file.json"), scratch.0.join("link.json"));
        fs::write(&file, "before").unwrap();
        std::os::unix::fs::symlink("file.json", &link).unwrap();
        Sink::open("--json", &link).unwrap().write("after").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "after");
    }

    #[test]
    fn words_are_wrapped_and_cells_aligned() {
        assert_eq!(wrap("note: ", "  ", "three short words", 12), "note: three\n  short\n  words\n");
        let rows = [["a", "1.5"], ["bcd", "10"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(aligned(rows), "a    1.5\nbcd   10\n");
    }

    #[test]
    fn sizes_use_the_largest_unit_that_fits() {
        let told = [0, 3 << 19, (1 << 30) - 1, 1 << 30, 5 << 29, 1 << 40, 16 << 40].map(size);
        assert_eq!(told, ["0 MiB", "1.5 MiB", "1024 MiB", "1 GiB", "2.5 GiB", "1 TiB", "16 TiB"]);
    }
}
