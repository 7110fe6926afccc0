//! Runs programs under `hugefork run`.

#![allow(dead_code)] // Each test binary uses its part of it.

pub(crate) mod ours;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// After this time an awaited event counts as missing, however slow the machine is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// The command under test.
pub(crate) const HUGEFORK: &str = env!("CARGO_BIN_EXE_hugefork");

/// The library that the command contains.
pub(crate) const LIBRARY: &str = concat!(env!("OUT_DIR"), "/library.so");

/// A temporary directory of one test, removed at its end.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Scratch {
        // Not in the checkout, which other users may not be able to enter.
        let path = std::env::temp_dir().join(format!("hugefork-run-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, contents).unwrap();
        path
    }

    /// `hugefork run OPTIONS --`, to be followed by the program.
    pub(crate) fn run(&self, options: &str) -> Command {
        let mut command = self.hugefork(&format!("run {options}"));
        command.arg("--");
        command
    }

    /// `hugefork LINE`.
    pub(crate) fn hugefork(&self, line: &str) -> Command {
        let mut command = Command::new(HUGEFORK);
        command.args(line.split_whitespace()).current_dir(&self.0);
        // Puts small mappings into the pool, too.
        command.env("HUGEFORK_POOL", "all").env_remove("LD_PRELOAD");
        command
    }

    /// Like [`Scratch::run`], for a program that `timeout` kills after a while: other signals do not end a program that
    /// hangs in a fork.
    pub(crate) fn bounded(&self, options: &str) -> Command {
        let run = self.run(options);
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "200"]).arg(run.get_program()).args(run.get_args()).current_dir(&self.0);
        run.get_envs().for_each(|(name, value)| match value {
            Some(value) => _ = command.env(name, value),
            None => _ = command.env_remove(name),
        });
        command
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A child of the test that is killed with it.
pub(crate) struct Running(Child);

impl Running {
    /// Starts a command with pipes for its input and output.
    pub(crate) fn start(command: &mut Command) -> Running {
        Running(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// Returns its next line of output without the newline; empty at the end.
    pub(crate) fn lines(&mut self) -> impl FnMut() -> String + use<> {
        let mut said = BufReader::new(self.0.stdout.take().unwrap());
        move || {
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        }
    }

    /// Closes its input, waits for its end, and returns the rest of its output.
    pub(crate) fn end(mut self) -> (std::process::ExitStatus, String) {
        drop(self.0.stdin.take());
        let mut text = String::new();
        let mut stdout = self.0.stdout.take().unwrap();
        std::io::Read::read_to_string(&mut stdout, &mut text).unwrap();
        (self.0.wait().unwrap(), text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until `what` returns a value.
pub(crate) fn wait_for<T>(name: &str, mut what: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = what() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "waited in vain for {name}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether these programs are installed. If not, prints that, and fails if they are required.
pub(crate) fn has(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    for program in programs {
        if !std::env::split_paths(&path).any(|directory| directory.join(program).exists()) {
            let required = std::env::var("HUGEFORK_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|name| name == *program), "HUGEFORK_REQUIRE names {program}");
            println!("skipped: {program} is not installed");
            return false;
        }
    }
    true
}

/// Whether a process has a pool, by the mappings of its file.
pub(crate) fn has_pool(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains("/memfd:hugefork "))
}

/// Whether programs get a pool on this machine. If not, prints that.
pub(crate) fn can_have_a_pool(scratch: &Scratch) -> bool {
    let output = scratch.run("--pool").arg("true").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let can = said.contains(" runs with a pool ");
    if !can {
        println!("skipped: {}", said.trim_end());
    }
    can
}

/// Bytes of memory of a process by its mappings: private memory, and its share of shared memory (Pss).
pub(crate) fn taken(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// The bytes of a process that lie in huge pages of shared memory.
pub(crate) fn huge(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("ShmemPmdMapped:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Standard output of a command, which must succeed and print no error.
pub(crate) fn output_of(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?}: {status}: {stderr}");
    String::from_utf8(stdout).unwrap()
}
