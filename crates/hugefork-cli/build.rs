//! Builds the library that `hugefork run` puts into programs, so that the command carries it: a cargo of its own, with
//! a target directory of its own, since a package cannot ask for a shared library of another.
//!
//! The sources are those of the dependency `hugefork-preload`, wherever it lies. In a checkout they are built with the
//! workspace's lock file. A package has none that would fit, so a copy is built with what is there: the versions that
//! this build has just used.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"));
    let package = PathBuf::from(variable("DEP_HUGEFORK_PRELOAD_PACKAGE"));
    let out = PathBuf::from(variable("OUT_DIR"));
    let root = package.ancestors().nth(2).filter(|root| is_workspace(root));
    for part in ["src", "Cargo.toml"] {
        println!("cargo::rerun-if-changed={}", package.join(part).display());
    }
    let (source, lock) = match root {
        Some(root) => {
            println!("cargo::rerun-if-changed={}", root.join("Cargo.lock").display());
            (package, Some("--locked"))
        }
        None => (copy(&package, &out.join("source")), None),
    };
    let target = variable("TARGET");
    let built = out.join("library");
    let mut cargo = Command::new(variable("CARGO"));
    // The working directory stays, so that cargo finds the configuration that it has found for this build.
    cargo.args(["rustc", "--lib", "--crate-type", "cdylib", "--release", "--offline"]).args(lock);
    cargo.arg("--manifest-path").arg(source.join("Cargo.toml"));
    cargo.arg("--target").arg(&target).arg("--target-dir").arg(&built);
    cargo.args(["--", "--cfg", "hugefork_interposed"]);
    // What belongs to the build around this one: a linter in place of the compiler, flags for the command.
    for inherited in ["RUSTC_WORKSPACE_WRAPPER", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_TARGET_DIR"] {
        cargo.env_remove(inherited);
    }
    cargo.env("CARGO_PROFILE_RELEASE_PANIC", "abort");
    cargo.env("CARGO_PROFILE_RELEASE_LTO", "fat").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1");
    cargo.env("CARGO_PROFILE_RELEASE_DEBUG", "false").env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    let ended = cargo.output().unwrap_or_else(|error| panic!("{cargo:?} cannot be run: {error}"));
    assert!(ended.status.success(), "{cargo:?}:\n{}", String::from_utf8_lossy(&ended.stderr));

    let library = built.join(target).join("release/libhugefork_preload.so");
    let bytes = fs::read(&library).unwrap_or_else(|error| panic!("{}: {error}", library.display()));
    fs::write(out.join("library.so"), &bytes).expect("the directory is cargo's, and ours");
    println!("cargo::rustc-env=HUGEFORK_LIBRARY_NUMBER={:016x}", number(&bytes));
}

/// Whether a lock file there is that of the workspace which the package belongs to.
fn is_workspace(root: &Path) -> bool {
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap_or_default();
    manifest.contains("[workspace]") && root.join("Cargo.lock").exists()
}

/// Copies a package without its lock file, which names versions that may not be there.
fn copy(package: &Path, to: &Path) -> PathBuf {
    let _ = fs::remove_dir_all(to);
    let is_lock = |name: &OsString| name == "Cargo.lock";
    copy_folder(package, to, &is_lock);
    to.to_owned()
}

fn copy_folder(from: &Path, to: &Path, is_left_out: &dyn Fn(&OsString) -> bool) {
    let failed = |error| panic!("copying {}: {error}", from.display());
    fs::create_dir_all(to).unwrap_or_else(failed);
    for entry in fs::read_dir(from).unwrap_or_else(|error| panic!("reading {}: {error}", from.display())).flatten() {
        let name = entry.file_name();
        let (from, to) = (entry.path(), to.join(&name));
        if entry.path().is_dir() {
            copy_folder(&from, &to, is_left_out);
        } else if !is_left_out(&name) {
            fs::copy(&from, &to).unwrap_or_else(|error| panic!("copying {}: {error}", from.display()));
        }
    }
}

/// A number that tells contents apart: FNV-1a.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
