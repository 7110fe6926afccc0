//! Keeps processes that this test starts: each is the test binary itself, started again in a role.
//!
//! No test depends on time. The keeper runs until its report is as expected, and the processes end
//! when their standard input ends.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr;

use hugefork_keep::{KeepError, Keeper, ProcessReport, Targets, Trouble};

const HUGE_PAGE: usize = 2 << 20;
const BLOCKS: usize = 24;
const PART: &str = "HUGEFORK_KEEP_PART";

/// The role of this process, if the test started it for one.
fn part() -> Option<String> {
    env::var(PART).ok()
}

/// A process in the role of that name. It prints a line after each step and continues after a line on its standard
/// input.
struct Actor {
    process: Child,
    says: BufReader<ChildStdout>,
    hears: Option<ChildStdin>,
}

impl Actor {
    fn start(test: &str, part: &str) -> Actor {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(PART, part);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let says = BufReader::new(process.stdout.take().unwrap());
        let hears = process.stdin.take();
        Actor { process, says, hears }
    }

    /// Waits until the process has printed `word`.
    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while line.trim() != word {
            line.clear();
            assert_ne!(self.says.read_line(&mut line).unwrap(), 0, "it has ended before it said {word}");
        }
    }

    fn go_on(&mut self) {
        self.hears.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Ends the process and checks that it succeeded.
    fn end(mut self) {
        drop(self.hears.take());
        assert!(self.process.wait().unwrap().success());
    }
}

/// Prints a word for the test and waits for a line. Returns false at the end of the input.
fn say(word: &str) -> bool {
    println!("\n{word}");
    let mut byte = [0];
    std::io::stdin().read(&mut byte).is_ok_and(|read| read == 1)
}

/// Anonymous memory of whole blocks in base pages, with a value in each page.
fn filled_memory() -> &'static mut [u64] {
    let len = (BLOCKS + 1) * HUGE_PAGE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), len, 3, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
    let start = mapped.map_addr(|address| address.next_multiple_of(HUGE_PAGE));
    // SAFETY: the range lies in the new mapping, which remains mapped. `MADV_NOHUGEPAGE` makes base pages first.
    let words = unsafe {
        libc::madvise(start, BLOCKS * HUGE_PAGE, libc::MADV_NOHUGEPAGE);
        std::slice::from_raw_parts_mut(start.cast::<u64>(), BLOCKS * HUGE_PAGE / 8)
    };
    words.iter_mut().zip(1..).for_each(|(word, value)| *word = value);
    // SAFETY: as above.
    unsafe { libc::madvise(start, BLOCKS * HUGE_PAGE, libc::MADV_HUGEPAGE) };
    words
}

/// Writes to one page of each block, as programs do. Linux 6.12 refuses to collapse a block of which no page was
/// written since the last fork.
fn write_to_each_block(words: &mut [u64]) {
    for block in words.chunks_mut(HUGE_PAGE / 8) {
        let last = &raw mut block[HUGE_PAGE / 8 - 1];
        // SAFETY: a word of the block, written as it is.
        unsafe { last.write_volatile(last.read_volatile()) };
    }
}

fn is_as_filled(words: &[u64]) -> bool {
    words.iter().zip(1..).all(|(word, value)| *word == value)
}

/// A child of `fork(2)` that lives until it is killed.
fn fork() -> libc::pid_t {
    // SAFETY: the child calls only async-signal-safe functions.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        loop {
            // SAFETY: it waits until it is killed.
            unsafe { libc::pause() };
        }
    }
    child
}

fn kill(child: libc::pid_t) {
    // SAFETY: a child of this process; no other code waits for it.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, ptr::null_mut(), 0);
    }
}

/// A keeper of one process; `None` if this machine cannot keep any.
fn keeper_of(pid: u32) -> Option<Keeper> {
    let mut targets = Targets::new();
    targets.add_process(pid).unwrap();
    match Keeper::new(targets) {
        Ok(keeper) => Some(keeper),
        Err(why @ (KeepError::NoCapability | KeepError::NoScan)) => {
            println!("skipped: {why}");
            None
        }
        Err(why) => panic!("{why}"),
    }
}

