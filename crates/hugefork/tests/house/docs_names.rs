//! Checks that the files and the `Type::item`s that the documents name exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The documents: `docs/` and the folders in it, the workspace's README and those of the crates.
fn documents() -> Vec<(PathBuf, String)> {
    let docs = in_folder(&root().join("docs")).into_iter().chain([root().join("docs"), root()]);
    let folders = docs.chain(in_folder(&root().join("crates")));
    let files = folders.flat_map(|folder| in_folder(&folder));
    let is_document = |path: &PathBuf| {
        let name = path.file_name().unwrap();
        // The changelog also names files and items of the past.
        path.extension().is_some_and(|end| end == "md") && name != "CHANGELOG.md"
    };
    files.filter(is_document).map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

fn in_folder(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The sources below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let (folders, files): (Vec<_>, Vec<_>) = in_folder(folder).into_iter().partition(|path| path.is_dir());
    let below = folders.iter().filter(|path| !path.ends_with("target")).flat_map(|path| sources(path));
    files.into_iter().filter(|path| path.extension().is_some_and(|end| end == "rs")).chain(below).collect()
}

/// The files that a text names.
fn files_in(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || "_-/.:".contains(letter);
    let words = text.split(move |letter| !is_part(letter)).map(|word| word.trim_end_matches(['.', ':']));
    words.filter(|word| word.ends_with(".rs") && !word.contains("://"))
}

/// The parts of the `Type::item`s that a text names.
fn items_in(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.split('`').skip(1).step_by(2);
    let paths = quoted.flat_map(|code| code.split(|letter: char| !is_of_name(letter) && letter != ':'));
    paths.filter(|path| path.contains("::")).flat_map(|path| path.split("::")).filter(|name| !name.is_empty())
}

fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// Whether a file exists, by its name in a document: relative to the root, a crate, or the engine's sources.
fn is_there(file: &str) -> bool {
    let crates = root().join("crates");
    let bases = [root(), crates.clone(), crates.join("hugefork"), crates.join("hugefork/src")];
    bases.iter().any(|base| base.join(file).is_file())
}

#[test]
fn files_that_the_documents_name_are_there() {
    let mut found = 0;
    for (document, text) in documents() {
        for file in files_in(&text) {
            found += 1;
            assert!(is_there(file), "{} names {file}, which is not there", document.display());
        }
    }
    assert!(found > 50, "{found} files are named: the list of what the handler runs alone has more");
}

#[test]
fn items_that_the_documents_name_are_there() {
    let sources = sources(&root().join("crates"));
    let texts: Vec<_> = sources.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let names: BTreeSet<&str> = texts.iter().flat_map(|text| text.split(|letter| !is_of_name(letter))).collect();
    for (document, text) in documents() {
        // Text between ``` is an example; the examples that matter are compiled.
        for prose in text.split("```").step_by(2) {
            for name in items_in(prose) {
                assert!(names.contains(name), "{} names {name}, which no source does", document.display());
            }
        }
    }
}

#[test]
fn names_are_found() {
    let text =
        "See [sys/mod.rs](sys/mod.rs), `gone.rs`: https://docs.rs/hugefork and lib.rs. `Pool::full_of`, `a` `Part`.";
    assert_eq!(files_in(text).collect::<Vec<_>>(), ["sys/mod.rs", "sys/mod.rs", "gone.rs", "lib.rs"]);
    assert_eq!(items_in(text).collect::<Vec<_>>(), ["Pool", "full_of"]);
    assert!(is_there("sys/mod.rs") && is_there("hugefork-kernels/src/order.rs") && !is_there("gone.rs"));
}

/// A text without line breaks, marks of comments and links.
fn flowing(text: &str) -> String {
    let without_marks = |line: &str| line.trim().trim_start_matches(['/', '*', '!', '#']).to_owned();
    let words = text.lines().map(without_marks).collect::<Vec<_>>().join(" ").replace('[', "");
    let mut parts = words.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    let flowing = parts.fold(first, |all, part| all + part.split_once(')').map_or(part, |(_, rest)| rest));
    flowing.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The rows of the table of quoted figures: its figure, and the files that quote it.
fn quoted_figures(measurements: &str) -> Vec<(&str, Vec<&str>)> {
    let section = measurements.split("\n## Figures that other documents quote\n").nth(1).expect("the section");
    let rows = section.split("\n## ").next().unwrap_or_default().lines().filter(|line| line.starts_with('|')).skip(2);
    let columns = rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect::<Vec<_>>());
    columns.map(|row| (row[1], row[2].split('`').skip(1).step_by(2).collect())).collect()
}

#[test]
fn figures_are_quoted_as_they_stand_in_measurements() {
    let measurements = fs::read_to_string(root().join("docs/measurements.md")).unwrap();
    let figures = quoted_figures(&measurements);
    assert!(figures.len() >= 4);
    for (figure, files) in figures {
        assert!(!files.is_empty(), "{figure}");
        for file in files {
            let text = flowing(&fs::read_to_string(root().join(file)).unwrap());
            assert!(text.contains(figure), "{file} does not say `{figure}`, as docs/measurements.md does");
        }
    }
}
