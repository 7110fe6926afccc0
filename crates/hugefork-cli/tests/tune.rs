//! The guardian that puts settings back, tested on files that stand for settings; and Ctrl-C.

mod terminal;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use terminal::Terminal;

/// A directory of this test's own, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("hugefork-tune-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    /// A file that stands for a setting.
    fn setting(&self, name: &str, value: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, value).unwrap();
        path
    }

    fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Waits until `done` returns true. Fails after five minutes.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(300), "{what} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A guardian that has said it is ready.
struct Guardian {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Guardian {
    fn spawn(lock: &Path, settings: &[&Path]) -> Child {
        Command::new(env!("CARGO_BIN_EXE_hugefork"))
            .arg("tune-guardian")
            .arg(lock)
            .args(settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn start(lock: &Path, settings: &[&Path]) -> Guardian {
        let mut child = Guardian::spawn(lock, settings);
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let pipe = child.stdin.take();
        Guardian { child, pipe }
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Waits until every signal has been delivered.
    fn has_taken_signals(&self) {
        until("the end of signals", || {
            let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
            let pending =
                status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")));
            pending.map(str::trim).all(|set| set.bytes().all(|digit| digit == b'0'))
        });
    }

    /// The bench goes away; the guardian does its work.
    fn end(mut self) -> (bool, String) {
        drop(self.pipe.take());
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().success(), said)
    }
}

#[test]
fn settings_come_back_when_the_pipe_ends_whatever_is_signalled() {
    let scratch = Scratch::new("restore");
    // The first setting reads as a list of words with the chosen one in brackets, and takes a single word.
    let (words, number) = (scratch.setting("shmem", "always [never] advise\n"), scratch.setting("pages", "7\n"));
    let guardian = Guardian::start(&scratch.lock(), &[&words, &number]);
    fs::write(&words, "always never [advise]\n").unwrap();
    fs::write(&number, "500").unwrap();
    for signal in ["-INT", "-TERM", "-HUP", "-QUIT"] {
        guardian.signal(signal);
    }
    guardian.has_taken_signals();
    assert_eq!(fs::read_to_string(&number).unwrap(), "500", "not before the bench ends");
    let (success, said) = guardian.end();
    assert!(success, "{said}");
    assert_eq!(fs::read_to_string(&words).unwrap(), "never");
    assert_eq!(fs::read_to_string(&number).unwrap(), "7");
    assert_eq!(fs::read_to_string(scratch.lock()).unwrap(), "");
}

#[test]
fn a_second_guardian_is_refused_and_harms_nothing() {
    let scratch = Scratch::new("second");
    let setting = scratch.setting("pages", "7");
    let first = Guardian::start(&scratch.lock(), &[&setting]);
    fs::write(&setting, "500").unwrap();
    let second = Guardian::spawn(&scratch.lock(), &[&setting]).wait_with_output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8(second.stdout).unwrap();
    assert!(said.starts_with("--tune: another `hugefork bench --tune` is at work"), "{said}");
    assert_eq!(fs::read_to_string(&setting).unwrap(), "500");
    assert!(first.end().0);
    assert_eq!(fs::read_to_string(&setting).unwrap(), "7");
}

#[test]
fn what_a_killed_guardian_left_is_restored_by_the_next() {
    let scratch = Scratch::new("killed");
    let setting = scratch.setting("pages", "7");
    let mut first = Guardian::start(&scratch.lock(), &[&setting]);
    fs::write(&setting, "500").unwrap();
    first.signal("-KILL");
    first.child.wait().unwrap();
    assert_eq!(fs::read_to_string(&setting).unwrap(), "500");
    let second = Guardian::start(&scratch.lock(), &[&setting]);
    assert_eq!(fs::read_to_string(&setting).unwrap(), "7", "restored before the second notes it");
    let (success, said) = second.end();
    assert!(success && said.contains("earlier run"), "{said}");
}

#[test]
fn a_setting_that_cannot_be_read_changes_nothing() {
    let scratch = Scratch::new("unreadable");
    let output = Guardian::spawn(&scratch.lock(), &[&scratch.0.join("missing")]).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stdout).unwrap().contains("missing"));
}

/// A bench of more rounds than anybody would wait for, and its terminal.
fn endless_bench(line: &str) -> (Command, Terminal) {
    let (terminal, its_end) = Terminal::new(200);
    let mut command = Command::new(env!("CARGO_BIN_EXE_hugefork"));
    command.args(["bench", "--runs", "1000000"]).args(line.split(' '));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(its_end);
    (command, terminal)
}

/// Interrupts a bench. Returns its output and its exit status.
fn interrupted(mut bench: Child) -> (String, Option<i32>) {
    assert!(Command::new("kill").args(["-INT", &bench.id().to_string()]).status().unwrap().success());
    let mut text = String::new();
    bench.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    (text, bench.wait().unwrap().code())
}

#[test]
fn ctrl_c_keeps_what_is_done_and_ends_with_130() {
    let scratch = Scratch::new("ctrl-c");
    let file = scratch.0.join("out.json");
    let (mut command, mut terminal) = endless_bench("clear --size 8MiB --subjects hugefork,memset --json");
    let bench = command.arg(&file).spawn().unwrap();
    // It holds an end of the terminal.
    drop(command);
    // A figure: something was counted.
    terminal.until("memset total ");
    let (text, status) = interrupted(bench);
    assert_eq!(status, Some(130));
    assert!(text.contains("stopped before the end") && text.contains("memset "), "{text}");
    let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(json["interrupted"], true);
    assert!(!json["results"].as_array().unwrap().is_empty());
}

/// The test interrupts the bench during its warm-up, but a quick bench may have counted a round by then.
#[test]
fn ctrl_c_replaces_earlier_results_by_figures_or_not_at_all() {
    let scratch = Scratch::new("ctrl-c-early");
    let file = scratch.0.join("out.json");
    fs::write(&file, "earlier results").unwrap();
    let (mut command, mut terminal) = endless_bench("clear --size 64MiB --subjects memset,hugefork --json");
    let bench = command.arg(&file).spawn().unwrap();
    drop(command);
    terminal.until(" warms up");
    let (text, status) = interrupted(bench);
    assert_eq!(status, Some(130));
    let results = fs::read_to_string(&file).unwrap();
    if text.contains("stopped before anything was counted") {
        assert_eq!(results, "earlier results");
    } else {
        let json: serde_json::Value = serde_json::from_str(&results).unwrap();
        assert!(!json["results"].as_array().unwrap().is_empty(), "{json:#}");
    }
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1, "nothing stays beside it");
}

