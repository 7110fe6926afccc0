//! libc's `syscall`: programs use it for calls without a libc function, and sometimes to bypass
//! interposed functions.
//!
//! ```text
//! syscall(number, …) ─▶ stand_in ─┬─ has answered ─▶ its answer
//!                                 └─ has not ──────▶ the kernel, with the stack as the program left it
//! ```
//! Calls that are not intercepted go on as in libc, instruction by instruction: `clone` with a new
//! stack returns on that stack, and `vfork` returns twice on the same one. So the function has no
//! frame and is written in assembly.

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};

use super::memory::parts::make_own;
use super::memory::{map, remap};
use super::wrapped::{self, ioctl, prctl, process_madvise, shmat};
use crate::interposed::kernel::{failed, is_readable};
use crate::pool::Zeros;
use crate::switch;
use crate::withdrawal::{leave_a_pool, leave_for_a_place, leave_unless_child, withdraw};

/// Like libc's `syscall`.
///
/// # Safety
/// As for libc's function.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn syscall() {
    std::arch::naked_asm!(
        "endbr64",
        "push r9; push r8; push rcx; push rdx; push rsi; push rdi",
        "mov rdi, rsp",
        // The last argument lies above the return address.
        "mov rsi, [rsp + 56]",
        "sub rsp, 8",
        "call {stand_in}",
        "add rsp, 8",
        "pop rdi; pop rsi; pop rdx; pop rcx; pop r8; pop r9",
        "test al, al",
        "jne 2f",
        // The kernel uses only the lower half of the word.
        "mov eax, edi",
        "mov rdi, rsi; mov rsi, rdx; mov rdx, rcx; mov r10, r8; mov r8, r9; mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 3f",
        "ret",
        "2:",
        "mov rax, rdi",
        "ret",
        "3:",
        "neg rax",
        "mov rdi, rax",
        "jmp {failed}",
        stand_in = sym stand_in,
        failed = sym set_errno,
    )
}

/// Like libc's `syscall`.
///
/// # Safety
/// As for libc's function.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn syscall() {
    std::arch::naked_asm!(
        "hint #34", // bti c
        "stp x29, x30, [sp, #-80]!",
        "stp x0, x1, [sp, #16]; stp x2, x3, [sp, #32]; stp x4, x5, [sp, #48]; str x6, [sp, #64]",
        "add x0, sp, #16",
        "mov x1, x6",
        "bl {stand_in}",
        "mov w9, w0",
        "ldp x0, x1, [sp, #16]; ldp x2, x3, [sp, #32]; ldp x4, x5, [sp, #48]; ldr x6, [sp, #64]",
        "ldp x29, x30, [sp], #80",
        "tbnz w9, #0, 2f",
        // The kernel uses only the lower half of the word.
        "mov w8, w0",
        "mov x0, x1; mov x1, x2; mov x2, x3; mov x3, x4; mov x4, x5; mov x5, x6",
        "svc #0",
        "cmn x0, #4095",
        "b.hs 3f",
        "2:",
        "ret",
        "3:",
        "neg x0, x0",
        "b {failed}",
        stand_in = sym stand_in,
        failed = sym set_errno,
    )
}

extern "C" fn set_errno(errno: c_long) -> c_long {
    failed(errno as c_int)
}

/// Handles a call; `f` is its last argument. If the library executes or refuses it, stores the result in place of the
/// call's number and returns true; then the kernel is not called.
extern "C" fn stand_in(call: &mut [c_long; 6], f: c_long) -> bool {
    // SAFETY: the program has called `syscall` with these arguments.
    let answer = if switch::is_on() { unsafe { answer(call, f) } } else { None };
    call[0] = answer.unwrap_or(call[0]);
    answer.is_some()
}

macro_rules! is_one_of {
    ($number:ident: $($name:ident)*) => { matches!($number, $(libc::$name)|*) };
}

