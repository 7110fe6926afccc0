//! libc's `syscall`: programs use it for what libc has no function for, and some for what it has, to get past whoever
//! stands in for that.
//!
//! ```text
//! syscall(number, …) ── a bit in a table ─┬─ stands in for it ─▶ the function of that name
//!                                         └─ all others ───────▶ the kernel, with the stack as the program left it
//! ```
//! The second way is libc's own, instruction by instruction: `clone` with a stack of its own returns there on another
//! stack, and `vfork` twice on the same. So it has no frame, and is written in assembly.

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};

use super::{ioctl, mbind, mseal, process_madvise, remap_file_pages, set_mempolicy_home_node, shmat};
use crate::config;
use crate::environment::Mode;
use crate::interposed::kernel::{failed, is_readable, kernel};
use crate::interposed::memory::{advise, map, remap, rights};
use crate::interposed::{descriptors, limits, pins, prctl};
use crate::sandbox::{self, CHANGES};

/// What the library stands in for, of those that all architectures have, beside [`CHANGES`].
const NUMBERS: [c_long; 33] = [
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mprotect,
    libc::SYS_pkey_mprotect,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mlockall,
    libc::SYS_munlock,
    libc::SYS_msync,
    libc::SYS_mincore,
    libc::SYS_process_madvise,
    libc::SYS_mseal,
    libc::SYS_mbind,
    SET_MEMPOLICY_HOME_NODE,
    libc::SYS_remap_file_pages,
    libc::SYS_shmat,
    libc::SYS_ioctl,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup3,
    libc::SYS_prctl,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_fcntl,
    libc::SYS_setsockopt,
    libc::SYS_vmsplice,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_register,
    libc::SYS_setrlimit,
    libc::SYS_prlimit64,
    libc::SYS_seccomp,
];

/// The same on all architectures.
pub(super) const SET_MEMPOLICY_HOME_NODE: c_long = 450;

/// Numbers are smaller.
const END: usize = 512;

/// A bit for each number.
static TABLE: [u8; END / 8] = {
    let table = with(with([0; END / 8], &NUMBERS), &CHANGES);
    #[cfg(target_arch = "x86_64")]
    let table = with(table, &[libc::SYS_dup2, libc::SYS_open]);
    table
};

const fn with(mut table: [u8; END / 8], numbers: &[c_long]) -> [u8; END / 8] {
    let mut nth = 0;
    while nth < numbers.len() {
        table[numbers[nth] as usize / 8] |= 1 << (numbers[nth] % 8);
        nth += 1;
    }
    table
}

/// As libc's `syscall`.
///
/// # Safety
/// As libc's.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    std::arch::naked_asm!(
        "endbr64",
        "cmp rdi, {end}",
        "jae 2f",
        "lea rax, [rip + {table}]",
        "bt [rax], rdi",
        // With the same arguments, in the same places.
        "jc {stand_in}",
        "2:",
        // As the kernel: half of the word.
        "mov eax, edi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 3f",
        "ret",
        "3:",
        "neg rax",
        "mov rdi, rax",
        "jmp {failed}",
        end = const END,
        table = sym TABLE,
        stand_in = sym stand_in,
        failed = sym set_errno,
    )
}

/// As libc's `syscall`.
///
/// # Safety
/// As libc's.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    std::arch::naked_asm!(
        "hint #34", // bti c
        "cmp x0, #{end}",
        "b.hs 2f",
        "adrp x9, {table}",
        "add x9, x9, :lo12:{table}",
        "lsr x10, x0, #3",
        "ldrb w10, [x9, x10]",
        "and w11, w0, #7",
        "lsr w10, w10, w11",
        // With the same arguments, in the same places.
        "tbz w10, #0, 2f",
        "b {stand_in}",
        "2:",
        // As the kernel: half of the word.
        "mov w8, w0",
        "mov x0, x1",
        "mov x1, x2",
        "mov x2, x3",
        "mov x3, x4",
        "mov x4, x5",
        "mov x5, x6",
        "svc #0",
        "cmn x0, #4095",
        "b.hs 3f",
        "ret",
        "3:",
        "neg x0, x0",
        "b {failed}",
        end = const END,
        table = sym TABLE,
        stand_in = sym stand_in,
        failed = sym set_errno,
    )
}

/// Elsewhere nobody is stood in for, and libc's is nobody else's.
///
/// # Safety
/// As libc's.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub unsafe fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long {
    use libc::syscall as kernels;
    // SAFETY: the caller's.
    unsafe { kernels(number & !crate::interposed::kernel::PAST_THE_TABLE, a, b, c, d, e, f) }
}

extern "C" fn set_errno(errno: c_long) -> c_long {
    failed(errno as c_int)
}

