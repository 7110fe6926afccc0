//! Saves that are killed, in each state of their directory.
//!
//! ```text
//!   test     seizes the thread (ptrace(2)) ── go on ──▶ a call ends: a look ── go on ──▶ … the n-th state: kill -9
//!   child    makes snapshots, waits ── saves the first ── the second's changes ── the third ── ends
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use hugefork_checkpoint::{Part, Since, load, save, save_since};

use super::{Folder, files, pool, write};

const LEN: usize = 1 << 20;

/// Set for the child: the directory that it saves to.
const DIRECTORY: &str = "HUGEFORK_TEST_SAVES_TO";

/// The work of the child.
#[test]
fn saves_three_times() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let pool = pool();
    let mut region = pool.region(LEN).unwrap();
    write(&mut region, 0..LEN, 1);
    let first = region.snapshot().unwrap();
    write(&mut region, 0..LEN / 4, 2);
    let second = region.snapshot().unwrap();
    write(&mut region, 0..LEN, 3);
    let third = region.snapshot().unwrap();
    // SAFETY: no arguments.
    println!("thread {}", unsafe { libc::gettid() });
    let _ = io::stdin().read(&mut [0]);
    let saved = save(&directory, &[Part::of("state", &first)]).unwrap();
    save_since(&directory, &[Part::of("state", &second).since(&first)], Since::Save(&saved)).unwrap();
    save(&directory, &[Part::of("state", &third)]).unwrap();
    std::process::exit(0);
}

/// The child, whose thread that saves stops at each system call.
struct Stopped {
    child: Child,
    thread: i32,
}

impl Stopped {
    /// Starts the child, and stops it before its first save.
    fn start(directory: &Folder) -> io::Result<Stopped> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--exact", "killed::saves_three_times", "--nocapture"])
            .env(DIRECTORY, &directory.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let number = lines.find_map(|line| line.split_once("thread ")?.1.parse().ok());
        let mut stopped = Stopped { child, thread: number.expect("the child has made its snapshots") };
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
        // SAFETY: a thread of the child, which waits.
        if unsafe { libc::ptrace(libc::PTRACE_SEIZE, stopped.thread, 0, options) } != 0 {
            let refused = io::Error::last_os_error();
            stopped.child.kill()?;
            stopped.child.wait()?;
            return Err(refused);
        }
        // SAFETY: as above.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, stopped.thread, 0, 0) }, 0);
        assert!(libc::WIFSTOPPED(stopped.wait()));
        drop(stopped.child.stdin.take());
        Ok(stopped)
    }

    /// Waits until the thread stops or ends.
    fn wait(&self) -> i32 {
        let mut status = 0;
        // SAFETY: writes the status.
        assert_eq!(unsafe { libc::waitpid(self.thread, &raw mut status, libc::__WALL) }, self.thread);
        status
    }

    /// Lets the thread go on until its next system call begins or ends. False if it has ended by itself.
    fn go_on(&self) -> bool {
        let mut signal = 0;
        loop {
            // SAFETY: the thread has stopped.
            assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SYSCALL, self.thread, 0, signal) }, 0);
            let status = self.wait();
            if !libc::WIFSTOPPED(status) {
                assert_eq!(status, 0, "the child has failed");
                return false;
            }
            match libc::WSTOPSIG(status) {
                at_call if at_call == libc::SIGTRAP | 0x80 => return true,
                // A stop of another kind has a number above the signal's.
                of_signal => signal = if status >> 16 == 0 { of_signal } else { 0 },
            }
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.wait();
        self.child.wait().unwrap();
    }
}

/// The value of the array in the checkpoint; 0 without a checkpoint.
fn found(folder: &Folder) -> u8 {
    if !folder.at("manifest.json").exists() {
        return 0;
    }
    let mut regions = load(&folder.0, &pool()).unwrap();
    let bytes = regions.get_mut("state").unwrap().as_mut_slice();
    let (start, rest) = bytes.split_at(LEN / 4);
    let value = start[0];
    assert!(start.iter().all(|&byte| byte == value));
    assert!(rest.iter().all(|&byte| byte == if value == 2 { 1 } else { value }));
    value
}

/// The names in the directory, and each file's inode and length.
fn look(folder: &Folder) -> BTreeMap<PathBuf, (u64, u64)> {
    let entries = |path: &PathBuf| fs::read_dir(path).into_iter().flatten().map(|entry| entry.unwrap());
    let all = [folder.0.clone(), folder.at("data")];
    let files = all.iter().flat_map(entries).map(|entry| {
        let found = entry.metadata().unwrap();
        (entry.path(), (found.ino(), if found.is_dir() { 0 } else { found.len() }))
    });
    files.collect()
}

#[test]
fn a_killed_save_leaves_a_whole_checkpoint_and_the_next_removes_its_files() {
    let (mut last, mut kills) = (0, [0; 4]);
    for states in 0.. {
        let folder = Folder::new();
        let stopped = match Stopped::start(&folder) {
            Ok(stopped) => stopped,
            Err(error) => return println!("skipped: nobody may stop a child here: {error}"),
        };
        let (mut seen, mut now) = (0, look(&folder));
        while seen < states && stopped.go_on() {
            let before = std::mem::replace(&mut now, look(&folder));
            seen += usize::from(now != before);
        }
        let is_over = seen < states;
        if !is_over {
            stopped.kill();
        }
        let value = found(&folder);
        assert!(value == last || value == last + 1, "{value} after {last}, killed in state {states}: {now:?}");
        (last, kills[usize::from(value)]) = (value, kills[usize::from(value)] + 1);
        save(&folder.0, &[Part::of_bytes("text", b"hello")]).unwrap();
        let names: Vec<_> =
            look(&folder).into_keys().map(|path| path.strip_prefix(&folder.0).unwrap().to_owned()).collect();
        assert!(names.len() == 4 && names[3] == Path::new("manifest.json"), "{names:?}");
        assert_eq!(files(&folder.0).len(), 1);
        if is_over {
            break;
        }
    }
    println!("kills with each checkpoint on the disk: {kills:?}");
    assert!(last == 3 && kills.iter().all(|&count| count > 1), "{kills:?}");
}
