//! What the library does to the memory of programs, by programs of the tests' own that look closely.

mod programs;

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use programs::ours::{AT_MOST, HELPED, MODES, as_nobody, compiled};
use programs::{Running, Scratch, has, output_of, wait_for};

const PIECES: &str = include_str!("programs/pieces.c");
const PROMISES: &str = include_str!("programs/promises.c");
const MALLOCS: &str = include_str!("programs/mallocs.c");
const STRESS: &str = include_str!("programs/stress.c");
const CALLS: &str = include_str!("programs/calls.c");
const DIRECT: &str = include_str!("programs/direct.c");
const MANY: &str = include_str!("programs/many.c");
const SHORT: &str = include_str!("programs/short.c");
const EARLY: &str = include_str!("programs/early.c");
const LOCKED: &str = include_str!("programs/locked.c");
const LEAN: &str = include_str!("programs/lean.c");
const SLOW: &str = include_str!("programs/slow.c");
const RIGHTS: &str = include_str!("programs/rights.c");
const BESIDE: &str = include_str!("programs/beside.c");
const INHERITED: &str = include_str!("programs/inherited.c");
const STACKS: &str = include_str!("programs/stacks.c");
const ZEROS: &str = include_str!("programs/zeros.c");
const SAME: &str = include_str!("programs/same.c");

#[test]
fn what_linux_promises_holds() {
    let scratch = Scratch::new("promises");
    let Some(program) = compiled(&scratch, "promises", PROMISES) else { return };
    assert_eq!(output_of(&mut Command::new(&program)), "0 broken\n");
    for mode in MODES {
        assert_eq!(output_of(scratch.run(mode).arg(&program)), "0 broken\n", "{mode}");
    }
}

/// Random calls in a program and its children. Many more were tried: the program takes any seed, and any number.
#[test]
fn whatever_is_asked_the_answers_are_the_kernels() {
    let scratch = Scratch::new("same");
    let Some(program) = compiled(&scratch, "same", SAME) else { return };
    for seed in ["1", "4", "10", "12"] {
        let plain = output_of(Command::new(&program).args([seed, "60"]));
        for mode in MODES.into_iter().chain(HELPED) {
            let ours = output_of(scratch.run(mode).args(AT_MOST).arg(&program).args([seed, "60"]));
            let other = plain.lines().zip(ours.lines()).position(|(plain, ours)| plain != ours);
            let lines = |said: &str| other.map(|nth| said.lines().skip(nth).take(2).collect::<Vec<_>>().join("\n"));
            assert!(plain == ours, "seed {seed}, {mode}: {:?}, and {:?} without", lines(&ours), lines(&plain));
        }
    }
}

/// Of `/dev/zero` the pool has what it has of anonymous memory; but where nothing may be run, which the kernel alone
/// heeds.
#[test]
fn private_mappings_of_the_device_of_zeros_are_private_memory() {
    let scratch = Scratch::new("zeros");
    let Some(program) = compiled(&scratch, "zeros", ZEROS) else { return };
    assert_eq!(output_of(&mut Command::new(&program)), "0 bad\n");
    for mode in MODES {
        let mut running = Running::start(scratch.run(mode).arg(&program));
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(running.child().stdout.as_mut().unwrap()), &mut line)
            .unwrap();
        assert_eq!(line, "0 bad\n", "{mode}");
        let stats = scratch.stats(running.pid());
        let count = |name: &str| stats.as_ref().map_or(0, |stats| stats[name].as_u64().unwrap());
        if !mode.ends_with("pool") {
            assert_eq!(count("pool_mappings"), 0);
        } else if count("pool_refused") == 1 {
            println!("skipped: the engine cannot work here; it says why in `hugefork doctor`");
        } else if rustix::fs::statvfs("/dev/zero").unwrap().f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC) {
            println!("skipped: /dev is mounted `noexec`");
        } else {
            assert!(count("pool_mappings") >= 2 && count("pool_bytes") >= 56 << 20, "{stats:?}");
        }
        assert!(running.end().0.success(), "{mode}");
    }
}

