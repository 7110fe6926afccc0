//! What the library does in real programs: shells, compilers, Python, Redis.

mod programs;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Command;

use programs::{Running, Scratch, collapses, has, output_of, wait_for};

/// Options for either mode.
const MODES: [&str; 2] = ["-q --mode collapse", "-q --mode pool"];

/// The start of Python programs that have 64 MiB, and print a line at a time.
const PYTHON: &str = r#"
import os, sys, ctypes
def say(*words): print(*words, flush=True)
size = 64 << 20
state = bytearray(size)
for at in range(0, size, 4096): state[at] = 1
"#;

/// A Python program under `hugefork run`, and what it says.
struct Python {
    running: Running,
    said: BufReader<std::process::ChildStdout>,
}

impl Python {
    fn start(scratch: &Scratch, options: &str, program: &str) -> Python {
        let file = scratch.file("program.py", format!("{PYTHON}{program}"));
        let mut running = Running::start(scratch.run(options).arg("python3").arg(file));
        let said = BufReader::new(running.child().stdout.take().unwrap());
        Python { running, said }
    }

    /// The next line.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Lets it go on.
    fn go_on(&mut self) {
        self.running.child().stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

#[test]
fn storms_of_small_programs_are_as_before() {
    let scratch = Scratch::new("storm");
    let script = "for i in $(seq 60); do x=$(echo $i | tr 0-9 a-j); y=$(:; echo $x); printf %s $y; done; wait; \
                  (exit 3); echo $?; for i in 1 2 3 4; do (sleep 0) & done; wait; echo done";
    let plain = output_of(Command::new("bash").args(["-c", script]));
    for mode in MODES {
        assert_eq!(output_of(scratch.run(mode).args(["bash", "-c", script])), plain, "{mode}");
    }
}

#[test]
fn a_compiler_compiles() {
    if !has(&["cc"]) {
        return;
    }
    let scratch = Scratch::new("compiler");
    scratch.file("main.c", "#include <stdio.h>\nint main(void) { puts(\"compiled\"); return 0; }\n");
    for mode in MODES {
        output_of(scratch.run(mode).args(["cc", "-O2", "-pipe", "main.c", "-o", "main"]));
        assert_eq!(output_of(scratch.run(mode).arg("./main")), "compiled\n");
    }
}

#[test]
fn memory_is_collapsed_again_after_a_fork_and_others_see_it() {
    if !has(&["python3"]) || !collapses() {
        return;
    }
    let scratch = Scratch::new("collapse");
    let mut python = Python::start(
        &scratch,
        "-q",
        r#"
for fork in range(3):
    wakes, wake = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(wake)
        os.read(wakes, 1)
        # As it was at the fork.
        os._exit(0 if all(state[at] == 1 + fork for at in range(0, size, 4096)) else 9)
    os.close(wakes)
    for at in range(0, size, 4096): state[at] = 2 + fork
    say("held", sorted(open(f"/proc/self/task/{t}/comm").read().strip() for t in os.listdir("/proc/self/task")))
    sys.stdin.readline()
    os.close(wake)
    say("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    sys.stdin.readline()
say(all(state[at] == 4 for at in range(0, size, 4096)))
sys.stdin.readline()
"#,
    );
    let pid = python.running.pid();
    let blocks = |known: &serde_json::Value| known["blocks_collapsed"].as_u64().unwrap();
    let mut collapsed = 0;
    for fork in 1..=3 {
        let held = python.line();
        assert!(held.starts_with("held"), "{held}");
        let alive = wait_for("the child to be known", || scratch.stats(pid).filter(|known| known["forks_alive"] == 1));
        assert_eq!(alive["total_forks"], fork);
        assert_eq!(alive["mode"], "collapse");
        assert!(alive["latest_fork_usec"].as_u64() <= alive["longest_fork_usec"].as_u64());
        let worker = fs::read_dir(format!("/proc/{pid}/task"))
            .unwrap()
            .flatten()
            .find(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "hugefork-run"));
        let status = fs::read_to_string(worker.expect("it waits for the child").path().join("status")).unwrap();
        assert!(
            status.contains("SigBlk:\tfffffffe7ffbfeff") || status.contains("SigBlk:\tfffffffffffbfeff"),
            "{status}"
        );
        python.go_on();
        assert_eq!(python.line(), "child 0");
        let after = wait_for("blocks to be collapsed", || scratch.stats(pid).filter(|known| blocks(known) > collapsed));
        collapsed = blocks(&after);
        wait_for("nobody to live", || scratch.stats(pid).filter(|known| known["forks_alive"] == 0));
        let histogram = after["fork_usec_histogram"].as_array().unwrap();
        assert_eq!(histogram.iter().map(|count| count.as_u64().unwrap()).sum::<u64>(), fork);
        // The whole state, or nearly: its ends lie in blocks that are not wholly in it.
        wait_for("all to be huge", || {
            scratch.stats(pid).filter(|known| known["huge_bytes"].as_u64() >= Some(56 << 20))
        });
        python.go_on();
    }
    assert_eq!(python.line(), "True");
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
    wait_for("the worker to leave", || (threads() == 1).then_some(()));
    let text = output_of(&mut scratch.hugefork(&format!("stats {pid}")));
    assert!(text.contains("3: the last") && text.contains("blocks of 2 MiB"), "{text}");
    python.go_on();
    assert!(python.running.child().wait().unwrap().success());
}

/// A child that shares memory with its parent collapses none of it; one whose parent has gone does.
#[test]
fn a_daemon_looks_after_its_memory_and_a_child_does_not() {
    if !has(&["python3"]) || !collapses() {
        return;
    }
    let scratch = Scratch::new("daemon");
    let program = r#"
import time
stays = sys.stdin.readline().strip() == "stays"
first = os.getpid()
if os.fork() != 0:
    if stays: os.wait()
    os._exit(0)
while not stays and os.getppid() == first: time.sleep(0.005)
wakes, wake = os.pipe()
child = os.fork()
if child == 0:
    os.close(wake)
    os.read(wakes, 1)
    os._exit(0)
for at in range(0, size, 4096): state[at] = 3
os.close(wake)
os.waitpid(child, 0)
say(os.getpid())
sys.stdin.readline()
"#;
    for stays in [false, true] {
        let options = if stays { "-q --children grow" } else { "-q" };
        let mut python = Python::start(&scratch, options, program);
        let word = if stays { "stays\n" } else { "goes\n" };
        python.running.child().stdin.as_mut().unwrap().write_all(word.as_bytes()).unwrap();
        let pid = python.line().parse().unwrap();
        let over = |known: &serde_json::Value| known["forks_alive"] == 0 && known["total_forks"] == 1;
        wait_for("its child to be known as gone", || scratch.stats(pid).filter(over));
        if stays {
            let threads = || fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
            wait_for("the worker to leave", || (threads() == 1).then_some(()));
            assert_eq!(scratch.stats(pid).unwrap()["passes"], 0);
        } else {
            let blocks = |known: &serde_json::Value| known["blocks_collapsed"].as_u64() > Some(20);
            wait_for("blocks to be collapsed", || scratch.stats(pid).filter(blocks));
        }
        python.go_on();
    }
}

/// libc's handlers hear nothing of such a child, and its parent's worker may hold a lock at that moment.
#[test]
fn a_copy_that_no_handler_was_told_of_forks_too() {
    if !has(&["python3"]) {
        return;
    }
    let scratch = Scratch::new("raw");
    let program = r#"
wakes, wake = os.pipe()
held = os.fork()
if held == 0:
    os.close(wake)
    os.read(wakes, 1)
    os._exit(0)
libc = ctypes.CDLL(None)
for copy in range(50):
    child = libc._Fork()
    if child == 0:
        inner = os.fork()
        if inner == 0: os._exit(5)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
os.close(wake)
os.waitpid(held, 0)
say("done")
"#;
    for mode in MODES {
        let mut python = Python::start(&scratch, mode, program);
        assert_eq!(python.line(), "done", "{mode}");
    }
}

/// A grandchild holds the memory when its parent has long gone.
#[test]
fn descendants_count_however_deep() {
    if !has(&["python3"]) {
        return;
    }
    let scratch = Scratch::new("descendants");
    let mut python = Python::start(
        &scratch,
        "-q",
        r#"
wakes, wake = os.pipe()
if os.fork() == 0:
    os.close(wake)
    if os.fork() == 0:
        os.read(wakes, 1)
    os._exit(0)
os.wait()
os.close(wakes)
say("held")
sys.stdin.readline()
os.close(wake)
say("let go")
sys.stdin.readline()
"#,
    );
    let pid = python.running.pid();
    assert_eq!(python.line(), "held");
    let known = wait_for("the grandchild", || scratch.stats(pid).filter(|known| known["forks_alive"] == 1));
    assert_eq!((&known["total_forks"], &known["passes"]), (&1.into(), &0.into()));
    python.go_on();
    assert_eq!(python.line(), "let go");
    wait_for("a pass", || scratch.stats(pid).filter(|known| known["passes"] == 1));
    python.go_on();
}

#[test]
fn python_forks_in_every_way() {
    if !has(&["python3"]) {
        return;
    }
    let scratch = Scratch::new("python");
    let program = r#"
import multiprocessing, subprocess, threading
def square(n): return n * n + state[n * 4096] - 1
with multiprocessing.get_context("fork").Pool(3) as pool:
    say(sum(pool.map(square, range(200))))
for method in ("fork", "spawn", "forkserver"):
    process = multiprocessing.get_context(method).Process(target=os.getpid)
    process.start(); process.join(); say(method, process.exitcode)
say(subprocess.check_output(["sh", "-c", "echo child"], text=True).strip(), os.system("exit 4") >> 8)
# Threads fork at once.
def forks():
    for _ in range(20):
        child = os.fork()
        if child == 0: os._exit(0)
        os.waitpid(child, 0)
threads = [threading.Thread(target=forks) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
say("threads")
# errno survives.
libc = ctypes.CDLL(None, use_errno=True)
ctypes.set_errno(77)
child = libc.fork()
if child == 0: os._exit(0 if ctypes.get_errno() == 77 else 1)
say(ctypes.get_errno(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
libc.mmap.restype = ctypes.c_void_p
say(libc.mmap(None, 0, 3, 0x22, -1, 0) == ctypes.c_void_p(-1).value, ctypes.get_errno())
"#;
    let file =
        scratch.file("program.py", format!("if __name__ == '__main__':\n{}", indented(&format!("{PYTHON}{program}"))));
    let plain = output_of(Command::new("python3").arg(&file));
    assert!(plain.contains("threads\n77 0\nTrue 22\n"), "{plain}");
    for mode in MODES {
        assert_eq!(output_of(scratch.run(mode).arg("python3").arg(&file)), plain, "{mode}");
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}

#[test]
fn the_program_does_not_switch_its_huge_pages_off() {
    if !has(&["python3"]) {
        return;
    }
    let scratch = Scratch::new("prctl");
    let program = r#"
libc = ctypes.CDLL(None)
say(libc.prctl(42, 0, 0, 0, 0), libc.prctl(41, 1, 0, 0, 0), libc.prctl(42, 0, 0, 0, 0))
say([line.split()[1] for line in open("/proc/self/status") if line.startswith("THP_enabled")])
child = os.fork()
if child == 0: os._exit(0)
os.wait()
say("ready")
sys.stdin.readline()
"#;
    let mut python = Python::start(&scratch, "-q", program);
    assert_eq!(python.line(), "0 0 1");
    // Kernels before 5.0 do not say.
    let enabled = python.line();
    assert!(enabled == "['1']" || enabled == "[]", "{enabled}");
    assert_eq!(python.line(), "ready");
    assert_eq!(scratch.stats(python.running.pid()).unwrap()["thp_disables_kept"], 1);
}

#[test]
fn a_line_comes_at_the_end_and_at_a_signal_and_only_where_standard_error_is_still_that() {
    if !has(&["python3"]) {
        return;
    }
    let scratch = Scratch::new("lines");
    let errors = |name: &str, options: &str, program: &str| {
        let file = scratch.file("program.py", format!("{PYTHON}{program}"));
        let path = scratch.path().join(name);
        let to = fs::File::create(&path).unwrap();
        assert!(scratch.run(options).arg("python3").arg(file).stderr(to).status().unwrap().success());
        fs::read_to_string(path).unwrap()
    };
    let fork = "child = os.fork()\nif child == 0: sys.exit(0)\nos.wait()\n";
    let line = errors("end", "-q --stats", fork);
    assert!(line.starts_with("hugefork: process ") && line.contains("(mode collapse): 1 forks, "), "{line}");
    assert_eq!(line.lines().count(), 1, "the child and small programs say nothing: {line}");
    let signal = format!("{fork}import signal\nos.kill(os.getpid(), signal.SIGUSR2)\n");
    let line = errors("signal", "-q --stats-signal USR2", &signal);
    assert!(line.lines().count() == 1 && line.contains(": 1 forks, "), "{line}");
    let elsewhere =
        format!("{fork}os.dup2(os.open(\"{}/data\", os.O_CREAT | os.O_RDWR), 2)\n", scratch.path().display());
    assert_eq!(errors("elsewhere", "-q --stats", &elsewhere), "");
    assert_eq!(fs::read_to_string(scratch.path().join("data")).unwrap(), "");
}

#[test]
fn a_page_is_found_without_its_descriptor_and_a_child_has_its_own() {
    if !has(&["python3"]) {
        return;
    }
    let scratch = Scratch::new("descriptors");
    let program = r#"
reads, writes = os.pipe()
child = os.fork()
if child == 0:
    os.close(writes)
    os.read(reads, 1)
    os._exit(0)
say(child)
sys.stdin.readline()
for number in os.listdir("/proc/self/fd"):
    if int(number) >= 800: os.close(int(number))
say("closed")
sys.stdin.readline()
"#;
    let mut python = Python::start(&scratch, "-q", program);
    let child: u32 = python.line().parse().unwrap();
    let pid = python.running.pid();
    assert_eq!(scratch.stats(pid).unwrap()["total_forks"], 1);
    let output = scratch.hugefork(&format!("stats {child}")).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("has neither mapped nor forked"), "{output:?}");
    python.go_on();
    assert_eq!(python.line(), "closed");
    assert_eq!(scratch.stats(pid).unwrap()["total_forks"], 1);
    python.go_on();
}

#[test]
fn only_the_program_that_is_meant_is_looked_after() {
    if !has(&["python3"]) {
        return;
    }
    let scratch = Scratch::new("only");
    let image = output_of(Command::new("python3").args(["-c", "import os; print(os.path.realpath('/proc/self/exe'))"]));
    let name = Path::new(image.trim()).file_name().unwrap().to_str().unwrap().to_owned();
    for (only, is_meant) in [(name.as_str(), true), ("redis-server", false)] {
        let mut python = Python::start(
            &scratch,
            &format!("-q --only {only}"),
            "child = os.fork()\nif child == 0: os._exit(0)\nos.wait()\nsay(2)\nsys.stdin.readline()\n",
        );
        assert_eq!(python.line(), "2");
        assert_eq!(scratch.stats(python.running.pid()).is_some(), is_meant, "{only}");
        python.go_on();
    }
}

/// A Redis of this test's own.
struct Redis<'a> {
    scratch: &'a Scratch,
    running: Running,
}

impl Redis<'_> {
    fn start<'a>(scratch: &'a Scratch, mode: &str) -> Redis<'a> {
        let directory = scratch.path().to_str().unwrap();
        let mut command = scratch.run(mode);
        command.args(["redis-server", "--port", "0", "--unixsocket", "redis.sock", "--save", "", "--dir", directory]);
        command.args(["--enable-debug-command", "yes", "--daemonize", "no"]);
        let redis = Redis { scratch, running: Running::start(&mut command) };
        wait_for("Redis", || Some(redis.ask("ping")).filter(|answer| answer == "PONG"));
        redis
    }

    fn ask(&self, line: &str) -> String {
        let socket = self.scratch.path().join("redis.sock");
        let output = Command::new("redis-cli").arg("-s").arg(socket).args(line.split(' ')).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

#[test]
fn redis_saves_again_and_again_and_loses_nothing() {
    if !has(&["redis-server", "redis-cli"]) {
        return;
    }
    for mode in MODES {
        redis_saves(mode);
    }
}

fn redis_saves(mode: &str) {
    let scratch = Scratch::new("redis");
    let redis = Redis::start(&scratch, mode);
    assert_eq!(redis.ask("debug populate 100000 key 1000"), "OK");
    for save in 1..=3 {
        let digest = redis.ask("debug digest");
        assert_eq!(redis.ask("bgsave"), "Background saving started");
        // Written while the child saves, and so not in what it saves.
        assert_eq!(redis.ask(&format!("debug populate 20000 other{save} 500")), "OK");
        wait_for("the save", || redis.ask("info persistence").contains("rdb_bgsave_in_progress:0").then_some(()));
        assert!(redis.ask("info persistence").contains("rdb_last_bgsave_status:ok"));
        let again = Scratch::new(&format!("redis-again-{save}"));
        fs::copy(scratch.path().join("dump.rdb"), again.path().join("dump.rdb")).unwrap();
        let reloaded = Redis::start(&again, mode);
        assert_eq!(reloaded.ask("debug digest"), digest, "{mode}, save {save}");
    }
    let known = scratch.stats(redis.running.pid()).unwrap();
    assert_eq!(known["total_forks"], 3);
    assert!(mode.contains(known["mode"].as_str().unwrap()));
    // It looks whether there are any before it switches them off.
    let enabled = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap();
    assert_eq!(known["thp_disables_kept"], u64::from(enabled.contains("[always]")));
    let digest = redis.ask("debug digest");
    assert_eq!(redis.ask("debug reload"), "OK");
    assert_eq!(redis.ask("debug digest"), digest);
}