/// A call that the library stands in for.
///
/// # Safety
/// As libc's `syscall`.
unsafe extern "C" fn stand_in(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let (at, len, int) = (a as *mut c_void, b as usize, |word: c_long| word as c_int);
    // SAFETY: the functions take what the calls take, and the rest is the caller's.
    unsafe {
        match number {
            libc::SYS_mmap if int(d) & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 => {
                map::mmap(at, len, int(c), int(d), int(e), f) as c_long
            }
            // Who asks the kernel for memory wants the kernel's.
            libc::SYS_mmap => kernel!(libc::SYS_mmap, a, b, c, d, e, f),
            libc::SYS_munmap => map::munmap(at, len).into(),
            libc::SYS_mremap => remap::mremap(at, len, c as usize, int(d), e as *mut c_void) as c_long,
            libc::SYS_madvise => advise::madvise(at, len, int(c)).into(),
            libc::SYS_mprotect => rights::mprotect(at, len, int(c)).into(),
            libc::SYS_pkey_mprotect => rights::pkey_mprotect(at, len, int(c), int(d)).into(),
            libc::SYS_mlock => rights::mlock(at, len).into(),
            libc::SYS_mlock2 => rights::mlock2(at, len, c as c_uint).into(),
            libc::SYS_mlockall => rights::mlockall(int(a)).into(),
            libc::SYS_munlock => rights::munlock(at, len).into(),
            libc::SYS_msync => rights::msync(at, len, int(c)).into(),
            libc::SYS_mincore => rights::mincore(at, len, c as *mut u8).into(),
            libc::SYS_process_madvise => {
                process_madvise(int(a), b as *const libc::iovec, c as usize, int(d), e as c_uint) as c_long
            }
            libc::SYS_mseal => mseal(at, len, c as c_ulong).into(),
            libc::SYS_mbind => mbind(at, len, [c, d, e, f]),
            SET_MEMPOLICY_HOME_NODE => set_mempolicy_home_node(at, len, c, d),
            libc::SYS_remap_file_pages => remap_file_pages(at, len, int(c), d as usize, int(e)).into(),
            libc::SYS_shmat => shmat(int(a), b as *const c_void, int(c)) as c_long,
            libc::SYS_ioctl => ioctl(int(a), b as c_ulong, c as *mut c_void).into(),
            libc::SYS_close => descriptors::close(int(a)).into(),
            libc::SYS_close_range => descriptors::close_range(a as c_uint, b as c_uint, int(c)).into(),
            libc::SYS_dup3 => descriptors::dup3(int(a), int(b), int(c)).into(),
            libc::SYS_prctl => prctl::prctl(int(a), b as c_ulong, c as c_ulong, d as c_ulong, e as c_ulong).into(),
            libc::SYS_openat => {
                pins::look(int(c));
                kernel!(libc::SYS_openat, a, b, c, d)
            }
            libc::SYS_openat2 => {
                // In other modes nobody is interested, and where it cannot be read, the kernel says so.
                if config::mode() == Some(Mode::Pool) && c != 0 && is_readable(c as usize, size_of::<u64>()) {
                    pins::look((c as *const u64).read_unaligned() as c_int);
                }
                kernel!(libc::SYS_openat2, a, b, c, d)
            }
            libc::SYS_fcntl => {
                if int(b) == libc::F_SETFL {
                    pins::look(int(c));
                }
                kernel!(libc::SYS_fcntl, a, b, c)
            }
            libc::SYS_setsockopt => {
                pins::setsockopt(int(a), int(b), int(c), d as *const c_void, e as libc::socklen_t).into()
            }
            libc::SYS_vmsplice => pins::vmsplice(int(a), b as *const libc::iovec, c as usize, d as c_uint) as c_long,
            libc::SYS_io_uring_setup => {
                // Its rings may be in the program's memory (`IORING_SETUP_NO_MMAP`), and it opens files with
                // `O_DIRECT`.
                pins::look(libc::O_DIRECT);
                kernel!(libc::SYS_io_uring_setup, a, b)
            }
            libc::SYS_io_uring_register => {
                // Buffers, perhaps, that devices write to from then on.
                pins::look(libc::O_DIRECT);
                kernel!(libc::SYS_io_uring_register, a, b, c, d)
            }
            libc::SYS_setrlimit => limits::setrlimit(a as c_uint, b as *const libc::rlimit64).into(),
            libc::SYS_prlimit64 => {
                limits::prlimit(int(a), b as c_uint, c as *const libc::rlimit64, d as *mut libc::rlimit64).into()
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => descriptors::dup2(int(a), int(b)).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => {
                pins::look(int(b));
                kernel!(libc::SYS_open, a, b, c)
            }
            _ if number == libc::SYS_seccomp || CHANGES.contains(&number) => sandbox::make(number, [a, b, c, d, e, f]),
            _ => failed(libc::ENOSYS),
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// What is in the table and not among the functions would fail.
    #[test]
    fn each_number_has_its_function() {
        let x86 = [libc::SYS_dup2, libc::SYS_open];
        for number in NUMBERS.into_iter().chain(CHANGES).chain(x86) {
            // SAFETY: descriptors and addresses that nobody has, and lengths of nothing.
            let answer = unsafe { syscall(number, -1, 0, 0, 0, -1, 0) };
            // SAFETY: this thread's own.
            let errno = unsafe { *libc::__errno_location() };
            assert!(answer != -1 || errno != libc::ENOSYS || number == libc::SYS_mseal, "{number}");
        }
        let in_table: u32 = TABLE.iter().map(|byte| byte.count_ones()).sum();
        assert_eq!(in_table as usize, NUMBERS.len() + CHANGES.len() + x86.len());
    }

    #[test]
    fn all_other_numbers_come_to_the_kernel_with_all_their_arguments() {
        let file = std::fs::File::open("/proc/self/maps").unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        let mut byte = 0_u8;
        // SAFETY: reads one byte, and asks for what there is none of.
        unsafe {
            assert_eq!(syscall(libc::SYS_getpid, 0, 0, 0, 0, 0, 0), libc::c_long::from(libc::getpid()));
            assert_eq!(syscall(libc::SYS_pread64, number.into(), &raw mut byte as c_long, 1, 0, 0, 0), 1);
            assert_eq!((syscall(libc::SYS_read, -1, 0, 0, 0, 0, 0), *libc::__errno_location()), (-1, libc::EBADF));
            assert_eq!((syscall(-7, 0, 0, 0, 0, 0, 0), *libc::__errno_location()), (-1, libc::ENOSYS));
            // Six arguments: no more than nothing is copied.
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
