//! Keeps processes of this test: each is the test itself, started again with a part to play.
//!
//! Nothing here waits for a time. The keeper goes on until it reports what is wanted, and the processes end when their
//! standard input does.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr;

use hugefork_keep::{KeepError, Keeper, ProcessReport, Targets, Trouble};

const HUGE_PAGE: usize = 2 << 20;
const BLOCKS: usize = 24;
const PART: &str = "HUGEFORK_KEEP_PART";

/// The part of the test that the process plays, if it was started for one.
fn part() -> Option<String> {
    env::var(PART).ok()
}

/// A process that plays a part of the test of that name. It says a line each time that it has done a step, and goes on
/// when it is sent one.
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

    /// Waits until it has said `word`.
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

    /// Ends it; it must have been content.
    fn end(mut self) {
        drop(self.hears.take());
        assert!(self.process.wait().unwrap().success());
    }
}

/// Says a word to the test, and waits until it is to go on. False if it is to end.
fn say(word: &str) -> bool {
    println!("\n{word}");
    let mut byte = [0];
    std::io::stdin().read(&mut byte).is_ok_and(|read| read == 1)
}

/// Anonymous memory of whole blocks, in base pages, with something in each.
fn filled_memory() -> &'static mut [u64] {
    let len = (BLOCKS + 1) * HUGE_PAGE;
    // SAFETY: new memory, at a place of the kernel's choice.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), len, 3, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
    let start = mapped.map_addr(|address| address.next_multiple_of(HUGE_PAGE));
    // SAFETY: it lies in the new memory, which stays mapped. Base pages first, wherever huge ones are usual.
    let words = unsafe {
        libc::madvise(start, BLOCKS * HUGE_PAGE, libc::MADV_NOHUGEPAGE);
        std::slice::from_raw_parts_mut(start.cast::<u64>(), BLOCKS * HUGE_PAGE / 8)
    };
    words.iter_mut().zip(1..).for_each(|(word, value)| *word = value);
    // SAFETY: as above.
    unsafe { libc::madvise(start, BLOCKS * HUGE_PAGE, libc::MADV_HUGEPAGE) };
    words
}

fn is_as_filled(words: &[u64]) -> bool {
    words.iter().zip(1..).all(|(word, value)| *word == value)
}

/// A child of `fork(2)` that lives until it is killed.
fn fork() -> libc::pid_t {
    // SAFETY: the child calls only what a signal handler may.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        loop {
            // SAFETY: it waits for its end.
            unsafe { libc::pause() };
        }
    }
    child
}

fn kill(child: libc::pid_t) {
    // SAFETY: a child of this process, which nobody else waits for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, ptr::null_mut(), 0);
    }
}

/// A keeper of one process; `None` where nothing can be kept.
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

/// Goes on until the report of a process is as wanted.
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

/// The blocks that a report has as huge.
fn huge_blocks(report: &ProcessReport) -> usize {
    report.huge_bytes as usize / HUGE_PAGE
}

#[test]
fn memory_is_huge_again_after_a_child_and_has_what_was_in_it() {
    if part().is_some() {
        let words = filled_memory();
        if !say("filled") {
            return;
        }
        let child = fork();
        say("forked");
        kill(child);
        while say("alone") {
            // Nobody has changed it, and it can be written to.
            assert!(is_as_filled(words));
            words[BLOCKS * HUGE_PAGE / 16] += 0;
        }
        return;
    }
    let mut actor = Actor::start("memory_is_huge_again_after_a_child_and_has_what_was_in_it", "forks");
    actor.wait_for("filled");
    let pid = actor.pid();
    let Some(mut keeper) = keeper_of(pid) else { return actor.end() };
    let before = keep_until(&mut keeper, pid, |process| process.trouble == Some(Trouble::NeverForked));
    assert_eq!((before.forks, before.blocks_collapsed), (0, 0));
    actor.go_on();
    actor.wait_for("forked");
    // While the child lives it shares the pages, and none is copied.
    let shared = keep_until(&mut keeper, pid, |process| process.forks == 1 && process.base_bytes > 0);
    assert_eq!(shared.blocks_collapsed, 0, "{shared:?}");
    actor.go_on();
    actor.wait_for("alone");
    let is_over = |process: &ProcessReport| process.blocks_pending == 0 && huge_blocks(process) >= BLOCKS;
    let after = keep_until(&mut keeper, pid, is_over);
    assert!(after.blocks_collapsed as usize >= BLOCKS && after.blocks_refused == 0, "{after:?}");
    actor.go_on();
    actor.wait_for("alone");
    actor.end();
    // Its end is noticed, and nothing is left.
    while let Some(time) = keeper.step() {
        keeper.wait(time);
    }
    assert!(keeper.report().processes.is_empty());
}

