//! System calls that `rustix` does not know. libc's would touch `errno`, which the library's threads share with one of
//! the program's.

use rustix::io::Errno;

/// A system call with three arguments.
///
/// # Errors
/// What the kernel says.
///
/// # Safety
/// As the call's.
pub(crate) unsafe fn three(number: i64, a: usize, b: usize, c: usize) -> Result<usize, Errno> {
    // SAFETY: the caller's.
    let result = unsafe { raw(number as isize, a, b, c) };
    usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result as i32))
}

#[cfg(target_arch = "x86_64")]
unsafe fn raw(number: isize, a: usize, b: usize, c: usize) -> isize {
    let mut result = number;
    // SAFETY: the instruction changes the three registers that are named; what else it does is the caller's.
    unsafe {
        std::arch::asm!(
            "syscall", inlateout("rax") result, in("rdi") a, in("rsi") b, in("rdx") c,
            lateout("rcx") _, lateout("r11") _, options(nostack)
        );
    }
    result
}

#[cfg(target_arch = "aarch64")]
unsafe fn raw(number: isize, a: usize, b: usize, c: usize) -> isize {
    let mut result = a as isize;
    // SAFETY: the instruction changes the register of the result; what else it does is the caller's.
    unsafe {
        std::arch::asm!(
            "svc 0", in("x8") number, inlateout("x0") result, in("x1") b, in("x2") c,
            options(nostack)
        );
    }
    result
}
