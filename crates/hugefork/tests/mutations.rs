//! Checks the mutations: each is a patch that seeds a fault into the engine, and names the test that must find it.
//! `.ci/mutations` applies one after the other and runs its test. This test checks that each patch fits the sources,
//! that its test exists, and that docs/safety/mutations.md lists it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A patch, with the text before its first difference.
struct Mutation {
    path: PathBuf,
    name: String,
    /// The fault, in words.
    what: String,
    package: String,
    /// The arguments that select the test binary: `--lib`, or `--test` and a file or folder.
    binary: Vec<String>,
    /// The test, or the module whose tests find the fault.
    test: String,
}

impl Mutation {
    fn read(path: PathBuf) -> Mutation {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let what = text.lines().next().unwrap().to_owned();
        let line = text.lines().find_map(|line| line.strip_prefix("Caught by: "));
        let mut words = line.unwrap_or_else(|| panic!("{name} names no test")).split(' ').map(str::to_owned);
        let package = words.next().unwrap();
        let mut binary: Vec<String> = words.collect();
        let test = binary.pop().unwrap();
        Mutation { path, name, what, package, binary, test }
    }

    /// The sources of the test's binary.
    fn sources(&self) -> PathBuf {
        let package = root().join("crates").join(&self.package);
        match self.binary.as_slice() {
            [lib] if lib == "--lib" => package.join("src"),
            [test, name] if test == "--test" => {
                let (folder, file) = (package.join("tests").join(name), format!("tests/{name}.rs"));
                if folder.join("main.rs").exists() { folder } else { package.join(file) }
            }
            other => panic!("{}: {other:?}", self.name),
        }
    }

    fn row(&self) -> String {
        let place = self.binary.get(1).map_or(String::new(), |file| format!("`{file}`: "));
        format!("| {} | {place}`{}` |", self.what.trim_end_matches('.'), self.test)
    }
}

/// All mutations, in order.
fn mutations() -> Vec<Mutation> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("mutations");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(Mutation::read).collect()
}

#[test]
fn each_fault_can_be_seeded() {
    let mutations = mutations();
    assert!(mutations.len() >= 20, "{}", mutations.len());
    let git = |arguments: &[&str]| Command::new("git").current_dir(root()).args(arguments).output();
    if git(&["--version"]).is_err() {
        println!("skipped: no git here");
        return;
    }
    for mutation in mutations {
        let checked = git(&["apply", "--check", mutation.path.to_str().unwrap()]).unwrap();
        let said = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success(), "{} fits the sources no more, make it anew: {said}", mutation.name);
    }
}

#[test]
fn each_fault_names_a_test_that_is_there() {
    for mutation in mutations() {
        let (sources, last) = (mutation.sources(), mutation.test.rsplit("::").next().unwrap().to_owned());
        let is_function = texts(&sources).iter().any(|text| text.contains(&format!("fn {last}(")));
        let is_module = texts(&sources).iter().any(|text| text.contains(&format!("mod {last};")));
        assert!(is_function || is_module, "{}: no test {} in {}", mutation.name, mutation.test, sources.display());
    }
}

/// The contents of the sources in a folder and below, or of one file.
fn texts(path: &Path) -> Vec<String> {
    if path.is_file() {
        return vec![fs::read_to_string(path).unwrap()];
    }
    let entries = fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    entries.flat_map(|entry| texts(&entry.unwrap().path())).collect()
}

/// `HUGEFORK_GOLDEN=write` rewrites the table.
#[test]
fn the_document_lists_each_fault() {
    const BEGIN: &str = "<!-- mutations: begin -->\n";
    const END: &str = "<!-- mutations: end -->";
    let path = root().join("docs/safety/mutations.md");
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the document has a place for the table");
    let (table, after) = rest.split_once(END).expect("the table ends");
    let rows: String = mutations().iter().map(|mutation| mutation.row() + "\n").collect();
    let expected = format!("| fault | the test that finds it |\n|---|---|\n{rows}");
    if std::env::var("HUGEFORK_GOLDEN").is_ok_and(|value| value == "write") {
        fs::write(&path, format!("{before}{BEGIN}{expected}{END}{after}")).unwrap();
    } else {
        assert_eq!(table, expected);
    }
}