/// Runs the keeper until its report of a process is as expected.
fn keep_until(keeper: &mut Keeper, pid: u32, is_wanted: impl Fn(&ProcessReport) -> bool) -> ProcessReport {
    loop {
        let time = keeper.step().expect("the process lives");
        let report = keeper.report();
        if let Some(found) = report.processes.iter().find(|process| process.pid == pid && is_wanted(process)) {
            return found.clone();
        }
        keeper.wait(time);
    }
}

/// Number of blocks that a report counts as huge.
fn huge_blocks(report: &ProcessReport) -> usize {
    report.huge_bytes as usize / HUGE_PAGE
}

#[test]
fn memory_is_huge_again_with_its_contents_after_a_child() {
    if part().is_some() {
        let words = filled_memory();
        if !say("filled") {
            return;
        }
        let child = fork();
        say("forked");
        kill(child);
        write_to_each_block(words);
        while say("alone") {
            // The collapse has not changed it, and it is writable.
            assert!(is_as_filled(words));
            write_to_each_block(words);
        }
        return;
    }
    let mut actor = Actor::start("memory_is_huge_again_with_its_contents_after_a_child", "forks");
    actor.wait_for("filled");
    let pid = actor.pid();
    let Some(mut keeper) = keeper_of(pid) else { return actor.end() };
    let before = keep_until(&mut keeper, pid, |process| process.trouble == Some(Trouble::NeverForked));
    assert_eq!((before.forks, before.blocks_collapsed), (0, 0));
    actor.go_on();
    actor.wait_for("forked");
    // While the child lives, it shares the pages, and the keeper copies none.
    let shared = keep_until(&mut keeper, pid, |process| process.forks == 1 && process.base_bytes > 0);
    assert_eq!(shared.blocks_collapsed, 0, "{shared:?}");
    actor.go_on();
    actor.wait_for("alone");
    // The kernel may collapse some by itself.
    let is_over = |process: &ProcessReport| process.blocks_pending == 0 && huge_blocks(process) >= BLOCKS;
    let after = keep_until(&mut keeper, pid, is_over);
    assert_eq!(after.trouble, None, "{after:?}");
    actor.go_on();
    actor.wait_for("alone");
    actor.end();
    // The keeper notices the end of the process and has nothing left to keep.
    while let Some(time) = keeper.step() {
        keeper.wait(time);
    }
    assert!(keeper.report().processes.is_empty());
}

#[test]
fn blocks_beside_shared_ones_are_huge_again() {
    if part().is_some() {
        // A long-lived child shares the lower half. A page of the upper half was only read.
        let words = filled_memory();
        let helper = fork();
        let own = &mut words[BLOCKS / 2 * HUGE_PAGE / 8..];
        own.iter_mut().zip(1..).for_each(|(word, value)| *word = value);
        // SAFETY: a page of the memory from above, whose contents are not needed.
        unsafe { libc::madvise(own.as_mut_ptr().cast(), 4096, libc::MADV_DONTNEED) };
        assert_eq!(own[0], 0);
        let child = fork();
        say("forked");
        kill(child);
        write_to_each_block(own);
        say("alone");
        assert!(own[0] == 0 && own[512..].iter().zip(513..).all(|(word, value)| *word == value));
        kill(helper);
        return;
    }
    let mut actor = Actor::start("blocks_beside_shared_ones_are_huge_again", "has a helper");
    actor.wait_for("forked");
    let pid = actor.pid();
    let Some(mut keeper) = keeper_of(pid) else { return actor.end() };
    keep_until(&mut keeper, pid, |process| process.forks == 2);
    actor.go_on();
    actor.wait_for("alone");
    let report = keep_until(&mut keeper, pid, |process| huge_blocks(process) >= BLOCKS / 2);
    assert_eq!(report.trouble, None, "{report:?}");
    actor.end();
}

