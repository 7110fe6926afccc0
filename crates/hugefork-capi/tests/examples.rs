//! The examples, compiled and run.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{Library, Program, folder, scratch, words};

struct Example {
    file: &'static str,
    /// The library that the example is about, if any.
    library: Option<&'static str>,
    /// A part of the expected output.
    prints: &'static str,
}

const EXAMPLES: [Example; 5] = [
    Example { file: "snapshot_while_writing.c", library: None, prints: "8 MiB saved during" },
    Example { file: "child_maps_export.c", library: None, prints: "the child has read 64 MiB of its parent" },
    Example { file: "jemalloc_arena.c", library: Some("jemalloc"), prints: "100000 nodes in" },
    Example { file: "mimalloc_heap.c", library: Some("mimalloc"), prints: "200000 words in" },
    Example { file: "order_book.cpp", library: None, prints: "each of 1000 states had its contents" },
];

/// Whether the C compiler finds a library and its header.
fn is_installed(library: &str) -> bool {
    let header = match library {
        "jemalloc" => "/usr/include/jemalloc/jemalloc.h".to_owned(),
        other => format!("/usr/include/{other}.h"),
    };
    let found = Command::new("cc").arg(format!("-print-file-name=lib{library}.so")).output().unwrap();
    // For a library that it cannot find, the compiler prints the bare name.
    Path::new(&header).exists() && words(&found).contains('/')
}

#[test]
fn every_example_prints_the_expected_output() {
    for Example { file, library, prints } in EXAMPLES {
        if let Some(library) = library.filter(|library| !is_installed(library)) {
            let required = std::env::var("HUGEFORK_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|name| name == library), "{library} is required, and not installed");
            println!("skipped: {file} needs {library}: apt-get install lib{library}-dev");
            continue;
        }
        let program = Program::of(&format!("examples/{file}"), Library::Shared, file);
        let link = library.map(|library| format!("-l{library}"));
        let output = program.with(&link.iter().map(String::as_str).collect::<Vec<_>>()).build().output().unwrap();
        let said = words(&output);
        assert!(output.status.success() && said.contains(prints), "{file}: {}\n{said}", output.status);
    }
}

#[test]
fn the_code_in_the_readme_runs() {
    let readme = fs::read_to_string(folder().join("README.md")).unwrap();
    for language in ["c", "cpp"] {
        let code = readme.split(&format!("```{language}\n")).nth(1).and_then(|rest| rest.split("```").next());
        let source = scratch(&format!("readme-source-{language}")).join(format!("readme.{language}"));
        fs::write(&source, code.expect("the README has code")).unwrap();
        let program = Program::of(source.to_str().unwrap(), Library::Shared, &format!("readme-{language}"));
        assert_eq!(words(&program.build().output().unwrap()), "hello\n");
    }
}

#[test]
fn every_example_is_run() {
    let found = fs::read_dir(folder().join("examples")).unwrap().flatten();
    let mut found: Vec<String> = found.map(|entry| entry.file_name().into_string().unwrap()).collect();
    let mut run: Vec<&str> = EXAMPLES.iter().map(|example| example.file).collect();
    found.sort();
    run.sort_unstable();
    assert_eq!(found, run);
}
