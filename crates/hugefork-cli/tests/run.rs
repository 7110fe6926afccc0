//! `hugefork run` for supervisors and users: the process, its environment, and programs that cannot
//! load the library. run_programs.rs tests the library in programs.

mod programs;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use programs::{Running, Scratch, output_of};

#[test]
fn the_program_is_the_process_and_ends_as_it_ends() {
    let scratch = Scratch::new("status");
    let sh = |script: &str| scratch.run("--pool --quiet").args(["sh", "-c", script]).status().unwrap();
    assert_eq!(sh("exit 7").code(), Some(7));
    assert_eq!(sh("kill -TERM $$").signal(), Some(15));
    assert_eq!(sh("kill -KILL $$").signal(), Some(9));
    let running = Running::start(scratch.run("-q --pool").args(["sh", "-c", "echo $$; read line"]));
    let pid = running.pid();
    let (_, said) = running.end();
    assert_eq!(said.trim(), pid.to_string());
    // The name is the requested one, and the arguments are unchanged.
    let text =
        output_of(scratch.run("-q --pool").args(["sh", "-c", "tr '\\0' '|' < /proc/$$/cmdline; :", "--", "-x", ""]));
    assert!(text.starts_with("sh|-c|") && text.ends_with("|--|-x||"), "{text}");
}

#[test]
fn the_program_inherits_the_signal_actions() {
    let look = "grep -E '^Sig(Blk|Ign)' /proc/self/status";
    for setting in ["", "trap '' PIPE USR1; "] {
        let plain = output_of(Command::new("sh").args(["-c", &format!("{setting}{look}")]));
        let script = format!("{setting}exec \"$0\" run -q --pool -- {look}");
        let under = output_of(Command::new("sh").args(["-c", &script, programs::HUGEFORK]));
        assert_eq!(under, plain);
    }
}

