//! Pools in a tmpfs of their own. Their pages are huge whatever the setting says. The tests check who may have such a
//! pool, that nothing is left of it afterwards, and what the holder of a descriptor can do.

mod common;

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use common::Over;
use common::alone::{Ended, alone};
use common::forked::in_fork;
use common::seccomp::{every, refuse};
use common::signals::handle;
use hugefork::{Backing, Fallback, Granted, ImportError, Imported, Pool, Swap};

const BLOCK: usize = 2 << 20;
const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// One test changes the machine's setting, and the others must not run meanwhile.
static SETTING_STAYS: RwLock<()> = RwLock::new(());

fn beside_others(test: impl FnOnce()) -> Ended {
    let _stays = SETTING_STAYS.read().unwrap_or_else(PoisonError::into_inner);
    alone(test)
}

fn is_root() -> bool {
    // SAFETY: only asks for the user of this process.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        println!("skipped: this takes root, to mount or to be somebody else");
    }
    is_root
}

/// Whether the tests can run: the process is root, the machine's setting does not deny huge pages, and no sandbox
/// refuses the mount.
fn may_try() -> bool {
    let deny = fs::read_to_string(SETTING).is_ok_and(|text| text.contains("[deny]"));
    if deny {
        println!("skipped: shmem_enabled is deny");
    }
    is_root() && !deny && may_mount()
}

/// Whether the system call that begins a mount is allowed. A sandbox around the whole test program may refuse it.
fn may_mount() -> bool {
    // SAFETY: asks for a descriptor, and closes it.
    let is_allowed = unsafe {
        let opened = libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), 0);
        opened >= 0 && libc::close(opened as i32) == 0
    };
    if !is_allowed {
        println!("skipped: fsopen is refused");
    }
    is_allowed
}

/// Whether memfds have no huge pages here, so that the right to mount matters.
fn is_never() -> bool {
    let is_never = fs::read_to_string(SETTING).is_ok_and(|text| text.contains("[never]"));
    if !is_never {
        println!("skipped: shmem_enabled is not never");
    }
    is_never
}

/// A pool in a tmpfs under any setting, because it asks not to be swapped. Before Linux 6.4, under `never` alone.
fn pool(blocks: usize) -> Pool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let is_old =
        release.starts_with("5.") || ["6.0.", "6.1.", "6.2.", "6.3."].iter().any(|old| release.starts_with(old));
    let swap = if is_old { Swap::Allowed } else { Swap::Refused };
    let builder = Pool::builder().capacity(blocks * BLOCK).swap(swap).fallback(Fallback::Refused).exports(true);
    let pool = builder.build().unwrap();
    assert_eq!((pool.backing(), pool.fallback_reason()), (Granted::ShmemOwnTmpfs, None));
    pool
}

fn become_nobody() {
    // SAFETY: changes the user of this process, which runs only this test.
    unsafe {
        assert_eq!(libc::setresgid(65534, 65534, 65534), 0);
        assert_eq!(libc::setresuid(65534, 65534, 65534), 0);
        // Makes /proc of this process belong to it again.
        assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
    }
}

/// Checks that the pool has huge pages, and that every byte is where it was written.
fn check_works(pool: &Pool) {
    let mut region = pool.region(pool.capacity() / 2).unwrap();
    region.as_mut_slice().fill(7);
    let snapshot = region.snapshot().unwrap();
    region.as_mut_slice()[BLOCK] = 8;
    assert!(snapshot.iter().all(|byte| *byte == 7) && region.as_mut_slice()[BLOCK] == 8);
    let stats = pool.stats();
    assert!(stats.bytes_huge.is_none_or(|bytes| bytes >= pool.capacity() / 2), "{stats:?}");
}

#[test]
fn root_mounts_it_itself_and_it_may_be_kept_from_swap() {
    beside_others(|| {
        if may_try() {
            check_works(&pool(8));
        }
    })
    .well();
}

#[test]
fn anybody_has_one_where_memfds_have_no_huge_pages() {
    beside_others(|| {
        if !may_try() || !is_never() {
            return;
        }
        become_nobody();
        let pool = Pool::builder().capacity(8 * BLOCK).build().unwrap();
        match pool.backing() {
            Granted::ShmemOwnTmpfs => check_works(&pool),
            granted => {
                let reason = pool.fallback_reason().unwrap();
                assert!(reason.contains("there is no tmpfs of its own"), "{reason}");
                println!("skipped: {granted}: {reason}");
            }
        }
    })
    .well();
}

