//! A stack of the library's own, for what goes deep: the program's threads may have little of theirs, and its signal
//! handlers less. The engine's first memory takes 55 KiB, and most other work 5 to 10.
//!
//! ```text
//! program's stack   … mmap ─ the lock ─ run_on ─┐                 ┌ returns …
//! own stack                                     └ the engine's work ┘
//! ```
//! There is one, which belongs to whoever has the engine's lock. Signals are blocked meanwhile, but those of faults.

use std::ffi::c_void;
use std::ptr;

use hugefork_linux::stack::run_on;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

use crate::BASE_PAGE;

/// As much as it takes in builds without optimisation, and for a handler of the program's that is called for a fault.
const LEN: usize = 512 << 10;

/// A stack; none before the first call.
pub(crate) struct Stack {
    /// Its end, from where it grows; 0 if there is none.
    end: usize,
}

impl Stack {
    pub(crate) const fn none() -> Stack {
        Stack { end: 0 }
    }

    /// Its end, if there is memory for one.
    fn end(&mut self) -> Option<*mut c_void> {
        if self.end == 0 {
            let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
            // SAFETY: a new mapping where the kernel likes; what lies before the stack is not to be used.
            unsafe {
                let start = mmap_anonymous(ptr::null_mut(), LEN, rights, flags).ok()?;
                let _ = mprotect(start, BASE_PAGE, MprotectFlags::empty());
                self.end = start as usize + LEN;
            }
        }
        Some(self.end as *mut c_void)
    }

    /// Does some work there; or on the stack that there is, where there is no memory for another. Panics abort.
    pub(crate) fn run<R>(&mut self, work: impl FnOnce() -> R) -> R {
        match self.end() {
            // SAFETY: nobody else stands on it, who would have this reference.
            Some(end) => unsafe { run_on(end, work) },
            None => work(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_elsewhere_and_gives_what_it_gives() {
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