#[test]
fn a_daemon_is_kept_though_its_parent_was_never_seen() {
    if part().is_some() {
        let parent = std::process::id();
        let words = filled_memory();
        if !say("filled") {
            return;
        }
        // SAFETY: the parent exits at once; the child has a single thread, like this process.
        if unsafe { libc::fork() } > 0 {
            // SAFETY: no cleanup is needed.
            unsafe { libc::_exit(0) };
        }
        assert_ne!(parent, std::process::id());
        println!("\n{}", std::process::id());
        let child = fork();
        say("forked");
        kill(child);
        write_to_each_block(words);
        say("alone");
        assert!(is_as_filled(words));
        println!("\ncontent");
        return;
    }
    let mut actor = Actor::start("a_daemon_is_kept_though_its_parent_was_never_seen", "leaves");
    actor.wait_for("filled");
    let Some(mut keeper) = keeper_of(actor.pid()) else { return actor.end() };
    keeper.step();
    actor.go_on();
    let mut line = String::new();
    while line.trim().parse::<u32>().is_err() {
        line.clear();
        actor.says.read_line(&mut line).unwrap();
    }
    let daemon = line.trim().parse().unwrap();
    actor.wait_for("forked");
    keep_until(&mut keeper, daemon, |process| process.forks == 1);
    actor.go_on();
    actor.wait_for("alone");
    keep_until(&mut keeper, daemon, |process| huge_blocks(process) >= BLOCKS);
    actor.go_on();
    actor.wait_for("content");
    actor.end();
}

#[test]
fn a_program_that_disables_huge_pages_gets_none() {
    if part().is_some() {
        filled_memory();
        // SAFETY: the call takes numbers only.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) }, 0);
        let child = fork();
        say("forked");
        kill(child);
        say("alone");
        return;
    }
    let mut actor = Actor::start("a_program_that_disables_huge_pages_gets_none", "refuses");
    actor.wait_for("forked");
    let Some(mut keeper) = keeper_of(actor.pid()) else { return actor.end() };
    keep_until(&mut keeper, actor.process.id(), |process| process.forks == 1);
    actor.go_on();
    actor.wait_for("alone");
    let report = keep_until(&mut keeper, actor.process.id(), |process| process.trouble == Some(Trouble::SwitchedOff));
    assert_eq!(report.blocks_collapsed, 0);
    actor.end();
}

#[test]
fn lazily_freed_memory_does_not_become_permanent() {
    if part().is_some() {
        let words = filled_memory();
        let child = fork();
        say("forked");
        kill(child);
        // SAFETY: the memory from above, whose contents are not needed.
        assert_eq!(unsafe { libc::madvise(words.as_mut_ptr().cast(), size_of_val(words), libc::MADV_FREE) }, 0);
        say("freed");
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let sizes = smaps.lines().filter_map(|line| line.strip_prefix("LazyFree:"));
        let lazy: usize = sizes.map(|size| size.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10).sum();
        // Pages that the kernel has reclaimed read as zeros. All others are still freed lazily, except some that wait
        // in the kernel's batches. A collapse would have made a whole block permanent.
        let left = words.chunks(512).filter(|page| page[0] != 0).count() * 4096;
        assert!(left < lazy + HUGE_PAGE, "{lazy} bytes of {left} that are there");
        return;
    }
    let mut actor = Actor::start("lazily_freed_memory_does_not_become_permanent", "frees");
    actor.wait_for("forked");
    let pid = actor.pid();
    let Some(mut keeper) = keeper_of(pid) else { return actor.end() };
    keep_until(&mut keeper, pid, |process| process.forks == 1);
    actor.go_on();
    actor.wait_for("freed");
    keep_until(&mut keeper, pid, |process| process.trouble == Some(Trouble::FreedLazily));
    actor.end();
}

#[test]
fn exec_resets_the_counts_of_a_process() {
    if part().is_some() {
        filled_memory();
        let child = fork();
        say("forked");
        kill(child);
        println!("\nexec");
        // SAFETY: zero-terminated strings, and a terminated list.
        unsafe { libc::execl(c"/bin/cat".as_ptr(), c"cat".as_ptr(), ptr::null::<libc::c_char>()) };
        panic!("cat is not there");
    }
    let mut actor = Actor::start("exec_resets_the_counts_of_a_process", "execs");
    actor.wait_for("forked");
    let pid = actor.pid();
    let Some(mut keeper) = keeper_of(pid) else { return actor.end() };
    keep_until(&mut keeper, pid, |process| process.forks == 1);
    actor.go_on();
    // In the middle of `exec` the process has the new name already, but may not be identifiable yet.
    let is_new = |process: &ProcessReport| process.trouble == Some(Trouble::NeverForked);
    let report = keep_until(&mut keeper, pid, |process| process.name == "cat" && is_new(process));
    assert_eq!(report.forks, 0);
    actor.end();
}
