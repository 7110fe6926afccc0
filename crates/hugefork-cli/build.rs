//! Builds the library of `hugefork run --pool`, so that the command can contain it. It runs cargo
//! with a target directory of its own, because a package cannot depend on a shared library of
//! another.
//!
//! The sources are those of the workspace, built offline with its lock file.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let root = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../..");
    // Cargo does not know that this package depends on the library and its sources.
    for part in ["Cargo.lock", "crates/hugefork-preload/Cargo.toml"] {
        println!("cargo::rerun-if-changed={}", root.join(part).display());
    }
    for part in ["hugefork", "hugefork-kernels", "hugefork-linux", "hugefork-preload", "hugefork-program"] {
        println!("cargo::rerun-if-changed={}", root.join("crates").join(part).join("src").display());
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    let library = library(&root.join("crates/hugefork-preload/Cargo.toml"), &out);
    fs::copy(&library, out.join("library.so")).unwrap_or_else(|error| panic!("{}: {error}", library.display()));
}

fn variable(name: &str) -> OsString {
    env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"))
}

/// The target of the library. Programs that load it have glibc, also if the command itself has musl.
fn target() -> String {
    variable("TARGET").into_string().expect("cargo's targets are text").replace("-musl", "-gnu")
}

/// Builds the library with that manifest, in the directory `out`, and returns its path.
fn library(manifest: &Path, out: &Path) -> PathBuf {
    let (built, target) = (out.join("library"), target());
    let mut cargo = Command::new(variable("CARGO"));
    // The working directory is unchanged, so cargo finds the same configuration as this build.
    cargo.args(["rustc", "--lib", "--crate-type", "cdylib", "--release", "--offline", "--locked"]);
    cargo.arg("--manifest-path").arg(manifest);
    cargo.args(["--target", &target]).arg("--target-dir").arg(&built);
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

    built.join(target).join("release/libhugefork_preload.so")
}

/// A folder in which the linker finds the static unwinder under the name of the shared one: loading the shared one
/// would cost each program nine system calls. `None` if the compiler has no static unwinder for the target.
fn static_unwinder(out: &Path) -> Option<PathBuf> {
    if variable("HOST") != OsString::from(target()) {
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