/// Refuses something, builds a pool, and checks that the reason for its backing contains `word`.
fn says(refusal: impl FnOnce(), word: &str) {
    let status = in_fork(|| {
        refusal();
        let pool = Pool::builder().capacity(8 * BLOCK).build().unwrap();
        let reason = pool.fallback_reason().unwrap_or_default().to_owned();
        assert_ne!(pool.backing(), Granted::ShmemOwnTmpfs, "{word}");
        assert!(reason.contains("there is no tmpfs of its own") && reason.contains(word), "{word}: {reason}");
        let mut region = pool.region(4 * BLOCK).unwrap();
        region.as_mut_slice().fill(7);
        assert!(region.snapshot().unwrap().iter().all(|byte| *byte == 7));
        0
    });
    assert!(status.success(), "{word}: {status}");
}

#[test]
fn each_refusal_is_named_and_the_pool_is_made_of_something_else() {
    beside_others(|| {
        if !may_try() || !is_never() {
            return;
        }
        // A filter may kill a process for a call that it does not know.
        says(|| refuse(every(libc::SYS_fsopen, libc::EPERM)), "seccomp");
        says(|| refuse(every(libc::SYS_clone, libc::EPERM)), "seccomp");
        // In a user namespace of its own, whose limits concern nobody else.
        let no_namespaces = || {
            // SAFETY: changes this process, which runs only this test.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWUSER) }, 0);
            fs::write("/proc/sys/user/max_user_namespaces", "0").unwrap();
        };
        says(no_namespaces, "CLONE_NEWUSER");
        let few = || {
            become_nobody();
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: reads the limit.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const none) }, 0);
        };
        says(few, "CLONE_NEWUSER");
    })
    .well();
}

#[test]
fn who_has_a_strict_umask_exports_all_the_same() {
    beside_others(|| {
        if !may_try() {
            return;
        }
        // SAFETY: changes this process, which runs only this test.
        unsafe { libc::umask(0o777) };
        let pool = pool(8);
        let region = pool.region(BLOCK).unwrap();
        become_nobody();
        let export = region.snapshot().unwrap().export().unwrap();
        let mode = fs::metadata(format!("/proc/self/fd/{}", export.as_fd().as_raw_fd())).unwrap().mode();
        assert_eq!(mode & 0o777, 0o444);
    })
    .well();
}

/// If the helper were the first process of the new namespace, no process could fork there after its end.
#[test]
fn who_has_a_pid_namespace_for_its_children_may_still_fork() {
    beside_others(|| {
        if !may_try() || !is_never() {
            return;
        }
        become_nobody();
        // SAFETY: changes this process, which runs only this test.
        if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID) } != 0 {
            return println!("skipped: no user namespace");
        }
        let pool = Pool::builder().capacity(8 * BLOCK).build().unwrap();
        assert_ne!(pool.backing(), Granted::ShmemOwnTmpfs);
        let reason = pool.fallback_reason().unwrap();
        assert!(reason.contains("pid namespace"), "{reason}");
        assert!(in_fork(|| 0).success());
    })
    .well();
}

#[test]
fn a_machine_that_denies_huge_pages_is_named() {
    let _nobody_else = SETTING_STAYS.write().unwrap_or_else(PoisonError::into_inner);
    alone(|| {
        if !is_root() || !is_never() {
            return;
        }
        fs::write(SETTING, "deny").unwrap();
        let built = Pool::builder().capacity(8 * BLOCK).build();
        fs::write(SETTING, "never").unwrap();
        let pool = built.unwrap();
        let reason = pool.fallback_reason().unwrap();
        assert!(matches!(pool.backing(), Granted::ShmemBase | Granted::Hugetlb), "{reason}");
        assert!(reason.contains("shmem_enabled is deny"), "{reason}");
    })
    .well();
}

/// The number of descriptors and of mounts, and whether there are children.
fn what_there_is() -> (usize, usize, bool) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count();
    // SAFETY: only asks for children of any kind; nothing is written.
    let child = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) };
    (fs::read_dir("/proc/self/fd").unwrap().count(), mounts, child >= 0)
}