#[test]
fn mappings_that_share_a_huge_page_are_apart() {
    let scratch = Scratch::new("pieces");
    let Some(program) = compiled(&scratch, "pieces", PIECES) else { return };
    for mode in MODES {
        let said = output_of(scratch.run(mode).arg(&program));
        assert!(said.starts_with("0 broken, "), "{mode}: {said}");
    }
}

#[test]
fn what_libcs_malloc_promises_holds_whoever_it_is() {
    let scratch = Scratch::new("mallocs");
    let Some(program) = compiled(&scratch, "mallocs", MALLOCS) else { return };
    let (libcs, other) = ("0 broken, in libc's heap\n", "0 broken, elsewhere\n");
    assert_eq!(output_of(&mut Command::new(&program)), libcs);
    for (options, wanted) in [
        ("--mode collapse", libcs),
        ("--mode collapse --malloc mimalloc", other),
        ("--mode pool", other),
        ("--mode pool --malloc keep", libcs),
        // The library is there, and passes everything on.
        ("--mode pool --only another-program", libcs),
    ] {
        let said = output_of(scratch.run(&format!("-q {options}")).arg(&program));
        assert_eq!(said, wanted, "{options}");
    }
}

/// Says whether jemalloc, which it is linked with, knows of what it allocates.
const BRINGS: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
int mallctl(const char *, void *, size_t *, void *, size_t);
int main(void) {
    char *volatile at = malloc(5 << 20);
    uint64_t epoch = 1;
    size_t has = 0, len = sizeof has;
    mallctl("epoch", NULL, NULL, &epoch, sizeof epoch);
    mallctl("stats.allocated", &has, &len, NULL, 0);
    free(at);
    puts(has >= 5 << 20 ? "jemalloc's" : "another's");
}
"#;

/// A library that a program needs comes after those that are preloaded.
#[test]
fn allocators_that_programs_bring_stay_unless_another_is_asked_for() {
    let scratch = Scratch::new("brings");
    if !has(&["cc"]) {
        return;
    }
    let (file, program) = (scratch.file("brings.c", BRINGS), scratch.path().join("brings"));
    let linked = Command::new("cc").arg(file).args(["-l:libjemalloc.so.2", "-o"]).arg(&program).output().unwrap();
    if !linked.status.success() {
        return println!("skipped: libjemalloc2 is not installed");
    }
    for (options, wanted) in
        [("", "jemalloc's\n"), ("--malloc keep", "jemalloc's\n"), ("--malloc mimalloc", "another's\n")]
    {
        assert_eq!(output_of(scratch.run(&format!("-q --mode pool {options}")).arg(&program)), wanted, "{options}");
    }
}

#[test]
fn no_write_is_lost_and_no_child_sees_one() {
    let scratch = Scratch::new("stress");
    let Some(program) = compiled(&scratch, "stress", STRESS) else { return };
    for mode in MODES {
        for most in ["1", "5"] {
            let said = output_of(scratch.run(mode).arg(&program).args(["30", most]));
            assert_eq!(said, "30 forks, 0 bad\n", "{mode}, {most} at once");
        }
    }
}

#[test]
fn what_threads_do_to_their_memory_meanwhile_is_done() {
    let scratch = Scratch::new("changes");
    let Some(program) = compiled(&scratch, "stress", STRESS) else { return };
    for mode in MODES {
        let said = output_of(scratch.run(mode).arg(&program).args(["30", "3", "2"]));
        assert_eq!(said, "30 forks, 0 bad\n", "{mode}");
    }
}

/// A program with the library of `SLOW`, which is built with `option`.
fn compiled_with_slow(scratch: &Scratch, name: &str, source: &str, option: &str) -> Option<PathBuf> {
    if !has(&["cc"]) {
        return None;
    }
    let (library, slow) = (scratch.path().join("libslow.so"), scratch.file("slow.c", SLOW));
    let options = ["-O1", "-shared", "-fPIC", "-pthread", option, "-o"];
    output_of(Command::new("cc").args(options).arg(&library).arg(slow));
    let (program, source) = (scratch.path().join(name), scratch.file(&format!("{name}.c"), source));
    output_of(Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(source).arg(&library));
    Some(program)
}