/// The library's result for a call; `None` leaves the call to the kernel.
///
/// # Safety
/// As for libc's `syscall`.
unsafe fn answer(call: &[c_long; 6], f: c_long) -> Option<c_long> {
    let [number, a, b, c, d, e] = *call;
    let (at, len, int) = (a as *mut c_void, b as usize, |word: c_long| word as c_int);
    let mut is_refused = false;
    // SAFETY: the functions take the same arguments as the calls, and the caller vouches for them.
    unsafe {
        match number {
            libc::SYS_mmap if int(d) & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 => {
                return Some(map::mmap(at, len, int(c), int(d), int(e), f) as c_long);
            }
            libc::SYS_mremap => return Some(remap::mremap(at, len, c as usize, int(d), e as *mut c_void) as c_long),
            libc::SYS_process_madvise => {
                let pieces = b as *const libc::iovec;
                return Some(process_madvise(int(a), pieces, c as usize, int(d), e as c_uint) as c_long);
            }
            libc::SYS_shmat => return Some(shmat(int(a), b as *const c_void, int(c)) as c_long),
            libc::SYS_ioctl => return Some(ioctl(int(a), b as c_ulong, c as *mut c_void).into()),
            libc::SYS_prctl => {
                return Some(prctl(int(a), b as c_ulong, c as c_ulong, d as c_ulong, e as c_ulong).into());
            }
            SET_MEMPOLICY_HOME_NODE => is_refused = !make_own(at, len),
            _ if is_one_of!(number: SYS_munmap SYS_madvise SYS_mprotect SYS_pkey_mprotect SYS_mlock SYS_mlock2 SYS_mseal
                SYS_mbind SYS_remap_file_pages) =>
            {
                is_refused = !make_own(at, len)
            }
            // `io_uring` can place its rings in the program's memory (`IORING_SETUP_NO_MMAP`), opens files with
            // `O_DIRECT`, and lets devices write to buffers.
            libc::SYS_mlockall | libc::SYS_vmsplice | libc::SYS_io_uring_setup | libc::SYS_io_uring_register => {
                leave_unless_child();
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => wrapped::check_open_flags(int(b)),
            libc::SYS_openat => wrapped::check_open_flags(int(c)),
            // The kernel reports an unreadable argument.
            libc::SYS_openat2 if c != 0 && is_readable(c as usize, size_of::<u64>()) => {
                wrapped::check_open_flags((c as *const u64).read_unaligned() as c_int);
            }
            libc::SYS_fcntl => wrapped::check_fcntl(int(b), c),
            libc::SYS_setsockopt => wrapped::before_option(int(b), int(c)),
            libc::SYS_setrlimit => wrapped::before_limit(a as c_uint, b as *const libc::rlimit64),
            libc::SYS_prlimit64 => wrapped::before_limit_of(int(a), b as c_uint, c as *const libc::rlimit64),
            // The other operations are queries, and so is a filter at a null address.
            libc::SYS_seccomp => {
                let is_filter = a == c_long::from(libc::SECCOMP_SET_MODE_FILTER) && c != 0;
                let is_strict = a == c_long::from(libc::SECCOMP_SET_MODE_STRICT);
                is_refused = (is_filter || is_strict) && !withdraw(Zeros::Copied);
            }
            libc::SYS_setns | libc::SYS_unshare | libc::SYS_chroot => leave_for_a_place(),
            // Calls that change rights.
            _ if is_one_of!(number: SYS_setuid SYS_setgid SYS_setreuid SYS_setregid SYS_setresuid SYS_setresgid
                SYS_setfsuid SYS_setfsgid SYS_setgroups SYS_capset
                SYS_landlock_restrict_self) =>
            {
                leave_a_pool()
            }
            _ => {}
        }
    }
    is_refused.then(|| failed(libc::ENOMEM))
}

/// The same on all architectures.
const SET_MEMPOLICY_HOME_NODE: c_long = 450;

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    unsafe fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long {
        type Function = unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;
        // SAFETY: the function takes these arguments, and the caller vouches for them.
        unsafe { std::mem::transmute::<unsafe extern "C" fn(), Function>(super::syscall)(number, a, b, c, d, e, f) }
    }

    #[test]
    fn other_calls_reach_the_kernel_with_all_arguments() {
        let file = std::fs::File::open("/proc/self/maps").unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        let mut byte = 0_u8;
        // SAFETY: reads one byte, and passes file numbers and flags that do not exist.
        unsafe {
            assert_eq!(syscall(libc::SYS_getpid, 0, 0, 0, 0, 0, 0), libc::c_long::from(libc::getpid()));
            assert_eq!(syscall(libc::SYS_pread64, number.into(), &raw mut byte as c_long, 1, 0, 0, 0), 1);
            assert_eq!((syscall(libc::SYS_read, -1, 0, 0, 0, 0, 0), *libc::__errno_location()), (-1, libc::EBADF));
            assert_eq!((syscall(-7, 0, 0, 0, 0, 0, 0), *libc::__errno_location()), (-1, libc::ENOSYS));
            // A call with six arguments: it copies zero bytes.
            let (mut from, mut to) = (0_i64, 0_i64);
            let copied = syscall(
                libc::SYS_copy_file_range,
                number.into(),
                &raw mut from as c_long,
                number.into(),
                &raw mut to as c_long,
                0,
                1 << 20,
            );
            assert_eq!((copied, *libc::__errno_location()), (-1, libc::EINVAL), "flags are refused");
        }
        assert!(byte.is_ascii_hexdigit());
    }
}
