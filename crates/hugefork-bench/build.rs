//! Tells the crate the commit that it is built from, if git knows it. Otherwise results have the version alone.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The sources that decide the figures.
const SOURCES: [&str; 5] =
    ["crates/hugefork", "crates/hugefork-kernels", "crates/hugefork-linux", "crates/hugefork-bench", "Cargo.lock"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let package = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where the package is"));
    if let Some(commit) = checked_out(&package) {
        println!("cargo::rustc-env=HUGEFORK_COMMIT={commit}");
    }
}

/// Twelve digits, followed by `-changed` if the sources differ from the commit.
pub(crate) fn checked_out(package: &Path) -> Option<String> {
    let root = package.ancestors().nth(2)?.canonicalize().ok()?;
    let git = |args: &[&str]| {
        let output = Command::new("git").arg("-C").arg(&root).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // A copy inside somebody else's repository is not of their commit.
    if Path::new(&git(&["rev-parse", "--show-toplevel"])?) != root {
        return None;
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    // Without a lock, which would disturb other work in the repository.
    let mut status = vec!["--no-optional-locks", "status", "--porcelain", "--untracked-files=no", "--"];
    status.extend(SOURCES);
    let changed = git(&status)?;
    let places = ["HEAD", "logs/HEAD"].iter().filter_map(|name| git(&["rev-parse", "--git-path", name]));
    for place in places.map(|place| root.join(place)).chain(SOURCES.map(|source| root.join(source))) {
        // For a file that does not exist, cargo would run this every time.
        if place.exists() {
            println!("cargo::rerun-if-changed={}", place.display());
        }
    }
    Some(if changed.is_empty() { commit } else { commit + "-changed" })
}
