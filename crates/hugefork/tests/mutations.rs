//! Checks the list of seeded faults, docs/safety/mutations.md: it has each `seeded!` of the sources, and names tests
//! that exist. `.ci/mutations` runs the tests.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The name and the test in each row of the list.
fn listed() -> Vec<(String, String)> {
    let list = fs::read_to_string(root().join("docs/safety/mutations.md")).unwrap();
    let rows = list.lines().filter_map(|row| row.strip_prefix("| `")?.strip_suffix("` |"));
    let ends = rows.map(|row| (row.split_once('`').unwrap().0, row.rsplit_once('`').unwrap().1));
    ends.map(|(name, test)| (name.to_owned(), test.to_owned())).collect()
}

/// The contents of the sources in a folder and below, or of one file.
fn texts(path: &Path) -> Vec<String> {
    if path.is_file() {
        return vec![fs::read_to_string(path).unwrap()];
    }
    let entries = fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    entries.flat_map(|entry| texts(&entry.unwrap().path())).collect()
}

#[test]
fn each_fault_is_in_the_list_and_in_one_place_of_the_sources() {
    let texts: String = ["hugefork", "hugefork-kernels"]
        .into_iter()
        .flat_map(|package| texts(&root().join("crates").join(package).join("src")))
        .collect();
    let names: Vec<_> = texts.split("seeded!(\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    let (seeded, listed) = (BTreeSet::from_iter(names.iter().copied()), listed());
    assert_eq!(seeded, listed.iter().map(|(name, _)| name.as_str()).collect());
    assert_eq!(names.len(), seeded.len(), "a name is in two places");
}

#[test]
fn each_fault_names_a_test_that_is_there() {
    for (name, test) in listed() {
        let words: Vec<_> = test.split(' ').collect();
        let package = root().join("crates").join(words[0]);
        let (sources, test) = match words[1..] {
            ["--lib", test] => (package.join("src"), test),
            ["--test", binary, test] => {
                let (folder, file) = (package.join("tests").join(binary), format!("tests/{binary}.rs"));
                (if folder.join("main.rs").exists() { folder } else { package.join(file) }, test)
            }
            _ => panic!("{name}: {test}"),
        };
        let last = test.rsplit("::").next().unwrap();
        let is_there = |text: &String| text.contains(&format!("fn {last}(")) || text.contains(&format!("mod {last};"));
        assert!(texts(&sources).iter().any(is_there), "{name}: no test {test} in {}", sources.display());
    }
}
