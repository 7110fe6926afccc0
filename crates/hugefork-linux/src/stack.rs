//! Work on another stack.
//!
//! ```text
//! caller's stack   … run_on ─ call_on ┐          ┌ returns …
//! other stack                         └ the work ┘
//! ```

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::mem::ManuallyDrop;

/// What is handed from one stack to the other.
union Parcel<W, R> {
    work: ManuallyDrop<W>,
    done: ManuallyDrop<R>,
}

/// Does some work on the stack that ends at `end`, where it grows from, and comes back. A panic of the work does not
/// leave that stack: it aborts. Where the processor is neither x86-64 nor AArch64, the work is done on the caller's.
///
/// # Safety
/// `end` is a multiple of 16 behind memory that can be written, which is as large as the work needs and which nobody
/// uses meanwhile. No signal handler on an alternate stack may come meanwhile, if the caller stands on that: the kernel
/// would begin at its end.
pub unsafe fn run_on<W: FnOnce() -> R, R>(end: *mut c_void, work: W) -> R {
    extern "C" fn open<W: FnOnce() -> R, R>(parcel: *mut c_void) {
        // SAFETY: the parcel of the caller, who waits. It has the work, which is taken out, and then what was done.
        unsafe {
            let parcel = parcel.cast::<Parcel<W, R>>();
            let work = ManuallyDrop::take(&mut (*parcel).work);
            (*parcel).done = ManuallyDrop::new(work());
        }
    }
    let parcel = UnsafeCell::new(Parcel { work: ManuallyDrop::new(work) });
    // SAFETY: by contract, and as the function that is called takes it.
    unsafe {
        call_on(end, open::<W, R>, parcel.get().cast());
        ManuallyDrop::into_inner(parcel.into_inner().done)
    }
}

/// Calls a function on another stack. Calls and returns stay in pairs, so a shadow stack (CET) need not be switched.
/// The frame pointer stays where it was, by which debuggers find the caller.
///
/// # Safety
/// A stack ends there that nobody uses, and the function takes the argument.
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
        // The function has kept it, as all do.
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
}

/// As on x86-64.
///
/// # Safety
/// A stack ends there that nobody uses, and the function takes the argument.
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
        // The function has kept it, as all do.
        "mov sp, x29",
        "ldp x29, x30, [sp], #16",
        ".cfi_def_cfa sp, 0",
        "ret",
        ".cfi_endproc",
    )
}

/// Elsewhere there is only the caller's.
///
/// # Safety
/// The function takes the argument.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe extern "C" fn call_on(_: *mut c_void, body: extern "C" fn(*mut c_void), argument: *mut c_void) {
    body(argument);
}