#[test]
fn blocks_beside_shared_ones_are_huge_again() {
    if part().is_some() {
        // A child that lives on shares the lower half. A page of the upper one was only read.
        let words = filled_memory();
        let helper = fork();
        let own = &mut words[BLOCKS / 2 * HUGE_PAGE / 8..];
        own.iter_mut().zip(1..).for_each(|(word, value)| *word = value);
        // SAFETY: a page of the memory of above, whose contents nobody needs.
        unsafe { libc::madvise(own.as_mut_ptr().cast(), 4096, libc::MADV_DONTNEED) };
        assert_eq!(own[0], 0);
        let child = fork();
        say("forked");
        kill(child);
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
    let report = keep_until(&mut keeper, pid, |process| process.blocks_collapsed as usize == BLOCKS / 2);
    assert_eq!(report.blocks_refused, 0, "{report:?}");
    actor.end();
}

#[test]
fn a_daemon_is_followed_though_nobody_saw_its_parent() {
    if part().is_some() {
        let parent = std::process::id();
        let words = filled_memory();
        if !say("filled") {
            return;
        }
        // SAFETY: the parent ends at once; the child is the only thread of its process, as this is of this one.
        if unsafe { libc::fork() } > 0 {
            // SAFETY: nothing is left to be done.
            unsafe { libc::_exit(0) };
        }
        assert_ne!(parent, std::process::id());
        println!("\n{}", std::process::id());
        let child = fork();
        say("forked");
        kill(child);
        say("alone");
        assert!(is_as_filled(words));
        println!("\ncontent");
        return;
    }
    let mut actor = Actor::start("a_daemon_is_followed_though_nobody_saw_its_parent", "leaves");
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
fn a_program_that_switches_its_huge_pages_off_keeps_them_off() {
    if part().is_some() {
        filled_memory();
        // SAFETY: numbers alone.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) }, 0);
        let child = fork();
        say("forked");
        kill(child);
        say("alone");
        return;
    }
    let mut actor = Actor::start("a_program_that_switches_its_huge_pages_off_keeps_them_off", "refuses");
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
fn memory_that_was_freed_lazily_does_not_become_permanent() {
    if part().is_some() {
        let words = filled_memory();
        let child = fork();
        say("forked");
        kill(child);
        // SAFETY: the memory of above, whose contents nobody needs.
        assert_eq!(unsafe { libc::madvise(words.as_mut_ptr().cast(), size_of_val(words), libc::MADV_FREE) }, 0);
        say("freed");
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let sizes = smaps.lines().filter_map(|line| line.strip_prefix("LazyFree:"));
        let lazy: usize = sizes.map(|size| size.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10).sum();
        // Pages that the kernel has taken back read as zeros: all others are still freed lazily, but for some that wait
        // in its batches. A collapse would have made a whole block stay.
        let left = words.chunks(512).filter(|page| page[0] != 0).count() * 4096;
        assert!(left < lazy + HUGE_PAGE, "{lazy} bytes of {left} that are there");
        return;
    }
    let mut actor = Actor::start("memory_that_was_freed_lazily_does_not_become_permanent", "frees");
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
fn a_process_that_becomes_another_program_begins_anew() {
    if part().is_some() {
        filled_memory();
        let child = fork();
        say("forked");
        kill(child);
        println!("\nexec");
        // SAFETY: strings that end, and a list that ends.
        unsafe { libc::execl(c"/bin/cat".as_ptr(), c"cat".as_ptr(), ptr::null::<libc::c_char>()) };
        panic!("cat is not there");
    }
    let mut actor = Actor::start("a_process_that_becomes_another_program_begins_anew", "execs");
    actor.wait_for("forked");
    let pid = actor.pid();
    let Some(mut keeper) = keeper_of(pid) else { return actor.end() };
    keep_until(&mut keeper, pid, |process| process.forks == 1);
    actor.go_on();
    // In the middle of exec it has the name already, and may not be told apart yet.
    let is_new = |process: &ProcessReport| process.trouble == Some(Trouble::NeverForked);
    let report = keep_until(&mut keeper, pid, |process| process.name == "cat" && is_new(process));
    assert_eq!(report.forks, 0);
    actor.end();
}
