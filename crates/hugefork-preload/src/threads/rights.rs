//! What the library's threads give up in their first instructions: all that they do not need.
//!
//! A program that gives up its rights by libc's functions changes its own threads, of which these are none. So they
//! leave before that and come back with what the program has then (sandbox/); and a program that is taken over by
//! somebody finds no thread in its memory that could do more than look after memory.
//!
//! * *Capabilities.* None is effective, inheritable or ambient, and the bounding set is empty. Permitted ones stay,
//!   and none of them can be made effective any more: what a thread is permitted decides who may trace it, and who
//!   traces one thread has the memory of all. In a program that began behind a filter they stay as they are: some
//!   services' filters end whoever calls `capset`, and no filter says so.
//! * *New privileges.* `no_new_privs` is set.
//! * *System calls.* Those of the list below; all others fail with `EPERM`.
//! * *User and groups* stay. Another user could trace the thread, too; and the kernel would take it that the whole
//!   process is no longer to be dumped or looked at in `/proc`.
//!
//! Files can be opened for reading alone, mappings be made that cannot be run, and of descriptors' own calls (`ioctl`)
//! there are those of page maps and page faults. A descriptor for page faults is opened before: that needs a right.

use hugefork_linux::pagemap_scan::PAGEMAP_SCAN;
use hugefork_linux::procmap_query::PROCMAP_QUERY;
use hugefork_linux::userfaultfd::UFFDIO_REGISTER;
use syscalls::{Sysno, syscall};

/// The calls that a list allows.
enum Allowed {
    /// Whatever its arguments.
    Any(libc::c_long),
    /// If the lower half of an argument, of which the bits of `mask` count, is `value`.
    If { call: libc::c_long, argument: u32, mask: u32, value: u32 },
}

use Allowed::{Any, If};

/// What a file is opened with beside reading.
const MORE: u32 = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_TMPFILE) as u32;
const RUN: u32 = libc::PROT_EXEC as u32;
const ALL_BITS: u32 = u32::MAX;
/// The size of a page, for whoever asks rustix for it first.
const PR_GET_AUXV: u32 = 0x4155_5856;

/// What the worker, a child's helper and the engine call in them, with what libc and the allocator add.
const LIST: &[Allowed] = &[
    // Who is there, and whose memory is short.
    If { call: libc::SYS_openat, argument: 2, mask: MORE, value: 0 },
    #[cfg(target_arch = "x86_64")]
    If { call: libc::SYS_open, argument: 1, mask: MORE, value: 0 },
    Any(libc::SYS_read),
    Any(libc::SYS_pread64),
    Any(libc::SYS_lseek),
    Any(libc::SYS_fstat),
    Any(libc::SYS_close),
    Any(libc::SYS_getrusage),
    Any(libc::SYS_getrlimit),
    Any(libc::SYS_getpid),
    Any(libc::SYS_getppid),
    Any(libc::SYS_gettid),
    If { call: libc::SYS_prctl, argument: 0, mask: ALL_BITS, value: libc::PR_SET_NAME as u32 },
    If { call: libc::SYS_prctl, argument: 0, mask: ALL_BITS, value: PR_GET_AUXV },
    // Tokens, the pool's file, the page of statistics.
    If { call: libc::SYS_fcntl, argument: 1, mask: ALL_BITS, value: libc::F_ADD_SEALS as u32 },
    If { call: libc::SYS_fcntl, argument: 1, mask: ALL_BITS, value: libc::F_DUPFD_CLOEXEC as u32 },
    If { call: libc::SYS_fcntl, argument: 1, mask: ALL_BITS, value: libc::F_GETFD as u32 },
    Any(libc::SYS_memfd_create),
    Any(libc::SYS_ftruncate),
    Any(libc::SYS_fallocate),
    // Memory.
    If { call: libc::SYS_mmap, argument: 2, mask: RUN, value: 0 },
    If { call: libc::SYS_mprotect, argument: 2, mask: RUN, value: 0 },
    Any(libc::SYS_munmap),
    Any(libc::SYS_mremap),
    Any(libc::SYS_madvise),
    Any(libc::SYS_munlock),
    Any(libc::SYS_mincore),
    Any(libc::SYS_msync),
    Any(libc::SYS_move_pages),
    Any(libc::SYS_membarrier),
    // All calls of descriptors of page faults, PAGEMAP_SCAN and PROCMAP_QUERY.
    If { call: libc::SYS_ioctl, argument: 1, mask: 0xff00, value: UFFDIO_REGISTER & 0xff00 },
    If { call: libc::SYS_ioctl, argument: 1, mask: 0xffff, value: PAGEMAP_SCAN & 0xffff },
    If { call: libc::SYS_ioctl, argument: 1, mask: 0xffff, value: PROCMAP_QUERY & 0xffff },
    Any(libc::SYS_ppoll),
    // Time, and waiting.
    Any(libc::SYS_futex),
    Any(libc::SYS_nanosleep),
    Any(libc::SYS_clock_nanosleep),
    Any(libc::SYS_clock_gettime),
    Any(libc::SYS_sched_yield),
    Any(libc::SYS_sched_getaffinity),
    Any(libc::SYS_getcpu),
    Any(libc::SYS_sysinfo),
    // Signals of faults and their masks; the end.
    Any(libc::SYS_rt_sigprocmask),
    Any(libc::SYS_rt_sigreturn),
    Any(libc::SYS_rt_sigaction),
    Any(libc::SYS_rt_sigpending),
    Any(libc::SYS_set_robust_list),
    Any(libc::SYS_rseq),
    Any(libc::SYS_restart_syscall),
    Any(libc::SYS_exit),
    Any(libc::SYS_exit_group),
    // What cannot go on says so, and aborts.
    If { call: libc::SYS_write, argument: 0, mask: ALL_BITS, value: libc::STDERR_FILENO as u32 },
    If { call: libc::SYS_tgkill, argument: 2, mask: ALL_BITS, value: libc::SIGABRT as u32 },
];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Where `struct seccomp_data` has the number of the call, the architecture, and the first argument.
const CALL: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

