//! `hugefork run` as supervisors and users meet it: what becomes of the process, of its environment, and of programs
//! that hugefork cannot be put into. What the library does in programs is in run_programs.rs.

mod programs;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use programs::{Running, Scratch, has, output_of, wait_for};

#[test]
fn the_program_is_the_process_and_ends_as_it_ends() {
    let scratch = Scratch::new("status");
    let sh = |script: &str| scratch.run("--quiet").args(["sh", "-c", script]).status().unwrap();
    assert_eq!(sh("exit 7").code(), Some(7));
    assert_eq!(sh("kill -TERM $$").signal(), Some(15));
    assert_eq!(sh("kill -KILL $$").signal(), Some(9));
    let running = Running::start(scratch.run("-q").args(["sh", "-c", "echo $$; read line"]));
    let pid = running.pid();
    let (_, said) = running.end();
    assert_eq!(said.trim(), pid.to_string());
    // Its name is what was asked for, and arguments are as they were.
    let text = output_of(scratch.run("-q").args(["sh", "-c", "tr '\\0' '|' < /proc/$$/cmdline; :", "--", "-x", ""]));
    assert!(text.starts_with("sh|-c|") && text.ends_with("|--|-x||"), "{text}");
}

#[test]
fn signals_are_as_the_command_found_them() {
    let scratch = Scratch::new("signals");
    let look = "grep -E '^Sig(Blk|Ign)' /proc/self/status";
    for setting in ["", "trap '' PIPE USR1; "] {
        let plain = output_of(Command::new("sh").args(["-c", &format!("{setting}{look}")]));
        let script = format!("{setting}exec \"$0\" run -q -- {look}");
        let under = output_of(
            Command::new("sh").args(["-c", &script, programs::HUGEFORK]).env("XDG_CACHE_HOME", scratch.path()),
        );
        assert_eq!(under, plain);
    }
}

