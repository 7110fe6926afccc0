//! Runs code in children of `fork(2)` and checks the outcome.

use std::os::unix::process::ExitStatusExt;
use std::panic::AssertUnwindSafe;
use std::process::ExitStatus;

use hugefork::{Pool, Region, Snapshot};
use procfs::process::{MMapPath, MemoryMap, Process};

/// The exit code of a child in which `body` panics.
const PANICKED: i32 = 101;

/// Runs `body` in a child made by `fork(2)`. The child exits with what `body` returns, and runs no destructor.
pub(crate) fn in_fork(body: impl FnOnce() -> i32) -> ExitStatus {
    // SAFETY: these tests run alone in their process. If they have other threads, the child makes only system calls.
    as_child(unsafe { libc::fork() }, body)
}

/// As [`in_fork`], but the C library does not know of the child, so none of its handlers runs there.
pub(crate) fn in_raw_fork(body: impl FnOnce() -> i32) -> ExitStatus {
    // SAFETY: as above; the child goes on with a copy of this stack.
    as_child(unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as i32, body)
}

/// Runs `body` if this is the child, as `forked` says; otherwise waits for the child.
fn as_child(forked: i32, body: impl FnOnce() -> i32) -> ExitStatus {
    match forked {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: a child that hangs ends with SIGALRM.
            unsafe { libc::alarm(10) };
            let code = std::panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or(PANICKED);
            // SAFETY: ends the process.
            unsafe { libc::_exit(code) }
        }
        child => {
            let mut status = 0;
            // SAFETY: writes the status.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            ExitStatus::from_raw(status)
        }
    }
}

/// Runs checks in a child of `fork(2)`, and fails if they fail.
#[track_caller]
pub(crate) fn check_fork(body: impl FnOnce()) {
    let status = in_fork(|| {
        body();
        0
    });
    assert!(status.success(), "{status}");
}

#[track_caller]
pub(crate) fn check_fork_dies_of_access_to(at: *mut u8) {
    // SAFETY: a fault, which ends the child.
    let status = in_fork(|| unsafe { i32::from(at.read_volatile()) });
    assert_eq!(status.signal(), Some(libc::SIGSEGV), "read: {status}");
    let status = in_fork(|| {
        // SAFETY: as above.
        unsafe { at.write_volatile(99) };
        0
    });
    assert_eq!(status.signal(), Some(libc::SIGSEGV), "write: {status}");
}

/// The kernel's name for the memory of each pool, whatever its backing. Paths of other files may contain the project's
/// name, above all the path of the test binary.
pub(crate) const POOL: &str = "/memfd:hugefork (deleted)";

/// Whether a mapping shows pool memory.
pub(crate) fn is_of_pool(map: &MemoryMap) -> bool {
    matches!(&map.pathname, MMapPath::Path(path) if path.as_os_str() == POOL)
}

/// This process's mappings of pool memory.
pub(crate) fn pool_mappings() -> Vec<MemoryMap> {
    let maps = Process::myself().unwrap().smaps().unwrap();
    maps.into_iter().filter(is_of_pool).collect()
}

/// A region with blocks of all kinds: never written, held alone, shared with a snapshot, shared with a fork.
pub(crate) fn region_of_all_kinds(pool: &Pool) -> (Region, Region, Snapshot) {
    let block = pool.block_size().bytes();
    let mut region = pool.region(4 * block).unwrap();
    region.as_mut_slice()[2 * block..].fill(1);
    let (fork, snapshot) = (region.fork().unwrap(), region.snapshot().unwrap());
    region.as_mut_slice()[..block].fill(2);
    region.as_mut_slice()[3 * block..].fill(3);
    assert_eq!(snapshot[2 * block], 1);
    (region, fork, snapshot)
}
