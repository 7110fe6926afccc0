//! `dlopen` without `RTLD_DEEPBIND`: a plugin that is loaded with it would call libc's own `mmap` and `munmap`, about
//! memory that the library gave.
//!
//! libc finds the caller's namespace and search path by the address that it returns to. So there is no frame between
//! them, and the last step is a jump.

use std::sync::atomic::{AtomicUsize, Ordering};

/// libc's function; 0 before it was looked for.
static REAL: AtomicUsize = AtomicUsize::new(0);

/// As libc's `dlopen`.
///
/// # Safety
/// As libc's.
#[unsafe(naked)]
#[cfg_attr(hugefork_interposed, unsafe(no_mangle))]
pub unsafe extern "C" fn dlopen(name: *const std::ffi::c_char, flags: std::ffi::c_int) -> *mut std::ffi::c_void {
    std::arch::naked_asm!(
        "endbr64",
        "and esi, {kept}",
        "mov rax, [rip + {real}]",
        "test rax, rax",
        "jne 2f",
        // Another library's constructor has come first.
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {find}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "2:",
        "jmp rax",
        kept = const !libc::RTLD_DEEPBIND,
        real = sym REAL,
        find = sym find,
    )
}

extern "C" fn find() -> usize {
    // SAFETY: a name that ends.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) } as usize;
    REAL.store(found, Ordering::Relaxed);
    found
}

/// Looks for libc's function, so that it is not looked for in a signal handler.
pub(crate) fn resolve() {
    find();
}
