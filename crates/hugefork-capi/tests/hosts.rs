//! Runtimes that handle `SIGSEGV` themselves load the library, write while snapshots are taken, and
//! still get their own faults: a Java virtual machine, for null pointers in compiled code, and Go,
//! for nil pointers.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Library, Program, ends_well, folder, scratch, words};

/// Whether a program is installed. Panics if it is required and missing.
fn has(program: &str, remedy: &str) -> bool {
    let is_there =
        Command::new(program).arg("-version").output().is_ok() || Command::new(program).arg("version").output().is_ok();
    let required = std::env::var("HUGEFORK_REQUIRE").unwrap_or_default();
    assert!(is_there || !required.split(',').any(|name| name == program), "{program} is required, and not installed");
    if !is_there {
        println!("skipped: {program} is needed: {remedy}");
    }
    is_there
}

/// The folder of the development kit that `javac` belongs to.
fn java_home() -> PathBuf {
    let output = Command::new("java").args(["-XshowSettings:properties", "-version"]).output().unwrap();
    let said = words(&output);
    let home = said.lines().find_map(|line| line.trim().strip_prefix("java.home = ")).expect("java says where it is");
    PathBuf::from(home)
}

#[track_caller]
fn well(mut command: Command) -> String {
    let output = command.output().unwrap();
    ends_well(&output);
    words(&output)
}

#[test]
fn a_java_virtual_machine_still_handles_its_faults() {
    if !has("javac", "apt-get install openjdk-17-jdk-headless") {
        return;
    }
    let (home, classes) = (java_home(), scratch("java-classes"));
    let include = home.join("include");
    if !include.join("jni.h").exists() {
        return println!("skipped: {} has no jni.h", home.display());
    }
    let flags =
        [&include, &include.join("linux"), &folder().join("tests/hosts")].map(|path| format!("-I{}", path.display()));
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["-shared", "-fPIC"]).collect();
    // The command builds a shared library for Java instead of a program.
    let library = Program::of("tests/hosts/Hosted.c", Library::Shared, "java-library").with(&flags).build();
    let mut compiler = Command::new("javac");
    compiler.arg("-d").arg(&classes).arg(folder().join("tests/hosts/Hosted.java"));
    well(compiler);
    let mut java = Command::new(home.join("bin/java"));
    java.arg("-Xmx256m").arg("-cp").arg(&classes).arg("Hosted").arg(library.get_program());
    let said = well(java);
    assert!(said.contains("all is well"), "{said}");
}

#[test]
fn a_go_program_still_handles_its_faults() {
    if !has("go", "https://go.dev/dl") {
        return;
    }
    let module = scratch("go-module");
    for file in ["hosted.h", "hosted.go"] {
        fs::copy(folder().join("tests/hosts").join(file), module.join(file)).unwrap();
    }
    fs::write(module.join("go.mod"), "module hosted\n\ngo 1.25\n").unwrap();
    let library = scratch("go-library");
    for link in ["libhugefork.so", "libhugefork.so.0"] {
        std::os::unix::fs::symlink(common::built().join("libhugefork_capi.so"), library.join(link)).unwrap();
    }
    let in_folder = |path: &Path| path.display().to_string();
    let mut go = Command::new("go");
    go.args(["build", "-o", "program"]).current_dir(&module);
    go.envs([("CGO_ENABLED", "1"), ("GOFLAGS", "-mod=mod -buildvcs=false"), ("GOTOOLCHAIN", "local")]);
    go.env("CGO_CFLAGS", format!("-O1 '-I{}' '-I{}'", in_folder(&module), in_folder(&folder().join("include"))));
    go.env("CGO_LDFLAGS", format!("'-L{0}' -lhugefork '-Wl,-rpath,{0}'", in_folder(&library)));
    well(go);
    let said = well(Command::new(module.join("program")));
    assert!(said.contains("all is well"), "{said}");
}