#[test]
fn nobody_waits_for_a_fork_that_waits_for_him() {
    for option in ["-DPAST", "-UPAST"] {
        let scratch = Scratch::new("beside");
        let Some(program) = compiled_with_slow(&scratch, "beside", BESIDE, option) else { return };
        for mode in MODES {
            assert_eq!(output_of(scratch.run(mode).args(AT_MOST).arg(&program)), "0 bad\n", "{mode} {option}");
        }
    }
}

#[test]
fn who_has_a_lock_that_a_fork_takes_may_wait_for_the_kernel() {
    let scratch = Scratch::new("rights");
    let Some(program) = compiled_with_slow(&scratch, "rights", RIGHTS, "-UPAST") else { return };
    for mode in MODES {
        assert_eq!(output_of(scratch.run(mode).args(AT_MOST).arg(&program)), "0 bad\n", "{mode}");
    }
}

#[test]
fn a_child_that_empties_memory_touches_nothing_else() {
    let scratch = Scratch::new("inherited");
    let Some(program) = compiled(&scratch, "inherited", INHERITED) else { return };
    for mode in MODES {
        assert_eq!(output_of(scratch.run(mode).arg(&program)), "0 bad\n", "{mode}");
    }
}

#[test]
fn threads_on_stacks_of_the_programs_own_are_joined() {
    let scratch = Scratch::new("stacks");
    let Some(program) = compiled(&scratch, "stacks", STACKS) else { return };
    for mode in MODES {
        assert_eq!(output_of(scratch.run(mode).args(AT_MOST).arg(&program)), "0 bad\n", "{mode}");
    }
}

#[test]
fn system_calls_write_into_memory_that_is_promoted_and_folded() {
    let scratch = Scratch::new("calls");
    let Some(program) = compiled(&scratch, "calls", CALLS) else { return };
    for mode in MODES {
        assert_eq!(output_of(scratch.run(mode).arg(&program).arg("10")), "24 calls, 0 bad\n", "{mode}");
    }
}

/// As another user, whose system calls nobody may have wait: then there is no pool.
#[test]
fn without_rights_nothing_fails_either() {
    if !rustix::process::getuid().is_root() {
        println!("skipped: only root can run a program as another user");
        return;
    }
    let scratch = Scratch::new("without-rights");
    let (Some(calls), Some(stress)) = (compiled(&scratch, "calls", CALLS), compiled(&scratch, "stress", STRESS)) else {
        return;
    };
    assert_eq!(output_of(as_nobody(&scratch, &calls).arg("10")), "24 calls, 0 bad\n");
    assert_eq!(output_of(as_nobody(&scratch, &stress).args(["20", "3"])), "20 forks, 0 bad\n");
}

/// What a device writes to pages arrives in the program's memory, whatever is done to that meanwhile.
#[test]
fn what_is_read_past_the_page_cache_arrives() {
    let scratch = Scratch::new("direct");
    let Some(program) = compiled(&scratch, "direct", DIRECT) else { return };
    let said = output_of(scratch.run("-q --mode pool").arg(program).args(["file", "30"]));
    if said == "no O_DIRECT\n" {
        println!("skipped: the file system of {} has no O_DIRECT", scratch.path().display());
        return;
    }
    assert_eq!(said, "0 bad\n");
}

/// Descriptors of which a program has few are its own.
#[test]
fn a_program_has_all_the_descriptors_that_it_may_have() {
    let scratch = Scratch::new("all-descriptors");
    let Some(program) = compiled(&scratch, "many", MANY) else { return };
    for mode in MODES {
        let command = scratch.run(mode);
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -n 6 && exec \"$@\"", "sh"]).arg(command.get_program()).args(command.get_args());
        limited.arg(&program).env("XDG_CACHE_HOME", scratch.path()).stdin(std::process::Stdio::null());
        assert_eq!(output_of(&mut limited), "0 bad\n", "{mode}");
    }
}

/// Waits for a line, with big memory.
const WAITS: &str = r#"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
int main(void) {
    size_t len = 16ul << 20;
    memset(mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, len);
    puts("written");
    fflush(stdout);
    return getchar() == EOF;
}
"#;

