//! Runs the example.

use std::path::Path;
use std::process::Command;

#[test]
fn the_example_measures_before_and_after_a_change() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/before_and_after.sh");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("before_and_after");
    let command = Path::new(env!("CARGO_BIN_EXE_hugefork")).parent().unwrap();
    let path = format!("{}:{}", command.display(), std::env::var("PATH").unwrap());
    let _ = std::fs::remove_dir_all(&directory);
    let change = format!("touch '{}/changed'", directory.display());
    let ended = Command::new(&script)
        .arg(&directory)
        .arg(change)
        .args(["snapshot", "--size", "32MiB", "--runs", "1", "--subjects", "hugefork"])
        .env("PATH", path)
        // Figures of one run may be anything.
        .env("FAIL_ABOVE", "1e300")
        .output()
        .unwrap();
    assert!(ended.status.success(), "{ended:?}");
    for file in ["before.json", "changed", "after.json", "both.html"] {
        assert!(directory.join(file).exists(), "{file}: {ended:?}");
    }
    let compared = String::from_utf8(ended.stdout).unwrap();
    assert!(compared.contains("| hugefork"), "{compared}");

    let nothing = Command::new(&script).output().unwrap();
    assert_eq!(nothing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("before_and_after.sh DIRECTORY COMMAND"), "{nothing:?}");
}