static CHILDREN_ENDED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count_child(_: libc::c_int) {
    CHILDREN_ENDED.fetch_add(1, Ordering::Relaxed);
}

/// Builds and drops pools without any privilege, so that each needs a helper: eight threads, each with `rounds` rounds
/// of `at_once` pools.
fn build_and_drop(rounds: usize, at_once: usize) {
    become_nobody();
    drop(Pool::builder().capacity(BLOCK).build().unwrap());
    handle(libc::SIGCHLD, count_child as *const () as usize, 0, &[]);
    let before = what_there_is();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..rounds {
                    let pools: Vec<Pool> =
                        (0..at_once).map(|_| Pool::builder().capacity(BLOCK).build().unwrap()).collect();
                    assert!(pools.iter().all(|pool| pool.backing() == pools[0].backing()));
                }
            });
        }
    });
    assert_eq!(what_there_is(), before);
    assert_eq!(CHILDREN_ENDED.load(Ordering::Relaxed), 0, "no signal of a helper's end");
}

#[test]
fn nothing_is_left_of_pools_that_are_gone_and_nobody_sees_the_helper() {
    beside_others(|| {
        if may_try() {
            build_and_drop(4, 3);
        }
    })
    .well();
}

#[test]
#[ignore = "takes minutes"]
fn nothing_is_left_of_ten_thousand_pools_a_hundred_at_once() {
    beside_others(|| {
        if may_try() {
            build_and_drop(100, 13);
        }
    })
    .well();
}

#[test]
fn nothing_is_left_where_another_thread_forks_meanwhile() {
    beside_others(|| {
        if !may_try() {
            return;
        }
        become_nobody();
        drop(Pool::builder().capacity(BLOCK).build().unwrap());
        let before = what_there_is();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    assert!(in_fork(|| 0).success());
                }
            });
            let _over = Over(&is_over);
            (0..100).for_each(|_| drop(Pool::builder().capacity(BLOCK).build().unwrap()));
        });
        assert_eq!(what_there_is(), before);
    })
    .well();
}

#[test]
fn who_asks_for_what_may_be_swapped_and_for_none_of_it_is_told() {
    let _stays = SETTING_STAYS.read().unwrap_or_else(PoisonError::into_inner);
    let base = || Pool::builder().capacity(BLOCK).backing(Backing::ShmemBase).swap(Swap::Refused);
    let refusal = base().fallback(Fallback::Refused).build().unwrap_err().to_string();
    assert!(refusal.contains("they may be swapped"), "{refusal}");
    let reason = base().build().unwrap().fallback_reason().unwrap().to_owned();
    assert!(reason.contains("shmem-base: they may be swapped"), "{reason}");
    let hugetlb = Pool::builder().capacity(BLOCK).backing(Backing::Hugetlb).swap(Swap::Refused).build().unwrap();
    assert_eq!(hugetlb.backing() == Granted::Hugetlb, hugetlb.fallback_reason().is_none());
}

#[test]
fn only_who_may_write_to_the_file_makes_it_shorter_and_then_a_read_is_an_error() {
    beside_others(|| {
        if !may_try() {
            return;
        }
        let pool = pool(8);
        let mut region = pool.region(4 * BLOCK).unwrap();
        region.as_mut_slice().fill(7);
        let export = region.snapshot().unwrap().export().unwrap();
        let imported = Imported::map(&export, export.extents()).unwrap();
        let descriptor = export.as_fd();
        // SAFETY: the kernel refuses these calls; they would change the pool's file only if the test fails.
        let tried = unsafe {
            let fd = descriptor.as_raw_fd();
            [libc::ftruncate(fd, 0), libc::fallocate(fd, libc::FALLOC_FL_PUNCH_HOLE | 1, 0, BLOCK as libc::off_t)]
        };
        assert_eq!(tried, [-1, -1]);
        let mut found = vec![0; 4 * BLOCK];
        imported.read_at(0, &mut found).unwrap();
        assert!(found.iter().all(|byte| *byte == 7));
        // Root can open the file for writing, and so can the owner of the file after a change of its mode.
        let file = fs::File::options().write(true).open(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).unwrap();
        file.set_len(0).unwrap();
        assert!(matches!(imported.read_at(0, &mut found), Err(ImportError::NoPages { .. })));
    })
    .well();
}
