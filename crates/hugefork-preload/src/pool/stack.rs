//! A stack of the library's own for deep calls: the program's threads may have little stack left,
//! and its signal handlers less. Creating the engine takes 55 KiB, and most other work 5 to 10.
//!
//! ```text
//! program's stack   … mmap ─ the lock ─ run_on ─┐                 ┌ returns …
//! own stack                                     └ the engine's work ┘
//! ```
//! There is one such stack, protected by the engine's lock. Signals are blocked meanwhile, except
//! for faults.

use std::ffi::c_void;
use std::ptr;

use hugefork_linux::stack::run_on;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

use crate::BASE_PAGE;

/// Enough for builds without optimisation, and for a fault handler of the program.
const LEN: usize = 512 << 10;

/// A stack; not allocated before the first call.
pub(crate) struct Stack {
    /// The stack's upper end; 0 while the stack is not allocated.
    end: usize,
}

impl Stack {
    pub(crate) const fn none() -> Stack {
        Stack { end: 0 }
    }

    /// The stack's upper end. Allocates the stack on the first call. `None` if memory is short.
    fn end(&mut self) -> Option<*mut c_void> {
        if self.end == 0 {
            let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
            // SAFETY: a new mapping at an address of the kernel's choice; the guard below the stack is not accessible.
            unsafe {
                let start = mmap_anonymous(ptr::null_mut(), LEN, rights, flags).ok()?;
                let _ = mprotect(start, BASE_PAGE, MprotectFlags::empty());
                self.end = start as usize + LEN;
            }
        }
        Some(self.end as *mut c_void)
    }

    /// Runs `work` on this stack, or on the current stack if memory is short. Panics abort.
    pub(crate) fn run<R>(&mut self, work: impl FnOnce() -> R) -> R {
        match self.end() {
            // SAFETY: `&mut self` proves that no other code runs on it.
            Some(end) => unsafe { run_on(end, work) },
            None => work(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_on_the_other_stack_and_returns_its_result() {
        let (mut stack, text) = (Stack::none(), String::from("text"));
        let here = 0_u8;
        let (there, longer) = stack.run(|| {
            let deep = std::hint::black_box([1_u8; 100 << 10]);
            (deep.as_ptr() as usize, text + " and more")
        });
        assert_eq!(longer, "text and more");
        assert!((stack.end - LEN..stack.end).contains(&there));
        assert!(!(stack.end - LEN..stack.end).contains(&(&raw const here).addr()));
        assert_eq!(stack.run(|| 7), 7);
    }
}