/// The instructions of a filter.
const MOST: usize = 6 * LIST.len() + 5;

const fn load(offset: u32) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: offset }
}

const fn unless_equal(value: u32, skip: u8) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, jt: 0, jf: skip, k: value }
}

const fn answer(action: u32) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: action }
}

const fn keep_bits(mask: u32) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16, jt: 0, jf: 0, k: mask }
}

/// The filter: how many instructions of it count.
const FILTER: ([libc::sock_filter; MOST], usize) = {
    let mut rules = [answer(REFUSE); MOST];
    // Of another architecture the numbers mean something else.
    (rules[0], rules[1]) = (load(ARCH), unless_equal(ARCHITECTURE, 0));
    // Over the answer that follows.
    (rules[1].jt, rules[1].jf) = (1, 0);
    (rules[2], rules[3]) = (answer(REFUSE), load(CALL));
    let (mut used, mut nth) = (4, 0);
    while nth < LIST.len() {
        match LIST[nth] {
            Any(call) => {
                (rules[used], rules[used + 1]) = (unless_equal(call as u32, 1), answer(ALLOW));
                used += 2;
            }
            If { call, argument, mask, value } => {
                (rules[used], rules[used + 1]) = (unless_equal(call as u32, 5), load(ARGUMENTS + 8 * argument));
                (rules[used + 2], rules[used + 3]) = (keep_bits(mask), unless_equal(value, 1));
                (rules[used + 4], rules[used + 5]) = (answer(ALLOW), load(CALL));
                used += 6;
            }
        }
        nth += 1;
    }
    (rules, used + 1)
};

/// `struct __user_cap_header_struct` and `struct __user_cap_data_struct` of linux/capability.h.
#[repr(C)]
struct Header {
    version: u32,
    thread: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Capabilities {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const VERSION: u32 = 0x2008_0522;

/// All but those that are permitted.
fn give_up_capabilities() {
    let (header, mut sets) = (Header { version: VERSION, thread: 0 }, [Capabilities::default(); 2]);
    // SAFETY: the call reads a header and writes two sets.
    if unsafe { syscall!(Sysno::capget, &raw const header, &raw mut sets) }.is_err() {
        return;
    }
    for set in &mut sets {
        // What is ambient goes with what is inheritable.
        (set.effective, set.inheritable) = (0, 0);
    }
    // SAFETY: as above, but reads them.
    let _ = unsafe { syscall!(Sysno::capset, &raw const header, &raw const sets) };
}

/// Gives up what this thread does not need. What the kernel refuses stays: it is no more than the program has.
pub(crate) fn give_up() {
    // SAFETY: the call takes numbers.
    let drop_bound = |nth: usize| unsafe { syscall!(Sysno::prctl, libc::PR_CAPBSET_DROP, nth, 0, 0, 0) };
    // Up to the last that the kernel knows; none, if the program may not.
    let _ = (0..64).map(drop_bound).find(Result::is_err);
    if !hugefork::seam::has_filter() {
        give_up_capabilities();
    }
    // SAFETY: numbers.
    let _ = unsafe { syscall!(Sysno::prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    let (rules, used) = FILTER;
    let program = libc::sock_fprog { len: used as u16, filter: (&raw const rules).cast_mut().cast() };
    // By `prctl`, which filters of the program's own allow more often than seccomp(2).
    // SAFETY: the call reads a filter of so many rules. It allows all that this thread does.
    let _ = unsafe { syscall!(Sysno::prctl, libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
}