#[test]
fn why_there_is_no_pool_is_said() {
    let scratch = Scratch::new("why-no-pool");
    let Some(program) = compiled(&scratch, "waits", WAITS) else { return };
    for (descriptors, says) in [
        (950, "refused here: the process may have fewer than 980 descriptors"),
        (900, "it may have only descriptors below 900"),
    ] {
        let command = scratch.run("-q --mode pool");
        let mut limited = Command::new("sh");
        let limit = format!("ulimit -n {descriptors} && exec \"$@\"");
        limited.args(["-c", &limit, "sh"]).arg(command.get_program()).args(command.get_args());
        limited.arg(&program).env("XDG_CACHE_HOME", scratch.path());
        let mut running = Running::start(&mut limited);
        let pid = running.pid();
        assert_eq!(running.lines()(), "written");
        let output = scratch.hugefork(&format!("stats {pid}")).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains(says), "{descriptors}: {said}");
        let why = scratch.stats(pid).map(|stats| (stats["pool_refused"].clone(), stats["pool_refused_why"].clone()));
        assert_eq!(why, (descriptors > 900).then(|| (1.into(), 1.into())));
        running.child().kill().unwrap();
    }
}

/// Memory that is written, forked, written again, and let go of.
const ROUNDS: &str = r#"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    size_t len = 64ul << 20;
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(at, 1, len);
    int ends[2], status;
    pipe(ends);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(ends[1]);
        read(ends[0], &byte, 1);
        _exit(at[0] != 1 || at[len - 1] != 1);
    }
    memset(at, 2, len / 2);
    for (size_t page = len / 2; page < len; page += 1 << 20) at[page] = 2;
    puts("written");
    fflush(stdout);
    getchar();
    close(ends[1]);
    waitpid(child, &status, 0);
    puts(status ? "changed" : "as it was");
    fflush(stdout);
    getchar();
    munmap(at, len);
    puts("gone");
    fflush(stdout);
    getchar();
    return 0;
}
"#;

#[test]
fn the_pool_promotes_what_is_written_densely_writes_back_the_rest_and_gives_memory_back() {
    let scratch = Scratch::new("rounds");
    let Some(program) = compiled(&scratch, "rounds", ROUNDS) else { return };
    let mut running = Running::start(scratch.run("-q --memory any --mode pool").arg(program));
    let pid = running.pid();
    let mut line = running.lines();
    let mut go_on = || std::io::Write::write_all(running.child().stdin.as_mut().unwrap(), b"\n").unwrap();
    assert_eq!(line(), "written");
    let known = scratch.stats(pid).unwrap();
    if known["pool_refused"] == 1 {
        println!("skipped: the engine cannot work here; it says why in `hugefork doctor`");
        return;
    }
    assert_eq!((&known["pool_mappings"], &known["total_forks"]), (&1.into(), &1.into()));
    let count = |name: &str| scratch.stats(pid).unwrap()[name].as_u64().unwrap();
    wait_for("half of the blocks to be promoted", || (count("blocks_promoted") >= 16).then_some(()));
    go_on();
    assert_eq!(line(), "as it was");
    wait_for("the other pages to be written back", || (count("pages_written_back") >= 32).then_some(()));
    wait_for("nobody to live", || (count("forks_alive") == 0).then_some(()));
    let held = |by: &str| {
        let known = scratch.stats(pid).unwrap();
        known[by].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum::<u64>()
    };
    wait_for("promotions to be timed", || (held("promotion_usec_histogram") >= 16).then_some(()));
    wait_for("write-backs to be timed", || (held("write_back_usec_histogram") > 0).then_some(()));
    let text = output_of(&mut scratch.hugefork(&format!("stats {pid}")));
    assert!(text.contains("what was copied; who used it waited") && text.contains("what was written back"), "{text}");
    go_on();
    assert_eq!(line(), "gone");
    wait_for("the memory to be given back", || (count("resident_bytes") < 8 << 20).then_some(()));
    assert_eq!((count("blocks_handed_over"), count("blocks_unseen")), (0, 0));
    go_on();
}

/// A control group of its own for a program, with a limit on its memory.
struct Group(PathBuf);

