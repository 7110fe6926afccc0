//! Calls a function on another stack.
//!
//! ```text
//! caller's stack   … run_on ─ call_on ┐          ┌ returns …
//! other stack                         └ the work ┘
//! ```

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::mem::ManuallyDrop;

/// Carries the function to the other stack, and its result back.
union Parcel<W, R> {
    work: ManuallyDrop<W>,
    done: ManuallyDrop<R>,
}

/// Calls `work` on the stack whose upper end is `end`, and returns to the caller's stack. A panic of `work` aborts the
/// process. On processors other than x86-64 and AArch64, `work` runs on the caller's stack.
///
/// # Safety
/// `end` is a multiple of 16, and the memory below it is writable, large enough for `work`, and unused by other code
/// during the call. If the caller runs on an alternate signal stack, no handler for that stack may start during the
/// call: the kernel would begin at its upper end again and overwrite the caller's frames.
pub unsafe fn run_on<W: FnOnce() -> R, R>(end: *mut c_void, work: W) -> R {
    extern "C" fn open<W: FnOnce() -> R, R>(parcel: *mut c_void) {
        // SAFETY: the caller waits and owns the parcel. The parcel holds the work; this function takes it out and
        // stores the result.
        unsafe {
            let parcel = parcel.cast::<Parcel<W, R>>();
            let work = ManuallyDrop::take(&mut (*parcel).work);
            (*parcel).done = ManuallyDrop::new(work());
        }
    }
    let parcel = UnsafeCell::new(Parcel { work: ManuallyDrop::new(work) });
    // SAFETY: the caller vouches for the stack, and the parcel has the type that `open` takes.
    unsafe {
        call_on(end, open::<W, R>, parcel.get().cast());
        ManuallyDrop::into_inner(parcel.into_inner().done)
    }
}

/// Calls a function on another stack. Calls and returns remain paired, so a shadow stack (CET) needs no switch. The
/// frame pointer still points to the old stack, so debuggers find the caller.
///
/// # Safety
/// `end` is the upper end of an unused stack, and `body` accepts the argument.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn call_on(end: *mut c_void, body: extern "C" fn(*mut c_void), argument: *mut c_void) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, rdi",
        "mov rdi, rdx",
        "call rsi",
        // Every function preserves `rbp`.
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
}

/// Like the version for x86-64.
///
/// # Safety
/// `end` is the upper end of an unused stack, and `body` accepts the argument.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn call_on(end: *mut c_void, body: extern "C" fn(*mut c_void), argument: *mut c_void) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "hint #34", // bti c
        "stp x29, x30, [sp, #-16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset x29, -16",
        ".cfi_offset x30, -8",
        "mov x29, sp",
        ".cfi_def_cfa x29, 16",
        "mov sp, x0",
        "mov x0, x2",
        "blr x1",
        // Every function preserves `x29`.
        "mov sp, x29",
        "ldp x29, x30, [sp], #16",
        ".cfi_def_cfa sp, 0",
        "ret",
        ".cfi_endproc",
    )
}

/// Other processors have only the caller's stack.
///
/// # Safety
/// `body` accepts the argument.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe extern "C" fn call_on(_: *mut c_void, body: extern "C" fn(*mut c_void), argument: *mut c_void) {
    body(argument);
}
