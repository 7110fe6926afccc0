//! `dlopen` without `RTLD_DEEPBIND`: a plugin loaded with that flag would call libc's own `mmap`
//! and `munmap` on memory of the pool.
//!
//! libc finds the caller's namespace and search path by its return address. So this function adds
//! no stack frame and ends with a jump to libc.

use std::sync::atomic::{AtomicUsize, Ordering};

/// `RTLD_DEEPBIND`, which only glibc has.
const DEEPBIND: i32 = 8;

/// Address of libc's function; 0 before it was resolved.
static REAL: AtomicUsize = AtomicUsize::new(0);

/// Like libc's `dlopen`.
///
/// # Safety
/// As for libc's function.
#[unsafe(naked)]
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn dlopen(name: *const std::ffi::c_char, flags: std::ffi::c_int) -> *mut std::ffi::c_void {
    std::arch::naked_asm!(
        "endbr64",
        "and esi, {kept}",
        "mov rax, [rip + {real}]",
        "test rax, rax",
        "jne 2f",
        // Slow path: another library's constructor calls `dlopen` before ours has run.
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {find}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "2:",
        "jmp rax",
        kept = const !DEEPBIND,
        real = sym REAL,
        find = sym find,
    )
}

extern "C" fn find() -> usize {
    // SAFETY: a zero-terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) } as usize;
    REAL.store(found, Ordering::Relaxed);
    found
}

/// Resolves libc's function early, so that no signal handler has to.
pub(crate) fn resolve() {
    find();
}