impl Group {
    /// Says why if there can be none.
    fn new(bytes: u64) -> Option<Group> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let made = groups.lines().find_map(|line| {
            let [number, controllers, path] = line.splitn(3, ':').collect::<Vec<_>>().try_into().ok()?;
            let (root, limit) = match (number, controllers) {
                ("0", "") => ("/sys/fs/cgroup", "memory.max"),
                (_, "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                _ => return None,
            };
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!("hugefork-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let group = PathBuf::from(format!("{root}{path}/{name}"));
            std::fs::create_dir(&group).ok()?;
            let group = Group(group);
            std::fs::write(group.0.join(limit), bytes.to_string()).ok()?;
            Some(group)
        });
        if made.is_none() {
            println!("skipped: no control group can be made here, which root can");
        }
        made
    }

    /// `command`, in the group.
    fn command(&self, command: &Command) -> Command {
        let mut within = Command::new("sh");
        within.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.0.join("cgroup.procs"));
        within.arg(command.get_program()).args(command.get_args());
        command.get_envs().for_each(|(name, value)| match value {
            Some(value) => _ = within.env(name, value),
            None => _ = within.env_remove(name),
        });
        within
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Who has just ended may be in it for a moment.
        let _ = (0..100).find(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            std::fs::remove_dir(&self.0).is_ok()
        });
    }
}

#[test]
fn what_is_kept_for_the_next_child_is_given_back_where_memory_is_short() {
    let scratch = Scratch::new("short");
    let Some(program) = compiled(&scratch, "short", SHORT) else { return };
    for is_short in [false, true] {
        let group = match is_short {
            true => match Group::new(304 << 20) {
                Some(group) => Some(group),
                None => return,
            },
            false => None,
        };
        let mut command = scratch.run("-q --memory any --mode pool");
        command.arg(&program);
        if let Some(group) = &group {
            command = group.command(&command);
        }
        let mut running = Running::start(&mut command);
        let pid = running.pid();
        let mut line = running.lines();
        let mut go_on = || std::io::Write::write_all(running.child().stdin.as_mut().unwrap(), b"\n").unwrap();
        let count = |name: &str| scratch.stats(pid).unwrap()[name].as_u64().unwrap();
        assert_eq!(line(), "written");
        if count("pool_refused") == 1 {
            println!("skipped: the engine cannot work here; it says why in `hugefork doctor`");
            return;
        }
        for blocks in [32, 64] {
            if !is_short {
                wait_for("all to be promoted", || (count("blocks_promoted") >= blocks).then_some(()));
            }
            go_on();
            assert_eq!(line(), if blocks == 32 { "written" } else { "gone" });
        }
        wait_for("the second child to be known to be gone", || (count("forks_alive") == 1).then_some(()));
        match is_short {
            false => wait_for("its memory to be kept", || (count("pool_kept_bytes") >= 64 << 20).then_some(())),
            true => {
                wait_for("the memory to be given back", || (count("pool_kept_bytes") == 0).then_some(()));
                wait_for("as much to be taken as is needed", || (count("pool_bytes") <= 140 << 20).then_some(()));
            }
        }
        go_on();
        assert_eq!(line(), "0 bad");
    }
}

/// Blocks that were promoted take memory that pages would not: where that is short, they go back to pages. The program
/// has 260 MiB at its peak with plain pages; with its blocks it would need 320, and be killed.
#[test]
fn what_was_promoted_too_early_goes_back_to_pages_where_memory_is_short() {
    let scratch = Scratch::new("early");
    let Some(program) = compiled(&scratch, "early", EARLY) else { return };
    let Some(group) = Group::new(304 << 20) else { return };
    let mut command = scratch.run("-q --memory any --mode pool");
    command.arg(&program).arg("95");
    let mut running = Running::start(&mut group.command(&command));
    let pid = running.pid();
    let mut line = running.lines();
    let mut go_on = || std::io::Write::write_all(running.child().stdin.as_mut().unwrap(), b"\n").unwrap();
    let count = |name: &str| scratch.stats(pid).unwrap()[name].as_u64().unwrap();
    assert_eq!(line(), "filled");
    if count("pool_refused") == 1 {
        println!("skipped: the engine cannot work here; it says why in `hugefork doctor`");
        return;
    }
    wait_for("all to be promoted", || (count("blocks_promoted") >= 32).then_some(()));
    assert_eq!(count("blocks_demoted"), 0);
    go_on();
    assert_eq!(line(), "filled");
    wait_for("most to be pages again", || (count("blocks_demoted") >= 24).then_some(()));
    go_on();
    assert_eq!(line(), "filled");
    go_on();
    assert_eq!(line(), "0 bad, the child has all");
}

