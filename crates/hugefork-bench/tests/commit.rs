//! The build script takes the commit from the checkout, and never from another repository around it.

#[path = "../build.rs"]
#[allow(dead_code)]
mod build;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `crates/hugefork-bench` in a directory of its own.
fn package(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&root);
    let package = root.join("crates/hugefork-bench");
    fs::create_dir_all(&package).unwrap();
    package
}

#[test]
fn a_copy_inside_another_repository_tells_nothing_and_a_checkout_its_commit() {
    let package = package("checkout");
    let root = package.ancestors().nth(2).unwrap();
    // Whatever repository is around it, such as that of this test.
    assert_eq!(build::checked_out(&package), None);
    let git = |args: &[&str]| {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
        Command::new("git")
            .arg("-C")
            .arg(root)
            .args(identity)
            .args(args)
            .output()
            .is_ok_and(|done| done.status.success())
    };
    if !git(&["init", "-q"]) {
        println!("skipped: there is no git (apt-get install git)");
        return;
    }
    assert_eq!(build::checked_out(&package), None, "nothing is committed yet");
    let source = package.join("lib.rs");
    fs::write(&source, "one").unwrap();
    assert!(git(&["add", "."]) && git(&["commit", "-q", "-m", "one"]));
    let commit = build::checked_out(&package).unwrap();
    assert!(commit.len() == 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{commit}");
    fs::write(&source, "another").unwrap();
    assert_eq!(build::checked_out(&package).unwrap(), format!("{commit}-changed"));
}