/// A signal like that of Ctrl-C in a terminal.
#[test]
fn an_interrupt_reaches_the_program() {
    let scratch = Scratch::new("interrupt");
    let script = "trap 'echo caught; exit 3' INT; echo ready; while :; do read line; done";
    let mut run = scratch.run("-q --pool");
    // The tests themselves may run with the signal ignored, and a shell cannot trap a signal that was ignored at its
    // start. SAFETY: the call sets a default action.
    unsafe {
        run.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            Ok(())
        });
    }
    let mut running = Running::start(run.args(["bash", "-c", script]));
    let mut stdout = std::io::BufReader::new(running.child().stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    assert_eq!(line, "ready\n");
    let pid = rustix::process::Pid::from_raw(running.pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(running.child().wait().unwrap().code(), Some(3));
    line.clear();
    std::io::Read::read_to_string(&mut stdout, &mut line).unwrap();
    assert_eq!(line, "caught\n");
}

#[test]
fn failures_have_the_statuses_of_env() {
    let scratch = Scratch::new("missing");
    let script = scratch.file("script", "#!/no/such/interpreter\n");
    let plain = scratch.file("plain", "exit 9\n");
    for file in [&script, &plain] {
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for (program, status) in
        [("no-such-program", 127), ("./no-such-file", 127), ("/etc", 126), ("/etc/passwd", 126), ("./script", 127)]
    {
        let output = scratch.run("--pool").arg(program).output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{program}: {line}");
        assert!(line.starts_with("error: ") && line.lines().count() == 1, "{line}");
    }
    // Like execvp with a file of unknown kind.
    assert_eq!(scratch.run("-q --pool").arg("./plain").status().unwrap().code(), Some(9));
}

#[test]
fn one_line_reports_the_action_unless_quiet() {
    let scratch = Scratch::new("line");
    let said = |options: &str, program: &str| {
        String::from_utf8(scratch.run(options).arg(program).output().unwrap().stderr).unwrap()
    };
    let line = said("--pool", "true");
    let (pool, plain) =
        ("hugefork: true runs with a pool for its mappings of 2 MiB and more", "hugefork: true runs unchanged");
    assert!(line.starts_with(pool) || line.starts_with(plain), "{line}");
    assert_eq!(line.lines().count(), 1);
    assert_eq!(said("--pool --quiet", "true"), "");
    let script = scratch.file("script", "#!/bin/sh\nexit 0\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let line = said("--pool", "./script");
    assert!(
        line.starts_with("hugefork: ./script runs unchanged")
            || line.contains("which /bin/sh runs: only that program gets")
    );
}

/// Programs started by the program find the original environment.
#[test]
fn started_programs_do_not_have_the_library_in_their_environment() {
    let scratch = Scratch::new("environment");
    let environment = |command: &mut Command| {
        let mut lines: Vec<String> =
            output_of(command.args(["sh", "-c", "env; true"])).lines().map(str::to_owned).collect();
        lines.retain(|line| !["_=", "PWD=", "SHLVL="].iter().any(|name| line.starts_with(name)));
        lines.sort();
        lines
    };
    let plain = || {
        let mut command = Command::new("env");
        command.env_remove("LD_PRELOAD").env_remove("HUGEFORK_POOL");
        command
    };
    for preload in [None, Some("libm.so.6"), Some("libm.so.6:libdl.so.2")] {
        let (mut without, mut with) = (plain(), scratch.run("-q --pool"));
        for command in [&mut without, &mut with] {
            preload.map(|preload| command.env("LD_PRELOAD", preload));
        }
        assert_eq!(environment(&mut with), environment(&mut without), "{preload:?}");
    }
    // The program itself has the library, and so have its forks.
    let maps = "grep -c libhugefork-run /proc/$$/maps; (exec grep -c libhugefork-run /proc/self/maps); true";
    let said = output_of(scratch.run("-q --pool").args(["sh", "-c", maps]).env_remove("HUGEFORK_POOL"));
    let counts: Vec<u32> = said.lines().map(|line| line.parse().unwrap()).collect();
    assert!(counts[0] > 0 && counts[1..] == [0], "{said}");
    // Nor do they inherit the library's descriptor.
    let open = output_of(scratch.run("-q --pool").args(["sh", "-c", "exec ls -l /proc/self/fd"]));
    assert!(!open.contains("libhugefork-run"), "{open}");
}

fn compiled(scratch: &Scratch, name: &str, flags: &[&str]) -> Option<PathBuf> {
    let source = scratch.file("main.c", "int main(void) { return 0; }\n");
    let program = scratch.path().join(name);
    let built = Command::new("cc").arg(&source).args(flags).arg("-o").arg(&program).stderr(Stdio::null()).status();
    if built.is_ok_and(|status| status.success()) {
        return Some(program);
    }
    println!("skipped: cc {flags:?} makes no program here");
    None
}

/// The loader of programs that use glibc.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// A copy of a program with some bytes changed.
fn patched(scratch: &Scratch, name: &str, patch: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    let mut bytes = fs::read("/bin/true").unwrap();
    patch(&mut bytes);
    let program = scratch.file(name, bytes);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

/// Checks that the program runs unchanged, and that one line contains the reason `why`.
fn runs_plain(scratch: &Scratch, program: &Path, why: &str) {
    let plain = Command::new(program).output();
    let output = scratch.run("--pool").arg(program).output().unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    let first = line.lines().next().unwrap_or_default();
    assert!(first.starts_with("hugefork: ") && first.contains("runs unchanged: ") && first.contains(why), "{line}");
    if let Ok(plain) = plain {
        assert_eq!((output.status.code(), output.stdout), (plain.status.code(), plain.stdout), "{line}");
    }
}

#[test]
fn programs_that_cannot_load_the_library_run_unchanged() {
    let scratch = Scratch::new("refused");
    if let Some(program) = compiled(&scratch, "static", &["-static"]) {
        runs_plain(&scratch, &program, "linked statically");
    }
    for (flag, name) in [("-fsanitize=address", "AddressSanitizer"), ("-fsanitize=thread", "ThreadSanitizer")] {
        for linked in [&[flag][..], &[flag, "-static-libasan", "-static-libtsan"]] {
            if let Some(program) = compiled(&scratch, "watched", linked) {
                runs_plain(&scratch, &program, name);
            }
        }
    }
    // e_machine: RISC-V.
    runs_plain(&scratch, &patched(&scratch, "riscv", |bytes| bytes[18] = 243), "another architecture");
    // 32 bits.
    runs_plain(&scratch, &patched(&scratch, "narrow", |bytes| bytes[4] = 1), "another architecture");
    let with_loader = |name: &str, path: &str| {
        patched(&scratch, name, |bytes| {
            let at = bytes.windows(LOADER.len()).position(|window| window == LOADER.as_bytes()).unwrap();
            bytes[at..at + LOADER.len()].fill(0);
            bytes[at..at + path.len()].copy_from_slice(path.as_bytes());
        })
    };
    let musl = with_loader("musl", "/lib/ld-musl-x86_64.so.1");
    runs_plain(&scratch, &musl, "musl");
    // For a script, the interpreter counts.
    let script = scratch.file("script", format!("#!{}\n", musl.display()));
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    runs_plain(&scratch, &script, "musl");
    // The loader finds the system's libc all the same, so the program runs.
    let old = Path::new("/tmp").join(format!("hf{}", std::process::id()));
    fs::create_dir(&old).unwrap();
    fs::copy(LOADER, old.join("ld.so")).unwrap();
    fs::write(old.join("libc.so.6"), "\0GLIBC_2.2.5\0GLIBC_2.17\0").unwrap();
    let program = with_loader("old", old.join("ld.so").to_str().unwrap());
    let refused = std::panic::catch_unwind(|| runs_plain(&scratch, &program, "a glibc before 2."));
    fs::remove_dir_all(&old).unwrap();
    refused.unwrap();
}

#[test]
fn programs_with_more_rights_run_unchanged() {
    if !rustix::process::getuid().is_root() {
        println!("skipped: only root can make a program of another user");
        return;
    }
    let scratch = Scratch::new("rights");
    for (name, mode, why) in [("setuid", 0o4755, "is setuid"), ("setgid", 0o2755, "is setgid")] {
        let program = patched(&scratch, name, |_| {});
        let other = (rustix::fs::Uid::from_raw(65534), rustix::fs::Gid::from_raw(65534));
        rustix::fs::chown(&program, Some(other.0), Some(other.1)).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        runs_plain(&scratch, &program, why);
    }
}
