//! The packages of the workspace: which are published, and their contents.

use std::path::Path;
use std::process::Command;

/// Packages that are published, and examples that each must contain. Users of the others take what `.ci/release`
/// builds.
const PUBLISHED: [(&str, &[&str]); 4] = [
    ("hugefork", &["offsets.rs", "save_while_writing.rs"]),
    ("hugefork-checkpoint", &["tokio_saves.rs"]),
    ("hugefork-kernels", &["around_the_target.rs"]),
    ("hugefork-linux", &["pages_of.rs"]),
];

fn cargo(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO")).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "cargo {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_published_package_has_its_readme_licences_and_examples() {
    for (name, examples) in PUBLISHED {
        let listed = cargo(&["package", "--list", "--allow-dirty", "--offline", "--package", name]);
        let files: Vec<&str> = listed.lines().collect();
        let examples = examples.iter().map(|example| format!("examples/{example}"));
        for wanted in
            ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "Cargo.toml"].map(str::to_owned).into_iter().chain(examples)
        {
            assert!(files.contains(&wanted.as_str()), "{name} lacks {wanted}: {files:?}");
        }
        assert!(!files.iter().any(|file| file.starts_with("tests/")), "nobody who uses {name} runs its tests");
    }
}

#[test]
fn packages_have_their_description_and_origin_and_published_ones_depend_on_such() {
    let metadata = cargo(&["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    let is_published = |name: &str| PUBLISHED.iter().any(|(known, _)| *known == name);
    let mut count = 0;
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        for field in ["description", "license", "repository", "readme", "rust_version"] {
            assert!(package[field].as_str().is_some_and(|text| !text.is_empty()), "{name} has no {field}");
        }
        assert_eq!(package["repository"], "https://github.com/hugefork/hugefork");
        // `null` allows any registry, an empty list none.
        assert_eq!(package["publish"].is_null(), is_published(name), "{name}: is it published?");
        if !is_published(name) {
            continue;
        }
        count += 1;
        assert_eq!(package["documentation"], format!("https://docs.rs/{name}"));
        for field in ["keywords", "categories"] {
            let count = package[field].as_array().unwrap().len();
            assert!((1..=5).contains(&count), "{name} has {count} {field}");
        }
        for dependency in package["dependencies"].as_array().unwrap() {
            let needs = dependency["name"].as_str().unwrap();
            assert!(!needs.starts_with("hugefork") || is_published(needs), "{name} needs {needs}");
        }
    }
    assert_eq!(count, PUBLISHED.len());
}

#[test]
fn the_licence_of_every_package_is_that_of_the_project() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let ours = std::fs::read(crates.parent().unwrap().join(licence)).unwrap();
        // Python's package lies in another registry.
        for name in PUBLISHED.map(|(name, _)| name).into_iter().chain(["hugefork-python"]) {
            assert_eq!(std::fs::read(crates.join(name).join(licence)).unwrap(), ours, "{name}/{licence}");
        }
    }
}
