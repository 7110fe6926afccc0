//! Runs a test in a process of its own: tests that die, and tests that change a property of the whole process (signal
//! dispositions, limits, the number of mappings).
//!
//! ```text
//!   cargo test ─▶ test ─▶ alone(body) ─ starts this binary again for this test only ─▶ test ─▶ alone(body) ─ runs body
//!                  ▲                                                                                          │
//!                  └───────────────────── how it ended, what it printed ──────────────────────────────────────┘
//! ```

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::wait::PATIENCE;

/// The environment variable that names the test whose body this process runs.
const WHICH: &str = "HUGEFORK_TEST_ALONE";

/// The process prints this first, so that a process that ran nothing cannot pass for one that succeeded.
const STARTED: &str = "this process runs the test alone";

/// Number of lines quoted from the beginning and from the end of the output.
const QUOTED: usize = 20;

/// The end of a process and its output.
#[derive(Debug)]
#[must_use = "look at how it ended"]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Checks that the process succeeded.
    #[track_caller]
    pub(crate) fn well(self) {
        assert!(self.status.success(), "{self}");
    }

    /// Checks that this signal ended the process. Returns its standard error.
    #[track_caller]
    pub(crate) fn by(self, signal: i32) -> String {
        assert_eq!(self.status.signal(), Some(signal), "{self}");
        self.stderr
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A process may have printed the same lines for ever, so this quotes only the beginning and the end.
        let quoted = |text: &str| {
            let lines: Vec<&str> = text.lines().collect();
            let left_out = lines.len().saturating_sub(2 * QUOTED);
            let (first, rest) = lines.split_at(if left_out > 0 { QUOTED } else { lines.len() });
            let told = (left_out > 0).then(|| format!("\n  … {left_out} lines"));
            let line = |line: &&str| format!("\n  | {line}");
            first
                .iter()
                .map(line)
                .chain(told)
                .chain(rest[left_out.min(rest.len())..].iter().map(line))
                .collect::<String>()
        };
        write!(f, "{}\nstdout:{}\nstderr:{}", self.status, quoted(&self.stdout), quoted(&self.stderr))
    }
}

/// Checks that a process printed one line, with these parts.
#[track_caller]
pub(crate) fn check_one_line(said: &str, parts: &[&str]) {
    assert_eq!(said.lines().count(), 1, "{said}");
    parts.iter().for_each(|part| assert!(said.contains(part), "`{part}` in {said}"));
}

/// Whether this process was started by [`alone`].
pub(crate) fn is_alone() -> bool {
    std::env::var_os(WHICH).is_some()
}

/// Runs `body`, a closure written in the test itself, in a process of its own. This process has no other threads than
/// those that `body` starts. Call it once in a test.
pub(crate) fn alone<Body: FnOnce()>(body: Body) -> Ended {
    // `binary::modules::test::{{closure}}`
    let (_, path) = std::any::type_name::<Body>().split_once("::").expect("a closure has a path");
    let (test, _) = path.split_once("::{{closure}}").expect("a body is a closure");
    if std::env::var_os(WHICH).is_some_and(|which| which == *test) {
        println!("{STARTED}");
        leave_no_core();
        body();
        std::process::exit(0);
    }
    let ended = watch(
        Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"])
            .env(WHICH, test)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    assert!(ended.stdout.contains(STARTED), "is the closure written in the test itself? {ended}");
    ended.stdout.lines().filter(|line| line.starts_with("skipped: ")).for_each(|line| println!("{line}"));
    ended
}

/// Runs `body` in a child with one thread: in the test process, the test runner has a thread beside the test's. The
/// process must not have a pool yet.
#[track_caller]
pub(crate) fn with_one_thread(body: impl FnOnce()) {
    // SAFETY: the child has only the thread that forked, and the C library takes care of its own locks.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            let came = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            std::process::exit(i32::from(came.is_err()))
        }
        child => {
            let mut status = 0;
            // SAFETY: writes the status.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            let status = ExitStatus::from_raw(status);
            assert!(status.success(), "the child: {status}");
        }
    }
}

/// Waits for a process to end, and reads its output.
fn watch(mut child: Child) -> Ended {
    fn read(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        })
    }
    let (stdout, stderr) = (read(child.stdout.take().unwrap()), read(child.stderr.take().unwrap()));
    let started = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if started.elapsed() > PATIENCE => break None,
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let in_time = status.is_some();
    let status = status.unwrap_or_else(|| {
        child.kill().unwrap();
        child.wait().unwrap()
    });
    let ended = Ended { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() };
    assert!(in_time, "still running after {PATIENCE:?}, killed: {ended}");
    ended
}

fn leave_no_core() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads `none`.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) }, 0);
}