#[test]
fn only_root_may_tune() {
    use std::os::unix::process::CommandExt;
    let mut bench = Command::new(env!("CARGO_BIN_EXE_hugefork"));
    bench.args(["bench", "snapshot", "--tune"]);
    if is_root() {
        // Nobody.
        bench.uid(65534);
    }
    match bench.output() {
        Ok(output) => {
            assert_eq!(output.status.code(), Some(2));
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(
                said.starts_with("error: --tune: ") && said.contains("root") && said.lines().count() == 1,
                "{said}"
            );
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "skipped: nobody may not run the built command here: {error}");
        }
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// Changes this machine's settings, so it runs only as root. Elsewhere it is skipped, and says so.
#[test]
fn tune_sets_this_machine_up_and_puts_it_back_even_after_sigkill() {
    let pages = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
    if !is_root() || fs::OpenOptions::new().write(true).open(pages).is_err() {
        let _ = writeln!(std::io::stderr(), "skipped: --tune needs root and a writable {}", pages.display());
        return;
    }
    let mut settings = vec![pages.to_owned()];
    settings.extend(hugefork_bench::folios::paths());
    let read = || settings.iter().map(|path| fs::read_to_string(path).unwrap()).collect::<Vec<_>>();
    let before = read();
    // The bench changes some settings before the samples, and each sample of `lazy-free` changes others for itself.
    // Kernels before Linux 6.8 lack the latter.
    let mut lines = vec!["anon-w-seq --subjects hugefork,kernel-hugetlb"];
    lines.extend((settings.len() > 1).then_some("lazy-free --subjects kernel"));
    for line in lines {
        let line = format!("{line} --size 8MiB --tune");
        let bench = || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_hugefork"));
            command.args(["bench", "--runs", "1"]).args(line.split(' '));
            command
        };
        // Another bench may be tuning this machine right now; then there is nothing to learn.
        let output = bench().output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if said.contains("another `hugefork bench --tune` is at work") {
            let _ = writeln!(std::io::stderr(), "skipped: {said}");
            return;
        }
        assert!(output.status.success(), "{said}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!text.contains("not run"), "{text}");
        assert_eq!(read(), before, "after {line}");

        let (mut command, mut terminal) = endless_bench(&line);
        let mut child = command.spawn().unwrap();
        // It measures, so everything is set.
        terminal.until("warms up");
        let second = bench().output().unwrap();
        assert_eq!(second.status.code(), Some(1));
        let said = String::from_utf8_lossy(&second.stderr).into_owned();
        assert!(said.contains("another `hugefork bench --tune` is at work") && said.lines().count() == 1, "{said}");
        let lent = read();
        let doctor = Command::new(env!("CARGO_BIN_EXE_hugefork")).args(["doctor", "--fix"]).output().unwrap();
        let said = String::from_utf8_lossy(&doctor.stderr).into_owned();
        assert!(doctor.status.code() == Some(1) && said.contains("or leave --fix out"), "{said}");
        assert_eq!(read()[..1], lent[..1], "doctor changed what a bench has lent itself");
        child.kill().unwrap();
        child.wait().unwrap();
        until("the settings as they were", || read() == before);
    }
}