/// What is mapped while memory is short comes from the kernel, which copies it by page.
#[test]
fn new_memory_is_the_kernels_while_memory_is_short() {
    let scratch = Scratch::new("lean");
    let Some(program) = compiled(&scratch, "lean", LEAN) else { return };
    let Some(group) = Group::new(208 << 20) else { return };
    let mut command = scratch.run("-q --mode pool");
    command.arg(&program);
    let mut running = Running::start(&mut group.command(&command));
    let pid = running.pid();
    let mut line = running.lines();
    let mut wait = || assert_eq!(line(), "ready");
    wait();
    let known = scratch.stats(pid).unwrap();
    if known["pool_refused"] == 1 {
        println!("skipped: the engine cannot work here; it says why in `hugefork doctor`");
        return;
    }
    let mapped = || scratch.stats(pid).unwrap()["pool_mappings"].as_u64().unwrap();
    let mut says = running.child().stdin.take().unwrap();
    let mut comes_from_the_pool = |word: &str| {
        let before = mapped();
        std::io::Write::write_all(&mut says, format!("{word}\n").as_bytes()).unwrap();
        wait();
        mapped() > before
    };
    wait_for("new memory to be the kernel's", || (!comes_from_the_pool("more")).then_some(()));
    comes_from_the_pool("end");
    wait_for("new memory to be the pool's again", || comes_from_the_pool("more").then_some(()));
    std::io::Write::write_all(&mut says, b"over\n").unwrap();
    assert!(running.child().wait().unwrap().success());
}

/// A pool is as large as the machine, and only what is used of it may come. The limit keeps the machine from harm if
/// more does: 64 MiB are the program's.
#[test]
fn a_program_that_locks_its_memory_has_no_more_of_it() {
    let scratch = Scratch::new("locked");
    let Some(program) = compiled(&scratch, "locked", LOCKED) else { return };
    let Some(group) = Group::new(1 << 30) else { return };
    for (mode, who) in [("collapse", "libc"), ("pool", "libc"), ("pool", "kernel"), ("pool --malloc keep", "libc")] {
        for flags in [libc::MCL_CURRENT, libc::MCL_CURRENT | libc::MCL_FUTURE, libc::MCL_FUTURE | libc::MCL_ONFAULT] {
            for child in ["0", "1"] {
                let mut command = scratch.run(&format!("-q --mode {mode}"));
                command.args(AT_MOST).arg(&program).args([who, &flags.to_string(), child]);
                let said = output_of(&mut group.command(&command));
                if said == "not locked\n" {
                    println!("skipped: this takes root, to lock memory");
                    return;
                }
                let name = format!("{mode} {who} {flags} {child}: {said}");
                let resident: usize = said.split_once(" MiB").unwrap().0.parse().unwrap();
                println!("{name}");
                assert!(resident <= 512 && said.ends_with(", 0 missing, 0 bad\n"), "{name}");
            }
        }
    }
}

/// The same under a limit that leaves some room. Without one, the program has 640 to 900 MiB at its peak.
#[test]
fn no_write_is_lost_where_memory_is_short() {
    let scratch = Scratch::new("short-stress");
    let Some(program) = compiled(&scratch, "stress", STRESS) else { return };
    for mode in MODES {
        let Some(group) = Group::new(640 << 20) else { return };
        let mut command = scratch.run(mode);
        command.args(AT_MOST).arg(&program).args(["60", "5", "2"]);
        assert_eq!(output_of(&mut group.command(&command)), "60 forks, 0 bad\n", "{mode}");
    }
}
