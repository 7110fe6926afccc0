//! The contents of each package of the workspace when it is published.

#[path = "../build.rs"]
#[allow(dead_code)]
mod build;

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Packages, and the examples that each must contain.
const PACKAGES: [(&str, &[&str]); 11] = [
    ("hugefork", &["offsets.rs", "save_while_writing.rs"]),
    ("hugefork-bench", &["own_table.rs"]),
    ("hugefork-capi", &["jemalloc_arena.c", "mimalloc_heap.c", "snapshot_while_writing.c"]),
    ("hugefork-cli", &["before_and_after.sh"]),
    ("hugefork-keep", &["keep_by_name.rs"]),
    ("hugefork-kernels", &["around_the_target.rs"]),
    ("hugefork-linux", &["pages_of.rs"]),
    // Only the command needs it.
    ("hugefork-preload", &[]),
    // The documentation contains its examples; no other program needs it.
    ("hugefork-program", &[]),
    ("hugefork-python", &["branch_and_rewind.py", "train_with_checkpoints.py", "what_it_costs.py"]),
    ("hugefork-report", &["page_of_results.rs"]),
];

fn cargo(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO")).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "cargo {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_package_has_its_readme_licences_and_examples() {
    for (name, examples) in PACKAGES {
        let listed = cargo(&["package", "--list", "--allow-dirty", "--offline", "--package", name]);
        let files: Vec<&str> = listed.lines().collect();
        let examples = examples.iter().map(|example| format!("examples/{example}"));
        for wanted in
            ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "Cargo.toml"].map(str::to_owned).into_iter().chain(examples)
        {
            assert!(files.contains(&wanted.as_str()), "{name} lacks {wanted}: {files:?}");
        }
    }
}

#[test]
fn every_package_has_its_description_and_origin() {
    let metadata = cargo(&["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert_eq!(packages.len(), PACKAGES.len(), "is a package missing in the list above?");
    for package in packages {
        let name = package["name"].as_str().unwrap();
        assert!(PACKAGES.iter().any(|(known, _)| *known == name), "{name} is not in the list above");
        for field in ["description", "license", "repository", "readme", "rust_version", "documentation"] {
            assert!(package[field].as_str().is_some_and(|text| !text.is_empty()), "{name} has no {field}");
        }
        for field in ["keywords", "categories"] {
            let count = package[field].as_array().unwrap().len();
            assert!((1..=5).contains(&count), "{name} has {count} {field}");
        }
        assert_eq!(package["repository"], "https://github.com/hugefork/hugefork");
    }
}

#[test]
fn the_licence_of_every_package_is_that_of_the_project() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let ours = std::fs::read(crates.parent().unwrap().join(licence)).unwrap();
        for (name, _) in PACKAGES {
            assert_eq!(std::fs::read(crates.join(name).join(licence)).unwrap(), ours, "{name}/{licence}");
        }
    }
}

/// The package lies in a directory tree that looks like a workspace's, but no part of this workspace is nearby.
#[test]
fn the_library_is_built_from_its_package_alone() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("package");
    let _ = std::fs::remove_dir_all(&scratch);
    std::fs::create_dir_all(&scratch).unwrap();
    let directory = scratch.to_str().unwrap();
    // Its dependencies would be published before it.
    let names = ["hugefork-kernels", "hugefork-linux", "hugefork", "hugefork-program", "hugefork-preload"];
    let named: Vec<&str> = names.iter().flat_map(|name| ["--package", name]).collect();
    let options = ["package", "--no-verify", "--allow-dirty", "--offline", "--target-dir", directory];
    cargo(&[options.as_slice(), &named].concat());
    let version = env!("CARGO_PKG_VERSION");
    for name in names {
        let archive = scratch.join(format!("package/{name}-{version}.crate"));
        let unpacked = Command::new("tar").arg("xf").arg(archive).arg("-C").arg(&scratch).status().unwrap();
        assert!(unpacked.success());
    }
    let package = scratch.join(format!("hugefork-preload-{version}"));
    let mut manifest = std::fs::read_to_string(package.join("Cargo.toml")).unwrap() + "\n[patch.crates-io]\n";
    for name in &names[..4] {
        manifest += &format!("{name} = {{ path = {:?} }}\n", scratch.join(format!("{name}-{version}")));
    }
    // The result is never run.
    for name in names {
        manifest += &format!("[profile.release.package.{name}]\nopt-level = 0\n");
    }
    std::fs::write(package.join("Cargo.toml"), manifest).unwrap();
    // Dependencies are compiled as for the command, and have not changed since.
    let (out, compiled) = (scratch.join("out"), Path::new(env!("OUT_DIR")).join("library"));
    std::fs::create_dir(&out).unwrap();
    let copied = Command::new("cp").arg("-a").arg(compiled).arg(&out).status().unwrap();
    assert!(copied.success());
    let compiler = Command::new("rustc").arg("-vV").output().unwrap();
    let told = String::from_utf8(compiler.stdout).unwrap();
    let target = told.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let library = build::library(&package, &out, OsStr::new(env!("CARGO")), OsStr::new(target));
    assert!(library.starts_with(b"\x7fELF"));
    std::fs::remove_dir_all(&scratch).unwrap();
}
