//! Advice that neither rustix knows nor may be given through libc: that would change `errno` when it is refused, and
//! the thread that asks may share it with a thread of the program (`hugefork run`).

use std::ffi::c_void;

use rustix::io::Errno;

/// Makes huge pages of a range (`MADV_COLLAPSE`, Linux 6.1).
///
/// # Safety
/// The range is the caller's to name; its contents stay.
pub(super) unsafe fn collapse(start: *mut c_void, len: usize) -> Result<(), Errno> {
    // SAFETY: the advice keeps contents.
    match unsafe { madvise(start, len, libc::MADV_COLLAPSE as usize) } {
        0 => Ok(()),
        failed => Err(Errno::from_raw_os_error(-failed as i32)),
    }
}

/// The system call. Gives 0 or the negative of an error.
///
/// # Safety
/// The advice does not take away what somebody needs.
#[cfg(target_arch = "x86_64")]
unsafe fn madvise(start: *mut c_void, len: usize, advice: usize) -> isize {
    let mut result = libc::SYS_madvise as isize;
    // SAFETY: the instruction changes the three registers that are named, and no memory of the compiler's.
    unsafe {
        std::arch::asm!(
            "syscall", inlateout("rax") result, in("rdi") start, in("rsi") len, in("rdx") advice,
            lateout("rcx") _, lateout("r11") _, options(nostack)
        );
    }
    result
}

/// As on x86-64.
///
/// # Safety
/// As there.
#[cfg(target_arch = "aarch64")]
unsafe fn madvise(start: *mut c_void, len: usize, advice: usize) -> isize {
    let mut result = start as isize;
    // SAFETY: the instruction changes the register of the result, and no memory of the compiler's.
    unsafe {
        std::arch::asm!(
            "svc 0", in("x8") libc::SYS_madvise, inlateout("x0") result, in("x1") len, in("x2") advice,
            options(nostack)
        );
    }
    result
}
