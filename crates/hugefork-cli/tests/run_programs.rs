//! The library in real programs: shells, compilers, Python, Redis.

mod programs;

use std::fs;
use std::process::Command;

use programs::{Running, Scratch, can_have_a_pool, has, has_pool, output_of, wait_for};

/// The options of each kind of run.
const MODES: [&str; 1] = ["-q --pool"];

/// The beginning of Python programs: they allocate 64 MiB, and print line by line.
const PYTHON: &str = r#"
import os, sys, ctypes
def say(*words): print(*words, flush=True)
size = 64 << 20
state = bytearray(size)
for at in range(0, size, 4096): state[at] = 1
"#;

/// The output of a Python program under `hugefork run`.
fn python(scratch: &Scratch, options: &str, program: &str) -> String {
    let file = scratch.file("program.py", format!("{PYTHON}{program}"));
    output_of(scratch.run(options).arg(interpreter()).arg(file))
}

/// The executable behind `python3`, which may be a script.
fn interpreter() -> String {
    output_of(Command::new("python3").args(["-c", "import sys; print(sys.executable)"])).trim_end().to_owned()
}

#[test]
fn many_small_programs_run_as_before() {
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

/// libc's handlers do not run for such a child, and its parent's worker may hold a lock at that moment.
#[test]
fn a_copy_without_fork_handlers_can_fork() {
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
        assert_eq!(python(&scratch, mode, program), "done\n", "{mode}");
    }
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
        assert_eq!(output_of(scratch.run(mode).arg(interpreter()).arg(&file)), plain, "{mode}");
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}

#[test]
fn the_program_cannot_disable_its_huge_pages() {
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
"#;
    let said = python(&scratch, "-q --pool", program);
    // Kernels before 5.0 do not report it.
    assert!(["0 0 1\n['1']\nready\n", "0 0 1\n[]\nready\n"].contains(&&*said), "{said}");
}

/// A Redis server of this test.
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
fn redis_saves_repeatedly_and_loses_no_data() {
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
        // Written while the child saves, and so not in the saved file.
        assert_eq!(redis.ask(&format!("debug populate 20000 other{save} 500")), "OK");
        wait_for("the save", || redis.ask("info persistence").contains("rdb_bgsave_in_progress:0").then_some(()));
        assert!(redis.ask("info persistence").contains("rdb_last_bgsave_status:ok"));
        let again = Scratch::new(&format!("redis-again-{save}"));
        fs::copy(scratch.path().join("dump.rdb"), again.path().join("dump.rdb")).unwrap();
        let reloaded = Redis::start(&again, mode);
        assert_eq!(reloaded.ask("debug digest"), digest, "{mode}, save {save}");
    }
    assert!(!can_have_a_pool(&scratch) || has_pool(redis.running.pid()), "it has a pool");
    let digest = redis.ask("debug digest");
    assert_eq!(redis.ask("debug reload"), "OK");
    assert_eq!(redis.ask("debug digest"), digest);
}
