//! Builds the library of `hugefork run --pool`, so that the command can contain it. It runs cargo
//! with a target directory of its own, because a package cannot depend on a shared library of
//! another.
//!
//! The sources are those of the dependency `hugefork-preload`. In a checkout they are built with
//! the workspace's lock file. A published package has no matching lock file, so a copy is built
//! offline with the versions that this build has used.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"));
    let package = PathBuf::from(variable("DEP_HUGEFORK_PRELOAD_PACKAGE"));
    let out = PathBuf::from(variable("OUT_DIR"));
    for part in ["src", "Cargo.toml"] {
        println!("cargo::rerun-if-changed={}", package.join(part).display());
    }
    if let Some(root) = workspace(&package) {
        // Cargo does not know that this package depends on the library and its sources.
        println!("cargo::rerun-if-changed={}", root.join("Cargo.lock").display());
        for part in ["hugefork", "hugefork-kernels", "hugefork-linux", "hugefork-program"] {
            println!("cargo::rerun-if-changed={}", root.join("crates").join(part).join("src").display());
        }
    }
    let bytes = library(&package, &out, &variable("CARGO"), &variable("TARGET"));
    fs::write(out.join("library.so"), &bytes).expect("the directory is cargo's, and ours");
}

/// Builds the library from the sources in `package`, in the directory `out`.
pub(crate) fn library(package: &Path, out: &Path, cargo: &OsStr, target: &OsStr) -> Vec<u8> {
    let (source, lock) = match workspace(package) {
        Some(_) => (package.to_owned(), Some("--locked")),
        None => (copy(package, &out.join("source")), None),
    };
    let built = out.join("library");
    let mut cargo = Command::new(cargo);
    // The working directory is unchanged, so cargo finds the same configuration as this build.
    cargo.args(["rustc", "--lib", "--crate-type", "cdylib", "--release", "--offline"]).args(lock);
    cargo.arg("--manifest-path").arg(source.join("Cargo.toml"));
    cargo.arg("--target").arg(target).arg("--target-dir").arg(&built);
    cargo.arg("--").args(["--cfg", "hugefork_interposed"]);
    if let Some(folder) = static_unwinder(out) {
        cargo.arg("-C").arg(format!("link-arg=-L{}", folder.display()));
    }
    // Settings of the surrounding build: a linter in place of the compiler, flags for the command.
    for inherited in ["RUSTC_WORKSPACE_WRAPPER", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_TARGET_DIR"] {
        cargo.env_remove(inherited);
    }
    cargo.env("CARGO_PROFILE_RELEASE_PANIC", "abort");
    // Tests of the command need the library, and not its last nanoseconds, for which a build takes 40 s more.
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let (linking, units) = if is_release { ("fat", "1") } else { ("off", "16") };
    cargo.env("CARGO_PROFILE_RELEASE_LTO", linking).env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", units);
    cargo.env("CARGO_PROFILE_RELEASE_DEBUG", "false").env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    let ended = cargo.output().unwrap_or_else(|error| panic!("{cargo:?} cannot be run: {error}"));
    assert!(ended.status.success(), "{cargo:?}:\n{}", String::from_utf8_lossy(&ended.stderr));

    let library = built.join(target).join("release/libhugefork_preload.so");
    fs::read(&library).unwrap_or_else(|error| panic!("{}: {error}", library.display()))
}

/// A folder in which the linker finds the static unwinder under the name of the shared one: loading the shared one
/// would cost each program nine system calls. `None` if the compiler has no static unwinder for the target.
fn static_unwinder(out: &Path) -> Option<PathBuf> {
    if env::var_os("HOST") != env::var_os("TARGET") {
        // This compiler has only the unwinder of the build machine, not that of the target.
        return None;
    }
    let asked =
        Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into())).arg("-print-file-name=libgcc_eh.a").output();
    let archive = PathBuf::from(String::from_utf8(asked.ok()?.stdout).ok()?.trim_end());
    // The compiler prints the bare name if it has none.
    if !archive.is_absolute() || !archive.exists() {
        return None;
    }
    let folder = out.join("unwinder");
    fs::create_dir_all(&folder).ok()?;
    fs::write(folder.join("libgcc_s.so"), format!("INPUT({})\n", archive.display())).ok()?;
    Some(folder)
}

/// The workspace that contains the package, in a checkout.
fn workspace(package: &Path) -> Option<&Path> {
    let root = package.ancestors().nth(2).filter(|_| package.ends_with("crates/hugefork-preload"))?;
    root.join("Cargo.lock").exists().then_some(root)
}

/// Copies a package without its lock file, which may name unavailable versions. The copy is a workspace of its own,
/// independent of the directories above it.
fn copy(package: &Path, to: &Path) -> PathBuf {
    let _ = fs::remove_dir_all(to);
    copy_folder(package, to);
    let manifest = to.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).unwrap_or_else(|error| panic!("{}: {error}", manifest.display()));
    fs::write(&manifest, text + "\n[workspace]\n").expect("the directory is cargo's, and ours");
    to.to_owned()
}

fn copy_folder(from: &Path, to: &Path) {
    let failed = |error| panic!("copying {}: {error}", from.display());
    fs::create_dir_all(to).unwrap_or_else(failed);
    for entry in fs::read_dir(from).unwrap_or_else(|error| panic!("reading {}: {error}", from.display())).flatten() {
        let name = entry.file_name();
        let (from, to) = (entry.path(), to.join(&name));
        if entry.path().is_dir() {
            copy_folder(&from, &to);
        } else if name != "Cargo.lock" {
            fs::copy(&from, &to).unwrap_or_else(|error| panic!("copying {}: {error}", from.display()));
        }
    }
}
