//! Output that is the same on every machine: help, tables, errors.
//!
//! In `golden/*.txt`, a line `$ hugefork …` is a command to run in that directory. Its output
//! follows, and its status unless that is 0. After a change of the text, run `HUGEFORK_GOLDEN=write
//! cargo test -p hugefork-cli --test golden`, and check the difference.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs the commands of a file; returns their number and their output.
fn check(name: &str) -> (usize, String) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let file = directory.join(name);
    let expected = fs::read_to_string(&file).unwrap();
    let commands: Vec<&str> = expected.lines().filter_map(|line| line.strip_prefix("$ hugefork ")).collect();
    let printed: String = commands.iter().map(|command| run(command, &directory)).collect();
    if std::env::var_os("HUGEFORK_GOLDEN").is_some_and(|value| value == "write") {
        fs::write(&file, &printed).unwrap();
    } else {
        assert_eq!(printed, expected, "{name}: see the top of tests/golden.rs");
    }
    (commands.len(), printed)
}

fn run(command: &str, directory: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_hugefork"))
        .args(command.split_whitespace())
        .current_dir(directory)
        .env_remove("COLUMNS")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let status = match output.status.code() {
        Some(0) => String::new(),
        status => format!("[{}]\n", status.expect("no signal ends it")),
    };
    format!("$ hugefork {command}\n{}{}{status}", text(output.stdout), text(output.stderr))
}

#[test]
fn help_is_not_wider_than_a_terminal() {
    let (_, text) = check("help.txt");
    let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > 100).collect();
    assert!(wide.is_empty(), "wider than 100 columns: {wide:#?}");
    assert!(!text.contains("tune-guardian"));
}

/// A blank line would cut a table in two, and the lower part would have no header.
#[test]
fn tables_of_the_documents_are_whole() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = [root.join("docs"), root.join("docs/safety")];
    let documents = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap()).map(|entry| entry.unwrap().path());
    let mut tables = 0;
    for path in documents.chain([root.join("README.md"), root.join("CHANGELOG.md")]) {
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for table in text.split("\n\n").filter(|part| part.starts_with('|')) {
            let second = table.lines().nth(1).unwrap_or_default();
            assert!(second.starts_with("|-"), "{}: no head above: {table}", path.display());
            tables += 1;
        }
    }
    assert!(tables > 10, "{tables}");
}

#[test]
fn comparisons_are_tables_and_may_fail() {
    check("compare.txt");
}

#[test]
fn errors_say_what_is_wrong_and_have_status_2() {
    let (commands, text) = check("errors.txt");
    assert_eq!(text.matches("\nerror: ").count(), commands);
    assert_eq!(text.matches("\n[2]\n").count(), commands);
}
