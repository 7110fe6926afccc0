//! The library's effects on the memory of programs, by C programs that check them closely.

mod programs;

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use programs::ours::{MODES, as_nobody, compiled};
use programs::{Scratch, has, output_of};

const PIECES: &str = include_str!("programs/pieces.c");
const PROMISES: &str = include_str!("programs/promises.c");
const STRESS: &str = include_str!("programs/stress.c");
const CALLS: &str = include_str!("programs/calls.c");
const DIRECT: &str = include_str!("programs/direct.c");
const MANY: &str = include_str!("programs/many.c");
const LOCKED: &str = include_str!("programs/locked.c");
const SLOW: &str = include_str!("programs/slow.c");
const RIGHTS: &str = include_str!("programs/rights.c");
const BESIDE: &str = include_str!("programs/beside.c");
const INHERITED: &str = include_str!("programs/inherited.c");
const STACKS: &str = include_str!("programs/stacks.c");
const SAME: &str = include_str!("programs/same.c");

#[test]
fn linuxs_guarantees_hold() {
    let scratch = Scratch::new("promises");
    let Some(program) = compiled(&scratch, "promises", PROMISES) else { return };
    assert_eq!(output_of(&mut Command::new(&program)), "0 broken\n");
    for mode in MODES {
        assert_eq!(output_of(scratch.run(mode).arg(&program)), "0 broken\n", "{mode}");
    }
}

/// Random calls in a program and its children. Longer runs were made by hand: the program accepts any seed and any
/// number.
#[test]
fn random_calls_have_the_kernels_results() {
    let scratch = Scratch::new("same");
    let Some(program) = compiled(&scratch, "same", SAME) else { return };
    for seed in ["1", "4", "10", "12"] {
        let plain = output_of(Command::new(&program).args([seed, "60"]));
        for mode in MODES {
            let ours = output_of(scratch.bounded(mode).arg(&program).args([seed, "60"]));
            let other = plain.lines().zip(ours.lines()).position(|(plain, ours)| plain != ours);
            let lines = |said: &str| other.map(|nth| said.lines().skip(nth).take(2).collect::<Vec<_>>().join("\n"));
            assert!(plain == ours, "seed {seed}, {mode}: {:?}, and {:?} without", lines(&ours), lines(&plain));
        }
    }
}

#[test]
fn mappings_that_share_a_huge_page_are_independent() {
    let scratch = Scratch::new("pieces");
    let Some(program) = compiled(&scratch, "pieces", PIECES) else { return };
    for mode in MODES {
        let said = output_of(scratch.run(mode).arg(&program));
        assert!(said.starts_with("0 broken, "), "{mode}: {said}");
    }
}

#[test]
fn no_write_is_lost_and_no_child_sees_a_later_one() {
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
fn memory_calls_of_threads_take_effect_during_forks() {
    let scratch = Scratch::new("changes");
    let Some(program) = compiled(&scratch, "stress", STRESS) else { return };
    for mode in MODES {
        let said = output_of(scratch.run(mode).arg(&program).args(["30", "3", "2"]));
        assert_eq!(said, "30 forks, 0 bad\n", "{mode}");
    }
}

/// Runs a program with the library of `SLOW`, compiled with `option`.
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
fn memory_calls_and_forks_never_wait_for_each_other() {
    for option in ["-DPAST", "-UPAST"] {
        let scratch = Scratch::new("beside");
        let Some(program) = compiled_with_slow(&scratch, "beside", BESIDE, option) else { return };
        for mode in MODES {
            assert_eq!(output_of(scratch.bounded(mode).arg(&program)), "0 bad\n", "{mode} {option}");
        }
    }
}

#[test]
fn kernel_calls_under_a_lock_of_a_fork_handler_finish() {
    let scratch = Scratch::new("rights");
    let Some(program) = compiled_with_slow(&scratch, "rights", RIGHTS, "-UPAST") else { return };
    for mode in MODES {
        assert_eq!(output_of(scratch.bounded(mode).arg(&program)), "0 bad\n", "{mode}");
    }
}

#[test]
fn a_child_that_empties_memory_changes_no_other() {
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
        assert_eq!(output_of(scratch.bounded(mode).arg(&program)), "0 bad\n", "{mode}");
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

/// A user who may not suspend system calls gets no pool.
#[test]
fn without_rights_no_call_fails() {
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

/// Data that a device writes to pages arrives in the program's memory, whatever happens to that memory meanwhile.
#[test]
fn data_read_past_the_page_cache_arrives() {
    let scratch = Scratch::new("direct");
    let Some(program) = compiled(&scratch, "direct", DIRECT) else { return };
    let said = output_of(scratch.run("-q --pool").arg(program).args(["file", "30"]));
    if said == "no O_DIRECT\n" {
        println!("skipped: the file system of {} has no O_DIRECT", scratch.path().display());
        return;
    }
    assert_eq!(said, "0 bad\n");
}

/// A program can use all of its few descriptors.
#[test]
fn a_program_can_use_all_of_its_descriptors() {
    let scratch = Scratch::new("all-descriptors");
    let Some(program) = compiled(&scratch, "many", MANY) else { return };
    for mode in MODES {
        let command = scratch.run(mode);
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -n 6 && exec \"$@\"", "sh"]).arg(command.get_program()).args(command.get_args());
        limited.arg(&program).stdin(std::process::Stdio::null());
        assert_eq!(output_of(&mut limited), "0 bad\n", "{mode}");
    }
}

/// A control group with a memory limit for one program.
struct Group(PathBuf);

impl Group {
    /// Prints the reason if it cannot be made.
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

    /// Runs `command` in the group.
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
        // A process that has just ended may still be in the group for a moment.
        let _ = (0..100).find(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            std::fs::remove_dir(&self.0).is_ok()
        });
    }
}

/// A pool has the size of the machine, but only the used part may be locked. The limit protects the machine if more is
/// locked: the program uses 64 MiB.
#[test]
fn a_program_that_locks_its_memory_uses_no_more_of_it() {
    let scratch = Scratch::new("locked");
    let Some(program) = compiled(&scratch, "locked", LOCKED) else { return };
    let Some(group) = Group::new(1 << 30) else { return };
    for who in ["libc", "kernel"] {
        for flags in [libc::MCL_CURRENT, libc::MCL_CURRENT | libc::MCL_FUTURE, libc::MCL_FUTURE | libc::MCL_ONFAULT] {
            for child in ["0", "1"] {
                let mut command = scratch.bounded("-q --pool");
                command.arg(&program).args([who, &flags.to_string(), child]);
                let said = output_of(&mut group.command(&command));
                if said == "not locked\n" {
                    println!("skipped: this takes root, to lock memory");
                    return;
                }
                let name = format!("{who} {flags} {child}: {said}");
                let resident: usize = said.split_once(" MiB").unwrap().0.parse().unwrap();
                println!("{name}");
                assert!(resident <= 512 && said.ends_with(", 0 missing, 0 bad\n"), "{name}");
            }
        }
    }
}

/// The stress program runs under a memory limit of 640 MiB. Without a limit, it uses 640 to 900 MiB at its peak.
#[test]
fn no_write_is_lost_where_memory_is_short() {
    let scratch = Scratch::new("short-stress");
    let Some(program) = compiled(&scratch, "stress", STRESS) else { return };
    for mode in MODES {
        let Some(group) = Group::new(640 << 20) else { return };
        let mut command = scratch.bounded(mode);
        command.arg(&program).args(["60", "5", "2"]);
        assert_eq!(output_of(&mut group.command(&command)), "60 forks, 0 bad\n", "{mode}");
    }
}
