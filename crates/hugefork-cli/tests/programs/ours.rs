//! Programs of the tests' own, and how they are run.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Scratch, has, output_of};

/// Options for either mode.
pub(crate) const MODES: [&str; 2] = ["-q --mode collapse", "-q --mode pool"];

/// The same with threads in children, and in one with blocks that are promoted whatever memory that takes.
pub(crate) const HELPED: [&str; 3] = [
    "-q --children grow --mode collapse",
    "-q --children grow --memory any --mode pool",
    "-q --children share --mode pool",
];

/// What waits for ever cannot be ended by other signals.
pub(crate) const AT_MOST: [&str; 4] = ["timeout", "-s", "KILL", "200"];

/// A C program of ours; none if there is no compiler.
pub(crate) fn compiled(scratch: &Scratch, name: &str, source: &str) -> Option<PathBuf> {
    if !has(&["cc"]) {
        return None;
    }
    let (file, program) = (scratch.file(&format!("{name}.c"), source), scratch.path().join(name));
    output_of(Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(file));
    Some(program)
}

/// A program in mode `pool` that runs as a user who may not handle the page faults of system calls.
pub(crate) fn as_nobody(scratch: &Scratch, program: &Path) -> Command {
    // The command itself may lie where that user cannot come.
    let variables = output_of(&mut scratch.hugefork("run --print-env=file --mode pool --children grow"));
    let mut command = Command::new(program);
    command.envs(variables.lines().filter_map(|line| line.split_once('='))).current_dir("/").uid(65534).gid(65534);
    command
}
