//! Builds and runs the C programs of the tests.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{LIBRARY, Scratch, has, output_of};

/// The options of each kind of run.
pub(crate) const MODES: [&str; 1] = ["-q --pool"];

/// Compiles a C program; `None` if there is no compiler.
pub(crate) fn compiled(scratch: &Scratch, name: &str, source: &str) -> Option<PathBuf> {
    if !has(&["cc"]) {
        return None;
    }
    let (file, program) = (scratch.file(&format!("{name}.c"), source), scratch.path().join(name));
    output_of(Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(file));
    Some(program)
}

/// Runs a program with the library as a user who may not handle the page faults of system calls.
pub(crate) fn as_nobody(scratch: &Scratch, program: &Path) -> Command {
    // The other user may have no access to the command's directory, so the library is copied.
    let library = scratch.file("library.so", std::fs::read(LIBRARY).unwrap());
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library).env("HUGEFORK_POOL", "all").current_dir("/").uid(65534).gid(65534);
    command
}