/// As from the terminal's Ctrl-C.
#[test]
fn an_interrupt_reaches_the_program() {
    let scratch = Scratch::new("interrupt");
    let script = "trap 'echo caught; exit 3' INT; echo ready; while :; do read line; done";
    let mut run = scratch.run("-q");
    // The tests themselves may run where it is ignored, and a shell does not trap what was ignored at its start.
    // SAFETY: the call sets a default action, and touches nothing else.
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
fn what_cannot_be_run_has_the_status_of_env() {
    let scratch = Scratch::new("missing");
    let script = scratch.file("script", "#!/no/such/interpreter\n");
    let plain = scratch.file("plain", "exit 9\n");
    for file in [&script, &plain] {
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for (program, status) in
        [("no-such-program", 127), ("./no-such-file", 127), ("/etc", 126), ("/etc/passwd", 126), ("./script", 127)]
    {
        let output = scratch.run("").arg(program).output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{program}: {line}");
        assert!(line.starts_with("error: ") && line.lines().count() == 1, "{line}");
    }
    // As execvp does with a file that does not say what it is.
    assert_eq!(scratch.run("-q").arg("./plain").status().unwrap().code(), Some(9));
}

#[test]
fn one_line_says_what_was_done_unless_it_is_not_wanted() {
    let scratch = Scratch::new("line");
    let said = |options: &str| String::from_utf8(scratch.run(options).arg("true").output().unwrap().stderr).unwrap();
    let line = said("--min-size 4MiB");
    assert!(line.starts_with("hugefork: true runs in mode collapse, from 4MiB on, with libc's malloc"), "{line}");
    assert_eq!(line.lines().count(), 1);
    assert_eq!(said("--quiet"), "");
}

/// The variables that `hugefork run` sets, as a program finds them, sorted.
fn environment(command: &mut Command) -> Vec<String> {
    let mut lines: Vec<String> = output_of(command.arg("env")).lines().map(str::to_owned).collect();
    lines.retain(|line| line.split_once('=').is_some_and(|(name, _)| SET.contains(&name)));
    lines.sort();
    lines
}

const SET: [&str; 8] = [
    "GLIBC_TUNABLES",
    "HUGEFORK_CHILDREN",
    "HUGEFORK_MIN_SIZE",
    "HUGEFORK_MODE",
    "HUGEFORK_ONLY",
    "HUGEFORK_STATS",
    "HUGEFORK_STATS_SIGNAL",
    "LD_PRELOAD",
];

#[test]
fn the_environment_keeps_what_was_there() {
    let scratch = Scratch::new("environment");
    let plain = environment(&mut scratch.run("-q"));
    let [library] = &scratch.libraries()[..] else { panic!("{:?}", scratch.libraries()) };
    let library = library.display();
    let mut wanted = vec![
        "GLIBC_TUNABLES=glibc.malloc.hugetlb=1".to_owned(),
        "HUGEFORK_MIN_SIZE=1048576".to_owned(),
        "HUGEFORK_MODE=collapse".to_owned(),
        format!("LD_PRELOAD={library}"),
    ];
    assert_eq!(plain, wanted);
    // A second one inside of the first changes nothing but what it is asked for.
    let inner = environment(scratch.run("-q --stats").args([programs::HUGEFORK, "run", "-q", "--"]));
    assert_eq!(inner, wanted);
    let there =
        environment(scratch.run("-q").env("LD_PRELOAD", "libm.so.6").env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0"));
    wanted[0] = "GLIBC_TUNABLES=glibc.malloc.hugetlb=0".to_owned();
    wanted[3] = format!("LD_PRELOAD=libm.so.6:{library}");
    assert_eq!(there, wanted);
}

#[test]
fn the_environment_that_is_printed_does_the_same() {
    let scratch = Scratch::new("printed");
    let asked = "--children grow --only it's --stats --stats-signal USR1 --min-size 64MiB";
    let wanted = environment(&mut scratch.run(&format!("-q {asked}")));
    let exported = output_of(&mut scratch.hugefork(&format!("run --print-env {asked}")));
    let script = format!("{exported}exec env");
    assert_eq!(environment(Command::new("sh").args(["-c", &format!("{script}; :")])), wanted);
    let file = output_of(&mut scratch.hugefork(&format!("run --print-env=file {asked}")));
    let mut lines: Vec<&str> = file.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, wanted);
    let unit = output_of(&mut scratch.hugefork(&format!("run --print-env=systemd {asked}")));
    assert!(unit.lines().all(|line| line.starts_with("Environment=\"") && line.ends_with('"')), "{unit}");
    assert_eq!(unit.lines().count(), wanted.len());
}

#[test]
fn many_at_once_share_one_library() {
    let scratch = Scratch::new("at-once");
    let mut running: Vec<Running> = (0..12)
        .map(|_| Running::start(scratch.run("-q").args(["grep", "-c", "libhugefork-run-", "/proc/self/maps"])))
        .collect();
    for one in running.drain(..) {
        let (status, said) = one.end();
        assert!(status.success() && said.trim().parse::<u32>().unwrap() > 0, "{said}");
    }
    let [library] = &scratch.libraries()[..] else { panic!("{:?}", scratch.libraries()) };
    assert_eq!(fs::metadata(library).unwrap().mode() & 0o7777, 0o755);
}

#[test]
fn without_a_home_the_library_goes_elsewhere_and_without_any_place_nothing_is_run() {
    let scratch = Scratch::new("homeless");
    let maps = ["grep", "-m1", "-o", "/.*libhugefork-run-.*", "/proc/self/maps"];
    let homeless = |command: &mut Command| {
        command.env_remove("HOME").env("XDG_CACHE_HOME", "relative").args(maps);
        output_of(command)
    };
    let place = homeless(&mut scratch.run("-q"));
    assert!(place.starts_with("/var/cache/hugefork/") || place.starts_with("/tmp/hugefork-"), "{place}");
    // Nobody can make a directory there.
    let readonly = homeless(scratch.run("-q").env("XDG_CACHE_HOME", "/proc"));
    assert_eq!(readonly, place);
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

/// A copy of a program with other bytes in it.
fn patched(scratch: &Scratch, name: &str, patch: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    let mut bytes = fs::read("/bin/true").unwrap();
    patch(&mut bytes);
    let program = scratch.file(name, bytes);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

/// Checks that nothing is run, and that one line says why, with `why` in it.
fn refused(scratch: &Scratch, program: &Path, why: &str) {
    let output = scratch.run("").arg(program).output().unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(125), "{line}");
    assert!(line.starts_with("error: ") && line.lines().count() == 1 && line.contains(why), "{line}");
    assert!(line.contains("--or-plain"), "{line}");
}

#[test]
fn programs_that_no_library_gets_into_are_refused_or_run_as_they_are() {
    let scratch = Scratch::new("refused");
    if let Some(program) = compiled(&scratch, "static", &["-static"]) {
        refused(&scratch, &program, "linked statically");
        let output = scratch.run("--or-plain").arg(&program).output().unwrap();
        assert!(output.status.success());
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(line.starts_with("hugefork: ") && line.contains("runs as it is: is linked statically"), "{line}");
    }
    if has(&["objcopy"])
        && let Some(program) = compiled(&scratch, "go", &["-static"])
    {
        let note = scratch.file("note", "go");
        let add = format!(".go.buildinfo={}", note.display());
        assert!(Command::new("objcopy").arg("--add-section").arg(add).arg(&program).status().unwrap().success());
        refused(&scratch, &program, "Go program");
    }
    for (flag, name) in [("-fsanitize=address", "AddressSanitizer"), ("-fsanitize=thread", "ThreadSanitizer")] {
        for linked in [&[flag][..], &[flag, "-static-libasan", "-static-libtsan"]] {
            if let Some(program) = compiled(&scratch, "watched", linked) {
                refused(&scratch, &program, name);
            }
        }
    }
    // e_machine: RISC-V.
    refused(&scratch, &patched(&scratch, "riscv", |bytes| bytes[18] = 243), "another architecture");
    // 32 bits.
    refused(&scratch, &patched(&scratch, "narrow", |bytes| bytes[4] = 1), "another architecture");
    let musl = patched(&scratch, "musl", |bytes| {
        let glibc: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";
        let musl: &[u8] = b"/lib/ld-musl-x86_64.so.1\0\0\0\0";
        let at = bytes.windows(glibc.len()).position(|window| window == glibc).unwrap();
        bytes[at..at + musl.len()].copy_from_slice(musl);
    });
    refused(&scratch, &musl, "musl");
    // What interprets a script is what counts.
    let script = scratch.file("script", format!("#!{}\n", musl.display()));
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    refused(&scratch, &script, "musl");
}

#[test]
fn programs_with_more_rights_are_refused() {
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
        refused(&scratch, &program, why);
    }
}

#[test]
fn nothing_is_known_of_other_processes() {
    let scratch = Scratch::new("unknown");
    let said = |pid: u32| {
        let output = scratch.hugefork(&format!("stats {pid}")).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(said(std::process::id()).contains("does not run under `hugefork run`"));
    assert!(said(u32::MAX).contains("there is no process"));
    let running = Running::start(scratch.run("-q").args(["sh", "-c", "read line"]));
    let line = wait_for("the library", || Some(said(running.pid())).filter(|line| line.contains("neither")));
    assert!(line.contains("has neither mapped nor forked anything big yet"), "{line}");
}
